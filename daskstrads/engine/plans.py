"""Where a rank's plans come from when no scheduler deals them."""

from __future__ import annotations

from typing import Any

from ..comm.group import Group
from ..schedule.policy import Policy

__all__ = ["asked"]


def asked(schedule: Any, group: Group) -> Any:
    """`plans(round, report) -> (plan, reports or None)`, called on all ranks, the same plan on each."""
    return (_Copies if isinstance(schedule, Policy) else _Leader)(schedule, group)


class _Copies:
    """A policy is a pure function, so every rank asks a copy of its own and no plan has to travel."""

    def __init__(self, policy: Policy, group: Group):
        self.policy, self.group = policy, group

    def __call__(self, round: int, report: Any) -> tuple[Any, list[Any] | None]:
        reports = self.group.meet(report, "reports") if round and self.policy.waits(round) else None
        return self.policy(round, reports), reports


class _Leader:
    """A user's own schedule may be no pure function: rank 0 asks it, the others are told."""

    def __init__(self, schedule: Any, group: Group):
        self.schedule, self.group = schedule, group

    def __call__(self, round: int, report: Any) -> tuple[Any, list[Any] | None]:
        reports = self.group.meet(report, "reports") if round else None
        plan = self.schedule(round, reports) if self.group.rank == 0 else None
        return self.group.gather(plan, "plan")[0], reports
