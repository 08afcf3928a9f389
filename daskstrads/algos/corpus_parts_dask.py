"""What workers run for topic models of dask arrays: tasks that need no scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..partition import Slab
from ..partition.collections_dask import scipy_block
from .corpus import counts_of
from .lda_gibbs import CorpusPart, Priors, TopicPiece
from .topics import Topics, fold_in, joined

__all__ = ["counts_block", "folded", "folded_counts", "joined", "lengths_of", "rank_part", "summary"]


def rank_part(slab: Slab, piece: TopicPiece | None, more: bool) -> CorpusPart:
    """A rank's part."""
    return CorpusPart(slab, piece, more)


def counts_block(block: Any, at: tuple[int, ...]) -> sp.csr_array:
    """A block as CSR of int32. Raises: as `counts_of`, with the place of the block."""
    return counts_of(scipy_block(block), f"block {at} of X")


def lengths_of(counts: sp.csr_array) -> np.ndarray:
    """Tokens of every document."""
    return np.diff(np.concatenate([[0], np.cumsum(counts.data, dtype=np.int64)])[counts.indptr])


def summary(piece: TopicPiece) -> tuple:
    """What a fit tells of a rank, and the topics' totals."""
    return piece.passes, piece.drifts, piece.totals


def folded_counts(counts: sp.csr_array, words: Topics, priors: Priors, scored: bool) -> np.ndarray:
    """`fold_in` in one thread."""
    return fold_in(counts, words, priors, 1, scored)


def folded(block: Any, number: int, words: Topics, priors: Priors) -> np.ndarray:
    """Topics of a block's documents: one thread, since a worker runs as many tasks as it has threads."""
    return fold_in(counts_block(block, (number, 0)), words, priors, 1)
