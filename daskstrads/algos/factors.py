"""What a rank holds of a matrix factorisation: its rows' ratings, residual and factors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..engine.run import run
from ..partition import Compressed, Slab
from ..schedule import Descent, Report
from .problem import MemoryPlan
from .progress import Follower, Told

__all__ = [
    "Factors", "Layout", "RatingPart", "RatingPiece", "Settings", "factor_plan", "height", "made", "measured",
    "split_axis_of", "sweeps_told", "warm",
]  # fmt: skip

_PADDED = 4  # numbers: coordinate descent takes as many at a time


class Layout(NamedTuple):
    """Where a row's (column's) numbers are: with `biases` its own bias and the constant 1 beside the other's.

    Rows are [bias, 1, factors, padding] and columns [1, bias, factors, padding], so that a prediction is one
    product. Features whose numbers are constant are never updated: `row_frozen`, `column_frozen`.
    """

    components: int
    biases: bool
    itemsize: int = 4

    @property
    def first(self) -> int:
        """Where the factors begin."""
        return 2 * self.biases

    @property
    def width(self) -> int:
        """Numbers a row."""
        return -(-(self.first + self.components) // _PADDED) * _PADDED

    @property
    def row_frozen(self) -> int:
        """The feature of a row that is constant; -1: none."""
        return 1 if self.biases else -1

    @property
    def column_frozen(self) -> int:
        """The feature of a column that is constant; -1: none."""
        return 0 if self.biases else -1


class Settings(NamedTuple):
    """What is minimised: sum (r_ij - mean - x_i . y_j)^2 + sum_i l_i ||x_i||^2 + sum_j l_j ||y_j||^2.

    l_i is `reg`, times the number of ratings of the row if `weighted`. The first factors are drawn with
    `seed` and `scale`; `positive`: factors are never negative.
    """

    layout: Layout
    reg: float
    weighted: bool
    positive: bool
    seed: int
    scale: float
    dtype: Any


class RatingPart(NamedTuple):
    """A rank's ratings: a slab of whole rows, and what concerns all ranks: ratings a column, their mean.

    `rows` (rows, width) and `columns` (columns, width): what to start from, this rank's rows and all columns;
    None: zeros, and drawn numbers. `out`: where this rank's factors go, None: an array of its own.
    """

    slab: Slab
    counts: np.ndarray
    mean: float
    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    out: np.ndarray | None = None


class RatingPiece(NamedTuple):
    """A rank's share of the model: its rows' factors, and those of the columns it owns (`ids`).

    `passes`: (round, seconds, terms) of every sweep.
    """

    start: int
    rows: np.ndarray
    ids: np.ndarray
    columns: np.ndarray
    passes: list[tuple[int, float, dict[str, float]]]


@dataclass
class Factors:
    """A rank's shard: ratings of its rows in order of their columns' popularity, and their factors.

    Columns are renumbered by it, the most rated first: the ratings of a range of columns then share rows.
    """

    rank: int
    size: int
    start: int  # the first row's number
    offsets: np.ndarray  # (rows + 1,) int64
    indices: np.ndarray  # (ratings,) columns' places; uint16 where they fit
    residual: np.ndarray  # (ratings,)
    rows: np.ndarray  # (rows, width); private
    row_weight: np.ndarray  # (rows,) l_i
    order: np.ndarray  # column at every place; all, or those that this rank owns
    column_weight: np.ndarray  # l_j, of these
    columns: np.ndarray  # their factors
    penalty: float = 0.0  # of this rank's rows and columns, as they are updated
    sse: float = 0.0
    sent: int = 0  # bytes of this sweep
    rounds: int = 0
    started: float = field(default_factory=time.perf_counter)
    passes: list = field(default_factory=list)


@dataclass
class Held:
    """A program's shard: factors, and what else it needs."""

    factors: Factors

    @property
    def rows(self) -> np.ndarray:
        """Factors of this rank's rows."""
        return self.factors.rows

    @property
    def ids(self) -> np.ndarray:
        """The columns whose factors this rank holds."""
        return self.factors.order

    @property
    def columns(self) -> np.ndarray:
        """Their factors."""
        return self.factors.columns


def made(part: RatingPart, rank: int, size: int, settings: Settings, *, share: bool = False) -> Factors:
    """A rank's shard with the first factors: zeros of its rows, drawn ones of all columns (of its `share`).

    Raises:
        ValueError: an index outside the matrix.
    """
    from . import ratings_kernels as kernels

    layout, dtype = settings.layout, settings.dtype
    matrix, counts = part.slab.matrix, part.counts
    offsets = matrix.starts
    order = np.argsort(-counts, kind="stable")
    place = np.empty(len(counts), np.int64)
    place[order] = np.arange(len(counts))
    residual = np.empty(len(matrix.values), dtype)
    indices = np.empty(len(residual), np.uint16 if len(counts) <= 2**16 else np.int32)
    bad = kernels.arrange(matrix.values, matrix.indices, offsets, place, part.mean, residual, indices)
    if bad >= 0:
        raise ValueError(
            f"the ratings are damaged: row {part.slab.start + bad} has a column outside the matrix, or twice"
        )
    rated = np.diff(offsets)
    weigh = (
        (lambda count: settings.reg * count)
        if settings.weighted
        else (lambda count: settings.reg * (count > 0))
    )
    rows = np.zeros((len(rated), layout.width), dtype) if part.out is None else part.out
    own = slice(len(order) * rank // size, len(order) * (rank + 1) // size) if share else slice(None)
    if part.rows is not None:
        rows[:] = part.rows
    rows[rated == 0] = 0.0
    if layout.biases:
        rows[:, layout.row_frozen] = 1.0
    if part.columns is None:
        columns = np.zeros((len(order[own]), layout.width), dtype)
        drawn = columns[:, layout.first : layout.first + layout.components]
        kernels.draw(settings.seed, order[own], settings.scale, settings.positive, drawn)
        _finish(columns, counts[order[own]], layout)
    else:
        columns = part.columns[order].astype(dtype, copy=False)
        _finish(columns, counts[order], layout)
        kernels.subtract(offsets, indices, rows, columns, residual)
        columns = columns[own].copy() if share else columns
    return Factors(
        rank, size, part.slab.start, offsets, indices, residual, rows, weigh(rated).astype(dtype), order[own],
        weigh(counts[order[own]]).astype(dtype), columns,
    )  # fmt: skip


def _finish(columns: np.ndarray, counts: np.ndarray, layout: Layout) -> None:
    """Who has no rating has no factors; everybody has the constant."""
    columns[counts == 0] = 0.0
    if layout.biases:
        columns[:, layout.column_frozen] = 1.0


def measured(shard: Factors, follower: Follower | None) -> Report:
    """The report of a sweep that has ended; kept in the shard as well."""
    terms = {"sse": shard.sse, "penalty": shard.penalty, "bytes": shard.sent, "sweep": len(shard.passes) + 1}
    if follower is not None and follower.stop:
        terms["stop"] = 1.0
    shard.passes.append((shard.rounds, time.perf_counter() - shard.started, terms))
    shard.sent = 0
    return Report(np.empty(0, np.int64), np.empty(0), terms)


def sweeps_told(entries: int) -> Told:
    """What is told of the sweeps of a factorisation of so many ratings."""

    def row(round: int, seconds: float, reports: list[Report]) -> dict[str, Any]:
        sse = sum(report.terms["sse"] for report in reports)
        return {
            "round": round,
            "objective": height(reports),
            "rmse": float((sse / entries) ** 0.5),
            "seconds": seconds,
            "bytes": max(int(report.terms["bytes"]) for report in reports),
        }

    def line(row: dict[str, Any], reports: list[Report]) -> str:
        sweep = int(reports[0].terms["sweep"])
        return f"sweep {sweep}: objective {row['objective']:.8g}, RMSE {row['rmse']:.5f}"

    return Told(("round", "objective", "rmse", "seconds", "bytes"), row, line)


def factor_plan(
    shape: tuple[int, int], entries: int, layout: Layout, ranks: int, solver: str, tile: int
) -> MemoryPlan:
    """What each rank of a fit needs; `tile`: columns that travel in one round."""
    rows, columns = max(shape), min(shape)
    own, vector = -(-rows // ranks), layout.width * layout.itemsize
    index = 2 if columns <= 2**16 else 4
    data = -(-entries // ranks) * (layout.itemsize + index) + 8 * (own + 1)
    state = own * (vector + layout.itemsize) + columns * 3 * 8
    if solver == "als":
        # One copy of the columns; the cursors, and the products of the ratings of the most popular tile.
        share = min(1.0, 4 * tile / columns)
        state += columns * vector + 8 * own + int(-(-entries // ranks) * layout.itemsize * share)
        state += -(-columns // ranks) * vector  # its share, as the fit's result
        exchange = 5 * tile * vector
    else:
        state += -(-columns // ranks) * vector
        exchange = columns * layout.itemsize * (2 * 16 + 16 + 2 * 8)
    return MemoryPlan(ranks, split_axis_of(shape), int(data), int(state), int(exchange))


def split_axis_of(shape: tuple[int, int]) -> int:
    """0 where ranks own users, 1 where they own items: the larger side stays, the smaller one travels."""
    return 0 if shape[0] >= shape[1] else 1


def height(reports: list[Report]) -> float:
    """The objective, from all ranks' reports of a sweep."""
    return float(sum(report.terms["sse"] + report.terms["penalty"] for report in reports))


def warm(stages: Callable[[int, int], int], make: Any, *more: Any) -> None:
    """Run two sweeps of the program that `make(policy, settings, *more)` makes, on four ratings.

    `stages(columns, width)`: its rounds a sweep.
    """
    matrix = Compressed(np.ones(4, np.float32), np.array([0, 1, 0, 1], np.int32), np.array([2]), 2)
    settings = Settings(Layout(1, True), 0.1, True, False, 0, 0.1, np.float32)
    policy = Descent(stages(2, settings.layout.width), 1, 2, height, 0.0)
    part = RatingPart(Slab(matrix, 0, 0, 2), np.array([2, 2]), 0.5)
    run(make(policy, settings, *more), [part], transport="threads")
