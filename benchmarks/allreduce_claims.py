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


def report(cells: list[Cell], extra: dict[str, float]) -> None:
    """The claims, as reached or missed; `extra`: figures that belong to no cell."""
    print(f"\n{'claim':<78}{'to reach':>10}{'got':>10}")

    def bound(rate: str, density: float) -> list[float]:
        return [
            cell.auto / cell.bound_ms
            for cell in cells
            if (cell.rate, cell.ranks, cell.size, cell.density, cell.kind)
            == (rate, 8, 1 << 20, density, "uniform")
            and cell.bound_ms
        ]

    for density, most in (0.01, 1.0), (0.1, 1.3), (0.001, 2.0):
        _line(f"100 Mbit/s, P = 8, N = 1 M, {density:g}: time / bound", bound("100mbit", density), max, most)
    _line("1 Gbit/s, P = 8, N = 1 M, 0.01: time / bound", bound("1gbit", 0.01), max, 3.0)
    regrets = [cell.regret for cell in cells]
    _line("auto over the best fixed algorithm, median of all cells", regrets, statistics.median, 1.03)
    _line("auto over the best fixed algorithm, 95 % of the cells", regrets, _most, 1.15)
    dense = [cell.auto / cell.each["dense"][0] for cell in cells if "dense" in cell.each]
    _line("auto over dense, 95 % of the cells", dense, _most, 1.05)
    _line("auto over dense, the worst cell", dense, max, 1.2)
    from_here = [cell for cell in cells if cell.peers and cell.density >= 1e-3]
    for name in PAIRS:
        over = [cell.auto / cell.peers[name] for cell in from_here if name in cell.peers]
        _line(f"auto over {name}, from 0.1 % up, the worst of {len(over)} cells", over, max, 1.0)
    slow = [cell for cell in from_here if (cell.rate, cell.density) == ("100mbit", 0.01)]
    for name in FULL:
        over = [cell.peers[name] / cell.auto for cell in slow if name in cell.peers]
        _line(f"{name} over auto, 1 %, 100 Mbit/s", over, min, 10.0, at_least=True)
    off = [abs(got / formula - 1) for cell in cells for got, formula in cell.raw.values()]
    _line("bytes without compression against the formulas, the worst deviation", off, max, 0.05)
    for name, most in EXTRA.items():
        _line(name, [extra[name]] if name in extra else [], max, most)


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
) -> None:
    if not found:
        print(f"{name:<78}{limit:>10.3g}   not run")
        return
    got = worst(found)
    reached = got >= limit if at_least else got <= limit
    print(f"{name:<78}{limit:>10.3g}{got:>10.3g}  {'reached' if reached else 'MISSED'}")


def _most(found: list[float]) -> float:
    return sorted(found)[max(0, -(-95 * len(found) // 100) - 1)]
