"""Ranks on the workers of a Dask cluster: one long task a worker hosts its ranks, which meet over a mesh."""

from __future__ import annotations

import platform
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from distributed import Client, Future, Worker, get_worker
from distributed.utils import sync
from distributed.worker import secede

from ..comm.group import Aborted, note
from ..comm.link import Limits
from ..comm.mesh import Mesh
from ..comm.mesh_group import MeshGroup, PeerLost, Room
from ..schedule.plugin_dask import SessionPlugin

__all__ = ["cluster_ranks", "current_client", "launch_on_workers", "placement"]

START_TIMEOUT = 60.0  # seconds until all workers must have started their ranks
GRACE = 5.0  # seconds that the others may take to end after one has failed


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


class _Host(NamedTuple):
    """What a worker needs to host its ranks."""

    session: str
    place: int
    ranks: list[list[int]]  # of every worker
    fn: Callable[[Any, Any], Any]
    timeout: float
    start_timeout: float
    limits: Limits


def launch_on_workers(
    client: Client, fn: Callable[[Any, Any], Any], parts: Sequence[Any], *, timeout: float, name: str
) -> list[Any]:
    """`comm.local.launch` on the client's workers: `fn(group, part)` once a rank, results in rank order.

    Every part goes to its worker once; ranks then talk to each other directly.

    Raises:
        RuntimeError: no workers, or a scheduler or workers without this package.
        PeerLost: a worker was lost.
        Exception: whatever a rank raised, with a note that names the rank.
    """
    places = _placed(client, len(parts))
    _install(client)
    session = uuid.uuid4().hex
    ranks = [members for _, members in places]
    futures = []
    try:
        for index, (address, members) in enumerate(places):
            held = _held(client, [parts[rank] for rank in members], address)
            host = _Host(session, index, ranks, fn, timeout, START_TIMEOUT, Limits())
            futures.append(
                client.submit(
                    _host, host, *held, workers=[address], pure=False, retries=0,
                    key=f"daskstrads-{name}-{session[:8]}-worker-{index}",
                )
            )  # fmt: skip
        return _results(client, futures, ranks)
    finally:
        client.cancel(futures)
        _leave(client, session)


class _Part(NamedTuple):
    """Keeps a part that is a list or a dict from being taken apart by scatter."""

    value: Any


def _held(client: Client, parts: list[Any], address: str) -> list[Any]:
    """The parts as futures: those that are futures stay where they are, the others go to their worker."""
    if all(isinstance(part, Future) for part in parts):
        return parts
    return client.scatter([_Part(part) for part in parts], workers=[address], hash=False)


def _workers(client: Client) -> dict[str, Any]:
    """The cluster's workers by address."""
    # Not client.scheduler_info(): its periodic refresh, without workers, may come in between.
    scheduler: Any = client.scheduler
    return client.sync(scheduler.identity, n_workers=-1)["workers"]


def _placed(client: Client, size: int) -> list[tuple[str, list[int]]]:
    """Workers that take part with their ranks, filled by their threads in order of address."""
    workers = _workers(client)
    if not workers:
        raise RuntimeError("the cluster has no workers; wait for some: client.wait_for_workers(1)")
    seats = [address for address in sorted(workers) for _ in range(workers[address]["nthreads"])]
    order = sorted(workers)
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        # Contiguous ranks on a worker; more ranks than threads go round again.
        seat = seats[rank * len(seats) // size] if size >= len(seats) else seats[rank]
        ranks.setdefault(seat, []).append(rank)
    return [(address, ranks[address]) for address in order if address in ranks]


def _leave(client: Client, session: str) -> None:
    scheduler: Any = client.scheduler
    if scheduler is not None and client.status == "running":
        client.sync(scheduler.daskstrads_leave, session=session)


def placement(client: Client, size: int) -> list[str]:
    """The worker's address of every rank of a run with `size` ranks."""
    return [address for address, members in _placed(client, size) for _ in members]


def _install(client: Client) -> None:
    try:
        client.register_plugin(SessionPlugin())
    except Exception as error:
        raise RuntimeError(
            "the scheduler cannot load daskstrads; install the same version on the scheduler and all workers"
        ) from error


def _results(client: Client, futures: list[Any], ranks: list[list[int]]) -> list[Any]:
    """The ranks' results in rank order, or the root cause of the failure."""
    changed = threading.Event()
    for future in futures:
        future.add_done_callback(lambda _: changed.set())
    # Polled as well: not every way that a future can end calls back.
    while all(future.status in ("pending", "finished") for future in futures):
        if all(future.status == "finished" for future in futures):
            break
        changed.wait(0.5)
        changed.clear()
    else:  # one failed: the others end by themselves, unless their worker is gone
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(future.status == "pending" for future in futures):
            time.sleep(0.02)
    errors = [_error(future) for future in futures if future.status != "finished"]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, PeerLost | Aborted))
    results: dict[int, Any] = {}
    for members, entries in zip(ranks, client.gather(futures), strict=True):
        results.update(zip(members, entries, strict=True))
    return [results[rank] for rank in sorted(results)]


def _error(future: Any) -> BaseException:
    if future.status == "error":
        return future.exception()
    return PeerLost(
        f"{future.key} did not end ({future.status}): its worker is gone or the run was cancelled"
    )


def _host(host: _Host, *parts: Any) -> list[Any]:
    """The task: this worker's ranks as threads; their results."""
    worker = get_worker()
    key = worker.get_current_task()
    secede()  # the slot is free for other tasks; the dashboard still shows this one
    members = host.ranks[host.place]
    room = Room(sum(map(len, host.ranks)), members, host.timeout)
    mesh = _meshed(host, room, worker)
    results: dict[int, Any] = {}

    def live(rank: int, part: Any) -> None:
        try:
            results[rank] = host.fn(MeshGroup(room, mesh, rank), part)
        except Aborted as error:
            room.abort(error)
        except BaseException as error:
            note(error, f"raised on rank {rank} of {room.size}, worker {worker.address}")
            if room.abort(error):
                mesh.tell_abort(error)
        else:
            room.leave(rank)
            mesh.tell_leave(rank)

    threads = [
        threading.Thread(
            target=live,
            args=(rank, part.value if isinstance(part, _Part) else part),
            name=f"daskstrads-rank-{rank}",
            daemon=True,
        )
        for rank, part in zip(members, parts, strict=True)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                if room.cause is None and not _wanted(worker, key):
                    cancelled = RuntimeError("the run was cancelled")
                    room.abort(cancelled)
                    mesh.tell_abort(cancelled)
    finally:
        mesh.close()
    if room.cause is not None and len(results) < len(members):
        raise room.cause
    return [results[rank] for rank in members]


def _wanted(worker: Worker, key: Any) -> bool:
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("long-running", "executing")


def _meshed(host: _Host, room: Room, worker: Worker) -> Mesh:
    """Listen, tell the scheduler, connect to the others."""
    mesh = Mesh(room, host.place, host.ranks, b"", limits=host.limits, contexts=_contexts(worker))
    address = (
        worker.address.split("://")[1].rsplit(":", 1)[0] if "inproc" not in worker.address else "127.0.0.1"
    )
    port = mesh.listen(address.strip("[]")) if len(host.ranks) > 1 else 0
    member = {"worker": worker.address, "host": address.strip("[]"), "port": port, "versions": _versions()}
    answer = sync(
        worker.loop, worker.scheduler.daskstrads_join,
        session=host.session, index=host.place, count=len(host.ranks), member=member,
        timeout=host.start_timeout, callback_timeout=host.start_timeout + 10,
    )  # fmt: skip
    if "trouble" in answer:
        mesh.close()
        raise RuntimeError(answer["trouble"])
    mesh.token = answer["token"].encode()
    mesh.connect([tuple(entry) for entry in answer["addresses"]])
    return mesh


def _contexts(worker: Worker) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The cluster's own TLS contexts, for accepting and for calling."""
    if not worker.address.startswith("tls"):
        return None, None
    security = worker.security
    return (
        security.get_listen_args("worker").get("ssl_context"),
        security.get_connection_args("worker").get("ssl_context"),
    )


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("numpy", "numba")}
    own = sys.modules[__name__.partition(".")[0]].__version__
    return found | {"daskstrads": own, "python": platform.python_version()}
