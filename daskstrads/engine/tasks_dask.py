"""A whole run as Dask tasks: push on every rank, a tree of merges, pull; for clusters without a mesh.

Shards stay on their workers between tasks (`RankPlugin.ranks`), so the graph does not grow with the rounds.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import cloudpickle
from distributed import Future, get_worker

from ..comm import codec
from ..comm.group import note
from ..comm.mesh_group import PeerLost
from ..schedule.policy import Policy
from ..sparse_reduce.tree import steps
from .host_dask import made, on_scheduler
from .parcel import Parcel, blocks, cut, merge, opened, parcel
from .plugin_dask import Kept, kept, rank_plugin
from .rank import Rank
from .session_dask import Session

__all__ = ["Tasks"]

_DEAL = 120.0  # seconds that the scheduler may take for a plan


class _Dealt(NamedTuple):
    """Plans of the next rounds, and the reports that the first was made of."""

    plans: list[Any]
    reports: list[Any] | None


class End(NamedTuple):
    """What is left of a rank after the last round."""

    shard: Any
    checksum: int
    report: Any


class Tasks:
    """Drives one session's ranks by tasks that are pinned to their workers."""

    def __init__(self, session: Session, timeout: float):
        self.session, self.timeout = session, timeout
        self.size = len(session.parts)
        self.home = {rank: place for place, members in enumerate(session.ranks) for rank in members}
        self.round = self.waited = 0
        self.reports: list[Future] = []
        self._dealt: list[Future] = []  # the last plans
        self.pending: list[tuple[str, int, Future]] = []  # phase, round: since the client last waited

    def begin(self, program: Any, seed: int, callback: Any) -> None:
        """Make the ranks and their shards."""
        packed = cloudpickle.dumps((program, callback))  # the scheduler needs nothing of the user's
        begun = [
            self._on(rank, _begin, "init", packed, self.size, seed, *recipe)
            for rank, recipe in self.session.rank_recipes()
        ]
        self._results(begun)

    def resume(self, round: int) -> None:
        """Take over ranks that have parked on their workers before `round`."""
        self.round = self.waited = round
        self.reports = [self._on(rank, _reported, "report") for rank in range(self.size)]

    def rounds(self) -> None:
        """Rounds until the schedule ends."""
        while True:
            name, dealer = self.session.name, self.session.dealt
            [(count, ended, key)] = self._results(
                [self._on(0, _deal, "schedule", self.round, dealer, name, self.reports)]
            )
            # Data, no task's result: or else the scheduler would keep the tasks of all rounds before.
            self._dealt = self.session.adopted([key])
            for place in range(count):
                self._submit(self._dealt[0], place)
                self.round += 1
            if ended:
                return

    def _submit(self, dealt: Future, place: int) -> None:
        """One round: nothing is waited for here."""
        everybody = range(self.size)
        pushed = [
            self._on(rank, _push, "push", self.round, dealt, place, self.reports[rank : rank + (place > 0)])
            for rank in everybody
        ]
        passed = [self._on(rank, _passed, "pass", self.round, pushed[rank]) for rank in everybody]
        totals: list[Future] = list(pushed)
        for left, right in steps(self.size):
            totals[left] = self._anywhere(merge, "merge", totals[left], totals[right])
        cuts = [self._anywhere(cut, "cut", totals[0], rank) for rank in everybody]
        self.reports = [
            self._on(rank, _pull, "pull", self.round, cuts[rank], passed[rank - 1]) for rank in everybody
        ]

    def end(self, keep: bool) -> list[End]:
        """What is left of the ranks, which are then forgotten."""
        last = (self._dealt[0], keep, self.session.name)
        return self._results(
            [
                self._on(rank, _end, "result", *last, self.reports[rank : rank + 1])
                for rank in range(self.size)
            ]
        )

    def close(self) -> None:
        """Nothing is waited for any more."""
        self.session.drop([*self._dealt, *self.reports, *(future for _, _, future in self.pending)])

    def _on(self, rank: int, fn: Callable[..., Any], phase: str, *args: Any) -> Future:
        """A task for a rank, on its worker."""
        return self._task(fn, phase, rank, self.session.id, rank, *args)

    def _anywhere(self, fn: Callable[..., Any], phase: str, *args: Any) -> Future:
        return self._task(fn, phase, None, *args)

    def _task(self, fn: Callable[..., Any], phase: str, rank: int | None, *args: Any) -> Future:
        session = self.session
        where = session.addresses if rank is None else [session.addresses[self.home[rank]]]
        future = session.client.submit(
            fn, *args, workers=where, pure=False, retries=0,
            key=f"daskstrads-{session.name}-{phase}-{uuid.uuid4().hex}",
        )  # fmt: skip
        self.pending.append((phase, self.round, future))
        return future

    def _results(self, futures: list[Future]) -> list[Any]:
        """What the tasks return, which is little; all that were submitted before them are done as well."""
        rounds = max(1, self.round - self.waited)  # the timeout is for one; others were submitted at once
        self.session.watch(futures, where=self._where, within=self.timeout * rounds)
        self.waited = self.round
        self.pending = []
        return self.session.client.gather(futures)

    def _where(self) -> str:
        """What the client waits for."""
        for phase, round, future in self.pending:
            if future.status != "finished":
                return f", in phase {phase} of round {round}"
        return f", before round {self.round}"


@contextmanager
def _rank(session: str, place: int) -> Iterator[Rank]:
    """A rank that lives on this worker; errors say where it stood."""
    worker = get_worker()
    rank = rank_plugin(worker).ranks.get((session, place))
    if rank is None:
        why = rank_plugin(worker).ended.get(session, "it was restarted")
        raise PeerLost(f"rank {place} is not on worker {worker.address} any more: {why}")
    try:
        yield rank
    except Exception as error:
        rank.note(error)
        note(error, f"raised on rank {place} of {rank.size}, worker {worker.address}")
        raise


def _begin(session: str, place: int, packed: bytes, size: int, seed: int, recipes: Any, index: int) -> None:
    program, callback = pickle.loads(packed)
    rank = Rank(program, place, size, seed, callback)
    rank_plugin(get_worker()).ranks[session, place] = rank
    with _rank(session, place):
        rank.init(made(recipes, index))


def _reported(session: str, place: int) -> Any:
    with _rank(session, place) as rank:
        return rank.report


def _deal(
    session: str, place: int, round: int, hosted: bool, name: str, reports: list[Any]
) -> tuple[int, bool, Kept]:
    """Rounds that have a plan, whether they are the last, and the plans, which stay here as data."""
    dealt = _planned(session, place, round, hosted, reports)
    ended = dealt.plans[-1] is None
    return len(dealt.plans) - ended, ended, kept(get_worker(), session, name, dealt)


def _planned(session: str, place: int, round: int, hosted: bool, reports: list[Any]) -> _Dealt:
    with _rank(session, place) as rank:
        if hosted:
            packed = [(source, codec.packed(report)) for source, report in enumerate(reports)]
            answer = on_scheduler(
                get_worker(), "deal", _DEAL,
                session=session, asker=0, round=round, reports=packed, told=True, askers=1,
            )  # fmt: skip
            if "trouble" in answer:
                raise PeerLost(answer["trouble"])
            return _Dealt(list(map(codec.unpacked, answer["plans"])), reports if answer["reports"] else None)
        fresh = (
            reports
            if round and (not isinstance(rank.schedule, Policy) or rank.schedule.waits(round))
            else None
        )
        return _Dealt([rank.schedule(round, fresh)], fresh)


def _push(session: str, place: int, round: int, dealt: _Dealt, index: int, before: list[Any]) -> Parcel:
    """`before` is the rank's last report, where the client has not waited for it: it comes first."""
    with _rank(session, place) as rank:
        if rank.round != round:
            raise RuntimeError(f"rank {place} is at round {rank.round}, not at {round}: a task ran twice")
        plan = dealt.plans[index]
        rank.told(plan, dealt.reports if index == 0 else None)
        sent = rank.push(plan)
        rank.outbox[round] = blocks(sent)
        return parcel(sent, place, rank.size, rank.checksum)


def _passed(session: str, place: int, round: int, pushed: Parcel) -> list[Any]:
    with _rank(session, place) as rank:
        return rank.outbox.pop(round)


def _pull(session: str, place: int, round: int, total: Parcel, passed: list[Any]) -> Any:
    with _rank(session, place) as rank:
        rank.pull(opened(total, passed, rank.sent, rank.compare, rank.passing))
        return rank.report


def _end(session: str, place: int, dealt: _Dealt, keep: bool, name: str, before: list[Any]) -> End:
    with _rank(session, place) as rank:
        rank.told(None, dealt.reports if len(dealt.plans) == 1 else None)
        shard = rank.result()
        del rank_plugin(get_worker()).ranks[session, place]
        return End(kept(get_worker(), session, name, shard) if keep else shard, rank.checksum, rank.report)
