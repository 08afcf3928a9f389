"""Which algorithm a sum should take: a cost model in seconds, pure functions of what all ranks know alike.

alpha seconds a message that is waited for, mu one more message on its way, beta a byte, gamma an entry or
value that is added (SparCML, section 5; the union is estimated from what earlier sums had).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .tree import fold
from .wire import index_bytes

__all__ = [
    "IN_ORDER",
    "Link",
    "Seen",
    "choose",
    "cost",
    "crowd",
    "union",
    "wants_compression",
    "wants_turns",
]

IN_ORDER = ("recursive_doubling", "split")
"""Algorithms whose result, representation included, is the same: a program may take either."""

_TURN = 1.5e-3  # seconds
_QUEUE = 1 << 14  # bytes that the queue of any switch takes
_CODEC = 6e-9  # seconds an entry: to narrow an index and back


class Link(NamedTuple):
    """Seconds a message waited for, a byte and an added entry: the largest of all ranks."""

    alpha: float
    beta: float
    gamma: float = 5e-9

    @property
    def mu(self) -> float:
        """Seconds of one more message while others are on their way."""
        return 0.4 * self.alpha


class Seen(NamedTuple):
    """What the last sum of this kind had: stored entries of all ranks together, and of the total."""

    entries: int
    union: int


def crowd(ranks: int, seen: Seen, size: int) -> float:
    """How many positions the ranks seem to draw theirs from: those that explain the union seen.

    Solves union = M (1 - (1 - k/M)^P) for M; inf where ranks have nothing in common. SparCML's estimate has
    M = `size`.
    """
    k = seen.entries / ranks
    if ranks < 2 or seen.entries == 0:
        return float(size)
    if seen.union >= 0.999 * seen.entries:
        return math.inf
    low, high = max(k, seen.union / ranks, 1.0), 1e3 * max(seen.entries, size)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if union(ranks, k, middle) < seen.union else (low, middle)
    return high


def union(ranks: float, k: float, positions: float) -> float:
    """Expected entries of the sum of `ranks` vectors of k entries each: M (1 - (1 - k/M)^ranks)."""
    if k <= 0:
        return 0.0
    if math.isinf(positions):
        return ranks * k
    return positions * -math.expm1(ranks * math.log1p(-min(k / positions, 1.0 - 1e-12)))


def wants_compression(link: Link, width: int) -> bool:
    """Whether narrow indices save more time on the wire than they take; `width`: bytes of a plain one.

    They save 2 to 3 bytes of 4.
    """
    return 0.6 * width * link.beta > _CODEC


def wants_turns(link: Link, nbytes: float) -> bool:
    """Whether ranks whose messages have so many bytes should take turns: one takes longer than asking."""
    return nbytes * link.beta > _TURN and nbytes >= _QUEUE


def cost(
    algorithm: str, ranks: int, size: int, itemsize: int, k: float, positions: float, link: Link
) -> float:
    """Seconds that a sum of streams takes.

    `ranks` streams of `size` values of `itemsize` bytes, k entries each, drawn from `positions` (`crowd`).
    """
    alpha, beta, gamma = link
    compress = wants_compression(link, 4)
    width = 4 if size <= 2**32 else 8

    def wire(entries: float, span: float) -> float:
        """Seconds for that many entries in a stretch of `span` positions, at most all its values."""
        each = itemsize + index_bytes(entries / max(span, 1.0), width, compress)
        return beta * min(each * entries, itemsize * span) + (_CODEC * entries if compress else 0.0)

    total, share = union(ranks, k, positions), (ranks - 1) / ranks
    if algorithm == "recursive_doubling":
        nodes, pairs = fold(ranks)
        seconds, held = 0.0, 1
        if pairs:
            seconds += 2 * alpha + wire(k, size) + wire(total, size) + gamma * 2 * k
            held = 2
        while nodes > 1:
            have = union(min(held, ranks), k, positions)
            seconds += alpha + wire(have, size) + gamma * min(2 * have, size)
            held, nodes = 2 * held, nodes // 2
        return seconds
    messages = 2 * alpha + 2 * (ranks - 2) * link.mu
    spread = wire(share * k, share * size)
    levels = math.log2(ranks)
    adding = gamma * min(levels * k, levels * size)
    if algorithm == "split":
        return messages + spread + adding + wire(share * total, share * size) + 0.5 * gamma * total
    if algorithm == "dense_split":
        return messages + spread + adding + beta * itemsize * share * size + 0.2 * gamma * size
    if algorithm == "dense":
        return messages + 2 * beta * itemsize * share * size + 0.5 * gamma * size
    if algorithm == "ring":
        partial = [union(held, k, positions) / ranks for held in range(1, ranks)]
        summing = sum(wire(entries, size / ranks) + 2 * gamma * entries for entries in partial)
        return 2 * (ranks - 1) * alpha + summing + wire(share * total, share * size)
    raise ValueError(f"no cost is known of {algorithm!r}")


def choose(among: tuple[str, ...], ranks: int, size: int, itemsize: int, seen: Seen, link: Link) -> str:
    """The cheapest, the first of equals."""
    k, positions = seen.entries / ranks, crowd(ranks, seen, size)
    return min(among, key=lambda name: cost(name, ranks, size, itemsize, k, positions, link))
