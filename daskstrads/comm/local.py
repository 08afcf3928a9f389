"""Ranks as threads of one process: LocalGroup, and `launch`, which runs a function once a rank."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from .group import Aborted, Payload, freeze

__all__ = ["LocalGroup", "launch"]

DEFAULT_TIMEOUT = 3600.0
"""Seconds a rank waits for the others; long: a long push is healthy, and a dead thread is seen at once."""

_GRACE = 10.0  # seconds that ended ranks may take to notice an interrupt (the length of one kernel call)


class _Wake:
    """Put into a mailbox to wake its reader for bad news."""


class _Room:
    """What the ranks of one LocalGroup share: one meeting place and a mailbox a pair."""

    def __init__(self, size: int, timeout: float):
        self.size = size
        self.timeout = timeout
        self.mutex = threading.Lock()
        self.cause: BaseException | None = None
        self.left: list[int] = []
        self.arrived: list[int] = []
        # Two sets of slots: a rank can be one meeting ahead of the slowest reader, never two.
        self.slots: tuple[list, list] = ([None] * size, [None] * size)
        self.bells = [threading.Lock() for _ in range(size)]
        for bell in self.bells:
            bell.acquire()
        self.mail: list[list[SimpleQueue]] = [
            [SimpleQueue() for _ in range(size)] for _ in range(size)
        ]  # [to][source]

    def ring(self, rank: int) -> None:
        with contextlib.suppress(RuntimeError):  # rung already: the abort and the last arrival may both ring
            self.bells[rank].release()

    def abort(self, cause: BaseException) -> None:
        """Wake every rank; the first cause wins."""
        with self.mutex:
            if self.cause is None:
                self.cause = cause
        for rank in range(self.size):
            self.ring(rank)
            for box in self.mail[rank]:
                box.put(_Wake)

    def leave(self, rank: int) -> None:
        """`rank` has returned: nobody may wait for it any more."""
        with self.mutex:
            self.left.append(rank)
            waiting = sorted(self.arrived)
        if waiting:
            self.abort(self._deserted(rank, waiting))
        for to in range(self.size):
            self.mail[to][rank].put(_Wake)

    def _deserted(self, rank: int, waiting: list[int]) -> RuntimeError:
        return RuntimeError(
            f"rank {rank} has returned while rank(s) {waiting} wait for it in an exchange; "
            "every rank must take part in the same exchanges"
        )

    def raise_cause(self) -> None:
        raise Aborted("another rank failed") from self.cause


class LocalGroup:
    """The ranks of one process, a thread each; payloads change hands in memory."""

    def __init__(self, room: _Room, rank: int):
        self._room = room
        self.rank = rank
        self.size = room.size
        self._meetings = 0

    def send(self, to: int, payload: Payload) -> None:
        """Hand `payload` to rank `to`; never waits. ValueError when there is no such rank."""
        if self._room.cause is not None:
            self._room.raise_cause()
        self._check(to)
        self._room.mail[to][self.rank].put(freeze(payload))

    def recv(self, source: int) -> Payload:
        """Next payload from rank `source`; TimeoutError when none comes in time."""
        room = self._room
        self._check(source)
        try:
            payload = room.mail[self.rank][source].get(timeout=room.timeout)
        except Empty:
            raise TimeoutError(
                f"rank {self.rank} waited {room.timeout:g} s for a message from rank {source}"
            ) from None
        if payload is _Wake:
            if room.cause is None:
                room.abort(room._deserted(source, [self.rank]))
            room.raise_cause()
        return payload

    def _check(self, other: int) -> None:
        if not 0 <= other < self.size:
            raise ValueError(f"there is no rank {other} in a group of {self.size}")

    def gather(self, payload: Payload, label: str = "gather") -> list[Payload]:
        """Every rank's payload, in rank order, on every rank."""
        return self.meet(freeze(payload), label)

    def meet(self, payload: Any, label: str) -> list[Any]:
        """`gather` without the copy: for payloads that nobody will write to again."""
        room = self._room
        slots = room.slots[self._meetings & 1]
        self._meetings += 1
        slots[self.rank] = (label, payload)
        with room.mutex:
            if room.cause is not None:
                room.raise_cause()
            if room.left:
                deserted = room._deserted(room.left[0], [self.rank])
            else:
                deserted = None
                room.arrived.append(self.rank)
                complete = len(room.arrived) == room.size
                if complete:
                    room.arrived = []
        if deserted is not None:
            room.abort(deserted)
            room.raise_cause()
        if complete:
            for other in range(room.size):
                if other != self.rank:
                    room.ring(other)
        else:
            self._await_bell(label)
        entries = list(slots)
        if any(entry[0] != label for entry in entries):
            what = ", ".join(f"rank {rank}: {entry[0]}" for rank, entry in enumerate(entries))
            raise RuntimeError(f"the ranks met for different exchanges ({what})")
        return [entry[1] for entry in entries]

    def _await_bell(self, label: str) -> None:
        room = self._room
        if not room.bells[self.rank].acquire(timeout=room.timeout):
            missing = sorted(set(range(room.size)) - set(room.arrived))
            raise TimeoutError(
                f"rank {self.rank} waited {room.timeout:g} s in '{label}' for rank(s) {missing}"
            )
        if room.cause is not None:
            room.raise_cause()


def launch(
    fn: Callable[[LocalGroup, Any], Any], parts: Sequence[Any], *, timeout: float = DEFAULT_TIMEOUT
) -> list[Any]:
    """Run `fn(group, part)` once a rank, `len(parts)` ranks as threads; their results in rank order.

    When a rank raises, all others are woken and end at once, and its error is raised here with a note
    that names the rank. Ctrl-C ends the ranks at their next exchange. With one part, `fn` runs in the
    calling thread.

    Raises:
        ValueError: no parts, or a timeout that is not positive.
        TimeoutError: a rank waited longer than `timeout` seconds for another.
        RuntimeError: the ranks disagree about which exchange comes next.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("launch needs at least one part: there is one rank a part")
    if not timeout > 0:
        raise ValueError(f"timeout must be positive seconds, got {timeout!r}")
    room = _Room(len(parts), min(timeout, threading.TIMEOUT_MAX))  # inf is more than a lock takes
    results: list[Any] = [None] * len(parts)

    def live(rank: int) -> None:
        try:
            results[rank] = fn(LocalGroup(room, rank), parts[rank])
        except Aborted as error:
            room.abort(error)  # keeps the first cause; a program that raises Aborted itself is still heard
        except BaseException as error:
            if room.size > 1:
                error.add_note(f"raised on rank {rank} of {room.size}")
            room.abort(error)
        else:
            room.leave(rank)

    if len(parts) == 1:
        live(0)
    else:
        threads = [
            threading.Thread(target=live, args=(rank,), name=f"daskstrads-rank-{rank}", daemon=True)
            for rank in range(len(parts))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as interrupt:
            room.abort(interrupt)
            deadline = time.monotonic() + _GRACE
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))
            raise
    if room.cause is not None:
        raise room.cause
    return results
