"""The part of the Lasso benchmark that runs on two worker processes of this machine.

Against dask-ml's LinearRegression(penalty="l1"), data in row chunks on the workers. dask-ml minimises
||y - Xw||^2 + ||w||_1 / C: the same problem with C = 1 / (2 n alpha), its own standardisation off. Its
solvers for l1 run with their default stopping rules; ADMM also with rho = n, which suits the problem better,
and with that and a tight rule. Each has ten minutes; of those that come back, the one with the smallest
certified gap counts. It takes no sparse blocks: on a tiny C that is shown, and then both get C at a tenth of
the size, dask-ml as dense blocks. And against this process on two threads: the `fits` of cluster.py.
"""

from __future__ import annotations

import importlib.util
import statistics
import threading
from concurrent.futures import CancelledError
from typing import Any

import cluster
import numpy as np
from certificate import certify
from distributed import futures_of, wait
from problems import Source
from timing import Sample, timed
from workloads import TINY, lam_max, load

LIMIT = 60.0  # seconds for one fit of dask-ml: a hundred times what ours take

DENSE_SCALE = 10  # divisor of C's sizes at which its dense form fits: 2 GB


def arms(n: int) -> dict[str, dict]:
    """Settings of dask-ml for n rows."""
    return {
        "proximal_grad": {"solver": "proximal_grad"},
        "admm": {"solver": "admm"},
        "admm rho=n": {"solver": "admm", "solver_kwargs": {"rho": float(n)}},
        "admm rho=n tight": {
            "solver": "admm",
            "solver_kwargs": {"rho": float(n), "abstol": 1e-8, "reltol": 1e-6},
        },
    }


def section(source: Source, repeats: int) -> dict[str, float]:
    """Both comparisons: dask-ml's time over ours, and workers over threads, by claim."""
    effort = cluster.Effort(repeats, source.scale, source.cache, source.scale > 1)
    print(f"\non two worker processes\n{'section':<9}{'median [min..max]':<62}{'':<32}{'to reach':>10}")
    threads = cluster.fits(effort, cluster.THERE)
    found = {f"workers {row.partition(',')[0]}": value for row, value in threads.items()}
    if importlib.util.find_spec("dask_ml") is None:
        print("dask-ml is NOT INSTALLED: left out")
        return found
    for name, scale in (("D", source.scale), ("C", max(source.scale, DENSE_SCALE))):
        times = against_dask_ml(name, scale, effort)
        if times is not None:
            found[f"dask-ml {name}"] = times
    return found


def against_dask_ml(name: str, scale: int, effort: cluster.Effort) -> float | None:
    """Print both sides' seconds and gaps on name/20; dask-ml's time over ours, None if it never came back."""
    workload = load(name, scale, effort.cache)
    alpha = lam_max(workload.X, workload.y) / 20
    n, p = workload.X.shape
    print(f"dask-ml  {name}/20 with sizes / {scale}: {n} x {p}, row chunks on 2 workers")
    with cluster.workers(2, 1) as client:
        cluster.warm_up(client, name, effort.cache, "row")
        X, y = cluster.placed(client, name, scale, effort.cache, "row", 2)
        mine = [timed(lambda: cluster.fit(client, X, y, alpha)) for _ in range(effort.repeats)]
    ours = statistics.median(sample.wall for sample in mine)
    notes = {cluster.certified(workload, sample.kept.coef_, alpha) for sample in mine}
    print(f"{'':<9}{'daskstrads':<62}{ours:<10.3g}s  {', '.join(sorted(notes))}", flush=True)
    if name == "C":
        sparse_blocks(effort)
    told = []
    for arm, settings in arms(n).items():
        with cluster.workers(2, 1) as client:
            X, y = cluster.placed(client, name, scale, effort.cache, "row", 2)
            if name == "C":
                X = client.persist(X.map_blocks(lambda block: block.toarray(), meta=np.empty((0, 0))))
                with client.as_current():
                    wait(futures_of(X))
            fitted = dask_ml(client, X, y, alpha, settings, 5.0 if effort.quick else LIMIT)
        if isinstance(fitted, str):
            print(f"{'':<9}{f'dask-ml, {arm}':<62}{fitted}", flush=True)
            continue
        gap = certify(workload.X, workload.y, fitted.kept.coef_, alpha).relative
        told.append((float(gap), fitted.wall))
        print(f"{'':<9}{f'dask-ml, {arm}':<62}{fitted.wall:<10.3g}s  gap {gap:.1e}", flush=True)
    if not told:
        return None
    gap, seconds = min(told)
    print(f"{'':<9}dask-ml's time at its smallest gap, {gap:.1e}, over daskstrads': {seconds / ours:.3g}")
    return seconds / ours


def sparse_blocks(effort: cluster.Effort) -> None:
    """Print what dask-ml says to CSR blocks: of a tiny C, as ADMM makes rows x nonzeros of them first."""
    tiny = load("C", TINY["C"], effort.cache)
    alpha = lam_max(tiny.X, tiny.y) / 20
    for arm in ("proximal_grad", "admm"):
        with cluster.workers(2, 1) as client:
            X, y = cluster.placed(client, "C", TINY["C"], effort.cache, "row", 2)
            said = dask_ml(client, X, y, alpha, arms(len(tiny.y))[arm], 60.0)
        what = f"dask-ml, {arm}, CSR blocks of C / {TINY['C']}"
        print(f"{'':<9}{what:<62}{said if isinstance(said, str) else 'works'}", flush=True)


def dask_ml(client: Any, X: Any, y: Any, alpha: float, settings: dict, limit: float) -> Sample | str:
    """One fit of dask-ml, or why there is none; the client is closed when it takes longer than `limit`."""
    from dask_ml.linear_model import LinearRegression

    options = {"normalize": False} | settings.get("solver_kwargs", {})
    penalty = {"penalty": "l1", "C": 1 / (2 * X.shape[0] * alpha), "fit_intercept": False}
    model = LinearRegression(**penalty, **(settings | {"solver_kwargs": options}))
    late = threading.Event()

    def stop() -> None:
        late.set()
        client.close()

    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        with client.as_current():
            return timed(lambda: model.fit(X, y))
    except (Exception, CancelledError) as failure:  # whatever it is, it is the finding
        said = f"{type(failure).__name__}: {[*str(failure).splitlines(), ''][0][:90]}"
        return f"stopped after {limit:.0f} s" if late.is_set() else said
    finally:
        timer.cancel()
