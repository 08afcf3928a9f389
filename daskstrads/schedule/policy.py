"""The built-in policies: deterministic functions of the round number and the ranks' reports."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..comm import codec

__all__ = [
    "Certified",
    "DynamicPriority",
    "Plan",
    "Policy",
    "Report",
    "RoundRobin",
    "StaticPartition",
]


class Report(NamedTuple):
    """What a rank tells the policy after a round.

    `ids` (int64) and `weights` (float64) are the variables it proposes next and how much each matters
    (inf: must be in); `terms` are numbers for the stopping rule.
    """

    ids: np.ndarray
    weights: np.ndarray
    terms: dict[str, float]


class Plan(NamedTuple):
    """What the ranks do in a round of a `Certified` policy.

    `step` is "prepare", "measure" (full gradient, certificate), "update" (of `block`, variable ids in
    order of priority) or "share" (of it, every rank its own); `gap` is the last known distance from the
    optimum, and of an update the share of it that its block may leave: all where a measurement follows
    every block, else less.
    """

    step: str
    block: np.ndarray
    gap: float


codec.register(Report, tuple, lambda parts: Report(*parts))
codec.register(Plan, tuple, lambda parts: Plan(*parts))


class Policy:
    """Base of the built-in policies: `policy(round, reports) -> plan`, None to stop.

    A policy is a pure function of its arguments and its own state, so copies on different ranks agree;
    `begin` gives the copy that one run uses. Where `waits` is False, plans can be dealt ahead.
    """

    def begin(self, size: int, seed: int) -> Policy:
        """Fresh copy for one run with `size` ranks; ranks share nothing."""
        return copy.deepcopy(self)

    def waits(self, round: int) -> bool:
        """Whether the plan of `round`, the next one, needs the reports of the round before."""
        return round > 0

    def __call__(self, round: int, reports: list[Any] | None) -> Any:
        """Plan of `round`, or None to stop."""
        raise NotImplementedError


class RoundRobin(Policy):
    """Every variable in turn, `block` at a time: the plan is an int64 array of variable ids.

    Stops after `sweeps` sweeps or, with `tol`, after a whole sweep in which no rank reported (as a plain
    number) a change above `tol`. `shuffled` draws a new order each sweep. This is STRADS' baseline
    schedule and its schedule for matrix factorisation (sections 3 and 4).

    Raises:
        ValueError: no variables, a block below 1, or neither sweeps nor tol.
        TypeError: with tol, a report that is no number. FloatingPointError: one that is nan.
    """

    def __init__(
        self,
        n_variables: int,
        block: int = 1,
        sweeps: int | None = None,
        *,
        tol: float | None = None,
        shuffled: bool = False,
    ):
        if n_variables < 1 or block < 1:
            raise ValueError(
                f"RoundRobin needs variables and a block of at least one, got {n_variables}, {block}"
            )
        if sweeps is None and tol is None:
            raise ValueError("RoundRobin would never stop: give sweeps or tol")
        self.n_variables, self.block, self.sweeps = n_variables, block, sweeps
        self.tol, self.shuffled = tol, shuffled
        self._seed = 0
        self._order: np.ndarray | None = None
        self._largest = 0.0

    @property
    def rounds_per_sweep(self) -> int:
        """Rounds it takes to visit every variable once."""
        return -(-self.n_variables // self.block)

    def begin(self, size: int, seed: int) -> RoundRobin:
        """Fresh copy for one run."""
        fresh = copy.copy(self)
        fresh._seed, fresh._order, fresh._largest = seed, None, 0.0
        return fresh

    def waits(self, round: int) -> bool:
        """Reports matter to `tol` alone."""
        return round > 0 and self.tol is not None

    def __call__(self, round: int, reports: list[Any] | None) -> np.ndarray | None:
        """Ids of this round's block, or None to stop."""
        sweep, place = divmod(round, self.rounds_per_sweep)
        if self.tol is not None and reports is not None:
            if not all(isinstance(report, int | float | np.number) for report in reports):
                raise TypeError("RoundRobin with tol needs pull to return a number: the size of the change")
            changes = [abs(float(report)) for report in reports]
            if np.isnan(changes).any():
                raise FloatingPointError(f"rank {int(np.argmax(np.isnan(changes)))} reported a change of nan")
            self._largest = max(self._largest, *changes)
            if place == 0:
                if self._largest <= self.tol:
                    return None
                self._largest = 0.0
        if self.sweeps is not None and sweep >= self.sweeps:
            return None
        return self._ids(sweep, place)

    def _ids(self, sweep: int, place: int) -> np.ndarray:
        """The block at `place` of a sweep."""
        start = place * self.block
        stop = min(start + self.block, self.n_variables)
        if not self.shuffled:
            return np.arange(start, stop)
        if place == 0 or self._order is None:
            self._order = np.random.default_rng([self._seed, sweep]).permutation(self.n_variables)
        return self._order[start:stop]


class StaticPartition(RoundRobin):
    """Every rank cycles through variables of its own: a round's plan is the next share of each rank's.

    Rank p owns [bounds[p], bounds[p + 1]), with `bounds` None equal shares. About `block` variables a round
    over all ranks, ids ascending; a sweep takes as many rounds as `RoundRobin`'s. Model parallelism without
    a scheduler, the baseline of STRADS' section 4.

    Raises:
        ValueError: as `RoundRobin`; bounds that do not ascend from 0 to `n_variables`; when a run begins,
            a block smaller than the number of ranks, or bounds for another number of them.
    """

    def __init__(
        self,
        n_variables: int,
        block: int = 1,
        sweeps: int | None = None,
        *,
        bounds: Sequence[int] | np.ndarray | None = None,
        tol: float | None = None,
    ):
        super().__init__(n_variables, block, sweeps, tol=tol)
        self.bounds = None if bounds is None else np.array(bounds, np.int64)
        if self.bounds is not None:
            ends = [0, n_variables]
            if len(self.bounds) < 2 or list(self.bounds[[0, -1]]) != ends or (np.diff(self.bounds) < 0).any():
                raise ValueError(f"bounds must ascend from 0 to {n_variables}, got {self.bounds.tolist()}")
        self._cuts = np.array([0, n_variables])

    def begin(self, size: int, seed: int) -> StaticPartition:
        """Fresh copy for one run with `size` ranks."""
        fresh = super().begin(size, seed)
        assert isinstance(fresh, StaticPartition)
        if self.block < size:
            raise ValueError(f"a block of {self.block} gives {size} ranks less than one variable each")
        if self.bounds is not None and len(self.bounds) != size + 1:
            raise ValueError(f"bounds give {len(self.bounds) - 1} ranks variables, the run has {size}")
        equal = self.n_variables * np.arange(size + 1) // size
        fresh._cuts = equal if self.bounds is None else self.bounds
        return fresh

    def _ids(self, sweep: int, place: int) -> np.ndarray:
        starts, lengths = self._cuts[:-1], np.diff(self._cuts)
        first, last = (starts + lengths * turn // self.rounds_per_sweep for turn in (place, place + 1))
        return np.concatenate([np.arange(*pair) for pair in zip(first, last, strict=True)])


class DynamicPriority(Policy):
    """The `block` variables that matter most among the ranks' proposals: ids in order of priority.

    STRADS (section 4) draws candidates with probability |recent change| + eta over all J variables, O(J)
    a draw. Here every rank proposes its own best (`Recency`, `strongest`) and the policy merges the
    proposals, O(proposals). Weights of inf must be in, and the block grows to `growth` times their number.
    Reports must be `Report`s. The first block is empty (nothing is proposed yet); stops when nothing is, or
    after `rounds` rounds.

    `lookahead` is STRADS' pipeline: the reports of one round give lookahead + 1 blocks, disjoint and in
    order of priority, so that only every (lookahead + 1)th round waits for reports and the others' priorities
    are up to `lookahead` rounds old. Ranks then have to propose as many times the block; fewer proposals
    make fewer blocks. Reports that come earlier, as after a measurement of `Certified`, replace what is left.

    Raises:
        ValueError: a block below 1, a lookahead below 0.
        TypeError: a lookahead that is no whole number, reports of another kind.
    """

    def __init__(self, block: int, *, growth: float = 0.0, rounds: int | None = None, lookahead: int = 0):
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        if not isinstance(lookahead, int | np.integer) or isinstance(lookahead, bool):
            raise TypeError(f"lookahead must be a whole number, got {lookahead!r}")
        if lookahead < 0:
            raise ValueError(f"lookahead must be at least 0, got {lookahead}")
        self.block, self.growth, self.rounds, self.lookahead = block, growth, rounds, int(lookahead)
        self._ahead: list[np.ndarray] = []  # blocks that are dealt without new reports

    def begin(self, size: int, seed: int) -> DynamicPriority:
        """Fresh copy for one run."""
        fresh = copy.copy(self)
        fresh._ahead = []
        return fresh

    def waits(self, round: int) -> bool:
        """Once the blocks of the last reports are dealt."""
        return round > 0 and not self._ahead

    def __call__(self, round: int, reports: list[Report] | None) -> np.ndarray | None:
        """Ids of this round's block, or None to stop."""
        if self.rounds is not None and round >= self.rounds:
            return None
        if reports is None:
            return self._ahead.pop(0) if self._ahead else np.empty(0, np.int64)
        if not all(isinstance(report, Report) for report in reports):
            raise TypeError("DynamicPriority needs pull to return a daskstrads.Report (ids, weights, terms)")
        if not any(len(report.ids) for report in reports):
            return None
        ids = np.concatenate([report.ids for report in reports])
        weights = np.concatenate([report.weights for report in reports])
        size = max(self.block, int(self.growth * np.count_nonzero(np.isinf(weights))))
        best = ids[strongest_first(ids, weights)[: size * (self.lookahead + 1)]]
        first, *self._ahead = (best[start : start + size] for start in range(0, len(best), size))
        return first


def strongest_first(ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Places of the proposals in order of weight, ties by id, so that every rank agrees."""
    return np.lexsort((ids, -weights))


class Certified(Policy):
    """Another policy's blocks, with a measurement before the first and after every `every` of them.

    `distance(reports)` turns the reports of a "measure" round into the distance from the optimum; the run
    stops when it is at most `target`, when it is no longer finite, when `patience` measurements have brought
    no smaller one (nor, where it is told, a smaller `height`, the objective), or after `max_measures`
    measurements beyond the first. With a `share`, the reports of updates tell a distance too, of what they
    looked at: the next measurement is due once that is at most `share` of the last measured one (or half of
    `target`), or when they propose nothing. With `apart`, which needs a share, blocks are shared out
    ("share") until one of them does not halve that distance: then ranks depend on each other, and up to the
    next measurement blocks are solved as a whole ("update").
    """

    def __init__(
        self,
        inner: Policy,
        distance: Callable[[list[Report]], float],
        target: float,
        *,
        every: int = 1,
        max_measures: int = 1000,
        patience: int = 50,
        share: float = 0.0,
        apart: bool = False,
        height: Callable[[list[Report]], float] | None = None,
    ):
        self.inner, self.distance, self.target = inner, distance, target
        self.every, self.max_measures, self.patience, self.share = every, max_measures, patience, share
        self.apart, self.height = apart, height
        self._restart()

    def _restart(self) -> None:
        self._step, self._gap, self._measures, self._updates = "", np.inf, 0, 0
        self._best, self._best_at, self._lowest = np.inf, 0, 1e308
        self._measured, self._since = np.inf, 0
        self._portion = 1.0 if self.share else 1.0 / self.every
        self._apart = self.apart

    def begin(self, size: int, seed: int) -> Certified:
        """Fresh copy for one run."""
        fresh = copy.copy(self)
        fresh.inner = self.inner.begin(size, seed)
        fresh._restart()
        return fresh

    def waits(self, round: int) -> bool:
        """What follows a measurement depends on it; an update may follow another as the inner policy says."""
        if round < 2 or self._step == "measure":
            return round >= 2
        if self.share:
            return self._since < self.every
        return self._updates % self.every != 0 and self.inner.waits(self._updates)

    def __call__(self, round: int, reports: list[Report] | None) -> Plan | None:
        """Prepare, then measure and update in turn."""
        if round == 0:
            return self._plan("prepare")
        if round == 1:
            return self._plan("measure")
        if self._step == "measure":
            assert reports is not None
            self._measures += 1
            before, self._gap = self._measured, self.distance(reports)
            self._measured, self._since, self._apart = self._gap, 0, self.apart
            if self._portion < 1.0 and 0.5 * before < self._gap < np.inf:
                # Every block was near enough to its own optimum by the last share, and they still add up.
                self._portion *= 0.1
            if not self._gap > self.target or not np.isfinite(self._gap):
                return None
            if self._gap < self._best:
                self._best, self._best_at = self._gap, self._measures
            if self.height is not None:
                height = self.height(reports)
                if height < self._lowest - 1e-9 * abs(self._lowest):
                    self._lowest, self._best_at = height, self._measures
            if self._measures > self.max_measures or self._measures - self._best_at >= self.patience:
                return None
        elif self._due(reports):
            return self._plan("measure")
        block = self.inner(self._updates, reports)
        if block is None or len(block) == 0:
            return None if self._step == "measure" else self._plan("measure")
        self._updates += 1
        self._since += 1
        step = "share" if self._apart else "update"
        return self._plan(step, block)._replace(gap=self._gap * self._portion)

    def _due(self, reports: list[Report] | None) -> bool:
        """Whether the next round, after an update, is a measurement."""
        if not self.share:
            return self._updates % self.every == 0
        if self._since >= self.every or reports is None or not any(len(report.ids) for report in reports):
            return True
        left = self.distance(reports)
        if not left > max(0.5 * self.target, self.share * self._measured) or not np.isfinite(left):
            return True
        if self._step == "share" and left > 0.5 * self._gap:
            self._apart = False
        self._gap = left
        return False

    def _plan(self, step: str, block: np.ndarray | None = None) -> Plan:
        self._step = step
        return Plan(step, np.empty(0, np.int64) if block is None else block, self._gap)
