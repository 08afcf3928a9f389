"""How much a fit needs beyond its data: growth of the resident memory, in a fresh process.

    python benchmarks/rss.py B/50 [--scale 10]

The process reads the data, fits a tiny problem of the same types, gives free memory back, and then notes its
resident memory every 5 ms while it fits with two ranks. Printed: growth over the size of X, as JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import scipy.sparse as sp
from calibration import warm_up
from certificate import certify
from problems import Source, alpha_of, fetch
from solvers import OURS

GAP = 1e-6


class Watch:
    """Notes this process's resident memory until `stop`, every `every` seconds; free memory is given back.

    `also` is called each time.
    """

    def __init__(self, every: float, also: Callable[[], None] = lambda: None):
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.process, self.over = psutil.Process(), threading.Event()
        self.base = self.peak = self.process.memory_info().rss
        self.every, self.also = every, also
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        """Keep the largest value."""
        while not self.over.wait(self.every):
            self.also()
            self.peak = max(self.peak, self.process.memory_info().rss)

    def stop(self) -> int:
        """The growth, in bytes."""
        self.over.set()
        self.thread.join()
        return max(self.peak, self.process.memory_info().rss) - self.base


def growth(row: str, source: Source, repeats: int) -> list[float]:
    """Growth over the size of X, of `repeats` fresh processes."""
    command = [sys.executable, __file__, row, "--scale", str(source.scale)]
    command += ["--cache", str(source.cache)] if source.cache else []
    runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True) for _ in range(repeats)]
    return [json.loads(run.stdout)["growth"] for run in runs]


def main() -> None:
    """The inside of one process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", help="such as B/50")
    parser.add_argument("--scale", type=int, default=1, help="divisor of the sizes (default 1)")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    options = parser.parse_args()
    name, _, divisor = options.row.partition("/")
    data = fetch(name, Source(options.scale, options.cache))
    alpha = alpha_of(data, float(divisor))
    warm_up(data.kind, OURS[2], options.cache)
    parts = ("data", "indices", "indptr")
    size = sum(getattr(data.X, part).nbytes for part in parts) if sp.issparse(data.X) else data.X.nbytes
    watch = Watch(0.005)
    model = OURS[2].fit(data.X, data.y, alpha, GAP / 2)
    grown = watch.stop()
    relative = certify(data.X, data.y, model.coef_, alpha).relative
    if relative > GAP:
        sys.exit(f"{options.row}: not certified, gap {relative:.1e}")
    print(json.dumps({"growth": grown / size, "megabytes": grown / 1e6, "size": size / 1e6}))


if __name__ == "__main__":
    main()
