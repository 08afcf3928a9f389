"""One connection between two workers: frames of a fixed header, a JSON description and raw buffers.

Nothing that arrives is unpickled, and sizes are checked before anything is allocated.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import codec

__all__ = ["HELLO_FRAME", "Limits", "Link", "call", "frame", "greeted", "hello", "left", "open_listener"]

HEADER = struct.Struct("<4sBBHIIIIQ")  # magic, version, kind, -, epoch, source, to, description, body
MAGIC, VERSION = b"DSTR", 1
HELLO, MEET, MAIL, ABORT, LEAVE, BEAT = range(6)
TOKEN = 32  # bytes of the secret that every connection opens with
HELLO_FRAME = struct.Struct(f"<4sBBHI{TOKEN}s")  # magic, version, kind, -, worker, token
DESCRIPTION_LIMIT = 1 << 26
_SMALL = 1 << 14
_CHUNK = 1 << 16  # what arrives is collected in one go up to here; larger parts go straight to their place
_STUMBLE = 1.0  # seconds: "no route to host" just after a link came up
_TURN = 64  # system calls in a row on one connection, before the others have their turn


def frame(kind: int, epoch: int, source: int, to: int, payload: Any, most: int) -> list[Any]:
    """The parts of a frame, ready to be queued on any number of links.

    Raises:
        TypeError: something that cannot travel.
        ValueError: the payload is larger than one frame may be.
    """
    if kind == BEAT:
        return [HEADER.pack(MAGIC, VERSION, kind, 0, epoch, source, to, 0, 0)]
    description, buffers, size = codec.encode(payload)
    if size > most or len(description) > DESCRIPTION_LIMIT:
        raise ValueError(
            f"{size} bytes in arrays and {len(description)} in everything else are more than one frame "
            f"takes ({most} and {DESCRIPTION_LIMIT}); send pieces"
        )
    header = HEADER.pack(MAGIC, VERSION, kind, 0, epoch, source, to, len(description), size)
    return list(_joined([header, description, *buffers]))


def _joined(parts: list[Any]) -> Iterator[Any]:
    """The parts with neighbours that are small made one: a system call and a packet less for each."""
    small: list[Any] = []
    for part in parts:
        if len(part) <= _SMALL:
            if len(part):
                small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def open_listener(host: str, ports: tuple[int, int], backlog: int) -> socket.socket:
    """A listening socket on the first free one of `ports` (first, last); (0, 0): any.

    Raises:
        OSError: none is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1]):
        with contextlib.suppress(OSError):
            return socket.create_server((host, port), family=family, backlog=backlog)
    return socket.create_server((host, ports[1]), family=family, backlog=backlog)


def dial(address: tuple[str, int], deadline: float) -> socket.socket:
    """A connection to a listener that is there; a network that stumbles is forgiven for a moment."""
    last_try = min(deadline, time.monotonic() + _STUMBLE)
    while True:
        try:
            return socket.create_connection(address, left(deadline))
        except OSError:
            if time.monotonic() > last_try:
                raise
            time.sleep(0.1)


def call(
    address: tuple[str, int],
    workers: tuple[int, int],
    token: bytes,
    deadline: float,
    context: ssl.SSLContext | None,
) -> socket.socket:
    """A connection from the first of `workers` to the second, both introduced; closed when that fails.

    Raises:
        OSError, ValueError: nobody answers in time, or somebody else.
    """
    connection = dial(address, deadline)
    try:
        connection.settimeout(left(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=address[0])
        connection.sendall(hello(workers[0], token))
        if greeted(connection, token, deadline) != workers[1]:
            raise OSError("it answered as another worker or with a wrong token")
    except BaseException:
        connection.close()
        raise
    return connection


def hello(worker: int, token: bytes) -> bytes:
    """What both ends of a new connection say first."""
    return HELLO_FRAME.pack(MAGIC, VERSION, HELLO, 0, worker, token)


def greeted(connection: socket.socket, token: bytes, deadline: float) -> int | None:
    """The worker that says hello by `deadline`, None when it is none of this session."""
    raw = b""
    while len(raw) < HELLO_FRAME.size:
        connection.settimeout(left(deadline))
        more = connection.recv(HELLO_FRAME.size - len(raw))
        if not more:
            raise OSError("it closed the connection")
        raw += more
    magic, version, kind, _, worker, given = HELLO_FRAME.unpack(raw)
    if (magic, version, kind) != (MAGIC, VERSION, HELLO) or not hmac.compare_digest(given, token):
        return None
    return worker


def left(deadline: float) -> float:
    """Seconds until `deadline`, a moment when it has passed."""
    return max(0.05, deadline - time.monotonic())


class Limits(NamedTuple):
    """Seconds and bytes: to connect, between heartbeats, of silence before a peer is lost, of one frame."""

    connect: float = 20.0
    beat: float = 1.0
    silence: float = 10.0
    frame: int = 1 << 36


Admit = Callable[["Link", int, int, int], None]
Deliver = Callable[["Link", int, int, int, Any], None]


class Link:
    """One connection: a queue out, and the frame that is coming in.

    Any thread may `put` and `write_now`; everything else is for the one thread that owns the connection.
    `admit` raises DecodeError for a header that this peer may not send, before anything is allocated for its
    frame.
    """

    def __init__(
        self, worker: int, connection: socket.socket, epoch: int, most: int, admit: Admit, deliver: Deliver
    ):
        self.worker, self.socket = worker, connection
        self._epoch, self._most, self._admit, self._deliver = epoch, most, admit, deliver
        self.heard = time.monotonic()
        self.watched = 0  # the events that its owner's selector waits for
        self.lost = False
        self.left: set[int] = set()
        self._out: deque[deque[memoryview]] = deque()  # frames, each in parts
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._finished = False
        self._secret = isinstance(connection, ssl.SSLSocket)
        self._chunk = memoryview(bytearray(_CHUNK))
        self._into = memoryview(b"")
        self._expect_header()

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    @property
    def buffered(self) -> bool:
        """Whether something has arrived that no select tells of: TLS has decrypted it already."""
        return isinstance(self.socket, ssl.SSLSocket) and not self.lost and self.socket.pending() > 0

    def put(self, parts: list[Any], *, last: bool = False) -> None:
        """Queue the parts of one frame; the `last` one takes the place of all that are not on their way."""
        views = deque(memoryview(part) for part in parts)
        with self._lock:
            while last and len(self._out) > 1:
                self._out.pop()
            if not self.lost:
                self._out.append(views)

    def lose(self) -> None:
        """Close the connection and forget what was queued."""
        with self._lock:
            self.lost = True
            self._out.clear()
        with self._writing, contextlib.suppress(OSError):
            self.socket.close()

    def write_now(self) -> bool:
        """Send in the calling thread, which saves waking the owner; whether nothing is left to be sent.

        What goes wrong is left for the owner to find.
        """
        # TLS cannot be written and read at the same time.
        if self._secret or not self._writing.acquire(blocking=False):
            return False
        try:
            self._write()
        except Exception:
            return False
        finally:
            self._writing.release()
        return not self._out

    def write(self) -> int:
        """Send as much as the socket takes and one turn allows; bytes sent."""
        with self._writing:
            return self._write()

    def _write(self) -> int:
        total = 0
        for _ in range(_TURN):
            if not self._out:
                break
            parts = self._out[0]
            try:
                # TLS wants the same bytes again after a refusal: the first part stays until it is through.
                sent = self.socket.send(parts[0][: 1 << 20])
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
            total += sent
            if sent < len(parts[0]):
                parts[0] = parts[0][sent:]
                continue
            parts.popleft()
            if not parts:
                with self._lock:
                    if self._out:  # lost meanwhile
                        self._out.popleft()
        return total

    def read(self) -> bool:
        """Take what has arrived; deliver every frame that is complete. Whether there may be more.

        Raises:
            EOFError: the peer closed the connection.
            OSError: the connection broke.
            codec.DecodeError: what arrived is no frame, or none that this peer may send.
        """
        for _ in range(_TURN):
            direct = len(self._into) >= _CHUNK
            target = self._into if direct else self._chunk
            try:
                got = self.socket.recv_into(target)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            if not got:
                raise EOFError("the connection was closed")
            self.heard = time.monotonic()
            if direct:
                self._took(got)
            else:
                self._feed(self._chunk[:got])
            if got < len(target) and not self._secret:  # TLS hands out one record at a time
                return False
        return True

    def finish(self) -> None:
        """Say that nothing more will be sent."""
        if not self._finished:
            self._finished = True
            self.socket.shutdown(socket.SHUT_WR)

    def discard(self) -> None:
        """Take what has arrived and forget it; raises as `read`."""
        for _ in range(_TURN):
            try:
                if not self.socket.recv_into(self._chunk):
                    raise EOFError("the connection was closed")
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return

    def _feed(self, arrived: memoryview) -> None:
        while arrived:
            size = min(len(arrived), len(self._into))
            self._into[:size] = arrived[:size]
            arrived = arrived[size:]
            self._took(size)

    def _took(self, size: int) -> None:
        self._into = self._into[size:]
        while not self._into and self._advance():
            pass

    def _expect_header(self) -> None:
        self._stage = "header"
        self._raw = bytearray(HEADER.size)
        self._into = memoryview(self._raw)

    def _advance(self) -> bool:
        """The part that was expected is complete; whether the next one is empty."""
        if self._stage == "header":
            magic, version, kind, _, epoch, source, to, description, body = HEADER.unpack(self._raw)
            if (magic, version) != (MAGIC, VERSION):
                raise codec.DecodeError("not a frame of this protocol")
            if epoch != self._epoch:
                raise codec.DecodeError(f"a frame of epoch {epoch} in epoch {self._epoch}")
            if description > DESCRIPTION_LIMIT or body > self._most or (kind == BEAT and description + body):
                raise codec.DecodeError(f"a frame of {description} + {body} bytes is too large")
            self._admit(self, kind, source, to)
            self._frame = (kind, source, to)
            self._body_size = body
            self._stage = "description"
            self._raw = bytearray(description)
            self._into = memoryview(self._raw)
        elif self._stage == "description":
            self._stage = "body"
            self._body = np.empty(self._body_size, np.uint8)
            self._into = self._body.data
        else:
            (kind, source, to), raw, body = self._frame, bytes(self._raw), self._body
            self._expect_header()
            self._body = np.empty(0, np.uint8)  # the ranks may free a large one
            self._deliver(self, kind, source, to, None if kind == BEAT else codec.decode(raw, body))
            return False
        return not self._into
