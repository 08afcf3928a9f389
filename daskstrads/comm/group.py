"""The Group protocol: what a rank may ask of the others, whatever carries the bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

__all__ = ["Aborted", "Group", "Payload", "freeze", "immutable", "note", "rebuild", "unshared"]

Payload = Any
"""None, numbers, strings, ndarrays, and tuples, lists or dicts of these: sent without pickling."""


class Aborted(RuntimeError):  # noqa: N818 - a state, not the error: the root cause is its __cause__
    """Another rank failed, so this one was woken up to end; the root cause is `__cause__`."""


@runtime_checkable
class Group(Protocol):
    """The ranks that run together, seen from one of them.

    Arrays are copied on their way, so that no rank sees what another writes later. One that nobody can
    write to (it and all that it is a view of have `flags.writeable` False) may travel by reference.
    """

    rank: int
    size: int
    shared: bool  # whether the ranks share memory, so that a meeting costs no copies
    memory: dict[Any, Any]  # what collectives keep from call to call; a rank's own
    desk: Any  # where plans arrive that a scheduler deals, and results may stay; None: nowhere

    def send(self, to: int, payload: Payload) -> None:
        """Hand `payload` to rank `to`; never waits."""

    def recv(self, source: int) -> Payload:
        """Next payload from rank `source`, in the order sent; waits up to the group's timeout."""

    def gather(self, payload: Payload, label: str = "gather") -> list[Payload]:
        """Every rank's payload, in rank order, on every rank; `label` must be the same on all of them."""

    def meet(self, payload: Any, label: str) -> list[Any]:
        """`gather` without the copy, Streams allowed: for payloads that nobody will write to again."""


def note(error: BaseException, text: str) -> None:
    """Add a note to `error`, if it takes one."""
    with contextlib.suppress(Exception):  # frozen dataclasses do not
        error.add_note(text)


def immutable(array: np.ndarray) -> bool:
    """Whether nobody can write to `array`: read-only, and so is everything it is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    if base is None:
        return True
    try:
        return memoryview(base).readonly
    except TypeError:
        return False


_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)


def freeze(payload: Payload) -> Payload:
    """`payload` with every array that somebody can write to replaced by a read-only copy.

    Raises:
        TypeError: something that cannot be exchanged; names its type.
    """
    if isinstance(payload, np.ndarray):
        if payload.dtype.hasobject or isinstance(payload, np.ma.MaskedArray):
            kind = "a masked array" if isinstance(payload, np.ma.MaskedArray) else "an array of objects"
            raise TypeError(f"{kind} cannot be exchanged between ranks; use a plain numeric array")
        if immutable(payload):
            return payload
        payload = payload.copy(order="K")
        payload.flags.writeable = False
        return payload
    if isinstance(payload, _PLAIN):
        return payload
    if isinstance(payload, tuple | list | dict):
        return rebuild(payload, freeze)
    raise TypeError(
        f"a {type(payload).__name__} cannot be exchanged between ranks; "
        "send arrays, numbers, strings, or tuples, lists and dicts of these"
    )


def rebuild(payload: Payload, each: Callable[[Any], Any]) -> Payload:
    """A new tuple, list or dict of `each(entry)`, which leaves numbers alone; anything else as it is."""
    if isinstance(payload, tuple):
        entries = [each(entry) for entry in payload]
        return payload._make(entries) if hasattr(payload, "_make") else tuple(entries)
    if isinstance(payload, list):
        return [each(entry) for entry in payload]
    if isinstance(payload, dict):
        if all(type(entry) is float for entry in payload.values()):  # most of what reports hold
            return dict(payload)
        return {key: each(entry) for key, entry in payload.items()}
    return payload


def unshared(payload: Payload) -> Payload:
    """`payload` with containers of its own; arrays, which nobody writes to, stay shared."""
    return rebuild(payload, unshared) if isinstance(payload, tuple | list | dict) else payload
