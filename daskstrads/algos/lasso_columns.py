"""Elastic net split by columns: a rank owns columns and their coefficients; the residual is replicated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..engine.program import Gather, Program, Sum
from ..partition import Slab
from ..schedule import Plan, Policy, Recency, Report
from . import lasso_block as block_rules
from .design import Columns, DenseDesign, SparseDesign, columns_axpy, columns_gram, design, dot, weighted_mean
from .lasso_block import Piece, Rules
from .objective import Penalty, local_terms
from .problem import near_count

__all__ = ["ColumnPart", "LassoColumns"]


class ColumnPart(NamedTuple):
    """A rank's columns, y (n,), the weights (n,) summing to n, and the columns' start coefficients."""

    slab: Slab
    y: np.ndarray
    weight: np.ndarray
    coef: np.ndarray


class _Block(NamedTuple):
    """The scheduled columns as gathered: rank by rank, each rank's in order of priority."""

    ids: np.ndarray
    values: np.ndarray
    indices: np.ndarray | None
    offsets: np.ndarray | None
    mean: np.ndarray
    norms: np.ndarray
    coef: np.ndarray


@dataclass
class _Shard:
    design: DenseDesign | SparseDesign
    first: bool  # rank 0: it counts what all ranks do alike
    size: int  # number of ranks
    start: int
    mean: np.ndarray  # of this rank's columns
    norms: np.ndarray  # ||z_j||^2
    still: np.ndarray  # places where that is 0
    target: np.ndarray  # t = sqrt(w) (y - mean)
    scale: np.ndarray  # sqrt(w)
    y_mean: float
    coef: np.ndarray  # this rank's; written by pull
    residual: np.ndarray  # q = t - Z b; replicated, written by pull alone
    recency: Recency
    # Allocated once: workers give large temporaries back to the system and fault them in again.
    grad: np.ndarray  # as long as coef
    joined: np.ndarray  # dense columns of the last block
    near: np.ndarray  # places that may come into play before the next measurement, ascending
    part: Any = None  # these columns
    share: Any = None  # of the block: places, coefficients, their change
    kept: dict[str, float] = field(default_factory=dict)


class LassoColumns(Program):
    """Elastic net split by columns, by dynamic-priority coordinate descent (STRADS, section 4).

    measure: the ranks sum their parts of the fit, then each computes the gradient of its own columns.
    update: the ranks gather the scheduled columns, and every rank updates them alike: to the block's
    optimum, or simultaneously after the dependency check. share: each rank sweeps its own scheduled columns
    at the same time as the others, and they go along the sum of their changes as far as that helps: columns
    that depend on each other are solved together where one rank has them; where the policy sees that ranks
    depend on each other, an update follows. With `near`, each rank then looks at its columns
    near the threshold again (a working set, as the strong rule of Tibshirani et al. 2012): measurements,
    which look at all, become few.
    """

    replicas = ("residual",)

    def __init__(self, schedule: Policy, penalty: Penalty, rules: Rules):
        self.schedule = schedule
        self.penalty = penalty
        self.rules = rules

    def init(self, part: ColumnPart, rank: int, size: int, rng: np.random.Generator) -> _Shard:
        """Means and norms of this rank's columns.

        Raises:
            ValueError: a NaN or an infinity in them.
        """
        operator = design(part.slab)
        mean, norms, _ = operator.moments(part.weight, self.rules.centre)
        block_rules.check_finite(norms, part.slab)
        y_mean = weighted_mean(part.weight, part.y) if self.rules.centre else 0.0
        scale = np.sqrt(part.weight)
        target = scale * (part.y - y_mean)
        recency = Recency(len(norms), rng)
        coef, still = part.coef.astype(np.float64), np.flatnonzero(norms == 0)
        coef[still] = 0.0  # nothing would move what a warm start brings along
        return _Shard(
            operator, rank == 0, size, part.slab.start, mean, norms, still, target, scale, y_mean, coef,
            target.copy(), recency, np.empty_like(norms), np.empty((0, 0)), np.empty(0, np.int64),
        )  # fmt: skip

    @staticmethod
    def warm() -> None:
        """Load the kernels of dense and sparse float64 data."""
        block_rules.warm(LassoColumns, ColumnPart, 1)

    def push(self, shard: _Shard, plan: Plan) -> Any:
        """The fit of this rank's support, or its scheduled columns with their state."""
        if plan.step == "measure":
            held = np.flatnonzero(shard.coef)
            fit = shard.design.combine(held, shard.coef[held])
            fit -= dot(shard.mean[held], shard.coef[held])
            return Sum(shard.scale * fit)
        if plan.step == "share":
            return Sum(self._solve_share(shard, plan))
        if plan.step == "update":
            return Gather(tuple(self._block(shard, self._own(shard, plan))))
        return None

    def pull(self, shard: _Shard, plan: Plan, received: Any, sent: Any) -> Report | None:
        """Commit the residual and this rank's coefficients; report."""
        if plan.step == "measure":
            shard.residual = shard.target - received
            return self._measured(shard)
        if plan.step == "update":
            return self._updated(shard, plan, _joined(received, shard))
        if plan.step == "share":
            return self._shares_added(shard, received)
        return None

    def result(self, shard: _Shard) -> Piece:
        """This rank's columns of the model."""
        held = np.flatnonzero(shard.coef)
        offset = dot(shard.mean[held], shard.coef[held])
        return Piece(held + shard.start, shard.coef[held], offset, shard.y_mean)

    def _own(self, shard: _Shard, plan: Plan) -> np.ndarray:
        """Places of the scheduled variables that this rank owns, in order of priority."""
        places = plan.block - shard.start
        return places[(places >= 0) & (places < len(shard.coef))]

    def _block(self, shard: _Shard, own: np.ndarray) -> _Block:
        """This rank's columns at the places `own`, with their state."""
        scale = shard.scale if self.rules.weighted else None
        mean = shard.mean[own]
        given = mean if self.rules.centre else None
        if shard.part is None:
            columns = shard.design.take(own, scale, given)
        else:
            columns = shard.part.take(np.searchsorted(shard.near, own), scale, given)
        if columns.offsets is not None:  # of those without zeros, the mean has been taken off
            mean = np.where(np.diff(columns.offsets) == len(shard.residual), 0.0, mean)
        return _Block(own + shard.start, *columns, mean, shard.norms[own], shard.coef[own])

    def _measured(self, shard: _Shard) -> Report:
        penalty, rules = self.penalty, self.rules
        weighted = self._weighted(shard)
        grad = shard.design.correlate(weighted, shard.grad)
        if rules.centre:
            grad -= shard.mean * weighted.sum()
        grad[shard.still] = 0.0  # rounding
        shared = self._shared(shard)
        block_rules.count(shard.kept, 0, len(grad))
        report = block_rules.report(grad, shard.coef, shard.norms, penalty, shared, shard.kept)
        if not rules.proposals:
            return report
        if rules.parallel:
            block_rules.propose_recent(shard.recency, grad, shard.coef, shard.norms, penalty, rules.proposals)
            places, weights = shard.recency.propose(rules.proposals)
        elif rules.near:
            count = near_count(len(grad), rules.proposals)
            shard.part = None  # before the next one is made
            shard.near, weights = block_rules.steepest(grad, shard.coef, penalty, count)
            shard.part = shard.design.part(shard.near)
            places, weights = block_rules.best(shard.near, weights, rules.proposals)
        else:
            places, weights = block_rules.steepest(grad, shard.coef, penalty, rules.proposals)
        return report._replace(ids=places + shard.start, weights=weights)

    def _weighted(self, shard: _Shard) -> np.ndarray:
        return shard.scale * shard.residual if self.rules.weighted else shard.residual

    def _shared(self, shard: _Shard) -> dict[str, float]:
        """What all ranks know alike."""
        q, target = shard.residual, shard.target
        return {"rr": dot(q, q), "tr": dot(target, q), "tt": dot(target, target)}

    def _updated(self, shard: _Shard, plan: Plan, block: _Block) -> Report:
        coef = block.coef.copy()
        if self.rules.parallel:
            self._simultaneous(shard, block, coef)
        else:
            target = block_rules.block_target(plan.gap, shard.kept, self.penalty, self.rules)
            entries = block.values.size
            looks, visits = self._solve(
                shard, block, coef, shard.residual, target, block_rules.looks(entries)
            )
            block_rules.count(shard.kept, visits, shard.first * (visits + (looks + 1) * len(coef)))
        mine = np.flatnonzero((block.ids >= shard.start) & (block.ids < shard.start + len(shard.coef)))
        places = block.ids[mine] - shard.start
        shard.coef[places] = coef[mine]
        if not self.rules.parallel:
            return self._nearby(shard)
        shard.recency.record(places, (coef[mine] - block.coef[mine]) * np.sqrt(block.norms[mine]))
        places, weights = shard.recency.propose(self.rules.proposals)
        return Report(places + shard.start, weights, {})

    def _nearby(self, shard: _Shard) -> Report:
        """The report as if only the columns that are `near` existed; nothing is proposed without others."""
        near, penalty = shard.near, self.penalty
        if shard.part is None:
            return Report(np.empty(0, np.int64), np.empty(0), {})
        weighted = self._weighted(shard)
        grad = shard.part.correlate(weighted)
        block_rules.count(shard.kept, 0, len(near))
        if self.rules.centre:
            grad -= shard.mean[near] * weighted.sum()
        coef, norms = shard.coef[near], shard.norms[near]
        grad[norms == 0] = 0.0
        terms = local_terms(grad, coef, norms, penalty) | self._shared(shard) | shard.kept
        found, weights = block_rules.steepest(grad, coef, penalty, self.rules.proposals)
        return Report(near[found] + shard.start, weights, terms)

    def _solve(
        self, shard: _Shard, block: _Block, coef: np.ndarray, residual: np.ndarray, target: float, limit: int
    ) -> tuple[int, int]:
        """The block's optimum; writes `coef` and `residual`; looks and visits."""
        from . import lasso_kernels as kernels

        stop = (*self.penalty, target, limit)
        if block.offsets is None:
            return kernels.solve_dense(block.values, block.norms, coef, residual, *stop)
        return kernels.solve_sparse(
            block.values, block.indices, block.offsets, block.mean, block.norms, shard.scale,
            dot(shard.scale, shard.scale), coef, residual, *stop,
        )  # fmt: skip

    def _solve_share(self, shard: _Shard, plan: Plan) -> np.ndarray:
        """Sweeps over this rank's share of the block, from the common residual: what they take off that, then
        the change of the penalty's terms and the visits.
        """
        own = self._own(shard, plan)
        block = self._block(shard, own)
        before, coef, residual = block.coef, block.coef.copy(), shard.residual.copy()
        target = block_rules.block_target(plan.gap, shard.kept, self.penalty, self.rules)
        looks, visits = self._solve(shard, block, coef, residual, target / shard.size, 1)
        block_rules.count(shard.kept, 0, visits + (looks + 1) * len(own))
        step = coef - before
        shard.share = own, before, step
        terms = float(np.abs(coef).sum() - np.abs(before).sum()), dot(before, step), dot(step, step), visits
        return np.concatenate([shard.residual - residual, terms])

    def _shares_added(self, shard: _Shard, received: np.ndarray) -> Report:
        """Go along the sum of all shares, as far as lowers the objective most; at most all the way.

        Shares that do not depend on each other add up to a whole step. In between, ||b||_1 is at most what
        lies on the line between its ends, so that the objective never rises (convexity).
        """
        penalty, fall = self.penalty, received[:-4]
        l1, along, length, visits = received[-4:]
        slope = dot(shard.residual, fall) - penalty.lam * l1 - penalty.beta * along
        curvature = dot(fall, fall) + penalty.beta * length
        reach = min(max(slope / curvature, 0.0), 1.0) if curvature > 0 else 1.0
        own, before, step = shard.share
        shard.coef[own] = before + reach * step
        shard.residual = shard.residual - reach * fall
        block_rules.count(shard.kept, int(visits), 0)
        return self._nearby(shard)

    def _simultaneous(self, shard: _Shard, block: _Block, coef: np.ndarray) -> None:
        """STRADS' update of the block; writes `coef` and the residual."""
        columns = Columns(block.values, block.indices, block.offsets)
        gram, grad = columns_gram(columns, block.mean, shard.scale, shard.residual)
        coef[:] = block_rules.simultaneous(gram, block.norms, grad, coef, self.penalty, self.rules.rho)
        columns_axpy(columns, block.mean, shard.scale, block.coef - coef, shard.residual)
        updates = int(np.count_nonzero(coef != block.coef))
        block_rules.count(shard.kept, updates, shard.first * len(coef))


def _joined(received: list[Any], shard: _Shard) -> _Block:
    if len(received) == 1:
        return _Block(*received[0])
    columns = [_Block(*entry) for entry in received]
    offsets = None
    if columns[0].offsets is not None:
        lengths = np.concatenate([np.diff(entry.offsets) for entry in columns if entry.offsets is not None])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = [entry.values for entry in columns]
    size = sum(map(len, values))
    if offsets is None and len(shard.joined) < size:
        shard.joined = np.empty((size + size // 4, values[0].shape[1]))
    joined = _Block(
        ids=np.concatenate([entry.ids for entry in columns]),
        values=np.concatenate(values, out=None if offsets is not None else shard.joined[:size]),
        indices=None if offsets is None else np.concatenate([entry.indices for entry in columns]),
        offsets=offsets,
        mean=np.concatenate([entry.mean for entry in columns]),
        norms=np.concatenate([entry.norms for entry in columns]),
        coef=np.concatenate([entry.coef for entry in columns]),
    )
    for array in joined:
        if array is not None:
            array.flags.writeable = False  # as when nothing had to be joined: one signature a kernel
    return joined
