"""Other factorisations of the same ratings: cmfrec, libmf and Spark; each returns seconds and both factors.

All minimise sum e^2 + reg sum n_u ||x||^2 + reg sum n_i ||y||^2 over ratings less their mean, without
biases, with two threads. libmf's penalty is half as large per rating of a user and of an item: the same
sum, so it gets `reg`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

THREADS = 2


class Fit(NamedTuple):
    """Seconds of a fit, user factors (users, k) and item factors (items, k)."""

    seconds: float
    users: np.ndarray
    items: np.ndarray


def cmfrec(train: sp.csr_array, k: int, reg: float, sweeps: int) -> Fit:
    """cmfrec's ALS with three steps of conjugate gradients, no Cholesky in the end."""
    from cmfrec import CMF

    model = CMF(
        k=k, lambda_=reg, method="als", use_cg=True, max_cg_steps=3, finalize_chol=False, niter=sweeps,
        scale_lam=True, user_bias=False, item_bias=False, center=False, nthreads=THREADS, use_float=True,
        verbose=False, precompute_for_predictions=False, random_state=1,
    )  # fmt: skip
    data = sp.coo_matrix(train)
    began = time.perf_counter()
    model.fit(data)
    return Fit(time.perf_counter() - began, model.A_, model.B_)


def libmf(train: sp.csr_array, k: int, reg: float, sweeps: int) -> Fit:
    """libmf's SGD in blocks, from arrays: it reads no text."""
    from libmf import mf

    data = train.tocoo()
    triples = np.column_stack([data.row, data.col, data.data]).astype(np.float32)
    model = mf.MF(
        k=k, nr_threads=THREADS, nr_iters=sweeps, lambda_p1=0.0, lambda_q1=0.0, lambda_p2=reg, lambda_q2=reg,
        eta=0.1, quiet=True,
    )  # fmt: skip
    began = time.perf_counter()
    model.fit(triples)
    seconds = time.perf_counter() - began
    # Who has no rating has factors of nan.
    return Fit(seconds, np.nan_to_num(model.p_factors()), np.nan_to_num(model.q_factors()))


def spark(train: sp.csr_array, k: int, reg: float, sweeps: int) -> Fit:
    """Spark's ALS in local mode; only `fit`, with the data cached and its count known, is timed."""
    import pandas as pd
    from pyspark.ml.recommendation import ALS
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(f"local[{THREADS}]")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.driver.maxResultSize", "4g")
        .getOrCreate()
    )
    try:
        session.sparkContext.setLogLevel("ERROR")
        data = train.tocoo()
        frame = session.createDataFrame(
            pd.DataFrame({"user": data.row, "item": data.col, "rating": data.data})
        ).repartition(THREADS)
        frame = frame.cache()
        frame.count()
        als = ALS(
            rank=k, maxIter=sweeps, regParam=reg, userCol="user", itemCol="item", ratingCol="rating", seed=0
        )
        als = als.setNumBlocks(THREADS).setCheckpointInterval(-1)
        began = time.perf_counter()
        model = als.fit(frame)
        seconds = time.perf_counter() - began
        factors = []
        for table, length in (model.userFactors, train.shape[0]), (model.itemFactors, train.shape[1]):
            rows = table.toPandas()
            found = np.zeros((length, k), np.float32)
            found[rows["id"].to_numpy()] = np.stack(rows["features"].to_numpy())
            factors.append(found)
    finally:
        session.stop()
    return Fit(seconds, *factors)


PEERS: dict[str, Callable[[sp.csr_array, int, float, int], Fit]] = {
    "cmfrec": cmfrec,
    "libmf": libmf,
    "spark": spark,
}


def installed(name: str) -> bool:
    """Whether the peer's package is here."""
    return importlib.util.find_spec("pyspark" if name == "spark" else name) is not None
