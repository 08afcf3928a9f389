"""Documents as counts of words: what can be fitted, and each rank's share of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..partition import Slab
from ..partition.arrays import compress
from ..partition.balance import balanced_bounds
from .lda_gibbs import CorpusPart, Priors, TopicPiece
from .problem import MemoryPlan, check_sparse
from .word_blocks import blocks_per_rank

__all__ = ["Problem", "corpus_plan", "counts_of", "problem_of_counts", "ranks_of", "token_bounds"]

_TOKENS_PER_RANK = 200_000  # below which a second thread costs more than it saves
_MOST = 2**31 - 1  # tokens of a word in a document, and of a word on a rank


class Problem(NamedTuple):
    """Documents x words, their tokens in all, and the ranks' parts: `parts(pieces, more)`, see
    `CorpusPart`.
    """

    shape: tuple[int, int]
    tokens: int
    size: int
    parts: Callable[[Sequence[Any] | None, bool], list[Any]]


def counts_of(X: Any, where: str = "X") -> sp.csr_array:
    """Counts (documents, words) as CSR, int32; what the caller has is not changed.

    Raises:
        ValueError: entries that are no whole numbers, negative, NaN, infinite or above 2^31 - 1; a matrix
            that points outside itself.
    """
    if sp.issparse(X):
        X = X if X.format in ("csr", "csc") else X.tocsr()
        check_sparse(X, True)
        X = X.tocsr()
    else:
        X = np.asarray(X)
        X = sp.csr_array(X.astype(np.float32) if X.dtype == np.float16 else X)  # scipy has none of 16 bits
    values = X.data[: X.indptr[-1]]
    bad = _bad(values)
    if bad is not None:
        what, place = bad
        row = int(np.searchsorted(X.indptr, place, side="right")) - 1
        raise ValueError(
            f"{where} must hold counts, whole numbers from 0 to {_MOST}; {what} {values[place]!s} "
            f"in row {row}, column {X.indices[place]}"
        )
    made = sp.csr_array((values.astype(np.int32), X.indices[: len(values)], X.indptr), shape=X.shape)
    if not made.data.all():
        made = made.copy()
        made.eliminate_zeros()
    return made


def _bad(values: np.ndarray) -> tuple[str, int] | None:
    """What is wrong with the first entry that is no count, and where it is."""
    if values.dtype.kind not in "biuf":
        raise ValueError(f"X must hold counts, got {values.dtype}")
    if values.dtype.kind == "b" or not len(values):
        return None
    low, high = values.min(), values.max()
    whole = values.dtype.kind in "iu" or bool((values == np.floor(values)).all())
    if low >= 0 and high <= _MOST and whole:
        return None
    tests = [("there is", ~np.isfinite(values))] if values.dtype.kind == "f" else []
    tests += [("there is", values < 0), ("there is", values > _MOST)]
    if values.dtype.kind == "f":
        tests.append(("there is the fraction", values != np.floor(values)))
    for what, wrong in tests:
        if wrong.any():
            return what, int(np.argmax(wrong))
    return None


def ranks_of(n_shards: int | None, documents: int, tokens: int, available: Callable[[], int]) -> int:
    """How many ranks a fit takes."""
    size = int(n_shards or 0) or max(1, tokens // _TOKENS_PER_RANK)
    if size > 1 and not n_shards:
        size = min(size, available())
    return max(1, min(size, documents))


def token_bounds(lengths: np.ndarray, size: int) -> list[int]:
    """Where to cut documents of these lengths (tokens) into `size` ranges."""
    return balanced_bounds(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), size).tolist()


def problem_of_counts(X: sp.csr_array, size: int) -> Problem:
    """Counts that this process holds, in `size` ranges of documents with as many tokens each."""
    sums = np.concatenate([[0], np.cumsum(X.data, dtype=np.int64)])[X.indptr]
    bounds = token_bounds(np.diff(sums), size)
    slabs = [Slab(compress(X, start, stop, 0, True), 0, start, stop) for start, stop in pairwise(bounds)]

    def parts(pieces: Sequence[Any] | None, more: bool) -> list[Any]:
        held = pieces or [None] * size
        if pieces and not isinstance(pieces[0], TopicPiece):  # Futures of them
            from . import corpus_dask

            held = corpus_dask.at_hand(pieces) or held
            if not isinstance(held[0], TopicPiece):
                return [corpus_dask.deferred(*each, more) for each in zip(slabs, held, strict=True)]
        return [CorpusPart(*each, more) for each in zip(slabs, held, strict=True)]

    return Problem(X.shape, int(sums[-1]), size, parts)


def corpus_plan(shape: tuple[int, int], tokens: int, priors: Priors, ranks: int) -> MemoryPlan:
    """What each rank of a fit needs, if every token is the only one of its word and topic in its document."""
    documents, words = shape
    cell = 4 if priors.components <= 2**16 else 8
    own = -(-tokens // ranks)
    data = own * (4 + 4) + 8 * -(-documents // ranks)
    # Tokens: their document and topic, and a cell of it; words: order, tokens here, and a share of the rows.
    state = own * (4 + cell // 2 + cell) + words * (4 + 4) + (tokens * cell + 4 * words) // ranks
    state += -(-documents // ranks) * (4 + 8 + cell)
    # Topics: totals and this rank's own; the sampler's weights, counts and marks of one word.
    state += (16 + 18) * priors.components
    exchange = 2 * (tokens * cell + 4 * words) // (ranks * blocks_per_rank(priors.components, tokens, ranks))
    exchange += 16 * priors.components
    return MemoryPlan(ranks, 0, int(data), int(state), int(exchange) + 8 * words)
