"""Words in blocks: which are in one, and how their topics' counts are stored."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

__all__ = ["Block", "blocks_per_rank", "check_most", "unpacked", "widened", "words_by_block"]

_MOST = 2**31 - 1  # tokens of a word
_FEW, _MANY = 2, 16  # blocks a rank
_ROUND = 500  # tokens a round and rank
_DRIFT = 0.007  # of the totals, as a share of all tokens, in a round of the first sweep; later half as much


class Block(NamedTuple):
    """Word counts of some words, a row each: how many topics (lengths), and these with their counts (cells).

    The first `wide` rows have two cells a topic, for counts that half a cell cannot hold.
    """

    number: int
    wide: int
    lengths: np.ndarray
    cells: np.ndarray


def unpacked(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Topics and counts of a block's rows, one row after the other."""
    from . import corpus_kernels as kernels

    ends = np.cumsum(block.lengths, dtype=np.int64)
    topics, counts = (np.empty(ends[-1] if len(ends) else 0, np.int32) for _ in range(2))
    kernels.unpack(block.lengths, block.cells, block.wide, ends - block.lengths, topics, counts)
    return topics, counts


def widened(block: Block, wide: int) -> Block:
    """The block with two cells a topic in its first `wide` rows, at least."""
    if wide <= block.wide:
        return block
    half = 4 * block.cells.itemsize
    topics, counts = (each.astype(block.cells.dtype) for each in unpacked(block))
    first = int(block.lengths[:wide].sum(dtype=np.int64))
    pairs = np.stack([topics[:first], counts[:first]], 1).ravel()
    cells = np.concatenate([pairs, topics[first:] | counts[first:] << half])
    return Block(block.number, wide, block.lengths, cells)


def check_most(tokens: np.ndarray, words: np.ndarray) -> None:
    """Raise ValueError where a word has more tokens than its counts can say."""
    if tokens.max(initial=0) > _MOST:
        place = int(tokens.argmax())
        raise ValueError(
            f"there are {tokens[place]} tokens of word {words[place]}; a model counts up to {_MOST} of each"
        )


def words_by_block(frequencies: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Words in the order of their blocks and, in these, frequency; and where each block begins."""
    from . import corpus_kernels as kernels

    # numpy sorts 16 bits by their digits: a fraction of the time for tens of millions of words.
    order = np.argsort((2**16 - 1 - np.minimum(frequencies, 2**16 - 1)).astype(np.uint16), kind="stable")
    most = int((frequencies >= 2**16 - 1).sum())
    order[:most] = order[:most][np.argsort(-frequencies[order[:most]], kind="stable")]
    block_of = np.empty(len(order), np.uint16)
    kernels.spread(frequencies[order], np.zeros(blocks, np.int64), block_of)
    inside = np.argsort(block_of, kind="stable")
    rows = np.concatenate([[0], np.cumsum(np.bincount(block_of, minlength=blocks))])
    return order[inside].astype(np.int32), rows


def blocks_per_rank(n_topics: int, tokens: int, size: int) -> int:
    """Blocks a rank, a function of the problem: so many that totals drift little within a round.

    Tokens that move change the totals as a random walk does: n of them by about sqrt(2 n K) in all. The other
    ranks move n = tokens (size - 1) / (blocks size^2) in a round. A round of too few tokens takes longer for
    the exchange than for them.
    """
    if size == 1:
        return 1
    wanted = 2 * n_topics * (size - 1) / (max(tokens, 1) * size * size * _DRIFT**2)
    most = min(_MANY, tokens // (size * size * _ROUND))
    return max(min(math.ceil(wanted), most), _FEW)
