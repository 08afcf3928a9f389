"""Synthetic sparse-regression problems A to D, made once from fixed seeds and kept on disk.

A  dense 2 000 x 20 000, neighbouring columns correlated (AR(1), 0.5), float64 in F order
B  sparse 50 000 x 1 000 000, 25 nonzeros a column, neighbouring columns correlated (STRADS), float64 CSC
C  tall sparse 500 000 x 50 000, 50 draws a row, Zipf column frequencies, float64 CSR
D  tall dense 1 000 000 x 200, AR(1) 0.5, float64 in C order

`scale` divides the sizes. C and D also carry labels in {-1, +1} for logistic regression.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.signal import lfilter

TINY = {"A": 40, "B": 200, "C": 500, "D": 2_000}
"""Scale of the problem to warm up on: the same types and layout, no work."""


@dataclass(frozen=True)
class Workload:
    """A regression problem: X (n x p), y (n), the coefficients behind y (p), and labels (n) or None."""

    X: np.ndarray | sp.csc_matrix | sp.csr_matrix
    y: np.ndarray
    truth: np.ndarray
    labels: np.ndarray | None = None


def default_cache() -> Path:
    """Folder for generated data: DASKSTRADS_BENCH_CACHE, else daskstrads-bench in the user's cache folder."""
    named = os.environ.get("DASKSTRADS_BENCH_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "daskstrads-bench"


def load(name: str, scale: int = 1, cache: Path | None = None) -> Workload:
    """Workload `name` with its sizes divided by `scale`, generated on first use."""
    return _read(folder(name, scale, cache))


def folder(name: str, scale: int = 1, cache: Path | None = None) -> Path:
    """Where a workload's arrays are, one .npy file each; generated on first use."""
    if name not in MAKERS:
        raise ValueError(f"no workload {name!r}; there are {', '.join(MAKERS)}")
    path = Path(cache or default_cache()) / f"{name}-{scale}"
    if not path.is_dir():
        _write(MAKERS[name](scale), path)
    return path


def lam_max(X, y) -> float:
    """Smallest alpha whose Lasso solution is zero: max_j |x_j'y| / n."""
    return float(np.abs(X.T @ y).max()) / X.shape[0]


def make_a(scale: int = 1) -> Workload:
    """Dense and wide."""
    n, p, k = 2_000 // scale, 20_000 // scale, 100 // scale
    rng = np.random.default_rng(1)
    X = np.empty((n, p), order="F")
    _fill_ar1(rng, X, rho=0.5, rows=250)
    truth = _support(rng, p, k)
    y, _ = _respond(rng, X, truth, snr=3.0)
    return Workload(X, y, truth)


def make_b(scale: int = 1) -> Workload:
    """Sparse and wide; one column in ten has its left neighbour's rows and a tenth of its values."""
    n, p, k, per = 50_000 // scale, 1_000_000 // scale, 1_000 // scale, 25
    rng = np.random.default_rng(2)
    stratum = n // per  # one row a stratum: rows of a column come out distinct and sorted
    rows = np.empty((p, per), np.int32)
    values = np.empty((p, per))
    for block in _blocks(p, 100_000):
        rows[block] = rng.integers(0, stratum, rows[block].shape, dtype=np.int32)
        values[block] = rng.random(values[block].shape)
    rows += np.arange(0, per * stratum, stratum, dtype=np.int32)

    copies = np.flatnonzero(rng.random(p) < 0.1)
    copies = copies[copies > 0]
    # A copy of a copy needs its source finished: go by the position in each run of adjacent copies.
    order = np.arange(copies.size)
    starts = np.diff(copies, prepend=-1) > 1
    depth = order - np.maximum.accumulate(np.where(starts, order, 0))
    for level in range(depth.max(initial=-1) + 1):
        j = copies[depth == level]
        rows[j] = rows[j - 1]
        values[j] = 0.1 * values[j - 1] + 0.9 * values[j]

    indptr = np.arange(0, p * per + 1, per, dtype=np.int32)
    X = sp.csc_matrix((values.ravel(), rows.ravel(), indptr), shape=(n, p))
    truth = _support(rng, p, k)
    y, _ = _respond(rng, X, truth, snr=5.0)
    return Workload(X, y, truth)


def make_c(scale: int = 1) -> Workload:
    """Sparse and tall; half of the true support lies among the 1 000 most frequent columns."""
    n, p, k, per = 500_000 // scale, 50_000 // scale, 500 // scale, 50
    rng = np.random.default_rng(3)
    frequency = 1.0 / (np.arange(p) + 10.0)
    cumulative = np.cumsum(frequency / frequency.sum())
    columns = np.empty((n, per), np.int32)
    values = np.empty((n, per))
    for block in _blocks(n, 50_000):
        drawn = np.searchsorted(cumulative, rng.random(columns[block].shape))
        columns[block] = np.minimum(drawn, p - 1)  # the last cumulative frequency may be just below 1
        values[block] = 0.5 + rng.random(values[block].shape)
    indptr = np.arange(0, n * per + 1, per, dtype=np.int32)
    X = sp.csr_matrix((values.ravel(), columns.ravel(), indptr), shape=(n, p))
    X.sum_duplicates()

    frequent = rng.choice(min(1_000, p), k // 2, replace=False)
    anywhere = rng.choice(p, k - k // 2, replace=False)
    support = np.union1d(frequent, anywhere)
    truth = np.zeros(p)
    truth[support] = rng.standard_normal(support.size)
    y, signal = _respond(rng, X, truth, snr=2.0)
    return Workload(X, y, truth, _label(rng, 2.0 * (signal - signal.mean()) / np.std(signal)))


def make_d(scale: int = 1) -> Workload:
    """Dense and tall; `scale` divides the rows alone."""
    n, p, k = 1_000_000 // scale, 200, 20
    rng = np.random.default_rng(4)
    X = np.empty((n, p))
    _fill_ar1(rng, X, rho=0.5, rows=50_000)
    truth = _support(rng, p, k)
    y, signal = _respond(rng, X, truth, snr=2.0)
    return Workload(X, y, truth, _label(rng, 2.0 * signal / np.std(signal)))


MAKERS = {"A": make_a, "B": make_b, "C": make_c, "D": make_d}


def _blocks(length: int, step: int):
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _fill_ar1(rng, X, rho: float, rows: int) -> None:
    """Fill X with unit-variance Gaussians whose columns i and j have correlation rho^|i-j|."""
    for block in _blocks(X.shape[0], rows):
        noise = rng.standard_normal(X[block].shape)
        noise[:, 1:] *= np.sqrt(1 - rho**2)
        X[block] = lfilter([1.0], [1.0, -rho], noise, axis=1)


def _support(rng, p: int, k: int) -> np.ndarray:
    values = rng.standard_normal(k)
    truth = np.zeros(p)
    truth[rng.choice(p, k, replace=False)] = values
    return truth


def _respond(rng, X, truth, snr: float) -> tuple[np.ndarray, np.ndarray]:
    """(y, signal): the signal X truth, and y with noise of 1/snr of its standard deviation added."""
    signal = X @ truth
    return signal + rng.standard_normal(signal.size) * np.std(signal) / snr, signal


def _label(rng, logit) -> np.ndarray:
    return np.where(rng.random(logit.size) < 1 / (1 + np.exp(-logit)), 1.0, -1.0)


def _write(workload: Workload, folder: Path) -> None:
    arrays = {"y": workload.y, "truth": workload.truth}
    if workload.labels is not None:
        arrays["labels"] = workload.labels
    if sp.issparse(workload.X):
        arrays |= {part: getattr(workload.X, part) for part in ("data", "indices", "indptr")}
        arrays["shape"] = np.array(workload.X.shape)
        arrays[workload.X.format] = np.empty(0)  # an empty file whose name is the format
    else:
        arrays["X"] = workload.X
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: an interrupted run leaves no half-written workload behind.
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for key, array in arrays.items():
            np.save(partial / f"{key}.npy", array)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(folder: Path) -> Workload:
    arrays = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    if "X" in arrays:
        X = arrays["X"]
    else:
        matrix = sp.csc_matrix if "csc" in arrays else sp.csr_matrix
        X = matrix(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(map(int, arrays["shape"]))
        )
        X.has_canonical_format = True  # sorted and distinct: spares every solver the check
    return Workload(X, arrays["y"], arrays["truth"], arrays.get("labels"))
