"""The one loop: schedule, push, exchange, pull, the same for every algorithm."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..comm.group import Group, freeze, note
from ..comm.local import DEFAULT_TIMEOUT
from ..comm.local import launch as launch_threads
from ..schedule.policy import Policy
from .exchange import exchange
from .program import check_program

__all__ = ["Run", "run"]


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
) -> Run:
    """Run `program` with one rank a part until its schedule returns None (STRADS, section 2).

    A round is: plan = schedule(round, reports); sent = push(shard, plan); exchange;
    report = pull(shard, plan, received, sent). Bits depend on the parts and the seed, not on timing.

    Args:
        program: a `Program`, or any object with its four methods.
        parts: what `init` gets, one entry a rank; ranks are threads.
        seed: whole number; rank p's generator is keyed by (seed, p).
        callback: called on rank 0 with (round, plan, reports) before every round, and once with plan None;
            reports are None where the schedule needs none.
        round_timeout: seconds a rank waits for the others in one exchange.

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
    lives = launch(_Live(program, seed, callback), parts, timeout=round_timeout)
    return Run([life.shards[0] for life in lives], lives[0].rounds, lives[0].reports)


def launch(
    fn: Callable[[Any, Any], Any], parts: Sequence[Any], *, timeout: float = DEFAULT_TIMEOUT
) -> list[Any]:
    """Run `fn(group, part)` once a rank, `len(parts)` ranks; their results in rank order.

    Ranks are threads, or with a current dask.distributed Client run on its workers. When a rank raises,
    all others end at once and its error is raised here with a note that names the rank.

    Raises: as `comm.local.launch` and, with a Client, `session_dask.launch_on_workers`.
    """
    parts = list(parts)
    client = _client()
    if client is None or not parts:
        return launch_threads(fn, parts, timeout=timeout)
    from .session_dask import launch_on_workers

    name = type(fn.program).__name__ if isinstance(fn, _Live) else getattr(fn, "__name__", "launch")
    return launch_on_workers(client, fn, parts, timeout=timeout, name=name)


def ranks_available(cores: int) -> int:
    """Ranks that a run can keep busy: the cluster's worker threads with a current Client, else `cores`."""
    client = _client()
    if client is None:
        return cores
    from .session_dask import cluster_ranks

    return cluster_ranks(client)


def _client() -> Any:
    """The current Client; distributed is not imported for it, since without it there is none."""
    if "distributed" not in sys.modules:
        return None
    from .session_dask import current_client

    return current_client()


@dataclass(frozen=True)
class _Live:
    """One rank's life, as something that can be sent to it."""

    program: Any
    seed: int
    callback: Any

    def __call__(self, group: Any, part: Any) -> Run:
        life = _Rank(self.program, group, self.seed, self.callback).run(part)
        finish = getattr(self.program, "result", None)
        return life if finish is None else life._replace(shards=[finish(life.shards[0])])


class _Rank:
    """One rank's side of the loop."""

    def __init__(self, program: Any, group: Group, seed: int, callback: Any):
        self.program = program
        self.group = group
        self.seed = seed
        self.callback = callback if group.rank == 0 else None
        self.schedule = program.schedule
        self.hosted = isinstance(self.schedule, Policy)
        if self.hosted:
            # Built-in policies are pure functions of the reports: every rank asks its own copy.
            self.schedule = self.schedule.begin(group.size, seed)
        self.reports: list[Any] | None = None

    def run(self, part: Any) -> Run:
        program, group = self.program, self.group
        phase, number = "init", 0
        try:
            rng = np.random.default_rng([self.seed, group.rank])
            shard = program.init(part, group.rank, group.size, rng)
            report, checksum = None, _checksum(program, shard)
            while True:
                phase = "schedule"
                plan = self.plan(number, report)
                if self.callback is not None:
                    phase = "callback"
                    self.callback(number, plan, self.reports)
                if plan is None:
                    break
                phase = "push"
                sent = program.push(shard, plan)
                phase = "exchange"
                received = exchange(sent, group, checksum, self.compare)
                phase = "pull"
                # Frozen: a policy reads it while this rank goes on writing to its shard.
                report = freeze(program.pull(shard, plan, received, sent))
                checksum = _checksum(program, shard)
                number += 1
            phase = "last exchange"
            final = group.meet((checksum, report), "last reports")
            self.compare([entry[0] for entry in final])
            reports = [entry[1] for entry in final]
        except Exception as error:
            note(error, f"in phase {phase} of round {number}, {type(program).__name__}")
            raise
        return Run([shard], number, reports)

    def plan(self, number: int, report: Any) -> Any:
        """This round's plan, the same on every rank."""
        if self.hosted:
            if self.schedule.needs_reports and number:
                self.reports = self.group.meet(report, "reports")
            return self.schedule(number, self.reports)
        if number:
            self.reports = self.group.meet(report, "reports")
        # A user's own schedule may be no pure function: rank 0 asks it, the others are told.
        plan = self.schedule(number, self.reports) if self.group.rank == 0 else None
        return self.group.gather(plan, "plan")[0]

    def compare(self, checksums: list[int]) -> None:
        if any(entry != checksums[0] for entry in checksums):
            groups: dict[int, list[int]] = {}
            for rank, entry in enumerate(checksums):
                groups.setdefault(entry, []).append(rank)
            raise RuntimeError(
                f"replicated state ({', '.join(self.program.replicas)}) differs between ranks "
                f"{' and '.join(map(str, groups.values()))}: pull must write replicas from `received` "
                "alone, and all ranks need the same versions and the same CPU model"
            )


def _checksum(program: Any, shard: Any) -> int:
    """The replicas' bits, dtypes and shapes as one 64-bit word: cheap, and enough to see a disagreement."""
    total = 0
    for name in getattr(program, "replicas", ()):
        replica = np.asarray(getattr(shard, name))
        if replica.dtype.hasobject:
            found = type(getattr(shard, name)).__name__
            raise TypeError(f"replicas: {name!r} must be an array or a number of the shard, got {found}")
        kind = zlib.crc32(f"{replica.dtype.str}{replica.shape}".encode())
        raw = np.ascontiguousarray(replica).reshape(-1).view(np.uint8)
        whole = raw.size // 8 * 8
        words, rest = raw[:whole].view(np.uint64), raw[whole:].astype(np.uint64)
        total = (total * 31 + kind + _weighted(words) + _weighted(rest)) % 2**64
    return total


_WEIGHTS = np.random.default_rng(0).integers(0, 2**63, 1024, np.uint64) | np.uint64(1)
_ROW_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: a row's weight never returns


def _weighted(words: np.ndarray) -> int:
    """Sum of weight x word with another weight at every place, so that equal values that swap places show."""
    words = words ^ (words >> np.uint64(32))  # a short float has only high bits, and those leave the product
    whole = len(words) // len(_WEIGHTS) * len(_WEIGHTS)
    rows = np.einsum("ij,j->i", words[:whole].reshape(-1, len(_WEIGHTS)), _WEIGHTS)
    rows = np.append(rows, np.einsum("i,i", words[whole:], _WEIGHTS[: len(words) - whole]))
    rows ^= rows >> np.uint64(29)
    return int(np.einsum("i,i", rows, np.arange(1, 2 * len(rows), 2, dtype=np.uint64) * _ROW_FACTOR))
