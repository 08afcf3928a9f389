"""The scheduler's part: sessions and their members, so that workers find each other."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

__all__ = ["SessionPlugin"]


class _Session:
    def __init__(self, count: int):
        self.count = count
        self.token = secrets.token_hex(16)  # 32 characters: what every connection opens with
        self.members: dict[int, dict[str, Any]] = {}
        self.settled = asyncio.Event()
        self.trouble: str | None = None

    def settle(self, trouble: str | None) -> None:
        if self.trouble is None:
            self.trouble = trouble
        self.settled.set()


class SessionPlugin(SchedulerPlugin):
    """Keeps the running sessions: who takes part, where they listen; nobody retires them meanwhile."""

    name = "daskstrads-sessions"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Install the handlers."""
        self.sessions: dict[str, _Session] = {}
        scheduler.handlers["daskstrads_join"] = self.join
        scheduler.handlers["daskstrads_leave"] = self.leave

    async def join(
        self, session: str, index: int, count: int, member: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        """Announce worker `index` of `count`; once all have: every worker's address and the token.

        `member` has "worker" (Dask's address), "host", "port" and "versions". An answer with "trouble" says
        why the session can't start.
        """
        entry = self.sessions.setdefault(session, _Session(count))
        entry.members[index] = member
        if len(entry.members) == count:
            entry.settle(_differing(entry.members))
        try:
            await asyncio.wait_for(entry.settled.wait(), timeout)
        except TimeoutError:
            missing = sorted(set(range(count)) - set(entry.members))
            entry.settle(
                f"{len(missing)} of {count} workers did not start their ranks within {timeout:g} s; they may "
                "be busy with other tasks, or lack memory"
            )
        if entry.trouble is not None:
            return {"trouble": entry.trouble}
        addresses = [(entry.members[place]["host"], entry.members[place]["port"]) for place in range(count)]
        return {"addresses": addresses, "token": entry.token}

    async def leave(self, session: str) -> None:
        """The session is over."""
        entry = self.sessions.pop(session, None)
        if entry is not None:
            entry.settle("the session was ended")

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Sessions that wait for this worker need not wait any longer."""
        for entry in self.sessions.values():
            if any(member["worker"] == worker for member in entry.members.values()):
                entry.settle(f"worker {worker} left before the session started")

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Workers that take part in a session stay during adaptive scaling."""
        busy = {member["worker"] for entry in self.sessions.values() for member in entry.members.values()}
        return [worker for worker in workers if worker.address not in busy]


def _differing(members: dict[int, dict[str, Any]]) -> str | None:
    """What is wrong when the workers' versions are not all the same."""
    versions: dict[str, list[str]] = {}
    for member in members.values():
        told = ", ".join(f"{name} {version}" for name, version in sorted(member["versions"].items()))
        versions.setdefault(told, []).append(member["worker"])
    if len(versions) == 1:
        return None
    told = "; ".join(f"{', '.join(where)}: {what}" for what, where in versions.items())
    return f"the workers' versions differ, and so would their bits: {told}; install the same everywhere"
