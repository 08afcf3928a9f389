"""The cells of `allreduce.py`, and what the claims are about them."""

from __future__ import annotations

from typing import Any, NamedTuple

RATES = {"100mbit": 12.5e6, "1gbit": 125e6}  # bytes a second


class Cell(NamedTuple):
    """What was measured: `each` algorithm's (ms a call, bytes arrived, bytes on the interface)."""

    rate: str
    ranks: int
    size: int
    density: float
    kind: str
    least: int
    union: int
    each: dict[str, Any]
    took: str
    expected: dict[str, int]
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


def report(cells: list[Cell]) -> None:
    """The claims."""
