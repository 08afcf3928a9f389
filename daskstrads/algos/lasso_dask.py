"""Lasso and ElasticNet on dask arrays: shards are made, and stay, on the workers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
from ..partition.collections_dask import blocks, known, pieces, slab
from ..sparse_reduce import tree_sum
from .lasso import ElasticNet
from .parts_dask import measured, predicted_block, rank_part, scaled_sum
from .problem import Problem

__all__ = ["on_its_client", "predicted", "problem_of"]


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


def problem_of(model: ElasticNet, X: Any, y: Any, sample_weight: Any) -> Problem:
    """What is to be fitted, for a dask array X (n, p) and y (n,) or (n, targets), dask or not.

    Raises:
        TypeError: X is another dask collection.
        ValueError: X is not 2-D, or lengths differ.
    """
    if not isinstance(X, da.Array):
        kind = type(X).__name__
        raise TypeError(f"X is a dask {kind}; fit takes a dask array: X.to_dask_array(lengths=True)")
    if X.ndim != 2:
        raise ValueError(f"X must be 2-D, got shape {X.shape}")
    client = current_client()
    if client is None:  # nobody to send it to
        return model._problem(*dask.compute(X, y, sample_weight))
    X = known(X)
    y = _rows_of("y", y, X.shape, (1, 2))
    weight = None if sample_weight is None else _rows_of("sample_weight", sample_weight, X.shape, (1,))
    if min(X.shape) == 0:
        raise ValueError(f"X has shape {X.shape}: there is nothing to fit")
    _check_feature_names(model, X, reset=True)
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
        computed = client.compute([*made, *others])
        held, others = computed[:size], computed[size:]
        entries, dtype = X.size, X.dtype
    else:
        cut = [delayed(slab, pure=True)(block, *place) for block, place in zip(made, places, strict=True)]
        told = tree_sum([delayed(measured)(entry) for entry in cut])
        computed = client.compute([*cut, *others, told])
        held, others = computed[:size], computed[size:-1]
        entries, single, dense = computed[-1].result()
        dtype = np.float32 if single == size else np.float64
        if 0 < dense < size:
            raise ValueError(
                "X has dense and sparse chunks; make them alike: X.map_blocks(scipy.sparse.csr_matrix)"
            )
        if not dense:
            check_memory(model.memory_plan(X.shape, int(entries), dtype=dtype, n_ranks=size))
    wait(computed)
    for future in computed:
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
    return Problem(X.shape, axis, int(entries), dtype, targets, y.ndim == 1, weight is not None, parts)


def _weights(client: Any, futures: list[Any], size: int) -> tuple[list[Any], tuple[float, float] | None]:
    """A future of weights a rank, and what brings them to a sum of n: (largest, sum of weight / largest)."""
    if not futures:
        return [None] * size, None
    largest = max(client.gather(client.compute([delayed(np.max)(each) for each in futures])))
    total = tree_sum([delayed(scaled_sum)(each, largest) for each in futures])
    return futures * (size // len(futures)), (float(largest), float(client.compute(total).result()))


def predicted(model: ElasticNet, X: Any) -> Any:
    """X b + c as a dask array with X's row chunks."""
    _check_n_features(model, X, reset=False)
    coef, intercept = model.coef_, model.intercept_
    whole = X.rechunk({1: X.shape[1]})
    flat = np.ndim(coef) == 1
    return da.map_blocks(
        predicted_block,
        whole,
        coef,
        intercept,
        dtype=np.result_type(X.dtype, coef.dtype),
        drop_axis=1 if flat else None,
        chunks=None if flat else (whole.chunks[0], (len(coef),)),
        meta=np.empty((0,) if flat else (0, 0), np.result_type(X.dtype, coef.dtype)),
    )


def _rows_of(name: str, given: Any, shape: tuple[int, int], dimensions: tuple[int, ...]) -> Any:
    """y or the weights as a dask array with a row for each of X's.

    Raises:
        TypeError: something that is no array.
        ValueError: another number of dimensions or rows.
    """
    lazy = hasattr(given, "__dask_graph__") and not isinstance(given, da.Array)
    if given is None or lazy or sp.issparse(given):
        raise TypeError(
            f"{name} is a {type(given).__name__}; with a dask array X, fit takes an array or a dask array "
            "(of a dask Series: .to_dask_array(lengths=True); of a sparse matrix: .toarray())"
        )
    array = known(given) if isinstance(given, da.Array) else np.asarray(given)
    if array.ndim == 0 and name == "sample_weight":
        array = np.full(shape[0], array)
    if array.ndim not in dimensions:
        raise ValueError(f"{name} must have {' or '.join(map(str, dimensions))} dimensions, got {array.ndim}")
    if array.shape[0] != shape[0]:
        raise ValueError(f"X has {shape[0]} rows, {name} has {array.shape[0]}")
    return array if isinstance(array, da.Array) else da.from_array(array, chunks=-1)
