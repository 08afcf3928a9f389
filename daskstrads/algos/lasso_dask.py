"""Lasso and ElasticNet on dask arrays: shards are made, and stay, on the workers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed
from distributed import wait
from sklearn.utils.validation import _check_n_features

from ..engine.host_dask import Deferred
from ..engine.run import check_memory
from ..engine.session_dask import cluster_ranks, current_client
from ..partition import split_axis
from ..partition.collections_dask import blocks, known, pieces, slab
from ..sparse_reduce import tree_sum
from .lasso import ElasticNet
from .parts_dask import measured, predicted_block, rank_part
from .problem import Problem

__all__ = ["predicted", "problem_of"]


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
    X, y, weight = known(X), _collection(y), None if sample_weight is None else _collection(sample_weight)
    for name, each in (("y", y), ("sample_weight", weight)):
        if each is not None and each.shape[0] != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows, {name} has {each.shape[0]}")
    if min(X.shape) == 0:
        raise ValueError(f"X has shape {X.shape}: there is nothing to fit")
    _check_n_features(model, X, reset=True)
    axis = split_axis(X.shape)
    size = min(model.n_shards or cluster_ranks(client), X.shape[axis])
    if not sp.issparse(X._meta):
        try:
            check_memory(model.memory_plan(X.shape, dtype=X.dtype, n_ranks=size))
        except MemoryError:
            # The meta may be wrong, so a block is looked at; sparse ones are checked once they are counted.
            if client.compute(delayed(isinstance)(X.blocks[0, 0].to_delayed().item(), np.ndarray)).result():
                raise
    made, bounds = blocks(X, size, axis)
    places = [(axis, int(start), int(stop)) for start, stop in pairwise(bounds)]
    if isinstance(X._meta, np.ndarray) and X.dtype in (np.float32, np.float64):
        # The ranks make their slabs, which are views. Should the meta be wrong, they copy once more.
        held, entries, dtype = client.compute(made), X.size, X.dtype
        wait(held)
    else:
        cut = [delayed(slab, pure=True)(block, *place) for block, place in zip(made, places, strict=True)]
        *held, told = client.compute([*cut, tree_sum([delayed(measured)(each) for each in cut])])
        entries, single, dense = told.result()
        dtype = np.float32 if single == len(made) else np.float64
        if not dense:
            check_memory(model.memory_plan(X.shape, int(entries), dtype=dtype, n_ranks=len(made)))
    cuts = bounds if axis == 0 else None
    total = None
    weights: list[Any] = [None] * len(made)
    if weight is not None:
        weights = client.compute(pieces(weight, cuts))
        total = float(tree_sum([delayed(np.sum)(piece) for piece in weights]).compute())
        weights *= len(made) // len(weights)

    def parts(k: int, start: np.ndarray) -> list[Any]:
        warm = start.any()  # zeros need not travel
        target = client.compute(pieces(y if y.ndim == 1 else y[:, k], cuts))
        target *= len(made) // len(target)  # one future for all: a worker fetches it once
        return [
            Deferred(
                rank_part,
                (
                    held[rank], places[rank], target[rank], weights[rank],
                    (start if axis == 0 else start[bounds[rank] : bounds[rank + 1]]) if warm else None,
                    X.shape, total,
                ),
            )
            for rank in range(len(made))
        ]  # fmt: skip

    targets = 1 if y.ndim == 1 else y.shape[1]
    return Problem(X.shape, axis, int(entries), dtype, targets, y.ndim == 1, weight is not None, parts)


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
        dtype=coef.dtype,
        drop_axis=1 if flat else None,
        chunks=None if flat else (whole.chunks[0], (len(coef),)),
        meta=np.empty((0,) if flat else (0, 0), coef.dtype),
    )


def _collection(v: Any) -> Any:
    return known(v) if isinstance(v, da.Array) else da.from_array(np.asarray(v), chunks=-1)
