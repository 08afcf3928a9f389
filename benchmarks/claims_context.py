"""What the sections of the claims page share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from claims_arms import Arm, Outcome, fit
from claims_problems import Problem

RANKS = (1, 2, 4, 8)


@dataclass
class Context:
    """What the sections work on. `patience`: seconds of a long arm; shorter ones get a share of it."""

    problems: list[Problem]
    folder: Path  # for the pictures
    patience: float
    quick: bool
    optima: dict[str, float] = field(default_factory=dict)
    scaling: list[Outcome] = field(default_factory=list)

    def optimum(self, problem: Problem) -> float:
        """The least objective over P(0), from a fit to a certified gap of 1e-9 P(0)."""
        if problem.name not in self.optima:
            found = fit(problem, Arm(), seconds=60.0, target=1e-9)
            if found.certificate is None:
                raise SystemExit(
                    f"no optimum of {problem.name}: the arm to find it has status {found.status}"
                )
            self.optima[problem.name] = found.certificate.primal / problem.null
        return self.optima[problem.name]


def verdict(outcome: Outcome) -> str:
    """Whether an arm's answer holds, for a table."""
    if outcome.status == "converged":
        return "certified" if outcome.certified else "NOT CERTIFIED"
    return {"time": "limit"}.get(outcome.status, outcome.status)
