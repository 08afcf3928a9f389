"""The Group protocol: what a rank may ask of the others, whatever carries the bytes."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

__all__ = ["Aborted", "Group", "Payload", "freeze"]

Payload = Any
"""None, numbers, strings, ndarrays, and tuples, lists or dicts of these: sent without pickling."""


class Aborted(RuntimeError):  # noqa: N818 - a state, not the error: the root cause is its __cause__
    """Another rank failed, so this one was woken up to end; the root cause is `__cause__`."""


@runtime_checkable
class Group(Protocol):
    """The ranks that run together, seen from one of them.

    A writeable array is copied on its way; a read-only one (`flags.writeable` False) may travel by
    reference: by making it read-only the sender promises not to change it.
    """

    rank: int
    size: int

    def send(self, to: int, payload: Payload) -> None:
        """Hand `payload` to rank `to`; never waits."""

    def recv(self, source: int) -> Payload:
        """Next payload from rank `source`, in the order sent; waits up to the group's timeout."""

    def gather(self, payload: Payload, label: str = "gather") -> list[Payload]:
        """Every rank's payload, in rank order, on every rank; `label` must be the same on all of them."""


def freeze(payload: Payload) -> Payload:
    """`payload` with every writeable array replaced by a read-only copy."""
    if isinstance(payload, np.ndarray):
        if payload.dtype.hasobject:
            raise TypeError("object arrays cannot be exchanged between ranks; use a numeric dtype")
        if not payload.flags.writeable:
            return payload
        payload = payload.copy(order="K")
        payload.flags.writeable = False
        return payload
    if isinstance(payload, tuple):
        entries = [freeze(entry) for entry in payload]
        return payload._make(entries) if hasattr(payload, "_make") else tuple(entries)
    if isinstance(payload, list):
        return [freeze(entry) for entry in payload]
    if isinstance(payload, dict):
        return {key: freeze(entry) for key, entry in payload.items()}
    if payload is None or isinstance(payload, bool | int | float | complex | str | bytes | np.generic):
        return payload
    raise TypeError(
        f"a {type(payload).__name__} cannot be exchanged between ranks; "
        "send arrays, numbers, strings, or tuples, lists and dicts of these"
    )
