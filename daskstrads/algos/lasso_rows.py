"""Elastic net on tall data: a rank owns rows and their residual; the coefficients are replicated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..engine.program import Gather, Program, Sum
from ..partition import Slab
from ..schedule import Plan, Policy, Recency, Report
from . import lasso_block as block_rules
from .design import DenseDesign, SparseDesign, design, dot, weighted_mean
from .lasso_block import Piece, Rules
from .objective import Penalty

__all__ = ["LassoRows", "RowPart"]

_SAMPLED = 4096  # rows of all ranks
HELD = 4096  # columns whose Gram matrix is kept between rounds: 128 MiB


class RowPart(NamedTuple):
    """A rank's rows of X, y and weight (all ranks' weights sum to n), and all start coefficients (p,)."""

    slab: Slab
    y: np.ndarray
    weight: np.ndarray
    coef: np.ndarray


@dataclass
class _Shard:
    design: DenseDesign | SparseDesign
    first: bool  # rank 0: it counts what all ranks do alike
    y: np.ndarray
    weight: np.ndarray
    moments: tuple  # (sum of weights, y's mean and spread, X's means and spreads) of this rank's rows
    share: slice  # the variables this rank reports on
    recency: Recency
    coef: np.ndarray  # replicated, written by pull alone
    residual: np.ndarray  # y - mean - (x - mean)'b of this rank's rows; private
    mean: np.ndarray = field(default_factory=lambda: np.empty(0))  # replicated from "prepare" on
    norms: np.ndarray = field(default_factory=lambda: np.empty(0))
    y_mean: float = 0.0
    total: float = 0.0  # all ranks' weights
    tt: float = 0.0
    rr: float = 0.0
    grad: np.ndarray = field(default_factory=lambda: np.empty(0))  # replicated, of the last measurement
    pilot: np.ndarray | None = None  # `_sampled`: of these rows, and from "prepare" to the first block of all
    products: np.ndarray | None = None  # of these rows' centred columns with y, while all coef are 0
    stale: bool = True  # coef has changed since `residual` (private) was computed
    measured: bool = False  # `grad` belongs to `coef`; else only for the held columns
    held: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # columns of `gram`
    gram: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    kept: dict[str, float] = field(default_factory=dict)


class LassoRows(Program):
    """Tall elastic net by dynamic-priority coordinate descent (STRADS, section 4).

    prepare: the ranks pool means and norms, and of dense data what a sample of rows tells of the optimum.
    measure: they sum the gradient over their rows.
    update: they sum the Gram matrix of the scheduled columns (what is new of it) and every rank updates
    the coefficients alike: to the block's optimum, or simultaneously after the dependency check.
    """

    replicas = ("coef",)

    def __init__(self, schedule: Policy, penalty: Penalty, rules: Rules):
        self.schedule = schedule
        self.penalty = penalty
        self.rules = rules

    def init(self, part: RowPart, rank: int, size: int, rng: np.random.Generator) -> _Shard:
        """Moments of this rank's rows.

        Raises:
            ValueError: a NaN or an infinity in them.
        """
        operator = design(part.slab)
        y_mean = weighted_mean(part.weight, part.y) if self.rules.centre else 0.0
        centred = part.y - y_mean
        cold = not part.coef.any()
        mean, spread, products = operator.moments(
            part.weight, self.rules.centre, centred if cold else np.empty(0)
        )
        block_rules.check_finite(spread, part.slab)
        total = float(part.weight.sum())
        y_spread = dot(part.weight, centred**2)
        p = len(mean)
        share = slice(p * rank // size, p * (rank + 1) // size)
        moments = (total, y_mean, y_spread, mean, spread)
        recency = Recency(share.stop - share.start, rng)
        coef = part.coef.astype(np.float64)
        first = rank == 0
        return _Shard(
            operator, first, part.y, part.weight, moments, share, recency, coef, np.empty(0),
            pilot=self._sampled(operator, part.weight, centred, size) if cold and self.rules.pilot else None,
            products=products if cold else None,
        )  # fmt: skip

    @staticmethod
    def warm() -> None:
        """Load the kernels of dense and sparse float64 data."""
        block_rules.warm(LassoRows, RowPart, 0)

    def push(self, shard: _Shard, plan: Plan) -> Any:
        """This rank's moments, part of the gradient, or part of the Gram matrix."""
        if plan.step == "prepare":
            moments = Gather(shard.moments)
            return moments if shard.pilot is None else (moments, Sum(shard.pilot))
        if plan.step == "measure":
            grad = self._gradient(shard)
            weighted = shard.weight * shard.residual
            rr = dot(weighted, shard.residual)
            tr = dot(weighted, shard.y - shard.y_mean)
            return Sum(np.concatenate([grad, [weighted.sum(), rr, tr]]))
        new, held = self._columns(shard, plan)
        if not len(new):
            return None
        gram = Sum(shard.design.gram(new, held, shard.weight, shard.mean, shard.moments[3]))
        if shard.measured:
            return (gram,)
        grad = self._gradient(shard)[new]
        return gram, Sum(np.append(grad, dot(shard.weight, shard.residual)))

    def pull(self, shard: _Shard, plan: Plan, received: Any, sent: Any) -> Report | None:
        """Commit the coefficients; report on this rank's share of the variables."""
        if plan.step == "prepare":
            moments, shard.pilot = (received, None) if shard.pilot is None else received
            self._pool(shard, moments)
            return None
        if plan.step == "measure":
            weighted, rr, tr = (float(entry) for entry in received[-3:])
            shard.grad = received[:-3] - shard.mean * weighted
            shard.grad[shard.norms == 0] = 0.0  # rounding
            shard.rr, shard.measured = rr, True
            return self._measured(shard, tr)
        if received is not None:
            block_rules.count(shard.kept, 0, shard.first * received[0].size)
            self._hold(shard, plan, *received)
        return self._updated(shard, plan)

    def _pool(self, shard: _Shard, moments: list[Any]) -> None:
        """Means and centred norms of all rows from those of the ranks (Chan et al. 1983)."""
        totals = np.array([entry[0] for entry in moments])
        means, y_means = np.stack([entry[3] for entry in moments]), np.array([entry[1] for entry in moments])
        shard.total = float(totals.sum())
        share = totals / shard.total
        # Relative to the first rank that has rows: what is constant stays so exactly.
        first = int(np.argmax(totals > 0))
        shard.mean = means[first] + np.einsum("i,ij->j", share, means - means[first])
        shard.y_mean = float(y_means[first]) + dot(share, y_means - y_means[first])
        shard.norms = sum(entry[4] for entry in moments) + np.einsum(
            "i,ij->j", totals, (means - shard.mean) ** 2
        )
        shard.coef[shard.norms == 0] = 0.0  # nothing would move what a warm start brings along
        shard.tt = float(sum(entry[2] for entry in moments) + dot(totals, (y_means - shard.y_mean) ** 2))

    def result(self, shard: _Shard) -> Piece:
        """This rank's share of the model."""
        held = np.flatnonzero(shard.coef[shard.share]) + shard.share.start
        return Piece(held, shard.coef[held], dot(shard.mean[held], shard.coef[held]), shard.y_mean)

    def _gradient(self, shard: _Shard) -> np.ndarray:
        """X' (weight * residual); the residual afresh from the data, so that no rounding piles up."""
        if not shard.stale:
            return shard.design.correlate(shard.weight * shard.residual)
        support = np.flatnonzero(shard.coef)
        shard.residual = shard.y - shard.y_mean
        shard.stale = False
        if not len(support):
            weighted = shard.weight * shard.residual
            if shard.products is None:
                return shard.design.correlate(weighted)
            grad, shard.products = shard.products + shard.moments[3] * weighted.sum(), None
            return grad
        shard.residual += dot(shard.mean[support], shard.coef[support])
        return shard.design.refresh(support, shard.coef[support], shard.weight, shard.residual)

    def _measured(self, shard: _Shard, tr: float) -> Report:
        share, penalty, rules = shard.share, self.penalty, self.rules
        grad, coef, norms = shard.grad[share], shard.coef[share], shard.norms[share]
        shared = {"rr": shard.rr, "tr": tr, "tt": shard.tt}
        block_rules.count(shard.kept, 0, shard.first * len(shard.grad))
        report = block_rules.report(grad, coef, norms, penalty, shared, shard.kept)
        if not rules.proposals:
            return report
        if rules.parallel:
            block_rules.propose_recent(shard.recency, grad, coef, norms, penalty, rules.proposals)
            places, weights = shard.recency.propose(rules.proposals)
        else:
            foreseen, likely = self._foreseen(shard)
            mine = (foreseen >= share.start) & (foreseen < share.stop)
            places, weights = foreseen[mine] - share.start, likely[mine]
            if not len(foreseen):
                places, weights = block_rules.steepest(grad, coef, penalty, rules.proposals)
        return report._replace(ids=places + share.start, weights=weights)

    def _sampled(
        self, operator: DenseDesign | SparseDesign, weight: np.ndarray, target: np.ndarray, size: int
    ) -> np.ndarray:
        """Of evenly spaced rows, flat: Gram matrix (p, p), gradient (p,), ||t||^2 and weight."""
        n, p = operator.shape
        rows = np.arange(0, n, max(1, n * size // _SAMPLED))
        sample, weight, target = operator.sample(rows), weight[rows], target[rows]
        mean, norms, grad = sample.moments(weight, self.rules.centre, target)
        every = np.arange(p)
        gram = sample.gram(every, every, weight, mean, mean)
        np.fill_diagonal(gram, norms)
        return np.concatenate([gram.ravel(), grad, [dot(weight, target**2), weight.sum()]])

    def _foreseen(self, shard: _Shard) -> tuple[np.ndarray, np.ndarray]:
        """Proposals by the optimum over the sample, once; empty without a sample."""
        from . import lasso_kernels as kernels

        pilot, shard.pilot = shard.pilot, None
        if pilot is None or not pilot[-1] > 0:
            return np.empty(0, np.int64), np.empty(0)
        p, rr, scale = len(shard.coef), float(pilot[-2]), float(pilot[-1]) / shard.total
        penalty = Penalty(scale * self.penalty.lam, scale * self.penalty.beta, self.penalty.positive)
        gram, grad, coef = pilot[: p * p].reshape(p, p), pilot[p * p : -2].copy(), np.zeros(p)
        norms, rough = np.diag(gram).copy(), 1e-4 * rr
        kernels.solve_gram(gram, norms, grad, coef, rr, *penalty, rough, block_rules.looks(gram.size))
        return block_rules.steepest(grad, coef, penalty, self.rules.proposals, 0.8)

    def _columns(self, shard: _Shard, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Scheduled columns that the Gram matrix lacks, and all it will hold, the new ones last."""
        new = np.sort(plan.block[~np.isin(plan.block, shard.held)])
        held = shard.held
        if len(held) + len(new) > HELD:
            held = held[np.isin(held, plan.block)]
        return new, np.concatenate([held, new])

    def _hold(self, shard: _Shard, plan: Plan, part: np.ndarray, gradient: np.ndarray | None = None) -> None:
        """Extend the Gram matrix by the new columns (and `grad`, where it is known for held ones only)."""
        new, held = self._columns(shard, plan)
        old = len(held) - len(new)
        gram = np.empty((len(held), len(held)))
        stay = np.flatnonzero(np.isin(shard.held, held[:old]))
        gram[:old, :old] = shard.gram[np.ix_(stay, stay)] if len(stay) < len(shard.held) else shard.gram
        gram[old:], gram[:old, old:] = part, part[:, :old].T
        np.fill_diagonal(gram, shard.norms[held])  # its digits are the better ones
        shard.held, shard.gram = held, gram
        if gradient is not None:
            shard.grad[new] = gradient[:-1] - shard.mean[new] * gradient[-1]

    def _updated(self, shard: _Shard, plan: Plan) -> Report:
        from . import lasso_kernels as kernels

        penalty = self.penalty
        places = np.flatnonzero(np.isin(shard.held, plan.block))
        block = shard.held[places]
        whole = len(places) == len(shard.held)  # the usual case: nothing to copy
        gram = shard.gram if whole else np.ascontiguousarray(shard.gram[np.ix_(places, places)])
        before, norms = shard.coef[block], shard.norms[block]
        grad, coef = shard.grad[block], before.copy()
        if self.rules.parallel:
            coef = block_rules.simultaneous(gram, norms, grad, coef, penalty, self.rules.rho)
            block_rules.count(shard.kept, int(np.count_nonzero(coef != before)), 0)
        else:
            # Sweeps over a Gram matrix cost next to nothing beside a pass.
            target = block_rules.block_target(plan.gap, shard.kept, penalty, self.rules, share=0.0)
            _, visits = kernels.solve_gram(
                gram, norms, grad.copy(), coef, shard.rr, *penalty, target, block_rules.looks(gram.size)
            )
            block_rules.count(shard.kept, visits, 0)
        step = coef - before
        moved = np.flatnonzero(step)
        fall = np.einsum("ij,j->i", shard.gram[:, places[moved]], step[moved])
        shard.rr += dot(step, fall[places] - 2.0 * grad)
        shard.grad[shard.held] -= fall  # of the held columns only: the others wait for a measurement
        shard.coef[block] = coef
        shard.stale, shard.measured = True, False
        if not self.rules.parallel:
            return Report(np.empty(0, np.int64), np.empty(0), {})
        share = shard.share
        mine = (block >= share.start) & (block < share.stop)
        changes = step * np.sqrt(shard.norms[block])
        shard.recency.record(block[mine] - share.start, changes[mine])
        ids, weights = shard.recency.propose(self.rules.proposals)
        return Report(ids + share.start, weights, {})
