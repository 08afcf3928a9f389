"""The cells of `allreduce.py`, and what the claims are about them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

RATES = {"100mbit": 12.5e6, "1gbit": 125e6}  # bytes a second
PAIRS = ("gloo sparse", "MPI Allgatherv")
FULL = ("gloo dense", "MPI dense")


class Cell(NamedTuple):
    """What was measured.

    `each`: (ms a call, bytes of arrays that arrived at a rank, bytes on its interface) by algorithm. `raw`:
    bytes that arrived without compression and what the formulas say. `least`: bytes that must arrive.
    `entries`: of all ranks together.
    """

    rate: str
    ranks: int
    size: int
    density: float
    kind: str
    least: int
    entries: int
    union: int
    each: dict[str, Any]
    took: str
    raw: dict[str, Any]
    link: Any = None
    peers: Any = None

    @property
    def where(self) -> str:
        """The cell's name."""
        return f"{self.rate} P={self.ranks} N={self.size} {self.density:g} {self.kind}"

    @property
    def bound_ms(self) -> float | None:
        """Milliseconds that the bytes take that have to arrive; None on loopback."""
        return 1e3 * self.least / RATES[self.rate] if self.rate in RATES else None

    @property
    def auto(self) -> float:
        """Milliseconds of "auto"."""
        return self.each["auto"][0]

    @property
    def regret(self) -> float:
        """What "auto" took over the best fixed algorithm."""
        return self.auto / min(ms for name, (ms, *_) in self.each.items() if name != "auto")

    @property
    def chosen(self) -> float:
        """What the algorithm that "auto" took, called by its name, took over the best."""
        fixed = {name: ms for name, (ms, *_) in self.each.items() if name != "auto"}
        return fixed[self.took] / min(fixed.values())


class Line(NamedTuple):
    """A claim: what is to be reached, what was got (None: not run), whether that will do."""

    name: str
    limit: float
    got: float | None
    reached: bool


def report(cells: list[Cell], extra: dict[str, float]) -> list[Line]:
    """Print the claims, as reached or missed; `extra`: figures that belong to no cell."""
    found = _lines(cells, extra)
    print(f"\n{'claim':<78}{'to reach':>10}{'got':>10}")
    for name, limit, got, reached in found:
        told = "   not run" if got is None else f"{got:>10.3g}  {'reached' if reached else 'MISSED'}"
        print(f"{name:<78}{limit:>10.3g}{told}")
    return found


def _lines(cells: list[Cell], extra: dict[str, float]) -> list[Line]:
    lines: list[Line] = []

    def line(*given: Any, at_least: bool = False) -> None:
        lines.append(_line(*given, at_least=at_least))

    def bound(rate: str, density: float) -> list[float]:
        return [
            cell.auto / cell.bound_ms
            for cell in cells
            if (cell.rate, cell.ranks, cell.size, cell.density, cell.kind)
            == (rate, 8, 1 << 20, density, "uniform")
            and cell.bound_ms
        ]

    for density, most in (0.01, 1.0), (0.1, 1.3), (0.001, 2.0):
        line(f"100 Mbit/s, P = 8, N = 1 M, {density:g}: time / bound", bound("100mbit", density), max, most)
    line("1 Gbit/s, P = 8, N = 1 M, 0.01: time / bound", bound("1gbit", 0.01), max, 3.0)
    regrets = [cell.regret for cell in cells]
    line("auto over the best fixed algorithm, median of all cells", regrets, statistics.median, 1.03)
    line("auto over the best fixed algorithm, 95 % of the cells", regrets, _most, 1.15)
    taken = [float(cell.chosen <= 1.05) for cell in cells]
    share = "cells where auto took the best fixed algorithm, or one within 5 % of it, share"
    line(share, taken, statistics.mean, 0.95, at_least=True)
    dense = [cell.auto / cell.each["dense"][0] for cell in cells if "dense" in cell.each]
    line("auto over dense, 95 % of the cells", dense, _most, 1.05)
    line("auto over dense, the worst cell", dense, max, 1.2)
    from_here = [cell for cell in cells if cell.peers and cell.density >= 1e-3]
    for name in PAIRS:
        over = [cell.auto / cell.peers[name] for cell in from_here if name in cell.peers]
        line(f"auto over {name}, from 0.1 % up, the worst of {len(over)} cells", over, max, 1.0)
    slow = [cell for cell in from_here if (cell.rate, cell.density) == ("100mbit", 0.01)]
    for name in FULL:
        over = [cell.peers[name] / cell.auto for cell in slow if name in cell.peers]
        line(f"{name} over auto, 1 %, 100 Mbit/s", over, min, 10.0, at_least=True)
    # Of few long runs it is luck whose range they lie in; the formulas are about means.
    even = [cell for cell in cells if cell.kind != "clustered"]
    off = [abs(got / formula - 1) for cell in even for got, formula in cell.raw.values()]
    line("bytes without compression against the formulas, the worst deviation", off, max, 0.05)
    for name, most in EXTRA.items():
        line(name, [extra[name]] if name in extra else [], max, most)
    return lines


EXTRA = {
    "sum of 1 K nonzeros, 2 worker processes on loopback, ms": 0.5,
    "sum of 1 K nonzeros, 2 threads, ms": 0.2,
    "two-way merge, uniform, ns an entry over 6.2": 0.8,
    "two-way merge, clustered, ns an entry over 1.5": 0.8,
    "eight-way merge, uniform, ns an entry and level over 6.2": 0.8,
    "eight-way merge, clustered, ns an entry and level over 1.5": 0.8,
}


def _line(
    name: str,
    found: list[float],
    worst: Callable[[list[float]], float],
    limit: float,
    *,
    at_least: bool = False,
) -> Line:
    if not found:
        return Line(name, limit, None, False)
    got = worst(found)
    return Line(name, limit, got, got >= limit if at_least else got <= limit)


def _most(found: list[float]) -> float:
    return sorted(found)[max(0, -(-95 * len(found) // 100) - 1)]


def page(cells: list[Cell], lines: list[Line], about: str) -> str:
    """The claims and all cells, as Markdown."""
    text = ["# The sparse allreduce, measured", about]
    head = "| claim | to reach | got | |\n|---|---|---|---|\n"
    told = []
    for name, limit, got, reached in lines:
        verdict = "" if got is None else "reached" if reached else "missed"
        told.append(f"| {name} | {limit:.3g} | {'not run' if got is None else f'{got:.3g}'} | {verdict} |")
    text.append(head + "\n".join(told))
    for rate, ranks in dict.fromkeys((cell.rate, cell.ranks) for cell in cells):
        mine = [cell for cell in cells if (cell.rate, cell.ranks) == (rate, ranks)]
        names = list(dict.fromkeys(name for cell in mine for name in cell.each))
        peers = list(dict.fromkeys(name for cell in mine for name in cell.peers or {}))
        columns = [
            "N",
            "density",
            "support",
            *(name.replace("_", " ") for name in names),
            "auto took",
            "bound",
            *peers,
        ]
        rows = []
        for cell in mine:
            times = [f"{cell.each[name][0]:.3g}" if name in cell.each else "" for name in names]
            bound = f"{cell.bound_ms:.3g}" if cell.bound_ms else ""
            theirs = [f"{cell.peers[name]:.3g}" if name in (cell.peers or {}) else "" for name in peers]
            size = f"{cell.size / 2**20:.0f} M"
            what = [size, f"{cell.density:g}", cell.kind, *times, cell.took.replace("_", " "), bound]
            rows.append("| " + " | ".join([*what, *theirs]) + " |")
        text.append(f"## {rate}, {ranks} ranks, ms a call")
        text.append("\n".join(["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *rows]))
    return "\n\n".join(text) + "\n"
