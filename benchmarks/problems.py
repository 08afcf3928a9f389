"""The rows of the Lasso benchmark: generated workloads and real data, in the layouts the solvers work in.

A row is name/divisor: alpha = lam_max / divisor. Real data are .npz files in the folder `--data`, else
$DASKSTRADS_DATA, else ../shared/data beside the repository's folder; they are never copied.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from workloads import lam_max, load

REAL = {
    "golub": ("golub.npz", "A"),
    "alon": ("alon.npz", "A"),
    "rcv1_small": ("rcv1_small_train.npz", "B"),
    "a9a": ("a9a.npz", "C"),
    "w8a": ("w8a.npz", "C"),
    "hockey_full": ("hockey_full.npz", "C"),
}
"""File of each real set, and the workload that has its types and layout."""

ROWS = {
    "A/20": (1e-6, 1e-8),
    **dict.fromkeys(("B/10", "B/50", "C/20", "C/200", "D/20"), (1e-6,)),
    **{f"{name}/{divisor}": (1e-6,) for name in REAL for divisor in (10, 100)},
}
"""The rows of the table and the gaps to reach, over P(0)."""

TALL = 8  # rows a column from which daskstrads splits rows: its README

GRAM = 500  # columns up to which a p x p Gram matrix of a dense X is a sensible way


class Data(NamedTuple):
    """One data set: X for daskstrads, the same by columns and (where it pays) dense, for the others."""

    X: Any
    y: np.ndarray
    columns: Any  # Fortran order or CSC
    dense: np.ndarray | None  # Fortran order, for solvers by the Gram matrix; None: they are left out
    kind: str  # the generated workload with the same types
    converting: float  # seconds that making `columns` took: counted for nobody

    def layout(self, name: str) -> Any:
        """X as a solver wants it: "ours", "columns" or "dense"."""
        return self.X if name == "ours" else getattr(self, name)


class Source(NamedTuple):
    """Where data come from and at what size."""

    scale: int = 1
    cache: Path | None = None
    folder: Path | None = None


def real_folder(named: Path | None) -> Path:
    """Where real data are looked for."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return named or Path(os.environ.get("DASKSTRADS_DATA") or beside)


def missing(name: str, source: Source) -> str | None:
    """What is missing for data set `name`, in words, or None.

    Raises:
        ValueError: there is no such data set.
    """
    if name in REAL:
        path = real_folder(source.folder) / REAL[name][0]
        return None if path.is_file() else f"no file {path}: name its folder by --data or $DASKSTRADS_DATA"
    if name not in "ABCD":
        raise ValueError(f"no data set {name!r}; there are A, B, C, D, {', '.join(REAL)}")
    return None


@lru_cache(maxsize=1)
def fetch(name: str, source: Source) -> Data:
    """Data set `name` in all layouts; the last one is kept, as its rows come one after another."""
    if name in REAL:
        file, kind = REAL[name]
        X, y = read_npz(real_folder(source.folder) / file)
        X, y = smaller(X, y, source.scale)
    else:
        workload, kind = load(name, source.scale, source.cache), name
        X, y = workload.X, workload.y
    n, p = X.shape
    began = time.perf_counter()
    columns = X.tocsc() if sp.issparse(X) else np.asfortranarray(X)
    converting = time.perf_counter() - began
    dense = None
    if n >= TALL * p and p <= GRAM:
        dense = np.asfortranarray(columns.toarray()) if sp.issparse(X) else columns
    if name in REAL and (n < TALL * p or not sp.issparse(X)):
        X = columns  # wide, and the files are by rows
    return Data(X, y, columns, dense, kind, converting)


def read_npz(path: Path) -> tuple[Any, np.ndarray]:
    """(X, y) of a file: dense X, or the arrays of a CSR matrix; float64."""
    with np.load(path) as stored:
        y = stored["y"].astype(np.float64)
        if "X" in stored:
            return stored["X"].astype(np.float64), y
        arrays = stored["data"].astype(np.float64), stored["indices"], stored["indptr"]
        X = sp.csr_matrix(arrays, shape=tuple(map(int, stored["shape"])))
    X.has_canonical_format = True
    return X, y


def smaller(X: Any, y: np.ndarray, scale: int) -> tuple[Any, np.ndarray]:
    """The first rows of a tall X, or the first columns of a wide one: a part in `scale`."""
    if scale == 1:
        return X, y
    n, p = X.shape
    if n >= TALL * p:
        return X[: n // scale], y[: n // scale]
    return X[:, : p // scale], y


def alpha_of(data: Data, divisor: float) -> float:
    """lam_max / divisor."""
    return lam_max(data.X, data.y) / divisor
