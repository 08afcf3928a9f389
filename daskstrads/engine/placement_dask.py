"""Which client, which workers, and which ranks on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed import Client, Future, get_worker

from .host_dask import Deferred

__all__ = [
    "check_memory_limits",
    "cluster_ranks",
    "current_client",
    "inside_task",
    "placed",
    "said_by_worker",
]

_PAUSE = 0.8  # share of its memory limit at which a worker stops taking tasks


def current_client() -> Client | None:
    """The client that a run uses: the current one, none inside a task (whose run stays in its process).

    Raises:
        RuntimeError: the current client is asynchronous, or closed.
    """
    if inside_task():
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.status not in ("running", "connecting"):
        raise RuntimeError(f"the current Client is {client.status}; open another, or leave its block")
    if client.asynchronous:
        raise RuntimeError(
            "the current Client is asynchronous, and a fit waits for its result; call it from a thread "
            "(await asyncio.to_thread(model.fit, X, y)) with a Client(asynchronous=False)"
        )
    return client


def inside_task() -> bool:
    """Whether this is a worker's thread: one of many that the worker's cores are shared among."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


def cluster_ranks(client: Client) -> int:
    """Ranks that fill the cluster: one a worker thread.

    Raises:
        RuntimeError: there are no workers.
    """
    return sum(worker["nthreads"] for worker in _workers(client).values())


def check_memory_limits(client: Client, ranks: int, size: int, told: str) -> None:
    """Raise MemoryError when a worker that would host some of `ranks` ranks of `size` bytes is too small."""
    workers = _workers(client)
    for address, members in placed(client, [None] * ranks):
        limit, need = workers[address]["memory_limit"], len(members) * size
        if limit and need > _PAUSE * limit:
            raise MemoryError(
                f"the fit needs {need / 1e9:.3g} GB on worker {address} ({told}), whose memory limit is "
                f"{limit / 1e9:.3g} GB; use more workers, more memory a worker, or less of what that counts"
            )


def said_by_worker(line: str) -> bool:
    """Have the clients print `line`, if this is a worker; whether it is."""
    if not inside_task():
        return False
    # What distributed.print sends; that one prints on the worker as well, so twice on a LocalCluster.
    get_worker().log_event("print", {"args": (line,), "sep": " ", "end": "\n", "flush": True})
    return True


def _workers(client: Client) -> dict[str, Any]:
    """The cluster's workers by address."""
    # Not client.scheduler_info(): its periodic refresh, without workers, may come in between.
    scheduler: Any = client.scheduler
    workers = client.sync(scheduler.identity, n_workers=-1)["workers"]
    if not workers:
        raise RuntimeError(
            "the cluster has no workers; ask for some (cluster.scale) and wait: client.wait_for_workers(1)"
        )
    return workers


def placed(client: Client, parts: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Workers that take part, by address, with their ranks: one a thread, near the data they need."""
    workers = _workers(client)
    seats = [address for address in sorted(workers) for _ in range(workers[address]["nthreads"])]
    size = len(parts)
    # More ranks than threads: the threads are shared out evenly.
    free = [seats[rank * len(seats) // size] for rank in range(size)] if size > len(seats) else seats
    homes = _homes(client, parts)
    seated: dict[int, str] = {}
    for rank, home in homes.items():
        if home in free:
            free.remove(home)
            seated[rank] = home
    for rank in range(size):
        if rank not in seated:
            seated[rank] = free.pop(0)
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        ranks.setdefault(seated[rank], []).append(rank)
    return sorted(ranks.items())


def _homes(client: Client, parts: Sequence[Any]) -> dict[int, str]:
    """Where the first Future of each `Deferred` part is."""
    first: dict[int, Future] = {}
    for rank, part in enumerate(parts):
        futures = [arg for arg in part.args if isinstance(arg, Future)] if isinstance(part, Deferred) else []
        if futures:
            first[rank] = futures[0]
    if not first:
        return {}
    holders = client.who_has(list(first.values()))
    return {rank: holders[future.key][0] for rank, future in first.items() if holders.get(future.key)}
