"""A worker's part: the sessions that run on it, and the ranks that tasks drive."""

from __future__ import annotations

from typing import Any

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

__all__ = ["RankPlugin", "rank_plugin"]


class RankPlugin(WorkerPlugin):
    """What outlives a task: rooms, so that a closing worker says goodbye, and ranks between two tasks."""

    name = "daskstrads-ranks"
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Nothing runs here yet."""
        self.address = worker.address
        self.rooms: dict[str, Any] = {}  # of the running sessions: something with `abort`
        self.ranks: dict[tuple[str, int], Any] = {}  # (session, rank): an engine.rank.Rank and its state

    def teardown(self, worker: Worker) -> None:
        """The worker closes: its ranks end, and the others hear why."""
        self.ranks.clear()
        for abort in list(self.rooms.values()):
            abort(RuntimeError(f"worker {self.address} is closing"))

    def forget(self, session: str) -> None:
        """The session is over."""
        for held in [held for held in self.ranks if held[0] == session]:
            del self.ranks[held]


def rank_plugin(worker: Worker) -> RankPlugin:
    """The worker's plugin.

    Raises:
        RuntimeError: it has none.
    """
    plugin = worker.plugins.get(RankPlugin.name)
    if not isinstance(plugin, RankPlugin):
        raise RuntimeError(f"worker {worker.address} has no daskstrads plugin; did it fail to load?")
    return plugin
