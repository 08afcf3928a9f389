"""Lasso against scikit-learn, celer, skglm and adelie at equal certified quality, and what the claims are.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/linear.py

(Both variables change which BLAS kernels run.) Rows are data/divisor, with alpha = lam_max / divisor, no
intercept; the gap is relative to P(0). Real data: see `--data`.

daskstrads runs on two cores (its own choice of ranks) and on one, with tol = gap / 2, scikit-learn's rule for
gap P(0). Every peer gets the loosest tol, on a ladder of factor 2 (adelie, whose tol is in squared units: 4),
whose certified gap is within the target; it is looked for in another process, kept in the cache folder, and a
peer that takes a minute for one call is given up. Then all take turns; times are whole `fit` calls, repeated
within a sample until it lasts 0.2 s; ratios are taken pair by pair. What does not certify is not counted.

Everybody gets X once, in the layout it works in: by columns (Fortran order, CSC) for the peers and for
daskstrads on wide data; by rows (C order, CSR) for daskstrads on tall data (n >= 8 p). Solvers by the Gram
matrix get Fortran order, where p <= 500; making the Gram matrix counts, converting counts for nobody and is
printed. Two threads: peers may use two as well (BLAS, OpenMP). One thread: peers whose other threads used
more than a tenth of the CPU time are timed again with one. A peer that takes five times as long as the
fastest is timed once. "passes" is each solver's own n_iter_, not the same work.

Without --only, --rss or --cluster everything runs; last comes what issue 4 claims, as reached or missed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from calibration import Calibrator, Tol, warm_up
from certificate import Certificate, certify
from problems import ROWS, Data, Source, alpha_of, fetch, missing
from solvers import OURS, PEERS, Solver
from timing import Sample, cores, paired, ratio, spread, timed

ONE_THREAD = 0.1  # of the CPU time: a call is one thread's if other threads used no more

SLOW = 5.0  # times the fastest peer: timed once

SAMPLE = 0.2  # seconds a sample lasts at least


class Contender(NamedTuple):
    """A solver, its tolerance and the threads it may use."""

    solver: Solver
    tol: float
    threads: int


class Outcome(NamedTuple):
    """What the claims are about: daskstrads over the fastest certified peer, and its own speed-up."""

    two: float
    one: float
    speedup: float


def main() -> None:
    """Run what is asked for."""
    options = parse()
    warnings.simplefilter("ignore")  # convergence is judged by the certificate alone
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"warning: {variable} is set; see the usage line in --help")
    source = Source(options.scale, options.cache, options.data)
    everything = not (options.only or options.rss or options.cluster)
    outcomes: dict[tuple[str, float], Outcome] = {}
    if everything or options.only:
        outcomes = compare(options.only or list(ROWS), source, options)
    measured: dict[str, float] = {}
    if everything or options.rss:
        measured |= memory(source, options.repeats)
    if everything or options.cluster:
        from linear_cluster import section

        measured |= section(source, options.repeats)
    from linear_claims import claims

    if source.scale > 1:
        print(f"\nsizes were divided by {source.scale}: the figures below say nothing about the claims")
    claims(outcomes, measured)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, help="pairs a row (default 5, --quick 2)")
    parser.add_argument("--only", action="append", metavar="ROW", help="such as C/200; repeatable")
    parser.add_argument("--gap", type=float, action="append", help="over P(0); default as in the table")
    parser.add_argument("--peer", action="append", choices=PEERS, help="repeatable; default all")
    parser.add_argument("--rss", action="store_true", help="memory beyond the data")
    parser.add_argument("--cluster", action="store_true", help="on two worker processes; needs dask-ml")
    parser.add_argument("--quick", action="store_true", help="smoke run: sizes divided by 50")
    parser.add_argument("--scale", type=int, help="divisor of the sizes (default 1)")
    parser.add_argument("--cache", type=Path, help="folder for generated data and tolerances")
    parser.add_argument("--data", type=Path, help="real data; default $DASKSTRADS_DATA, ../shared/data")
    parser.add_argument("--recalibrate", action="store_true", help="look for all tolerances anew")
    options = parser.parse_args()
    options.repeats = options.repeats or (2 if options.quick else 5)
    options.scale = options.scale or (50 if options.quick else 1)
    return options


def compare(rows: list[str], source: Source, options: argparse.Namespace) -> dict[tuple[str, float], Outcome]:
    """All rows against the peers that are installed."""
    peers = [PEERS[name] for name in options.peer or PEERS]
    for package in dict.fromkeys(peer.package for peer in peers):
        found = next(peer.version for peer in peers if peer.package == package)
        print(f"{package} {found or 'is NOT INSTALLED: left out'}")
    peers = [peer for peer in peers if peer.version]
    outcomes = {}
    warmed: set[str] = set()
    calibrator = Calibrator(source, options.recalibrate)
    for row in rows:
        name, _, divisor = row.partition("/")
        if why := missing(name, source):
            print(f"\n{row}: left out: {why}")
            continue
        data = fetch(name, source)
        able = [peer for peer in peers if data.layout(peer.layout) is not None]
        alpha = alpha_of(data, float(divisor))
        gaps = options.gap or ROWS.get(row, (1e-6,))
        print(f"\n{row}: looking for tolerances", flush=True)
        tolerances = timed(
            lambda: {gap: {peer.name: calibrator.tol(row, peer, gap) for peer in able} for gap in gaps}  # noqa: B023
        )
        print(f"  took {tolerances.wall:.1f} s; those found before are kept", flush=True)
        if data.kind not in warmed:
            warmed.add(data.kind)
            print(f"\n{data.kind}: first call in this process, tiny problem (imports, compilation)")
            for solver in [*OURS.values(), *able]:
                print(f"  {solver.name:<24}{warm_up(data.kind, solver, source.cache):8.2f} s")
        for gap, tols in tolerances.kept.items():
            n, p = data.X.shape
            print(f"\n{row}: {n} x {p}, alpha {alpha:.6g}, gap {gap:g} P(0), {options.repeats} pairs")
            if data.columns is not data.X:
                print(f"  the peers' layout was made in {data.converting:.2f} s, not counted")
            race = Race(data, alpha, gap, tols, options)
            for solver in able:
                if solver.name in race.lost:
                    calibrator.forget(row, solver, gap)
            outcome = race.report()
            if outcome:
                outcomes[row, gap] = outcome
    calibrator.close()
    return outcomes


class Race:
    """One problem, one gap: all contenders in turns."""

    def __init__(
        self, data: Data, alpha: float, gap: float, tols: dict[str, Tol], options: argparse.Namespace
    ):
        from threadpoolctl import ThreadpoolController

        self.data, self.alpha, self.gap, self.tols = data, alpha, gap, tols
        self.pools = ThreadpoolController()  # made once: finding the libraries takes milliseconds
        self.field = {
            solver.name: Contender(solver, solver.first_tol(data.X, data.y, alpha, gap), threads)
            for threads, solver in OURS.items()
        }
        self.ours = {contender.threads: name for name, contender in self.field.items()}
        for name, tol in tols.items():
            if tol.value is not None:
                self.field[name] = Contender(PEERS[name], tol.value, 2)
        self.samples = {name: [self.pilot(name)] for name in self.field}
        self.alone: dict[str, str] = {}
        for name in self.peers():
            if self.samples[name][0].others <= ONE_THREAD:
                self.alone[name] = name
                continue
            self.alone[name] = f"{name}, 1 thread"
            self.field[self.alone[name]] = self.field[name]._replace(threads=1)
            self.samples[self.alone[name]] = [self.pilot(self.alone[name])]
        pilots = {name: taken[0].wall for name, taken in self.samples.items()}
        quickest = min((pilots[name] for name in self.peers()), default=math.inf)
        again = [name for name in self.field if name in OURS_NAMES or pilots[name] <= SLOW * quickest]
        self.before = cores(2)
        lasts = SAMPLE / 10 if options.quick else SAMPLE
        self.samples |= paired(
            {name: self.call(name) for name in again},
            options.repeats,
            keep=kept,
            times={name: math.ceil(lasts / pilots[name]) for name in again},
            around=self.limited,
        )
        self.after = cores(2)
        self.worst = {name: self.certificate(name) for name in self.field}
        self.lost = [name for name in self.peers() if self.worst[name].relative > gap]

    def peers(self) -> list[str]:
        """Names of the contenders that are not ours."""
        return [name for name in self.field if name not in OURS_NAMES]

    def call(self, name: str) -> Any:
        """The fit of a contender."""
        solver, tol, threads = self.field[name]
        X, y = self.data.layout(solver.layout), self.data.y
        return lambda: solver.fit(X, y, self.alpha, tol, threads)

    def limited(self, name: str) -> Any:
        """A context in which BLAS and OpenMP use a contender's threads."""
        return self.pools.limit(limits=self.field[name].threads)

    def pilot(self, name: str) -> Sample:
        """One call, which tells how to time the others; it counts for a slow peer alone."""
        with self.limited(name):
            return timed(self.call(name), kept)

    def certificate(self, name: str) -> Certificate:
        """The worst of a contender's answers."""
        answers = (sample.kept[0] for sample in self.samples[name])
        return max((certify(self.data.X, self.data.y, coef, self.alpha) for coef in answers), key=_relative)

    def certified(self, names: list[str]) -> list[str]:
        """Those whose answers all certify."""
        return [name for name in names if self.worst[name].relative <= self.gap]

    def wall(self, name: str) -> float:
        """Median seconds."""
        return statistics.median(sample.wall for sample in self.samples[name])

    def over(self, mine: str, name: str) -> Any:
        """Our wall time over another's: pair by pair, else of medians."""
        if len(self.samples[mine]) == len(self.samples[name]):
            return ratio(self.samples[mine], self.samples[name])
        return f"{self.wall(mine) / self.wall(name):.3g}"

    def report(self) -> Outcome | None:
        """Print one line a contender and what the row says; None when nothing certified was compared."""
        print(f"  two busy threads got {self.before:.2f} cores before the timing, {self.after:.2f} after")
        titles = f"{'tol':>10}{'gap':>10}{'wall s':>30}{'cpu s':>8}{'support':>9}{'passes':>8}"
        print(f"  {'solver':<28}{titles}{'x2 / this':>24}{'x1 / this':>24}")
        single = {*self.alone.values(), self.ours[1]}
        for name, tol in self.tols.items():
            if tol.value is None:
                print(f"  {name:<28}NOT CERTIFIED, not counted: {tol.why}")
        for name, (_, value, _) in self.field.items():
            worst = self.worst[name]
            if worst.relative > self.gap:
                print(f"  {name:<28}NOT CERTIFIED, not counted: gap {worst.relative:.2e} at tol {value:.2e}")
                continue
            taken = self.samples[name]
            cpu = statistics.median(sample.cpu for sample in taken)
            ratios = [
                self.over(mine, name) if threads == 2 or name in single else ""
                for threads, mine in self.ours.items()
            ]
            print(
                f"  {name:<28}{value:>10.2e}{worst.relative:>10.1e}{spread(s.wall for s in taken)!s:>30}"
                f"{cpu:>8.3g}{worst.support:>9}{taken[0].kept[1]:>8}{ratios[0]!s:>24}{ratios[1]!s:>24}"
            )
        if len(self.certified(list(self.ours.values()))) < 2:
            print("  daskstrads DID NOT CERTIFY: the row counts as missed")
            return Outcome(math.inf, math.inf, 0.0)
        speedup = ratio(self.samples[self.ours[1]], self.samples[self.ours[2]])
        print(f"  speed-up of 2 ranks over 1: {speedup}")
        found = {2: self.fastest(2, self.peers()), 1: self.fastest(1, list(self.alone.values()))}
        if None in found.values():
            return None
        return Outcome(found[2], found[1], speedup.median)

    def fastest(self, threads: int, names: list[str]) -> float | None:
        """Print and return our ratio to the fastest of `names`, the median over pairs."""
        names = self.certified(names)
        if not names:
            print("  no peer certified")
            return None
        best, mine = min(names, key=self.wall), self.ours[threads]
        pairs = ratio(self.samples[mine], self.samples[best])
        medians = self.wall(mine) / self.wall(best)
        print(f"  {mine} over the fastest peer, {best}: {pairs}; of medians {medians:.3g}")
        return pairs.median


OURS_NAMES = {solver.name for solver in OURS.values()}


def kept(model: Any) -> tuple[Any, Any]:
    """What is needed of an answer."""
    return model.coef_, model.n_iter_


def _relative(certificate: Certificate) -> float:
    return certificate.relative


def memory(source: Source, repeats: int) -> dict[str, float]:
    """Growth of the resident memory over the size of B, in fresh processes."""
    from rss import growth

    print("\nmemory: growth of the resident memory in a fit, over the size of X, after a warm-up")
    found = {}
    for row in ("B/10", "B/50"):
        fetch("B", source)  # generated here, not in a child
        found[row] = spread(growth(row, source, min(repeats, 3)))
        print(f"  {row}: {found[row]}", flush=True)
    return {"rss": max(each.median for each in found.values())}


if __name__ == "__main__":
    main()
