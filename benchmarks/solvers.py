"""The contenders of the Lasso benchmark, each set up as its own documentation advises.

All get the same float64 X in the layout they work in, no intercept, no iteration limit that binds. Imports
happen on first use, so that the first call's cost can be shown.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from workloads import lam_max

ENOUGH = 1_000_000  # iterations: never the reason to stop

PATH = 5  # penalties of a short path

CORES = os.sched_getaffinity(0)


@dataclass(frozen=True)
class Solver:
    """A name, and `fit(X, y, alpha, tol, threads)` -> something with coef_ and n_iter_.

    `first_tol(X, y, alpha, target)` is the top of its tolerance ladder, `step` the factor between two rungs.
    A solver with `rule` promises the target by its own stopping rule: it keeps that tol.
    """

    name: str
    package: str
    fit: Callable[[Any, np.ndarray, float, float, int], Any]
    first_tol: Callable[[Any, np.ndarray, float, float], float]
    step: float = 2.0
    layout: str = "columns"
    rule: bool = False

    @property
    def version(self) -> str | None:
        """Version of the package, None where it is not installed."""
        module = "sklearn" if self.package == "scikit-learn" else self.package
        return version(self.package) if importlib.util.find_spec(module) else None


class Answer(NamedTuple):
    """A result in scikit-learn's words."""

    coef_: np.ndarray
    n_iter_: int


def _daskstrads(cores: int) -> Solver:
    # On two cores the estimator decides, as for any user who leaves n_shards alone: one rank for small data.
    n_shards = 1 if cores == 1 else None

    def fit(X, y, alpha, tol, threads=cores):
        from daskstrads import Lasso

        return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=ENOUGH, n_shards=n_shards).fit(X, y)

    # scikit-learn's rule, gap <= tol ||y||^2 / n, is gap <= 2 tol P(0).
    rule = lambda X, y, alpha, target: target / 2  # noqa: E731
    return Solver(f"daskstrads x{cores}", "daskstrads", fit, rule, layout="ours", rule=True)


def _sklearn(precompute: bool):
    def fit(X, y, alpha, tol, threads):
        from sklearn.linear_model import Lasso

        # copy_X=False: without an intercept X is only read, and the copy would cost time.
        options = {"fit_intercept": False, "max_iter": ENOUGH, "copy_X": False, "precompute": precompute}
        return Lasso(alpha=alpha, tol=tol, **options).fit(X, y)

    return fit


def _celer(X, y, alpha, tol, threads):
    from celer import Lasso

    return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=1_000).fit(X, y)


def _skglm(p0: int):
    def fit(X, y, alpha, tol, threads):
        from skglm import Lasso

        return Lasso(alpha=alpha, fit_intercept=False, tol=tol, max_iter=1_000, p0=p0).fit(X, y)

    return fit


def _penalties(X, y, alpha: float, steps: int) -> np.ndarray:
    """`steps` penalties from below lam_max down to alpha."""
    return np.geomspace(lam_max(X, y), alpha, steps + 1)[1:] if steps > 1 else np.array([alpha])


def _adelie(steps: int):
    def fit(X, y, alpha, tol, threads):
        import adelie

        matrix = adelie.matrix.sparse if sp.issparse(X) else adelie.matrix.dense
        state = adelie.grpnet(
            matrix(X, method="naive", n_threads=threads), adelie.glm.gaussian(y),
            lmda_path=_penalties(X, y, alpha, steps), intercept=False, tol=tol, n_threads=threads,
            early_exit=False, max_iters=ENOUGH, progress_bar=False,
        )  # fmt: skip
        return _last(state)

    return fit


def _adelie_gram(X, y, alpha, tol, threads):
    import adelie

    state = adelie.gaussian_cov(
        np.asfortranarray(X.T @ X) / len(y), X.T @ y / len(y),
        lmda_path=np.array([alpha]), tol=tol, n_threads=threads,
        early_exit=False, max_iters=ENOUGH, progress_bar=False,
    )  # fmt: skip
    return _last(state)


def _last(state: Any) -> Answer:
    """The solution at the last penalty of an adelie path."""
    # Its OpenMP binds the calling thread to one core, and every thread started later inherits that.
    os.sched_setaffinity(0, CORES)
    return Answer(state.betas[-1].toarray().ravel(), len(state.lmdas))


def _above_rule(X, y, alpha, target):
    # Their gap is only looked at now and then: a tol looser than the rule's may reach the target.
    return 2048 * target / 2


def _gradient_units(X, y, alpha, target):
    # skglm's tol is the largest violation of the optimality conditions, in units of X'r / n.
    return lam_max(X, y) / 512


def _squared_units(X, y, alpha, target):
    # adelie's tol is the largest fall of its objective by one coordinate in a sweep.
    return target


os.environ["LOKY_MAX_CPU_COUNT"] = "2"  # cores that the estimators count, here and on machines with more
OURS = {cores: _daskstrads(cores) for cores in (2, 1)}

PEERS = {
    solver.name: solver
    for solver in (
        Solver("scikit-learn", "scikit-learn", _sklearn(False), _above_rule),
        Solver("scikit-learn Gram", "scikit-learn", _sklearn(True), _above_rule, layout="dense"),
        Solver("celer", "celer", _celer, _above_rule),
        Solver("skglm", "skglm", _skglm(p0=10), _gradient_units),  # its default first working set
        Solver("skglm p0=1000", "skglm", _skglm(p0=1_000), _gradient_units),  # faster on sparse data
        Solver("adelie", "adelie", _adelie(1), _squared_units, step=4.0),
        Solver("adelie path", "adelie", _adelie(PATH), _squared_units, step=4.0),
        Solver("adelie Gram", "adelie", _adelie_gram, _squared_units, step=4.0, layout="dense"),
    )
}
