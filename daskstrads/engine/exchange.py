"""What a round's exchanges do with the values that push returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..comm.group import Group, freeze, rebuild
from ..sparse_reduce import Stream, allreduce, pass_on, reduce_scatter, rotate, tree_sum
from ..sparse_reduce.tree import check_alike, describe
from .passing import Passing
from .program import Gather, Pass, Rotate, Scatter, Sum

__all__ = ["as_exchanges", "check_bounds", "copied", "exchange", "label_of", "mirrored", "payload"]

_MEETING_BYTES = 65_536  # larger sums are doubled instead: fewer bytes arrive at each rank
_KINDS = (Sum, Scatter, Gather, Rotate, Pass)
_NUMBERS = np.generic | int | float | complex


def exchange(
    sent: Any,
    group: Group,
    head: Any,
    compare: Callable[[list[Any]], None],
    passing: Passing | None = None,
) -> Any:
    """Carry out what push returned; what this rank receives.

    `head` (small) travels with it; `compare` is given all ranks' heads before anything else is looked at.
    `passing`: this rank's, from round to round.

    Totals are summed over the fixed tree T(P) (`sparse_reduce.tree`), so they do not depend on who
    carries the values. Ranks that share memory meet once for everything. Otherwise blocks that rotate and
    large sums, which would reach more ranks than need them, go through the collectives.

    Raises:
        TypeError: push returned something that is no exchange, or a value that it cannot carry.
        ValueError: values that differ in kind, dtype or shape, or bounds that do not fit.
        RuntimeError: the ranks returned different exchanges.
    """
    passing = passing or Passing()
    passing.settle()
    wanted = as_exchanges(sent)
    alone = [not group.shared and _travels_alone(entry, group.size) for entry in wanted]
    label = "push(" + ", ".join(map(_told, wanted, alone)) + ")"
    payloads = [
        _announced(entry, group) if apart else payload(entry, group.size)
        for entry, apart in zip(wanted, alone, strict=True)
    ]
    entries = group.meet((head, payloads), label)
    compare([values[0] for values in entries])
    received: list[Any] = [None] * len(wanted)
    # What is passed on comes last: nobody reads it before the next round, and it would be in others' way.
    for place in sorted(range(len(wanted)), key=lambda place: isinstance(wanted[place], Pass)):
        entry, apart = wanted[place], alone[place]
        values = [payloads[place] for _, payloads in entries]
        if isinstance(entry, Pass):
            received[place] = _passed(entry, values, group, passing, apart)
        else:
            received[place] = _carry(entry, values, group) if apart else _receive(entry, values, group)
    return mirrored(sent, tuple(received))


def _passed(entry: Pass, values: list[Any], group: Any, passing: Passing, apart: bool) -> list[Any]:
    if apart:
        arrives = pass_on(entry.value, group)
        passing.expect(lambda: copied(arrives()))
        if entry.last:
            passing.settle()
        return passing.taken()
    return passed(passing, values[group.rank - 1], entry.last)


def passed(passing: Passing, block: Any, last: bool) -> list[Any]:
    """What a rank receives of a `Pass` when the block of this round is there already."""
    before = passing.taken()
    passing.blocks.append(block)
    return before + passing.taken() if last else before


def mirrored(sent: Any, received: tuple) -> Any:
    """`received`, one entry an exchange, in the form of what push returned."""
    if sent is None:
        return None
    return received if isinstance(sent, tuple) else received[0]


def _travels_alone(entry: Any, size: int) -> bool:
    if isinstance(entry, Rotate | Pass):
        return size > 1
    if isinstance(entry, Scatter):
        return size > 1 and isinstance(entry.value, np.ndarray) and entry.value.nbytes > _MEETING_BYTES
    if not isinstance(entry, Sum) or size <= 2 or not isinstance(entry.value, np.ndarray | Stream):
        return False
    # A Stream counts as if it were dense: its own bytes differ from rank to rank, and all must agree.
    return entry.value.size * entry.value.dtype.itemsize > _MEETING_BYTES


def _told(entry: Any, alone: bool) -> str:
    # Ranks must agree about the way as well: part of the label that a meeting compares.
    return label_of(entry) + (" apart" if alone else "")


def label_of(entry: Any) -> str:
    """What ranks compare of an exchange."""
    return type(entry).__name__ + (" last" if isinstance(entry, Pass) and entry.last else "")


def _announced(entry: Any, group: Any) -> Any:
    """What the others are told of a value that travels alone."""
    return _bounds(entry, entry.value, group.size) if isinstance(entry, Scatter) else None


def _carry(entry: Any, announced: list[Any], group: Any) -> Any:
    if isinstance(entry, Sum):
        return allreduce(entry.value, group, "in_order")
    if isinstance(entry, Scatter):
        check_bounds(announced)
        return reduce_scatter(entry.value, group, bounds=announced[group.rank])
    return copied(rotate(entry.value, group))


def as_exchanges(sent: Any) -> list[Any]:
    """What push returned, as a list of exchanges. Raises: as `exchange`."""
    if sent is None:
        return []
    wanted = [
        entry if isinstance(entry, _KINDS) else _as_sum(entry)
        for entry in (sent if isinstance(sent, tuple) else (sent,))
    ]
    if sum(isinstance(entry, Pass) for entry in wanted) > 1:
        raise TypeError("push returned more than one Pass; a round has one, whose value may be a tuple")
    return wanted


def _as_sum(value: Any) -> Sum:
    if isinstance(value, np.ndarray | Stream | _NUMBERS):
        return Sum(value)
    raise TypeError(
        f"push must return Sum, Scatter, Gather, Rotate, Pass, an array, a Stream, a tuple of these or None, "
        f"not {type(value).__name__}"
    )


def payload(entry: Any, size: int) -> Any:
    """What travels of an exchange: nothing that its sender can still write to."""
    value = entry.value
    if isinstance(entry, Rotate | Pass):
        return copied(value)  # the receiver owns it
    if isinstance(entry, Scatter):
        return _pieces(entry, size)
    if isinstance(entry, Sum):
        return value if isinstance(value, Stream | _NUMBERS) else _array(value, "Sum")
    return _frozen(value)


def _array(value: Any, exchange: str) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.hasobject:
        kind = "an array of objects" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise TypeError(
            f"{exchange} takes an array of numbers, a number or a Stream; {kind} cannot be exchanged"
            + ("; Stream.from_scipy makes one of a sparse vector" if hasattr(value, "tocoo") else "")
        )
    return freeze(array)


def _frozen(value: Any) -> Any:
    """`freeze` that lets Streams, which are read-only, pass at any depth."""
    if isinstance(value, Stream):
        return value
    return rebuild(value, _frozen) if isinstance(value, tuple | list | dict) else freeze(value)


def copied(value: Any) -> Any:
    """`value` with every array replaced by a writeable copy that its receiver owns."""
    if isinstance(value, Stream):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            freeze(value)  # raises
        return value.copy(order="K")
    return rebuild(value, copied) if isinstance(value, tuple | list | dict) else freeze(value)


def _receive(entry: Any, values: list[Any], group: Any) -> Any:
    if isinstance(entry, Gather):
        return values
    if isinstance(entry, Rotate):
        return values[group.rank - 1]
    if isinstance(entry, Sum):
        return tree_sum(values)
    arrays, bounds = zip(*values, strict=True)
    check_alike({rank: describe(array, rank) for rank, array in enumerate(arrays)})
    check_bounds(bounds)
    start, stop = bounds[0][group.rank : group.rank + 2]
    return tree_sum([array[start:stop] for array in arrays])


def check_bounds(bounds: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError when the ranks cut a Scatter at different places; names the ranks."""
    if any(entry != bounds[0] for entry in bounds):
        told = "; ".join(f"rank {rank}: {list(entry)}" for rank, entry in enumerate(bounds))
        raise ValueError(f"Scatter bounds must be the same on all ranks ({told})")


def _pieces(entry: Scatter, size: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """The array to cut, and where."""
    if isinstance(entry.value, Stream):
        raise TypeError("Scatter takes arrays; turn the Stream into an array with .dense() first")
    array = _array(entry.value, "Scatter")
    return array, _bounds(entry, array, size)


def _bounds(entry: Scatter, array: np.ndarray, size: int) -> tuple[int, ...]:
    """Where to cut. ValueError when the array cannot be cut there."""
    if array.ndim == 0:
        raise ValueError("Scatter needs an array with an axis 0 to cut, got a scalar")
    if entry.bounds is None:
        return tuple(len(array) * place // size for place in range(size + 1))
    bounds = tuple(int(offset) for offset in entry.bounds)
    if len(bounds) != size + 1 or bounds[0] != 0 or bounds[-1] != len(array) or sorted(bounds) != [*bounds]:
        raise ValueError(
            f"Scatter bounds must be {size + 1} ascending offsets from 0 to {len(array)}, got {list(bounds)}"
        )
    return bounds
