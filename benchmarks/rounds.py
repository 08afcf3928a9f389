"""What a round costs before any work is done in it: milliseconds per exchange between ranks in threads.

    python benchmarks/rounds.py [--dask tcp | tls] [--workers 4]

For 2 and 8 ranks: `allreduce` in a loop under `launch`, a whole engine round (schedule, push a Sum, exchange,
pull) under `run`, a bare threading.Barrier, and one np.add of the same array in one thread. Each figure is
the median over rounds, then the median [min..max] over launches. With --dask: the first two between
worker processes of a LocalCluster; a round whose policy waits for fresh reports ("tick" is what that adds,
pair by pair); a round of Dask tasks (transport="tasks"); the loop that one would write with a Client alone;
and what a whole launch costs.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from timing import Spread, spread

from daskstrads import Program, Sum, launch, run
from daskstrads.schedule import RoundRobin
from daskstrads.sparse_reduce import allreduce

SIZES = {"1 KB": 128, "100 KB": 12_800, "10 MB": 1_310_720}  # float64 values
ROUNDS = {"1 KB": 2_000, "100 KB": 500, "10 MB": 30}
WARM = 5  # rounds left out at the start of each launch


class Idle(Program):
    """The least a program can do: push a vector, keep the total, note the time."""

    def __init__(self, values: int, rounds: int, tol: float | None = None):
        self.values = values
        self.schedule = RoundRobin(rounds, sweeps=1, tol=tol)

    def init(self, part, rank, size, rng):
        """A rank's vector and the place for the total."""
        return SimpleNamespace(x=np.full(self.values, 1.0 + rank), total=None, clock=[])

    def push(self, shard, plan):
        """Exchange the vector."""
        return Sum(shard.x)

    def pull(self, shard, plan, received, sent):
        """Keep the total."""
        shard.total = received
        shard.clock.append(time.perf_counter())
        return 1.0  # more than any tolerance


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="launches a figure (default 5)")
    parser.add_argument("--dask", choices=("tcp", "tls"), help="ranks on worker processes instead")
    parser.add_argument("--workers", type=int, default=2, help="with --dask: worker processes (default 2)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds, two launches")
    options = parser.parse_args()
    repeats = 2 if options.quick else options.repeats
    if options.dask:
        on_dask(options.dask, options.workers, repeats, 10 if options.quick else 1)
        return
    print(f"{'ms per round, median [min..max]':<34}{'ranks':>6}{'size':>8}")
    for size, values in SIZES.items():
        rounds = max(ROUNDS[size] // (10 if options.quick else 1), 3) + WARM
        report("np.add in one thread", 1, size, [adds(values, rounds) for _ in range(repeats)])
        for ranks in (2, 8):
            times = [allreduces(ranks, values, rounds) for _ in range(repeats)]
            report("allreduce", ranks, size, times)
            if size == "1 KB":
                times = [engine_rounds(ranks, values, rounds) for _ in range(repeats)]
                report("engine round", ranks, size, times)
                report("threading.Barrier", ranks, "-", [barriers(ranks, rounds) for _ in range(repeats)])


def on_dask(protocol: str, workers: int, repeats: int, fraction: int) -> None:
    """The same between single-thread worker processes, over the mesh; and three ways without one."""
    from distributed import Client, LocalCluster
    from distributed.security import Security

    security = {"security": Security.temporary()} if protocol == "tls" else {}
    where = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(protocol=f"{protocol}://", **where, **security) as cluster,
        Client(cluster, **security) as client,
    ):
        client.wait_for_workers(workers)
        print(f"{f'ms per round over {protocol}, median [min..max]':<34}{'ranks':>6}{'size':>8}")
        for size, values in SIZES.items():
            rounds = max(ROUNDS[size] // fraction, 3) + WARM
            few = max(rounds // 40, 10) + WARM
            times = [allreduces(workers, values, rounds) for _ in range(repeats)]
            report("allreduce", workers, size, times)
            pairs = [
                (
                    engine_rounds(workers, values, rounds),
                    engine_rounds(workers, values, rounds // 4 + WARM, 0.0),
                )
                for _ in range(repeats)
            ]
            report("engine round", workers, size, [plain for plain, _ in pairs])
            report("engine round, fresh reports", workers, size, [fresh for _, fresh in pairs])
            report("  tick", workers, "-", [fresh - plain for plain, fresh in pairs])
            times = [engine_rounds(workers, values, few, transport="tasks") for _ in range(repeats)]
            report("round of tasks", workers, size, times)
            times = [client_rounds(client, workers, values, few) for _ in range(repeats)]
            report("loop with a Client", workers, size, times)
        starts = []
        for _ in range(repeats):
            start = time.perf_counter()
            launch(lambda group, _: group.gather(None), range(workers))
            starts.append(time.perf_counter() - start)
        report("a launch that does nothing", workers, "-", starts)


def client_rounds(client: Any, workers: int, values: int, rounds: int) -> float:
    """Seconds a round of the loop that a Client's user would write: submit, gather, add, submit."""
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])[:workers]
    total = np.zeros(values)
    clock = [time.perf_counter()]
    for _ in range(rounds):
        futures = [
            client.submit(np.full, values, 1.0 + rank, workers=[address], pure=False)
            for rank, address in enumerate(addresses)
        ]
        total = sum(client.gather(futures))
        commits = [client.submit(np.sum, total, workers=[each], pure=False) for each in addresses]
        client.gather(commits)
        clock.append(time.perf_counter())
    return per_round(clock)


def report(what: str, ranks: int, size: str, seconds: list[float]) -> None:
    """One line of the table."""
    ms: Spread = spread(1e3 * value for value in seconds)
    print(f"{what:<34}{ranks:>6}{size:>8}   {ms}")


def per_round(clock: list[float]) -> float:
    """Median distance of the time stamps, without the first few."""
    return statistics.median(np.diff(clock)[WARM:].tolist())


def allreduces(ranks: int, values: int, rounds: int) -> float:
    """Seconds a round of `allreduce`, seen from rank 0."""

    def live(group, x):
        clock = [time.perf_counter()]
        for _ in range(rounds):
            allreduce(x, group)
            clock.append(time.perf_counter())
        return clock

    return per_round(launch(live, [np.full(values, 1.0 + rank) for rank in range(ranks)])[0])


def engine_rounds(
    ranks: int, values: int, rounds: int, tol: float | None = None, transport: str | None = None
) -> float:
    """Seconds a round of the engine, seen from rank 0."""
    done = run(Idle(values, rounds + 1, tol), [None] * ranks, transport=transport)
    return per_round(done.shards[0].clock)


def barriers(ranks: int, rounds: int) -> float:
    """Seconds a round of a bare barrier: what waking the threads costs."""
    barrier = threading.Barrier(ranks)
    clock: list[float] = []

    def live(rank: int) -> None:
        for _ in range(rounds + 1):
            barrier.wait()
            if rank == 0:
                clock.append(time.perf_counter())

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return per_round(clock)


def adds(values: int, rounds: int) -> float:
    """Seconds of one addition of two such arrays into a third."""
    x, y, total = np.full(values, 1.0), np.full(values, 2.0), np.empty(values)
    clock = [time.perf_counter()]
    for _ in range(rounds):
        np.add(x, y, out=total)
        clock.append(time.perf_counter())
    return per_round(clock)


if __name__ == "__main__":
    main()
