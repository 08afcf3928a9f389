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

_PATIENCE = 5.0  # seconds for the last passes to arrive once the fit has ended
_asked: set[str] = set()  # on a worker: topics of the fits that are to stop


class _Teller:
    """Rank 0's side: tells of a pass; returns whether the client has asked for the end meanwhile."""

    def __init__(self, topic: str):
        self.topic = topic

    def __call__(self, row: dict[str, Any], pieces: Any, last: bool) -> bool:
        worker = get_worker()
        worker.log_event(self.topic, {"worker": worker.address, "row": row, "last": last})
        return self.topic in _asked


def _ask(topic: str) -> None:
    _asked.add(topic)


def _forget(topic: str) -> None:
    _asked.discard(topic)


class _Relay:
    """The client's side: a thread that calls `listener` for each pass, in order."""

    def __init__(self, client: Client, listener: Callable[[dict[str, Any], Any, bool], bool]):
        self.client, self.listener = client, listener
        self.topic = f"daskstrads-passes-{uuid.uuid4().hex}"
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.over = threading.Event()  # the last pass has been heard of
        self.asked = ""  # the worker that was asked to stop
        self.thread = threading.Thread(target=self._listen, name="daskstrads-callbacks", daemon=True)

    def _listen(self) -> None:
        while (event := self.queue.get()) is not None:
            try:
                stop = self.error is None and self.listener(event["row"], None, event["last"])
            except BaseException as error:  # raised in fit's own thread, once the ranks have ended
                self.error, stop = error, True
            if event["last"]:
                self.over.set()
            elif stop and not self.asked:
                self.asked = event["worker"]
                self.client.run(_ask, self.topic, workers=[self.asked])


@contextmanager
def relayed(listener: Callable[[dict[str, Any], Any, bool], bool]) -> Iterator[_Teller]:
    """What rank 0 calls after each pass, so that `listener` is called in this process, a little later.

    Raises:
        Exception: whatever `listener` raised, once the fit has ended.
    """
    client = current_client()
    assert client is not None
    relay = _Relay(client, listener)
    client.subscribe_topic(relay.topic, lambda event: relay.queue.put(event[1]))
    relay.thread.start()
    try:
        yield _Teller(relay.topic)
        relay.over.wait(_PATIENCE)
    finally:
        relay.queue.put(None)
        relay.thread.join()
        if client.status == "running":
            client.unsubscribe_topic(relay.topic)
            if relay.asked:
                client.run(_forget, relay.topic, workers=[relay.asked])
    if relay.error is not None:
        raise relay.error
