"""Alternating least squares by conjugate gradients; the travelling side goes in tiles of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..engine.program import Gather, Program, Scatter
from ..schedule import Policy, Report
from .factors import Held, RatingPart, RatingPiece, Settings, made, measured, warm
from .progress import Follower

__all__ = ["AlternatingLeastSquares", "sweep_stages", "tile_length"]

STEPS = 3  # of conjugate gradients, from the last factors
_TILE = 3 << 19  # bytes of the directions and sums of a tile, to stay in a core's cache
_FEWEST = 256  # columns of one: of fewer, too few share a row whose factors have to be fetched again


def tile_length(width: int, itemsize: int) -> int:
    """Columns of a tile; a function of the problem alone."""
    return max(_FEWEST, _TILE // (2 * itemsize * width))


def sweep_stages(columns: int, tile: int) -> int:
    """Rounds of a sweep: one for the rows, then of every tile a slope, and two a step and one to end it."""
    return 1 - (-columns // tile) * (2 * STEPS + 2)


class _Stage(NamedTuple):
    tile: int
    turn: int  # 0: slope; odd: directions go round; even: their images; the last: the last step goes round


@dataclass
class _Shard(Held):
    """Factors, those of all columns, and a tile of these that is being solved."""

    bounds: np.ndarray
    cursor: np.ndarray  # (rows,) where each row's ratings of the tile begin
    products: np.ndarray  # x_i . p_j of the tile's ratings
    direction: np.ndarray  # of the tile's columns; replicated
    step: np.ndarray  # that was taken along it; replicated
    slope: np.ndarray  # of this rank's columns of the tile
    left: np.ndarray
    following: np.ndarray  # their next direction
    taken: np.ndarray  # their last step


class AlternatingLeastSquares(Program):
    """Matrix factorisation by alternating least squares, three warm steps of conjugate gradients a side.

    Minimises the objective of `Settings`. A rank owns rows with their ratings, and a share of every tile's
    columns. The rows are solved without any exchange. Of a tile of columns every rank adds up its part of
    sum_j e_ij x_i (Scatter: the total goes to the column's owner), the owners tell the directions (Gather),
    every rank adds up its part of their images (Scatter), the owners tell the steps and the next directions
    (Gather), and so on: products as in Takacs, Pilaszy and Tikk (2011), blocks of variables scheduled by
    round robin as in STRADS, section 3. A rank holds one copy of all columns' factors, and a tile more.
    """

    replicas = ("step",)

    follower: Follower | None = None  # the callback of rank 0, where somebody follows the fit

    def __init__(self, schedule: Policy, settings: Settings, tile: int):
        self.schedule, self.settings, self.tile = schedule, settings, tile

    def init(self, part: RatingPart, rank: int, size: int, rng: np.random.Generator) -> _Shard:
        """Ratings in order, and the first factors.

        Raises:
            ValueError: an index outside the matrix.
        """
        mine = made(part, rank, size, self.settings)
        dtype, width = self.settings.dtype, self.settings.layout.width
        bounds = np.append(np.arange(0, len(mine.columns), self.tile), len(mine.columns))
        ends = np.cumsum(np.bincount(mine.indices, minlength=len(mine.columns)))
        largest = int(np.diff(ends[bounds[1:] - 1], prepend=0).max(initial=0))
        empty = np.empty((0, width), dtype)
        none = np.empty(0, dtype)
        cursor, products = mine.offsets[:-1].copy(), np.zeros(largest, dtype)
        return _Shard(mine, bounds, cursor, products, empty, none, empty, none, empty, none)

    @staticmethod
    def warm() -> None:
        """Load the kernels of float32 ratings."""
        warm(lambda columns, width: sweep_stages(columns, 2), AlternatingLeastSquares, 2)

    def push(self, shard: _Shard, plan: np.ndarray) -> Any:
        """Solve this rank's rows, or its part of the sums over a tile's columns."""
        from . import als_kernels as kernels

        mine, stage = shard.factors, self._stage(plan)
        layout = self.settings.layout
        if stage is None:
            kernels.solve_rows(
                *(mine.offsets, mine.indices, mine.residual, mine.rows, mine.columns, mine.row_weight),
                *(mine.row_weight[:0], layout.row_frozen, STEPS),
            )
            return None
        first, stop = (int(place) for place in shard.bounds[stage.tile : stage.tile + 2])
        if stage.turn % 2:
            last = stage.turn > 2 * STEPS
            sent = (shard.taken, shard.following[:0] if last else shard.following)
            mine.sent += (mine.size - 1) * sum(each.nbytes for each in sent)
            return Gather(sent)
        out = np.empty((stop - first, layout.width), mine.rows.dtype)
        ratings = (mine.offsets, shard.cursor, mine.indices, mine.residual, mine.rows, first, stop)
        if stage.turn == 0:
            kernels.tile_slope(*ratings, out)
        else:
            kernels.tile_images(*ratings, shard.direction, shard.step, shard.products, out)
        mine.sent += out.nbytes * (mine.size - 1) // mine.size
        out.flags.writeable = False  # so that it travels without a copy
        return Scatter(out)

    def pull(self, shard: _Shard, plan: np.ndarray, received: Any, sent: Any) -> Report | None:
        """The owners take a step, or all hear of it; at the end of a sweep, a report."""
        from . import als_kernels as kernels
        from .ratings_kernels import penalty_of

        mine, stage = shard.factors, self._stage(plan)
        layout = self.settings.layout
        mine.rounds += 1
        if stage is None:
            mine.penalty = penalty_of(mine.rows, mine.row_weight, layout.row_frozen)
            mine.sse = 0.0
            shard.cursor[:] = mine.offsets[:-1]
            return None
        first, stop = (int(place) for place in shard.bounds[stage.tile : stage.tile + 2])
        length = stop - first
        own = slice(first + length * mine.rank // mine.size, first + length * (mine.rank + 1) // mine.size)
        weight, frozen = mine.column_weight[own], layout.column_frozen
        if stage.turn == 0:
            shard.slope = received.copy()
            shard.left = np.empty(len(weight), received.dtype)
            kernels.begin(shard.slope, mine.columns[own], weight, frozen, shard.left)
            shard.following, shard.taken = shard.slope.copy(), np.zeros_like(shard.left)
            shard.step = np.zeros(length, received.dtype)
        elif stage.turn % 2 == 0:
            start = own.start - first
            direction = shard.direction[start : start + len(weight)]
            shard.taken, shard.following = np.empty_like(shard.left), np.empty_like(shard.slope)
            kernels.advance(
                received.copy(),
                direction,
                shard.slope,
                weight,
                frozen,
                shard.left,
                shard.taken,
                shard.following,
            )
        else:
            taken, following = zip(*received, strict=True)
            shard.step = np.concatenate(taken)
            if stage.turn > 1:
                kernels.move(mine.columns[first:stop], shard.step, shard.direction)
            shard.direction = np.concatenate(following)
        if stage.turn <= 2 * STEPS:
            return None
        mine.sse += kernels.tile_done(
            mine.offsets, shard.cursor, mine.indices, mine.residual, first, stop, shard.step, shard.products
        )
        mine.penalty += penalty_of(mine.columns[own], weight, frozen)
        return measured(mine, self.follower) if stop == len(mine.columns) else None

    def result(self, shard: _Shard) -> RatingPiece:
        """This rank's rows and columns."""
        mine, bounds = shard.factors, shard.bounds
        lengths = np.diff(bounds)
        starts = bounds[:-1] + lengths * mine.rank // mine.size
        stops = bounds[:-1] + lengths * (mine.rank + 1) // mine.size
        own = np.concatenate([np.arange(*pair) for pair in zip(starts, stops, strict=True)])
        return RatingPiece(mine.start, mine.rows, mine.order[own], mine.columns[own], mine.passes)

    def _stage(self, plan: np.ndarray) -> _Stage | None:
        """What the round of `plan` does; None: the rows."""
        tile, turn = divmod(int(plan[0]) - 1, 2 * STEPS + 2)
        return _Stage(tile, turn) if plan[0] else None
