"""Data shards of dask arrays: slabs made on the workers from the chunks, moved from worker to worker."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed

from .arrays import Slab, compress
from .balance import balanced_bounds

__all__ = ["blocks", "known", "pieces", "slab"]


def known(X: Any) -> Any:
    """The dask array with its chunk sizes known, at the price of counting them where they are not."""
    if any(np.isnan(length) for axis in X.chunks for length in axis):
        # Of a copy: the caller's stays as it is.
        return da.Array(X.dask, X.name, X.chunks, meta=X._meta).compute_chunk_sizes()
    return X


def blocks(X: Any, size: int, axis: int) -> tuple[list[Any], np.ndarray]:
    """Delayed blocks of `size` ranges of columns (`axis` 1) or rows (0) of a 2-D dask array, and bounds.

    Chunks may be dense or sparse, split in any way; they are moved from worker to worker. Chunks that are
    `size` whole columns or rows already are not cut anew; else the cuts are those of `split` for a dense
    array of the same shape.
    """
    if X.numblocks[axis] == size and X.numblocks[1 - axis] == 1 and min(X.chunks[axis]) > 0:
        bounds = np.concatenate([[0], np.cumsum(X.chunks[axis], dtype=np.int64)])
    else:
        bounds = _bounds(X.shape, size, axis)
        if not isinstance(X._meta, np.ndarray):
            X = X.map_blocks(_sliceable, dtype=X.dtype, meta=X._meta)
        lengths = tuple(int(length) for length in np.diff(bounds))
        X = X.rechunk((lengths, (X.shape[1],)) if axis == 0 else ((X.shape[0],), lengths))
    return list(X.to_delayed(optimize_graph=False).ravel()), bounds


def _sliceable(block: Any) -> Any:
    """The block, in a format that can be cut: COO, BSR and others cannot."""
    return block.tocsr() if sp.issparse(block) and block.format not in ("csr", "csc") else block


def pieces(v: Any, bounds: np.ndarray | None) -> list[Any]:
    """Delayed arrays of a dask array's rows cut at `bounds`; one that holds all where `bounds` is None."""
    lengths = (v.shape[0],) if bounds is None else tuple(int(length) for length in np.diff(bounds))
    whole = v.rechunk((lengths, *v.shape[1:]))
    return [delayed(np.asarray, pure=True)(block) for block in whole.to_delayed(optimize_graph=False).ravel()]


def _bounds(shape: tuple[int, int], size: int, axis: int) -> np.ndarray:
    bounds = balanced_bounds(np.arange(shape[axis] + 1) * shape[1 - axis], size)
    return np.unique(bounds)  # no empty slabs: dask arrays drop empty chunks


def slab(block: Any, axis: int, start: int, stop: int) -> Slab:
    """What a worker makes of a block: a `Slab` in float32 or float64, a view where it can be.

    Raises:
        ValueError: a block of another shape than its dask array says, or of complex numbers.
    """
    # Looked at here and not in the collection's meta, which may be wrong.
    if hasattr(block, "to_scipy_sparse"):  # pydata sparse
        block = block.to_scipy_sparse()
    if not sp.issparse(block):
        block = np.require(np.asarray(block), requirements="A")  # asarray: products of np.matrix differ
    if block.ndim != 2 or block.shape[axis] != stop - start:
        raise ValueError(
            f"a chunk of X has shape {block.shape}, but its dask array says {stop - start} for axis {axis}: "
            "its chunks or its meta are wrong"
        )
    if block.dtype.kind == "c":
        raise ValueError("Complex data not supported: X is complex")
    if block.dtype not in (np.float32, np.float64):
        block = block.astype(np.float64)
    if sp.issparse(block):
        converted = block.tocsc() if axis == 1 else block.tocsr()
        if not converted.has_canonical_format:
            converted = converted.copy() if converted is block else converted  # the chunk is the caller's
            converted.sum_duplicates()
        block = converted
        return Slab(compress(block, 0, stop - start, axis), axis, start, stop)
    block = block.view()
    block.flags.writeable = False
    return Slab(block, axis, start, stop)
