"""Settings of sessions from Dask's configuration, read on the client and shipped with the session."""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
from dask.utils import parse_timedelta

from ..comm.link import Limits

__all__ = ["Options"]

TRANSPORTS = ("auto", "mesh", "tasks")


class Options(NamedTuple):
    """What `dask.config` may set under `daskstrads`; seconds.

    `timeouts.start`: until all workers have started their ranks; `timeouts.connect`: until they have
    connected; `timeouts.silence`: without a heartbeat until a worker is lost; `heartbeat`: between two;
    `ports`: None for any free port, or "first-last"; `transport`: "auto", "mesh" or "tasks".
    """

    start: float
    connect: float
    silence: float
    beat: float
    ports: tuple[int, int] | None
    transport: str

    @classmethod
    def read(cls) -> Options:
        """The current configuration.

        Raises:
            ValueError: a value that makes no sense; names its key.
        """
        start = _seconds("timeouts.start", 60.0)
        connect = _seconds("timeouts.connect", 20.0)
        silence, beat = _seconds("timeouts.silence", 7.0), _seconds("heartbeat", 1.0)
        if silence <= 2 * beat:
            raise ValueError("daskstrads.timeouts.silence must be more than two of daskstrads.heartbeat")
        transport = dask.config.get("daskstrads.transport", "auto")
        if transport not in TRANSPORTS:
            raise ValueError(f"daskstrads.transport must be one of {TRANSPORTS}, got {transport!r}")
        ports = _ports(dask.config.get("daskstrads.ports", None))
        return cls(start, connect, silence, beat, ports, transport)

    @property
    def limits(self) -> Limits:
        """What the connections between workers need of it."""
        return Limits(self.connect, self.beat, self.silence)


def _seconds(key: str, default: float) -> float:
    given = dask.config.get(f"daskstrads.{key}", default)
    try:
        seconds = float(parse_timedelta(given, "s"))
    except (KeyError, TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"daskstrads.{key} must be a positive time such as '20s', got {given!r}")
    return seconds


def _ports(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    try:
        first, _, last = str(given).partition("-")
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 0 < ports[0] <= ports[1] < 65536:
        raise ValueError(f"daskstrads.ports must be like '9000-9100', got {given!r}")
    return ports
