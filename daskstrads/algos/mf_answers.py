"""What a factorisation answers: ratings of pairs, recommendations, neighbours, factors of new users."""

from __future__ import annotations

from collections.abc import Set
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import cpu_count
from sklearn.utils.validation import check_is_fitted

from .factors import Settings
from .fold import fold_in, padded
from .ratings import Names, Triples, ids_of, matrix_of, places, shown, to_csr, triples_of, unique_ids
from .recommend import ragged, top

__all__ = ["Answers"]


class Answers:
    """The methods of a fitted `MatrixFactorization` that leave it as it is."""

    components_: np.ndarray
    user_factors_: np.ndarray
    user_bias_: np.ndarray
    item_bias_: np.ndarray
    user_ids_: np.ndarray
    item_ids_: np.ndarray
    mean_: float

    def _names(self) -> Names:
        raise NotImplementedError

    def _held_settings(self) -> Settings:
        raise NotImplementedError

    def transform(self, X):
        """Factors (users of X, k) of users with the ratings X, the items' held: what a fit would give them.

        X: users x items, with the columns of the fit; or triples, whose users come back in the order of their
        sorted ids, and whose items must be known. Lazy for a dask array.

        Raises:
            ValueError: other columns than in the fit, an unknown item, ratings that overflow.
        """
        check_is_fitted(self)
        if hasattr(X, "__dask_graph__"):
            from . import ratings_dask

            if hasattr(X, "columns"):
                return self.transform(ratings_dask.computed_ratings(X))
            return ratings_dask.transformed(self, X)
        if sp.issparse(X):
            self._check_items(X)
            ratings = matrix_of(X)
        else:
            triples = triples_of(X, self._names())
            ids, codes = unique_ids(triples.users)
            items = self._known("item", triples.items)
            ratings = to_csr(codes, items, triples.ratings, (len(ids), len(self.item_ids_)))
        settings = self._held_settings()
        layout, dtype = settings.layout, settings.dtype
        rows = padded(
            layout,
            np.zeros((ratings.shape[0], layout.components)),
            np.zeros(ratings.shape[0]),
            dtype,
            row=True,
        )
        columns = padded(layout, self.components_.T, self.item_bias_, dtype, row=False)
        fold_in(ratings, self.mean_, rows, columns, settings, threads=cpu_count())
        return np.ascontiguousarray(rows[:, layout.first : layout.first + layout.components])

    def predict(self, users, items):
        """Ratings of pairs of users and items (ids, broadcast against each other); the same shape.

        A user or item that the model does not know has neither bias nor factors.
        """
        from . import topn_kernels as kernels

        check_is_fitted(self)
        sides = ((users, "user", self.user_ids_), (items, "item", self.item_ids_))
        at = [_places_of(*side) for side in sides]
        shape = np.broadcast_shapes(at[0].shape, at[1].shape)
        at_user, at_item = (np.broadcast_to(each, shape).ravel() for each in at)
        out = np.empty(len(at_user))
        kernels.pair_products(at_user, at_item, self.user_factors_, self.components_.T, out)
        out += self.mean_
        out += np.where(at_user >= 0, self.user_bias_[at_user], 0.0)
        out += np.where(at_item >= 0, self.item_bias_[at_item], 0.0)
        return out.reshape(shape)[()]

    def score(self, X, y=None):
        """Negative root mean squared error of the ratings X: greater is better."""
        check_is_fitted(self)
        if hasattr(X, "__dask_graph__"):
            from . import ratings_dask

            X = ratings_dask.computed_ratings(X)
        users, items, ratings = self._coded(X)
        if ratings is None or not len(ratings):
            raise ValueError("there are no ratings to score")
        return -float(np.sqrt(np.mean((self.predict(users, items) - ratings) ** 2)))

    def recommend(self, users, n=10, *, exclude=None, exclude_items=None):
        """Ids and predicted ratings of the n best items for each user, the best first.

        `users`: ids, or one id: then 1-D answers. `exclude`: ratings (a matrix of the fit's shape, or
        triples or pairs) of what a user knows already; `exclude_items`: ids that nobody is to be told.
        Where less than n items are left, an answer is shorter: answers are 2-D arrays if all are of one
        length, else lists of arrays. A user that the model does not know is told what is best for everybody.
        """
        check_is_fitted(self)
        n = _whole("n", n)
        ids = ids_of(users if isinstance(users, Set) else np.atleast_1d(users), "user")
        single = np.ndim(users) == 0
        at = places(ids, self.user_ids_)
        starts, excluded = self._excluded(ids, at, exclude)
        barred = np.empty(0, np.int64)
        if exclude_items is not None:
            told = list(exclude_items) if isinstance(exclude_items, Set) else np.atleast_1d(exclude_items)
            barred = places(ids_of(told, "excluded item"), self.item_ids_)
            barred = barred[barred >= 0]
        queries = self.user_factors_[at]
        queries[at < 0] = 0.0
        found, values, lengths = top(
            queries, self.components_.T, self.item_bias_, n, barred, starts, excluded, cpu_count()
        )
        # The mean last: where ratings lie far from 0, float32 with it would not tell items apart.
        values = values + (np.where(at >= 0, self.user_bias_[at], 0.0) + np.float64(self.mean_))[:, None]
        found, values = ragged(self.item_ids_[found], values, lengths)
        return (found[0], values[0]) if single else (found, values)

    def similar_items(self, items, n=10):
        """Ids and cosines of the n items whose factors are most alike, for each of `items` or for one.

        An item is not its own neighbour, and who has no factors is nobody's. Answers as `recommend`'s.
        """
        return self._similar("item", items, n)

    def similar_users(self, users, n=10):
        """Ids and cosines of the n users whose factors are most alike; as `similar_items`."""
        return self._similar("user", users, n)

    def _similar(self, what: str, given: Any, n: int) -> tuple[Any, Any]:
        check_is_fitted(self)
        n = _whole("n", n)
        factors, known = (
            (self.components_.T, self.item_ids_) if what == "item" else (self.user_factors_, self.user_ids_)
        )
        single = np.ndim(given) == 0
        at = self._known(what, given if isinstance(given, Set) else np.atleast_1d(given))
        lengths = np.linalg.norm(factors, axis=1)
        unit = np.divide(
            factors, lengths[:, None], out=np.zeros(factors.shape, factors.dtype), where=lengths[:, None] > 0
        )
        nowhere = np.flatnonzero(lengths == 0)
        found, values, counts = top(
            unit[at], unit, np.zeros(len(unit)), n, nowhere, np.arange(len(at) + 1), at, cpu_count()
        )
        counts[lengths[at] == 0] = 0
        found, values = ragged(known[found], values, counts)
        return (found[0], values[0]) if single else (found, values)

    def _coded(self, X: Any) -> Triples:
        """Ids and ratings of a matrix, or of triples."""
        if sp.issparse(X):
            self._check_items(X, more=True)
            entries = matrix_of(X).tocoo()
            sides = (entries.row, "users", self.user_ids_), (entries.col, "items", self.item_ids_)
            users, items = (
                _named(at.astype(np.int64), length, what, known)
                for (at, what, known), length in zip(sides, X.shape, strict=True)
            )
            return Triples(users, items, entries.data)
        return triples_of(X, self._names())

    def _check_items(self, X: Any, *, more: bool = False) -> None:
        """Raise ValueError for a matrix whose columns are not this model's items."""
        items, users = len(self.item_ids_), len(self.user_ids_)
        if X.ndim != 2:
            raise ValueError(f"ratings must be 2-D (users x items), got {X.ndim} dimensions")
        if X.shape[1] == items or (more and X.shape[1] > items and X.shape[0] >= users):
            return
        hint = (
            "; is it items x users? pass its transpose"
            if X.shape == (items, users) or X.shape[0] == items
            else ""
        )
        raise ValueError(
            f"a matrix of shape {X.shape} has not the {items} items of the model as columns{hint}"
        )

    def _known(self, what: str, ids: Any) -> np.ndarray:
        at = places(ids_of(ids, what), self.item_ids_ if what == "item" else self.user_ids_)
        if (at < 0).any():
            raise ValueError(f"the model does not know {what} {shown(ids_of(ids, what)[int(np.argmin(at))])}")
        return at

    def _excluded(self, ids: np.ndarray, at: np.ndarray, exclude: Any) -> tuple[np.ndarray, np.ndarray]:
        """Offsets (users + 1,) into places of items, for each of the users `ids` (at places `at`)."""
        if exclude is None:
            return np.zeros(len(ids) + 1, np.int64), np.empty(0, np.int64)
        if hasattr(exclude, "__dask_graph__"):
            from . import ratings_dask

            exclude = ratings_dask.computed_ratings(exclude)
        if sp.issparse(exclude):
            self._check_items(exclude)
            if exclude.shape[0] != len(self.user_ids_):
                raise ValueError(
                    f"exclude has {exclude.shape[0]} rows, the model {len(self.user_ids_)} users"
                )
            chosen = exclude.tocsr()[np.maximum(at, 0)]
            starts, excluded = chosen.indptr.astype(np.int64), chosen.indices.astype(np.int64)
            if not (at < 0).any():
                return starts, excluded
            kept = np.repeat(at >= 0, np.diff(starts))
            lengths = np.where(at >= 0, np.diff(starts), 0)
            return np.concatenate([[0], np.cumsum(lengths)]), excluded[kept]
        pairs = triples_of(exclude, self._names(), rated=False)
        items = places(pairs.items, self.item_ids_)
        asked, inverse = np.unique(ids, return_inverse=True)
        who = places(pairs.users, asked)
        keep = (items >= 0) & (who >= 0)
        table = sp.csr_array(
            (np.ones(keep.sum()), (who[keep], items[keep])), shape=(len(asked), len(self.item_ids_))
        )
        chosen = table[inverse]
        return chosen.indptr.astype(np.int64), chosen.indices.astype(np.int64)


def _named(at: np.ndarray, length: int, what: str, known: np.ndarray) -> np.ndarray:
    """Ids of rows or columns of a matrix, which are numbers, or the model's own ids in their order."""
    if known.dtype.kind in "iu" and np.array_equal(known, np.arange(len(known))):
        return at
    if length != len(known):
        raise ValueError(
            f"a matrix with {length} {what}, a model with {len(known)} that have ids of their own: "
            "pass triples, or all of them in the order of the ids"
        )
    return known[at]


def _places_of(given: Any, what: str, known: np.ndarray) -> np.ndarray:
    """Where ids of any shape are in `known`; -1: not there."""
    if isinstance(given, Set):
        ids_of(given, what)  # raises
    ids = np.asarray(given)
    return places(ids_of(ids.ravel(), what), known).reshape(ids.shape)


def _whole(name: str, n: Any) -> int:
    """n as an int. Raises TypeError or ValueError for what is no count."""
    if not isinstance(n, Integral) or isinstance(n, bool):
        raise TypeError(f"{name} must be a whole number, got {n!r}")
    if n < 1:
        raise ValueError(f"{name} must be at least 1, got {n}")
    return int(n)
