"""Documents in dask arrays: every rank's share is made, and stays, on a worker, and so does the model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask import delayed
from distributed import Future, futures_of, wait
from sklearn.utils.validation import _check_feature_names, _check_n_features

from ..engine.host_dask import Deferred
from ..engine.placement_dask import cluster_ranks, current_client
from ..engine.run import check_memory, collected
from ..partition.balance import balanced_bounds
from ..partition.collections_dask import known, scipy_block
from . import corpus_parts_dask as tasks
from .corpus import Problem, corpus_plan, problem_of_counts, token_bounds
from .lasso_dask import on_its_client
from .lda_gibbs import Priors
from .rating_parts_dask import block_row, rows_of, stacked
from .ratings_dask import futures_let_go, gathered

__all__ = [
    "at_hand",
    "computed_counts",
    "deferred",
    "folded",
    "on_its_client",
    "problem_of",
    "summaries",
    "transformed",
]


def deferred(slab: Any, piece: Any, more: bool) -> Deferred:
    """A rank's part, made where its slab and its piece of the model are."""
    return Deferred(tasks.rank_part, (slab, piece, more))


def at_hand(pieces: Sequence[Any] | None) -> Sequence[Any] | None:
    """The model's pieces as a run can have them: those that its workers do not hold are fetched.

    Raises:
        RuntimeError: they are gone.
    """
    if not pieces or not isinstance(pieces[0], Future):
        return pieces
    client = current_client()
    if all(piece.client is client and piece.status == "finished" for piece in pieces):
        return pieces
    return collected(pieces)


def computed_counts(X: Any) -> sp.csr_array:
    """Counts of a dask array as this process holds them."""
    return sp.vstack([sp.hstack(row, format="csr") for row in dask.compute(*_block_rows(_checked(X)))])


def problem_of(model: Any, X: Any, priors: Priors, go_on: bool) -> Problem:
    """What is to be fitted; its ranks' slabs are made, and stay, on the workers.

    Raises:
        TypeError: another dask collection. ValueError: as `corpus.counts_of`, with the block's place.
        MemoryError: a fit that the workers' limits do not allow.
    """
    X = known(_checked(X))
    _check_feature_names(model, X, reset=not go_on)
    _check_n_features(model, X, reset=not go_on)
    if 0 in X.shape:
        raise ValueError(f"X has no {'documents' if X.shape[0] == 0 else 'words'}: its shape is {X.shape}")
    client = current_client()
    if client is None:
        counts = computed_counts(X)
        return problem_of_counts(counts, model._n_ranks(X.shape, int(counts.data.sum(dtype=np.int64)), go_on))
    with futures_let_go():
        pieces = client.compute([delayed(block_row, pure=True)(row) for row in _block_rows(X)])
        lengths = gathered(client, [delayed(tasks.lengths_of, pure=True)(piece) for piece in pieces])
        size = len(model.shards_) if go_on else min(int(model.n_shards or cluster_ranks(client)), X.shape[0])
        tokens = int(sum(each.sum(dtype=np.int64) for each in lengths))
        check_memory(corpus_plan(X.shape, tokens, priors, size))
        heights = np.concatenate([[0], np.cumsum(X.chunks[0])]).tolist()
        made = []
        for start, stop in pairwise(token_bounds(np.concatenate(lengths), size)):
            cut = [
                delayed(rows_of, pure=True)(piece, max(start - low, 0), min(stop, high) - low)
                for piece, (low, high) in zip(pieces, pairwise(heights), strict=True)
                if low < stop and high > start
            ]
            made.append(delayed(stacked, pure=True)(cut, 0, start, stop, X.shape[1]))
        slabs = client.compute(made)
        wait(slabs)
        for slab in slabs:
            if slab.status == "error":
                slab.result()  # raises

    def parts(held: Sequence[Any] | None, more: bool) -> list[Any]:
        held = at_hand(held) or [None] * size
        return [deferred(*each, more) for each in zip(slabs, held, strict=True)]

    return Problem(X.shape, tokens, size, parts)


def _checked(X: Any) -> Any:
    if not isinstance(X, da.Array):
        raise TypeError(f"documents are a dask {type(X).__name__}; fit takes a dask array (see read_corpus)")
    if X.ndim != 2:
        raise ValueError(f"X must be 2-D (documents x words), got {X.ndim} dimensions")
    return X


def _block_rows(X: Any) -> list[list[Any]]:
    blocks = X.to_delayed(optimize_graph=False)
    return [
        [delayed(tasks.counts_block, pure=True)(block, (i, j)) for j, block in enumerate(row)]
        for i, row in enumerate(blocks)
    ]


def summaries(shards: Sequence[Any]) -> list[tuple]:
    """Of every rank's piece its passes, drifts and totals; the pieces stay on their workers."""
    if not isinstance(shards[0], Future):
        return [tasks.summary(piece) for piece in shards]
    client = shards[0].client
    return gathered(client, [delayed(tasks.summary)(shard) for shard in shards])


def folded(model: Any, counts: sp.csr_array, scored: bool) -> np.ndarray:
    """`topics.fold_in` of counts that this process holds, where the model is: on the workers.

    Raises:
        RuntimeError: the model's Client is closed, or a worker was lost with its share.
    """
    client = model.shards_[0].client
    if client.status != "running":
        raise RuntimeError(
            f"the model's shards are on a cluster whose Client is {client.status}; use the model while it is "
            "open, or save() it there and load() it here"
        )
    bounds = balanced_bounds(counts.indptr, min(cluster_ranks(client), max(counts.shape[0], 1)))
    pieces = [counts[start:stop] for start, stop in pairwise(bounds.tolist())]
    words = delayed(tasks.joined)(list(model.shards_))
    try:
        rows = client.scatter(pieces, hash=False)
        return np.concatenate(
            gathered(
                client, [delayed(tasks.folded_counts)(each, words, model._priors, scored) for each in rows]
            )
        )
    except (CancelledError, OSError) as error:  # a worker that goes closes its connections
        raise RuntimeError(f"a worker was lost with its share of the model: {error}") from error


def transformed(model: Any, X: Any) -> Any:
    """Topics of the documents of a dask array: lazy, a chunk a chunk of rows.

    The words are put together where the workers hold them, not here.
    """
    X = _checked(X)
    _check_n_features(model, X, reset=False)
    if X.numblocks[1] > 1:
        X = X.map_blocks(scipy_block, dtype=X.dtype, meta=X._meta).rechunk({1: X.shape[1]})
    held = isinstance(model.shards_[0], Future) and futures_of(model.shards_)
    words = delayed(tasks.joined)(list(model.shards_)) if held else delayed(model._topics(), traverse=False)
    rows = [
        delayed(tasks.folded)(block, i, words, model._priors)
        for i, block in enumerate(X.to_delayed(optimize_graph=False).ravel())
    ]
    shape = len(model._totals)
    return da.concatenate(
        [
            da.from_delayed(row, (height, shape), dtype=np.float64)
            for row, height in zip(rows, X.chunks[0], strict=True)
        ]
    )
