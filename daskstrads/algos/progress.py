"""Progress of a fit: rows of its history, a line a pass for people, calls for whoever follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.run import say
from ..schedule import Plan, Report
from .lasso_block import Piece
from .objective import Penalty, gap_of, primal_of

__all__ = ["Asked", "Follower", "history_of", "table"]

COLUMNS = ("round", "objective", "gap", "support", "updates", "seconds")


def _row(round: int, seconds: float, reports: list[Report], penalty: Penalty, n: int) -> dict[str, Any]:
    """One measurement of a fit with n rows, from all ranks' reports."""
    return {
        "round": round,
        "objective": float(primal_of(reports, penalty)) / n,
        "gap": float(gap_of(reports, penalty)) / n,
        "support": sum(int(report.terms["support"]) for report in reports),
        "updates": float(reports[0].terms.get("updates", np.nan)),
        "seconds": seconds,
    }


def history_of(passes: list[list[tuple[int, float, dict[str, float]]]], penalty: Penalty, n: int) -> dict:
    """Arrays by column, an entry a pass, from what every rank has kept: (round, seconds, terms) a pass."""
    rows = []
    for entries in zip(*passes, strict=True):
        reports = [Report(np.empty(0, np.int64), np.empty(0), terms) for _, _, terms in entries]
        round, seconds, _ = entries[0]
        rows.append(_row(round, seconds, reports, penalty, n))
    return table(rows)


def table(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Rows as arrays by column."""
    return {name: np.array([row[name] for row in rows]) for name in COLUMNS}


class Asked:
    """A policy's distance that ends the fit, at a measured point, once rank 0's follower has asked for it."""

    def __init__(self, distance: Callable[[list[Report]], float]):
        self.distance = distance

    def __call__(self, reports: list[Report]) -> float:
        """The distance from the optimum, or -inf."""
        if any(report.terms.get("stop") for report in reports):
            return -np.inf
        return self.distance(reports)


class Follower:
    """A callback of `run`, on rank 0: after every measurement of a fit with n rows prints a line, and calls
    `listener(row, pieces, last)`, which returns whether to stop.

    `models`: whether the program hands it all ranks' pieces of the model (`pieces`; else None).
    """

    def __init__(
        self, penalty: Penalty, n: int, *, verbose: bool, listener: Any = None, models: bool = False
    ):
        self.penalty, self.n, self.verbose, self.listener = penalty, n, verbose, listener
        self.models, self.stop = models, False
        self.pieces: list[Piece] | None = None
        self.start = time.perf_counter()
        self.step = ""  # of the round before

    def __call__(self, round: int, plan: Plan | None, reports: list[Report] | None) -> None:
        """Called before every round: acts once every rank has measured."""
        step, self.step = self.step, "" if plan is None else plan.step
        if step != "measure" or not reports:
            return
        row = _row(round - 1, time.perf_counter() - self.start, reports, self.penalty, self.n)
        if self.verbose:
            say(
                f"[daskstrads] pass {int(reports[0].terms['passes'])}: objective {row['objective']:.8g}, "
                f"gap {row['gap']:.2e}, {row['support']} nonzero, {row['seconds']:.2f} s"
            )
        if self.listener is not None and self.listener(row, self.pieces, plan is None):
            self.stop = True
