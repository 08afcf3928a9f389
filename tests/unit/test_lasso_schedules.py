"""Lasso under schedules that the estimators have no parameter for, and blocks that are visited in turn."""

import numpy as np
import pytest
import scipy.sparse as sp

from daskstrads import run
from daskstrads.algos.lasso_block import Rules, assembled
from daskstrads.algos.lasso_columns import ColumnPart, LassoColumns
from daskstrads.algos.lasso_rows import LassoRows, RowPart
from daskstrads.algos.objective import Distance, Penalty
from daskstrads.comm import codec
from daskstrads.partition import split
from daskstrads.schedule import Certified, DynamicPriority, Report, RoundRobin, StaticPartition
from daskstrads.schedule.plugin_dask import _Deal, _policy, packed_policy

BLOCK, TOL = 4, 1e-5


def problem(axis):
    rng = np.random.default_rng(4)
    n, p = (60, 100) if axis == 1 else (300, 30)
    X = sp.random(n, p, density=0.2, random_state=rng, format="csc", data_rvs=rng.standard_normal)
    y = X @ (rng.standard_normal(p) * (rng.random(p) < 0.1)) + 0.1 * rng.standard_normal(n)
    return X, y, 0.3 * np.abs(X.T @ y).max()


def fitted(inner, axis, ranks=2, every=20, proposals=BLOCK, parallel=True):
    """Coefficients, and of every round its step and whether it had reports."""
    X, y, lam = problem(axis)
    penalty = Penalty(lam, 0.0, False)
    policy = Certified(inner, Distance(penalty), TOL, every=every, max_measures=500, patience=501)
    rules = Rules(False, False, parallel, 0.1, proposals, TOL)
    ones, zeros = np.ones(len(y)), np.zeros(X.shape[1])
    if axis == 1:
        parts = [ColumnPart(slab, y, ones, zeros[slab.start : slab.stop]) for slab in split(X, ranks, axis)]
    else:
        parts = [
            RowPart(slab, y[slab.start : slab.stop], ones[slab.start : slab.stop], zeros)
            for slab in split(X, ranks, axis)
        ]
    rounds = []
    done = run(
        (LassoColumns if axis == 1 else LassoRows)(policy, penalty, rules),
        parts,
        callback=lambda round, plan, reports: rounds.append((plan and plan.step, reports is not None)),
        transport="threads",
    )
    assert Distance(penalty)(done.reports) <= TOL
    return assembled(done.shards, X.shape[1])[0], rounds


@pytest.mark.parametrize("axis", [0, 1])
def test_lookahead_reaches_the_optimum_with_fewer_waits(axis):
    known, rounds = fitted(DynamicPriority(BLOCK), axis)
    same, again = fitted(DynamicPriority(BLOCK, lookahead=0), axis)
    assert same.tobytes() == known.tobytes()
    assert again == rounds
    updates = sum(step == "update" for step, _ in rounds)
    assert sum(waited for _, waited in rounds) >= updates

    ahead = {"inner": DynamicPriority(BLOCK, lookahead=5), "proposals": 6 * BLOCK}
    coef, rounds = fitted(axis=axis, **ahead)
    np.testing.assert_allclose(coef, known, atol=2e-2 * np.abs(known).max())
    updates = sum(step == "update" for step, _ in rounds)
    assert sum(waited for _, waited in rounds) < 0.6 * updates
    assert fitted(axis=axis, **ahead)[0].tobytes() == coef.tobytes()


def test_static_partition_reaches_the_optimum():
    known, _ = fitted(DynamicPriority(BLOCK), 1)
    bounds = [slab.start for slab in split(problem(1)[0], 3, 1)] + [100]
    coef, _ = fitted(StaticPartition(100, BLOCK, sweeps=500, bounds=bounds), 1, ranks=3, every=25)
    np.testing.assert_allclose(coef, known, atol=2e-2 * np.abs(known).max())


@pytest.mark.parametrize("axis", [0, 1])
def test_exact_blocks_in_turn_reach_the_optimum(axis):
    # Each block can be near its own optimum while all of them together are not.
    p = 100 if axis == 1 else 30
    known, _ = fitted(DynamicPriority(BLOCK), axis)
    coef, rounds = fitted(RoundRobin(p, BLOCK, sweeps=500), axis, every=-(-p // BLOCK), parallel=False)
    np.testing.assert_allclose(coef, known, atol=2e-2 * np.abs(known).max())
    assert sum(step == "measure" for step, _ in rounds) < 100


def test_the_scheduler_deals_ahead_what_the_ranks_copies_deal():
    lam = problem(1)[2]
    policy = Certified(DynamicPriority(BLOCK, lookahead=2), Distance(Penalty(lam, 0.0, False)), TOL, every=4)
    terms = {"rr": 1.0, "tr": 1.0, "tt": 1.0, "l1": 1.0, "l2": 1.0, "largest": 9.0, "start": 1.0}
    told = [Report(np.arange(3 * BLOCK), np.ones(3 * BLOCK), terms)]
    mine, deal = policy.begin(1, 0), _Deal(_policy(packed_policy(policy)).begin(1, 0), 1)
    answers = []
    while deal.next < 12:
        deal.reports = {0: codec.packed(told[0])}
        deal.advance()
        answers.append(deal.next)
    for round in range(12):
        plan = mine(round, told if mine.waits(round) else None)
        assert codec.packed(plan) == deal.plans[round]
    assert answers == [2, 5, 7, 10, 12]  # where it stopped to wait for reports


def test_shares_until_one_does_not_halve_the_distance():
    left = iter([1.0, 0.4, 0.3, 0.05, 0.06, 0.002, 0.0])  # what measurements and updates tell, in turn
    policy = Certified(
        DynamicPriority(2), lambda reports: next(left), 1e-3, every=9, share=0.1, apart=True
    ).begin(2, 0)
    reports = [Report(np.array([rank]), np.ones(1), {}) for rank in range(2)]
    steps = []
    while (plan := policy(len(steps), reports)) is not None:
        steps.append((plan.step, plan.gap))
    assert steps[2:] == [
        ("share", 1.0), ("share", 0.4), ("update", 0.3), ("measure", 0.3),  # 0.05 is a tenth of 1.0 and less
        ("share", 0.06), ("measure", 0.06),
    ]  # fmt: skip
