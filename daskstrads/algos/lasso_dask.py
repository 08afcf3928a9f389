"""Lasso and ElasticNet on dask arrays and DataFrames: shards are made, and stay, on the workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed
from distributed import futures_of, wait
from sklearn.utils.validation import _check_feature_names, _check_n_features

from ..engine.host_dask import Deferred
from ..engine.placement_dask import cluster_ranks, current_client, inside_task
from ..engine.run import check_memory
from ..partition import split_axis
from ..partition.collections_dask import (
    array_of,
    blocks,
    check_numbers,
    is_frame,
    known,
    pieces,
    scipy_block,
    slab,
)
from ..sparse_reduce import tree_sum
from . import inputs
from .lasso import ElasticNet
from .parts_dask import all_finite, is_dense, measured, predicted_block, rank_part, scaled_sum, valid
from .problem import Problem, check_finite

__all__ = ["chunks_named", "computed", "on_its_client", "predicted", "problem_of"]


def on_its_client(X: Any) -> AbstractContextManager[Any]:
    """The Client that holds X's chunks as the current one; nothing changes where none does.

    Raises:
        RuntimeError: that Client is closed.
    """
    clients = {future.client for future in futures_of(X)}
    if len(clients) != 1 or inside_task():
        return nullcontext()
    [client] = clients
    if client.status != "running":
        raise RuntimeError(f"X was persisted with a Client that is {client.status}; persist it again")
    return client.as_current()


@contextmanager
def chunks_named(X: Any, y: Any, sample_weight: Any) -> Iterator[None]:
    """Have an error about a NaN or an infinity name the chunk it is in; a chunk is looked at only then."""
    try:
        yield
    except ValueError as error:
        found = re.match(r"(?:Input )?(X|y|sample_weight) (?:contains|must be finite)", str(error))
        if found is not None:
            given = {"X": X, "y": y, "sample_weight": sample_weight}[found[1]]
            with suppress(Exception):  # then the error stays as it is
                _name_chunk(error, _array(given), valid if given is sample_weight else all_finite)
        raise


def _name_chunk(error: ValueError, array: Any, good_chunk: Callable[[Any], bool]) -> None:
    """Add the first chunk that is not good to an error's text, of those with the column that it names."""
    if array is None:
        return
    chunks, first = array.to_delayed(optimize_graph=False), 0
    column = re.search(r"first in column (\d+)", str(error))
    if column and array.ndim == 2:
        first = int(np.searchsorted(np.cumsum(array.chunks[1]), int(column[1]), side="right"))
        chunks = chunks[:, first : first + 1]
    good = dask.compute(*(delayed(good_chunk)(chunk) for chunk in chunks.ravel()))
    if not all(good):
        row, *others = np.unravel_index(good.index(False), chunks.shape)
        place = (int(row), *(int(other) + first for other in others))
        error.args = (f"{error.args[0]}; it is in chunk {place}", *error.args[1:])


def computed(*given: Any) -> tuple[Any, ...]:
    """What this process can hold, of dask collections and others: arrays of dense or scipy.sparse blocks."""
    found = list(given)
    frames = [place for place, each in enumerate(given) if is_frame(each)]
    rest = [place for place in range(len(given)) if place not in frames]
    for place in rest:
        each = given[place]
        if isinstance(each, da.Array):
            found[place] = da.map_blocks(scipy_block, each, dtype=each.dtype, meta=each._meta)
    for places in filter(None, (frames, rest)):  # apart: Dask warns of graphs of two kinds in one
        for place, value in zip(places, dask.compute(*(found[place] for place in places)), strict=True):
            found[place] = value
    return tuple(found)


def _array(given: Any) -> Any:
    """A dask array, or that of a dask DataFrame or Series; None for anything else."""
    if isinstance(given, da.Array):
        return given
    return array_of(given) if is_frame(given) else None


def problem_of(model: ElasticNet, X: Any, y: Any, sample_weight: Any) -> Problem:
    """What is to be fitted, for a dask array or DataFrame X (n, p) and y (n,) or (n, targets), dask or not.

    Raises:
        TypeError: X or y is another dask collection.
        ValueError: X is not 2-D or holds no numbers, or lengths differ.
    """
    named = X._meta if is_frame(X) else X  # an empty DataFrame has the names
    array = _array(X)
    if array is None:
        raise TypeError(f"X is a dask {type(X).__name__}; fit takes a dask array or DataFrame")
    if array.ndim != 2:
        raise ValueError(f"X must be 2-D, got {array.ndim} dimensions")
    for name, given in ("X", X), ("y", y), ("sample_weight", sample_weight):
        if _array(given) is not None:
            check_numbers(name, given)
    client = current_client()
    if client is None:  # nobody to send it to
        return inputs.problem_of(model, *computed(X, y, sample_weight))
    y, weight = _checked(y, sample_weight)
    X = known(array)
    y = _rows_of("y", y, X.shape, (1, 2))
    column = y.ndim == 2 and y.shape[1] == 1
    if column:
        y = y[:, 0]
    weight = None if weight is None else _rows_of("sample_weight", weight, X.shape, (1,))
    if min(X.shape) == 0:
        raise ValueError(f"X has shape {X.shape}: there is nothing to fit")
    _check_feature_names(model, named, reset=True)
    _check_n_features(model, X, reset=True)
    axis, ranks = split_axis(X.shape), cluster_ranks(client)
    size = min(model.n_shards or ranks, X.shape[axis])
    if not sp.issparse(X._meta):
        try:
            check_memory(model.memory_plan(X.shape, dtype=X.dtype, n_ranks=size))
        except MemoryError:
            # The meta may be wrong, so a block is looked at; sparse ones are checked once they are counted.
            if client.compute(delayed(isinstance)(X.blocks[0, 0].to_delayed().item(), np.ndarray)).result():
                raise
    made, bounds = blocks(X, size, axis)
    size, cuts = len(made), bounds if axis == 0 else None
    places = [(axis, int(start), int(stop)) for start, stop in pairwise(bounds)]
    # In one graph: what y and the weights share with X is computed once.
    others = [*pieces(y, cuts), *([] if weight is None else pieces(weight, cuts))]
    each = size if axis == 0 else 1
    if isinstance(X._meta, np.ndarray) and X.dtype in (np.float32, np.float64):
        # The ranks make their slabs, which are views. Should the meta be wrong, they copy once more.
        told = tree_sum([delayed(is_dense)(entry) for entry in made])
        futures = client.compute([*made, *others, told])
        entries, dtype = X.size, X.dtype
        dense = futures[-1].result()
    else:
        cut = [delayed(slab, pure=True)(block, *place) for block, place in zip(made, places, strict=True)]
        told = tree_sum([delayed(measured)(entry) for entry in cut])
        futures = client.compute([*cut, *others, told])
        entries, single, dense = futures[-1].result()
        dtype = np.float32 if single == size else np.float64
        if not dense:
            check_memory(model.memory_plan(X.shape, int(entries), dtype=dtype, n_ranks=size))
    if 0 < dense < size:
        raise ValueError(
            "X has dense and sparse chunks; make them alike: X.map_blocks(scipy.sparse.csr_matrix)"
        )
    held, others = futures[:size], futures[size:-1]
    wait(futures)
    for future in futures:
        if future.status == "error":
            future.result()  # raises
    # Of columns, all ranks share one future of y: a worker fetches it once.
    target = others[:each] * (size // each)
    weights, scale = _weights(client, others[each:], size)

    def parts(k: int, start: np.ndarray) -> list[Any]:
        warm = start.any()  # zeros need not travel
        return [
            Deferred(
                rank_part,
                (
                    held[rank], places[rank], target[rank], k, weights[rank], scale,
                    (start if axis == 0 else start[bounds[rank] : bounds[rank + 1]]) if warm else None,
                    X.shape,
                ),
            )
            for rank in range(size)
        ]  # fmt: skip

    targets = 1 if y.ndim == 1 else y.shape[1]
    return Problem(
        X.shape, axis, int(entries), dtype, targets, y.ndim == 1, column, weight is not None, parts
    )


def _weights(client: Any, futures: list[Any], size: int) -> tuple[list[Any], tuple[float, float] | None]:
    """A future of weights a rank, and what brings them to a sum of n: (largest, sum of weight / largest)."""
    if not futures:
        return [None] * size, None
    largest = max(client.gather(client.compute([delayed(np.max)(each) for each in futures])))
    total = tree_sum([delayed(scaled_sum)(each, largest) for each in futures])
    return futures * (size // len(futures)), (float(largest), float(client.compute(total).result()))


def predicted(model: ElasticNet, X: Any) -> Any:
    """X b + c as a dask array with X's row chunks: the partitions of a DataFrame, of unknown lengths.

    Raises:
        TypeError: another dask collection.
        ValueError: other features, or features of other names, than in fit.
    """
    whole = _array(X)
    if whole is None:
        raise TypeError(f"X is a dask {type(X).__name__}; predict takes a dask array or DataFrame")
    check_numbers("X", X)
    _check_feature_names(model, X._meta if is_frame(X) else X, reset=False)
    _check_n_features(model, whole, reset=False)
    coef, intercept = model.coef_, model.intercept_
    if whole.numblocks[1] > 1:
        whole = whole.rechunk({1: whole.shape[1]})
    flat = np.ndim(coef) == 1
    return da.map_blocks(
        predicted_block,
        whole,
        coef,
        intercept,
        dtype=np.result_type(whole.dtype, coef.dtype),
        drop_axis=1 if flat else None,
        chunks=None if flat else (whole.chunks[0], (len(coef),)),
        meta=np.empty((0,) if flat else (0, 0), np.result_type(whole.dtype, coef.dtype)),
    )


def _checked(y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """y and the weights, those that are here as arrays: what is wrong with them is said before any work.

    Raises:
        TypeError: y or the weights are no array.
        ValueError: no numbers, complex ones, NaN or infinity; weights that are negative, or all zero.
    """
    found = []
    for name, given in ("y", y), ("sample_weight", sample_weight):
        lazy = _array(given)
        if lazy is not None or (given is None and name == "sample_weight"):
            found.append(lazy)
            continue
        if given is None or hasattr(given, "__dask_graph__") or sp.issparse(given):
            raise TypeError(
                f"{name} is a {type(given).__name__}; with a dask X, fit takes an array, a dask array or a "
                "dask Series (of a sparse matrix: .toarray())"
            )
        array = np.asarray(given)
        if array.dtype.kind == "c":
            raise ValueError(f"Complex data not supported: {name} is complex")
        array = array.astype(np.float64)
        if name == "y" and array.ndim:
            check_finite(array, "y")
        elif name != "y":
            scaled_sum(np.atleast_1d(array), array.max(initial=0.0))
        found.append(array)
    return found[0], found[1]


def _rows_of(name: str, array: Any, shape: tuple[int, int], dimensions: tuple[int, ...]) -> Any:
    """y or the weights as a dask array with a row for each of X's.

    Raises:
        ValueError: another number of dimensions or rows.
    """
    if isinstance(array, da.Array):
        array = known(array)
    elif array.ndim == 0 and name == "sample_weight":
        array = np.full(shape[0], array)
    if array.ndim not in dimensions:
        raise ValueError(f"{name} must have {' or '.join(map(str, dimensions))} dimensions, got {array.ndim}")
    if array.shape[0] != shape[0]:
        raise ValueError(f"X has {shape[0]} rows, {name} has {array.shape[0]}")
    return array if isinstance(array, da.Array) else da.from_array(array, chunks=-1)
