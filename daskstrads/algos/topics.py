"""A topic model's words: the blocks of all ranks put together, and what they say of documents."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..partition.balance import balanced_bounds
from .lda_gibbs import Priors, TopicPiece
from .word_blocks import Block

__all__ = ["TopWords", "Topics", "fold_in", "joined", "top_words"]

_TOLERANCE, _MOST = 1e-2, 100  # of a document's tokens; and passes over it


class Topics(NamedTuple):
    """Counts n_kw of a model, by word: word w has `topics`, `counts` [offsets[w]:offsets[w + 1]]; n_k."""

    offsets: np.ndarray
    topics: np.ndarray
    counts: np.ndarray
    totals: np.ndarray

    def matrix(self) -> sp.csc_array:
        """The same as a sparse matrix (topics, words)."""
        shape = len(self.totals), len(self.offsets) - 1
        return sp.csc_array((self.counts, self.topics, self.offsets), shape=shape)


def joined(pieces: Sequence[TopicPiece]) -> Topics:
    """The words of all ranks' pieces."""
    from . import corpus_kernels as kernels

    held = [
        (Block(*block), words)
        for piece in pieces
        for block, words in zip(piece.blocks, piece.words, strict=True)
    ]
    lengths = np.zeros(sum(len(words) for _, words in held), np.int64)
    for block, words in held:
        lengths[words] = block.lengths
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    topics, counts = (np.empty(offsets[-1], np.int32) for _ in range(2))
    for block, words in held:
        kernels.unpack(block.lengths, block.cells, block.wide, offsets[words], topics, counts)
    made = sp.csc_array((counts, topics, offsets), shape=(len(pieces[0].totals), len(lengths)))
    made.sort_indices()
    return Topics(offsets, made.indices, made.data, pieces[0].totals)


def fold_in(X: sp.csr_array, model: Topics, priors: Priors, threads: int, scored: bool = False) -> np.ndarray:
    """theta (documents, topics) of counts X, the model held; or, `scored`, log p (documents,).

    Scores are of document completion: the first of each two of a document's tokens tell its topics, and those
    the probability of the others; and the other way round.
    """
    from . import topics_kernels as kernels

    components, alpha, beta = priors
    documents, words = X.shape
    inverse = (1.0 / (model.totals + words * beta)).astype(np.float32)
    theta = np.empty((0 if scored else documents, components))
    scores = np.zeros((2, documents if scored else 0))

    def work(bounds: tuple[int, int]) -> None:
        start, stop = bounds
        given = X.indptr[start : stop + 1].astype(np.int64), X.indices, X.data
        for half in (1, 2) if scored else (0,):
            kernels.fold(
                *given, half, *model[:3], inverse, alpha, beta, _TOLERANCE, _MOST,
                theta[start:stop], scores[max(half - 1, 0), start:stop],
            )  # fmt: skip

    pieces = list(pairwise(balanced_bounds(X.indptr, max(1, min(4 * threads, documents // 64))).tolist()))
    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            work(piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, pieces))
    return scores.sum(0) if scored else theta


class TopWords:
    """The words of every topic that it has most of; prints itself as a table, in a notebook as well.

    `words`: (topics, n) names, or column numbers; where a topic has fewer words, "" or -1. `counts`:
    (topics, n) tokens. `shares`: (topics,) of all tokens.
    """

    def __init__(self, words: np.ndarray, counts: np.ndarray, totals: np.ndarray):
        self.words, self.counts = words, counts
        self.shares = totals / max(int(totals.sum()), 1)

    def __repr__(self) -> str:
        width = len(str(len(self.words) - 1))
        lines = [f"{'topic':>{max(width, 5)}}  share  words"]
        lines += [
            f"{topic:>{max(width, 5)}} {100 * share:5.1f}%  {self._told(topic)}"
            for topic, share in enumerate(self.shares)
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{topic}</td><td>{100 * share:.1f} %</td><td style='text-align: left'>"
            f"{escape(self._told(topic))}</td></tr>"
            for topic, share in enumerate(self.shares)
        )
        return f"<table><tr><th>topic</th><th>share</th><th>words</th></tr>{rows}</table>"

    def _told(self, topic: int) -> str:
        kept = self.counts[topic] > 0
        return " ".join(str(word) for word in self.words[topic][kept])


def top_words(model: Topics, n: int, names: Any) -> TopWords:
    """Every topic's `n` most frequent words, by `names` (words,) where there are some."""
    from . import topics_kernels as kernels

    shape = len(model.totals), min(n, len(model.offsets) - 1)
    words, counts = np.empty(shape, np.int64), np.empty(shape, np.int64)
    kernels.strongest_words(model.offsets, model.topics, model.counts, words, counts)
    if names is None:
        return TopWords(words, counts, model.totals)
    kept = np.asarray(names)
    if kept.dtype.kind not in "OSUi":
        kept = kept.astype(object)
    named = kept[np.maximum(words, 0)]
    named[words < 0] = -1 if kept.dtype.kind == "i" else ""
    return TopWords(named, counts, model.totals)
