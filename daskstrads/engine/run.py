"""The one loop: schedule, push, exchange, pull, the same for every algorithm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..comm.local import DEFAULT_TIMEOUT
from ..comm.local import launch as launch_threads
from .exchange import exchange
from .plans import asked
from .program import check_program
from .rank import Parked, Rank

__all__ = ["Run", "check_memory", "collected", "launch", "on_cluster", "ranks_available", "run", "say"]


_SLOW, _SLOW_ROUNDS = 1.0, 3  # seconds a round, and how many in a row: then tasks cost nothing to speak of


class Run(NamedTuple):
    """What `run` returns: the ranks' shards, the number of rounds, and the reports of the last round.

    Where the program has a method `result(shard)`, `shards` holds what that made of them.
    """

    shards: list[Any]
    rounds: int
    reports: list[Any]


def run(
    program: Any,
    parts: Sequence[Any],
    *,
    seed: int = 0,
    callback: Callable[[int, Any, list[Any] | None], None] | None = None,
    round_timeout: float = DEFAULT_TIMEOUT,
    gather: bool = True,
    transport: str | None = None,
) -> Run:
    """Run `program` with one rank a part until its schedule returns None (STRADS, section 2).

    A round is: plan = schedule(round, reports); sent = push(shard, plan); exchange;
    report = pull(shard, plan, received, sent). Bits depend on the parts and the seed, not on timing.

    Args:
        program: a `Program`, or any object with its four methods.
        parts: what `init` gets, one entry a rank; ranks are threads. On a cluster also Futures, whose values
            are used where they are.
        seed: whole number; rank p's generator is keyed by (seed, p).
        callback: called on rank 0 with (round, plan, reports) before every round, and once with plan None;
            reports are None where the schedule needs none. On a cluster it runs on a worker: what it changes
            in the caller's own objects stays there.
        round_timeout: seconds a rank waits for the others in one exchange.
        gather: False leaves the shards on their workers, where there are any: `shards` are then Futures.
        transport: on a cluster, "mesh" (workers connect to each other), "tasks" (push, merge and pull are
            Dask tasks; 20-40 ms a round), or "auto": tasks where the workers can't connect or rounds take
            over a second. "threads": in this process, whatever Client there is. None: what Dask's
            configuration says (`daskstrads.transport`), else "auto".

    Raises:
        TypeError: a method is missing, misspelt or takes the wrong arguments (before round 0).
        ValueError: no parts, or a seed or timeout out of range.
        RuntimeError: ranks disagree about replicated state or about what to exchange.
        Exception: whatever a rank raised, with a note that names rank, phase and round.
    """
    check_program(program)
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if transport not in (None, "auto", "mesh", "tasks", "threads"):
        raise ValueError(f"transport must be 'auto', 'mesh', 'tasks' or 'threads', got {transport!r}")
    parts = list(parts)
    live = _Live(program, int(seed), callback, not gather)
    client = None if transport == "threads" else _client()
    if client is None and transport in ("mesh", "tasks"):
        raise ValueError(
            f"transport={transport!r} needs a current dask.distributed Client; there is none here"
        )
    if client is None or not parts:
        lives = launch_threads(live, parts, timeout=round_timeout)
        return Run([life.shards[0] for life in lives], lives[0].rounds, lives[0].reports)
    from .cluster_dask import run_on_workers

    return Run(*run_on_workers(client, live, parts, timeout=round_timeout, transport=transport))


def launch(
    fn: Callable[[Any, Any], Any], parts: Sequence[Any], *, timeout: float = DEFAULT_TIMEOUT
) -> list[Any]:
    """Run `fn(group, part)` once a rank, `len(parts)` ranks; their results in rank order.

    Ranks are threads, or with a current dask.distributed Client run on its workers. When a rank raises,
    all others end at once and its error is raised here with a note that names the rank.

    Raises: as `comm.local.launch` and, with a Client, `cluster_dask.launch_on_workers`.
    """
    parts = list(parts)
    client = _client()
    if client is None or not parts:
        return launch_threads(fn, parts, timeout=timeout)
    from .cluster_dask import launch_on_workers

    return launch_on_workers(client, fn, parts, timeout=timeout, name=getattr(fn, "__name__", "launch"))


def collected(shards: Sequence[Any]) -> list[Any]:
    """A run's shards, fetched from their workers where they stayed there."""
    if "distributed" not in sys.modules:
        return list(shards)
    from .session_dask import collected as fetched

    return fetched(shards)


def check_memory(plan: Any) -> None:
    """Raise MemoryError when ranks that need `plan.total` bytes each do not fit the cluster's workers.

    Without a Client nothing is checked: the data are in this process already.
    """
    client = _client()
    if client is not None:
        from .placement_dask import check_memory_limits

        check_memory_limits(client, plan.ranks, plan.total, str(plan))


def on_cluster() -> bool:
    """Whether a run would use a cluster: there is a current Client, and this is no task."""
    return _client() is not None


def say(line: str) -> None:
    """Print a line where the user sees it: on a worker, through the cluster's clients."""
    if "distributed" in sys.modules:
        from .placement_dask import said_by_worker

        if said_by_worker(line):
            return
    print(line, flush=True)


def ranks_available(cores: int) -> int:
    """Ranks that a run can keep busy: the cluster's worker threads with a current Client, else `cores`.

    One inside a task: its worker's other threads have tasks of their own.
    """
    client = _client()
    if client is None and "distributed" not in sys.modules:
        return cores
    from .placement_dask import cluster_ranks, inside_task

    if client is None:
        return 1 if inside_task() else cores
    return cluster_ranks(client)


def _client() -> Any:
    """The current Client; distributed is not imported for it, since without it there is none."""
    if "distributed" not in sys.modules:
        return None
    from .placement_dask import current_client

    return current_client()


@dataclass(frozen=True)
class _Live:
    """One rank's life, as something that can be sent to it."""

    program: Any
    seed: int
    callback: Any
    keep: bool
    parks: bool = False  # whether tasks may take over when rounds are slow

    def __call__(self, group: Any, part: Any) -> Run:
        desk = group.desk
        rank = Rank(self.program, group.rank, group.size, self.seed, self.callback)
        try:
            dealt = desk is not None and desk.dealt
            plans = desk.plans(rank.place) if dealt else asked(rank.schedule, group)
            rank.init(part)
            reports = _loop(rank, plans, group, self.parks)
            if reports is None:
                desk.park(rank)
                return Run([Parked()], rank.round, [])
            shard = rank.result()
            return Run([desk.keep(shard) if desk is not None and self.keep else shard], rank.round, reports)
        except Exception as error:
            rank.note(error)
            raise


def _loop(rank: Rank, plans: Callable[[int, Any], Any], group: Any, parks: bool) -> list[Any] | None:
    """Rounds until there is no plan; the last reports. None: it `parks`, and rounds have become slow."""
    slow = 0
    most_patient = 0

    def compare(heads: list[tuple[int, int, int]]) -> None:
        nonlocal most_patient
        rounds, checksums, counts = zip(*heads, strict=True)
        if len(set(rounds)) > 1:
            raise RuntimeError(f"the ranks are in different rounds: {list(rounds)}, in rank order")
        rank.compare(list(checksums))
        most_patient = min(counts)  # the same on all ranks

    while most_patient < _SLOW_ROUNDS:
        start = time.monotonic()
        plan, reports = plans(rank.round, rank.report)
        rank.told(plan, reports)
        if plan is None:
            break
        head = (rank.round, rank.checksum, slow)
        rank.pull(exchange(rank.push(plan), group, head, compare, rank.passing))
        slow = slow + 1 if parks and time.monotonic() - start > _SLOW else 0
    else:
        rank.passing.settle()
        return None
    rank.phase = "last exchange"
    final = group.meet((rank.checksum, rank.report), "last reports")
    rank.compare([entry[0] for entry in final])
    return [entry[1] for entry in final]
