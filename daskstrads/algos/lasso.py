"""Lasso and ElasticNet with scikit-learn's objective, parameters and attributes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import cpu_count
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from ..engine.run import collected, ranks_available, run
from ..partition import split_axis
from ..schedule import Certified, DynamicPriority, Policy, Report, RoundRobin
from .callbacks import CallbackSupportMixin, Calls, with_callbacks
from .followed import LassoColumns, LassoRows
from .inputs import COLUMN_TAKEN, check_parameters, problem_of, start_coefficients
from .lasso_block import Rules, assembled
from .objective import Distance, Height, Penalty, gap_of
from .problem import Problem, memory_plan
from .progress import history_of, passes_told

__all__ = ["ElasticNet", "Lasso"]

_COLUMN_BLOCK = 500, 2000  # of an exact block, fewer where they are long: sweeps over it are not shared
_BLOCK_ENTRIES = 1_000_000
_ROW_BLOCK = 128  # to begin with: its Gram matrix costs rows x block^2
_PARALLEL_BLOCK = 64  # STRADS' schedule size
_SHARE = 0.1  # of the measured distance: how far the columns that are near are solved before the next
_WORK_PER_RANK = 500_000  # stored entries below which a second thread costs more than it saves


class ElasticNet(CallbackSupportMixin, RegressorMixin, BaseEstimator):
    """Linear regression with l1 and l2 penalties, by model-parallel coordinate descent.

    Minimises, as scikit-learn does, for X (n, p) and y (n,) or (n, targets)::

        1 / (2 n) ||y - X b - c||^2 + alpha l1_ratio ||b||_1 + alpha (1 - l1_ratio) / 2 ||b||^2

    STRADS' algorithm (Lee et al. 2014, section 4): the variables that matter most are scheduled first and
    dependent ones are never updated independently of each other. Stops when the duality gap, computed from
    a fresh float64 residual, is at most tol ||y||^2 / n (y centred when an intercept is fitted).

    Parameters:
        alpha: weight of the penalty, >= 0.
        l1_ratio: share of the l1 term, in [0, 1].
        fit_intercept: fit c; X is centred implicitly, never copied.
        copy_X: for compatibility: X is never changed.
        max_iter: full passes over X at most; between two, the scheduled block is swept up to 500 times.
        tol: relative duality gap; at alpha = 0, largest |cosine| between a column and the residual.
        warm_start: start from the last `coef_`.
        positive: coefficients >= 0.
        random_state: seed of the schedule (`selection="random"`, `update="parallel"`).
        selection: "dynamic" (largest expected effect first), "cyclic" or "random".
        update: "exact" solves the scheduled block to its optimum, on every rank alike; "apart": of wide X
            every rank solves its share at the same time, as long as shares do not depend on each other;
            "parallel" is STRADS' simultaneous update.
        rho: for update="parallel": candidates whose columns correlate by rho or more are not updated
            together; None updates all of them together, which may diverge.
        n_shards: ranks, a thread each; None: the cores this process may use, fewer for small data.
            Tall X (n >= 8 p) is split by rows, otherwise by columns.
        verbose: print a line a pass.

    Attributes:
        coef_: (p,) or (targets, p), X's float dtype. sparse_coef_: the same as a sparse matrix.
        intercept_: float or (targets,).
        n_iter_: full passes used, at most max_iter (one a target for several targets).
        dual_gap_: the certificate, in units of the objective, of the float64 solution (before `coef_` is
            rounded to float32 for float32 X); nan at alpha = 0, where there is none.
        shards_: the model as its ranks hold it, each a `Piece` of nonzero coefficients (a list of these lists
            for several targets); with a Client, Futures of what stays on the workers until the model goes.
            Not pickled.
        history_: a dict of arrays, an entry a full pass: "round" (of the engine), "objective" and "gap" in
            units of the objective, "support", "updates" (coordinate updates so far), "seconds"; a list of
            dicts for several targets.
        n_features_in_, feature_names_in_: as in scikit-learn.

    With scikit-learn 1.9 or later, `set_callbacks` takes its callbacks (`sklearn.callback`): a fit's tasks
    are its passes (with several targets, these are a target's tasks); `history_` grows as they end. One
    whose `on_fit_task_end` returns True ends the fit early, after one more pass and without a
    ConvergenceWarning. On a cluster the hooks run in the client's process, a little later, and a pass has no
    `fitted_estimator`.
    """

    def __init__(
        self,
        alpha=1.0,
        *,
        l1_ratio=0.5,
        fit_intercept=True,
        copy_X=True,
        max_iter=1000,
        tol=1e-4,
        warm_start=False,
        positive=False,
        random_state=None,
        selection="dynamic",
        update="exact",
        rho=0.1,
        n_shards=None,
        verbose=False,
    ):
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.update = update
        self.rho = rho
        self.n_shards = n_shards
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None):
        """Fit to X (n, p), dense or sparse, and y (n,) or (n, targets); returns self.

        X: array, scipy.sparse matrix, pandas DataFrame, dask array (of dense or sparse chunks) or dask
        DataFrame; y and sample_weight: the same, dense. Rows go together by position, never by index.

        Raises:
            ValueError: a parameter out of range, shapes that do not match, NaN or infinity.
            TypeError: a parameter of the wrong type, sparse y.
        """
        for kind, text in self._fit((X, y, sample_weight)):
            warnings.warn(text, kind, stacklevel=2)
        return self

    @with_callbacks
    def _fit(self, given: tuple) -> list:
        """Fit to X, y, sample_weight; what to warn of: (category, text)."""
        check_parameters(self)
        if hasattr(given[0], "__dask_graph__"):
            from . import lasso_dask

            with lasso_dask.on_its_client(given[0]), lasso_dask.chunks_named(*given):
                return self._fitted(lasso_dask.problem_of(self, *given), given)
        here = given
        if any(hasattr(each, "__dask_graph__") for each in given):
            from .lasso_dask import computed

            here = computed(*given)
        return self._fitted(problem_of(self, *here), given)

    def _fitted(self, problem: Problem, given: tuple) -> list:
        from .compile_kernels import compilation_announced

        X, y, weight = given
        hooked = {"X": X, "y": y, "metadata": None if weight is None else {"sample_weight": weight}}
        calls = Calls(self, problem.targets, hooked, lambda pieces: self._model_of(pieces, problem))
        starts = start_coefficients(self, problem.shape[1], problem.targets)
        with compilation_announced(bool(self.verbose)):
            fits = [self._fit_target(problem, k, starts[k], calls) for k in range(problem.targets)]
        coef, intercept, gap, passes, complaints, shards, history = map(list, zip(*fits, strict=True))
        single = len(fits) == 1
        self.coef_ = (coef[0] if single else np.stack(coef)).astype(problem.dtype)
        offsets = np.array(intercept, problem.dtype)
        self.intercept_ = 0.0 if not self.fit_intercept else offsets[0] if problem.flat else offsets
        self.dual_gap_ = gap[0] if single else np.array(gap)
        self.n_iter_ = passes[0] if single else passes
        self.shards_ = shards[0] if single else shards
        self.history_ = history[0] if single else history
        calls.done()
        told = [(DataConversionWarning, COLUMN_TAKEN)] if problem.column else []
        return told + [(ConvergenceWarning, complaint) for complaint in complaints if complaint]

    def __getstate__(self):
        state = super().__getstate__()
        # Shards on a cluster are this client's own: neither a file nor another process can hold them.
        return {name: value for name, value in state.items() if name != "shards_"}

    def predict(self, X):
        """X b + c, (n,) or (n, targets); lazy, in X's row chunks, for a dask array."""
        check_is_fitted(self)
        if hasattr(X, "__dask_graph__"):
            from .lasso_dask import predicted

            return predicted(self, X)
        X = validate_data(self, X, accept_sparse=("csr", "csc", "coo"), reset=False)
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_

    def score(self, X, y, sample_weight=None):
        """R^2 of `predict(X)` against y, as scikit-learn's regressors; computed at once for dask data."""
        if not any(hasattr(given, "__dask_graph__") for given in (X, y, sample_weight)):
            return super().score(X, y, sample_weight)
        from sklearn.metrics import r2_score

        from .lasso_dask import computed

        predicted, y, weight = computed(self.predict(X), y, sample_weight)
        return r2_score(y, predicted, sample_weight=weight)

    def memory_plan(self, shape, nnz=None, *, dtype=np.float64, n_ranks=None):
        """What each rank of a fit to X of this `shape` needs, a `MemoryPlan` that prints itself.

        `nnz`: stored entries, None for a dense X. `n_ranks`: None: as many as a fit would take here. On a
        cluster, a fit that its workers' memory limits do not allow is refused (MemoryError).
        """
        entries = shape[0] * shape[1] if nnz is None else int(nnz)
        axis = split_axis(shape)
        return memory_plan(
            shape, entries, sparse=nnz is not None, itemsize=np.dtype(dtype).itemsize, axis=axis,
            ranks=n_ranks or self._n_ranks(shape, entries), block=self._exact_block(axis, shape, entries),
        )  # fmt: skip

    def _n_ranks(self, shape: tuple[int, int], entries: int) -> int:
        size = self.n_shards or max(1, entries // _WORK_PER_RANK)
        if size > 1 and not self.n_shards:  # asking takes longer than some fits
            size = min(size, ranks_available(cpu_count()))
        return min(size, shape[split_axis(shape)])  # a rank more would have nothing

    @property
    def sparse_coef_(self):
        """`coef_` as a scipy.sparse CSR matrix, (1, p) or (targets, p)."""
        return sp.csr_matrix(self.coef_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags

    def _fit_target(self, problem: Problem, target: int, start: np.ndarray, calls: Calls) -> tuple:
        """coef (p,), intercept, dual gap, passes, a complaint or None, shards, history, for one target."""
        (n, p), wide = problem.shape, problem.axis == 1
        strength, l1 = min(n * float(self.alpha), 1e300), self._l1()
        penalty = Penalty(strength * l1, strength * (1.0 - l1), bool(self.positive))
        parallel, dynamic = self.update == "parallel", self.selection == "dynamic"
        block = min(
            _PARALLEL_BLOCK if parallel else self._exact_block(problem.axis, problem.shape, problem.entries),
            p,
        )
        parts = problem.parts(target, start)
        apart = self.update == "apart"
        sparse = 2 * problem.entries < n * p
        dense = problem.entries == n * p
        rules = Rules(
            centre=bool(self.fit_intercept), weighted=problem.weighted, parallel=parallel,
            rho=self.rho, proposals=block * dynamic, tol=float(self.tol),
            # Solving dense columns costs more than a look at all; of sparse ones it is the other way round.
            near=dynamic and not parallel and wide and penalty.lam > 0 and (sparse or apart),
            # Where the sample's Gram matrix costs less than a pass over all rows.
            pilot=dynamic and not parallel and not wide and dense and p <= 512 and n >= max(2**16, 1024 * p),
        )  # fmt: skip
        policy = self._policy(p, block, penalty, rules.near, apart and rules.near)
        program = (LassoColumns if wide else LassoRows)(policy, penalty, rules)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        told = passes_told(penalty, n)
        with calls.following(program, told) as follower:
            done = run(program, parts, seed=seed, callback=follower, gather=False)
        pieces = collected(done.shards)
        coef, intercept = assembled(pieces, p)
        if not np.isfinite(coef.astype(problem.dtype)).all():
            raise ValueError("the fit overflowed: its coefficients are not finite; rescale X and y")
        gap, passes = gap_of(done.reports, penalty) / n, int(done.reports[0].terms["passes"])
        complaint = self._complaint(done.reports, penalty)
        history = history_of([piece.passes for piece in pieces], told)
        return coef, intercept, gap, min(passes, self.max_iter), complaint, done.shards, history

    def _model_of(self, pieces: Any, problem: Problem) -> dict[str, Any]:
        """The attributes that the ranks' pieces make, for callbacks that look at the model of a pass."""
        coef, intercept = assembled(pieces, problem.shape[1])
        offset = intercept if self.fit_intercept else 0.0
        return {"coef_": coef.astype(problem.dtype), "intercept_": np.dtype(problem.dtype).type(offset)}

    @staticmethod
    def _exact_block(axis: int, shape: tuple[int, int], entries: int) -> int:
        """Variables of a block that is solved to its optimum; a function of the problem alone."""
        if axis == 0:
            # Of dense rows, a Gram matrix costs block^2 a row where a full pass costs p.
            dense = entries == shape[0] * shape[1]
            return min(_ROW_BLOCK, max(32, int(4 * shape[1] ** 0.5))) if dense else _ROW_BLOCK
        fewest, most = _COLUMN_BLOCK
        return min(max(_BLOCK_ENTRIES * shape[1] // max(1, entries), fewest), most)

    def _l1(self) -> float:
        return float(self.l1_ratio)

    def _policy(self, p: int, block: int, penalty: Penalty, near: bool, apart: bool) -> Certified:
        rounds_a_sweep = -(-p // block)
        inner: Policy
        if self.selection == "dynamic":
            parallel = self.update == "parallel"
            inner = DynamicPriority(block, growth=0.0 if parallel else 2.0)
            every = min(rounds_a_sweep, 128) if parallel else 1
        else:
            inner = RoundRobin(p, block, sweeps=self.max_iter, shuffled=self.selection == "random")
            every = rounds_a_sweep
        # Blocks that are not solved to their optimum bring the gap down unevenly: no patience limit there.
        patience = self.max_iter + 1 if self.update == "parallel" else 50
        limits: dict[str, Any] = {"max_measures": self.max_iter, "patience": patience}
        limits["height"] = Height(penalty)
        limits |= {"every": 20, "share": _SHARE, "apart": apart} if near else {"every": every}
        return Certified(inner, Distance(penalty), self.tol, **limits)

    def _complaint(self, reports: list[Report], penalty: Penalty) -> str | None:
        """What to warn about when the last measurement is not good enough."""
        distance = Distance(penalty)(reports)
        if distance <= self.tol or any(report.terms.get("stop") for report in reports):
            return None
        if np.isinf(distance) and self.update == "parallel":
            remedy = "the updates diverge; set rho (0.1 is a good start) or update='exact'"
        elif not np.isfinite(distance):
            remedy = "numbers ran out of range; centre and scale the features"
        else:
            remedy = "raise max_iter, alpha or tol, or scale the features"
        passes = min(int(reports[0].terms["passes"]), self.max_iter)
        what = "duality gap" if penalty.lam or penalty.beta else "largest |cosine|"
        return (
            f"not converged after {passes} passes: {what} {distance:.3e} "
            f"of ||y||^2 / n against tol={self.tol:g}; {remedy}"
        )


class Lasso(ElasticNet):
    """Linear regression with an l1 penalty: `ElasticNet` with l1_ratio = 1.

    Minimises 1 / (2 n) ||y - X b - c||^2 + alpha ||b||_1. Parameters, attributes, errors and source as for
    `ElasticNet`.
    """

    def __init__(
        self,
        alpha=1.0,
        *,
        fit_intercept=True,
        copy_X=True,
        max_iter=1000,
        tol=1e-4,
        warm_start=False,
        positive=False,
        random_state=None,
        selection="dynamic",
        update="exact",
        rho=0.1,
        n_shards=None,
        verbose=False,
    ):
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.copy_X = copy_X
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.random_state = random_state
        self.selection = selection
        self.update = update
        self.rho = rho
        self.n_shards = n_shards
        self.verbose = verbose

    def _l1(self) -> float:
        return 1.0
