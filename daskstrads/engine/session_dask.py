"""One run's workers, seen from the client: who takes part, start, watch, collect."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import cloudpickle
from distributed import Client, Future

from ..comm.group import Aborted
from ..comm.mesh_group import PeerLost, Unreachable
from ..schedule.plugin_dask import SessionPlugin, packed_policy
from .host_dask import Deferred, Host, host
from .options_dask import Options
from .packing import Parts
from .placement_dask import placed
from .plugin_dask import Kept, RankPlugin

__all__ = ["Session", "collected"]

GRACE = 5.0  # seconds that the others may take to end after one has failed
_WATCH = 0.5  # seconds between two looks at the members of a running session


def collected(values: Sequence[Any]) -> list[Any]:
    """The values, those that are Futures fetched from their workers.

    Raises:
        RuntimeError: a worker was lost with what it held, or their client is closed.
    """
    futures = [value for value in values if isinstance(value, Future)]
    if not futures:
        return list(values)
    if futures[0].client.status not in ("running", "connecting"):
        raise RuntimeError(
            "the Client whose workers held the result is closed: fit again, or fetch or save it before that"
        )
    try:
        fetched = iter(futures[0].client.gather(futures))
    except CancelledError as error:
        raise RuntimeError(
            "a worker was lost with its share of the result before that could be fetched (was its memory "
            f"limit too small?): {error}"
        ) from error
    return [next(fetched) if isinstance(value, Future) else value for value in values]


class Session:
    """One run's workers and what is known of them."""

    def __init__(self, client: Client, name: str, parts: Sequence[Any], options: Options):
        self.client, self.name, self.options = client, name, options
        self.parts = [_arriving(part, rank) for rank, part in enumerate(parts)]
        self.id = uuid.uuid4().hex
        places = placed(client, self.parts)
        self.addresses = [address for address, _ in places]
        self.ranks = [members for _, members in places]
        self.dealt = False
        self.sent: list[Future] = []  # the workers' parts
        self.kept: set[Any] = set()  # keys of adopted results
        self.hosting = False  # whether all workers have to join

    def __enter__(self) -> Session:
        _install(self.client, self.options.start)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:  # its traceback may keep them
            self.drop(self.sent)
        if self.client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):  # gone meanwhile: there is nothing to leave
                self.ask("leave", adopted=list(self.kept), sent=[future.key for future in self.sent])
        elif (
            isinstance(error, Exception)
            and not isinstance(error, PeerLost)
            and not getattr(error, "__notes__", None)
        ):
            # No rank's error: what Dask says of a closed client depends on what it was asked for.
            raise PeerLost(f"the client's connection to the scheduler is {self.client.status}") from error

    def drop(self, futures: list[Future]) -> None:
        """Nobody waits for these any more, whoever else holds them (a traceback may)."""
        # Not Client.cancel: it ends the client's connection when a key has dependents that nobody wants.
        for future in futures:
            with contextlib.suppress(Exception):  # the client may be closed
                future.release()

    def ask(self, handler: str, **message: Any) -> Any:
        """Call one of the SessionPlugin's handlers."""
        scheduler: Any = self.client.scheduler
        call = getattr(scheduler, f"daskstrads_{handler}")
        return self.client.sync(call, session=self.id, callback_timeout=self.options.connect, **message)

    def open(self, policy: Any, seed: int) -> None:
        """Tell the scheduler, which deals the plans of a built-in policy."""
        packed = packed_policy(policy)
        self.dealt = packed is not None
        client, workers = self.client.id, self.addresses
        self.ask("open", client=client, workers=workers, ranks=self.ranks, seed=seed, policy=packed)

    def hosted(self, fn: Callable[[Any, Any], Any], timeout: float, told: bool) -> list[Any]:
        """Ranks as threads of one long task a worker: their results, in rank order."""
        futures = []
        packed = cloudpickle.dumps(fn)
        self.hosting = True
        try:
            for place, address in enumerate(self.addresses):
                recipes = self.recipes(place)
                spec = Host(
                    self.id, self.name, place, self.ranks, packed, timeout, self.options, self.dealt, told
                )
                futures.append(
                    self.client.submit(
                        host, spec, recipes, workers=[address], pure=False, retries=0,
                        key=f"daskstrads-{self.name}-{self.id[:8]}-worker-{place}",
                    )
                )  # fmt: skip
            self.watch(futures)
            found: dict[int, Any] = {}
            for members, entries in zip(self.ranks, self.client.gather(futures), strict=True):
                found.update(zip(members, entries, strict=True))
        except BaseException:
            self.drop(futures)
            raise
        finally:
            self.hosting = False
        return [found[rank] for rank in sorted(found)]

    def recipes(self, place: int) -> Any:
        """A worker's parts, sent there once, or what makes them."""
        parts = [self.parts[rank] for rank in self.ranks[place]]
        if any(isinstance(part, Deferred) for part in parts):
            made = [part if isinstance(part, Deferred) else Deferred(_same, (part,)) for part in parts]
            return [[part.fn, list(part.args)] for part in made]

        def scatter() -> Any:
            where = [self.addresses[place]]
            return self.client.scatter([Parts(parts)], workers=where, hash=False, asynchronous=True)

        try:
            [sent] = self.client.sync(scatter, callback_timeout=self.options.start)
        except (OSError, TimeoutError, KeyError) as error:  # Dask does not say which worker is out of reach
            raise PeerLost(f"{self.lost(place)}, its parts cannot be sent ({error})") from error
        self.sent.append(sent)
        return sent

    def rank_recipes(self) -> list[tuple[int, tuple[Any, int]]]:
        """(rank, (a worker's recipes, the rank's place in them)), in rank order."""
        found: dict[int, tuple[Any, int]] = {}
        for place, members in enumerate(self.ranks):
            recipes = self.recipes(place)
            for index, rank in enumerate(members):
                # Futures inside a list of recipes are of one rank alone.
                own = isinstance(recipes, list)
                found[rank] = ([recipes[index]], 0) if own else (recipes, index)
        return sorted(found.items())

    def watch(
        self, futures: list[Future], where: Callable[[], str] = lambda: "", within: float = math.inf
    ) -> None:
        """Wait until all futures are done; `where()` tells what is waited for.

        Raises:
            PeerLost: a worker was lost.
            TimeoutError: it took longer than `within` seconds.
            Exception: the root cause, when a future failed.
        """
        changed = threading.Event()
        for future in futures:
            future.add_done_callback(lambda _: changed.set())
        start = time.monotonic()
        look, end, gone = start + _WATCH, start + within, ""
        told = False
        while not all(future.status == "finished" for future in futures):
            now = time.monotonic()
            failed = any(future.status not in ("pending", "finished") for future in futures)
            if failed and not told:  # the others end by themselves, unless their worker is gone
                told, end = True, min(end, now + GRACE)
            pending = any(future.status == "pending" for future in futures)
            if not pending or now > end or self.client.status != "running":
                break
            if now >= look:
                known, gone, look = gone, self.gone(now - start), now + _WATCH
                if gone and not known:  # the others know more: where they stood
                    end = min(end, now + _WATCH)
            changed.wait(0.05)  # polled as well: not every way that a future can end calls back
            changed.clear()
        else:
            return
        errors = [self.raised(future) for future in futures if future.status == "error"]
        errors.sort(key=_distance)
        if errors and (not isinstance(errors[0], PeerLost) or self.hosting):
            raise errors[0]
        stood = where()
        if self.client.status != "running":
            raise PeerLost(f"the client's connection to the scheduler is {self.client.status}{stood}")
        gone = gone or self.gone(0.0)  # a task that is cancelled or has lost its rank may tell of it first
        if gone:
            raise PeerLost(f"{gone}{stood}")
        if errors:
            raise errors[0]
        states = sorted({str(future.status) for future in futures})
        if set(states) <= {"pending", "finished"}:
            raise TimeoutError(f"waited {within:g} s for the workers{stood}")
        raise PeerLost(f"the run was cancelled, or its workers are gone: its tasks are {states}{stood}")

    def adopted(self, values: Sequence[Any]) -> list[Any]:
        """The values with every `Kept` made a Future."""
        client = self.client

        async def adopt() -> list[Any]:
            made: list[Any] = []
            for value in values:
                if isinstance(value, Kept):
                    made.append(Future(value.key, client))
                    client.futures[value.key].finish()  # the scheduler knows it already, and who wants it
                else:
                    made.append(value)
            return made

        self.kept = {key for key in self.kept if key in client.futures}
        self.kept.update(value.key for value in values if isinstance(value, Kept))
        return client.sync(adopt)

    def gone(self, seconds: float) -> str:
        """Which workers are lost, and why, if any is; `seconds`: since the start.

        Raises:
            RuntimeError: no worker has joined in time, so that the scheduler has not begun to wait.
        """
        try:
            told = self.ask("status")
        except (OSError, TimeoutError):  # the scheduler is busy or gone; the client's status will tell
            return ""
        start, missing = self.options.start, len(self.addresses) - told["joined"]
        if self.hosting and missing and seconds > start + _WATCH:
            raise RuntimeError(
                f"{missing} of {len(self.addresses)} workers did not start their ranks within {start:g} s; "
                "they may be busy with other tasks, or lack memory (daskstrads.timeouts.start)"
            )
        lost = dict.fromkeys(told["lost"], "it left the cluster") | {
            address: f"the scheduler has not heard of it for {silence:.0f} s"
            for address, silence in told["silent"].items()
            if silence > self.options.silence + self.options.beat
        }
        return "; ".join(
            f"{self.lost(place)}, {lost[address]}"
            for place, address in enumerate(self.addresses)
            if address in lost
        )

    def lost(self, place: int) -> str:
        """A worker, as errors name it."""
        return f"worker {place} with rank(s) {self.ranks[place]} is lost: {self.addresses[place]}"

    def raised(self, future: Future) -> BaseException:
        """The error of a task."""
        error: Any = future.exception()
        return _missing(error, "a worker") or error


def _same(part: Any) -> Any:
    return part


def _arriving(part: Any, rank: int) -> Any:
    """A part as its rank will see it: a Future's value is taken to it, or used where it is.

    Raises:
        TypeError: a lazy collection.
    """
    if isinstance(part, Future):
        return Deferred(_same, (part,))
    if hasattr(part, "__dask_graph__"):
        raise TypeError(
            f"part {rank} is a lazy {type(part).__name__}; pass a Future of it: client.compute(part), or "
            "for a dask array those of its chunks: client.compute(list(part.to_delayed().ravel()))"
        )
    return part


def _distance(error: BaseException) -> int:
    """How far an error is from the root cause: a rank's own, a start that failed, a peer that was lost."""
    if isinstance(error, Unreachable):
        return 1
    return 2 if isinstance(error, PeerLost | Aborted) else 0


def _install(client: Client, patience: float) -> None:
    for plugin, where in ((SessionPlugin(), "the scheduler"), (RankPlugin(), "a worker")):

        async def register(plugin: Any = plugin) -> None:
            await client.register_plugin(plugin)  # type: ignore[func-returns-value]

        try:
            client.sync(register, callback_timeout=patience)
        except Exception as error:
            raise _missing(error, where) or RuntimeError(
                f"daskstrads could not set itself up on {where}: {error}"
            ) from error


def _missing(error: BaseException, where: str) -> RuntimeError | None:
    """What to tell who has no daskstrads there, or another one."""
    # By its text: Dask wraps what a worker could not unpickle.
    if "No module named 'daskstrads" in str(error):
        return RuntimeError(
            f"{where} cannot load daskstrads ({error}); install the same version on the scheduler and on all "
            "workers"
        )
    return None
