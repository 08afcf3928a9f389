"""Data shards of dask arrays and frames: slabs made on the workers from the chunks, moved between workers."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed

from .arrays import Slab, compress
from .balance import balanced_bounds

__all__ = ["array_of", "blocks", "check_numbers", "is_frame", "known", "pieces", "scipy_block", "slab"]


def is_frame(given: Any) -> bool:
    """Whether this is a dask DataFrame or Series."""
    # Of the type: a Delayed has any attribute. A dask scalar has no dimensions.
    return hasattr(type(given), "divisions") and given.ndim in (1, 2)


def check_numbers(name: str, given: Any) -> None:
    """Look at the dtypes of a dask collection, before anything of it is computed.

    Raises:
        ValueError: one that is complex, or no number; of a DataFrame, names the columns.
    """
    frame = is_frame(given)
    if frame and given.ndim == 2:
        dtypes = {f"{column!r} ({dtype})": dtype for column, dtype in given.dtypes.items()}
    else:
        dtypes = {str(given.dtype): given.dtype}
    if any(dtype.kind == "c" for dtype in dtypes.values()):
        raise ValueError(f"Complex data not supported: {name} is complex")
    # An array of objects may hold numbers; a frame's columns of objects are what could not be read as such.
    bad = [told for told, dtype in dtypes.items() if dtype.kind not in ("biuf" if frame else "biufO")]
    if bad:
        raise ValueError(f"{name} must hold numbers, got {', '.join(bad)}; convert or drop that before fit")


def array_of(frame: Any) -> Any:
    """The dask array of a dask DataFrame (rows, columns) or Series (rows,), a chunk a partition.

    float32 where all columns are, else float64; CSR chunks where all columns are sparse. Lengths of chunks
    are unknown.
    """
    flat = frame.ndim == 1
    dtypes = [frame.dtype] if flat else list(frame.dtypes)
    single = all(dtype.kind == "f" and getattr(dtype, "subtype", dtype).itemsize == 4 for dtype in dtypes)
    dtype = np.dtype(np.float32 if single else np.float64)
    shape = (np.nan,) if flat else (np.nan, len(dtypes))
    meta = np.empty((0,) * len(shape), dtype)
    if not flat and _all_sparse(dtypes):
        meta = sp.csr_matrix((0, 0), dtype=dtype)
    made = [delayed(frame_block, pure=True)(part, dtype) for part in frame.to_delayed()]
    return da.concatenate([da.from_delayed(part, shape, meta=meta) for part in made])


def frame_block(part: Any, dtype: np.dtype) -> Any:
    """What a worker makes of a partition: an ndarray, or CSR where all columns are sparse; NA is nan."""
    dtypes = [part.dtype] if part.ndim == 1 else list(part.dtypes)
    if part.ndim == 2 and _all_sparse(dtypes):
        return part.sparse.to_coo().tocsr().astype(dtype)
    missing = {} if all(isinstance(each, np.dtype) for each in dtypes) else {"na_value": np.nan}
    return part.to_numpy(dtype=dtype, **missing)


def _all_sparse(dtypes: list[Any]) -> bool:
    return bool(dtypes) and all(type(dtype).__name__ == "SparseDtype" for dtype in dtypes)


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
        X = X.map_blocks(scipy_block, dtype=X.dtype, meta=X._meta)  # whatever the meta says
        lengths = tuple(int(length) for length in np.diff(bounds))
        X = X.rechunk((lengths, (X.shape[1],)) if axis == 0 else ((X.shape[0],), lengths))
    return list(X.to_delayed(optimize_graph=False).ravel()), bounds


def scipy_block(block: Any) -> Any:
    """The block as an ndarray or in a scipy.sparse format that can be cut: COO, BSR and others cannot."""
    if hasattr(block, "to_scipy_sparse"):  # pydata sparse
        block = block.to_scipy_sparse()
    if sp.issparse(block):
        return block if block.format in ("csr", "csc") else block.tocsr()
    return np.asarray(block)  # products of np.matrix differ


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
    block = scipy_block(block)
    if not sp.issparse(block):
        block = np.require(block, requirements="A")
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
        made = block.tocsc() if axis == 1 else block.tocsr()
        if not made.has_canonical_format:
            made = made.copy() if made is block else made  # the chunk is the caller's
            made.sum_duplicates()
        return Slab(compress(made, 0, stop - start, axis, owned=made is not block), axis, start, stop)
    block = block.view()
    block.flags.writeable = False
    return Slab(block, axis, start, stop)
