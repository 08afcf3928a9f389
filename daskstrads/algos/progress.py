"""Progress of a fit: rows of its history, a line a pass for people, calls for whoever follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..engine.run import say
from ..schedule import Report
from .lasso_block import Piece
from .objective import Penalty, gap_of, primal_of

__all__ = ["Asked", "Follower", "Told", "history_of", "passes_told", "table"]


def passes_told(penalty: Penalty, n: int) -> Told:
    """Of the passes of an elastic net's fit with n rows."""

    def row(round: int, seconds: float, reports: list[Report]) -> dict[str, Any]:
        return {
            "round": round,
            "objective": float(primal_of(reports, penalty)) / n,
            "gap": float(gap_of(reports, penalty)) / n,
            "support": sum(int(report.terms["support"]) for report in reports),
            "updates": float(reports[0].terms.get("updates", np.nan)),
            "seconds": seconds,
        }

    def line(row: dict[str, Any], reports: list[Report]) -> str:
        return (
            f"pass {int(reports[0].terms['passes'])}: objective {row['objective']:.8g}, "
            f"gap {row['gap']:.2e}, {row['support']} nonzero"
        )

    return Told(("round", "objective", "gap", "support", "updates", "seconds"), row, line)


def history_of(passes: list[list[tuple[int, float, dict[str, float]]]], told: Told) -> dict:
    """Arrays by column, an entry a pass, from what every rank has kept: (round, seconds, terms) a pass."""
    rows = []
    for entries in zip(*passes, strict=True):
        reports = [Report(np.empty(0, np.int64), np.empty(0), terms) for _, _, terms in entries]
        round, seconds, _ = entries[0]
        rows.append(told.row(round, seconds, reports))
    return table(rows, told)


def table(rows: list[dict[str, Any]], told: Told) -> dict[str, np.ndarray]:
    """Rows as arrays by column."""
    return {name: np.array([row[name] for row in rows]) for name in told.columns}


class Asked:
    """A policy's distance that ends the fit, at a measured point, once rank 0's follower has asked for it."""

    def __init__(self, distance: Callable[[list[Report]], float]):
        self.distance = distance

    def __call__(self, reports: list[Report]) -> float:
        """The distance from the optimum, or -inf."""
        if any(report.terms.get("stop") for report in reports):
            return -np.inf
        return self.distance(reports)


class Told(NamedTuple):
    """What is told of a pass, or a sweep: `columns` of its `row(round, seconds, reports)`, and its
    `line(row, reports)`.
    """

    columns: tuple[str, ...]
    row: Callable[[int, float, list[Report]], dict[str, Any]]
    line: Callable[[dict[str, Any], list[Report]], str]


class Follower:
    """A callback of `run`, on rank 0: after every measured round of a fit prints a line, and calls
    `listener(row, pieces, last)`, which returns whether to stop.

    Where plans name their step, "measure" rounds are measured; else all that a policy has reports of.
    `models`: whether the program hands it all ranks' pieces of the model (`pieces`; else None).
    """

    def __init__(self, told: Told, *, verbose: bool, listener: Any = None, models: bool = False):
        self.told, self.verbose, self.listener = told, verbose, listener
        self.models, self.stop = models, False
        self.pieces: list[Piece] | None = None
        self.start = time.perf_counter()
        self.step = ""  # of the round before

    def __call__(self, round: int, plan: Any, reports: list[Report] | None) -> None:
        """Called before every round: acts once every rank has measured."""
        step, self.step = self.step, "" if plan is None else getattr(plan, "step", "measure")
        if step != "measure" or not reports:
            return
        row = self.told.row(round - 1, time.perf_counter() - self.start, reports)
        if self.verbose:
            say(f"[daskstrads] {self.told.line(row, reports)}, {row['seconds']:.2f} s")
        if self.listener is not None and self.listener(row, self.pieces, plan is None):
            self.stop = True
