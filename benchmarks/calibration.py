"""The loosest tolerance at which a peer's answer certifies, found in a process that can be stopped.

A compiled solver that does not come back cannot be interrupted, so trials run in a child process, which is
ended when a call takes too long: that peer is then given up on that row. Tolerances are kept in
calibration.json in the cache folder, by data set, divisor, gap, peer and version.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from certificate import certify
from problems import Source, alpha_of, fetch
from solvers import PEERS, Solver
from timing import timed
from workloads import TINY, default_cache, lam_max, load

RUNGS = 29

LIMIT = 60.0  # seconds a call

COMPILING = 90.0  # seconds more for the first call of a peer in the child


class Tol(NamedTuple):
    """A tolerance, or None and why there is none."""

    value: float | None
    why: str = ""


class Calibrator:
    """Looks tolerances up and finds those that are missing; `again`: finds all anew."""

    def __init__(self, source: Source, again: bool = False):
        self.source = source
        self.file = Path(source.cache or default_cache()) / "calibration.json"
        self.known: dict[str, list] = {}
        if self.file.exists():
            self.known = json.loads(self.file.read_text())
        self.again = again
        self.fresh: set[str] = set()
        self.child: subprocess.Popen | None = None
        self.called: set[tuple[str, str]] = set()

    def key(self, row: str, solver: Solver, target: float) -> str:
        """What a tolerance is kept under."""
        name, _, divisor = row.partition("/")
        return f"{name}-{self.source.scale}/{divisor} {target:g} {solver.name} {solver.version}"

    def tol(self, row: str, solver: Solver, target: float) -> Tol:
        """Loosest rung of the ladder whose relative gap is at most `target`, as far as is known or found."""
        data = fetch(row.partition("/")[0], self.source)
        X, divisor = data.layout(solver.layout), float(row.partition("/")[2])
        first = solver.first_tol(X, data.y, alpha_of(data, divisor), target)
        if solver.rule:
            return Tol(first)
        key = self.key(row, solver, target)
        if key not in self.known or (self.again and key not in self.fresh):
            self.keep(key, self.search(row, solver, first, target))
        return Tol(*self.known[key])

    def search(self, row: str, solver: Solver, first: float, target: float) -> Tol:
        """The ladder: every fourth rung from the loosest on, then bisection between the last two.

        A rung on which the peer fails or takes too long counts as too tight.
        """
        lower = -1
        for upper in range(0, RUNGS, 4):
            gap, why = self.trial(row, solver, first / solver.step**upper)
            if why or gap <= target:
                break
            lower = upper
        else:
            return Tol(None, f"gap {gap:.1e} at tol {first / solver.step**upper:.1e}, the tightest tried")
        told = why
        best = None if why else upper
        while upper - lower > 1:
            middle = (lower + upper) // 2
            gap, why = self.trial(row, solver, first / solver.step**middle)
            if why or gap <= target:
                upper, told = middle, told or why
                best = best if why else middle
            else:
                lower = middle
        return Tol(None, told) if best is None else Tol(first / solver.step**best)

    def keep(self, key: str, tol: Tol) -> None:
        """Store a tolerance."""
        self.known[key] = list(tol)
        self.fresh.add(key)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.known, indent=1))

    def forget(self, row: str, solver: Solver, target: float) -> None:
        """Look for this one anew next time."""
        if self.known.pop(self.key(row, solver, target), None):
            self.file.write_text(json.dumps(self.known, indent=1))

    def trial(self, row: str, solver: Solver, tol: float) -> tuple[float, str]:
        """(relative gap, why the peer is given up or nothing) of one call in the child."""
        name, _, divisor = row.partition("/")
        kind = fetch(name, self.source).kind
        pipe = self.child or self.start()
        limit = LIMIT + (0.0 if (solver.name, kind) in self.called else COMPILING)
        self.called.add((solver.name, kind))
        asked = {"name": name, "divisor": float(divisor), "peer": solver.name, "tol": tol}
        pipe.stdin.write(json.dumps(asked).encode() + b"\n")
        pipe.stdout.readline()  # the child has the data: reading them does not count
        late = not select.select([pipe.stdout], [], [], limit)[0]
        reply = b"" if late else pipe.stdout.readline()
        if not reply:
            self.close()
            why = (
                f"more than {limit:.0f} s in one call"
                if late
                else f"its process ended, status {pipe.returncode}"
            )
            return float("inf"), f"{why} at tol {tol:.1e}: given up"
        gap, seconds, why = json.loads(reply)
        if seconds > LIMIT:
            why = f"{seconds:.0f} s in one call at tol {tol:.1e}: given up"
        return gap, why

    def start(self) -> Any:
        """Start the child."""
        places = [str(path) if path else None for path in self.source[1:]]
        command = [sys.executable, __file__, json.dumps([self.source.scale, *places])]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.called.clear()
        return self.child

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.child = None


def warm_up(kind: str, solver: Solver, cache: Path | None, threads: int = 2) -> float:
    """Seconds of a solver's call on a tiny problem of the types of `kind`: imports, compilation."""
    tiny = load(kind, TINY[kind], cache)
    X = tiny.X
    if solver.layout != "ours":
        X = X.tocsc() if hasattr(X, "tocsc") else X.copy(order="F")
    if solver.layout == "dense" and hasattr(X, "toarray"):
        X = X.toarray(order="F")
    return timed(lambda: solver.fit(X, tiny.y, lam_max(X, tiny.y) / 5, 1e-6, threads)).wall


def child() -> None:
    """Answer questions, one a line, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a solver prints is no answer
    warnings.simplefilter("ignore")
    scale, cache, folder = json.loads(sys.argv[1])
    source = Source(scale, cache and Path(cache), folder and Path(folder))
    warm: set[tuple[str, str]] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        data, solver = fetch(asked["name"], source), PEERS[asked["peer"]]
        answers.write("ready\n")
        alpha, X = alpha_of(data, asked["divisor"]), data.layout(solver.layout)
        try:
            if (solver.name, data.kind) not in warm:
                warm_up(data.kind, solver, source.cache, 1)
                warm.add((solver.name, data.kind))
            sample = timed(lambda: solver.fit(X, data.y, alpha, asked["tol"], 1))  # noqa: B023
        except Exception as failure:  # whatever it is, it is the answer
            why = f"{type(failure).__name__}: {failure}"[:200]
            answers.write(json.dumps([float("inf"), 0.0, why]) + "\n")
            continue
        gap = certify(data.X, data.y, sample.kept.coef_, alpha).relative
        answers.write(json.dumps([float(gap), sample.wall, ""]) + "\n")


if __name__ == "__main__":
    child()
