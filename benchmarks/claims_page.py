"""Words and tables of the claims page: everything that is said is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Page:
    """What a section says: Markdown, paragraph by paragraph."""

    title: str
    parts: list[str] = field(default_factory=list)

    def say(self, *sentences: str) -> None:
        """A paragraph."""
        self.parts.append(" ".join(sentences))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table."""
        lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
        self.parts.append("\n".join(lines))

    def picture(self, name: str, told: str) -> None:
        """A picture in claims/, with what it shows."""
        self.parts.append(f"![{told}](claims/{name})")

    def text(self) -> str:
        """All of it."""
        return "\n\n".join([f"## {self.title}", *self.parts])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float) -> str:
    """Three digits, and letters for large numbers."""
    if not np.isfinite(value):
        return "inf"
    for size, letter in (1e9, "G"), (1e6, "M"), (1e4, "k"):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def size(count: float) -> str:
    """Bytes."""
    for unit in "B", "KB", "MB":
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def mean(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else float("nan")


def listed(items: Sequence[str]) -> str:
    """a, b and c."""
    items = list(items)
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0] if items else "none"
