"""Cyclic coordinate descent, round robin over blocks of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.program import Gather, Program, Scatter
from ..schedule import Policy, Report
from .factors import Held, RatingPart, RatingPiece, Settings, made, measured, warm
from .progress import Follower

__all__ = ["CoordinateDescent", "sweep_stages"]

_BLOCK = 4  # features a round; as in ccd_kernels, which is not imported for it
_SUMS = 16


def sweep_stages(width: int) -> int:
    """Rounds of a sweep: of every block of features one for the columns' sums and one for their answer."""
    return width // _BLOCK * 2


@dataclass
class _Shard(Held):
    """Factors, of the columns this rank's own, and a block of features."""

    sums: np.ndarray  # (columns, 16) of the next block, over this rank's ratings
    total: np.ndarray  # (own, 16) sums of this rank's columns over all ratings
    pairs: np.ndarray  # (columns, 8) new and old features of the last block; replicated
    cold: bool  # the first sweep, and rows are zeros: they have to come first


class CoordinateDescent(Program):
    """Matrix factorisation by coordinate descent, four features a round (STRADS, section 3, MF).

    Minimises the objective of `Settings`. A rank owns rows with their ratings, and a share of the columns.
    Every rank adds up, over its ratings, what the columns' side of a block of four features needs (Scatter:
    the total goes to the column's owner, who solves for them exactly and tells all, Gather); then every rank
    solves its rows' side in one pass over its ratings, which also adds up the next block's sums (CCD++
    of Yu et al. 2012, with numerators and denominators fused into the pass). No rank holds more of the
    columns' factors than its share and one block.
    """

    replicas = ("pairs",)

    follower: Follower | None = None  # the callback of rank 0, where somebody follows the fit

    def __init__(self, schedule: Policy, settings: Settings):
        self.schedule, self.settings = schedule, settings

    def init(self, part: RatingPart, rank: int, size: int, rng: np.random.Generator) -> _Shard:
        """Ratings in order, the first factors, and the first block's sums.

        Raises:
            ValueError: an index outside the matrix.
        """
        from . import ccd_kernels as kernels

        mine = made(part, rank, size, self.settings, share=True)
        sums = np.zeros((len(part.counts), _SUMS), self.settings.dtype)
        if mine.rows.any():
            kernels.prepare(mine.offsets, mine.indices, mine.residual, mine.rows, 0, sums)
        none = np.empty((0, 0), self.settings.dtype)
        return _Shard(mine, sums, none, none, part.columns is None)

    @staticmethod
    def warm() -> None:
        """Load the kernels of float32 ratings."""
        warm(lambda columns, width: sweep_stages(width), CoordinateDescent)

    def push(self, shard: _Shard, plan: np.ndarray) -> Any:
        """Sums over this rank's ratings, or what its columns have become."""
        from . import ccd_kernels as kernels

        mine = shard.factors
        block, answers = divmod(int(plan[0]), 2)
        if not answers and shard.cold:
            return None
        if not answers:
            mine.sent += shard.sums.nbytes * (mine.size - 1) // mine.size
            return Scatter(shard.sums)
        at, frozen, first = self._block(block, self.settings.layout.column_frozen)
        pairs = np.empty((len(mine.columns), 2 * _BLOCK), mine.columns.dtype)
        if shard.cold:
            pairs[:, :_BLOCK] = pairs[:, _BLOCK:] = mine.columns[:, at : at + _BLOCK]
        else:
            kernels.solve_columns(
                *(shard.total, mine.columns, mine.column_weight, at, frozen, first),
                *(self.settings.positive, pairs),
            )
        mine.sent += pairs.nbytes * (mine.size - 1)
        return Gather(pairs)

    def pull(self, shard: _Shard, plan: np.ndarray, received: Any, sent: Any) -> Report | None:
        """Keep the totals of this rank's columns, or solve its rows; at the end of a sweep, a report."""
        from . import ccd_kernels as kernels
        from .ratings_kernels import penalty_of

        mine, layout = shard.factors, self.settings.layout
        mine.rounds += 1
        block, answers = divmod(int(plan[0]), 2)
        if not answers:
            shard.total = received
            return None
        at, frozen, first = self._block(block, layout.row_frozen)
        following = (at + _BLOCK) % layout.width
        shard.pairs = np.concatenate(received)
        mine.sse = kernels.sweep_rows(
            mine.offsets, mine.indices, mine.residual, mine.rows, shard.pairs, mine.row_weight,
            at, following, frozen, first, self.settings.positive, shard.sums,
        )  # fmt: skip
        if following:
            return None
        shard.cold = False
        mine.penalty = penalty_of(mine.rows, mine.row_weight, layout.row_frozen) + penalty_of(
            mine.columns, mine.column_weight, layout.column_frozen
        )
        return measured(mine, self.follower)

    def result(self, shard: _Shard) -> RatingPiece:
        """This rank's rows and columns."""
        mine = shard.factors
        return RatingPiece(mine.start, mine.rows, mine.order, mine.columns, mine.passes)

    def _block(self, block: int, frozen: int) -> tuple[int, int, int]:
        """A block's first feature, its frozen one or -1, and where those that must not be negative begin."""
        at = block * _BLOCK
        return at, (frozen if 0 <= frozen - at < _BLOCK else -1), self.settings.layout.first - at
