"""Lasso against scikit-learn, skglm and celer, at equal certified quality.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/lasso.py

(Both variables change which BLAS kernels run.) Rows are workload/divisor, with alpha = lam_max / divisor.
daskstrads runs on two ranks (threads) and on one, with tol = gap / 2: scikit-learn's stopping rule for
gap * P(0). Every peer gets the loosest tol, on a ladder of factor 2, whose certified gap is within the
target. Then all take turns; times are whole `fit` calls; ratios are taken pair by pair. A solution that
does not certify is not counted. "passes" is each solver's own n_iter_, not the same work.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from certificate import Certificate, certify
from solvers import OURS, PEERS, Solver, calibrate
from timing import Sample, cores, paired, ratio, spread, timed
from workloads import Workload, lam_max, load

ROWS = ("A/20", "B/10", "B/50")
DEFAULT_PEERS = ("scikit-learn", "skglm", "skglm p0=1000")
TINY = {"A": 40, "B": 200, "C": 500, "D": 2_000}  # scale of the warm-up problem: same layout, no work


def main() -> None:
    """Run the rows asked for."""
    options = parse()
    solvers = [] if options.peers_only else list(OURS.values())
    solvers += [PEERS[name] for name in options.peer or DEFAULT_PEERS]
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; see the usage line in --help")
    warmed: set[str] = set()
    for row in options.only or ROWS:
        name, _, divisor = row.partition("/")
        if name not in warmed:
            warmed.add(name)
            warm_up(name, solvers, options.cache)
        workload = load(name, options.scale, options.cache)
        alpha = lam_max(workload.X, workload.y) / float(divisor)
        for gap in (1e-6, 1e-8) if options.tight else (1e-6,):
            n, p = workload.X.shape
            print(f"\n{row}: {n} x {p}, alpha {alpha:.6g}, target gap {gap:g} P(0), {options.repeats} pairs")
            compare(workload, alpha, gap, solvers, options.repeats)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=None, help="pairs a row (default 5, --quick 2)")
    parser.add_argument("--only", action="append", metavar="ROW", help="such as B/50 or C/200; repeatable")
    parser.add_argument("--tight", action="store_true", help="also at gap 1e-8 P(0)")
    parser.add_argument("--peer", action="append", choices=PEERS, help="repeatable; default all but celer")
    parser.add_argument("--peers-only", action="store_true", help="without daskstrads")
    parser.add_argument("--quick", action="store_true", help="smoke run: sizes divided by 10")
    parser.add_argument("--scale", type=int, default=None, help="divisor of the sizes (default 1)")
    parser.add_argument("--cache", type=Path, help="folder for generated data")
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 5)
    options.scale = options.scale or (10 if options.quick else 1)
    return options


def warm_up(name: str, solvers: list[Solver], cache: Path | None) -> None:
    """First call of each solver in this process, on a tiny problem: imports and compilation, not counted."""
    tiny = load(name, TINY[name], cache)
    alpha = lam_max(tiny.X, tiny.y) / 5
    print(f"\n{name}: first call in this process, tiny problem (imports, compilation or its cache)")
    for solver in solvers:
        first = timed(lambda solver=solver: solver.fit(tiny.X, tiny.y, alpha, 1e-6))
        print(f"  {solver.name:<16}{first.wall:8.2f} s")


def compare(workload: Workload, alpha: float, gap: float, solvers: list[Solver], repeats: int) -> None:
    """Calibrate, time in turns, certify, print: one problem, one target."""
    X, y = workload.X, workload.y
    tols = {solver.name: calibrate(solver, X, y, alpha, gap) for solver in solvers}
    calls = {
        solver.name: (lambda fit=solver.fit, tol=tols[solver.name]: fit(X, y, alpha, tol))
        for solver in solvers
        if tols[solver.name] is not None
    }
    before = cores(2)
    samples = paired(calls, repeats, keep=lambda model: (model.coef_, model.n_iter_))
    print(f"  two busy threads got {before:.2f} cores before the timing, {cores(2):.2f} after")
    worst = {
        name: max((certify(X, y, sample.kept[0], alpha) for sample in taken), key=lambda c: c.relative)
        for name, taken in samples.items()
    }
    table(tols, samples, worst, gap)


def table(
    tols: dict[str, float | None],
    samples: dict[str, list[Sample]],
    worst: dict[str, Certificate],
    gap: float,
) -> None:
    """One line a solver; `worst` holds the least good certificate of its repetitions."""
    ours = {shards: solver.name for shards, solver in OURS.items() if solver.name in samples}
    titles = "".join(f"{f'x{shards} / this':>24}" for shards in ours)
    columns = f"{'tol':>10}{'gap':>10}{'wall s':>28}{'cpu s':>8}{'support':>9}{'passes':>8}"
    print(f"  {'solver':<16}{columns}{titles}")
    for name, tol in tols.items():
        if tol is None or worst[name].relative > gap:
            reached = "" if tol is None else f"; gap {worst[name].relative:.2e} at tol {tol:.2e}"
            print(f"  {name:<16}NOT CERTIFIED{reached}: not counted")
            continue
        taken = samples[name]
        wall = spread(sample.wall for sample in taken)
        cpu = spread(sample.cpu for sample in taken).median
        ratios = "".join(
            f"{str(ratio(samples[mine], taken)) if worst[mine].relative <= gap else 'not certified':>24}"
            for mine in ours.values()
        )
        certificate = worst[name]
        print(
            f"  {name:<16}{tol:>10.2e}{certificate.relative:>10.1e}{wall!s:>28}{cpu:>8.2f}"
            f"{certificate.support:>9}{taken[0].kept[1]:>8}{ratios}"
        )


if __name__ == "__main__":
    main()
