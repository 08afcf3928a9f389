"""Section 7 of the claims page: matrix factorisation by both solvers, and item factors that fit only in
shares.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple
from unittest import mock

import dask.array as da
import numpy as np
import scipy.sparse as sp
from claims_arms import held
from claims_context import RANKS, Context
from claims_memory import CAP, _peak, _workers
from claims_page import Page, listed, number, size
from claims_plots import Panel, draw
from dask import delayed
from distributed import KilledWorker
from ratings import load_ratings
from sklearn.exceptions import ConvergenceWarning

from daskstrads import MatrixFactorization, Program, run

REG, COMPONENTS, SWEEPS = 0.05, 40, 60
TARGET = 1.01  # of the lowest objective found
SQUARE, ENTRIES = 30_000, 300_000
HIGH = (1_000, 2_000, 3_000, 4_000)


class Arm(NamedTuple):
    """What a solver did on so many ranks; `cpu` (ranks, rounds) seconds."""

    solver: str
    ranks: int
    heights: np.ndarray
    rounds: np.ndarray  # at the end of each sweep
    cpu: np.ndarray
    bytes: float  # a rank and sweep
    held: int  # by the largest rank


class Timed(Program):
    """A program as it is, with a clock around push and pull."""

    def __init__(self, program: Any, size: int):
        self.program, self.schedule, self.replicas = program, program.schedule, program.replicas
        self.cpu: list[list[float]] = [[] for _ in range(size)]
        self.shards: list[Any] = [None] * size

    def init(self, part: Any, rank: int, size: int, rng: np.random.Generator) -> Any:
        self.shards[rank] = self.program.init(part, rank, size, rng)
        return self.shards[rank]

    def push(self, shard: Any, plan: Any) -> Any:
        began = time.thread_time()
        sent = self.program.push(shard, plan)
        self.cpu[self._rank(shard)].append(time.thread_time() - began)
        return sent

    def pull(self, shard: Any, plan: Any, received: Any, sent: Any) -> Any:
        began = time.thread_time()
        report = self.program.pull(shard, plan, received, sent)
        self.cpu[self._rank(shard)][-1] += time.thread_time() - began
        return report

    def result(self, shard: Any) -> Any:
        return self.program.result(shard)

    def _rank(self, shard: Any) -> int:
        return next(rank for rank, other in enumerate(self.shards) if other is shard)


def arm(train: Any, solver: str, ranks: int) -> Arm:
    """One fit of many sweeps."""
    kept: dict[str, Timed] = {}

    def watched(program: Any, parts: Any, **options: Any) -> Any:
        kept["timed"] = Timed(program, len(parts))
        return run(kept["timed"], parts, **(options | {"transport": "threads"}))

    model = MatrixFactorization(
        COMPONENTS, reg=REG, solver=solver, n_shards=ranks, max_iter=SWEEPS, tol=0.0, random_state=0
    )
    with mock.patch("daskstrads.algos.mf.run", watched):
        model.fit(train)
    timed = kept["timed"]
    history = model.history_
    return Arm(
        solver, ranks, history["objective"], history["round"] + 1, np.array(timed.cpu),
        float(history["bytes"][-1]), max(held(shard) for shard in timed.shards),
    )  # fmt: skip


def factors(context: Context) -> Page:
    """Both solvers at 1, 2, 4 and 8 ranks, and a memory cap."""
    page = Page("7. Matrix factorisation: least squares and coordinate descent")
    train = load_ratings("M", 1000 if context.quick else 8).train
    arms = [arm(train, solver, ranks) for solver in ("als", "ccd") for ranks in RANKS]
    lowest = min(each.heights.min() for each in arms)
    page.say(
        f"{train.shape[0]:,} users, {train.shape[1]:,} items, {train.nnz:,} ratings, {COMPONENTS} "
        f"components, {SWEEPS} sweeps an arm. Target: {TARGET} of the lowest objective that any arm found. "
        "CPU is the sum over rounds of the largest rank's; bytes are what a rank sends to others in a sweep."
    )
    rows = []
    for each in arms:
        there = np.flatnonzero(each.heights <= TARGET * lowest)
        sweeps = int(there[0]) + 1 if len(there) else None
        cpu = each.cpu[:, : each.rounds[sweeps - 1]].max(axis=0).sum() if sweeps else np.nan
        rows.append(
            [
                each.solver, str(each.ranks), str(sweeps or "-"), number(cpu) if sweeps else "-",
                size(each.bytes), size(each.held), f"{each.heights[-1] / lowest - 1:.1e}",
            ]
        )  # fmt: skip
    head = [
        "solver",
        "ranks",
        "sweeps to target",
        "CPU s to target",
        "bytes a sweep",
        "held by a rank",
        "above the lowest",
    ]
    page.table(head, rows)
    shares = [
        f"{arms[3 + offset].held / arms[offset].held:.2f} ({arms[offset].solver})"
        for offset in (0, len(RANKS))
    ]
    page.say(
        "The sweeps do not depend on the number of ranks: both solvers compute the same thing on any of "
        f"them. At {RANKS[-1]} ranks one holds {listed(shares)} of what a single rank holds."
    )
    panels = [
        Panel(
            title,
            {
                solver: (RANKS, np.array([value(each) for each in arms if each.solver == solver]))
                for solver in ("als", "ccd")
            },
            "ranks", label, ticks=RANKS,
        )
        for title, label, value in (
            ("CPU", "s a sweep, largest rank", lambda each: each.cpu.max(axis=0).sum() / SWEEPS),
            ("memory", "MB a rank", lambda each: each.held / 1e6),
        )
    ]  # fmt: skip
    draw(context.folder / "factors.png", panels, 2, "solver")
    page.picture("factors.png", "CPU a sweep and memory a rank of both solvers against the number of ranks")
    if context.quick:
        page.say("The memory cap is left out of a quick run.")
    else:
        _capped(page)
    return page


def _capped(page: Page) -> None:
    """From which number of components a whole copy of the item factors does not fit."""
    page.say(
        f"**Under a cap.** {ENTRIES:,} ratings in a matrix of {SQUARE:,} x {SQUARE:,}, four worker "
        f'processes of {size(CAP)} each, one sweep. "als" holds a copy of all item factors a rank, "ccd" its '
        "share of them. "
        "The factors stay on the workers: fetching them, which takes twice the size of a share more, is no "
        "part of it. Refused: before anything is sent; what then happens with that check disabled is told as "
        "well."
    )
    rows = []
    for k in HIGH:
        copy, share = (4.0 * SQUARE * k / n for n in (1, 4))
        rows.append([str(k), size(copy), size(share), *(_outcome(solver, k) for solver in ("als", "ccd"))])
    page.table(["components", "all item factors", "a share", "als", "ccd"], rows)


def _outcome(solver: str, k: int) -> str:
    with _workers(4) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        X = da.concatenate(
            [
                da.from_delayed(
                    delayed(_block)(place), (SQUARE // 4, SQUARE), dtype=np.float32, meta=sp.csr_array((0, 0))
                )
                for place in range(4)
            ]
        )
        model = MatrixFactorization(
            k, biases=False, reg=REG, solver=solver, max_iter=1, tol=0.0, random_state=0
        )
        refused, peaks = "", {}

        def stay(shards: Any) -> None:
            peaks.update(client.run(_peak))
            raise _StayError

        try:
            with mock.patch("daskstrads.algos.mf.collected", stay):
                try:
                    model.fit(X)
                except MemoryError:
                    refused = "refused; "
                    with mock.patch("daskstrads.algos.ratings_dask.check_memory"):
                        model.fit(X)
        except _StayError:
            return f"{refused}fits, largest peak of a worker {size(max(peaks.values()))}"
        except KilledWorker:
            return f"{refused}a worker is killed"
        except (RuntimeError, MemoryError) as error:
            return f"{refused}fails with {type(error).__name__}"
        return "IS FETCHED"


class _StayError(Exception):
    """The model is fitted, and stays where it is."""


def _block(place: int) -> sp.csr_array:
    """A quarter of the ratings."""
    rng = np.random.default_rng(place)
    rows, columns = (rng.integers(0, high, ENTRIES // 4) for high in (SQUARE // 4, SQUARE))
    data = rng.normal(3.5, 1.0, ENTRIES // 4).astype(np.float32)
    return sp.csr_array((data, (rows, columns)), shape=(SQUARE // 4, SQUARE))
