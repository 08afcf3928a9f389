"""Lasso with its workers in Slurm jobs, which dask-jobqueue submits.

pip install dask-jobqueue
python examples/slurm_lasso.py [--jobs 2] [--cores 1] [--memory 2GiB] [--queue NAME] [--interface NAME] ...

Start it on a machine that has `sbatch` and that the nodes can reach, such as a login node. What to change for
a cluster: `--queue` is its partition, `--interface` the network its nodes share (often ib0), `--cores` and
`--memory` are a job's. In `main`, give SLURMCluster what the site wants besides (`account="..."`, a longer
`walltime`, `job_script_prologue=["module load ..."]`), and make X and y dask arrays of your data. The nodes
need this Python environment on a shared file system, and must reach each other's ports above 1023.
"""

import argparse
import shutil
import sys
import time

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, wait
from dask_jobqueue import SLURMCluster

from daskstrads import Lasso


def main(options: argparse.Namespace) -> None:
    """Submit the jobs, fit on them, check the answer."""
    if shutil.which("sbatch") is None:
        sys.exit("there is no sbatch on this machine: run this where Slurm jobs can be submitted")
    with (
        SLURMCluster(
            queue=options.queue,
            cores=options.cores,
            processes=1,  # of a job: its cores are threads, one rank each
            memory=options.memory,
            walltime="00:30:00",
            interface=options.interface,
            scheduler_options={"dashboard_address": ":0"},  # the usual port may be another user's
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=options.jobs)
        print("waiting for the jobs: squeue lists them, their logs are in slurm-*.out", flush=True)
        start = time.perf_counter()
        client.wait_for_workers(options.jobs, timeout=options.wait)
        ranks = sum(client.nthreads().values())
        print(f"jobs: {options.jobs}, ranks: {ranks}, there after {time.perf_counter() - start:.0f} s")

        X, y = problem(options.rows, options.features)
        X, y = dask.persist(X, y)  # made in the jobs, where it stays
        wait([X, y])
        for turn in "first fit, kernels compiled or loaded", "second fit":
            start = time.perf_counter()
            model = Lasso(alpha=0.05, tol=1e-6).fit(X, y)
            print(f"{turn}: {time.perf_counter() - start:.2f} s")
        spread = float(y.var())
        if options.compare:
            X, y = dask.compute(X, y)
    found = np.flatnonzero(model.coef_)
    print(f"{len(found)} of {options.features} coefficients in use, the first {model.coef_[:8].round(2)}")
    print(f"gap / P(0): {model.dual_gap_ / (0.5 * spread):.1e} after {model.n_iter_} passes")
    if options.compare:  # the client is gone: this one runs in threads
        here = Lasso(alpha=0.05, tol=1e-6, n_shards=ranks).fit(X, y)
        print(f"coefficients that differ from a fit here: {np.count_nonzero(here.coef_ != model.coef_)}")


def problem(rows: int, features: int):
    """Random data as dask arrays; y depends on the first five columns."""
    rng = da.random.default_rng(0)
    X = rng.standard_normal((rows, features), chunks=(-(-rows // 8), features))
    return X, X[:, :5].sum(axis=1) + rng.standard_normal(rows, chunks=X.chunks[0])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fits Lasso on workers in Slurm jobs.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of a job")
    parser.add_argument("--memory", default="2GiB", help="of a job")
    parser.add_argument("--queue", help="Slurm's partition; default: the cluster's default")
    parser.add_argument(
        "--interface", help="network of scheduler and jobs; default: that of the default route"
    )
    parser.add_argument("--wait", type=float, default=600, help="seconds that the jobs may stay queued")
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--features", type=int, default=5_000)
    parser.add_argument(
        "--compare", action="store_true", help="fit in this process as well; X must fit in it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())
