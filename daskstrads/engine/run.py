"""The one loop: schedule, push, exchange, pull, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..comm.group import freeze
from ..comm.local import DEFAULT_TIMEOUT, launch
from ..schedule.policy import Policy
from .exchange import exchange
from .program import check_program

__all__ = ["Run", "run"]


class Run(NamedTuple):
    """What `run` returns: the ranks' shards, the number of rounds, and the reports of the last round."""

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
    report = pull(shard, plan, received, sent). Bits depend on the parts alone, not on timing.

    Args:
        program: a `Program`, or any object with its four methods.
        parts: what `init` gets, one entry a rank; ranks are threads.
        seed: whole number; rank p's generator is keyed by (seed, p).
        callback: called on rank 0 with (round, plan, reports) before every round, and once with plan None.
        round_timeout: seconds a rank waits for the others in one exchange.

    Raises:
        TypeError: a method is missing, misspelt or takes the wrong arguments (before round 0).
        RuntimeError: ranks disagree about replicated state or about what to exchange.
        Exception: whatever a rank raised, with a note that names rank, phase and round.
    """
    check_program(program)

    def live(group: Any, part: Any) -> Run:
        return _Rank(program, group, seed, callback).run(part)

    lives = launch(live, parts, timeout=round_timeout)
    return Run([life.shards[0] for life in lives], lives[0].rounds, lives[0].reports)


class _Rank:
    """One rank's side of the loop."""

    def __init__(self, program: Any, group: Any, seed: int, callback: Any):
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
                    self.callback(number, plan, self.reports)
                if plan is None:
                    break
                phase = "push"
                sent = program.push(shard, plan)
                phase = "exchange"
                received, checksums = exchange(sent, group, checksum)
                self.compare(checksums)
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
            error.add_note(f"in phase {phase} of round {number}, {type(program).__name__}")
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
    """The replicas' bits as one 64-bit word: cheap, and enough to see a disagreement."""
    total = 0
    for name in getattr(program, "replicas", ()):
        array = np.ascontiguousarray(getattr(shard, name))
        raw = array.reshape(-1).view(np.uint8)
        whole = raw.size // 8 * 8
        words, rest = raw[:whole].view(np.uint64), raw[whole:].astype(np.uint64)
        total = (total * 31 + _weighted(words) + _weighted(rest) + array.size) % 2**64
    return total


# One a place, so that equal values at different places show (ranks that mix up local and global ids).
_WEIGHTS = np.random.default_rng(0).integers(0, 2**63, 1021, np.uint64) | np.uint64(1)


def _weighted(words: np.ndarray) -> int:
    """Sum of weight x word, the weights repeated: one pass over the words at the speed of a plain sum."""
    whole = len(words) // len(_WEIGHTS) * len(_WEIGHTS)
    total = words[:whole].reshape(-1, len(_WEIGHTS)).sum(axis=0)
    total[: len(words) - whole] += words[whole:]
    total ^= total >> np.uint64(32)  # a short float has only high bits, and those leave the product
    return int(np.dot(total, _WEIGHTS))
