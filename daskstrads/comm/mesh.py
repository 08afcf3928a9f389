"""Ranks on several workers: one connection a pair of workers, ranks of one worker exchange in memory.

One thread a worker owns all its connections, so that TLS sees one owner, and sends heartbeats whatever the
ranks are doing.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from . import codec
from .group import Payload
from .link import (
    ABORT,
    BEAT,
    LEAVE,
    MAIL,
    MEET,
    TOKEN,
    Limits,
    Link,
    call,
    frame,
    greeted,
    hello,
    left,
    open_listener,
)
from .mesh_group import PeerLost, Room, Unreachable

__all__ = ["Mesh"]

_NEWS = 10_000  # characters of an error that are told to the others


class Mesh:
    """This worker's connections to the other workers of a session, one each."""

    def __init__(
        self,
        room: Room,
        index: int,
        ranks: list[list[int]],
        token: bytes,
        *,
        epoch: int = 0,
        limits: Limits | None = None,
        contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None),
    ):
        self.room, self.index, self.ranks, self.token, self.epoch = room, index, ranks, token, epoch
        self.home = {rank: worker for worker, members in enumerate(ranks) for rank in members}
        self.limits = limits or Limits()
        self._accept_context, self._connect_context = contexts
        self._links: dict[int, Link] = {}
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._closing = False
        self._end, self._patience = 0.0, 0.0
        self._next_beat = 0.0
        self._thread: threading.Thread | None = None
        self._accepting: threading.Thread | None = None
        # While connecting: who is there, and who has called but has not yet said who they are.
        self._mutex = threading.Lock()
        self._found: dict[int, socket.socket] = {}
        self._guests: set[socket.socket] | None = set()
        self._welcoming: list[threading.Thread] = []

    def listen(self, host: str, ports: tuple[int, int] | None = None) -> int:
        """Open the listener on a free port, of `ports` (first, last) where given; the port.

        Raises:
            OSError: none is free.
        """
        self._listener = listener = open_listener(host, ports or (0, 0), 2 * len(self.ranks) + 16)
        listener.setblocking(False)
        return listener.getsockname()[1]

    def connect(self, addresses: list[tuple[str, int]]) -> None:
        """Connect to every other worker (the later one calls) and start the thread that owns the connections.

        Nobody can call afterwards. When this fails, everything is closed.

        Raises:
            PeerLost: a worker cannot be reached or does not call in time; names it.
            ValueError: a token of another length.
        """
        try:
            if len(self.token) != TOKEN:
                raise ValueError(f"a session's token has {TOKEN} bytes, not {len(self.token)}")
            if len(self.ranks) > 1:
                self._find(addresses)
                self._begin()
        except BaseException:
            self.close()
            raise

    def _find(self, addresses: list[tuple[str, int]]) -> None:
        deadline = time.monotonic() + self.limits.connect
        expected = set(range(self.index + 1, len(self.ranks)))
        self._accepting = accepting = threading.Thread(
            target=self._accept, args=(expected, deadline), name="daskstrads-accept", daemon=True
        )
        accepting.start()
        try:
            for worker in range(self.index):
                self._found[worker] = self._call(worker, addresses[worker], deadline)
            accepting.join()
        except BaseException:
            self._closing = True
            raise
        finally:
            self._shut_door(accepting)
        missing = sorted(expected - set(self._found))
        if missing:
            raise Unreachable(
                f"worker {self.index} got no connection from worker(s) {missing} "
                f"{[addresses[worker] for worker in missing]} within {self.limits.connect:g} s; "
                "open the workers' ports to each other"
            )

    def _begin(self) -> None:
        for worker, connection in self._found.items():
            connection.setblocking(False)
            link = Link(worker, connection, self.epoch, self.limits.frame, self._admit, self.deliver)
            link.heard += self.limits.connect  # it beats only once it has found everybody
            self._links[worker] = link
            self._selector.register(connection, selectors.EVENT_READ, link)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._live, name="daskstrads-mesh", daemon=True)
        self._thread.start()

    def _call(self, worker: int, address: tuple[str, int], deadline: float) -> socket.socket:
        try:
            return call(address, (self.index, worker), self.token, deadline, self._connect_context)
        except (OSError, ValueError) as error:
            raise Unreachable(
                f"worker {self.index} cannot reach worker {worker} at {address}: {error}"
            ) from error

    def _accept(self, expected: set[int], deadline: float) -> None:
        listener = self._listener
        if listener is None or not expected:
            return
        with selectors.DefaultSelector() as door:
            door.register(listener, selectors.EVENT_READ)
            door.register(self._ear, selectors.EVENT_READ)
            while not self._closing and time.monotonic() < deadline and not expected <= set(self._found):
                for key, _ in door.select(left(deadline)):
                    if key.fileobj is self._ear:
                        self._listen_up()
                        continue
                    with contextlib.suppress(OSError):  # it has gone again
                        # A stranger who says nothing must not keep the others waiting.
                        thread = threading.Thread(
                            target=self._welcome,
                            args=(listener.accept()[0], expected, deadline),
                            name="daskstrads-welcome",
                            daemon=True,
                        )
                        self._welcoming.append(thread)
                        thread.start()

    def _welcome(self, connection: socket.socket, expected: set[int], deadline: float) -> None:
        try:
            connection.settimeout(left(deadline))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._accept_context is not None:
                connection = self._accept_context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            with self._mutex:
                if self._guests is None:
                    raise OSError("the door is shut")
                self._guests.add(connection)
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            worker = greeted(connection, self.token, deadline)
            if worker not in expected:
                raise OSError("not one of the workers, or not with this session's token")
            with self._mutex:
                if self._guests is None or worker in self._found:
                    raise OSError("the door is shut, or the worker is here already")
                connection.sendall(hello(self.index, self.token))  # short: never waits
                self._guests.discard(connection)
                self._found[worker] = connection
            self.wake()
        except (OSError, ValueError):
            with self._mutex:
                if self._guests is not None:
                    self._guests.discard(connection)
            connection.close()

    def _shut_door(self, accepting: threading.Thread) -> None:
        """End the listener and every caller who has not said who they are."""
        self.wake()
        accepting.join()
        with self._mutex:
            guests, self._guests = self._guests or set(), None
        for guest in guests:
            with contextlib.suppress(OSError):
                guest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        for thread in self._welcoming:
            thread.join()
        if self._listener is not None:
            self._listener.close()

    def post(self, worker: int, kind: int, source: int, to: int, payload: Payload) -> None:
        """Queue a frame for another worker; never waits."""
        self._queue([worker], kind, source, to, payload)

    def post_all(self, kind: int, source: int, payload: Payload) -> None:
        """Queue a frame for every other worker; encoded once."""
        if self._links:
            self._queue(list(self._links), kind, source, 0, payload)

    def _queue(
        self, workers: list[int], kind: int, source: int, to: int, payload: Payload, *, last: bool = False
    ) -> None:
        parts = frame(kind, self.epoch, source, to, payload, self.limits.frame)
        left = False
        for worker in workers:
            link = self._links[worker]
            link.put(parts, last=last)
            left |= not link.write_now()
        if left:
            self.wake()

    def wake(self) -> None:
        """Have the mesh's thread look at its queues."""
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is awake anyway
            self._mouth.send(b"\0")

    def tell_abort(self, cause: BaseException) -> None:
        """Tell the other workers that this session is over, and why; what was still queued is dropped."""
        notes = "; ".join(map(str, getattr(cause, "__notes__", [])))
        try:
            text = f"{type(cause).__name__}: {cause}" + (f" ({notes})" if notes else "")
        except Exception:  # an error that cannot say what it is
            text = type(cause).__name__
        self._spread(f"worker {self.index}: {text}"[:_NEWS])

    def _spread(self, news: str) -> None:
        if self._links:
            source = self.ranks[self.index][0]
            self._queue(list(self._links), ABORT, source, 0, news, last=True)

    def tell_leave(self, rank: int) -> None:
        """Tell the other workers that `rank` has returned."""
        self.post_all(LEAVE, rank, None)

    def close(self, patience: float = 5.0) -> None:
        """Send what is queued, then close everything; gives up `patience` seconds after the last progress."""
        self._end = time.monotonic() + patience
        self._patience = patience
        self._closing = True
        self.wake()
        if self._accepting is not None:
            self._accepting.join()  # at once: it has been woken
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < self._end + 1.0:
            self._thread.join(0.1)
        for link in self._links.values():
            link.lose()
        for each in (self._listener, self._ear, self._mouth, *self._found.values()):
            if each is not None:
                each.close()
        self._selector.close()

    def _live(self) -> None:
        try:
            while not self._closing:
                self._turn()
            while time.monotonic() < self._end and self._connected():
                self._part()
        except BaseException as error:
            # Whatever it is: nobody may wait for a thread that is gone.
            failure = RuntimeError(f"the connections of worker {self.index} failed: {error!r}")
            failure.__cause__ = error
            self.room.abort(failure)
            for link in self._links.values():
                link.lose()

    def _connected(self) -> list[Link]:
        return [link for link in self._links.values() if not link.lost]

    def _turn(self) -> None:
        """Wait for something to happen, and deal with it."""
        # Taken before anything is read: a peer is never blamed for the time that this thread did not get.
        now = time.monotonic()
        for link in self._ready(max(0.0, self._next_beat - now)):
            self._try(link, link.read)
        for link in self._connected():
            if link.pending:
                self._try(link, link.write)
        if now >= self._next_beat:
            self._next_beat = now + self.limits.beat
            self._beat(now)

    def _ready(self, patience: float) -> list[Link]:
        """The links that have something to read, within `patience` seconds."""
        ready = {}
        for link in self._connected():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.pending else 0)
            if wanted != link.watched:
                self._selector.modify(link.socket, wanted, link)
                link.watched = wanted
            if link.buffered:
                ready[link.worker] = link
        for key, mask in self._selector.select(0.0 if ready else patience):
            if key.data is None:
                self._listen_up()
            elif mask & selectors.EVENT_READ:
                ready[key.data.worker] = key.data
        return list(ready.values())

    def _listen_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._ear.recv(4096)) == 4096:
                pass

    def _try(self, link: Link, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # also MemoryError: the frame is lost, and so is the peer
            if act == link.write:
                # Its last words, a LEAVE or an ABORT, may have come before the connection broke.
                with contextlib.suppress(Exception):
                    while link.read():
                        pass
            self._lose(link, str(error) or type(error).__name__)
            return None

    def _part(self) -> None:
        """Send what is queued, say that it was all, and read until the peers have closed too.

        Closing with something unread would reset the connection, and what was sent last would be lost.
        """
        for link in self._connected():
            if link.pending and self._try(link, link.write):
                self._end = time.monotonic() + self._patience
            if not link.pending and not link.lost:
                self._try(link, link.finish)
        if self._connected():
            for link in self._ready(max(0.0, self._end - time.monotonic())):
                self._try(link, link.discard)

    def _beat(self, now: float) -> None:
        for link in self._connected():
            if now - link.heard > self.limits.silence:
                self._lose(link, f"not heard of for {self.limits.silence:g} s")
            elif not link.pending:
                link.put(frame(BEAT, self.epoch, 0, 0, None, 0))

    def _lose(self, link: Link, why: str) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.socket)
        link.lose()
        ranks = self.ranks[link.worker]
        if self._closing or all(rank in link.left for rank in ranks):
            return
        cause = PeerLost(f"worker {link.worker} with rank(s) {ranks} is lost: {why}")
        if self.room.abort(cause):
            self.tell_abort(cause)

    def _admit(self, link: Link, kind: int, source: int, to: int) -> None:
        if kind == BEAT:
            return
        if kind not in (MEET, MAIL, LEAVE, ABORT):
            raise codec.DecodeError(f"a frame of unknown kind {kind}")
        if source not in self.ranks[link.worker]:
            raise codec.DecodeError(f"a frame from rank {source}, which is not on worker {link.worker}")
        if kind == MAIL and to not in self.room.local:
            raise codec.DecodeError(f"a message for rank {to}, which is not on worker {self.index}")

    def deliver(self, link: Link, kind: int, source: int, to: int, payload: Payload) -> None:
        """Hand what arrived to the ranks it is for.

        Raises:
            codec.DecodeError: a frame that this peer may not send.
        """
        room = self.room
        if self._closing or kind == BEAT:
            return
        if kind == MAIL:
            room.box[MAIL][to][source].put(payload)
        elif kind == MEET:
            if not (isinstance(payload, tuple) and len(payload) == 2 and isinstance(payload[0], str)):
                raise codec.DecodeError("a meeting without a label")
            for rank in room.local:
                room.box[MEET][rank][source].put(payload)
        elif kind == LEAVE:
            link.left.add(source)
            room.leave(source)
        elif kind == ABORT:
            if not isinstance(payload, str):
                raise codec.DecodeError("an end without a reason")
            link.left.update(self.ranks[link.worker])
            if self.room.abort(PeerLost(f"on {payload}")):
                self._spread(payload)  # whoever hears the end of this worker first knows why, too
