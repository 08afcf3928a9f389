"""Matrix factorisation of ratings, with scikit-learn's manners."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import cpu_count
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from ..engine.run import collected, on_cluster, ranks_available, run
from ..schedule import Descent
from . import mf_als, mf_ccd
from .callbacks import CallbackSupportMixin, Calls, with_callbacks
from .factors import Layout, RatingPiece, Settings, factor_plan, height, sweeps_told
from .fold import grown, learn, padded
from .mf_answers import Answers
from .mf_checks import check_curved, check_parameters
from .progress import history_of
from .ratings import Names, Problem, places, problem_of, to_csr

__all__ = ["MatrixFactorization"]

_WORK_PER_RANK = 20_000_000  # ratings x components below which a second thread costs more than it saves
_REACH = 0.5  # of the size that the first factors would need to make ratings of their own


class MatrixFactorization(
    Answers, CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Factorise the ratings that users gave items; predict and recommend what they have not rated.

    A rating of user i for item j is taken as mean + b_i + c_j + x_i . y_j, and over the known ratings the fit
    minimises::

        sum (r_ij - mean - b_i - c_j - x_i . y_j)^2
            + reg sum_i n_i (b_i^2 + ||x_i||^2) + reg sum_j n_j (c_j^2 + ||y_j||^2)

    with n_i, n_j the numbers of ratings of the user and of the item, or 1 with reg_scaling="plain" (Zhou et
    al. 2008; biases as in Koren, Bell and Volinsky 2009). Two solvers: "als", conjugate gradients on the
    normal equations of each side (Takacs, Pilaszy and Tikk 2011); "ccd", coordinate descent by round robin
    over the components (STRADS, Lee et al. 2014, section 3; CCD++ of Yu et al. 2012).

    Ratings are a scipy.sparse matrix or array (users x items; stored zeros are ratings, repeated entries are
    summed, as scipy reads them), a dask array of sparse blocks, or triples: a pandas or dask DataFrame, or
    a tuple of arrays (users, items, ratings). Ids of triples may be anything that can be sorted, and
    answers come in them; a pair that is rated several times has the mean of its ratings. Who has no rating
    has zero factors and bias: predictions are then the rest of the sum.
    A matrix given to a model of triples has its users and items in the order of `user_ids_` and `item_ids_`.

    Parameters:
        n_components: components k of the factors.
        reg: weight of the penalty; 0 only where every user and item has more ratings than k.
        reg_scaling: "weighted" (times the number of ratings) or "plain".
        biases: fit b and c. Without them, and with nonnegative=True, the mean is not subtracted either.
        nonnegative: factors >= 0 (solver "ccd").
        solver: "als", "ccd", or "auto": "ccd" for nonnegative=True, else "als".
        max_iter: sweeps over both sides at most.
        tol: stop after a sweep that lowers the objective by at most this share of what it was after the first
            one; 0: after max_iter sweeps.
        dtype: of the factors, float32 or float64.
        n_shards: ranks, a thread each (on a cluster, a worker thread each); None: as many as can be kept
            busy. Results depend on the shards, never on threads.
        random_state: seed of the first factors.
        warm_start: start from the last factors, of the same users and items.
        verbose: print a line a sweep.
        user, item, rating: names of a DataFrame's columns.

    Attributes:
        components_: (k, items) item factors. user_factors_: (users, k).
        user_bias_, item_bias_: (users,), (items,); zeros with biases=False. mean_: of all ratings.
        user_ids_, item_ids_: who these are, sorted; row and column numbers for a matrix.
        user_counts_, item_counts_: how many ratings each has.
        history_: a dict of arrays, an entry a sweep: "round" (of the engine), "objective", "rmse" (of the
            known ratings), "seconds", "bytes" (that the busiest rank has sent).
        n_iter_: sweeps used.
        shards_: the model as its ranks hold it, each a `RatingPiece`; with a Client, Futures of what stays
            on the
            workers until the model goes. Not pickled.
        n_features_in_: items.

    With scikit-learn 1.9 or later, `set_callbacks` takes its callbacks: a fit's tasks are its sweeps.
    """

    def __init__(
        self,
        n_components=50,
        *,
        reg=0.05,
        reg_scaling="weighted",
        biases=True,
        nonnegative=False,
        solver="auto",
        max_iter=50,
        tol=1e-3,
        dtype=np.float32,
        n_shards=None,
        random_state=None,
        warm_start=False,
        verbose=False,
        user="user",
        item="item",
        rating="rating",
    ):
        self.n_components = n_components
        self.reg = reg
        self.reg_scaling = reg_scaling
        self.biases = biases
        self.nonnegative = nonnegative
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.dtype = dtype
        self.n_shards = n_shards
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.user = user
        self.item = item
        self.rating = rating

    def fit(self, X, y=None):
        """Fit to ratings X; returns self. `y` is ignored.

        Raises:
            ValueError: a parameter out of range; ratings that are NaN, infinite or no numbers; none at all.
            TypeError: a parameter or ratings of the wrong type, as a dense array, which does not say what
                is rated.
            MemoryError: a fit that its cluster's workers cannot hold.
        """
        for kind, text in self._fit(X):
            warnings.warn(text, kind, stacklevel=2)
        return self

    @with_callbacks
    def _fit(self, X: Any) -> list:
        """Fit; what to warn of: (category, text)."""
        check_parameters(self)
        if hasattr(X, "__dask_graph__"):
            from . import ratings_dask

            with ratings_dask.on_its_client(X):
                return self._fitted(ratings_dask.problem_of(self, X), X)
        return self._fitted(problem_of(self, X), X)

    def fit_transform(self, X, y=None):
        """`fit(X).user_factors_`, (users, k)."""
        return self.fit(X).user_factors_

    def _fitted(self, problem: Problem, given: Any) -> list:
        from .compile_kernels import compilation_announced

        layout = self._layout()
        settings = self._settings(problem)
        check_curved(problem, settings)
        users_first = problem.axis == 0
        n_rows, n_columns = problem.shape if users_first else problem.shape[::-1]
        mean = problem.mean if self._centred() else 0.0
        start = self._start(problem, layout, users_first)
        # In one process the ranks write their rows where the model will have them.
        out = None if on_cluster() else start[0] if start else np.zeros((n_rows, layout.width), self.dtype)
        solver = self._solver()
        if solver == "als":
            tile = mf_als.tile_length(layout.width, layout.itemsize)
            policy = self._policy(mf_als.sweep_stages(n_columns, tile))
            program: Any = mf_als.AlternatingLeastSquares(policy, settings, tile)
        else:
            program = mf_ccd.CoordinateDescent(self._policy(mf_ccd.sweep_stages(layout.width)), settings)
        told = sweeps_told(problem.entries)
        calls = Calls(self, 1, {"X": given, "y": None, "metadata": None})
        with compilation_announced(bool(self.verbose)), calls.following(program, told) as follower:
            parts = problem.parts(mean, start, out)
            done = run(program, parts, callback=follower, gather=False)
        pieces = collected(done.shards)
        objective = height(done.reports)
        rows, columns = _assembled(pieces, out, n_columns, layout.width)
        if not np.isfinite(objective) or not np.isfinite(columns).all():
            raise ValueError(
                "the fit overflowed: its factors are not finite; rescale the ratings or raise reg"
            )
        users, items = (rows, columns) if users_first else (columns, rows)
        last = layout.first + layout.components
        self.user_factors_, self.components_ = users[:, layout.first : last], items[:, layout.first : last].T
        self.user_bias_ = _bias(layout, users, users_first)
        self.item_bias_ = _bias(layout, items, not users_first)
        self.mean_ = mean
        self.user_ids_, self.item_ids_ = problem.user_ids, problem.item_ids
        self.user_counts_, self.item_counts_ = problem.user_counts, problem.item_counts
        self.n_features_in_ = problem.shape[1]
        self._shape_of_fit = layout.components, layout.biases, settings.positive
        self.history_ = history_of([piece.passes for piece in pieces], told)
        self.n_iter_ = len(self.history_["round"])
        self.shards_ = done.shards
        calls.done()
        return self._complaints(done.reports)

    def _policy(self, rounds: int) -> Descent:
        return Descent(rounds, 1, int(self.max_iter), height, float(self.tol))

    def _complaints(self, reports: list) -> list:
        heights = self.history_["objective"]
        if not self.tol or any(report.terms.get("stop") for report in reports):
            return []
        fall = (heights[-2] - heights[-1]) / abs(heights[0]) if len(heights) > 1 else np.inf
        if heights[0] == 0 or fall <= self.tol:
            return []
        text = (
            f"not converged after {self.n_iter_} sweeps: the last one lowered the objective by {fall:.1e} of "
            f"the first, tol={self.tol:g}; raise max_iter or tol (tol=0: max_iter sweeps, and no warning)"
        )
        return [(ConvergenceWarning, text)]

    def partial_fit(self, X, y=None):
        """Let the model hear of new ratings X, of users and items known or new; returns self.

        Those in X are updated, two rounds of both sides; all others, and `mean_`, stay. What a user or an
        item has learned from n ratings counts as much as n new ones (see `fold.learn`). A pair that was
        rated before counts as rated once more. A matrix may have more rows and columns than before. The
        first call is `fit`. Components, biases, signs and dtype stay those of the fit, whatever the
        parameters are now; ratings that are refused leave the model as it was.

        Raises: as `fit`; ValueError for ratings so large that factors would not be finite.
        """
        if not hasattr(self, "components_"):
            return self.fit(X)
        check_parameters(self)
        if hasattr(X, "__dask_graph__"):
            from . import ratings_dask

            X = ratings_dask.computed_ratings(X)
        before = dict(self.__dict__)
        try:
            self._hear(X)
        except BaseException:  # of ratings refused, and of Ctrl-C, nothing stays: arrays are made anew
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _hear(self, X: Any) -> None:
        users, items, ratings = self._coded(X)
        assert ratings is not None
        new_users, new_items = np.unique(users), np.unique(items)
        self._grow(new_users, new_items, X.shape if sp.issparse(X) else (None, None))
        if not len(ratings):
            return
        at_user, at_item = places(new_users, self.user_ids_), places(new_items, self.item_ids_)
        matrix = to_csr(
            np.searchsorted(new_users, users), np.searchsorted(new_items, items), ratings,
            (len(new_users), len(new_items)),
        )  # fmt: skip
        settings = self._held_settings()
        layout, dtype = settings.layout, settings.dtype
        mine = padded(layout, self.user_factors_[at_user], self.user_bias_[at_user], dtype, row=True)
        theirs = padded(layout, self.components_.T[at_item], self.item_bias_[at_item], dtype, row=False)
        counts = self.user_counts_[at_user], self.item_counts_[at_item]
        learn(matrix, self.mean_, mine, theirs, counts, settings, cpu_count())
        last = layout.first + layout.components
        self.user_factors_[at_user] = mine[:, layout.first : last]
        self.components_[:, at_item] = theirs[:, layout.first : last].T
        if layout.biases:
            self.user_bias_[at_user], self.item_bias_[at_item] = mine[:, 0], theirs[:, 1]
        self.user_counts_[at_user] += np.diff(matrix.indptr)
        self.item_counts_[at_item] += np.bincount(matrix.indices, minlength=len(at_item))

    def memory_plan(self, shape, nnz, n_ranks=None):
        """What each rank of a fit to `nnz` ratings in a matrix of this `shape` needs, a `MemoryPlan` that
        prints itself.

        `n_ranks`: None: as many as a fit would take here.
        """
        check_parameters(self)
        layout, ranks = self._layout(), n_ranks or self._n_ranks(shape, int(nnz))
        tile = min(mf_als.tile_length(layout.width, layout.itemsize), min(shape))
        return factor_plan(shape, int(nnz), layout, ranks, self._solver(), tile)

    def _n_ranks(self, shape: tuple[int, int], entries: int) -> int:
        size = self.n_shards or max(1, entries * int(self.n_components) // _WORK_PER_RANK)
        if size > 1 and not self.n_shards:
            size = min(size, ranks_available(cpu_count()))
        return min(size, max(shape))

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __getstate__(self):
        state = super().__getstate__()
        # Shards on a cluster are this client's own: neither a file nor another process can hold them.
        return {name: value for name, value in state.items() if name != "shards_"}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.two_d_array = False
        return tags

    def _grow(self, users: np.ndarray, items: np.ndarray, shape: tuple[int | None, int | None]) -> None:
        """Make room for users and items that the model does not know yet."""
        settings = self._held_settings()
        self.user_ids_, self.user_factors_, self.user_bias_, self.user_counts_ = grown(
            self.user_ids_,
            users,
            shape[0],
            self.user_factors_,
            0,
            settings,
            (self.user_bias_, self.user_counts_),
        )
        self.item_ids_, factors, self.item_bias_, self.item_counts_ = grown(
            self.item_ids_,
            items,
            shape[1],
            self.components_.T,
            1,
            settings,
            (self.item_bias_, self.item_counts_),
        )
        self.components_, self.n_features_in_ = factors.T, len(factors)
        self.__dict__.pop("shards_", None)  # they are of the model before

    def _names(self) -> Names:
        return Names(self.user, self.item, self.rating)

    def _layout(self) -> Layout:
        return Layout(int(self.n_components), bool(self.biases), np.dtype(self.dtype).itemsize)

    def _solver(self) -> str:
        return self.solver if self.solver != "auto" else "ccd" if self.nonnegative else "als"

    def _centred(self) -> bool:
        return bool(self.biases) or not self.nonnegative

    def _settings(self, problem: Problem | None) -> Settings:
        """What a fit minimises; the seed and scale of its first factors where there is a `problem`."""
        seed, scale = 0, 0.1
        if problem is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            size = problem.spread if self._centred() else abs(problem.mean)
            scale = _REACH * (size or 1.0) ** 0.5 * int(self.n_components) ** -0.25
        return Settings(
            self._layout(), float(self.reg), self.reg_scaling == "weighted", bool(self.nonnegative), seed,
            scale, np.dtype(self.dtype).type,
        )  # fmt: skip

    def _held_settings(self) -> Settings:
        """What the fitted model is updated by: of the parameters as they are now, `reg` and its scaling."""
        components, biases, positive = self._shape_of_fit
        dtype = self.user_factors_.dtype
        layout = Layout(components, biases, dtype.itemsize)
        return self._settings(None)._replace(layout=layout, positive=positive, dtype=dtype.type)

    def _start(self, problem: Problem, layout: Layout, users_first: bool) -> Any:
        """Rows and columns that a fit starts from with `warm_start`; else None."""
        if not (self.warm_start and hasattr(self, "components_")):
            return None
        same = self.user_factors_.shape == (problem.shape[0], layout.components) and (
            np.array_equal(self.user_ids_, problem.user_ids)
            and np.array_equal(self.item_ids_, problem.item_ids)
        )
        if not same:
            raise ValueError(
                "warm_start: the model has other users, items or components than these ratings; partial_fit "
                "takes new users and items, warm_start=False starts afresh"
            )
        users = padded(layout, self.user_factors_, self.user_bias_, self.dtype, row=users_first)
        items = padded(layout, self.components_.T, self.item_bias_, self.dtype, row=not users_first)
        return (users, items) if users_first else (items, users)


def _bias(layout: Layout, factors: np.ndarray, rows: bool) -> np.ndarray:
    """The bias of every row (column) of the padded factors; zeros where the layout has none."""
    return factors[:, 0 if rows else 1].copy() if layout.biases else np.zeros(len(factors), factors.dtype)


def _assembled(
    pieces: list[RatingPiece], out: np.ndarray | None, n_columns: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """All rows' and columns' padded factors, from the ranks' pieces; rows are in `out` where there is one."""
    columns = np.zeros((n_columns, width), pieces[0].columns.dtype)
    for piece in pieces:
        columns[piece.ids] = piece.columns
    return np.concatenate([piece.rows for piece in pieces]) if out is None else out, columns
