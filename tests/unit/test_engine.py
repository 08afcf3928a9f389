import threading
import time
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from daskstrads import Gather, Pass, Program, Rotate, Rotation, RoundRobin, Run, Scatter, Stream, Sum, run
from daskstrads.engine.program import check_program
from daskstrads.schedule import Policy

SOON = 5.0
Pair = namedtuple("Pair", "left right")


class Once(Program):
    """One round: pushes push(shard) and returns what pull(shard, received, sent) says."""

    def __init__(self, push, pull=lambda shard, received, sent: None):
        self._push, self._pull = push, pull
        self.schedule = RoundRobin(1, sweeps=1)
        self.got = {}

    def init(self, part, rank, size, rng):
        return SimpleNamespace(part=part, rank=rank, size=size)

    def push(self, shard, plan):
        return self._push(shard)

    def pull(self, shard, plan, received, sent):
        self.got[shard.rank] = received
        return self._pull(shard, received, sent)


def received(push, size=3, pull=lambda shard, received, sent: None):
    """What every rank receives."""
    program = Once(push, pull)
    run(program, range(size), round_timeout=20)
    return [program.got[rank] for rank in range(size)]


SIZES = pytest.mark.parametrize("size", [1, 2, 3, 5])

# Exchanges


@SIZES
@pytest.mark.parametrize("wrap", [Sum, lambda x: x])
def test_sum_of_arrays(wrap, size):
    for total in received(lambda shard: wrap(np.full((2, 3), 1.0 + shard.rank)), size):
        assert total.flags.writeable
        np.testing.assert_array_equal(total, np.full((2, 3), size * (size + 1) / 2))


@SIZES
@pytest.mark.parametrize("wrap", [Sum, lambda x: x])
@pytest.mark.parametrize(
    ("number", "kind"), [(2, np.int64), (0.5, np.float64), (1j, np.complex128), (np.float32(3), np.float32)]
)
def test_sum_of_numbers(wrap, number, kind, size):
    for total in received(lambda shard: wrap(number), size):
        assert type(total) is kind
        assert total == number * size


@SIZES
@pytest.mark.parametrize("wrap", [Sum, lambda x: x])
def test_sum_of_streams(wrap, size):
    for total in received(lambda shard: wrap(Stream.from_coo([shard.rank, 50], [1.0, 0.5], 100)), size):
        assert isinstance(total, Stream)
        assert list(total.index) == [*range(size), 50]
        np.testing.assert_array_equal(total.value, [1.0] * size + [0.5 * size])


@SIZES
def test_sum_takes_lists(size):
    for total in received(lambda shard: Sum([1.0, 2.0]), size):
        np.testing.assert_array_equal(total, [size, 2.0 * size])


@SIZES
def test_totals_are_private_and_sent_stays(size):
    sent_arrays = {}

    def push(shard):
        sent_arrays[shard.rank] = np.full(3, 1.0)
        return sent_arrays[shard.rank]

    def pull(shard, total, sent):
        assert sent is sent_arrays[shard.rank]
        total *= shard.rank
        sent += shard.rank

    for rank, total in enumerate(received(push, size, pull)):
        np.testing.assert_array_equal(total, np.full(3, 1.0 * size * rank))


@SIZES
@pytest.mark.parametrize("n", [0, 2, 7])
def test_scatter_gives_each_rank_its_piece(n, size):
    pieces = received(lambda shard: Scatter(np.arange(2.0 * n).reshape(n, 2) * (shard.rank + 1)), size)
    assert [len(piece) for piece in pieces] == [
        n * (r + 1) // size - n * r // size for r in range(size)
    ]  # fmt: skip
    total = np.arange(2.0 * n).reshape(n, 2) * size * (size + 1) / 2
    np.testing.assert_array_equal(np.concatenate(pieces), total)


def test_scatter_by_bounds():
    pieces = received(lambda shard: Scatter(np.ones(10), np.array([0, 7, 7, 10])))
    assert [list(piece) for piece in pieces] == [[3.0] * 7, [], [3.0] * 3]


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ([0, 5, 10], "4 ascending offsets from 0 to 10, got"),
        ([0, 5, 6, 9], "4 ascending offsets"),
        ([1, 5, 6, 10], "4 ascending offsets"),
        ([0, 6, 5, 10], "4 ascending offsets"),
    ],
)
def test_scatter_by_bounds_that_do_not_fit(bounds, told):
    with pytest.raises(ValueError, match=told):
        received(lambda shard: Scatter(np.ones(10), bounds))


def test_scatter_by_bounds_that_differ():
    with pytest.raises(ValueError, match=r"same on all ranks \(rank 0: \[0, 0, 4\]; rank 1: \[0, 1, 4\]\)"):
        received(lambda shard: Scatter(np.ones(4), [0, shard.rank, 4]), 2)


@pytest.mark.parametrize("lengths", [(12, 10), (10, 12), (3, 4)])
def test_scatter_of_arrays_that_differ(lengths):
    with pytest.raises(ValueError, match=r"differ .*rank 0: .*; rank 1: "):
        received(lambda shard: Scatter(np.ones(lengths[shard.rank])), 2)


def test_scatter_of_what_has_no_pieces():
    with pytest.raises(ValueError, match="needs an array with an axis 0"):
        received(lambda shard: Scatter(1.0))
    with pytest.raises(TypeError, match=r"Stream into an array with .dense\(\)"):
        received(lambda shard: Scatter(Stream.from_dense(np.ones(3))))


@SIZES
def test_gather_is_every_ranks_value_read_only(size):
    own = [np.full(rank, float(rank)) for rank in range(size)]

    def pull(shard, values, sent):
        own[shard.rank][:] = -1  # too late to reach anybody

    for values in received(lambda shard: Gather({"x": own[shard.rank], "n": shard.rank}), size, pull):
        assert [value["n"] for value in values] == list(range(size))
        for rank, value in enumerate(values):
            assert (value["x"] == rank).all()
            assert len(value["x"]) == rank
            assert not value["x"].flags.writeable


@SIZES
def test_gather_of_streams_and_of_nothing(size):
    stream = Stream.from_coo([1], [2.0], 9)
    assert received(lambda shard: Gather(stream), size) == [[stream] * size] * size
    assert received(lambda shard: Gather(None), size) == [[None] * size] * size


@SIZES
def test_rotate_hands_a_block_to_the_next_rank_for_good(size):
    blocks = {}

    def push(shard):
        blocks[shard.rank] = np.full((3, 2), float(shard.rank), order="F")
        return Rotate(Pair(blocks[shard.rank], [shard.rank]))

    def pull(shard, block, sent):
        assert type(block) is Pair
        assert block.left.flags.writeable
        assert block.left.flags.f_contiguous
        assert block.right == [(shard.rank - 1) % shard.size]
        block.left[:] += 100.0
        block.right.append("mine")

    for rank, block in enumerate(received(push, size, pull)):
        assert (block.left == 100 + (rank - 1) % size).all()
        assert (blocks[rank] == rank).all()
        assert not any(np.shares_memory(block.left, other) for other in blocks.values())


@SIZES
def test_rotate_copies_read_only_blocks_too(size):
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    for block in received(lambda shard: Rotate(fixed), size):
        assert block.flags.writeable
        assert not np.shares_memory(block, fixed)


@SIZES
def test_several_exchanges_in_a_round(size):
    def push(shard):
        x = np.full(size, float(shard.rank))
        return Rotate(x), Sum(x), x, 1, Scatter(x), Gather(shard.rank), Stream.from_dense(x)

    total = size * (size - 1) / 2
    for rank, got in enumerate(received(push, size)):
        assert type(got) is tuple
        block, summed, bare, number, piece, gathered, stream = got
        assert (block == (rank - 1) % size).all()
        assert (summed == total).all()
        assert (bare == total).all()
        assert number == size
        assert list(piece) == [total]
        assert gathered == list(range(size))
        assert (stream.dense() == total).all()


@SIZES
def test_nothing_and_tuples_of_one(size):
    assert received(lambda shard: None, size) == [None] * size
    assert received(lambda shard: (), size) == [()] * size
    for got in received(lambda shard: (Sum(1.0),), size):
        assert got == (size,)
    assert received(lambda shard: None, size, lambda shard, got, sent: None) == [None] * size


@SIZES
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([np.ones(3)], "push must return Sum, .* or None, not list"),
        ((Pass(1), Pass(2)), "more than one Pass"),
        ("text", "not str"),
        ({"a": 1}, "not dict"),
        (Sum, "not type"),
        ((Sum(1.0), [1.0]), "not list"),
        ((1.0, None), "not NoneType"),
        (Sum("text"), "can sum an array of numbers, a number or a Stream, got <U4 array"),
        (True, "rank 0: can sum .*, got bool"),
        (np.array([True]), "rank 0: can sum .*, got bool"),
        (Sum(np.array([None])), "array of objects cannot be exchanged"),
        (Gather(np.array([None])), "array of objects cannot be exchanged"),
        (Rotate([np.array([None])]), "array of objects cannot be exchanged"),
        (Gather({1, 2}), "a set cannot be exchanged"),
        (Rotate(object()), "a object cannot be exchanged"),
    ],
)
def test_push_returns_something_wrong(wrong, told, size):
    with pytest.raises(TypeError, match=told) as caught:
        received(lambda shard: wrong, size)
    assert "in phase exchange of round 0, Once" in caught.value.__notes__


@pytest.mark.parametrize("odd", [None, Gather(1.0), (Sum(1.0),) * 2])
def test_ranks_that_push_different_exchanges(odd):
    with pytest.raises(RuntimeError, match=r"different exchanges \(rank 0: push\(.*rank 2: push\("):
        received(lambda shard: odd if shard.rank == 2 else Sum(1.0))


@pytest.mark.parametrize("odd", [np.ones(4), np.ones(3, np.float32), 1.0, Stream.from_dense(np.ones(3))])
def test_ranks_that_sum_different_things(odd):
    with pytest.raises(ValueError, match=r"cannot be summed \(ranks 0, 1: .*; rank 2: "):
        received(lambda shard: odd if shard.rank == 2 else np.ones(3))


# The program


class Plain:
    """Not even a Program: any object with the four methods will do."""

    def __init__(self):
        self.inits = 0

    def init(self, part, rank, size, rng):
        self.inits += 1
        return [part]

    def schedule(self, round, reports):
        return round if round < 3 else None

    def push(self, shard, plan):
        return float(shard[0])

    def pull(self, shard, plan, received, sent):
        shard.append(received)
        return plan, sent


def test_any_object_with_the_four_methods():
    done = run(Plain(), [1, 2])
    assert isinstance(done, Run)
    assert done.shards == [[1, 3.0, 3.0, 3.0], [2, 3.0, 3.0, 3.0]]
    assert done.rounds == 3
    assert done.reports == [(2, 1.0), (2, 2.0)]


def without(name, **others):
    """A program that lacks a method, and may have others."""
    made = {key: value for key, value in vars(Plain).items() if not key.startswith("__")}
    del made[name]
    return type("Partial", (), made | others)()


@pytest.mark.parametrize("name", ["init", "schedule", "push", "pull"])
def test_a_missing_method_is_named(name):
    with pytest.raises(TypeError, match=rf"Partial has no method {name}\(\w+, "):
        run(without(name), [1])


@pytest.mark.parametrize(
    ("name", "slip"),
    [
        ("init", "init_"),
        ("schedule", "shedule"),
        ("push", "psuh"),
        ("pull", "Pull"),
        ("schedule", "scheduler"),
    ],
)
def test_a_misspelt_method_is_named(name, slip):
    with pytest.raises(TypeError, match=rf"no method {name}\(.*\); did you mean it by '{slip}'\?"):
        run(without(name, **{slip: lambda self: None}), [1])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("init", lambda self, part, rank: None),
        ("schedule", lambda self, round: None),
        ("push", lambda self, shard: None),
        ("pull", lambda self, shard, plan, received: None),
        ("pull", lambda self, shard, plan, received, sent, more: None),
        ("push", lambda: None),
    ],
)
def test_a_method_with_other_arguments_is_named(name, method):
    program = without(name, **{name: method})
    with pytest.raises(TypeError, match=rf"Partial\.{name} must take \(.*\): "):
        run(program, [1])


@pytest.mark.parametrize("method", [lambda self, *args: None, lambda self, shard, plan, more=1: None])
def test_other_ways_to_take_the_arguments(method):
    check_program(without("push", push=method))


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (Plain, "got the class Plain; call it first"),
        (without("schedule", schedule=RoundRobin), "Partial.schedule is the class RoundRobin; call it first"),
        (without("schedule", schedule=Rotation), "Partial.schedule is the class Rotation; call it first"),
        (without("push", push=3), "no method push"),
        (without("push", push=Plain.push, replicas="x"), r"tuple of names; for one: \('x',\)"),
    ],
)
def test_other_slips(program, told):
    with pytest.raises(TypeError, match=told):
        run(program, [1])


def test_slips_are_found_before_init():
    program = without("pull", inits=0)
    with pytest.raises(TypeError):
        run(program, [1])
    assert program.inits == 0


def test_no_parts():
    with pytest.raises(ValueError, match="at least one part"):
        run(Plain(), [])


@SIZES
def test_generators_are_keyed_by_seed_and_rank(size):
    class Draw(Once):
        def init(self, part, rank, size, rng):
            assert (part, size) == (10 * rank, self.size)
            return SimpleNamespace(rank=rank, drawn=rng.random())

    program = Draw(lambda shard: None)
    program.size = size
    for seed in (0, 7):
        done = run(program, [10 * rank for rank in range(size)], seed=seed)
        wanted = [np.random.default_rng([seed, rank]).random() for rank in range(size)]
        assert [shard.drawn for shard in done.shards] == wanted


# Schedules


def test_a_schedule_of_ones_own_is_asked_on_rank_0_and_told_to_the_others():
    asked, plans = [], []

    class Own(Plain):
        def schedule(self, round, reports):
            asked.append((threading.current_thread().name, round, reports))
            return {"ids": np.arange(round + 1), "when": time.monotonic_ns()} if round < 2 else None

        def push(self, shard, plan):
            plans.append((len(plan["ids"]), plan["when"]))
            assert not plan["ids"].flags.writeable
            return None

        def pull(self, shard, plan, received, sent):
            return shard[0] * len(plan["ids"])

    done = run(Own(), [1, 2, 3])
    assert [name for name, _, _ in asked] == ["daskstrads-rank-0"] * 3
    assert [entry[1:] for entry in asked] == [(0, None), (1, [1, 2, 3]), (2, [2, 4, 6])]
    assert len(plans) == 6
    assert len(set(plans)) == 2
    assert done.reports == [2, 4, 6]


@SIZES
@pytest.mark.parametrize("schedule", [lambda round, reports: None, RoundRobin(3, sweeps=0), Rotation(0)])
def test_nothing_to_do(schedule, size):
    program = Plain()
    program.schedule = schedule
    assert run(program, range(size)) == ([[rank] for rank in range(size)], 0, [None] * size)


def test_a_policy_is_copied_for_every_run_and_rank():
    class Count(Policy):
        calls = 0

        def __call__(self, round, reports):
            self.calls += 1
            assert self.calls == round + 1
            assert reports == (None if round == 0 else [(round - 1, 1.0), (round - 1, 2.0)])
            return round if round < 4 else None

    program = Plain()
    program.schedule = Count()
    for _ in range(2):
        assert run(program, [1, 2]).rounds == 4
    assert program.schedule.calls == 0


@pytest.mark.parametrize("own", [True, False])
def test_the_callback_sees_every_round_on_rank_0(own):
    program, seen = Plain(), []
    if not own:
        program.schedule = RoundRobin(4, sweeps=1, tol=0)
        program.pull = lambda shard, plan, received, sent: shard[0]

    def callback(round, plan, reports):
        seen.append((threading.current_thread().name, round, plan is None, reports))

    done = run(program, [1, 2], callback=callback)
    assert [entry[0] for entry in seen] == ["daskstrads-rank-0"] * (done.rounds + 1)
    assert [entry[1] for entry in seen] == list(range(done.rounds + 1))
    assert [entry[2] for entry in seen] == [False] * done.rounds + [True]
    assert seen[0][3] is None
    assert seen[-1][3] == done.reports


def test_reports_do_not_change_while_others_read_them():
    # pull may report an array that it goes on writing to.
    class Live(Plain):
        def init(self, part, rank, size, rng):
            return np.zeros(2)

        def push(self, shard, plan):
            shard += 1
            return None

        def pull(self, shard, plan, received, sent):
            return shard

    seen = []
    done = run(Live(), [0, 0], callback=lambda round, plan, reports: seen.append(reports))
    assert [None if reports is None else [list(r) for r in reports] for reports in seen] == [
        None, [[1, 1]] * 2, [[2, 2]] * 2, [[3, 3]] * 2,
    ]  # fmt: skip
    assert not any(np.shares_memory(*pair) for pair in zip(done.reports, done.shards, strict=True))


# Failures


class Fails(Plain):
    """Raises in a phase of a round, on one rank."""

    def __init__(self, phase, round, rank):
        super().__init__()
        self.where = phase, round, rank

    def _at(self, phase, round, rank):
        if self.where == (phase, round, rank):
            raise KeyError("the root")

    def init(self, part, rank, size, rng):
        self._at("init", 0, rank)
        return [rank]

    def schedule(self, round, reports):
        self._at("schedule", round, 0)
        return round if round < 3 else None

    def push(self, shard, plan):
        self._at("push", plan, shard[0])
        return 1.0

    def pull(self, shard, plan, received, sent):
        self._at("pull", plan, shard[0])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("phase", ["init", "schedule", "push", "pull"])
@pytest.mark.parametrize("round", [0, 2])
def test_a_failure_names_rank_phase_and_round(phase, round, size):
    round = 0 if phase == "init" else round
    rank = 0 if phase == "schedule" else size - 1
    start = time.monotonic()
    with pytest.raises(KeyError, match="the root") as caught:
        run(Fails(phase, round, rank), range(size))
    assert time.monotonic() - start < SOON
    where = f"in phase {phase} of round {round}, Fails"
    assert caught.value.__notes__ == [where, f"raised on rank {rank} of {size}"]


def test_a_report_that_cannot_travel():
    with pytest.raises(TypeError, match="a set cannot be exchanged") as caught:
        received(lambda shard: None, 2, lambda shard, got, sent: {1, 2})
    assert "in phase pull of round 0, Once" in caught.value.__notes__


def test_a_failing_callback():
    def callback(round, plan, reports):
        if round == 1:
            raise KeyError("the root")

    with pytest.raises(KeyError, match="the root"):
        run(Plain(), [1, 2], callback=callback)


def test_a_round_has_an_end():
    done = threading.Event()

    class Slow(Plain):
        def push(self, shard, plan):
            if shard[0] == 1:
                done.wait(SOON)
            return 1.0

    start = time.monotonic()
    threading.Timer(0.6, done.set).start()
    try:
        with pytest.raises(TimeoutError, match=r"rank 0 waited 0\.2 s in 'push\(Sum\)' for rank\(s\) \[1\]"):
            run(Slow(), [0, 1], round_timeout=0.2)
    finally:
        done.set()
    assert time.monotonic() - start < SOON


# Replicas


class Replicated(Plain):
    """`wrong(x, rank)` writes to the replica x of a rank in round 1."""

    replicas = ("x", "n")

    def __init__(self, wrong, x):
        super().__init__()
        self.wrong, self.x = wrong, x

    def init(self, part, rank, size, rng):
        return SimpleNamespace(x=self.x.copy(), n=3, rank=rank)

    def schedule(self, round, reports):
        return round if round < self.rounds else None

    rounds = 3

    def push(self, shard, plan):
        return np.ones_like(shard.x, float)

    def pull(self, shard, plan, received, sent):
        shard.x += received.astype(shard.x.dtype)
        if plan == 1:
            self.wrong(shard.x, shard.rank)


def nudge(place, by):
    def wrong(x, rank):
        if rank == 2:
            x.reshape(-1)[place] += by

    return wrong


def swap(x, rank):
    if rank == 2:
        x[[3, 4]] = x[[4, 3]]


def swapped(apart):
    def wrong(x, rank):
        if rank == 2:
            x[[7, 7 + apart]] = x[[7 + apart, 7]]

    return wrong


def reshaped(shard):
    shard.x = shard.x.reshape(3, 2)


def retyped(shard):
    shard.x = shard.x.astype(np.int64)


@pytest.mark.parametrize("change", [reshaped, retyped])
def test_replicas_of_another_shape_or_dtype_differ(change):
    class Changed(Replicated):
        def pull(self, shard, plan, received, sent):
            if shard.rank == 1:
                change(shard)

        def push(self, shard, plan):
            return None

    with pytest.raises(RuntimeError, match="differs between ranks"):
        run(Changed(None, np.zeros((2, 3))), range(2))


def test_replicas_are_compared_before_what_they_lead_to():
    class Grows(Replicated):
        def pull(self, shard, plan, received, sent):
            shard.x = np.zeros(3 + shard.rank)

    with pytest.raises(RuntimeError, match="differs between ranks"):
        run(Grows(None, np.zeros(3)), range(2))


def test_a_replica_that_is_no_array():
    class Odd(Replicated):
        def init(self, part, rank, size, rng):
            return SimpleNamespace(x=None, n=3, rank=rank)

    with pytest.raises(TypeError, match="replicas: 'x' must be an array"):
        run(Odd(None, np.zeros(3)), range(2))


@pytest.mark.parametrize(
    "wrong", [{"seed": None}, {"seed": -1}, {"round_timeout": 0}, {"round_timeout": None}]
)
def test_options_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        run(Plain(), range(2), **wrong)


@pytest.mark.parametrize("rounds", [2, 3])  # the last round is compared too
@pytest.mark.parametrize(
    ("wrong", "x"),
    [
        (nudge(0, 1.0), np.zeros(1)),
        (nudge(-1, 1e-12), np.arange(7.0)),
        (nudge(5, 1), np.zeros((3, 3), np.int8)),
        (nudge(2000, 1.0), np.zeros(5000, np.float32)),
        (lambda x, rank: x.__setitem__(rank // 2, 7.5), np.zeros(5)),  # equal values at different places
        (lambda x, rank: x.__setitem__(2000 + rank // 2, 7.5), np.zeros(5000)),
        (swap, np.arange(6.0)),
        *((swapped(apart), np.arange(5000.0)) for apart in (1, 1021, 1023, 1024, 2048)),
    ],
)
def test_replicas_that_differ_are_an_error_that_names_the_ranks(wrong, x, rounds):
    program = Replicated(wrong, x)
    program.rounds = rounds
    told = r"replicated state \(x, n\) differs between ranks \[0, 1\] and \[2(, 3)?\]: pull must"
    with pytest.raises(RuntimeError, match=told):
        run(program, range(3))


@pytest.mark.parametrize("x", [np.zeros(0), np.zeros((3, 3), np.int8), np.asfortranarray(np.eye(4))[::2]])
def test_replicas_that_agree(x):
    assert run(Replicated(lambda x, rank: None, x), range(3)).rounds == 3


def test_a_replica_that_does_not_exist():
    class Absent(Plain):
        replicas = ("coef",)

    with pytest.raises(AttributeError, match="coef") as caught:
        run(Absent(), [1])
    assert "in phase init of round 0, Absent" in caught.value.__notes__
