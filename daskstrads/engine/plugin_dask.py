"""A worker's part: the sessions that run on it, and the ranks that tasks drive."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import sync

from ..comm.mesh_group import PeerLost

__all__ = ["Kept", "RankPlugin", "WarmPlugin", "kept", "on_scheduler", "rank_plugin"]


class RankPlugin(WorkerPlugin):
    """What outlives a task: rooms, so that a closing worker says goodbye, and ranks between two tasks."""

    name = "daskstrads-ranks"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Nothing runs here yet."""
        self.address = worker.address
        self.rooms: dict[str, Any] = {}  # of the running sessions: something with `abort`
        self.ranks: dict[tuple[str, int], Any] = {}  # (session, rank): an engine.rank.Rank
        self.ended: dict[str, str] = {}  # why the last sessions ended, for tasks that come late
        worker.stream_handlers["daskstrads-over"] = self.over

    def teardown(self, worker: Worker) -> None:
        """The worker closes: its ranks end, and the others hear why."""
        self.ranks.clear()
        for abort in list(self.rooms.values()):
            abort(RuntimeError(f"worker {self.address} is closing"))

    def over(self, session: str, why: str) -> None:
        """The scheduler says that the session is over."""
        for held in [held for held in self.ranks if held[0] == session]:
            del self.ranks[held]
            self.ended[session] = why
        for old in list(self.ended)[:-16]:
            del self.ended[old]
        abort = self.rooms.get(session)
        if abort is not None:
            abort(PeerLost(why))


class WarmPlugin(WorkerPlugin):
    """Has workers that start later load a program's kernels, beside their event loop and their tasks."""

    idempotent = True

    def __init__(self, name: str, warm: Callable[[], None]):
        self.name, self.warm = f"daskstrads-warm-{name}", warm

    def setup(self, worker: Worker) -> None:
        """Start at once; a run that comes meanwhile waits for numba's own lock, no longer than without."""
        threading.Thread(target=self._load, name=self.name, daemon=True).start()

    def _load(self) -> None:
        with contextlib.suppress(Exception):  # the run that needs it will say what is wrong
            self.warm()


def rank_plugin(worker: Worker) -> RankPlugin:
    """The worker's plugin.

    Raises:
        RuntimeError: it has none.
    """
    plugin = worker.plugins.get(RankPlugin.name)
    if not isinstance(plugin, RankPlugin):
        raise RuntimeError(f"worker {worker.address} has no daskstrads plugin; did it fail to load?")
    return plugin


def on_scheduler(worker: Worker, handler: str, patience: float, **message: Any) -> Any:
    """Call one of the SessionPlugin's handlers from a worker's thread, and wait for its answer."""
    call = getattr(worker.scheduler, f"daskstrads_{handler}")
    return sync(worker.loop, call, callback_timeout=patience, **message)


class Kept(NamedTuple):
    """A rank's result that stays on its worker as Dask data, under this key."""

    key: str


def kept(worker: Worker, session: str, name: str, value: Any) -> Kept:
    """Register `value` as Dask data of the session's client, without a copy.

    Raises:
        RuntimeError: the client has gone.
    """
    key = f"daskstrads-{name}-shard-{uuid.uuid4().hex}"

    async def put() -> Any:  # on the event loop: nobody else may touch the worker's state
        return worker.update_data(data={key: value})

    told = sync(worker.loop, put, callback_timeout=30.0)
    who_has = {key: [worker.address]}
    if not on_scheduler(worker, "keep", 30.0, session=session, who_has=who_has, nbytes=told["nbytes"]):
        raise RuntimeError("the client of this run has gone")
    return Kept(key)
