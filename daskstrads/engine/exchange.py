"""What a round's exchanges do with the values that push returned."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..comm.group import freeze
from ..sparse_reduce import Stream, tree_sum
from .program import Gather, Rotate, Scatter, Sum

__all__ = ["exchange"]

_KINDS = (Sum, Scatter, Gather, Rotate)


def exchange(sent: Any, group: Any, checksum: int = 0) -> tuple[Any, list[int]]:
    """Carry out what push returned, in one meeting; what this rank receives, and all ranks' checksums.

    Totals are summed over the fixed tree T(P) (`sparse_reduce.tree`), so they do not depend on who
    carries the values.

    Raises:
        TypeError: push returned something that is no exchange.
        RuntimeError: the ranks returned different exchanges.
    """
    wanted = _as_exchanges(sent)
    label = "push(" + ", ".join(type(entry).__name__ for entry in wanted) + ")"
    entries = group.meet((checksum, [_payload(entry) for entry in wanted]), label)
    received = tuple(
        _receive(entry, [values[1][place] for values in entries], group) for place, entry in enumerate(wanted)
    )
    checksums = [values[0] for values in entries]
    if sent is None:
        return None, checksums
    return (received if isinstance(sent, tuple) else received[0]), checksums


def _as_exchanges(sent: Any) -> list[Any]:
    if sent is None:
        return []
    return [
        entry if isinstance(entry, _KINDS) else _as_sum(entry)
        for entry in (sent if isinstance(sent, tuple) else (sent,))
    ]


def _as_sum(value: Any) -> Sum:
    if isinstance(value, np.ndarray | np.generic | Stream | int | float):
        return Sum(value)
    raise TypeError(
        f"push must return Sum, Scatter, Gather, Rotate, an array, a Stream, a tuple of these or None, "
        f"not {type(value).__name__}"
    )


def _payload(entry: Any) -> Any:
    value = entry.value
    if isinstance(entry, Rotate):
        return _copied(value)  # the receiver owns it
    if isinstance(entry, Sum | Scatter):
        if isinstance(value, Stream):
            return value
        return freeze(np.asarray(value))
    return value if isinstance(value, Stream) else freeze(value)


def _copied(value: Any) -> Any:
    """`value` with every array replaced by a writeable copy that its receiver owns."""
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if isinstance(value, tuple):
        entries = [_copied(entry) for entry in value]
        return value._make(entries) if hasattr(value, "_make") else tuple(entries)
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return value if isinstance(value, Stream) else freeze(value)


def _receive(entry: Any, values: list[Any], group: Any) -> Any:
    if isinstance(entry, Gather):
        return values
    if isinstance(entry, Rotate):
        return values[group.rank - 1]
    if isinstance(entry, Sum):
        return tree_sum(values)
    start, stop = _piece(entry, values[group.rank], group)
    return tree_sum([value[start:stop] for value in values])


def _piece(entry: Scatter, value: Any, group: Any) -> tuple[int, int]:
    if isinstance(value, Stream):
        raise TypeError("Scatter takes arrays; turn the Stream into an array with .dense() first")
    if value.ndim == 0:
        raise ValueError("Scatter needs an array with an axis 0 to cut, got a scalar")
    bounds = entry.bounds
    if bounds is None:
        bounds = [len(value) * place // group.size for place in range(group.size + 1)]
    if len(bounds) != group.size + 1 or bounds[0] != 0 or bounds[-1] != len(value):
        raise ValueError(
            f"Scatter bounds must be {group.size + 1} offsets from 0 to {len(value)}, got {list(bounds)}"
        )
    return int(bounds[group.rank]), int(bounds[group.rank + 1])
