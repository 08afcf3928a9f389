"""Collectives over the ranks of a group: what every rank calls, at the same place in the same order."""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..comm.group import Group, Payload, freeze
from .algorithms import ALGORITHMS, Call, even_bounds, reduce_slice, reduce_stretch
from .selector import IN_ORDER, Link, Seen, choose, union, wants_compression, wants_turns
from .stream import Stream, adopt
from .tree import check_alike, describe, sum_alike

__all__ = [
    "ALGORITHM_NAMES",
    "OPS",
    "allgather",
    "allreduce",
    "broadcast",
    "pass_on",
    "reduce_scatter",
    "rotate",
]

ALGORITHM_NAMES = ("auto", "in_order", *ALGORITHMS)
OPS = ("sum", "max")

MEETING_BYTES = 4096
"""Bytes a rank up to which ranks that share memory meet once and each sum all."""

_SHARED = Link(alpha=2e-5, beta=1e-10, gamma=3e-9)  # ranks of one process: values change hands by reference
_WORTH_MEASURING = 65_536  # bytes of a sum below which the link does not matter enough to be measured
_PROBE = 1 << 17  # bytes; a token bucket lets 64 KB pass unthrottled, so a first one empties it
_REMEMBERED = 256  # kinds of sums whose last size is kept
_SAMPLE = 32


def allreduce(
    value: Any, group: Group, algorithm: str = "auto", op: str = "sum", *, compress: bool | None = None
) -> Any:
    """Sum (or "max": maximum) of every rank's array, number or Stream, on every rank (SparCML, section 5).

    All ranks call it with the same kind, dtype and shape; a Stream may have no entries, absent ones count as
    0. An array comes back as a new writeable array of this rank alone; `value` is not changed. All ranks get
    the same bits, those of `tree_sum`, but for "ring".
    `algorithm`: "recursive_doubling", "split" (by index range, then allgather), "dense_split" (its second
    half dense), "ring", "dense"; "auto" takes the cheapest by a cost model of the network, measured once
    a group, and of the last sum of the same kind; "in_order" only among those whose result is the same.
    `compress`: whether indices travel in as few bytes as they can; None: where it pays.

    Raises:
        TypeError: a value that cannot be summed; names the rank.
        ValueError: an unknown algorithm or op, or values that differ between ranks; names the ranks.
        RuntimeError: the ranks are in different calls.
    """
    if algorithm not in ALGORITHM_NAMES:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHM_NAMES)}")
    _check_op(op)
    own = describe(value, group.rank)
    if group.size == 1:
        return sum_alike([value], op)
    if not isinstance(value, (Stream, np.ndarray)):
        return allreduce(np.asarray(value), group, algorithm, op, compress=compress)[()]
    if algorithm in ("auto", "in_order") and group.shared:
        met = _met(value, own, group, op)
        if met is not None:
            return met
    seen, bounds = _expected(value, own, group, op, algorithm)
    if algorithm in ("auto", "in_order"):
        algorithm = _chosen(own, group, seen, algorithm)
    link = _link(group, seen, own)
    if compress is None:
        compress = own[0] == "Stream" and wants_compression(link, 4)
    careful = wants_turns(link, _message(algorithm, own, seen, group.size))
    call = Call(group, algorithm, op, own, bounds, compress=compress and not group.shared, careful=careful)
    total, entries = ALGORITHMS[algorithm](call, value)
    if isinstance(total, Stream):
        _remember(total, entries, own, group, op)
    return total


def reduce_scatter(value: Any, group: Group, op: str = "sum", *, bounds: Sequence[int] | None = None) -> Any:
    """This rank's part of `allreduce(value)`, in T(P) order: n * rank // P to n * (rank + 1) // P of n.

    An array is cut along axis 0; a Stream keeps its size, with entries in that range alone. `bounds`: P + 1
    ascending offsets from 0 to n to cut at instead, the same on all ranks.

    Raises: as `allreduce`, and ValueError for a number, or bounds that do not fit.
    """
    _check_op(op)
    own = describe(value, group.rank)
    if own[2] == ():
        raise ValueError("reduce_scatter needs an axis to cut; a number has none")
    rows = even_bounds(own[2][0], group.size) if bounds is None else tuple(map(operator.index, bounds))
    if len(rows) != group.size + 1 or (rows[0], rows[-1]) != (0, own[2][0]) or sorted(rows) != [*rows]:
        raise ValueError(
            f"bounds must be {group.size + 1} ascending offsets from 0 to {own[2][0]}, got {[*rows]}"
        )
    if group.size == 1:
        return sum_alike([value], op)
    if isinstance(value, Stream):
        compress = not group.shared and wants_compression(_link(group, None, own), 4)
        call = Call(group, f"reduce_scatter {rows}", op, own, rows, compress=compress)
        stretch, _ = reduce_stretch(call, value)
        if stretch.places is not None:
            return adopt(value.size, stretch.places, stretch.value)
        index = np.arange(stretch.start, stretch.stop, dtype=call.index_dtype)
        return adopt(value.size, index, stretch.value)
    width = math.prod(own[2][1:])
    call = Call(group, f"reduce_scatter {rows}", op, own, tuple(width * row for row in rows))
    flat = np.ascontiguousarray(value).reshape(-1)
    part, _ = reduce_slice(call, flat, 0)
    return part.reshape(rows[group.rank + 1] - rows[group.rank], *own[2][1:])


def allgather(value: Payload, group: Group) -> list[Payload]:
    """Every rank's payload (arrays, numbers, strings, containers of these, Streams), in rank order."""
    return group.gather(value, "allgather")


def broadcast(value: Payload, group: Group, root: int = 0) -> Payload:
    """The payload of rank `root`, on every rank; from rank to rank along a binomial tree.

    Raises:
        ValueError: there is no rank `root`.
    """
    root = operator.index(root)
    if not 0 <= root < group.size:
        raise ValueError(f"there is no rank {root} in a group of {group.size}")
    call = Call(group, f"broadcast from {root}", "copy", ("payload", np.dtype(np.uint8), (0,)))
    place, distance = (group.rank - root) % group.size, 1
    parent, children = None, []
    while distance < group.size:
        if place < distance:
            if place + distance < group.size:
                children.append((root + place + distance) % group.size)
                call.send(children[-1], 0, value)
        elif place < 2 * distance:
            parent = (root + place - distance) % group.size
            value = call.receive(parent)[1]
        distance *= 2
    # Answers: ranks that disagree about the root would else leave messages that nobody reads.
    for child in children:
        call.receive(child)
    if parent is not None:
        call.send(parent, 0, None)
    return value


def rotate(value: Payload, group: Group) -> Payload:
    """The payload of the rank before this one, the last one's on rank 0."""
    return pass_on(value, group)()


def pass_on(value: Payload, group: Group) -> Callable[[], Payload]:
    """`rotate` in two: send this rank's payload at once; what is returned waits for that of the rank before.

    It must be called before this rank takes part in another collective.
    """
    if group.size == 1:
        return lambda: value
    call = Call(group, "rotate", "copy", ("payload", np.dtype(np.uint8), (0,)))
    call.send((group.rank + 1) % group.size, 0, value)
    return lambda: call.receive((group.rank - 1) % group.size)[1]


def _check_op(op: str) -> None:
    if op not in OPS:
        raise ValueError(f"unknown op {op!r}; choose one of {', '.join(OPS)}")


def _met(value: Any, own: tuple, group: Group, op: str) -> Any:
    """The total by one meeting, where all values are small or there are two; None where they are not.

    Threads on two cores, 1 KB a rank, meeting against doubling: 8 ranks 134 against 154 us (streams 360
    against 520), even at 4-8 KB; 2 ranks 16 against 11 us, streams of 8 KB 190 against 250.
    """
    # Streams differ in bytes from rank to rank, so each shows what it has and all decide by the same list.
    shown = None
    if value.nbytes <= MEETING_BYTES or group.size == 2:
        shown = value if isinstance(value, Stream) else freeze(value)
    entries = group.meet((own, shown), f"allreduce by {op}")
    check_alike({rank: entry[0] for rank, entry in enumerate(entries)})
    if all(entry[1] is not None for entry in entries):
        return sum_alike([entry[1] for entry in entries], op)
    return None


def _expected(value: Any, own: tuple, group: Group, op: str, algorithm: str) -> tuple[Seen, Any]:
    """What the sum will have, as far as all ranks know alike, and where to cut it.

    The last sum of the same kind tells; before there is one, the ranks show what they have, unless the
    algorithm does not depend on it.
    """
    size = math.prod(own[2])
    if own[0] != "Stream":
        return Seen(size * group.size, size), None
    known = group.memory.setdefault("seen", {}).get((op, *own))
    if known is not None:
        return known
    if group.size == 2 or algorithm in ("recursive_doubling", "dense"):
        return Seen(0, 0), None
    index = value.index
    sample = None
    if index is not None:
        sample = index[np.linspace(0, index.size - 1, min(_SAMPLE, index.size)).astype(np.int64)]
    entries = Call(group, "allreduce, sizes", op, own).all((value.nnz, sample))
    counts = [entry[0] for entry in entries]
    samples = [entry[1] for entry in entries if entry[1] is not None]
    even = int(union(group.size, sum(counts) / group.size, max(size, 1)))
    bounds = None
    if len(samples) == group.size:
        bounds = _quantiles(np.sort(np.concatenate(samples)), size, group.size)
    return Seen(sum(counts), max(even, *counts)), bounds


def _quantiles(index: np.ndarray, size: int, ranks: int) -> tuple[int, ...] | None:
    """Bounds that give every rank as many of the sorted `index`; None where there are too few."""
    if index.size < 8 * ranks or ranks == 2:
        return None
    inner = index[np.arange(1, ranks) * index.size // ranks].tolist()
    return (0, *inner, size)


def _remember(total: Stream, entries: int, own: tuple, group: Group, op: str) -> None:
    """Keep what all ranks know of this sum, for the next of its kind."""
    kept = group.memory.setdefault("seen", {})
    if len(kept) >= _REMEMBERED:
        kept.clear()  # on all ranks at the same call
    if total.index is None:
        kept[op, *own] = Seen(entries, int(np.count_nonzero(total.value))), None
    else:
        kept[op, *own] = Seen(entries, total.nnz), _quantiles(total.index, total.size, group.size)


def _chosen(own: tuple, group: Group, seen: Seen, algorithm: str) -> str:
    _, dtype, shape = own
    if group.size == 2:
        return "recursive_doubling"
    size = math.prod(shape)
    if own[0] != "Stream":
        among: tuple[str, ...] = IN_ORDER
    elif algorithm == "in_order":
        among = IN_ORDER
    else:
        among = (*IN_ORDER, "dense_split", "dense")
    return choose(among, group.size, size, dtype.itemsize, seen, _link(group, seen, own))


def _message(algorithm: str, own: tuple, seen: Seen, ranks: int) -> float:
    """Bytes of one message of a sum, about."""
    itemsize, values = own[1].itemsize, math.prod(own[2])
    whole = (
        seen.entries / ranks * (itemsize + 2)
        if own[0] == "Stream" and algorithm != "dense"
        else values * itemsize
    )
    return whole if algorithm == "recursive_doubling" else whole / ranks


def _link(group: Group, seen: Seen | None, own: tuple) -> Link:
    """The network between the ranks, measured when a sum is first worth it; the same on all ranks."""
    if group.shared:
        return _SHARED
    known = group.memory.get("link")
    if known is not None:
        return known
    if seen is not None and seen.entries * (own[1].itemsize + 4) < _WORTH_MEASURING:
        return Link(2e-4, 1e-9)
    group.memory["link"] = link = _measured(Call(group, "allreduce, link", "sum", own))
    return link


def _measured(call: Call) -> Link:
    """Probes to the next rank while the previous one probes this; the slowest of all ranks counts."""
    after, before = (call.rank + 1) % call.size, (call.rank - 1) % call.size
    probe = np.zeros(_PROBE, np.uint8)
    probe.flags.writeable = False

    def took(payload: Any) -> float:
        start = time.perf_counter()
        call.swap(after, 0, payload, before)
        return time.perf_counter() - start

    for _ in range(4):  # until all are there
        took(None)
    alpha = statistics.median(took(None) for _ in range(9))
    took(probe)
    beta = max(statistics.median(took(probe) for _ in range(3)) - alpha, 1e-6) / _PROBE
    _adding()  # loads the kernel
    gammas = []
    for _ in range(3):
        start = time.perf_counter()
        _adding()
        gammas.append((time.perf_counter() - start) / 20_000)
    # The slowest rank of all is waited for; its processor may be shared.
    found = call.all((alpha, beta, min(gammas)))
    return Link(*map(max, zip(*found, strict=True)))


def _adding() -> None:
    even = adopt(40_000, np.arange(0, 20_000, 2, dtype=np.uint32), np.ones(10_000, np.float32))
    odd = adopt(40_000, np.arange(1, 20_001, 2, dtype=np.uint32), np.ones(10_000, np.float32))
    _ = even + odd
