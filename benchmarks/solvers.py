"""The contenders of the Lasso benchmark, each set up as its own documentation advises.

All get the same float64 X in the layout they work in (Fortran order or CSC), no intercept, no iteration limit
that binds. Imports happen on first use, so that the first call's cost can be shown.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from certificate import certify
from workloads import lam_max

STEP = 2.0
"""Factor between the rungs of the tolerance ladder."""

RUNGS = 24

ENOUGH = 1_000_000  # iterations: never the reason to stop


@dataclass(frozen=True)
class Solver:
    """A name, and `fit(X, y, alpha, tol)` -> a fitted estimator.

    `first_tol(X, y, alpha, target)` is the top of its tolerance ladder. A solver with `rule` promises the
    target by its own stopping rule: it keeps that tol.
    """

    name: str
    fit: Callable[[Any, np.ndarray, float, float], Any]
    first_tol: Callable[[Any, np.ndarray, float, float], float]
    rule: bool = False


def _daskstrads(n_shards: int) -> Solver:
    def fit(X, y, alpha, tol):
        from daskstrads import Lasso

        return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=ENOUGH, n_shards=n_shards).fit(X, y)

    # scikit-learn's rule, gap <= tol ||y||^2 / n, is gap <= 2 tol P(0).
    return Solver(f"daskstrads x{n_shards}", fit, lambda X, y, alpha, target: target / 2, rule=True)


def _sklearn(X, y, alpha, tol):
    from sklearn.linear_model import Lasso

    # copy_X=False: without an intercept X is only read, and the copy would cost time.
    return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=ENOUGH, copy_X=False).fit(X, y)


def _celer(X, y, alpha, tol):
    from celer import Lasso

    return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=1_000).fit(X, y)


def _skglm(p0: int):
    def fit(X, y, alpha, tol):
        from skglm import Lasso

        return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=1_000, p0=p0).fit(X, y)

    return fit


def _above_rule(X, y, alpha, target):
    # Their gap is only looked at now and then: a tol looser than the rule's may reach the target.
    return 2048 * target / 2


def _gradient_units(X, y, alpha, target):
    # skglm's tol is the largest violation of the optimality conditions, in units of X'r / n.
    return lam_max(X, y) / 512


OURS = {shards: _daskstrads(shards) for shards in (2, 1)}
PEERS = {
    "scikit-learn": Solver("scikit-learn", _sklearn, _above_rule),
    "skglm": Solver("skglm", _skglm(p0=10), _gradient_units),  # its default first working set
    "skglm p0=1000": Solver("skglm p0=1000", _skglm(p0=1_000), _gradient_units),  # faster on sparse data
    "celer": Solver("celer", _celer, _above_rule),
}


def calibrate(solver: Solver, X, y, alpha: float, target: float) -> float | None:
    """Loosest tol of the ladder whose certified relative gap is at most `target`; None when no rung's is.

    Found by bisection: a tighter tol is taken to give no larger gap.
    """
    loosest = solver.first_tol(X, y, alpha, target)
    if solver.rule:
        return loosest

    def reaches(rung: int) -> bool:
        model = solver.fit(X, y, alpha, loosest / STEP**rung)
        return certify(X, y, model.coef_, alpha).relative <= target

    rung = bisect.bisect_left(range(RUNGS), True, key=reaches)
    return loosest / STEP**rung if rung < RUNGS else None
