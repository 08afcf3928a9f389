"""Ranks on the workers of a Dask cluster, seen from the client: who takes part, start, watch, collect."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, Future, get_worker

from ..comm.group import Aborted
from ..comm.mesh_group import PeerLost
from ..schedule.plugin_dask import SessionPlugin, packed_policy
from .host_dask import Deferred, Host, Kept, host
from .options_dask import Options
from .plugin_dask import RankPlugin

__all__ = ["adopted", "cluster_ranks", "collected", "current_client", "launch_on_workers"]

GRACE = 5.0  # seconds that the others may take to end after one has failed
_WATCH = 1.0  # seconds between two looks at the members of a running session


def current_client() -> Client | None:
    """The client that a run uses: the current one, none inside a task (whose run stays in its process).

    Raises:
        RuntimeError: the current client is asynchronous.
    """
    try:
        get_worker()
    except ValueError:
        pass
    else:
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.asynchronous:
        raise RuntimeError(
            "the current Client is asynchronous, and a fit waits for its result; call it from a thread "
            "(await asyncio.to_thread(model.fit, X, y)) with a Client(asynchronous=False)"
        )
    return client


def cluster_ranks(client: Client) -> int:
    """Ranks that fill the cluster: one a worker thread."""
    return sum(worker["nthreads"] for worker in _workers(client).values())


def collected(values: Sequence[Any]) -> list[Any]:
    """The values, those that are Futures fetched from their workers."""
    futures = [value for value in values if isinstance(value, Future)]
    if not futures:
        return list(values)
    fetched = iter(futures[0].client.gather(futures))
    return [next(fetched) if isinstance(value, Future) else value for value in values]


def launch_on_workers(
    client: Client, fn: Callable[[Any, Any], Any], parts: Sequence[Any], *, timeout: float, name: str,
    policy: Any = None, seed: int = 0, told: bool = False,
) -> list[Any]:  # fmt: skip
    """`comm.local.launch` on the client's workers: `fn(group, part)` once a rank, results in rank order.

    Every part goes to its worker once, or is made there (`Deferred`); ranks then talk to each other directly.
    A built-in `policy` lives on the scheduler, which deals its plans to `group.desk`.

    Raises:
        RuntimeError: no workers, or a scheduler or workers without this package.
        PeerLost: a worker was lost.
        Exception: whatever a rank raised, with a note that names the rank.
    """
    options = Options.read()
    with Session(client, name, parts, options) as session:
        session.open(policy, seed)
        return session.hosted(fn, timeout, told)


class Session:
    """One run's workers and what is known of them."""

    def __init__(self, client: Client, name: str, parts: Sequence[Any], options: Options):
        self.client, self.name, self.parts, self.options = client, name, list(parts), options
        self.id = uuid.uuid4().hex
        places = _placed(client, self.parts)
        self.addresses = [address for address, _ in places]
        self.ranks = [members for _, members in places]
        self.dealt = False

    def __enter__(self) -> Session:
        _install(self.client)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.client.status == "running":
            self.ask("leave")

    def ask(self, handler: str, **message: Any) -> Any:
        """Call one of the SessionPlugin's handlers."""
        scheduler: Any = self.client.scheduler
        call = getattr(scheduler, f"daskstrads_{handler}")
        return self.client.sync(call, session=self.id, callback_timeout=self.options.connect, **message)

    def open(self, policy: Any, seed: int) -> None:
        """Tell the scheduler, which deals the plans of a built-in policy."""
        packed = packed_policy(policy)
        self.dealt = packed is not None
        size = len(self.parts)
        self.ask("open", client=self.client.id, count=len(self.ranks), size=size, seed=seed, policy=packed)

    def hosted(self, fn: Callable[[Any, Any], Any], timeout: float, told: bool) -> list[Any]:
        """Ranks as threads of one long task a worker: their results, in rank order."""
        futures = []
        try:
            for place, address in enumerate(self.addresses):
                recipes = self.recipes(place)
                spec = Host(
                    self.id, self.name, place, self.ranks, fn, timeout, self.options, self.dealt, told
                )
                futures.append(
                    self.client.submit(
                        host, spec, recipes, workers=[address], pure=False, retries=0,
                        key=f"daskstrads-{self.name}-{self.id[:8]}-worker-{place}",
                    )
                )  # fmt: skip
            self.watch(futures, list(range(len(futures))))
            found: dict[int, Any] = {}
            for members, entries in zip(self.ranks, self.client.gather(futures), strict=True):
                found.update(zip(members, entries, strict=True))
        finally:
            self.client.cancel(futures)
        return [found[rank] for rank in sorted(found)]

    def recipes(self, place: int) -> Any:
        """A worker's parts, sent there once, or what makes them."""
        parts = [self.parts[rank] for rank in self.ranks[place]]
        if all(isinstance(part, Deferred) for part in parts):
            return [[part.fn, list(part.args)] for part in parts]

        def scatter() -> Any:
            # As one object: what several ranks share, they get once.
            where = [self.addresses[place]]
            return self.client.scatter([_Parts(parts)], workers=where, hash=False, asynchronous=True)

        return self.client.sync(scatter, callback_timeout=self.options.start)[0]

    def watch(self, futures: list[Future], places: list[int]) -> None:
        """Wait until all futures, which are on the workers at `places`, are done.

        Raises:
            PeerLost: a worker was lost.
            Exception: the root cause, when a future failed.
        """
        changed = threading.Event()
        for future in futures:
            future.add_done_callback(lambda _: changed.set())
        start, look = time.monotonic(), time.monotonic() + _WATCH
        deadline: float | None = None
        gone: dict[int, str] = {}
        while True:
            states = [future.status for future in futures]
            if all(state == "finished" for state in states):
                return
            now = time.monotonic()
            if deadline is None and any(state not in ("pending", "finished") for state in states):
                deadline = now + GRACE  # the others end by themselves, unless their worker is gone
            if deadline is None and gone:
                deadline = now + 1.0
            waiting = [state == "pending" and place not in gone for state, place in zip(states, places)]
            if deadline is not None and (now > deadline or not any(waiting)):
                break
            if now >= look and self.client.status == "running":
                gone, look = self.gone(now - start), now + _WATCH
                continue
            changed.wait(0.1)  # polled as well: not every way that a future can end calls back
            changed.clear()
        errors = [
            self.error(future, place, gone)
            for future, place in zip(futures, places, strict=True)
            if future.status != "finished"
        ]
        raise min(errors, key=lambda error: isinstance(error, PeerLost | Aborted))

    def gone(self, seconds: float) -> dict[int, str]:
        """Workers (by place) that are lost, and why; `seconds`: since the start."""
        told = self.ask("status")
        lost = {address: "it left the cluster" for address in told["lost"]} | {
            address: f"the scheduler has not heard of it for {silence:.0f} s"
            for address, silence in told["silent"].items()
            if silence > self.options.silence + 2 * self.options.beat
        }
        if not told["joined"] and seconds > self.options.start + 2 * self.options.connect:
            lost |= {address: "it did not start its ranks" for address in self.addresses}
        return {place: lost[each] for place, each in enumerate(self.addresses) if each in lost}

    def error(self, future: Future, place: int, gone: dict[int, str]) -> BaseException:
        """Why `future`, on the worker at `place`, did not finish."""
        if future.status == "error":
            error: Any = future.exception()
            return _missing(error, self.addresses[place]) or error
        who = f"worker {place} with rank(s) {self.ranks[place]} ({self.addresses[place]})"
        if self.client.status != "running":
            return PeerLost(
                f"{who} is lost: the client's connection to the scheduler is {self.client.status}"
            )
        why = gone.get(place) or f"its task is {future.status}: the worker is gone or the run was cancelled"
        return PeerLost(f"{who} is lost: {why}")


def adopted(client: Client, values: Sequence[Any]) -> list[Any]:
    """The values with every `Kept` made a Future."""

    async def adopt() -> list[Any]:
        made: list[Any] = []
        for value in values:
            if isinstance(value, Kept):
                made.append(Future(value.key, client))
                client.futures[value.key].finish()  # the scheduler knows it already, and who wants it
            else:
                made.append(value)
        return made

    return client.sync(adopt)


class _Parts(tuple):
    """A worker's parts: as one object, which scatter does not take apart."""


def _workers(client: Client) -> dict[str, Any]:
    """The cluster's workers by address."""
    # Not client.scheduler_info(): its periodic refresh, without workers, may come in between.
    scheduler: Any = client.scheduler
    return client.sync(scheduler.identity, n_workers=-1)["workers"]


def _placed(client: Client, parts: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Workers that take part, in order of address, with their ranks: one a thread, near the data they need."""
    workers = _workers(client)
    if not workers:
        raise RuntimeError("the cluster has no workers; wait for some: client.wait_for_workers(1)")
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
    first = {
        rank: next((arg for arg in part.args if isinstance(arg, Future)), None)
        for rank, part in enumerate(parts)
        if isinstance(part, Deferred)
    }
    first = {rank: future for rank, future in first.items() if future is not None}
    if not first:
        return {}
    holders = client.who_has(list(first.values()))
    return {rank: holders[future.key][0] for rank, future in first.items() if holders.get(future.key)}


def _install(client: Client) -> None:
    for plugin, where in ((SessionPlugin(), "the scheduler"), (RankPlugin(), "a worker")):
        try:
            client.register_plugin(plugin)
        except Exception as error:
            raise _missing(error, where) or RuntimeError(
                f"daskstrads could not set itself up on {where}: {error}"
            ) from error


def _missing(error: BaseException, where: str) -> RuntimeError | None:
    """What to tell who has no daskstrads there, or another one."""
    if isinstance(error, ImportError) and "daskstrads" in str(error):
        return RuntimeError(
            f"{where} cannot load daskstrads ({error}); install the same version on the scheduler and on all "
            "workers"
        )
    return None
