"""What is to be fitted, and what that needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..partition import Compressed, Slab

__all__ = [
    "MemoryPlan",
    "Problem",
    "check_finite",
    "check_sparse",
    "memory_plan",
    "near_count",
    "without_hidden",
]

_HUGE = 1e100  # its square times a weight of 0 may be nan


class Problem(NamedTuple):
    """What is to be fitted: X's shape, split axis, stored entries and dtype; the targets; the ranks' parts.

    `flat`: y is 1-D, or is taken so: a `column`. `weighted`: weights are not all 1. `parts(target, start
    coefficients)`: one part a rank, or futures of them.
    """

    shape: tuple[int, int]
    axis: int
    entries: int
    dtype: Any
    targets: int
    flat: bool
    column: bool
    weighted: bool
    parts: Callable[[int, np.ndarray], list[Any]]


def check_sparse(X: Any, converted: bool) -> None:
    """Raise ValueError for a CSR or CSC matrix that points outside its arrays; scipy would crash on it.

    Indices are looked at where X is `converted`; otherwise the ranks do that in their first pass.
    """
    starts = X.indptr
    if len(starts) == 0 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > len(X.data):
        raise ValueError("sparse X is damaged: its indptr must ascend from 0 to the number of entries")
    length = X.shape[1] if X.format == "csr" else X.shape[0]
    stored = X.indices[: starts[-1]]
    if converted and len(stored) and not (stored.min() >= 0 and stored.max() < length):
        raise ValueError(f"sparse X has an index outside its shape; expected indices in [0, {length})")


def check_finite(given: Any, name: str = "X") -> None:
    """Raise ValueError naming the first column of an array, dense or sparse, that holds NaN or infinity."""
    values = given.data if sp.issparse(given) else given
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)) or np.isfinite(values).all():
            return
    if sp.issparse(given):
        entries = given.tocoo()
        values, columns = entries.data, entries.col
    else:
        values = values.reshape(len(values), -1)
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    missing = np.isnan(values)
    what, bad = ("NaN", missing) if missing.any() else ("infinity", ~np.isfinite(values))
    where = f" (first in column {columns[bad].min()})" if given.ndim == 2 else ""
    raise ValueError(f"Input {name} contains {what}{where}; impute or drop it before fit")


def without_hidden(slab: Slab, weight: np.ndarray) -> Slab:
    """The slab with its rows of weight 0 zeroed, on a copy, where a huge entry of theirs would be felt.

    `weight` (rows of the slab). NaN and infinity stay: they are errors wherever they are.
    """
    matrix = slab.matrix
    values = matrix.values if isinstance(matrix, Compressed) else matrix
    if weight.all() or not values.size or not _HUGE < max(float(values.max()), -float(values.min())) < np.inf:
        return slab
    if not isinstance(matrix, Compressed):
        hidden = (weight == 0)[:, None]
    elif slab.axis == 1:
        hidden = weight[matrix.indices] == 0
    else:
        hidden = np.repeat(weight == 0, np.diff(matrix.starts))
    values = np.where(hidden, values.dtype.type(0), values)
    values.flags.writeable = False
    return slab._replace(matrix=matrix._replace(values=values) if isinstance(matrix, Compressed) else values)


class MemoryPlan(NamedTuple):
    """Bytes that each of `ranks` ranks of a fit needs, split by columns (`axis` 1) or rows (0).

    `data`: its share of X; `state`: vectors of its rows and columns, and copies of columns that are looked at
    often; `exchange`: a round's block, as sent and as received.
    """

    ranks: int
    axis: int
    data: int
    state: int
    exchange: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.data + self.state + self.exchange

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_told(getattr(self, name))}" for name in ("data", "state", "exchange"))
        by = "columns" if self.axis == 1 else "rows"
        return f"{self.ranks} ranks by {by}, {_told(self.total)} each: {parts}"


def _told(size: int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000  # type: ignore[assignment]
    return f"{size:.3g} TB"


def near_count(columns: int, block: int) -> int:
    """How many columns of a rank, at most, are looked at between two measurements, besides its support."""
    return min(columns, max(columns // 32, 4 * block))


def memory_plan(
    shape: tuple[int, int], entries: int, *, sparse: bool, itemsize: int, axis: int, ranks: int, block: int
) -> MemoryPlan:
    """What a fit of X (n, p) with so many stored entries needs, in blocks of `block` columns."""
    n, p = shape
    index = 4 if shape[1 - axis] < 2**31 else 8
    data = -(-entries * (itemsize + index * sparse) // ranks) + 8 * sparse * (-(-shape[axis] // ranks) + 1)
    if axis == 1:
        own = -(-p // ranks)
        state = 8 * (6 * n + 8 * own)
        column = -(-entries // p) * (8 + index * sparse)
        exchange = 2 * block * column
        state += sparse * near_count(own, block) * column
    else:
        own = -(-n // ranks)
        state = 8 * (6 * own + 8 * p)
        exchange = 8 * 4 * min(block, p) ** 2
    return MemoryPlan(ranks, axis, data, state, exchange)
