"""The layouts of the elastic net as the estimators run them: they keep their history, and can be followed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..engine.program import Gather
from ..schedule import Plan, Report
from . import lasso_columns, lasso_rows
from .lasso_block import Piece
from .progress import Follower

__all__ = ["LassoColumns", "LassoRows"]


class _Followed:
    """Keeps (round, seconds, terms) of every measurement in the shard, and passes them on with its result.

    With a `follower`, the callback of rank 0, the ranks' pieces of the model come along with a measurement
    where it wants them, and reports say when it asks for the end.
    """

    follower: Follower | None = None

    def init(self, part: Any, rank: int, size: int, rng: np.random.Generator) -> Any:
        """The layout's shard. Raises: as there."""
        start = time.perf_counter()
        shard = super().init(part, rank, size, rng)  # type: ignore[misc]
        shard.start_time, shard.rounds, shard.passes = start, 0, []
        return shard

    def push(self, shard: Any, plan: Plan) -> Any:
        """What the layout exchanges, and the pieces of the model."""
        sent = super().push(shard, plan)  # type: ignore[misc]
        if self._hands_over(plan):
            sent = (*_tuple(sent), Gather(tuple(super().result(shard))))  # type: ignore[misc]
        return sent

    def pull(self, shard: Any, plan: Plan, received: Any, sent: Any) -> Report | None:
        """The layout's commit."""
        follower = self.follower
        if follower is not None and self._hands_over(plan):
            # All ranks of a process write the same; rank 0 reads it before any of them can measure again.
            *rest, pieces = received
            follower.pieces = [Piece(*piece) for piece in pieces]
            received, sent = (rest[0], sent[0]) if len(rest) == 1 else (tuple(rest), sent[:-1])
        report = super().pull(shard, plan, received, sent)  # type: ignore[misc]
        if plan.step == "measure":
            if follower is not None and follower.stop:
                report.terms["stop"] = 1.0
            shard.passes.append((shard.rounds, time.perf_counter() - shard.start_time, report.terms))
        shard.rounds += 1
        return report

    def result(self, shard: Any) -> Piece:
        """This rank's piece of the model, with its history."""
        return super().result(shard)._replace(passes=shard.passes)  # type: ignore[misc]

    def _hands_over(self, plan: Plan) -> bool:
        return self.follower is not None and self.follower.models and plan.step == "measure"


def _tuple(sent: Any) -> tuple[Any, ...]:
    return sent if isinstance(sent, tuple) else (sent,)


class LassoColumns(_Followed, lasso_columns.LassoColumns):
    """`lasso_columns.LassoColumns`, followed; of the same name, which is what a dashboard shows."""


class LassoRows(_Followed, lasso_rows.LassoRows):
    """`lasso_rows.LassoRows`, followed; of the same name, which is what a dashboard shows."""
