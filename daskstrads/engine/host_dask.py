"""What a worker runs for a session: one long task that hosts its ranks as threads, which meet over a mesh."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import platform
import ssl
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from distributed import Worker, get_worker
from distributed.worker import secede

from ..comm import codec
from ..comm.group import Aborted, note
from ..comm.mesh import Mesh
from ..comm.mesh_group import DEAL, MeshGroup, PeerLost, Room, Unreachable
from .options_dask import Options
from .plugin_dask import Kept, kept, on_scheduler, rank_plugin
from .rank import Rank

__all__ = ["Deferred", "Host", "host", "made"]


class Deferred(NamedTuple):
    """A part that its worker makes: `fn(*args)`, where args may be Futures."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


class Host(NamedTuple):
    """What a worker needs to host its ranks."""

    session: str
    name: str
    place: int
    ranks: list[list[int]]  # of every worker
    fn: bytes  # pickled: the scheduler, which sees this, needs nothing of the user's
    timeout: float
    options: Options
    dealt: bool  # whether the scheduler deals the plans
    told: bool  # whether rank 0 wants to hear the reports that plans are made of


def host(spec: Host, recipes: Any) -> list[Any]:
    """The task: this worker's ranks as threads; their results.

    `recipes` are the parts or what makes them (`made`), one entry a rank.
    """
    worker = get_worker()
    key = worker.get_current_task()
    secede()  # the slot is free for other tasks; the dashboard still shows this one
    fn = pickle.loads(spec.fn)
    members = spec.ranks[spec.place]
    room = Room(sum(map(len, spec.ranks)), members, spec.timeout)
    mesh = _meshed(spec, room, worker)
    desk = Desk(spec, worker, room)
    results: dict[int, Any] = {}

    def abort(cause: BaseException) -> None:
        if room.abort(cause):
            mesh.tell_abort(cause)

    def live(rank: int, place: int) -> None:
        try:
            results[rank] = fn(MeshGroup(room, mesh, rank, desk), made(recipes, place))
        except Aborted as error:
            room.abort(error)
            for text in getattr(error, "__notes__", []):
                note(room.cause or error, f"rank {rank} of {room.size} was {text}")
        except BaseException as error:
            note(error, f"raised on rank {rank} of {room.size}, worker {worker.address}")
            abort(error)
        else:
            room.leave(rank)
            mesh.tell_leave(rank)

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,  # so that a run started in a rank knows where it is
            args=(live, rank, place),
            name=f"daskstrads-rank-{rank}",
            daemon=True,
        )
        for place, rank in enumerate(members)
    ]
    rooms = rank_plugin(worker).rooms
    rooms[spec.session] = abort
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if room.cause is None and not _wanted(worker, key):
                    abort(RuntimeError("the run was cancelled"))
    finally:
        rooms.pop(spec.session, None)
        mesh.close()
    if room.cause is not None and len(results) < len(members):
        if not isinstance(room.cause, Exception):  # SystemExit would end the worker
            raise RuntimeError(f"a rank raised {room.cause!r}") from room.cause
        raise room.cause
    return [results[rank] for rank in members]


def made(recipes: Any, place: int) -> Any:
    """A rank's part: one of a tuple of parts, or made by one of a list of [fn, args]."""
    if isinstance(recipes, tuple):
        return recipes[place]
    fn, args = recipes[place]
    return fn(*args)


def _wanted(worker: Worker, key: Any) -> bool:
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("long-running", "executing")


def _meshed(spec: Host, room: Room, worker: Worker) -> Mesh:
    """Listen, tell the scheduler, connect to the others."""
    mesh = Mesh(room, spec.place, spec.ranks, b"", limits=spec.options.limits, contexts=_contexts(worker))
    inproc = worker.address.startswith("inproc")
    address = "127.0.0.1" if inproc else worker.address.split("://")[1].rsplit(":", 1)[0].strip("[]")
    member = {"worker": worker.address, "host": address, "port": 0, "versions": _versions()}
    try:
        if len(spec.ranks) > 1:
            member["port"] = mesh.listen(address, spec.options.ports)
    except OSError as error:  # the others must not wait for this worker
        member["deaf"] = f"worker {worker.address} can open no port of {spec.options.ports or 'any'}: {error}"
    answer = on_scheduler(
        worker, "join", spec.options.start + 10,
        session=spec.session, index=spec.place, member=member, timeout=spec.options.start,
    )  # fmt: skip
    if "trouble" in answer:
        mesh.close()
        raise (Unreachable if answer.get("deaf") else RuntimeError)(answer["trouble"])
    mesh.token, mesh.epoch = answer["token"].encode(), answer["epoch"]
    mesh.connect([tuple(entry) for entry in answer["addresses"]])
    return mesh


def _contexts(worker: Worker) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The cluster's own TLS contexts, for accepting and for calling."""
    if not worker.address.startswith("tls"):
        return None, None
    security = worker.security
    return (
        security.get_listen_args("worker").get("ssl_context"),
        security.get_connection_args("worker").get("ssl_context"),
    )


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("numpy", "numba")}
    own = sys.modules[__name__.partition(".")[0]].__version__
    return found | {"daskstrads": own, "python": platform.python_version()}


class Desk:
    """A worker's side of plans that the scheduler deals: its ranks' reports go out as one message."""

    def __init__(self, spec: Host, worker: Worker, room: Room):
        self._spec, self._worker, self._room = spec, worker, room
        self._mutex = threading.Lock()
        self._reports: dict[int, list[bytes]] = {}
        self._next = 0  # first round without a plan here
        self._more = True  # it can be had without reports
        self._reserve = 1  # plans left here when the next are fetched
        self._asking = False
        self.dealt = spec.dealt

    def plans(self, rank: int) -> Callable[[int, Any], tuple[Any, list[Any] | None]]:
        """`plans(round, report) -> (plan, reports or None)` for a rank."""

        def plan(round: int, report: Any) -> tuple[Any, list[Any] | None]:
            self._bring(rank, round, report)
            given, reports = self._room.take(DEAL, rank, rank, "plan")
            if isinstance(given, Exception):
                raise given
            told = None if reports is None else [codec.unpacked(entry) for entry in reports]
            return codec.unpacked(given), told

        return plan

    def keep(self, value: Any) -> Kept:
        """Let a rank's result stay here as Dask data."""
        return kept(self._worker, self._spec.session, self._spec.name, value)

    def park(self, rank: Rank) -> None:
        """Let a rank wait here for tasks to drive it on."""
        rank_plugin(self._worker).ranks[self._spec.session, rank.place] = rank

    def _bring(self, rank: int, round: int, report: Any) -> None:
        """Ask for plans when they run out; the reports go with it where they are needed."""
        with self._mutex:
            if self._more:
                due = not self._asking and round >= self._next - self._reserve
            elif round == self._next:
                self._reports[rank] = codec.packed(report)
                due = len(self._reports) == len(self._room.local)
            else:
                due = False
            if not due:
                return
            self._asking = True
            reports, self._reports = self._reports, {}
            first = self._next
        loop: Any = self._worker.loop
        asyncio.run_coroutine_threadsafe(self._ask(first, list(reports.items())), loop.asyncio_loop)

    async def _ask(self, round: int, reports: list[Any]) -> None:
        spec, boxes = self._spec, self._room.box[DEAL]
        try:
            answer = await self._worker.scheduler.daskstrads_deal(
                session=spec.session, asker=spec.place, round=round, reports=reports,
                told=spec.told and 0 in self._room.local, askers=len(spec.ranks),
            )  # fmt: skip
            if "trouble" in answer:
                raise PeerLost(answer["trouble"])
        except Exception as error:
            for rank in self._room.local:
                boxes[rank][rank].put((error, None))
            return
        with self._mutex:
            self._next = round + len(answer["plans"])
            self._reserve = max(1, len(answer["plans"]) // 2)
            self._more, self._asking = answer["more"], False
        for rank in self._room.local:
            for place, plan in enumerate(answer["plans"]):
                boxes[rank][rank].put((plan, answer["reports"] if rank == 0 and not place else None))
