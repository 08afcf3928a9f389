"""One rank of a peer's sum, for `allreduce.py`: gloo (torch.distributed) or MPI (mpi4py).

    python benchmarks/allreduce_peers.py gloo | mpi RANK RANKS ADDRESS CELLS BATCHES CALLS SECONDS

CELLS is a JSON list of (N, density, support). Rank 0 prints a JSON list of {peer: ms a call, the slowest
rank, median over batches}. MPI finds its ranks by itself: RANK, RANKS and ADDRESS do not count there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from supports import support, values


def timed(
    once: Callable[[], Any], slowest: Callable[[float], float], batches: int, calls: int, seconds: float
) -> float:
    """Milliseconds a call; as many calls a batch on every rank."""
    once()
    start = time.perf_counter()
    once()
    calls = max(2, min(calls, int(seconds / slowest(time.perf_counter() - start)) + 1))
    took = []
    for _ in range(batches):
        slowest(0.0)  # all begin together
        start = time.perf_counter()
        for _ in range(calls):
            once()
        took.append(slowest((time.perf_counter() - start) / calls))
    return 1e3 * statistics.median(took)


def gloo(rank: int, ranks: int, address: str, cells: list, how: tuple) -> list[dict[str, float]]:
    """torch.distributed's all_reduce of sparse COO and of dense tensors."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29511", rank=rank, world_size=ranks)

    def slowest(taken: float) -> float:
        worst = torch.tensor([taken], dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return float(worst)

    found = []
    for size, density, kind in cells:
        index = support(kind, size, density, rank)
        where, what = torch.from_numpy(index.astype(np.int64)[None]), torch.from_numpy(values(index, rank))
        dense = torch.zeros(size)

        def sparse(where=where, what=what, size=size):
            total = torch.sparse_coo_tensor(where, what, (size,)).coalesce()
            dist.all_reduce(total)
            return total

        def full(dense=dense):
            dist.all_reduce(dense)

        found.append({"gloo sparse": timed(sparse, slowest, *how), "gloo dense": timed(full, slowest, *how)})
    dist.destroy_process_group()
    return found


def mpi(cells: list, how: tuple) -> tuple[int, list[dict[str, float]]]:
    """Allgatherv of the pairs, added up by every rank; and Allreduce of all values."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    found = []

    def slowest(taken: float) -> float:
        return comm.allreduce(taken, MPI.MAX)

    for size, density, kind in cells:
        index = support(kind, size, density, comm.rank)
        value = values(index, comm.rank)
        dense, out = np.zeros(size, np.float32), np.empty(size, np.float32)

        def pairs(index=index, value=value, size=size):
            counts = np.array(comm.allgather(index.size))
            every, all_values = np.empty(counts.sum(), np.uint32), np.empty(counts.sum(), np.float32)
            comm.Allgatherv([index, MPI.UINT32_T], [every, counts.tolist(), None, MPI.UINT32_T])
            comm.Allgatherv([value, MPI.FLOAT], [all_values, counts.tolist(), None, MPI.FLOAT])
            order = np.argsort(every, kind="stable")  # radix sort: what numpy has to merge with
            every, all_values = every[order], all_values[order]
            first = np.flatnonzero(np.append(True, every[1:] != every[:-1]))
            return every[first], np.add.reduceat(all_values, first)

        def full(dense=dense, out=out):
            comm.Allreduce(dense, out)

        found.append({"MPI Allgatherv": timed(pairs, slowest, *how), "MPI dense": timed(full, slowest, *how)})
    return comm.rank, found


def main() -> None:
    """Run one rank."""
    kind, rank, ranks, address, cells, batches, calls, seconds = sys.argv[1:]
    how = int(batches), int(calls), float(seconds)
    if kind == "gloo":
        place, found = int(rank), gloo(int(rank), int(ranks), address, json.loads(cells), how)
    else:
        place, found = mpi(json.loads(cells), how)
    if place == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
