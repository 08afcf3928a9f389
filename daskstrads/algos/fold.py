"""Rows fitted to columns that are known: users folded in, and models that hear of new ratings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..partition.balance import balanced_bounds
from .factors import Layout, Settings
from .ratings import merged_ids, places

__all__ = ["fold_in", "grown", "learn", "padded"]

_STEPS = 64  # of conjugate gradients at most: more than float32 can use
_SWEEPS = 500  # at most, of coordinate descent where factors are not negative
_ROUNDS = 2  # of both sides, when new ratings are heard of


def padded(layout: Layout, factors: np.ndarray, bias: np.ndarray, dtype: Any, *, row: bool) -> np.ndarray:
    """Factors (n, k) and biases (n,) as the programs hold them: a row's [bias, 1, x, 0], a column's [1,
    bias, y, 0].
    """
    made = np.zeros((len(factors), layout.width), dtype)
    made[:, layout.first : layout.first + layout.components] = factors
    if layout.biases:
        made[:, 0 if row else 1] = bias
        made[:, 1 if row else 0] = 1.0
    return made


def fold_in(
    ratings: Any, mean: float, rows: np.ndarray, columns: np.ndarray, settings: Settings, *,
    hold: np.ndarray | None = None, row: bool = True, threads: int = 1,
) -> None:  # fmt: skip
    """Overwrite `rows` with the minimum of their part of the objective, columns held; those without ratings
    stay.

    Raises ValueError for ratings so large that there is no finite answer.

    `ratings`: CSR, rows x columns. `hold` (rows,): how much a row clings to where it is. `row`: whether
    these are the layout's rows, or its columns.
    """
    from . import als_kernels, ratings_kernels

    layout, dtype = settings.layout, settings.dtype
    # Of the types of a fit, whose kernels are loaded already.
    offsets = ratings.indptr.astype(np.int64)
    offsets.flags.writeable = False
    indices = ratings.indices.astype(np.uint16 if ratings.shape[1] <= 2**16 else np.int32)
    with np.errstate(over="ignore"):
        residual = (ratings.data - np.float64(mean)).astype(dtype)
        still = np.empty(0, dtype) if hold is None else hold.astype(dtype)
    rated = np.diff(offsets)
    weight = (settings.reg * (rated if settings.weighted else rated > 0)).astype(dtype)
    if hold is not None and not settings.weighted:
        weight[hold > 0] = 0.0  # what holds a row has its decay
    frozen = layout.row_frozen if row else layout.column_frozen

    def solve(first: int, stop: int) -> None:
        part, clings = slice(first, stop), still[first:stop]
        ends = offsets[first : stop + 1]
        ratings_kernels.subtract(ends, indices, rows[part], columns, residual)
        data = (ends, indices, residual, rows[part], columns, weight[part], clings, frozen)
        if settings.positive:
            als_kernels.solve_positive(*data, layout.first, _SWEEPS)
        else:
            als_kernels.solve_rows(*data, min(layout.components + 1, _STEPS))

    bounds = balanced_bounds(offsets, threads)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda pair: solve(*pair), pairwise(bounds.tolist())):
            pass
    if not (np.isfinite(residual).all() and np.isfinite(rows).all()):
        raise ValueError("these ratings overflow: their factors are not finite; rescale the ratings")


def learn(
    ratings: Any, mean: float, users: np.ndarray, items: np.ndarray, counts: tuple[np.ndarray, np.ndarray],
    settings: Settings, threads: int,
) -> None:  # fmt: skip
    """Let users and items, as rows and columns, hear of new `ratings` (CSR over these), in place.

    What is known of one holds it where it is: with n ratings behind it, as much as n ratings of an average
    partner would (`counts`: how many each has). The objective of a row is then
        sum_new (r - x . y)^2 + l_new ||x||^2 + n (mean y_t^2 + reg) ||x - x_old||^2.
    """
    by_item = sp.csr_array(ratings.T.tocsr())
    for _ in range(_ROUNDS):
        for mine, rows, columns, count, row in (
            (ratings, users, items, counts[0], True),
            (by_item, items, users, counts[1], False),
        ):
            first = settings.layout.first
            typical = float(np.square(columns[:, first:], dtype=np.float64).sum(axis=1).mean())
            typical /= settings.layout.components
            hold = count * (typical + (settings.reg if settings.weighted else 0.0))
            if not settings.weighted:
                hold = hold + settings.reg * (count > 0)
            fold_in(mine, mean, rows, columns, settings, hold=hold, row=row, threads=threads)


def grown(
    known: np.ndarray, ids: np.ndarray, length: int | None, factors: np.ndarray, side: int,
    settings: Settings, numbers: tuple[np.ndarray, ...],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Ids, factors (n, k) and `numbers` (n,) of one side with room for `ids`, whose new factors are drawn.

    `length`: the ids are the rows (columns) of a matrix of so many; in between there may be some without a
    rating, whose factors are zero.
    """
    from . import ratings_kernels as kernels

    numbered = length is not None and np.array_equal(known, np.arange(len(known)))
    every = np.arange(max(len(known), length or 0)) if numbered else merged_ids(known, ids)
    kept = places(known, every)
    new = np.setdiff1d(places(ids, every), kept)
    made = np.zeros((len(every), factors.shape[1]), factors.dtype)
    drawn = np.empty((len(new), factors.shape[1]), factors.dtype)
    kernels.draw(side, new, settings.scale, settings.positive, drawn)
    made[new], made[kept] = drawn, factors
    wide = [np.zeros(len(every), each.dtype) for each in numbers]
    for new_each, old in zip(wide, numbers, strict=True):
        new_each[kept] = old
    return every, made, *wide
