"""Paired timing: every repetition runs each contender in turn, and ratios are taken pair by pair.

On a shared machine speed drifts by more than the differences of interest; contenders that run seconds
apart meet the same drift, and the median of their ratios sheds the disturbed pairs.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np


class Sample(NamedTuple):
    """A call: wall seconds, CPU seconds of all threads of this process, and what was kept of its result.

    Of a call repeated within the sample: the mean seconds, and the last result. `others` is the part of the
    CPU seconds that threads other than the caller's took.
    """

    wall: float
    cpu: float
    kept: Any
    others: float


class Spread(NamedTuple):
    """Median and range of a few measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}..{self.high:.3g}]"


def timed(
    call: Callable[[], Any], keep: Callable[[Any], Any] = lambda result: result, times: int = 1
) -> Sample:
    """Run `call` `times` times; `keep` picks what to hold on to, after the clock has stopped."""
    gc.collect()
    own, cpu, wall = time.thread_time(), time.process_time(), time.perf_counter()
    for _ in range(times):
        result = call()
    wall, cpu, own = time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - own
    return Sample(wall / times, cpu / times, keep(result), max(1 - own / cpu, 0.0) if cpu > 0 else 0.0)


def paired(
    calls: dict[str, Callable[[], Any]],
    repeats: int,
    keep: Callable[[Any], Any] = lambda result: result,
    times: dict[str, int] | None = None,
    around: Callable[[str], AbstractContextManager[Any]] = lambda name: nullcontext(),
) -> dict[str, list[Sample]]:
    """`repeats` samples of each call, taken in the order A B C A B C ...

    `times` says how often a call is repeated within a sample (else once); `around(name)` is entered before
    the clock starts and left after it has stopped.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            with around(name):
                samples[name].append(timed(call, keep, (times or {}).get(name, 1)))
    return samples


def spread(values: Iterable[float]) -> Spread:
    """Median, smallest and largest of `values`."""
    values = list(values)
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: list[Sample], peer: list[Sample]) -> Spread:
    """Wall time of ours over the peer's, pair by pair: below 1 is faster than the peer."""
    return spread(mine.wall / theirs.wall for mine, theirs in zip(ours, peer, strict=True))


def cores(threads: int) -> float:
    """How many cores `threads` busy threads get here and now: CPU over wall seconds."""
    array = np.random.default_rng(0).random(2_000_000)
    workers = [threading.Thread(target=np.sort, args=(array,)) for _ in range(threads)]

    def live() -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    sample = timed(live)
    return sample.cpu / sample.wall
