"""Data shards of arrays that one process holds: views of what the user passed wherever they can be."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .balance import balanced_bounds

__all__ = ["Compressed", "Slab", "compress", "split", "split_axis"]


class Compressed(NamedTuple):
    """Sparse vectors one after the other: vector j is `values`, `indices` [offsets[j]:offsets[j + 1]].

    Where all vectors have as many entries, `offsets` is that one number.
    `length` is the vectors' dimension; `offsets` are int64, `indices` int32 where `length` allows it, and in
    arrays made for the shard uint16 where that does.
    """

    values: np.ndarray
    indices: np.ndarray
    offsets: np.ndarray
    length: int

    @property
    def starts(self) -> np.ndarray:
        """Where each vector starts, and the last one ends: (vectors + 1,) int64."""
        if len(self.offsets) > 1 or not self.offsets[0]:
            return self.offsets
        return np.arange(0, len(self.values) + 1, self.offsets[0])


class Slab(NamedTuple):
    """A rank's share of X: columns (axis 1) or rows (axis 0) [start, stop).

    `matrix` is a 2-D ndarray (a view, either order), or `Compressed` columns (axis 1) or rows (axis 0).
    """

    matrix: Any
    axis: int
    start: int
    stop: int

    @property
    def entries(self) -> int:
        """Stored entries."""
        return int((self.matrix.values if isinstance(self.matrix, Compressed) else self.matrix).size)


def split_axis(shape: tuple[int, int]) -> int:
    """Which axis of X (n, p) to split: rows (0) of tall data, n >= 8 p; columns (1) otherwise.

    Below that, summing Gram matrices over the rows costs more than sharing the residual.
    """
    return 0 if shape[0] >= 8 * shape[1] else 1


def split(X: Any, size: int, axis: int, *, owned: bool = False) -> list[Slab]:
    """Cut X into `size` slabs of consecutive columns (`axis` 1) or rows (`axis` 0), balanced by nonzeros.

    Slabs are read-only views of X, except where a sparse X is compressed along the other axis, has
    64-bit indices that 32 bits can hold, or is `owned`, a copy made for this: then indices get as small as
    they can.
    """
    if not sp.issparse(X):
        bounds = balanced_bounds(np.arange(X.shape[axis] + 1) * X.shape[1 - axis], size)
        cuts = [X[start:stop] if axis == 0 else X[:, start:stop] for start, stop in _pairs(bounds)]
        return [Slab(_frozen(cut), axis, *pair) for cut, pair in zip(cuts, _pairs(bounds), strict=True)]
    owned = owned or X.format != ("csc" if axis == 1 else "csr")
    X = X.tocsc() if axis == 1 else X.tocsr()
    bounds = balanced_bounds(X.indptr, size)
    return [Slab(compress(X, start, stop, axis, owned), axis, start, stop) for start, stop in _pairs(bounds)]


def _pairs(bounds: np.ndarray) -> list[tuple[int, int]]:
    return [(int(start), int(stop)) for start, stop in pairwise(bounds)]


def compress(X: Any, start: int, stop: int, axis: int, owned: bool) -> Compressed:
    """Columns (CSC, `axis` 1) or rows (CSR, 0) [start, stop) of a scipy.sparse X.

    Views where they can be; of an `owned` X indices become uint16 where these do: a copy of a sixth of its
    size that saves as much once X goes, where a view would have saved nothing.
    """
    first, last = int(X.indptr[start]), int(X.indptr[stop])
    length = X.shape[1 - axis]
    index: Any = np.int32 if length <= np.iinfo(np.int32).max else np.int64
    if owned and length <= 2**16:
        index = np.uint16
    starts = X.indptr[start : stop + 1]
    width = int(starts[1]) - first if stop > start else 0
    if width and width * (stop - start) == last - first and (starts[1:] - starts[:-1] == width).all():
        offsets = np.array([width], np.int64)
    else:
        offsets = starts.astype(np.int64) - first
    return Compressed(
        _frozen(X.data[first:last]),
        _frozen(X.indices[first:last].astype(index, copy=False)),
        _frozen(offsets),
        length,
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    # What came over a network may lie at an odd address: kernels would need another version of themselves.
    view = np.require(array, requirements="A").view()
    view.flags.writeable = False
    return view
