"""Round robin for descent methods: whole sweeps, until one lowers the objective by next to nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from .policy import Report, RoundRobin

__all__ = ["Descent"]


class Descent(RoundRobin):
    """Every variable in turn, sweep after sweep, as long as the objective falls (STRADS, section 3, MF).

    The plan is as `RoundRobin`'s. `height(reports)` turns the reports of a sweep's last round into the
    objective; the run stops after a sweep that has lowered it by at most `tol` times what it was after the
    first sweep, when it is not finite, when a report's terms hold "stop", or after `sweeps` sweeps. Only
    the first round of a sweep waits for reports, so a sweep's plans are dealt ahead.

    Raises:
        ValueError: as `RoundRobin`; a negative tol.
        TypeError: reports of another kind than `Report` at the end of a sweep.
    """

    def __init__(
        self, n_variables: int, block: int, sweeps: int, height: Callable[[list[Report]], float], tol: float
    ):
        super().__init__(n_variables, block, sweeps)
        if not tol >= 0:
            raise ValueError(f"tol must be at least 0, got {tol!r}")
        self.height, self.fall = height, tol
        self._first = self._last = np.inf

    def begin(self, size: int, seed: int) -> Descent:
        """Fresh copy for one run."""
        fresh = copy.copy(super().begin(size, seed))
        assert isinstance(fresh, Descent)
        fresh._first = fresh._last = np.inf
        return fresh

    def waits(self, round: int) -> bool:
        """Where a sweep begins."""
        return round > 0 and round % self.rounds_per_sweep == 0

    def __call__(self, round: int, reports: list[Any] | None) -> np.ndarray | None:
        """Ids of this round's block, or None to stop."""
        if self.waits(round):
            if reports is None or not all(isinstance(report, Report) for report in reports):
                raise TypeError("Descent needs pull to return a daskstrads.Report at the end of a sweep")
            height = self.height(reports)
            # A tol of 0 asks for all sweeps: near the optimum the objective rises and falls by rounding.
            if round == self.rounds_per_sweep:
                self._first = height
            elif self.fall and self._last - height <= self.fall * abs(self._first):
                return None
            if not np.isfinite(height):
                return None
            if any(report.terms.get("stop") for report in reports):
                return None
            self._last = height
        return super().__call__(round, None)
