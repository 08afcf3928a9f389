"""The sparse allreduce on loopback and on emulated hosts: every algorithm, "auto", and what others take.

    python benchmarks/allreduce.py                     # as root, for the emulated hosts; else loopback alone
    python benchmarks/allreduce.py --hosts 8 --rate 100mbit --density 0.01

A cell is a network, a size, a density and a kind of support; its figure is the median over batches of calls
back to back, the slowest rank counting, in ms a call. "bound" is min(8 (union - own), 4 N) bytes, what has to
arrive at a rank uncompressed, over the line rate. Values are float32. "bytes" are those of arrays that
arrived at a rank (the most of all ranks); one call without compression is held against the formulas of
SparCML's section 5 with the unions that the supports really have. Peers, where `--peers` names a Python that
has them (pip install torch mpi4py mpich; torch's CPU build): gloo's sparse and dense all_reduce, MPI's
Allgatherv of (index, value) pairs and its dense Allreduce, over the same links with as many ranks, after
daskstrads' own cells.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from allreduce_claims import Cell, page, report
from hosts import dask_on, emulated, why_not
from peer_runs import peers
from supports import SUPPORTS, support, values

from daskstrads import launch
from daskstrads.sparse_reduce import Stream, allreduce, tree_sum
from daskstrads.sparse_reduce.collectives import _chosen

FIXED = ("recursive_doubling", "split", "dense_split", "ring", "dense")
DENSITIES = (1e-4, 1e-3, 1e-2, 1e-1)
RATES = ("100mbit", "1gbit")
_DENSE_MOST = 1 << 22  # values: dense sums of more take minutes on a slow link
ABOUT = (
    "Written by `python benchmarks/allreduce.py --page docs/allreduce.md`; edit that, not this. Emulated "
    "hosts: network namespaces on one machine with 2 cores, links of 100 Mbit/s and 1 Gbit/s (token bucket, "
    "64 KB burst), so that with 8 ranks four share a core. Ranks are Dask workers; peers run in processes of "
    "their own over the same links. Values are float32; a figure is the median over batches of calls back "
    "to back, the slowest rank counting. *bound*: the bytes that have to arrive at a rank uncompressed, over "
    "the line rate. What takes more than 0.4 s was timed once."
)
LONG = 0.4  # seconds: an algorithm that takes longer is timed once


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, action="append", help="ranks; repeatable (default 2, 4 and 8)")
    parser.add_argument("--rate", action="append", choices=[*RATES, "loopback"], help="repeatable")
    parser.add_argument("--size", type=int, action="append", help="N; default 1 M, and 16 M sampled")
    parser.add_argument("--density", type=float, action="append", help="repeatable")
    parser.add_argument("--support", action="append", choices=SUPPORTS, help="repeatable")
    parser.add_argument("--algorithm", action="append", choices=FIXED, help="repeatable; auto always runs")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument(
        "--calls", type=int, default=20, help="a batch; fewer where one takes long, more where it is short"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of a batch that is long enough")
    parser.add_argument("--peers", metavar="PYTHON", help="one with torch and mpi4py")
    parser.add_argument("--json", type=Path, help="write the cells here too")
    parser.add_argument("--add", type=Path, action="append", help="cells that --json wrote, to be judged too")
    parser.add_argument("--page", type=Path, help="write claims and cells as Markdown")
    parser.add_argument("--judge", action="store_true", help="measure no cells, judge those of --add")
    options = parser.parse_args()
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; it changes which kernels run")
    places = [
        (rate, count)
        for rate in options.rate or ["loopback", *RATES]
        for count in options.hosts or ([2, 4] if rate == "loopback" else [8])
    ]
    cells = [Cell(**cell) for path in options.add or [] for cell in json.loads(path.read_text())]
    if options.judge:
        places = []
    if (why := why_not()) is not None and places:
        print(f"no emulated hosts: {why}")
    for rate, count in places:
        if rate == "loopback":
            cells += on_loopback(count, options)
        elif why is None:
            cells += on_hosts(rate, count, options)
        if options.json:  # after every network: the next one may fail
            options.json.write_text(json.dumps([cell._asdict() for cell in cells], indent=1))
    lines = report(cells, small_sums(options.batches) | merges())
    if options.page:
        options.page.write_text(page(cells, lines, ABOUT), "utf-8")


def asked(options: argparse.Namespace) -> list[tuple[int, float, str]]:
    """(N, density, support) of every cell."""
    densities, kinds = options.density or DENSITIES, options.support or SUPPORTS
    if options.size:
        return [(size, density, kind) for size in options.size for density in densities for kind in kinds]
    usual = [(1 << 20, density, kind) for density in densities for kind in kinds]
    return usual + [(1 << 24, density, "uniform") for density in densities if density == 1e-3]


def on_loopback(count: int, options: argparse.Namespace) -> list[Cell]:
    """As many worker processes on this machine."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        Client(cluster) as client,
    ):
        cells = measured(client, "loopback", count, options)
    return with_peers(cells, None, options)


def on_hosts(rate: str, count: int, options: argparse.Namespace) -> list[Cell]:
    """As many emulated hosts."""
    from distributed import Client

    with emulated(count, rate) as hosts:
        with dask_on(hosts) as address, Client(address, timeout=60) as client:
            client.wait_for_workers(count, 60)
            cells = measured(client, rate, count, options)
        return with_peers(cells, hosts, options)


def measured(client: Any, rate: str, count: int, options: argparse.Namespace) -> list[Cell]:
    """All cells of one network."""
    client.run(os.environ.setdefault, "NUMBA_NUM_THREADS", "1")
    algorithms = (*(options.algorithm or FIXED), "auto")
    launch(warm_up, range(count), timeout=600)
    cells = []
    for size, density, kind in asked(options):
        these = [name for name in algorithms if size <= _DENSE_MOST or "dense" not in name]
        task = Task(size, density, kind, tuple(these), options.batches, options.calls, options.seconds)
        found = launch(one_cell, [task] * count, timeout=600)
        cell = Cell(rate, count, size, density, kind, *found[0])
        cells.append(cell)
        print(told(cell), flush=True)
    return cells


def warm_up(group: Any, part: int) -> None:
    """Load every kernel."""
    for density in 1e-3, 0.1, 0.5:
        index = support("uniform", 10_000, density, part)
        for name in (*FIXED, "auto"):
            for compress in (False, True):
                stream = Stream.from_coo(index, values(index, part), 10_000)
                allreduce(stream, group, name, compress=compress)


class Task(NamedTuple):
    """What a rank measures of a cell."""

    size: int
    density: float
    kind: str
    algorithms: tuple[str, ...]
    batches: int
    calls: int
    seconds: float


class Counted:
    """A group that counts the bytes of the arrays that arrive."""

    def __init__(self, group: Any):
        self._group, self.arrived = group, 0
        self.rank, self.size, self.shared, self.memory = group.rank, group.size, group.shared, group.memory
        self.send, self.meet, self.gather, self.desk = group.send, group.meet, group.gather, group.desk

    def recv(self, source: int) -> Any:
        """As the group's."""
        payload = self._group.recv(source)
        self.arrived += nbytes(payload)
        return payload


def nbytes(payload: Any) -> int:
    """Bytes of the arrays in a payload."""
    if isinstance(payload, tuple):
        return sum(map(nbytes, payload))
    return payload.nbytes if isinstance(payload, np.ndarray) else 0


def interface() -> int:
    """Bytes that have arrived at this host; 0 where it has no interface of its own."""
    counter = Path("/sys/class/net/eth0/statistics/rx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


def one_cell(group: Any, task: Task) -> tuple:
    """Milliseconds and bytes of every algorithm, on rank 0; what must arrive; what "auto" took."""
    index = support(task.kind, task.size, task.density, group.rank)
    stream = Stream.from_coo(index, values(index, group.rank), task.size)
    held = group.gather(index)
    union = len(np.unique(np.concatenate(held)))
    least = max(min(8 * (union - len(own)), 4 * task.size) for own in held)
    times: dict[str, list[float]] = {}
    arrived: dict[str, tuple[int, int]] = {}
    calls = {}
    for name in task.algorithms:
        group.memory.pop("seen", None)
        counted = Counted(group)
        for _ in range(2):
            once, seen = counted.arrived, interface()
            group.gather(None)
            start = time.perf_counter()
            allreduce(stream, counted, name)
            taken = max(group.gather(time.perf_counter() - start))
            arrived[name] = counted.arrived - once, interface() - seen
            if taken > LONG:
                break
        # Enough calls for a batch to last, with the buckets of the links empty.
        calls[name] = max(2, min(task.calls, int(task.seconds / taken) + 1), min(200, int(0.1 / taken)))
        times[name] = [taken] if taken > LONG else []
    for batch in range(task.batches):
        # In another order every time: what ran before leaves its mark on caches and heap.
        for name in np.random.default_rng(batch).permutation(task.algorithms).tolist():
            if times[name] and times[name][0] > LONG:
                continue  # once is enough
            group.gather(None)
            start = time.perf_counter()
            for _ in range(calls[name]):
                allreduce(stream, group, name)
            times[name].append((time.perf_counter() - start) / calls[name])
            slowest = group.gather(times[name][-1])
            times[name][-1] = max(slowest)
    most = group.gather([arrived[name] for name in task.algorithms])
    each = {
        name: (
            1e3 * statistics.median(times[name]),
            *(max(rank[place][side] for rank in most) for side in (0, 1)),
        )
        for place, name in enumerate(task.algorithms)
    }
    seen, _ = group.memory["seen"]["sum", "Stream", stream.dtype, stream.shape]
    took = (
        _chosen(("Stream", stream.dtype, stream.shape), group, seen, "auto")
        if group.size > 2
        else "recursive_doubling"
    )
    return (
        least,
        sum(map(len, held)),
        union,
        each,
        took,
        raw_bytes(group, stream, held),
        group.memory.get("link") and tuple(group.memory["link"]),
    )


def formulas(held: list[np.ndarray], size: int) -> dict[str, float]:
    """Bytes that arrive at a rank, the mean of all, uncompressed, as SparCML's section 5 has it.

    Doubling gets the union of the partner at every step (powers of two); split (P - 1) / P of the entries of
    a rank and of the total.
    """
    ranks, share = len(held), (len(held) - 1) / len(held)
    total = len(np.unique(np.concatenate(held)))
    entries = sum(map(len, held)) / ranks
    wanted = {"split": 8 * share * (entries + total)}
    if ranks & (ranks - 1) == 0:
        have, distance, doubling = list(held), 1, 0
        while distance < ranks:
            doubling += sum(min(8 * len(each), 4 * size) for each in have)
            have = [np.union1d(have[rank], have[rank ^ distance]) for rank in range(ranks)]
            distance *= 2
        wanted["recursive_doubling"] = doubling / ranks
    return wanted


def raw_bytes(group: Any, stream: Stream, held: list[np.ndarray]) -> dict[str, tuple[float, float]]:
    """Bytes without compression, the mean of all ranks, and what the formulas say."""
    found = {}
    known = group.gather(formulas(held, stream.size) if group.rank == 0 else None)[0]
    for name, wanted in known.items():
        counted = Counted(group)
        allreduce(stream, counted, name, compress=False)
        found[name] = statistics.mean(group.gather(counted.arrived)), wanted
    return found


def small_sums(batches: int) -> dict[str, float]:
    """Milliseconds of a sum of 1000 nonzeros: two worker processes, two threads."""
    from distributed import Client, LocalCluster

    found = {"sum of 1 K nonzeros, 2 threads, ms": launch(small_sum, [batches] * 2)[0]}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        Client(cluster),
    ):
        found["sum of 1 K nonzeros, 2 worker processes on loopback, ms"] = launch(small_sum, [batches] * 2)[0]
    return found


def small_sum(group: Any, batches: int) -> float:
    """The median over batches of 200 calls."""
    index = np.arange(group.rank, 1 << 20, 1 << 10).astype(np.uint32)
    stream = Stream.from_coo(index, np.ones(index.size, np.float32), 1 << 20)
    took = []
    for _ in range(batches + 1):
        group.gather(None)
        start = time.perf_counter()
        for _ in range(200):
            allreduce(stream, group)
        took.append(max(group.gather((time.perf_counter() - start) / 200)))
    return 1e3 * statistics.median(took[1:])


def merges() -> dict[str, float]:
    """Nanoseconds an input entry (and level) over those of the prototype, 6.2 uniform and 1.5 clustered."""
    found = {}
    for kind, prototype in ("uniform", 6.2), ("clustered", 1.5):
        held = [support(kind, 1 << 24, 0.01, rank) for rank in range(8)]
        streams = [Stream.from_coo(index, values(index, rank), 1 << 24) for rank, index in enumerate(held)]
        for name, count, levels in ("two", 2, 1), ("eight", 8, 3):
            each = (
                f"{name}-way merge, {kind}, ns an entry{' and level' if levels > 1 else ''} over {prototype}"
            )
            entries = sum(stream.nnz for stream in streams[:count])
            took = []
            for _ in range(9):
                start = time.process_time()
                tree_sum(streams[:count])
                took.append(time.process_time() - start)
            found[each] = 1e9 * statistics.median(took[1:]) / entries / levels / prototype
    return found


def told(cell: Cell) -> str:
    """One line."""
    bound = cell.bound_ms
    parts = [f"{name} {ms:.3g}" for name, (ms, _, _) in cell.each.items()]
    share = f", auto / bound {cell.each['auto'][0] / bound:.2f}" if bound else ""
    return f"{cell.where}: {'; '.join(parts)} ms ({cell.took}{share})"


def with_peers(cells: list[Cell], hosts: Any, options: argparse.Namespace) -> list[Cell]:
    """The cells with what gloo and MPI took, where there is a Python that has them."""
    if not (options.peers and cells):
        return cells
    cells, rest = (
        [cell for cell in cells if cell.size <= _DENSE_MOST],
        [cell for cell in cells if cell.size > _DENSE_MOST],
    )
    what = [(cell.size, cell.density, cell.kind) for cell in cells]
    how = options.batches, options.calls, options.seconds
    found, missing = peers(options.peers, what, how, cells[0].ranks, hosts)
    for why in missing:
        print(f"left out: {why}")
    together = [cell._replace(peers=more) for cell, more in zip(cells, found, strict=True)]
    for cell in together:
        own = cell.each["auto"][0]
        told = "; ".join(f"{name} {ms:.3g} ms, {ms / own:.2f}x" for name, ms in cell.peers.items())
        print(f"{cell.where}: {told}", flush=True)
    return together + rest  # their dense sums of more values take minutes


if __name__ == "__main__":
    main()
