"""What a user waits for before the solver works: import time, and the first fit against the second.

    python benchmarks/startup.py

Every measurement is a fresh interpreter. (a) `import daskstrads` over a bare interpreter and over numpy
alone, and that it loads none of distributed, numba and scikit-learn. (b) The first and second fit of the same
problem in one process, with an empty numba cache and then with the cache that run left behind.
Exits with status 1 when the import loads what it must not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import spread, timed
from workloads import lam_max, load

LAZY = ("distributed", "numba", "sklearn")

IMPORTS = {"bare": "pass", "numpy": "import numpy", "daskstrads": "import daskstrads"}

PROBLEMS = {"A/20": ("A", 20.0), "B/10": ("B", 10.0)}


def main() -> None:
    """Both measurements, or with --child the inside of one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes a figure (default 5)")
    parser.add_argument("--scale", type=int, default=10, help="divisor of the problems' sizes (default 10)")
    parser.add_argument("--shards", type=int, default=2, help="ranks of the fits (default 2)")
    parser.add_argument("--quick", action="store_true", help="two processes a figure, scale 20")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    parser.add_argument("--child", choices=PROBLEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options)))
        return
    if options.quick:
        options.repeats, options.scale = 2, 20
    loaded = imports(options.repeats)
    for row in PROBLEMS:
        fits(row, options)
    sys.exit(1 if loaded else 0)


def imports(repeats: int) -> list[str]:
    """Print what the import costs; the modules it loads and should not."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for turn in range(repeats + 1):
        for name, code in IMPORTS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            if turn:  # the first fills the file cache and writes byte code
                times[name].append(time.perf_counter() - started)
    print("seconds, fresh interpreter, median [min..max]")
    for name in IMPORTS:
        over = spread(mine - bare for mine, bare in zip(times[name], times["bare"], strict=True))
        print(f"  {name:<12}{spread(times[name])!s:>26}   over bare {over}")
    code = f"import sys, daskstrads; print(*[name for name in {LAZY!r} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    print(f"  of {', '.join(LAZY)}, import daskstrads loads: {', '.join(loaded) or 'none'}")
    return loaded


def fits(row: str, options: argparse.Namespace) -> None:
    """Print first and second fits of one problem, with a cold and a warm kernel cache."""
    name, _ = PROBLEMS[row]
    load(name, options.scale, options.cache)  # generated here, not in a child
    with tempfile.TemporaryDirectory() as kernels:
        cold, *warm = [fresh(row, options, kernels) for _ in range(options.repeats + 1)]
    print(f"{row} scale 1/{options.scale}, {options.shards} shards: seconds, gap 1e-6 P(0)")
    for label, results in (("cold kernel cache", [cold]), ("warm kernel cache", warm)):
        print(f"  {label}")
        for part in ("import estimator", "first fit", "second fit"):
            print(f"    {part:<32}{spread(result[part] for result in results)}")
        extra = spread(
            result["import estimator"] + result["first fit"] - result["second fit"] for result in results
        )
        print(f"    {'import + first - second':<32}{extra}")


def fresh(row: str, options: argparse.Namespace, kernels: str) -> dict[str, float]:
    """Seconds of import, first and second fit in a new process whose numba cache is the folder `kernels`."""
    command = [sys.executable, __file__, "--child", row]
    command += ["--scale", str(options.scale), "--shards", str(options.shards)]
    command += ["--cache", str(options.cache)] if options.cache else []
    environment = os.environ | {"NUMBA_CACHE_DIR": kernels}
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(result.stdout)


def child(options: argparse.Namespace) -> dict[str, float]:
    """The inside of `fresh`; numpy and scipy are loaded before the clock starts, as the data needs them."""
    name, divisor = PROBLEMS[options.child]
    workload = load(name, options.scale, options.cache)
    alpha = lam_max(workload.X, workload.y) / divisor

    def importing():
        from daskstrads import Lasso

        return Lasso

    imported = timed(importing)

    def fit():
        model = imported.kept(alpha=alpha, fit_intercept=False, tol=5e-7, n_shards=options.shards)
        return model.fit(workload.X, workload.y)

    first, second = timed(fit), timed(fit)
    return {"import estimator": imported.wall, "first fit": first.wall, "second fit": second.wall}


if __name__ == "__main__":
    main()
