"""Runs on a Dask cluster: over a mesh of its workers, or as tasks where they cannot connect."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from ..comm.mesh_group import Unreachable
from .options_dask import Options
from .plugin_dask import WarmPlugin
from .rank import Parked, Rank
from .session_dask import Session
from .tasks_dask import Tasks

__all__ = ["launch_on_workers", "run_on_workers"]


def launch_on_workers(
    client: Client, fn: Callable[[Any, Any], Any], parts: Sequence[Any], *, timeout: float, name: str
) -> list[Any]:
    """`comm.local.launch` on the client's workers: `fn(group, part)` once a rank, results in rank order.

    Every part goes to its worker once, or is made there (`Deferred`); ranks then talk to each other directly.

    Raises:
        RuntimeError: no workers, or a scheduler or workers without this package.
        PeerLost: a worker was lost.
        Exception: whatever a rank raised, with a note that names the rank.
    """
    with Session(client, name, parts, Options.read()) as session:
        session.open(None, 0)
        return session.hosted(fn, timeout, False)


def run_on_workers(
    client: Client, live: Any, parts: Sequence[Any], *, timeout: float, transport: str | None
) -> tuple[list[Any], int, list[Any]]:
    """Shards (Futures where they are kept), rounds and last reports of `live`, an engine.run `_Live`.

    Raises: as `launch_on_workers`.
    """
    options = Options.read()
    done = _run(client, live, parts, options, timeout, transport or options.transport)
    warm = getattr(live.program, "warm", None)
    if warm is not None:
        with contextlib.suppress(Exception):  # the run has succeeded; later workers just start colder
            client.register_plugin(WarmPlugin(type(live.program).__qualname__, warm))
    return done


def _run(
    client: Client, live: Any, parts: Sequence[Any], options: Options, timeout: float, transport: str
) -> tuple[list[Any], int, list[Any]]:
    if transport != "tasks":
        try:
            return _over_mesh(client, live, parts, options, timeout, transport == "auto")
        except Unreachable as error:
            if transport == "mesh":
                raise
            warnings.warn(
                f"the workers cannot connect to each other, so this run goes on as Dask tasks, 20-40 ms a "
                f"round: {error}. To open: the workers' ports to each other (daskstrads.ports); to have no "
                "warning: dask.config.set({'daskstrads.transport': 'tasks'})",
                RuntimeWarning,
                stacklevel=4,
            )
    with Session(client, type(live.program).__name__, parts, options) as session:
        session.open(live.program.schedule, live.seed)
        return _in_tasks(session, live, timeout, None)


def _over_mesh(
    client: Client, live: Any, parts: Sequence[Any], options: Options, timeout: float, parks: bool
) -> tuple[list[Any], int, list[Any]]:
    with Session(client, type(live.program).__name__, parts, options) as session:
        session.open(live.program.schedule, live.seed)
        fn = dataclasses.replace(live, parks=parks)
        lives = session.hosted(fn, timeout, live.callback is not None)
        if isinstance(lives[0].shards[0], Parked):
            return _in_tasks(session, live, timeout, lives[0].rounds)
        return session.adopted([life.shards[0] for life in lives]), lives[0].rounds, lives[0].reports


def _in_tasks(
    session: Session, live: Any, timeout: float, parked: int | None
) -> tuple[list[Any], int, list[Any]]:
    tasks = Tasks(session, timeout)
    try:
        if parked is None:
            tasks.begin(live.program, live.seed, live.callback)
        else:
            tasks.resume(parked)
        tasks.rounds()
        ends = tasks.end(live.keep)
    finally:
        tasks.close()
    Rank(live.program, 0, len(ends), live.seed, None).compare([end.checksum for end in ends])
    shards = session.adopted([end.shard for end in ends])
    return shards, tasks.round, [end.report for end in ends]
