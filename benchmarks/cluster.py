"""What a Dask cluster adds to a fit: time, start, bytes, lag of the workers' event loops, memory.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/cluster.py [fits start bytes loop memory]

(Both variables change which BLAS kernels run.) All on worker processes of this machine; figures are medians
[min..max] of one run.
fits: whole fits with the data on two workers over the same fits in this process on two threads, in turns,
each certified to a gap of 1e-6 P(0).
start: from the call of `run` to its first round on a worker (one host: clocks compare) and to its return.
bytes: what sockets of the scheduler and of the client, each in a process of its own, carry while a program
runs 2 200 rounds, less the same for 200, over 2 000.
loop: how late a coroutine that sleeps 10 ms on a worker's event loop wakes, with 16 ranks.
memory: how much a worker's resident memory grows while it fits, over the size of its shard.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sp
from certificate import certify
from distributed import Client, LocalCluster, futures_of, wait
from distributed.deploy.subprocess import SubprocessCluster
from rss import Watch
from solvers import OURS
from timing import cores, paired, ratio, spread
from workloads import TINY, folder, lam_max, load

from daskstrads import Lasso, Program, RoundRobin, Sum, run

GAP = 1e-6
THERE = (("A", 20, "column"), ("B", 50, "column"), ("C", 20, "row"), ("C", 200, "row"), ("D", 20, "row"))
"""Workload, divisor and chunks, one a rank, on the worker whose rank gets it."""

MOVED = (("A", 20, "row"), ("B", 50, "swapped column"))
"""Chunks that have to move; swapped: each is on the worker whose address would give it the other rank."""

FEW, MANY = 200, 2_200  # rounds of the `bytes` section


class Effort(NamedTuple):
    """How much of everything a run does."""

    repeats: int
    scale: int
    cache: Path | None
    quick: bool


def main() -> None:
    """Print one table, section by section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", help=f"of {', '.join(SECTIONS)}; default all")
    parser.add_argument("--repeats", type=int, help="repetitions a figure (default 5, --quick 2)")
    parser.add_argument("--quick", action="store_true", help="smoke run: sizes divided by 10")
    parser.add_argument("--scale", type=int, help="divisor of the sizes (default 1)")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    options = parser.parse_args()
    unknown = set(options.section) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; see the usage line in --help")
    effort = Effort(
        options.repeats or (2 if options.quick else 5),
        options.scale or (10 if options.quick else 1),
        options.cache,
        options.quick,
    )
    before = cores(2)
    print(f"{'section':<9}{'median [min..max]':<62}{'':<32}{'to reach':>10}")
    for name, measure in SECTIONS.items():
        if not options.section or name in options.section:
            measure(effort)
    print(f"two busy threads got {before:.2f} cores before, {cores(2):.2f} after")


def line(section: str, what: str, values: list[float], most: float | None = None, note: str = "") -> None:
    """One line of the table; `most` is what the median is to reach."""
    figure = spread(values)
    goal = "" if most is None else f"{most:>10g}  {'yes' if figure.median <= most else 'MISSED'}"
    print(f"{section:<9}{what:<62}{figure!s:<32}{goal:<20}{note}".rstrip(), flush=True)


@contextmanager
def workers(count: int, threads: int) -> Iterator[Client]:
    """A client, not the current one, of a new cluster of worker processes; its scheduler is in here."""
    where = {"n_workers": count, "threads_per_worker": threads, "dashboard_address": ":0"}
    with LocalCluster(**where) as cluster, Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(count)
        yield client


# Data that are on the workers before a clock starts


def block(source: Path, start: int, stop: int, axis: int) -> Any:
    """Columns (`axis` 1) or rows (0) [start, stop) of a stored X, read by whoever calls this."""
    where = slice(start, stop)
    if (source / "X.npy").exists():
        X = np.load(source / "X.npy", mmap_mode="r")
        return np.array(X[:, where], order="F") if axis == 1 else np.array(X[where], order="C")
    values, indices = (np.load(source / f"{part}.npy", mmap_mode="r") for part in ("data", "indices"))
    offsets = np.load(source / "indptr.npy")
    n, p = map(int, np.load(source / "shape.npy"))
    stored = 1 if (source / "csc.npy").exists() else 0
    matrix = (sp.csr_matrix, sp.csc_matrix)
    if axis != stored:
        whole = matrix[stored]((values, indices, offsets), shape=(n, p))
        return matrix[axis](whole[where] if axis == 0 else whole[:, where])
    own = slice(offsets[start], offsets[stop])
    arrays = np.array(values[own]), np.array(indices[own]), offsets[start : stop + 1] - offsets[start]
    return matrix[axis](arrays, shape=(n, stop - start) if axis == 1 else (stop - start, p))


def placed(client: Client, name: str, scale: int, cache: Path | None, chunks: str, count: int) -> tuple:
    """X in `count` equal column or row chunks and y as dask arrays, each chunk made and kept by a worker.

    Chunks are spread over the workers in order of address, neighbours together, as ranks are; or, swapped,
    in the opposite order.
    """
    source, axis = folder(name, scale, cache), 0 if chunks == "row" else 1
    workload = load(name, scale, cache)
    shape, y = workload.X.shape, workload.y
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"], reverse=chunks.startswith("swapped"))
    bounds = [shape[axis] * place // count for place in range(count + 1)]
    lengths = np.diff(bounds).tolist()
    empty = sp.csc_matrix if axis == 1 else sp.csr_matrix
    meta = empty((0, 0)) if sp.issparse(workload.X) else np.empty((0, 0))
    made = []
    for place, length in enumerate(lengths):
        piece = dask.delayed(block)(source, bounds[place], bounds[place + 1], axis)
        size = (shape[0], length) if axis == 1 else (length, shape[1])
        lazy = da.from_delayed(piece, size, dtype=np.float64, meta=meta)
        made.append(client.persist(lazy, workers=[addresses[place * len(addresses) // count]]))
    X = client.persist(da.concatenate(made, axis=axis))
    lazy_y = client.persist(da.from_array(y, chunks=-1 if axis == 1 else (tuple(lengths),)))
    with client.as_current():
        wait(futures_of([X, lazy_y]), timeout=300)
    return X, lazy_y


def fit(client: Client, X: Any, y: Any, alpha: float, shards: int = 2) -> Any:
    """A fit on the client's workers, set up as `OURS`."""
    model = Lasso(alpha, fit_intercept=False, tol=GAP / 2, max_iter=1_000_000, n_shards=shards)
    with client.as_current():
        return model.fit(X, y)


def warm_up(client: Client, name: str, cache: Path | None, chunks: str, shards: int = 2) -> None:
    """A tiny problem of the same types, on the workers and in this process: kernels and imports."""
    tiny = load(name, TINY[name], cache)
    alpha = lam_max(tiny.X, tiny.y) / 5
    X, y = placed(client, name, TINY[name], cache, chunks, shards)
    fit(client, X, y, alpha, shards)
    OURS[2].fit(tiny.X, tiny.y, alpha, GAP / 2)


def certified(workload: Any, coef: np.ndarray, alpha: float) -> str:
    """A note for the table: the relative gap, or that it is too large."""
    relative = certify(workload.X, workload.y, coef, alpha).relative
    return f"gap {relative:.1e}" if relative <= GAP else f"NOT CERTIFIED, gap {relative:.1e}"


# Sections


def fits(effort: Effort, rows: tuple = (*THERE, *MOVED)) -> dict[str, float]:
    """Wall time of whole fits, on workers over threads; the medians by workload/divisor, chunks."""
    found = {}
    for name, divisor, chunks in rows:
        workload = load(name, effort.scale, effort.cache)
        alpha = lam_max(workload.X, workload.y) / divisor
        with workers(2, 1) as client:
            warm_up(client, name, effort.cache, chunks)
            X, y = placed(client, name, effort.scale, effort.cache, chunks, 2)
            calls = {
                "workers": lambda client=client, X=X, y=y, alpha=alpha: fit(client, X, y, alpha),
                "threads": lambda w=workload, alpha=alpha: OURS[2].fit(w.X, w.y, alpha, GAP / 2),
            }
            samples = paired(calls, effort.repeats, keep=lambda model: model.coef_)
        notes = {certified(workload, sample.kept, alpha) for taken in samples.values() for sample in taken}
        wanted = samples["threads"][0].kept
        if (name, chunks) == ("A", "row"):  # shards in C order: bits depend on the order of dense data
            wanted = OURS[2].fit(np.ascontiguousarray(workload.X), workload.y, alpha, GAP / 2).coef_
        same = all(np.array_equal(sample.kept, wanted) for sample in samples["workers"])
        row = f"{name}/{divisor}, {chunks} chunks"
        bits = "same bits" if same else "other bits"
        note = ", ".join([bits, *sorted(notes)])
        quotient = ratio(*samples.values())
        line("fits", f"{row}: 2 workers / 2 threads", quotient, 1.3, note)
        found[row] = quotient.median
        for where, taken in samples.items():
            line("", f"{row}: 2 {where}, s", [sample.wall for sample in taken])
    return found


class Clocked(Program):
    """Sums a vector every round and notes when, in time.time()."""

    def __init__(self, values: int, rounds: int):
        self.values = values
        self.schedule = RoundRobin(rounds, sweeps=1)

    def init(self, part, rank, size, rng):
        """A rank's vector, and where the first and the last round are noted."""
        return SimpleNamespace(x=np.full(self.values, 1.0 + rank), first=None, last=None)

    def push(self, shard, plan):
        """Exchange the vector."""
        return Sum(shard.x)

    def pull(self, shard, plan, received, sent):
        """Note the time."""
        shard.last = time.time()
        shard.first = shard.first or shard.last

    def result(self, shard):
        """The two times."""
        return shard.first, shard.last


def start(effort: Effort) -> None:
    """From the call of `run` to the first round, and to the return, of a program of one round."""
    repeats = 2 * effort.repeats
    with workers(2, 1) as client, client.as_current():
        run(Clocked(128, 1), [None] * 2)
        first, whole = [], []
        for _ in range(repeats):
            called = time.time()
            done = run(Clocked(128, 1), [None] * 2)
            whole.append(time.time() - called)
            first.append(max(shard[0] for shard in done.shards) - called)
    line("start", "call of run to the end of the first round on all workers, s", first, 0.5)
    line("", "call of run of one round to its return, s", whole, 0.5)


def count_bytes() -> None:
    """From now on, count what this process's TCP streams send and receive."""
    from tornado.iostream import IOStream

    if hasattr(IOStream, "carried"):
        return
    IOStream.carried = 0
    send, receive = IOStream.write_to_fd, IOStream.read_from_fd

    def write_to_fd(self, data):
        size = send(self, data)
        IOStream.carried += size or 0
        return size

    def read_from_fd(self, buffer):
        size = receive(self, buffer)
        IOStream.carried += size or 0
        return size

    IOStream.write_to_fd, IOStream.read_from_fd = write_to_fd, read_from_fd


def bytes_so_far() -> int:
    """What `count_bytes` has counted in this process."""
    from tornado.iostream import IOStream

    return IOStream.carried


def traffic(effort: Effort) -> None:
    """Bytes a round that pass through the scheduler's and the client's sockets, each in its own process."""
    few, many = (FEW // 10, MANY // 10) if effort.quick else (FEW, MANY)
    with (
        SubprocessCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        client.wait_for_workers(2)
        client.run_on_scheduler(count_bytes)
        count_bytes()

        def carried(values: int, rounds: int) -> tuple[int, int]:
            scheduler, here = client.run_on_scheduler(bytes_so_far), bytes_so_far()
            run(Clocked(values, rounds), [None] * 2)
            return client.run_on_scheduler(bytes_so_far) - scheduler, bytes_so_far() - here

        for size, values in (("1 KB", 128), ("100 KB", 12_800)):
            carried(values, few)
            pairs = [(carried(values, many), carried(values, few)) for _ in range(effort.repeats)]
            for place, process in enumerate(("scheduler", "client")):
                extra = [(more[place] - less[place]) / (many - few) for more, less in pairs]
                line(
                    "bytes" if values == 128 and not place else "",
                    f"Sum of {size}: bytes a round through the {process}", extra, 2_048,
                    f"a run of {few} rounds: {statistics.median(less[place] for _, less in pairs):,.0f}",
                )  # fmt: skip


class Busy(Program):
    """Every rank sorts for about 20 ms (without the interpreter's lock), then runs about 1 ms of Python."""

    def __init__(self, rounds: int):
        self.schedule = RoundRobin(rounds, sweeps=1)

    def init(self, part, rank, size, rng):
        """Numbers to sort."""
        return rng.random(350_000)

    def push(self, shard, plan):
        """Work, then exchange a number."""
        ordered = np.sort(shard)
        return Sum(np.array([ordered[0], float(sum(range(40_000)))]))

    def pull(self, shard, plan, received, sent):
        """Nothing to commit."""

    def result(self, shard):
        """Nothing to return."""


async def watch_loop(dask_worker: Any) -> None:
    """Start a coroutine on the worker's event loop that notes how late it wakes from 10 ms of sleep."""
    lags: list[float] = []

    async def sleep() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.01)
            lags.append(time.perf_counter() - begun - 0.01)

    dask_worker.benchmark = asyncio.create_task(sleep()), lags


async def loop_lags(dask_worker: Any) -> list[float]:
    """Stop `watch_loop`; the seconds it noted."""
    task, lags = dask_worker.benchmark
    task.cancel()
    del dask_worker.benchmark
    return lags


@contextmanager
def heartbeats(scheduler: Any) -> Iterator[list[float]]:
    """Notes for how long the scheduler has not heard of some worker, every 50 ms."""
    silences: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            silences.append(max(time.time() - seen.last_seen for seen in list(scheduler.workers.values())))

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield silences
    finally:
        over.set()
        watching.join()


def loop(effort: Effort) -> None:
    """Lag of the workers' event loops with 16 ranks: idle, in a fit, and in a program of its own."""
    workload = load("B", effort.scale, effort.cache)
    alpha = lam_max(workload.X, workload.y) / 50
    for count, threads in ((1, 16), (2, 8)):
        with workers(count, threads) as client:
            warm_up(client, "B", effort.cache, "column", 16)
            X, y = placed(client, "B", effort.scale, effort.cache, "column", 16)

            def busy(client: Client = client) -> None:
                with client.as_current():
                    run(Busy(5 if effort.quick else 60), [None] * 16)

            calls: dict[str, Callable[[], Any]] = {
                "idle": lambda: time.sleep(3.0),
                "B/50": lambda client=client, X=X, y=y: fit(client, X, y, alpha, 16),
                "20 ms pushes": busy,
            }
            for what, call in calls.items():
                lags, silence, seconds, model = watched(client, call)
                note = f"{seconds:.1f} s"
                if what == "B/50":
                    note += f", {certified(workload, model.coef_, alpha)}"
                figures = {"p50": 50, "p99": 99, "max": 100}
                told = ", ".join(f"{k} {1e3 * np.percentile(lags, q):.3g}" for k, q in figures.items())
                print(
                    f"{'loop' if count == 1 and what == 'idle' else '':<9}"
                    f"{f'{count} x {threads} ranks, {what}: ms late':<62}{told:<32}"
                    f"{goal(1e3 * np.percentile(lags, 99), 100, what != 'idle'):<20}"
                    f"{note}, heartbeats at most {silence:.2g} s apart",
                    flush=True,
                )


def goal(value: float, most: float, counts: bool) -> str:
    """The last column of a line whose figure is not a median."""
    return f"{most:>10g}  {'yes' if value <= most else 'MISSED'}" if counts else ""


def watched(client: Client, call: Callable[[], Any]) -> tuple[np.ndarray, float, float, Any]:
    """Lags while `call` runs, the longest silence of a worker, its seconds and its result.

    Raises:
        RuntimeError: a worker was removed.
    """
    scheduler: Any = client.cluster.scheduler
    before = set(scheduler.workers)
    client.run(watch_loop)
    with heartbeats(scheduler) as silences:
        begun = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - begun
    lags = np.concatenate([np.array(each) for each in client.run(loop_lags).values()])
    if set(scheduler.workers) != before:
        raise RuntimeError(f"a worker was removed: {before - set(scheduler.workers)}")
    return lags, max(silences), seconds, result


def watch_memory(dask_worker: Any) -> None:
    """Give back what is free, then look at this worker's resident memory every 20 ms."""
    seen = SimpleNamespace(paused=False)

    def look() -> None:
        seen.paused |= dask_worker.status.name == "paused"

    dask_worker.benchmark = Watch(0.02, look), seen


def memory_seen(dask_worker: Any) -> tuple[int, bool]:
    """Stop `watch_memory`; how far the memory grew, and whether this worker paused or spilled."""
    watch, seen = dask_worker.benchmark
    del dask_worker.benchmark
    spilled = getattr(dask_worker.data, "spilled_total", (0,))[0] > 0
    return watch.stop(), seen.paused or spilled


def memory(effort: Effort) -> None:
    """Growth of the workers' memory during a fit of B/50, over their shards' sizes."""
    workload = load("B", effort.scale, effort.cache)
    alpha = lam_max(workload.X, workload.y) / 50
    shard = sum(getattr(workload.X, part).nbytes for part in ("data", "indices", "indptr")) / 2
    for chunks, most in (("column", 0.5), ("row", None)):
        grown, trouble, notes = [], False, set()
        with workers(2, 1) as client:
            warm_up(client, "B", effort.cache, chunks)
            X, y = placed(client, "B", effort.scale, effort.cache, chunks, 2)
            for _ in range(effort.repeats):
                time.sleep(1.0)  # what the last fit held is released
                client.run(watch_memory)
                model = fit(client, X, y, alpha)
                found = client.run(memory_seen).values()
                grown += [growth / shard for growth, _ in found]
                trouble = trouble or any(bad for _, bad in found)
                notes.add(certified(workload, model.coef_, alpha))
        bad = "SPILLED OR PAUSED" if trouble else "nothing spilled or paused"
        note = ", ".join([f"shard {shard / 1e6:.0f} MB", bad, *sorted(notes)])
        what = f"B/50, {chunks} chunks: growth of a worker / its shard"
        line("memory" if chunks == "column" else "", what, grown, most, note)


SECTIONS = {"fits": fits, "start": start, "bytes": traffic, "loop": loop, "memory": memory}


if __name__ == "__main__":
    main()
