"""Progress of a fit, for people: a line a pass."""

from __future__ import annotations

import time

from ..engine.run import say
from ..schedule import Plan, Report
from .objective import Penalty, gap_of, primal_of

__all__ = ["Progress"]


class Progress:
    """Prints a line after every measurement of a fit with n rows."""

    def __init__(self, penalty: Penalty, n: int):
        self.penalty, self.n = penalty, n
        self.start = time.perf_counter()

    def __call__(self, round: int, plan: Plan | None, reports: list[Report] | None) -> None:
        """A callback of `run`: prints once every rank has measured."""
        if not reports or reports[0] is None or "rr" not in reports[0].terms:
            return
        terms = reports[0].terms
        support = sum(int(report.terms["support"]) for report in reports)
        objective, gap = primal_of(reports, self.penalty) / self.n, gap_of(reports, self.penalty) / self.n
        say(
            f"[daskstrads] pass {int(terms['passes'])}: objective {objective:.8g}, gap {gap:.2e}, "
            f"{support} nonzero, {time.perf_counter() - self.start:.2f} s"
        )
