from itertools import chain, pairwise

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.schedule import (
    Certified,
    DynamicPriority,
    Plan,
    Policy,
    Recency,
    Report,
    Rotation,
    RoundRobin,
    StaticPartition,
    Turn,
    independent,
    strongest,
)


def plans(policy, size=1, seed=0, reports=lambda round: None, most=1000):
    """All plans of a run whose ranks report `reports(round)` before a round."""
    policy = policy.begin(size, seed)
    dealt = []
    while len(dealt) < most:
        round = len(dealt)
        plan = policy(round, reports(round) if round else None)
        if plan is None:
            return dealt
        dealt.append(plan)
    raise AssertionError("does not stop")


def proposal(ids, weights, **terms):
    return Report(np.array(ids, np.int64), np.array(weights, float), terms)


# RoundRobin


@pytest.mark.parametrize("shuffled", [False, True])
@given(n=st.integers(1, 40), block=st.integers(1, 50), sweeps=st.integers(0, 3), seed=st.integers(0, 2**31))
@settings(max_examples=40)
def test_round_robin_visits_everything_once_a_sweep(shuffled, n, block, sweeps, seed):
    policy = RoundRobin(n, block, sweeps, shuffled=shuffled)
    dealt = plans(policy, seed=seed)
    per_sweep = policy.rounds_per_sweep
    assert len(dealt) == sweeps * per_sweep
    assert all(0 < len(plan) <= block and plan.dtype == np.int64 for plan in dealt)
    for sweep in range(sweeps):
        visited = np.concatenate(dealt[sweep * per_sweep : (sweep + 1) * per_sweep])
        assert sorted(visited) == list(range(n))
        assert shuffled or list(visited) == list(range(n))


def test_round_robin_shuffles_by_seed_and_sweep():
    policy = RoundRobin(50, 7, 2, shuffled=True)
    first, again, other = (np.concatenate(plans(policy, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[:50] != first[50:]).any()


@pytest.mark.parametrize("size", [1, 3])
def test_round_robin_stops_after_a_quiet_sweep(size):
    changes = [9, 9, 9, 1, 0, 0, 0, 0, 0.1, 0, 0, 0]  # of rounds 0, 1, ...; three a sweep

    def reports(round):
        return [-changes[round - 1] if rank == size - 1 else 0 for rank in range(size)]

    assert len(plans(RoundRobin(3, tol=0.5), size, reports=reports)) == 9
    assert len(plans(RoundRobin(3, tol=0.1), size, reports=reports)) == 9
    assert len(plans(RoundRobin(3, tol=0.05), size, reports=reports)) == 12
    assert len(plans(RoundRobin(3, tol=10.0), size, reports=reports)) == 3
    assert len(plans(RoundRobin(3, sweeps=2, tol=0.5), size, reports=reports)) == 6


def test_round_robin_needs_reports_only_for_tol():
    assert RoundRobin(3, tol=0.1).waits(1)
    assert not RoundRobin(3, sweeps=1).waits(1)


def test_runs_do_not_share_state():
    policy = RoundRobin(2, tol=0.5)
    first, second = policy.begin(1, 0), policy.begin(1, 0)
    for round in range(2):
        first(round, [9.0] if round else None)
        second(round, [0.0] if round else None)
    assert second(2, [0.0]) is None
    assert first(2, [0.0]) is not None
    assert policy.begin(1, 0)(2, [0.0]) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_variables": 0, "sweeps": 1}, "at least one, got 0, 1"),
        ({"n_variables": 3, "block": 0, "sweeps": 1}, "at least one, got 3, 0"),
        ({"n_variables": 3}, "never stop"),
    ],
)
def test_round_robin_that_makes_no_sense(options, told):
    with pytest.raises(ValueError, match=told):
        RoundRobin(**options)


# StaticPartition


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any),
    block=st.integers(5, 30),
    own=st.booleans(),
)
def test_static_partition_cycles_every_rank_through_its_own(lengths, block, own):
    size, n = len(lengths), sum(lengths)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    policy = StaticPartition(n, block, sweeps=2, bounds=bounds if own else None)
    dealt = plans(policy, size)
    per_sweep = policy.rounds_per_sweep
    assert len(dealt) == 2 * per_sweep
    cuts = bounds if own else [n * rank // size for rank in range(size + 1)]
    for start, stop in pairwise(cuts):
        shares = [[j for j in plan if start <= j < stop] for plan in dealt]
        for sweep in shares[:per_sweep], shares[per_sweep:]:
            assert list(chain(*sweep)) == list(range(start, stop))
        assert max(map(len, shares)) <= min(map(len, shares)) + 1  # as even as can be
    assert all(0 < len(plan) < block + size for plan in dealt)


@pytest.mark.parametrize(
    ("options", "size", "told"),
    [
        ({"block": 0}, 1, "at least one"),
        ({"bounds": [0, 4]}, 1, r"ascend from 0 to 6, got \[0, 4\]"),
        ({"bounds": [0, 4, 2, 6]}, 3, "ascend from 0 to 6"),
        ({"bounds": []}, 1, "ascend from 0 to 6"),
        ({"bounds": [0, 2, 6]}, 3, "bounds give 2 ranks variables, the run has 3"),
        ({"block": 2}, 3, "3 ranks less than one variable each"),
    ],
)
def test_static_partition_that_makes_no_sense(options, size, told):
    with pytest.raises(ValueError, match=told):
        StaticPartition(**{"n_variables": 6, "block": 3, "sweeps": 1} | options).begin(size, 0)


def test_static_partition_keeps_what_the_run_makes_of_it_apart():
    policy = StaticPartition(6, 3, sweeps=1)
    assert [list(plan) for plan in plans(policy, 3)] == [[0, 2, 4], [1, 3, 5]]
    assert [list(plan) for plan in plans(policy, 1)] == [[0, 1, 2], [3, 4, 5]]


# Rotation


@pytest.mark.parametrize("size", [1, 2, 5])
def test_rotation_brings_every_block_to_every_rank_once_a_sweep(size):
    dealt = plans(Rotation(3), size)
    assert dealt == [Turn(sweep, shift) for sweep in range(3) for shift in range(size)]
    for sweep in range(3):
        turns = [turn for turn in dealt if turn.sweep == sweep]
        held = np.array([[(rank - turn.shift) % size for turn in turns] for rank in range(size)])
        for row in [*held, *held.T]:  # a rank holds each block once; a block is at one rank at a time
            assert sorted(row) == list(range(size))


@pytest.mark.parametrize(("size", "blocks"), [(1, 1), (1, 3), (2, 3), (3, 2), (5, 1)])
def test_rotation_of_queues_is_what_the_turns_say(size, blocks):
    queues = [list(range(rank * blocks, (rank + 1) * blocks)) for rank in range(size)]
    home = [list(queue) for queue in queues]
    seen = set()
    for turn in plans(Rotation(1, blocks), size):
        held = [queue.pop(0) for queue in queues]
        shift, place = divmod(turn.shift, blocks)
        assert held == [(rank - shift) % size * blocks + place for rank in range(size)]
        seen.update(enumerate(held))
        for rank, block in enumerate(held):
            queues[(rank + 1) % size].append(block)
    assert len(seen) == size * size * blocks
    assert queues == home


def test_rotation_leads_and_listens():
    policy = Rotation(3, 2, lead=2, listens=1).begin(2, 0)
    assert [policy(round, None) for round in range(4)] == [Turn(-1, 0), Turn(-1, 1), Turn(0, 0), Turn(0, 1)]
    assert [round for round in range(20) if policy.waits(round)] == [10, 14, 18]
    quiet, loud = ([Report(np.empty(0, int), np.empty(0), terms)] for terms in ({}, {"stop": 1.0}))
    assert policy(10, quiet) == Turn(2, 0)
    assert policy(10, loud) is None
    assert policy(14, quiet) is None  # three sweeps
    with pytest.raises(TypeError, match=r"a daskstrads\.Report"):
        policy(10, [1.0])


def test_rotation_without_sweeps():
    assert plans(Rotation(0), 3) == []
    assert not Rotation(1).waits(1)
    with pytest.raises(ValueError, match="at least 0"):
        Rotation(-1)
    with pytest.raises(ValueError, match="at least 0"):
        Rotation(1, lead=-1)
    with pytest.raises(ValueError, match="every rank needs a block"):
        Rotation(1, 0)


# DynamicPriority


@pytest.mark.parametrize(
    ("block", "growth", "proposals", "wanted"),
    [
        (2, 0, [([0, 1], [1, 5]), ([7], [3])], [1, 7]),
        (9, 0, [([0, 1], [1, 5]), ([7], [3])], [1, 7, 0]),
        (3, 0, [([9, 4], [2, 2]), ([1, 6], [2, 3])], [6, 1, 4]),  # ties by id, whichever rank proposed
        (1, 0, [([3], [np.inf]), ([2], [np.inf])], [2]),
        (1, 1, [([3, 5], [np.inf, 1]), ([2], [np.inf])], [2, 3]),
        (1, 1.5, [([3, 5], [np.inf, 1]), ([2, 8], [np.inf, 4])], [2, 3, 8]),
        (2, 0, [([], []), ([5], [1])], [5]),
    ],
)
def test_dynamic_priority_merges_proposals(block, growth, proposals, wanted):
    reports = [proposal(*each) for each in proposals]
    dealt = DynamicPriority(block, growth=growth)(1, reports)
    assert dealt.dtype == np.int64
    assert list(dealt) == wanted
    assert list(DynamicPriority(block, growth=growth)(1, reports[::-1])) == wanted


def test_dynamic_priority_before_any_report():
    assert len(DynamicPriority(3)(0, None)) == 0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        DynamicPriority(0)


def test_lookahead_deals_blocks_of_one_rounds_reports():
    some = [proposal([0, 1, 2, 3, 4], [1, 5, 2, 4, 3]), proposal([9], [6])]
    policy = DynamicPriority(2, lookahead=2).begin(2, 0)
    assert not policy.waits(0)
    assert list(policy(0, None)) == []
    assert policy.waits(1)
    assert list(policy(1, some)) == [9, 1]
    assert not policy.waits(2)
    assert list(policy(2, None)) == [3, 4]
    assert list(policy(3, None)) == [2, 0]
    assert policy.waits(4)  # what follows depends on fresh reports
    assert list(policy(4, [proposal([7], [1.0])])) == [7]  # fewer proposals make fewer blocks
    assert policy.waits(5)
    assert policy(5, [proposal([], [])]) is None


def test_lookahead_gives_way_to_reports_that_come_earlier():
    policy = DynamicPriority(1, lookahead=3).begin(1, 0)
    policy(1, [proposal([1, 2, 3], [3, 2, 1])])
    assert list(policy(2, [proposal([8], [1])])) == [8]
    assert policy.waits(3)


def test_lookahead_grows_every_block_and_ends_with_rounds():
    policy = DynamicPriority(1, growth=2.0, lookahead=1, rounds=3).begin(1, 0)
    some = [proposal([4, 5, 6, 7, 8], [np.inf, 1, 2, 3, 4])]
    assert [list(policy(round, reports)) for round, reports in [(1, some), (2, None)]] == [[4, 8], [7, 6]]
    assert policy(3, some) is None


def test_lookahead_of_runs_is_their_own():
    policy = DynamicPriority(1, lookahead=2)
    first = policy.begin(1, 0)
    first(1, [proposal([1, 2, 3], [3, 2, 1])])
    second = policy.begin(1, 0)
    assert second.waits(1)
    assert not first.waits(2)
    assert list(first(2, None)) == [2]


@pytest.mark.parametrize(
    ("lookahead", "error", "told"),
    [(-1, ValueError, "at least 0, got -1"), (1.5, TypeError, "whole number"), (True, TypeError, "True")],
)
def test_lookahead_that_makes_no_sense(lookahead, error, told):
    with pytest.raises(error, match=told):
        DynamicPriority(3, lookahead=lookahead)


# Certified


class Script(Policy):
    """Blocks from a list, then none."""

    def __init__(self, *blocks):
        self.blocks = blocks

    def __call__(self, round, reports):
        return self.blocks[round] if round < len(self.blocks) else None


def certified(gaps, blocks, most=50, **options):
    """The steps of a run whose measurements give `gaps` in turn."""
    left = iter(gaps)
    blocks = [np.array(block, np.int64) for block in blocks]
    policy = Certified(Script(*blocks), lambda reports: next(left), 0.1, **options)
    return plans(policy, reports=lambda round: [proposal([], [])], most=most)


def steps(dealt):
    return "".join(plan.step[0] for plan in dealt)


def test_certified_measures_before_and_after():
    dealt = certified([5.0, 2.0, 0.1], [[1, 2], [3]])
    assert steps(dealt) == "pmumum"
    assert [list(plan.block) for plan in dealt if plan.step == "update"] == [[1, 2], [3]]
    assert [plan.gap for plan in dealt] == [np.inf, np.inf, 5.0, 5.0, 2.0, 2.0]
    assert all(isinstance(plan, Plan) for plan in dealt)


@pytest.mark.parametrize(
    ("gaps", "blocks", "options", "wanted"),
    [
        ([0.0], [[1]], {}, "pm"),  # at the optimum already
        ([9, 9, 0], [[1]] * 9, {"every": 3}, "pmuuumuuum"),
        ([9, np.nan], [[1]] * 9, {}, "pmum"),
        ([9, np.inf], [[1]] * 9, {}, "pmum"),
        ([9] * 9, [[1]] * 9, {"max_measures": 2}, "pmumum"),  # beyond the first
        ([9] * 9, [[1], [2]], {}, "pmumum"),  # the inner policy ends
        ([9] * 9, [[1], [], [2]], {}, "pmum"),  # nothing left to do right after a measurement
        ([9] * 9, [[1], [], [2]], {"every": 5}, "pmum"),  # nothing proposed: measured, then the end
        ([9] * 9, [], {}, "pm"),
    ],
)
def test_certified_stops(gaps, blocks, options, wanted):
    assert steps(certified(gaps, blocks, **options)) == wanted


def test_certified_blocks_share_the_distance():
    dealt = certified([9.0, 4.0, 3.0, 2.9, 0.0], [[1]] * 9, every=2)
    wanted = [4.5, 4.5, 2.0, 2.0, 0.15, 0.15, 0.0145, 0.0145]  # less where the distance did not halve
    np.testing.assert_allclose([plan.gap for plan in dealt if plan.step == "update"], wanted)
    assert [plan.gap for plan in dealt if plan.step == "measure"] == [np.inf, 9.0, 4.0, 3.0, 2.9]


def test_certified_runs_are_independent():
    policy = Certified(RoundRobin(3, sweeps=2), lambda reports: 1.0, 0.0, every=3)
    first, second = (plans(policy, reports=lambda round: [proposal([], [])]) for _ in range(2))
    assert steps(first) == steps(second) == "pmuuumuuum"


def test_certified_hands_the_seed_on():
    policy = Certified(RoundRobin(9, sweeps=1, shuffled=True), lambda reports: 1.0, 0.0)

    def dealt(seed):
        return [list(plan.block) for plan in plans(policy, 2, seed, lambda round: [proposal([], [])])]

    assert dealt(1) == dealt(1) != dealt(2)


def test_certified_waits_where_the_lookahead_ends():
    policy = Certified(DynamicPriority(1, lookahead=2), lambda reports: 1.0, 0.0, every=4).begin(1, 0)
    waited, dealt = [], []
    for round in range(12):
        waits = policy.waits(round)
        waited.append("w" if waits else ".")
        some = [proposal([10 * round, 10 * round + 1, 10 * round + 2], [3, 2, 1])]
        dealt.append(policy(round, some if waits else None))
    assert steps(dealt) == "pmuuuumuuuum"
    # The fourth update waits, a measurement never does, and the update after one does.
    assert "".join(waited) == "..w..w.w..w."
    assert [list(plan.block) for plan in dealt[2:6]] == [[20], [21], [22], [50]]
    assert list(dealt[7].block) == [70]  # not 51: measured meanwhile


# strongest


@given(
    weights=st.lists(st.one_of(st.floats(0, 10), st.just(np.inf), st.sampled_from([1.0, 2.0])), max_size=30),
    count=st.integers(1, 40),
    floor=st.sampled_from([0.0, 1.0, 9.0]),
)
def test_strongest_takes_the_largest_above_the_floor(weights, count, floor):
    weights = np.array(weights)
    places = strongest(weights, count, floor)
    assert list(places) == sorted(set(places))
    wanted = sorted((w for w in weights if w > floor), reverse=True)[:count]
    assert sorted(weights[places], reverse=True) == wanted


# Recency


def test_recency_keeps_rivals_and_forgets_what_stood_still():
    recency = Recency(1000, np.random.default_rng(0), eta=1e-9)
    recency.restart(np.array([3, 5, 8, 9]), np.array([4.0, 2.0, 1.0, 0.0]))
    recency.record(np.array([3, 5]), np.array([-0.5, 0.0]))  # 8 was proposed, but a rival went first
    places, weights = recency.propose(10)
    assert list(places) == [3, 8]
    np.testing.assert_allclose(weights, [0.5, 1.0])


def test_recency_draws_what_strads_draws():
    size, eta, draws = 12, 0.3, 20_000
    changes = np.array([0, 5.0, 0, 1.0, 0, 0, 2.0, 0, 0, 0, 0, 0.5])
    recency = Recency(size, np.random.default_rng(1), eta)
    moved = np.flatnonzero(changes)
    recency.record(moved, -changes[moved])
    counts = np.zeros(size)
    for _ in range(draws):
        places, weights = recency.propose(1)
        counts[places] += 1
    floor = eta * changes[moved].mean()
    np.testing.assert_allclose(weights, (changes + floor)[places])
    wanted = (changes + floor) / (changes + floor).sum() * draws
    assert counts.sum() == draws
    assert (np.abs(counts - wanted) < 5 * np.sqrt(wanted)).all()


def test_recency_draws_without_replacement_by_weight():
    recency = Recency(4, np.random.default_rng(2), eta=1e-12)
    recency.record(np.arange(4), np.array([100.0, 100.0, 1.0, 1.0]))
    together = sum(list(recency.propose(2)[0]) == [0, 1] for _ in range(500))
    assert together > 450  # 0.98 each
    places, _ = recency.propose(4)
    assert list(places) == [0, 1, 2, 3]


def test_eta_reaches_every_variable_in_the_end():
    size = 200
    recency = Recency(size, np.random.default_rng(3))
    recency.record(np.array([7]), np.array([1e6]))
    seen = set()
    for _ in range(3000):
        seen.update(recency.propose(10)[0].tolist())
        if len(seen) == size:
            return
    raise AssertionError(f"{size - len(seen)} variables were never proposed")


@pytest.mark.parametrize("known", [False, True])
def test_recency_with_nothing_recent_or_more_asked_than_there_is(known):
    recency = Recency(5, np.random.default_rng(4))
    if known:
        recency.record(np.arange(5), np.ones(5))
    places, weights = recency.propose(50)
    assert len(places) == len(weights) == len(set(places))
    assert ((places >= 0) & (places < 5)).all()
    assert (weights > 0).all()
    assert len(places)


def test_recency_of_a_rank_without_variables():
    recency = Recency(0, np.random.default_rng(5))
    recency.restart(np.empty(0, int), np.empty(0))
    recency.record(np.empty(0, int), np.empty(0))
    places, weights = recency.propose(3)
    assert len(places) == len(weights) == 0
    assert places.dtype == np.int64


def test_recency_is_reproducible():
    def drawn():
        recency = Recency(100, np.random.default_rng([6, 1]))
        for k in range(20):
            places, _ = recency.propose(5)
            recency.record(places, np.sin(places + k))
        return recency.propose(5)

    for one, two in zip(drawn(), drawn(), strict=True):
        np.testing.assert_array_equal(one, two)


# independent


@given(
    seed=st.integers(0, 2**32),
    k=st.integers(0, 12),
    n=st.integers(1, 6),
    rho=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99, 2.0]),
)
def test_independent_is_the_greedy_check(seed, k, n, rho):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, k)) * 10.0 ** rng.integers(-4, 5, k) * (rng.random(k) < 0.8)
    gram = X.T @ X
    kept = independent(gram, rho)
    assert kept.dtype == np.int64
    assert list(kept) == naive.independent(gram.tolist(), rho)


def test_independent_by_hand():
    correlation = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.9], [0.0, 0.9, 1.0]])
    assert list(independent(correlation, 0.5)) == [0, 2]  # 1 is out, so it is no rival of 2
    assert list(independent(correlation, 0.9)) == [0, 2]
    assert list(independent(correlation, 0.91)) == [0, 1, 2]
    assert list(independent(-correlation + 2 * np.eye(3), 0.5)) == [0, 2]
    assert list(independent(np.zeros((3, 3)), 0.1)) == [0, 1, 2]
    assert list(independent(np.empty((0, 0)), 0.1)) == []
    scale = np.diag([1e-6, 1e6, 1.0])
    assert list(independent(scale @ correlation @ scale, 0.5)) == [0, 2]


def test_round_robin_does_not_take_nan_for_no_change():
    policy = RoundRobin(2, tol=1e-3).begin(2, 0)
    policy(0, None)
    with pytest.raises(FloatingPointError, match="rank 1"):
        policy(1, [0.0, float("nan")])


def test_dynamic_priority_ends():
    policy = DynamicPriority(2, rounds=3)
    some = [proposal([1], [1.0])]
    assert list(policy(0, None)) == []  # nothing is proposed yet
    assert list(policy(2, some)) == [1]
    assert policy(3, some) is None
    assert policy(1, [proposal([], [])]) is None
    with pytest.raises(TypeError, match=r"daskstrads\.Report"):
        policy(1, [0.5])


def test_round_robin_with_tol_needs_numbers():
    with pytest.raises(TypeError, match="pull to return a number"):
        RoundRobin(2, tol=1.0)(1, [None])
