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
from typing import Any, NamedTuple

import numpy as np


class Sample(NamedTuple):
    """One call: wall seconds, CPU seconds of all threads of this process, and what was kept of its result."""

    wall: float
    cpu: float
    kept: Any


class Spread(NamedTuple):
    """Median and range of a few measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}..{self.high:.3g}]"


def timed(call: Callable[[], Any], keep: Callable[[Any], Any] = lambda result: result) -> Sample:
    """Run `call` once; `keep` picks what to hold on to, after the clock has stopped."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Sample(wall, cpu, keep(result))


def paired(
    calls: dict[str, Callable[[], Any]], repeats: int, keep: Callable[[Any], Any] = lambda result: result
) -> dict[str, list[Sample]]:
    """`repeats` samples of each call, taken in the order A B C A B C ..."""
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(timed(call, keep))
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
