"""Telling the user when kernels are compiled, which takes seconds, rather than read from the cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

__all__ = ["compilation_announced"]

_log = logging.getLogger("daskstrads")


class _Listener(event.Listener):
    def __init__(self, verbose: bool):
        self.verbose = verbose
        self.start: float | None = None

    def on_start(self, event: event.Event) -> None:
        if self.start is None:
            self.start = time.perf_counter()
            self.say("compiling kernels for these data types; the next process finds them in numba's cache")

    def on_end(self, event: event.Event) -> None:
        """Numba reports the end of each kernel; only the first start is of interest."""

    def say(self, message: str) -> None:
        _log.info(message)
        if self.verbose:
            print(f"[daskstrads] {message}", flush=True)


@contextmanager
def compilation_announced(verbose: bool) -> Iterator[None]:
    """Say once, on the logger "daskstrads" and when `verbose` on stdout, that kernels are being compiled."""
    listener = _Listener(verbose)
    with event.install_listener("numba:compile", listener):
        yield
    if listener.start is not None:
        listener.say(f"first fit with newly compiled kernels: {time.perf_counter() - listener.start:.1f} s")
