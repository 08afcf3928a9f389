"""The claims of issue 4 about speed, as a table: target, figure, reached or missed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from problems import REAL

GAP = 1e-6

REALS = [(f"{name}/{divisor}", GAP) for name in REAL for divisor in (10, 100)]

SYNTHETIC = [("A/20", 1e-6), ("A/20", 1e-8)] + [
    (row, GAP) for row in ("B/10", "B/50", "C/20", "C/200", "D/20")
]

TARGETS = (
    (("A/20", 1e-6), 0.8),
    (("A/20", 1e-8), 0.8),
    (("B/10", GAP), 0.3),
    (("B/50", GAP), 0.25),
    (("C/20", GAP), 0.7),
    (("C/200", GAP), 0.7),
    (("D/20", GAP), 0.4),
)
"""Rows and what 2 threads over the fastest peer is to be at most."""


def claims(outcomes: dict[tuple[str, float], Any], measured: dict[str, float]) -> None:
    """Print the table; `measured` has the figures that are no rows: rss, dask-ml ..., workers ..."""
    print(f"\n{'claim':<70}{'target':>10}{'figure':>10}")
    for key, most in TARGETS:
        row, gap = key
        what = f"{row} at {gap:g}, 2 threads over the fastest peer"
        line(what, most, outcomes[key].two if key in outcomes else None)
    two = [outcomes[key].two for key in REALS if key in outcomes]
    line(f"real data, {len(two)} of {len(REALS)} rows, geometric mean", 0.6, geometric(two))
    line("real data, the worst row", 1.2, max(two, default=None))
    every = [*SYNTHETIC, *REALS]
    one = [outcomes[key].one for key in every if key in outcomes]
    line(f"1 thread over 1 thread, {len(one)} of {len(every)} rows, geometric mean", 0.85, geometric(one))
    for row in ("B/50", "C/200", "D/20"):
        key = (row, GAP)
        speedup = outcomes[key].speedup if key in outcomes else None
        line(f"{row}, speed-up of 2 ranks over 1", 1.5, speedup, least=True)
    line("memory beyond the data over their size, B", 0.6, measured.get("rss"))
    for name in ("C", "D"):
        what = f"dask-ml {name}"
        times = measured.get(what)
        line(f"{name}, 2 workers: dask-ml's time over daskstrads'", 50.0, times, least=True)
    for row in ("A/20", "B/50", "C/20", "C/200", "D/20"):
        line(f"{row}, 2 workers over 2 threads", 1.3, measured.get(f"workers {row}"))


def line(what: str, target: float, figure: float | None, least: bool = False) -> None:
    """One claim; `least`: the figure is to be at least the target, else at most."""
    said = "" if figure is None else f"{figure:.3g}"
    verdict = "not run"
    if figure is not None:
        verdict = "reached" if (figure >= target if least else figure <= target) else "MISSED"
    print(f"{what:<70}{('>= ' if least else '<= ') + f'{target:g}':>10}{said:>10}  {verdict}")


def geometric(ratios: Iterable[float]) -> float | None:
    """Geometric mean, None of nothing."""
    ratios = list(ratios)
    if not ratios:
        return None
    return math.inf if math.inf in ratios else statistics.geometric_mean(ratios)
