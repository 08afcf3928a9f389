"""Ratings in dask collections: sparse row blocks, and DataFrames of triples with ids of their own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed
from distributed import wait

from ..engine.host_dask import Deferred
from ..engine.placement_dask import cluster_ranks, current_client
from ..engine.run import check_memory
from ..partition.balance import balanced_bounds
from ..partition.collections_dask import is_frame, known, scipy_block
from ..sparse_reduce import tree_sum
from . import rating_parts_dask as tasks
from . import ratings as plain
from .factors import split_axis_of
from .lasso_dask import on_its_client
from .ratings import Problem, merged_ids, triples_of

__all__ = [
    "computed_ratings", "futures_let_go", "gathered", "on_its_client", "problem_of", "transformed",
]  # fmt: skip


def computed_ratings(X: Any) -> Any:
    """Ratings of a dask collection as this process holds them: a CSR matrix, or a DataFrame."""
    if is_frame(X):
        return X.compute()
    return sp.vstack([sp.hstack(row, format="csr") for row in dask.compute(*_block_rows(_checked(X)))])


def problem_of(model: Any, X: Any) -> Problem:
    """What is to be factorised: its ranks' slabs are made, and stay, on the workers.

    Raises:
        TypeError: another dask collection, or dense blocks.
        ValueError: as `ratings.problem_of`; with the block's or the partition's trouble.
        MemoryError: a fit that the workers' limits do not allow.
    """
    client = current_client()
    if client is None:
        return plain.problem_of(model, computed_ratings(X))
    with futures_let_go():
        return _problem_on(client, model, X)


@contextmanager
def futures_let_go() -> Iterator[None]:
    """Raise a twin of an error. The future of the task that failed keeps the error itself, and that its
    traceback, whose frames keep the other futures, and they the ratings on the workers.
    """
    try:
        yield
    except Exception as error:
        twin = copy.copy(error)
        trace, error.__traceback__ = error.__traceback__, None
        raise twin.with_traceback(trace) from None


def _problem_on(client: Any, model: Any, X: Any) -> Problem:
    made = _of_frame(model, X, client) if is_frame(X) else _of_array(X, client)
    shape, user_ids, item_ids, counts, moments, slabs = made
    entries, mean, spread = moments
    axis = split_axis_of(shape)
    size = min(model.n_shards or cluster_ranks(client), max(shape))
    check_memory(model.memory_plan(shape, entries, n_ranks=size))
    offsets = np.concatenate([[0], np.cumsum(counts[axis])])
    bounds = balanced_bounds(offsets, size)
    held = client.compute(slabs(axis, bounds.tolist()))
    wait(held)
    for future in held:
        if future.status == "error":
            future.result()  # raises
    other = counts[1 - axis]

    def parts(offset: float, start: Any, out: Any) -> list[Any]:
        rows, columns = start or (None, None)
        return [
            Deferred(
                tasks.rank_part,
                (future, other, offset, None if rows is None else rows[first:stop], columns),
            )
            for future, (first, stop) in zip(held, pairwise(bounds.tolist()), strict=True)
        ]

    users, items = counts
    return Problem(shape, axis, entries, mean, spread, user_ids, item_ids, users, items, parts)


def _checked(X: Any) -> Any:
    """A dask array of ratings. Raises TypeError for another collection, ValueError for other dimensions."""
    if not isinstance(X, da.Array):
        raise TypeError(f"ratings are a dask {type(X).__name__}; fit takes a dask array or DataFrame")
    if X.ndim != 2:
        raise ValueError(f"ratings must be 2-D (users x items), got {X.ndim} dimensions")
    return X


def _block_rows(X: Any) -> list[list[Any]]:
    blocks = X.to_delayed(optimize_graph=False)
    return [
        [delayed(tasks.rating_block, pure=True)(block, (i, j)) for j, block in enumerate(row)]
        for i, row in enumerate(blocks)
    ]


def gathered(client: Any, wanted: list[Any]) -> list[Any]:
    """What delayed values become; after an error nothing of them stays on the workers."""
    futures = client.compute(wanted)
    try:
        return client.gather(futures)
    except Exception:
        for future in futures:  # the client's loop may still hold them
            future.release()
        raise


def _summed(client: Any, pieces: list[Any]) -> tuple[tuple[np.ndarray, np.ndarray], tuple[int, float, float]]:
    """Counts of rows and columns, and (entries, mean, spread), of pieces of rows one below the other."""
    told = client.compute([delayed(tasks.told_of, pure=True)(piece) for piece in pieces])
    rows = gathered(client, [delayed(tasks.first_of, pure=True)(each, 0) for each in told])
    columns, sums = (
        client.compute(tree_sum([delayed(tasks.first_of, pure=True)(each, place) for each in told])).result()
        for place in (1, 2)
    )
    entries = int(sums[0])
    if not entries:
        raise ValueError("there are no ratings")
    mean = float(sums[1] / entries)
    spread = float(max(sums[2] / entries - mean**2, 0.0) ** 0.5)
    counts = np.concatenate(rows).astype(np.int64), np.asarray(columns).astype(np.int64)
    return counts, (entries, mean, spread)


def _of_array(X: Any, client: Any) -> tuple:
    X = known(_checked(X))
    if min(X.shape) == 0:
        raise ValueError(f"there are no ratings in a matrix of shape {X.shape}")
    pieces = client.compute([delayed(tasks.block_row, pure=True)(row) for row in _block_rows(X)])
    counts, moments = _summed(client, pieces)
    heights = np.concatenate([[0], np.cumsum(X.chunks[0])]).tolist()
    if len(counts[0]) != X.shape[0]:
        raise ValueError(f"the blocks have {len(counts[0])} rows, their dask array says {X.shape[0]}")

    def slabs(axis: int, bounds: list[int]) -> list[Any]:
        found = []
        for start, stop in pairwise(bounds):
            if axis == 1:
                cut = [delayed(tasks.columns_of, pure=True)(piece, start, stop) for piece in pieces]
            else:
                touching = [
                    (piece, low, high)
                    for piece, (low, high) in zip(pieces, pairwise(heights), strict=True)
                    if low < stop and high > start
                ]
                cut = [
                    delayed(tasks.rows_of, pure=True)(piece, max(start - low, 0), min(stop, high) - low)
                    for piece, low, high in touching
                ]
            found.append(delayed(tasks.stacked, pure=True)(cut, axis, start, stop, X.shape[1 - axis]))
        return found

    users, items = (np.arange(length) for length in X.shape)
    return X.shape, users, items, counts, moments, slabs


def _of_frame(model: Any, frame: Any, client: Any) -> tuple:
    names = model._names()
    absent = [name for name in names if name not in frame.columns]
    if absent:
        triples_of(frame._meta, names)  # raises
    triples = client.compute(
        [delayed(tasks.partition_triples, pure=True)(part, names) for part in frame.to_delayed()]
    )
    user_ids, item_ids = (
        _all_ids(client, [delayed(tasks.unique_of, pure=True)(each, place) for each in triples])
        for place in (0, 1)
    )
    if not len(user_ids):
        raise ValueError("there are no ratings in the DataFrame")
    shape = len(user_ids), len(item_ids)
    axis = split_axis_of(shape)
    both = client.scatter([user_ids, item_ids], hash=False)
    coded = client.compute([delayed(tasks.coded_triples, pure=True)(each, *both) for each in triples])
    # Pairs may be rated in several partitions, so ratings are only counted once they are together.
    rough = client.compute(
        tree_sum([delayed(tasks.counted, pure=True)(each, axis, shape[axis]) for each in coded])
    )
    size = min(model.n_shards or cluster_ranks(client), max(shape))
    bounds = balanced_bounds(np.concatenate([[0], np.cumsum(rough.result())]), size).tolist()
    cut = [delayed(tasks.cut_triples, pure=True, nout=size)(each, axis, bounds) for each in coded]
    pieces = client.compute(
        [
            delayed(tasks.joined, pure=True)([each[rank] for each in cut], axis, start, stop, shape[1 - axis])
            for rank, (start, stop) in enumerate(pairwise(bounds))
        ]
    )
    counts, moments = _summed(client, pieces)

    def slabs(_: int, new_bounds: list[int]) -> list[Any]:
        found = []
        for start, stop in pairwise(new_bounds):
            parts = [
                delayed(tasks.rows_of, pure=True)(piece, max(start - low, 0), min(stop, high) - low)
                for piece, (low, high) in zip(pieces, pairwise(bounds), strict=True)
                if low < stop and high > start
            ]
            found.append(delayed(tasks.side_slab, pure=True)(parts, axis, start, stop))
        return found

    return shape, user_ids, item_ids, (counts if axis == 0 else counts[::-1]), moments, slabs


def _all_ids(client: Any, found: list[Any]) -> np.ndarray:
    """The different ids of all partitions, sorted; partitions without rows have ids of no kind."""
    kept = [ids for ids in gathered(client, found) if len(ids)]
    if len({ids.dtype.kind for ids in kept}) == 1:
        return np.unique(np.concatenate(kept))
    try:
        return functools.reduce(merged_ids, kept, np.empty(0, np.int64))
    except TypeError:
        kinds = ", ".join(sorted({str(ids.dtype) for ids in kept}))
        raise TypeError(f"ids must be of one kind, those of the partitions are {kinds}") from None


def transformed(model: Any, X: Any) -> Any:
    """Factors of the users of a dask array of ratings: lazy, a chunk a chunk of rows."""
    X = _checked(X)
    model._check_items(X)
    if X.numblocks[1] > 1:
        X = X.map_blocks(scipy_block, dtype=X.dtype, meta=X._meta).rechunk({1: X.shape[1]})
    k, dtype = model._n_features_out, model.user_factors_.dtype
    lean = copy.copy(model)  # new users need nothing of those it knows
    for name in "user_factors_", "user_bias_", "user_ids_", "user_counts_":
        setattr(lean, name, getattr(model, name)[:0])
    return X.map_blocks(
        _transformed_block, lean, dtype=dtype, chunks=(X.chunks[0], (k,)), meta=np.empty((0, 0), dtype)
    )


def _transformed_block(block: Any, model: Any) -> np.ndarray:
    return model.transform(tasks.rating_block(block))
