"""A round's exchanges as values that merge pairwise, for ranks that never meet: tasks carry them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..comm.group import freeze, rebuild
from ..sparse_reduce import Stream, tree_sum
from ..sparse_reduce.tree import add, check_alike, describe
from .exchange import as_exchanges, check_bounds, copied, label_of, mirrored, passed, payload
from .passing import Passing
from .program import Gather, Pass, Rotate, Scatter, Sum

__all__ = ["Parcel", "blocks", "cut", "merge", "opened", "parcel"]


_PASSED = ("Rotate", "Pass", "Pass last")


class Parcel(NamedTuple):
    """What some ranks exchange: `heads` by rank, and of every exchange what they add up to.

    A head is (checksum, labels, descriptions, bounds); a rotating block is not in here (`blocks`).
    """

    heads: dict[int, tuple]
    values: tuple[Any, ...] | None  # None: the heads do not fit


def parcel(sent: Any, rank: int, size: int, checksum: int) -> Parcel:
    """One rank's share of a round.

    Raises: as `exchange`.
    """
    wanted = as_exchanges(sent)
    values: list[Any] = []
    described: list[Any] = []
    bounds: list[Any] = []
    for entry in wanted:
        value: Any = None if isinstance(entry, Rotate | Pass) else payload(entry, size)
        where = None
        if isinstance(entry, Scatter):
            value, where = value
        described.append(describe(value, rank) if isinstance(entry, Sum | Scatter) else None)
        values.append({rank: value} if isinstance(entry, Gather) else value)
        bounds.append(where)
    labels = tuple(map(label_of, wanted))
    return Parcel({rank: (checksum, labels, tuple(described), tuple(bounds))}, tuple(values))


def blocks(sent: Any) -> list[Any]:
    """What the rank passes on to the next one."""
    return [copied(entry.value) for entry in as_exchanges(sent) if isinstance(entry, Rotate | Pass)]


def merge(left: Parcel, right: Parcel) -> Parcel:
    """Both, added in this order; neither is changed."""
    heads = left.heads | right.heads
    alike = next(iter(left.heads.values()))[1:] == next(iter(right.heads.values()))[1:]
    if left.values is None or right.values is None or not alike:
        return Parcel(heads, None)
    labels = next(iter(heads.values()))[1]
    pairs = zip(labels, left.values, right.values, strict=True)
    return Parcel(heads, tuple(_merged(label, *pair) for label, *pair in pairs))


def _merged(label: str, left: Any, right: Any) -> Any:
    if label == "Gather":
        return left | right
    if label in _PASSED:
        return None
    return add(left, right) if isinstance(left, np.ndarray | Stream) else tree_sum([left, right])


def cut(total: Parcel, rank: int) -> Parcel:
    """What `rank` needs of the total: of a Scatter, its own piece."""
    if total.values is None:
        return total
    _, labels, _, bounds = total.heads[rank]
    values = tuple(
        value[slice(*where[rank : rank + 2])] if label == "Scatter" else value
        for label, value, where in zip(labels, total.values, bounds, strict=True)
    )
    return Parcel(total.heads, values)


def opened(
    total: Parcel, arrived: list[Any], sent: Any, compare: Callable[[list[int]], None], passing: Passing
) -> Any:
    """What a rank receives of a round: `total` is cut for it, `arrived` are the previous rank's blocks.

    Raises: as `exchange`.
    """
    heads = [total.heads[rank] for rank in sorted(total.heads)]
    compare([head[0] for head in heads])
    labels = [head[1] for head in heads]
    if any(entry != labels[0] for entry in labels):
        what = ", ".join(f"rank {rank}: push({', '.join(entry)})" for rank, entry in enumerate(labels))
        raise RuntimeError(f"the ranks met for different exchanges ({what})")
    for place, label in enumerate(labels[0]):
        if label in ("Sum", "Scatter"):
            check_alike({rank: head[2][place] for rank, head in enumerate(heads)})
        if label == "Scatter":
            check_bounds([head[3][place] for head in heads])
    assert total.values is not None
    waiting = iter(arrived)
    received = []
    for label, value in zip(labels[0], total.values, strict=True):
        if label in _PASSED:
            block = copied(next(waiting))  # Dask may hold it for somebody else
            received.append(block if label == "Rotate" else passed(passing, block, label == "Pass last"))
        elif label == "Gather":
            received.append([_read_only(value[rank]) for rank in sorted(value)])
        else:
            received.append(tree_sum([value]))
    return mirrored(sent, tuple(received))


def _read_only(value: Any) -> Any:
    if isinstance(value, Stream):
        return value
    if isinstance(value, np.ndarray) and (value.flags.writeable or not value.flags.aligned):
        # It was neither before it travelled; numpy adds up unaligned arrays in another order.
        value = value.view() if value.flags.aligned else value.copy()
        value.flags.writeable = False
        return value
    return rebuild(value, _read_only) if isinstance(value, tuple | list | dict) else freeze(value)
