"""One rank's side of a run: the program's methods on its shard, and where it stands."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from ..comm.group import freeze, note
from ..schedule.policy import Policy
from .passing import Passing

__all__ = ["Parked", "Rank"]


class Parked:
    """In place of a rank's result: it waits on its worker for tasks to drive it on."""


class Rank:
    """Calls one rank's methods in turn; whoever drives it carries what they exchange.

    `phase` and `round` say where it stands, `report` is what the last pull returned, `checksum` that of the
    replicas; `schedule` is this rank's copy of a policy, or the program's own method.
    """

    def __init__(self, program: Any, place: int, size: int, seed: int, callback: Any):
        self.program, self.place, self.size, self.seed = program, place, size, seed
        self.callback = callback if place == 0 else None
        schedule = program.schedule
        self.schedule = schedule.begin(size, seed) if isinstance(schedule, Policy) else schedule
        self.phase, self.round = "init", 0
        self.shard: Any = None
        self.report: Any = None
        self.checksum = 0
        self.plan: Any = None
        self.sent: Any = None
        self.outbox: dict[int, Any] = {}  # by round: what tasks still have to pass on
        self.passing = Passing()

    def init(self, part: Any) -> None:
        """Make the shard."""
        rng = np.random.default_rng([self.seed, self.place])
        self.shard = self.program.init(part, self.place, self.size, rng)
        self.checksum = self._checksum()
        self.phase = "schedule"

    def told(self, plan: Any, reports: list[Any] | None) -> None:
        """Hear the plan of this round, and the reports it was made from."""
        if self.callback is not None:
            self.phase = "callback"
            self.callback(self.round, plan, reports)

    def push(self, plan: Any) -> Any:
        """What to exchange."""
        self.phase, self.plan = "push", plan
        self.sent = self.program.push(self.shard, plan)
        self.phase = "exchange"
        return self.sent

    def pull(self, received: Any) -> None:
        """Commit, and report."""
        self.phase = "pull"
        # Frozen: a policy reads it while this rank goes on writing to its shard.
        self.report = freeze(self.program.pull(self.shard, self.plan, received, self.sent))
        self.sent = None
        self.checksum = self._checksum()
        self.round += 1
        self.phase = "schedule"

    def _checksum(self) -> int:
        replicas = _replicas(self.program, self.shard) if self.size > 1 or self.round == 0 else []
        return _checksum(replicas) if self.size > 1 else 0

    def compare(self, checksums: list[int]) -> None:
        """Raise RuntimeError when the ranks' replicas differ; names the ranks."""
        if any(entry != checksums[0] for entry in checksums):
            groups: dict[int, list[int]] = {}
            for rank, entry in enumerate(checksums):
                groups.setdefault(entry, []).append(rank)
            raise RuntimeError(
                f"replicated state ({', '.join(self.program.replicas)}) differs between ranks "
                f"{' and '.join(map(str, groups.values()))}: pull must write replicas from `received` "
                "alone, and all ranks need the same versions and the same CPU model"
            )

    def result(self) -> Any:
        """What the run returns of this rank: the shard, or what the program makes of it."""
        self.phase = "result"
        finish = getattr(self.program, "result", None)
        return self.shard if finish is None else finish(self.shard)

    def note(self, error: BaseException) -> None:
        """Say in `error` where this rank stood."""
        note(error, f"in phase {self.phase} of round {self.round}, {type(self.program).__name__}")


def _replicas(program: Any, shard: Any) -> list[np.ndarray]:
    """What all ranks hold alike. TypeError when it is nothing that can be compared."""
    replicas = []
    for name in getattr(program, "replicas", ()):
        replica = np.asarray(getattr(shard, name))
        if replica.dtype.hasobject:
            found = type(getattr(shard, name)).__name__
            raise TypeError(f"replicas: {name!r} must be an array or a number of the shard, got {found}")
        replicas.append(replica)
    return replicas


def _checksum(replicas: list[np.ndarray]) -> int:
    """The replicas' bits, dtypes and shapes as one 64-bit word: cheap, and enough to see a disagreement."""
    total = 0
    for replica in replicas:
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
