"""Collectives: the sum of every rank's array or Stream, on every rank, in T(P) order."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comm.group import Group, freeze
from .stream import Stream
from .tree import add, check_alike, describe, fold, sum_alike, tree_sum

__all__ = ["ALGORITHMS", "OPS", "allreduce"]

MEETING_BYTES = 4096
"""Bytes a rank up to which ranks that share memory meet once and each sum all: measured, see `_auto`."""


def allreduce(value: Any, group: Group, algorithm: str = "auto", op: str = "sum") -> Any:
    """Sum of every rank's array, number or Stream, on every rank; bits as `tree_sum` (SparCML, section 5).

    All ranks call it with the same kind, dtype and shape; a Stream may have no entries. An array comes back
    as a new writeable array of this rank alone; `value` is not changed.
    `algorithm`: "recursive_doubling" (section 5.3), or "auto", which never changes the bits.

    Raises:
        TypeError: a value that cannot be summed; names the rank.
        ValueError: an unknown algorithm or op, or values that differ between ranks; names the ranks.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(sorted(ALGORITHMS))}")
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}; choose one of {', '.join(OPS)}")
    own = describe(value, group.rank)
    if group.size == 1:
        return tree_sum([value])
    if isinstance(value, (Stream, np.ndarray)):
        return ALGORITHMS[algorithm](value, own, group)
    return ALGORITHMS[algorithm](np.asarray(value), own, group)[()]


def _auto(value: Stream | np.ndarray, own: tuple, group: Group) -> Any:
    """One meeting where three or more ranks share memory and values are small, else recursive doubling.

    Threads on two cores, 1 KB a rank, meeting against doubling: 8 ranks 134 against 154 us (streams 360
    against 520), even at 4-8 KB; 2 ranks 16 against 11 us.
    """
    if group.size == 2 or not group.shared:
        return _recursive_doubling(value, own, group)
    # Streams differ in bytes from rank to rank, so each shows what it has and all decide by the same list.
    shown = None
    if value.nbytes <= MEETING_BYTES:
        shown = value if isinstance(value, Stream) else freeze(value)
    entries = group.meet((own, shown), "allreduce")
    check_alike({rank: entry[0] for rank, entry in enumerate(entries)})
    if all(entry[1] is not None for entry in entries):
        return sum_alike([entry[1] for entry in entries])
    return _recursive_doubling(value, own, group)


def _recursive_doubling(value: Stream | np.ndarray, own: tuple, group: Group) -> Any:
    """Fold to a power of two, exchange and add at distance 1, 2, 4, ..., unfold (SparCML, section 5.3)."""
    rank = group.rank
    nodes, pairs = fold(group.size)
    total, node = value, rank - pairs
    if rank < 2 * pairs:
        if rank % 2:
            _send(group, rank - 1, value)
            return _private(_receive(group, rank - 1, own))
        total, node = add(value, _receive(group, rank + 1, own)), rank // 2
    distance = 1
    while distance < nodes:
        other = node ^ distance
        peer = 2 * other if other < pairs else other + pairs
        # A total made here is never written again; the caller's own array is, and is copied on its way.
        _send(group, peer, total if total is value else _final(total))
        received = _receive(group, peer, own)
        # Lower node first: every rank adds in one order, so totals agree bit for bit.
        total = add(total, received) if node < other else add(received, total)
        distance *= 2
    if rank < 2 * pairs:
        _send(group, rank + 1, total)
    return total


def _send(group: Group, to: int, value: Stream | np.ndarray) -> None:
    group.send(to, value.to_parts() if isinstance(value, Stream) else value)


def _receive(group: Group, source: int, own: tuple) -> Stream | np.ndarray:
    payload = group.recv(source)
    received = Stream.from_parts(payload) if isinstance(payload, tuple) else payload
    found = describe(received, source)
    if found != own:
        check_alike({group.rank: own, source: found})
    return received


def _final(total: Stream | np.ndarray) -> Stream | np.ndarray:
    """`total`, made read-only, so that it travels by reference."""
    if not isinstance(total, Stream):
        total.flags.writeable = False
    return total


def _private(total: Stream | np.ndarray) -> Stream | np.ndarray:
    """`total` as what the caller may write to; a Stream is read-only for all."""
    return total if isinstance(total, Stream) or total.flags.writeable else total.copy()


ALGORITHMS = {"auto": _auto, "recursive_doubling": _recursive_doubling}
OPS = ("sum",)
