"""Arms of the claims table: fits by the engine's own Lasso, watched, with at most their schedule exchanged.

An arm is `Lasso(...).fit` on threads. Its call of `run` is intercepted: the program, the parts and the seed
are those the estimator made; the schedule is another one where the arm asks for what the estimator has no
parameter for (a static partition, another block, a lookahead).
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import scipy.sparse as sp
from certificate import Certificate, certify
from claims_problems import Problem
from workloads import lam_max

from daskstrads import Lasso, Program, run
from daskstrads.algos.objective import gap_of, primal_of
from daskstrads.comm import codec
from daskstrads.engine.exchange import as_exchanges
from daskstrads.schedule import DynamicPriority, StaticPartition

TARGET = 1e-6  # gap over P(0) that an arm goes for
DIVERGED = 10.0  # times P(0): as in the estimator's own rule
ENOUGH = 1_000_000  # passes: never the reason to stop


@dataclass(frozen=True)
class Arm:
    """How to fit: parameters of Lasso, and `block` (None: the estimator's own) and `lookahead`.

    `selection` may also be "static": each rank cycles through its own variables.
    """

    selection: str = "dynamic"
    update: str = "exact"
    rho: float | None = 0.1
    block: int | None = None
    lookahead: int = 0
    ranks: int = 2

    @property
    def guided(self) -> bool:
        """Whether full gradients choose variables; otherwise they only tell how far the optimum is."""
        return self.selection == "dynamic"


class Step(NamedTuple):
    """A round: what it did, how many variables were scheduled, its seconds, whether it ended in reports."""

    kind: str
    size: int
    seconds: float
    waited: bool


class Measure(NamedTuple):
    """What a measurement told: after how many rounds, gap and objective over P(0), counts so far."""

    rounds: int
    gap: float
    objective: float
    updates: float
    dots: float


class Reach(NamedTuple):
    """What it took to reach a level: see `Outcome.reach`."""

    rounds: int
    updates: float
    dots: float
    wall: float


@dataclass
class Outcome:
    """What an arm did. `status`: converged, diverged, time (its limit), or ended (no progress any more)."""

    problem: Problem
    arm: Arm
    status: str = "ended"
    steps: list[Step] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    cpu: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # seconds (ranks, rounds)
    sent: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))  # bytes (ranks, rounds)
    shards: list[int] = field(default_factory=list)  # bytes of the arrays that each rank holds
    trace: np.ndarray = field(default_factory=lambda: np.empty(0))  # objective over P(0) after each update
    certificate: Certificate | None = None
    target: float = TARGET

    @property
    def certified(self) -> bool:
        """Whether the independent certificate confirms the target."""
        return self.certificate is not None and self.certificate.relative <= 1.001 * self.target

    def gaps(self) -> tuple[np.ndarray, np.ndarray]:
        """Products counted (over J) and gap (over P(0)) at each measurement."""
        reached = [self._at(place) for place in range(len(self.measures))]
        return np.array([each.dots for each in reached]), np.array([each.gap for each in self.measures])

    def reach(self, level: float) -> Reach | None:
        """Rounds, updates, products x_j'r over J and seconds to a gap of `level` P(0); None: not reached.

        Where gradients only certify, neither their products nor their rounds' time count.
        """
        for place, measure in enumerate(self.measures):
            if measure.gap <= level:
                return self._at(place)
        return None

    def spent(self) -> Reach:
        """The same at the end: at least that, what was scheduled since the last measurement counts once."""
        at = self._at(len(self.measures) - 1) if self.measures else Reach(0, 0.0, 0.0, 0.0)
        since = sum(step.size for step in self.steps[at.rounds :])
        dots = at.dots + since / self.problem.X.shape[1]
        return Reach(len(self.steps), at.updates, dots, self._wall(len(self.steps)))

    def certifying(self) -> float:
        """Products over J that went into certificates alone."""
        return 0.0 if self.arm.guided else float(len(self.measures))

    def _at(self, place: int) -> Reach:
        measure = self.measures[place]
        dots = measure.dots / self.problem.X.shape[1] - (0 if self.arm.guided else place + 1)
        return Reach(measure.rounds, measure.updates, dots, self._wall(measure.rounds))

    def _wall(self, rounds: int) -> float:
        skipped = () if self.arm.guided else ("measure",)
        return sum(step.seconds for step in self.steps[:rounds] if step.kind not in skipped)


class StoppedError(Exception):
    """Ends a run from its callback."""


class Counted(Program):
    """A program as it is, with a clock around push and pull and a scale under what push returns."""

    def __init__(self, program: Any, size: int, traced: bool):
        self.program, self.traced = program, traced
        self.schedule, self.replicas = program.schedule, program.replicas
        self.cpu: list[list[float]] = [[] for _ in range(size)]
        self.sent: list[list[int]] = [[] for _ in range(size)]
        self.norms: list[list[tuple[float, float]]] = [[] for _ in range(size)]  # ||q||^2, ||b||_1
        self.shards: list[Any] = [None] * size

    def init(self, part: Any, rank: int, size: int, rng: np.random.Generator) -> Any:
        self.shards[rank] = self.program.init(part, rank, size, rng)
        return self.shards[rank]

    def push(self, shard: Any, plan: Any) -> Any:
        rank = self._rank(shard)
        start = time.thread_time()
        sent = self.program.push(shard, plan)
        self.cpu[rank].append(time.thread_time() - start)
        self.sent[rank].append(sum(_size(each.value) for each in as_exchanges(sent)))
        return sent

    def pull(self, shard: Any, plan: Any, received: Any, sent: Any) -> Any:
        rank = self._rank(shard)
        start = time.thread_time()
        report = self.program.pull(shard, plan, received, sent)
        self.cpu[rank][-1] += time.thread_time() - start
        if report is not None:
            self.sent[rank][-1] += _size(report)
        if self.traced and plan.step == "update":
            self.norms[rank].append(_norms(shard, rank))
        return report

    def result(self, shard: Any) -> Any:
        return self.program.result(shard)

    def _rank(self, shard: Any) -> int:
        return next(rank for rank, mine in enumerate(self.shards) if mine is shard)


def _size(value: Any) -> int:
    description, _, size = codec.encode(value)
    return len(description) + size


def _norms(shard: Any, rank: int) -> tuple[float, float]:
    if hasattr(shard, "rr"):  # rows: coefficients are replicated
        return shard.rr, float(np.abs(shard.coef).sum()) if rank == 0 else 0.0
    return float(shard.residual @ shard.residual), float(np.abs(shard.coef).sum())


class Watch:
    """A callback of `run`: what every round did, and the end of an arm that diverges or takes too long."""

    def __init__(self, outcome: Outcome, counted: Counted, seconds: float, rounds: int | None):
        self.outcome, self.counted, self.seconds, self.rounds = outcome, counted, seconds, rounds
        self.penalty = counted.program.penalty
        self.last = time.perf_counter()
        self.plan: Any = None
        self.scheduled, self.updates, self.used = 0, 0, 0.0
        self.ending = ""

    def __call__(self, round: int, plan: Any, reports: list[Any] | None) -> None:
        now = time.perf_counter()
        if self.ending and plan is not None:  # one round later: by now every rank has pulled what is counted
            raise StoppedError(self.ending)
        steps = self.outcome.steps
        if self.plan is not None:
            updated = self.plan.step in ("update", "share")
            waited = reports is not None and plan is not None
            steps.append(
                Step("update" if updated else self.plan.step, len(self.plan.block), now - self.last, waited)
            )
            self.used += now - self.last if updated or self.outcome.arm.guided else 0.0
            self.scheduled += len(self.plan.block)
            self.updates += updated
            if self.plan.step == "measure":
                self.measured(reports)
        self.plan = plan
        norms = self.counted.norms[0]
        if norms and not 0.5 * norms[-1][0] <= DIVERGED * self.outcome.problem.null * self.n:
            self.ending = "diverged"
        elif self.used > self.seconds or (self.rounds is not None and self.updates >= self.rounds):
            self.ending = "time"
        self.last = time.perf_counter()

    @property
    def n(self) -> int:
        return len(self.outcome.problem.y)

    def measured(self, reports: Any) -> None:
        outcome = self.outcome
        terms, null = reports[0].terms, self.n * outcome.problem.null
        counts = terms["updates"], sum(report.terms["dots"] for report in reports)
        gap, objective = gap_of(reports, self.penalty), primal_of(reports, self.penalty)
        outcome.measures.append(
            Measure(len(outcome.steps), gap / null, objective / null, *map(float, counts))
        )


def fit(
    problem: Problem, arm: Arm, *, seconds: float, rounds: int | None = None, traced: bool = False,
    target: float = TARGET,
) -> Outcome:  # fmt: skip
    """Fit `problem` as `arm` says, for at most so many seconds and rounds of updates, to `target` P(0)."""
    outcome, kept = Outcome(problem, arm, target=target), {}

    def watched(program: Any, parts: Any, **options: Any) -> Any:
        _arrange(program, arm, problem.X.shape[1], parts)
        counted = kept["counted"] = Counted(program, len(parts), traced)
        options |= {"callback": Watch(outcome, counted, seconds, rounds), "transport": "threads"}
        return run(counted, parts, **options)

    # scikit-learn's rule, gap <= tol ||y||^2 / n, is gap <= 2 tol P(0).
    model = Lasso(
        problem.alpha, fit_intercept=False, tol=target / 2, max_iter=ENOUGH, n_shards=arm.ranks,
        selection="cyclic" if arm.selection == "static" else arm.selection, update=arm.update, rho=arm.rho,
        random_state=0,
    )  # fmt: skip
    with mock.patch("daskstrads.algos.lasso.run", watched), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of arms that do not converge: the table says so
        with np.errstate(all="ignore"):
            try:
                model.fit(problem.X, problem.y)
            except StoppedError as stop:
                outcome.status = str(stop)
            except ValueError as error:
                if "overflowed" not in str(error):
                    raise
                outcome.status = "diverged"
    _finish(outcome, kept["counted"])
    last = outcome.measures[-1].gap if outcome.measures else np.inf
    if outcome.status == "ended" and last <= target:
        outcome.status = "converged"
        outcome.certificate = certify(problem.X, problem.y, model.coef_, problem.alpha)
    elif outcome.status == "ended" and not outcome.measures[-1].objective <= DIVERGED:
        outcome.status = "diverged"
    OUTCOMES.append(outcome)
    return outcome


OUTCOMES: list[Outcome] = []  # all arms so far


def _arrange(program: Any, arm: Arm, p: int, parts: list[Any]) -> None:
    """Exchange the estimator's schedule where the arm has one that it has no parameter for."""
    policy = program.schedule
    block = min(arm.block or policy.inner.block, p)
    if arm.selection == "static":
        slabs = [part.slab for part in parts]
        bounds = [slab.start for slab in slabs] + [p] if slabs[0].axis == 1 else None
        policy.inner = StaticPartition(p, block, ENOUGH, bounds=bounds)
    elif arm.guided and (arm.block or arm.lookahead):
        policy.inner = DynamicPriority(block, growth=policy.inner.growth, lookahead=arm.lookahead)
        policy.every = min(-(-p // block), 128) if arm.update == "parallel" else arm.lookahead + 1
        program.rules = program.rules._replace(proposals=block * (arm.lookahead + 1))
    if not arm.guided and arm.update == "parallel":
        policy.every = min(
            policy.every, 512
        )  # to see a baseline's way: it costs that arm nothing, see `reach`


def _finish(outcome: Outcome, counted: Counted) -> None:
    rounds = len(outcome.steps)
    outcome.cpu = np.array([each[:rounds] for each in counted.cpu])
    outcome.sent = np.array([each[:rounds] for each in counted.sent])
    outcome.shards = [held(shard) for shard in counted.shards]
    if counted.traced:
        updates = sum(step.kind == "update" for step in outcome.steps)
        length = min(updates, *map(len, counted.norms))
        norms = np.array([each[:length] for each in counted.norms]).reshape(len(counted.norms), length, 2)
        objective = 0.5 * norms[0, :, 0] + counted.program.penalty.lam * norms[:, :, 1].sum(axis=0)
        outcome.trace = objective / (outcome.problem.null * len(outcome.problem.y))


def held(root: Any) -> int:
    """Bytes of all numpy arrays that an object refers to, each memory counted once; X's share included."""
    seen: dict[int, int] = {}
    visited: set[int] = set()

    def visit(value: Any) -> None:
        if isinstance(value, np.ndarray):
            if value.size:
                place = value.__array_interface__["data"][0]
                seen[place] = max(seen.get(place, 0), value.nbytes)
            return
        if id(value) in visited:
            return
        visited.add(id(value))
        if isinstance(value, tuple | list):
            for entry in value:
                visit(entry)
        elif type(value).__module__.startswith("daskstrads"):
            for entry in vars(value).values():
                visit(entry)

    visit(root)
    return sum(seen.values())


def warm() -> None:
    """Load the kernels of all layouts, so that no arm pays for that."""
    rng = np.random.default_rng(0)
    wide, tall = (
        sp.random(60, 200, 0.1, "csc", random_state=rng),
        sp.random(400, 20, 0.2, "csr", random_state=rng),
    )
    for X in wide, tall, rng.standard_normal((60, 200), dtype=float).copy("F"):
        y = X @ rng.standard_normal(X.shape[1])
        problem = Problem("", X, y, lam_max(X, y) / 10)
        for update in "exact", "parallel":
            fit(problem, Arm(update=update), seconds=60.0, rounds=200)
    OUTCOMES.clear()
