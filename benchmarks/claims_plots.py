"""The pictures of the claims table: small PNG files, colours of Okabe and Ito and a marker or dash each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
matplotlib.rcParams |= {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.4,
}

STYLES = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
)
POINTS = 160  # a line
FLOOR = 1e-8  # what panels with a given top show at least

Line = tuple[Iterable[float], Iterable[float]]


class Panel(NamedTuple):
    """One pair of axes: lines by label, and what the axes show."""

    title: str
    lines: Mapping[str, Line]
    x: str
    y: str
    x_log: bool = True
    y_log: bool = True
    ticks: tuple[int, ...] = ()
    top: float | None = None


def draw(path: Path, panels: Sequence[Panel | None], columns: int, legend: str) -> None:
    """Panels in rows of `columns` (None: left empty) under one legend; a label keeps its style throughout."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.1 * columns + 0.4, 2.5 * rows + 0.5), layout="constrained", squeeze=False
    )
    labels = list(dict.fromkeys(label for panel in panels if panel for label in panel.lines))
    handles: dict[str, Any] = {}
    for place, (panel, axis) in enumerate(zip(panels, axes.flat, strict=False)):
        if panel is None:
            axis.set_axis_off()
            continue
        for label, (x, y) in panel.lines.items():
            x, y = _thinned(np.asarray(x, float), np.asarray(y, float))
            style = STYLES[labels.index(label) % len(STYLES)]
            many = len(x) > 30
            (handles[label],) = axis.plot(
                x, y, label=label, markersize=3.5, markevery=max(1, len(x) // 8) if many else 1, **style
            )
            if panel.top is not None and len(y) and y.min() > panel.top:
                told = {"transform": axis.transAxes, "color": style["color"], "va": "top", "fontsize": 8}
                axis.text(0.05, 0.97, f"{label}: off the scale from the first", **told)
        axis.set_title(panel.title, fontsize=9, loc="left")
        if panel.x_log:
            axis.set_xscale("log", base=2 if panel.ticks else 10)
        if panel.ticks:
            axis.set_xticks(panel.ticks, labels=[str(tick) for tick in panel.ticks])
        if panel.y_log:
            axis.set_yscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        if panel.top is not None:
            least = min((min(y) for _, y in panel.lines.values() if len(y)), default=1.0)  # type: ignore[arg-type]
            axis.set_ylim(max(0.5 * least, FLOOR), panel.top)
        below = panels[place + columns] if place + columns < len(panels) else None
        if below is None or below.x != panel.x:
            axis.set_xlabel(panel.x)
        left = panels[place - 1] if place % columns else None
        if left is None or left.y != panel.y:
            axis.set_ylabel(panel.y)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    ordered = [label for label in labels if label in handles]
    figure.legend(
        [handles[label] for label in ordered], ordered, title=legend, loc="outside upper center",
        ncols=len(ordered), frameon=False, fontsize=9,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})
    plt.close(figure)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points, evenly spread over the logarithm of their place; the last one stays."""
    if len(x) <= POINTS:
        return x, y
    places = np.unique(np.geomspace(1, len(x), POINTS).astype(int) - 1)
    return x[places], y[places]
