"""Ranks as threads of one process: LocalGroup, and `launch`, which runs a function once a rank."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from .group import Aborted, Payload, freeze, note, unshared

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
        self.returned: list[int] = []
        self.arrived: list[int] = []  # at the meeting that is not complete yet
        # Two sets of slots: a rank can be one meeting ahead of the slowest reader, never two.
        self.slots: tuple[list, list] = ([None] * size, [None] * size)
        self.bells = [threading.Lock() for _ in range(size)]
        for bell in self.bells:
            bell.acquire()
        # mail[to][source], how many letters of it are unread, and who waits for whose
        self.mail: list[list[SimpleQueue]] = [[SimpleQueue() for _ in range(size)] for _ in range(size)]
        self.unread = [[0] * size for _ in range(size)]
        self.reading: dict[int, int] = {}

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

    def fail(self, cause: BaseException) -> None:
        """Abort, and raise `Aborted` here."""
        self.abort(cause)
        self.check()

    def check(self) -> None:
        """Raise `Aborted` when another rank has failed."""
        if self.cause is not None:
            raise Aborted("another rank failed") from self.cause

    def leave(self, rank: int) -> None:
        """`rank` has returned: nobody may wait for it any more."""
        with self.mutex:
            self.returned.append(rank)
            trouble = self.trouble()
        if trouble is not None:
            self.abort(trouble)

    def trouble(self) -> RuntimeError | None:
        """Why those who wait would wait for ever, if they would; called with the mutex held."""
        readers = {rank: source for rank, source in self.reading.items() if not self.unread[rank][source]}
        forlorn = sorted(
            {*(self.arrived if self.returned else []), *(r for r, s in readers.items() if s in self.returned)}
        )
        if forlorn:
            return RuntimeError(
                f"rank(s) {sorted(self.returned)} returned while rank(s) {forlorn} wait for them in an "
                "exchange; every rank must take part in the same exchanges"
            )
        if readers and len(readers) + len(self.arrived) + len(self.returned) == self.size:
            waits = [f"rank {rank} for a message from rank {source}" for rank, source in readers.items()]
            waits += [f"rank {rank} in a meeting of all" for rank in self.arrived]
            return RuntimeError(
                f"deadlock, the ranks disagree about the next exchange: {', '.join(waits)} wait"
            )
        return None


class LocalGroup:
    """The ranks of one process, a thread each; payloads change hands in memory (a `Group`)."""

    shared = True
    desk = None

    def __init__(self, room: _Room, rank: int):
        self._room = room
        self.rank = rank
        self.size = room.size
        self.memory: dict[Any, Any] = {}
        self._meetings = 0

    def send(self, to: int, payload: Payload) -> None:
        """Hand `payload` to rank `to`; never waits. ValueError when there is no such rank."""
        room = self._room
        room.check()
        self._check_rank(to)
        payload = freeze(payload)
        with room.mutex:
            room.unread[to][self.rank] += 1
        room.mail[to][self.rank].put(payload)

    def recv(self, source: int) -> Payload:
        """Next payload from rank `source`; TimeoutError when none comes in time."""
        room, rank = self._room, self.rank
        room.check()
        self._check_rank(source)
        with room.mutex:
            room.reading[rank] = source
            trouble = room.trouble()
        if trouble is not None:
            room.fail(trouble)
        try:
            payload = room.mail[rank][source].get(timeout=room.timeout)
        except Empty:
            late = f"rank {rank} waited {room.timeout:g} s for a message from rank {source}"
            room.abort(TimeoutError(late))
            raise TimeoutError(late) from None
        if payload is _Wake:
            room.check()
        with room.mutex:
            del room.reading[rank]
            room.unread[rank][source] -= 1
        return payload

    def gather(self, payload: Payload, label: str = "gather") -> list[Payload]:
        """Every rank's payload, in rank order, on every rank. RuntimeError when the labels differ."""
        return self.meet(freeze(payload), label)

    def meet(self, payload: Any, label: str) -> list[Any]:
        """`gather` without the copy: for payloads that nobody will write to again."""
        room = self._room
        room.check()
        if room.size == 1:
            return [unshared(payload)]
        slots = room.slots[self._meetings & 1]
        self._meetings += 1
        slots[self.rank] = (label, payload)
        with room.mutex:
            room.arrived.append(self.rank)
            complete = len(room.arrived) == room.size
            trouble = None if complete else room.trouble()
            if complete:
                room.arrived = []
        if trouble is not None:
            room.fail(trouble)
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
        return [unshared(entry[1]) for entry in entries]

    def _check_rank(self, other: int) -> None:
        if not 0 <= other < self.size:
            raise ValueError(f"there is no rank {other} in a group of {self.size}")

    def _await_bell(self, label: str) -> None:
        room = self._room
        if not room.bells[self.rank].acquire(timeout=room.timeout):
            missing = sorted(set(range(room.size)) - set(room.arrived))
            late = f"rank {self.rank} waited {room.timeout:g} s in '{label}' for rank(s) {missing}"
            room.abort(TimeoutError(late))
            raise TimeoutError(late)
        room.check()


def launch(
    fn: Callable[[LocalGroup, Any], Any], parts: Sequence[Any], *, timeout: float = DEFAULT_TIMEOUT
) -> list[Any]:
    """Run `fn(group, part)` once a rank, `len(parts)` ranks as threads; their results in rank order.

    When a rank raises, those who wait for others are woken at once and the rest end at their next exchange;
    the error is raised here with a note that names the rank. Ctrl-C ends the ranks likewise; one that does
    not come to an exchange within ten seconds is left behind as a daemon thread. With one part, `fn` runs in
    the calling thread.

    Raises:
        ValueError: no parts, or a timeout that is not positive.
        TimeoutError: a rank waited longer than `timeout` seconds for another.
        RuntimeError: the ranks disagree about which exchange comes next.
        Exception: whatever a rank raised.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("launch needs at least one part: there is one rank a part")
    if timeout is None or not timeout > 0:
        raise ValueError(f"timeout must be positive seconds, got {timeout!r}")
    room = _Room(len(parts), min(timeout, threading.TIMEOUT_MAX))  # inf is more than a lock takes
    results: list[Any] = [None] * len(parts)

    def live(rank: int) -> None:
        try:
            results[rank] = fn(LocalGroup(room, rank), parts[rank])
        except Aborted as error:
            room.abort(error)  # keeps the first cause; a program that raises Aborted itself is still heard
        except BaseException as error:
            if room.size > 1 or isinstance(error, Exception):  # Ctrl-C in the caller's own thread needs none
                note(error, f"raised on rank {rank} of {room.size}")
            room.abort(error)
        else:
            room.leave(rank)

    if len(parts) == 1:
        live(0)
    else:
        _live_in_threads(live, room)
    if room.cause is not None:
        raise room.cause
    return results


def _live_in_threads(live: Callable[[int], None], room: _Room) -> None:
    """Run `live(rank)` in a thread a rank, in the caller's context (numpy's errstate), until all ended."""
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(live, rank),
            name=f"daskstrads-rank-{rank}",
            daemon=True,
        )
        for rank in range(room.size)
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
