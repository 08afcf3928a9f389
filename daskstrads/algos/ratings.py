"""Ratings as people have them: a sparse matrix, or triples with ids of their own; made into rows of
ratings.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..engine.run import check_memory
from ..partition import split
from .factors import RatingPart, split_axis_of
from .problem import check_sparse

__all__ = [
    "Names", "Problem", "Triples", "matrix_of", "merged_ids", "places", "problem_of", "shown", "to_csr",
    "triples_of", "unique_ids",
]  # fmt: skip


class Names(NamedTuple):
    """Columns of a DataFrame of triples."""

    user: str
    item: str
    rating: str


class Triples(NamedTuple):
    """Ratings one by one, with the caller's ids; `ratings` may be missing (pairs)."""

    users: np.ndarray
    items: np.ndarray
    ratings: Any


class Problem(NamedTuple):
    """What is to be factorised: users x items, ratings, their mean and spread, who the users and items are.

    `axis`: 0 where ranks own users, 1 where they own items (the side with more of them). `parts(mean,
    start, out)`: one part a rank, see `RatingPart`; `start`: all rows and columns, or None.
    """

    shape: tuple[int, int]
    axis: int
    entries: int
    mean: float
    spread: float
    user_ids: np.ndarray
    item_ids: np.ndarray
    user_counts: np.ndarray
    item_counts: np.ndarray
    parts: Callable[[float, Any, Any], list[Any]]


def triples_of(given: Any, names: Names, *, rated: bool = True) -> Triples:
    """Triples of a DataFrame (columns by name) or of a tuple of arrays.

    Raises:
        TypeError: anything else. ValueError: columns that are not there, lengths that differ, ids that are
            missing,
            ratings that are no finite numbers.
    """
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        wanted = names if rated else names[:2]
        absent = [name for name in wanted if name not in given.columns]
        if absent:
            raise ValueError(
                f"the DataFrame has no column {absent[0]!r}, it has {list(map(str, given.columns))}; "
                "name yours: MatrixFactorization(user=..., item=..., rating=...)"
            )
        fields: list[Any] = [given[name] for name in wanted]
    elif isinstance(given, tuple) and len(given) in ((3,) if rated else (2, 3)):
        fields = list(given if rated else given[:2])
    else:
        what = f"an array of shape {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(
            "ratings must be a scipy.sparse matrix (users x items), a DataFrame with columns "
            f"{', '.join(names)}, or a tuple of arrays (users, items, ratings), got {what}"
            + (
                "; which of its entries are ratings? scipy.sparse.csr_array says"
                * isinstance(given, np.ndarray)
            )
        )
    users, items = ids_of(fields[0], "user"), ids_of(fields[1], "item")
    ratings = numbers_of(fields[2]) if rated else None
    lengths = {len(each) for each in (users, items, ratings) if each is not None}
    if len(lengths) > 1:
        raise ValueError(f"users, items and ratings must be of one length, got {sorted(lengths)}")
    if ratings is not None and not np.isfinite(ratings).all():
        z = int(np.argmin(np.isfinite(ratings)))
        raise ValueError(
            f"the rating of user {shown(users[z])} and item {shown(items[z])} is {ratings[z]}; "
            "drop or mend it"
        )
    return Triples(users, items, ratings)


def shown(each: Any) -> str:
    """An id as Python writes it."""
    return repr(each.item() if isinstance(each, np.generic) else each)


def ids_of(given: Any, what: str) -> np.ndarray:
    """Ids as a 1-D array of integers, strings or other things that can be sorted.

    Raises:
        TypeError: a set, which has no order. ValueError: more dimensions, or an id that is missing.
    """
    if isinstance(given, Set):
        raise TypeError(f"{what} ids must be in a list or an array, got a {type(given).__name__}")
    ids = np.asarray(given)
    if ids.ndim != 1:
        raise ValueError(f"{what} ids must be 1-D, got {ids.ndim} dimensions")
    missing: Any = None
    if ids.dtype.kind == "O":
        values, pandas = ids.tolist(), sys.modules.get("pandas")
        if pandas is not None:  # pandas.NA cannot be compared with anything
            missing = pandas.isna(ids)
        else:
            missing = np.array([each is None or each != each for each in values], bool)
        for kind, dtype in (str, np.str_), (int, np.int64):
            if values and not missing.any() and all(isinstance(each, kind) for each in values):
                with contextlib.suppress(OverflowError):  # longer whole numbers stay what they are
                    return ids.astype(dtype)
    elif ids.dtype.kind in "fmM":
        missing = np.isnan(ids) if ids.dtype.kind == "f" else np.isnat(ids)
    if missing is not None and missing.any():
        raise ValueError(f"the {what} id in row {int(np.argmax(missing))} is missing; drop that row")
    return ids


def numbers_of(given: Any) -> np.ndarray:
    """Ratings as a 1-D float array, float32 kept.

    Raises:
        ValueError: no numbers, complex ones, more dimensions.
    """
    ratings = np.asarray(given)
    if ratings.dtype.kind == "O":
        try:
            ratings = ratings.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"ratings must be numbers: {error}") from None
    if ratings.dtype.kind not in "biuf" or ratings.ndim != 1:
        raise ValueError(
            f"ratings must be real numbers in one dimension, got {ratings.dtype}, {ratings.ndim}-D"
        )
    return ratings if ratings.dtype in (np.float32, np.float64) else ratings.astype(np.float64)


def unique_ids(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ids, sorted, and every id's place among them.

    Raises:
        TypeError: ids of kinds that cannot be compared.
    """
    pandas = sys.modules.get("pandas")
    try:
        if pandas is not None and ids.dtype.kind in "iuU":  # hashes: several times faster than sorting
            values = ids.astype(object) if ids.dtype.kind == "U" else ids
            codes, found = pandas.factorize(values, sort=True)
            return np.asarray(found).astype(ids.dtype), codes
        return np.unique(ids, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"ids must be of one kind: {error}") from None


def places(ids: Any, known: np.ndarray) -> np.ndarray:
    """Where ids are in the sorted array `known`; -1: not there."""
    ids = np.asarray(ids)
    if not len(known) or not ids.size:
        return np.full(ids.shape, -1, np.int64)
    ids, known = _of_one_kind(ids, known)
    if "O" not in (ids.dtype.kind, known.dtype.kind) and _kind(ids) != _kind(known):
        return np.full(ids.shape, -1, np.int64)
    if known.dtype.kind in "iu" and known[0] == 0 and known[-1] == len(known) - 1:  # rows of a matrix
        inside = (ids >= 0) & (ids < len(known))
        found = np.where(inside, ids, -1).astype(np.int64)
        return np.where(found == ids, found, -1)
    try:
        found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    except TypeError:  # some cannot be compared with those known
        table = {each: place for place, each in enumerate(known.tolist())}
        return np.array([table.get(each, -1) for each in ids.ravel().tolist()]).reshape(ids.shape)
    return np.where(known[found] == ids, found, -1)


def merged_ids(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """All of both, sorted.

    Raises:
        TypeError: ids of another kind than those known.
    """
    if not len(ids) or not len(known):
        return np.unique(ids if len(ids) else known)
    one, other = _of_one_kind(ids, known)
    try:
        if "O" in (one.dtype.kind, other.dtype.kind) or _kind(one) == _kind(other):
            return ids_of(np.union1d(other, one), "known")
    except TypeError:
        pass
    raise TypeError(f"ids are {known.dtype} in the model, got {ids.dtype}")


def _kind(ids: np.ndarray) -> str:
    return "f" if ids.dtype.kind in "biuf" else ids.dtype.kind


def _of_one_kind(ids: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both such that numpy compares them as Python would: int64 with uint64 would become floats."""
    kinds = {ids.dtype.kind, known.dtype.kind}
    if kinds == {"i", "u"} and max(ids.dtype.itemsize, known.dtype.itemsize) == 8:
        if ids.dtype.kind == "u" and (not len(ids) or ids.max() <= np.iinfo(np.int64).max):
            return ids.astype(np.int64), known
        return ids.astype(object), known.astype(object)
    if "O" in kinds and len(kinds) > 1:
        other = known if ids.dtype.kind == "O" else ids
        if other.dtype.kind in "mM":  # pandas' Timestamps
            with contextlib.suppress(TypeError, ValueError):
                return ids.astype(other.dtype), known.astype(other.dtype)
        return ids.astype(object), known.astype(object)
    return ids, known


def to_csr(
    rows: np.ndarray, columns: np.ndarray, ratings: np.ndarray, shape: tuple[int, int]
) -> sp.csr_array:
    """Codes and ratings as a CSR array; a pair that is rated several times has the mean of its ratings."""
    made = sp.coo_array((ratings, (rows, columns)), shape=shape).tocsr()  # sums
    if made.nnz < len(ratings):
        counts = sp.coo_array((np.ones(len(ratings)), (rows, columns)), shape=shape).tocsr()
        for each in made, counts:
            each.sort_indices()
        made.data = (made.data / counts.data).astype(ratings.dtype)
    return made


def matrix_of(given: Any) -> Any:
    """A sparse matrix of ratings as CSR without repeated entries, which count as their sum (scipy's rule).

    Stored zeros are ratings. The caller's matrix is not changed.

    Raises:
        ValueError: no entries, complex or other numbers, NaN or infinity; a damaged matrix.
    """
    if given.ndim != 2:
        raise ValueError(f"ratings must be 2-D (users x items), got {given.ndim} dimensions")
    if given.dtype.kind not in "biuf":
        raise ValueError(f"ratings must be real numbers, got {given.dtype}")
    if given.format in ("csr", "csc"):
        check_sparse(given, True)
    made = given.tocsr()
    if not made.has_canonical_format:
        made = made.copy() if made is given else made
        made.sum_duplicates()
    if made.data.dtype not in (np.float32, np.float64):
        short = made.data.dtype.itemsize <= 2  # whole numbers, or float16: float32 holds them exactly
        values = made.data.astype(np.float32 if short else np.float64)
        made = type(made)((values, made.indices, made.indptr), shape=made.shape)
    finite = np.isfinite(made.data)
    if not finite.all():
        z = int(np.argmin(finite))
        row = int(np.searchsorted(made.indptr, z, side="right")) - 1
        raise ValueError(
            f"the rating of user {row} and item {made.indices[z]} is {made.data[z]}; drop or mend it"
        )
    return made


def problem_of(model: Any, ratings: Any) -> Problem:
    """What is to be factorised, of ratings that this process holds.

    Raises:
        TypeError, ValueError: as `triples_of` and `matrix_of`; no ratings at all.
        MemoryError: on a cluster whose workers' limits do not allow the fit.
    """
    if sp.issparse(ratings):
        matrix = matrix_of(ratings)
        user_ids, item_ids = (np.arange(length) for length in matrix.shape)
    else:
        triples = triples_of(ratings, model._names())
        assert triples.ratings is not None
        (user_ids, users), (item_ids, items) = unique_ids(triples.users), unique_ids(triples.items)
        matrix = to_csr(users, items, triples.ratings, (len(user_ids), len(item_ids)))
    if not matrix.nnz:
        raise ValueError(f"there are no ratings in a matrix of shape {matrix.shape}")
    axis = split_axis_of(matrix.shape)
    size = model._n_ranks(matrix.shape, matrix.nnz)
    check_memory(model.memory_plan(matrix.shape, matrix.nnz, n_ranks=size))
    user_counts = np.diff(matrix.indptr).astype(np.int64)
    item_counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # the fit says so itself
        mean = float(matrix.data.mean(dtype=np.float64))
        spread = float(matrix.data.std(dtype=np.float64))
    counts = (user_counts, item_counts)[1 - axis]

    def parts(offset: float, start: Any, out: Any) -> list[RatingPart]:
        rows, columns = start or (None, None)
        return [
            RatingPart(
                slab, counts, offset, None if rows is None else rows[slab.start : slab.stop], columns,
                None if out is None else out[slab.start : slab.stop],
            )
            for slab in split(matrix, size, axis)
        ]  # fmt: skip

    return Problem(
        matrix.shape, axis, matrix.nnz, mean, spread, user_ids, item_ids, user_counts, item_counts, parts
    )
