"""Section 5 of the claims page: memory a rank, and a problem that fits four capped workers but not one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from certificate import certify
from claims_arms import TARGET, Arm, fit
from claims_context import RANKS, Context
from claims_page import Page, listed, size
from claims_plots import Panel, draw
from distributed import Client, LocalCluster, wait
from distributed.scheduler import KilledWorker
from workloads import lam_max

from daskstrads import Lasso

CAP = 1_000_000_000  # bytes a worker may take
SHAPE = (2_000, 60_000)  # float64, 0.96 GB


def memory(context: Context) -> Page:
    """Bytes a rank holds against the number of ranks; a memory cap."""
    page = Page("5. Memory")
    page.say(
        "The seed: model parallelism fits what one machine cannot hold. *Planned*: `model.memory_plan`, "
        "what a rank needs at most, with a round's exchange. *Held*: the arrays of the largest rank's "
        "shard at the end of a fit, its share of X included, each memory counted once."
    )
    head = ["problem", "ranks", "planned", "of it data", "held, largest rank", "over 1 rank"]
    rows, lines = [], {}
    for problem in context.problems:
        planned, held = [], []
        sparse = problem.X.nnz if sp.issparse(problem.X) else None
        for ranks in RANKS:
            done = [
                outcome
                for outcome in context.scaling
                if outcome.problem.name == problem.name and outcome.arm.ranks == ranks
            ]
            outcome = done[0] if done else fit(problem, Arm(ranks=ranks), seconds=60.0)
            plan = Lasso().memory_plan(problem.X.shape, sparse, n_ranks=ranks)
            planned.append(plan.total)
            held.append(max(outcome.shards))
            rows.append(
                [
                    problem.name, str(ranks), size(plan.total), size(plan.data), size(held[-1]),
                    f"{held[-1] / held[0]:.2f}",
                ]
            )  # fmt: skip
        lines[problem.name] = planned, held
    page.table(head, rows)
    page.say(
        "At 8 ranks the largest holds",
        listed([f"{held[-1] / held[0]:.2f} ({name})" for name, (_, held) in lines.items()]),
        "of what one rank holds; 1 / 8 would be perfect. Replicated are the residual and a dense block's "
        "gathered columns where columns are split, and coefficients and Gram matrix where rows are.",
    )
    panels = [
        Panel(
            title, {name: (RANKS, np.array(both[place]) / 1e6) for name, both in lines.items()},
            "ranks", "MB a rank", ticks=RANKS,
        )
        for place, title in enumerate(("planned", "held"))
    ]  # fmt: skip
    draw(context.folder / "memory.png", panels, 2, "problem")
    page.picture("memory.png", "Memory a rank, planned and held, against the number of ranks")
    if context.quick:
        page.say("The problem under a memory cap is left out of a quick run.")
    else:
        _capped(page)
    return page


def _capped(page: Page) -> None:
    """One problem on one worker and on four, each with the same cap."""
    n, p = SHAPE
    page.say(
        f"**Under a cap.** X is {n:,} x {p:,} in float64, {size(8 * n * p)}, made on the workers in four "
        f"column chunks; every worker process may take {size(CAP)}."
    )
    rows = []
    with _workers(1):
        X, y, alpha = _problem()
        rows.append(
            ["1 worker", "refused before anything is sent" if _refused(X, y, alpha) else "NOT REFUSED"]
        )
        with mock.patch("daskstrads.algos.lasso_dask.check_memory"):
            rows.append(["1 worker, check disabled", _fate(X, y, alpha)])
    with _workers(4) as client:
        X, y, alpha = _problem()
        there = X.persist()
        wait(there)
        model = _fitted(there, y, alpha)
        peaks = client.run(_peak)
    found = certify(X.compute(scheduler="threads"), y, model.coef_, alpha)
    if not found.relative <= 1.001 * TARGET:
        raise SystemExit(f"the fit on four workers is not certified: gap {found.relative:.1e} P(0)")
    told = f"fits: certified to {found.relative:.1e} P(0), {found.support} nonzero, "
    told += f"largest peak of a worker's resident memory {size(max(peaks.values()))}"
    rows.append(["4 workers", told])
    page.table(["", "what happens"], rows)


@contextmanager
def _workers(count: int) -> Iterator[Client]:
    """Single-thread worker processes with the cap; one that the nanny kills takes its task along at once."""
    config = {"distributed.scheduler.allowed-failures": 0, "logging.distributed": "critical"}
    with dask.config.set(config), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        where = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": ":0"}
        with LocalCluster(memory_limit=CAP, silence_logs=50, **where) as cluster, Client(cluster) as client:
            client.wait_for_workers(count)
            yield client


def _problem() -> tuple[da.Array, np.ndarray, float]:
    """Lazy X in four column chunks; y that 20 columns explain; alpha, a fifth of their lam_max."""
    X = da.random.default_rng(6).standard_normal(SHAPE, chunks=(SHAPE[0], SHAPE[1] // 4))
    some = np.asarray(X[:, :200].compute())
    rng = np.random.default_rng(7)
    y = some[:, ::10] @ rng.standard_normal(20) + rng.standard_normal(SHAPE[0])
    return X, y, lam_max(some, y) / 5


def _peak() -> int:
    """Largest resident memory of this process so far (`ru_maxrss` would include its parent's)."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def _fitted(X: da.Array, y: np.ndarray, alpha: float) -> Lasso:
    return Lasso(alpha, fit_intercept=False, tol=TARGET / 2).fit(X, y)


def _refused(X: da.Array, y: np.ndarray, alpha: float) -> bool:
    try:
        _fitted(X, y, alpha)
    except MemoryError:
        return True
    return False


def _fate(X: da.Array, y: np.ndarray, alpha: float) -> str:
    """What becomes of a fit that is tried all the same."""
    try:
        _fitted(X, y, alpha)
    except KilledWorker:
        return "the worker is killed at its limit"
    except (RuntimeError, MemoryError) as error:
        return f"fails with {type(error).__name__}"
    return "FITS"
