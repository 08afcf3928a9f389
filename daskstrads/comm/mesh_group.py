"""A rank's side of a mesh, and the mailboxes that the ranks of one worker share."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .codec import frozen
from .group import Aborted, Payload, unshared
from .link import MAIL, MEET

__all__ = ["DEAL", "Carrier", "MeshGroup", "PeerLost", "Room", "Unreachable"]

DEAL = 255  # a kind of mail that no frame carries: what this worker brings to its own ranks


class PeerLost(RuntimeError):  # noqa: N818 - what happened, in the user's words
    """A worker that takes part has gone, or has not been heard of for too long."""


class Unreachable(PeerLost):
    """Two workers could not connect to each other at the start of a session."""


class _Wake:
    """Put into a mailbox to wake its reader for bad news."""


class Room:
    """What the ranks of one worker share: a mailbox a kind and pair of ranks, and the first bad news."""

    def __init__(self, size: int, local: list[int], timeout: float):
        self.size, self.local = size, local
        self.timeout = min(timeout, threading.TIMEOUT_MAX)  # inf is more than a mailbox takes
        self.mutex = threading.Lock()
        self.cause: BaseException | None = None
        # box[kind][to][source]
        self.box: dict[int, dict[int, list[SimpleQueue]]] = {
            kind: {rank: [SimpleQueue() for _ in range(size)] for rank in local}
            for kind in (MEET, MAIL, DEAL)
        }

    def abort(self, cause: BaseException) -> bool:
        """Wake every rank here; the first cause wins. Whether that is this one."""
        with self.mutex:
            if self.cause is None:
                self.cause = cause
        for boxes in self.box.values():
            for sources in boxes.values():
                for box in sources:
                    box.put(_Wake)
        return self.cause is cause

    def leave(self, source: int) -> None:
        """Rank `source` has returned: whoever waits for it, or will, gets an error."""
        for boxes in self.box.values():
            for sources in boxes.values():
                sources[source].put(_Wake)

    def take(self, kind: int, rank: int, source: int, what: str) -> Any:
        """Next entry for `rank` from `source`.

        Raises:
            Aborted: bad news; its cause is the room's.
            RuntimeError: `source` has returned, and this rank is the first to miss it.
            TimeoutError: nothing came in time.
        """
        self.check()
        try:
            entry = self.box[kind][rank][source].get(timeout=self.timeout)
        except Empty:
            late = TimeoutError(f"rank {rank} waited {self.timeout:g} s in '{what}' for rank {source}")
            self.abort(late)  # a later meeting would be out of step
            raise late from None
        if entry is not _Wake:
            return entry
        self.check()
        deserted = RuntimeError(
            f"rank {source} has returned while rank {rank} waits for it in '{what}'; "
            "every rank must take part in the same exchanges"
        )
        # Raised itself, not as a cause: whoever runs the rank tells the other workers.
        if self.abort(deserted):
            raise deserted
        raise Aborted("another rank failed") from self.cause

    def check(self) -> None:
        """Raise Aborted when there has been bad news."""
        if self.cause is not None:
            raise Aborted("another rank failed") from self.cause


class Carrier(Protocol):
    """What takes frames to the other workers (`mesh.Mesh`)."""

    home: dict[int, int]

    def post(self, worker: int, kind: int, source: int, to: int, payload: Payload) -> None:
        """Queue a frame for another worker; never waits."""

    def post_all(self, kind: int, source: int, payload: Payload) -> None:
        """Queue a frame for every other worker."""


class MeshGroup:
    """One rank's side of a mesh (a `Group`); plans that a scheduler deals arrive at `desk`."""

    shared = False

    def __init__(self, room: Room, mesh: Carrier, rank: int, desk: Any = None):
        self._room, self._mesh, self.desk = room, mesh, desk
        self.rank, self.size = rank, room.size
        self.memory: dict[Any, Any] = {}

    def send(self, to: int, payload: Payload) -> None:
        """Hand `payload` to rank `to`; never waits. ValueError when there is no such rank."""
        self._check(to)
        self._room.check()
        if to in self._room.local:
            self._room.box[MAIL][to][self.rank].put(frozen(payload))
        else:
            self._mesh.post(self._mesh.home[to], MAIL, self.rank, to, payload)

    def recv(self, source: int) -> Payload:
        """Next payload from rank `source`; TimeoutError when none comes in time."""
        self._check(source)
        return self._room.take(MAIL, self.rank, source, "recv")

    def gather(self, payload: Payload, label: str = "gather") -> list[Payload]:
        """Every rank's payload, in rank order, on every rank."""
        return self.meet(frozen(payload), label)

    def meet(self, payload: Any, label: str) -> list[Any]:
        """`gather` without the copy: for payloads that nobody will write to again."""
        self._room.check()
        entry = (label, payload)
        for rank in self._room.local:
            if rank != self.rank:
                self._room.box[MEET][rank][self.rank].put(entry)
        self._mesh.post_all(MEET, self.rank, entry)
        entries = [
            entry if source == self.rank else self._room.take(MEET, self.rank, source, label)
            for source in range(self.size)
        ]
        if any(given[0] != label for given in entries):
            what = ", ".join(f"rank {rank}: {given[0]}" for rank, given in enumerate(entries))
            raise RuntimeError(f"the ranks met for different exchanges ({what})")
        return [unshared(given[1]) for given in entries]

    def _check(self, other: int) -> None:
        if not 0 <= other < self.size:
            raise ValueError(f"there is no rank {other} in a group of {self.size}")
