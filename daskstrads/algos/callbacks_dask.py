"""Callbacks of a fit on a cluster: rank 0 tells of each pass, the client's process calls the hooks."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, get_worker

from ..engine.placement_dask import current_client

__all__ = ["relayed"]

_TOPIC = "daskstrads-passes"  # one for all fits: Dask keeps topics, their last events and handlers for good
_PATIENCE = 5.0  # seconds for the last passes to arrive once the fit has ended
_asked: set[str] = set()  # on a worker: the fits that are to stop
_running: dict[str, queue.SimpleQueue[Any]] = {}  # on the client: what is told of each fit


class _Teller:
    """Rank 0's side: tells of a pass; returns whether the client has asked for the end meanwhile."""

    def __init__(self, fit: str):
        self.fit = fit

    def __call__(self, row: dict[str, Any], pieces: Any, last: bool) -> bool:
        worker = get_worker()
        worker.log_event(_TOPIC, {"fit": self.fit, "worker": worker.address, "row": row, "last": last})
        return self.fit in _asked


def _ask(fit: str) -> None:
    _asked.add(fit)


def _forget(fit: str) -> None:
    _asked.discard(fit)


def _heard(event: tuple[float, dict[str, Any]]) -> None:
    """A client's event: of one of its fits, or of another client's."""
    told = _running.get(event[1]["fit"])
    if told is not None:
        told.put(event[1])


class _Relay:
    """The client's side: a thread that calls `listener` for each pass, in order."""

    def __init__(self, client: Client, fit: str, listener: Callable[[dict[str, Any], Any, bool], bool]):
        self.client, self.fit, self.listener = client, fit, listener
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.over = threading.Event()  # the last pass has been heard of
        self.asked = ""  # the worker that was asked to stop
        self.thread = threading.Thread(target=self._listen, name="daskstrads-callbacks", daemon=True)

    def _listen(self) -> None:
        while (event := self.told.get()) is not None:
            try:
                stop = self.error is None and self.listener(event["row"], None, event["last"])
            except BaseException as error:  # raised in fit's own thread, once the ranks have ended
                self.error, stop = error, True
            if event["last"]:
                self.over.set()
            elif stop and not self.asked:
                self.asked = event["worker"]
                self.client.run(_ask, self.fit, workers=[self.asked])


@contextmanager
def relayed(listener: Callable[[dict[str, Any], Any, bool], bool]) -> Iterator[_Teller]:
    """What rank 0 calls after each pass, so that `listener` is called in this process, a little later.

    Raises:
        Exception: whatever `listener` raised, once the fit has ended.
    """
    client = current_client()
    assert client is not None
    relay = _Relay(client, uuid.uuid4().hex, listener)
    _running[relay.fit] = relay.told
    client.subscribe_topic(_TOPIC, _heard)
    relay.thread.start()
    try:
        yield _Teller(relay.fit)
        relay.over.wait(_PATIENCE)
    finally:
        del _running[relay.fit]
        relay.told.put(None)
        relay.thread.join()
        if relay.asked and client.status == "running":
            client.run(_forget, relay.fit, workers=[relay.asked])
    if relay.error is not None:
        raise relay.error
