"""The scheduler's part: sessions, their members, and the built-in policies that deal their plans."""

from __future__ import annotations

import asyncio
import io
import pickle
import secrets
import time
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from ..comm import codec
from .policy import Policy

__all__ = ["SessionPlugin", "packed_policy"]

_AHEAD = 32  # plans in one answer, where they can be dealt ahead
_ANSWER = 1 << 16  # bytes after which an answer holds no further plan
_KEPT = 2 * _AHEAD  # plans kept behind the slowest asker, for ranks that change their transport


def packed_policy(schedule: Any) -> bytes | None:
    """A built-in policy, made of this package's own classes, as bytes; None for any other schedule."""
    if not isinstance(schedule, Policy):
        return None
    try:
        raw = pickle.dumps(schedule)
        _policy(raw)
    except Exception:  # a class of the user's own, or something that cannot be pickled at all
        return None
    return raw


def _policy(raw: bytes) -> Policy:
    return _Own(io.BytesIO(raw)).load()


class _Own(pickle.Unpickler):
    """Makes nothing but this package's policies: no code of a user's own on the scheduler."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in ("numpy", __name__.partition(".")[0]):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a built-in policy")
        return super().find_class(module, name)


class _Deal:
    """One session's policy and the plans it has dealt."""

    def __init__(self, policy: Policy, size: int):
        self.policy, self.size = policy, size
        self.plans: dict[int, list[bytes]] = {}
        self.reports: dict[int, list[bytes]] = {}  # of the ranks that have sent theirs
        self.made_of: tuple[int, list[list[bytes]]] = (-1, [])  # round, reports its plan was made of
        self.next = 0  # first round without a plan
        self.ended = False
        self.asked: dict[int, int] = {}  # by asker: the first round it has no plan of
        self.error: Exception | None = None
        self.waiters: list[asyncio.Future] = []
        self.busy = False

    def ready(self) -> bool:
        """Whether the next plan can be made now."""
        return not self.busy and (not self.policy.waits(self.next) or len(self.reports) == self.size)

    def advance(self) -> None:
        """Make the next plans: one of the reports, and those after it that need none."""
        reports = None
        if self.policy.waits(self.next):
            packed = [self.reports[rank] for rank in range(self.size)]
            self.made_of = self.next, packed
            reports = [codec.unpacked(entry) for entry in packed]
        size = 0
        for round in range(self.next, self.next + _AHEAD):
            plan = self.policy(round, reports)
            self.plans[round] = packed_plan = codec.packed(plan)
            self.next = round + 1
            size += sum(map(len, packed_plan))
            if plan is None:
                self.ended = True
                return
            if size > _ANSWER or self.policy.waits(self.next):
                return
            reports = None

    def answer(self, round: int, told: bool) -> dict[str, Any]:
        """The plans from `round` on; "more" says that the next can be had without reports."""
        stop = min(self.next, round + _AHEAD)
        plans = [self.plans[entry] for entry in range(round, stop)]
        more = stop < self.next or not (self.ended or self.policy.waits(self.next))
        reports = self.made_of[1] if told and self.made_of[0] == round else None
        return {"plans": plans, "more": more, "reports": reports}

    def prune(self, asker: int, round: int, askers: int) -> None:
        if askers < len(self.asked):  # ranks that ask one by one now
            self.asked = {}
        self.asked[asker] = round
        if len(self.asked) == askers:
            for old in [entry for entry in self.plans if entry < min(self.asked.values()) - _KEPT]:
                del self.plans[old]


class _Session:
    """Who takes part in a run."""

    def __init__(self, client: str, workers: list[str], ranks: list[list[int]], deal: _Deal | None):
        self.client, self.workers, self.ranks, self.deal = client, workers, ranks, deal
        self.token = secrets.token_hex(16)  # 32 characters: what every connection opens with
        self.epoch = 1
        self.members: dict[int, dict[str, Any]] = {}
        self.settled = asyncio.Event()
        self.ended = asyncio.Event()
        self.trouble: str | None = None
        self.kept: set[Any] = set()  # keys of results that became Dask data

    def settle(self, trouble: str | None) -> None:
        if self.trouble is None:
            self.trouble = trouble
        self.settled.set()
        if self.trouble is not None:
            self.ended.set()


class SessionPlugin(SchedulerPlugin):
    """Keeps the running sessions: who takes part, where they listen, what their policies deal.

    Nobody who takes part is retired meanwhile. No rank waits for the scheduler but where a policy needs
    fresh reports; other plans are dealt ahead.
    """

    name = "daskstrads-sessions"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Install the handlers."""
        self.scheduler = scheduler
        self.sessions: dict[str, _Session] = {}
        for each in (self.open, self.join, self.deal, self.keep, self.status, self.leave):
            scheduler.handlers[f"daskstrads_{each.__name__}"] = each

    async def open(
        self, session: str, client: str, workers: list[str], ranks: list[list[int]], seed: int,
        policy: bytes | None,
    ) -> None:  # fmt: skip
        """A session of these workers, with these ranks on each; `policy` is a `packed_policy` or None."""
        deal = None
        if policy is not None:
            size = sum(map(len, ranks))
            deal = _Deal(await _aside(lambda: _policy(policy).begin(size, seed)), size)
        members = [list(each) for each in ranks]  # they arrive as tuples
        self.sessions[session] = _Session(client, workers, members, deal)

    async def join(self, session: str, index: int, member: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Announce worker `index`; once all have: every worker's address, the token and the epoch.

        `member` has "worker" (Dask's address), "host", "port" and "versions". An answer with "trouble" says
        why the session can't start.
        """
        entry = self.sessions.get(session)
        if entry is None:
            return {"trouble": "the session was ended"}
        entry.members[index] = member
        count = len(entry.workers)
        deaf = [each["deaf"] for each in entry.members.values() if "deaf" in each]
        if deaf:
            entry.settle(deaf[0])
        elif len(entry.members) == count:
            entry.settle(_differing(entry.members))
        try:
            await asyncio.wait_for(entry.settled.wait(), timeout)
        except TimeoutError:
            missing = [entry.workers[place] for place in range(count) if place not in entry.members]
            entry.settle(
                f"{len(missing)} of {count} workers did not start their ranks within {timeout:g} s "
                f"({', '.join(missing)}); they may be busy with other tasks, or lack memory "
                "(daskstrads.timeouts.start)"
            )
        if entry.trouble is not None:
            deaf = [each["deaf"] for each in entry.members.values() if "deaf" in each]  # others came later
            return {"trouble": entry.trouble, "deaf": entry.trouble in deaf}
        members = [entry.members[place] for place in range(count)]
        addresses = [(member["host"], member["port"]) for member in members]
        return {"addresses": addresses, "token": entry.token, "epoch": entry.epoch}

    async def deal(
        self, session: str, asker: int, round: int, reports: list[tuple[int, list[bytes]]], told: bool,
        askers: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Plans from `round` on, once the reports they need are there; `told`: with those reports.

        Each of the `askers` workers brings the reports (rank, packed) of its own ranks.
        """
        entry = self.sessions.get(session)
        if entry is None or entry.deal is None:
            return {"trouble": "the session was ended"}
        deal = entry.deal
        if round == deal.next:
            deal.reports.update(dict(reports))
        ended = asyncio.ensure_future(entry.ended.wait())
        try:
            while round >= deal.next and deal.error is None:
                if entry.ended.is_set():
                    return {"trouble": entry.trouble or "the session was ended"}
                if deal.ready():
                    await self._advance(deal)
                    continue
                changed = asyncio.get_running_loop().create_future()
                deal.waiters.append(changed)
                await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if deal.error is not None:
            raise deal.error
        answer = deal.answer(round, told)
        deal.prune(asker, round, askers)
        return answer

    async def _advance(self, deal: _Deal) -> None:
        deal.busy = True
        try:
            await _aside(deal.advance)  # off the event loop
        except Exception as error:
            deal.error = error
        deal.reports, deal.busy = {}, False
        waiters, deal.waiters = deal.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def keep(self, session: str, who_has: dict[Any, list[str]], nbytes: dict[Any, int]) -> bool:
        """Results that stay on their workers become Dask data of the session's client; False: it has gone."""
        entry = self.sessions.get(session)
        if entry is None or entry.client not in self.scheduler.clients:
            return False
        self.scheduler.update_data(who_has=who_has, nbytes=nbytes, client=entry.client)
        entry.kept = {key for key in entry.kept if key in self.scheduler.tasks} | set(who_has)
        return True

    async def status(self, session: str) -> dict[str, Any]:
        """How many have joined, who has left, and seconds since each of the others was last heard of."""
        entry = self.sessions.get(session)
        if entry is None:
            return {"joined": 0, "lost": [], "silent": {}}
        workers = self.scheduler.workers
        now = time.time()
        silent = {where: now - workers[where].last_seen for where in entry.workers if where in workers}
        lost = [
            where for where in entry.workers if where not in workers
        ]  # also before the session was opened
        return {"joined": len(entry.members), "lost": lost, "silent": silent}

    async def leave(self, session: str, adopted: list[Any], sent: list[Any] | None = None) -> None:
        """The session is over; of the results that became Dask data its client knows those `adopted`.

        The parts that were `sent` are released, whatever still refers to them on the client.
        """
        entry = self.sessions.get(session)
        if entry is not None and entry.client in self.scheduler.clients:
            over = [*entry.kept.difference(adopted), *(sent or [])]
            known = [key for key in over if key in self.scheduler.tasks]
            self.scheduler.client_releases_keys(keys=known, client=entry.client)
        self._end(session, "the session was ended")

    def _end(self, session: str, why: str) -> None:
        entry = self.sessions.pop(session, None)
        if entry is not None:
            entry.settle(why)
            entry.ended.set()
            self._tell(entry, session, why)

    def _tell(self, entry: _Session, session: str, why: str) -> None:
        for address in entry.workers:
            if address in self.scheduler.stream_comms:
                message = {"op": "daskstrads-over", "session": session, "why": why}
                self.scheduler.stream_comms[address].send(message)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Its sessions end: whoever waits in them is told, and later messages are of an older epoch."""
        for session, entry in self.sessions.items():
            if worker in entry.workers:
                entry.epoch += 1
                place = entry.workers.index(worker)
                ranks = entry.ranks[place]
                why = f"worker {place} with rank(s) {ranks} is lost: {worker} left the cluster"
                entry.settle(why)
                entry.ended.set()
                self._tell(entry, session, why)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Nobody waits for its sessions any more."""
        for session in [name for name, entry in self.sessions.items() if entry.client == client]:
            self._end(session, "the client of this run has gone")

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Workers that take part in a session stay during adaptive scaling."""
        busy = {address for entry in self.sessions.values() for address in entry.workers}
        return [worker for worker in workers if worker.address not in busy]


async def _aside(call: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


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
