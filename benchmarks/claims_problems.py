"""The problems of the claims table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from workloads import lam_max, load

from daskstrads.partition import split_axis


class Problem(NamedTuple):
    """A Lasso without intercept: X (n, p), y (n,), scikit-learn's alpha."""

    name: str
    X: Any
    y: np.ndarray
    alpha: float

    @property
    def null(self) -> float:
        """P(0), in the objective's units."""
        return float(self.y @ self.y) / (2 * len(self.y))


def problems(quick: bool, scale: int, cache: Path | None) -> tuple[list[Problem], list[str]]:
    """The four problems, and what is missing."""
    found, missing = [], []
    B = load("B", scale, cache)
    for divisor in 10, 50:
        found.append(Problem(f"B/{divisor}", B.X, B.y, lam_max(B.X, B.y) / divisor))
    X, y = correlated(200 if quick else 1_000, 2_000 if quick else 10_000)
    found.append(Problem("AR/20", X, y, lam_max(X, y) / 20))
    path = Path(os.environ.get("DASKSTRADS_DATA") or "../shared/data") / "hockey_full.npz"
    if path.exists():
        X, y = hockey(path, quick)
        found.append(Problem("hockey/100", X, y, lam_max(X, y) / 100))
    else:
        missing.append("hockey_full.npz is not in $DASKSTRADS_DATA or ../shared/data: its rows are missing")
    return found, missing


def correlated(n: int, p: int, rho: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Dense X (n, p), F order, columns i and j with correlation rho^|i - j|; y of p / 100 of them."""
    rng = np.random.default_rng(5)
    X = np.empty((n, p), order="F")
    X[:, 0] = rng.standard_normal(n)
    for j in range(1, p):
        X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(n)
    chosen = rng.choice(p, p // 100, replace=False)
    signal = X[:, chosen] @ rng.standard_normal(len(chosen))
    return X, signal + rng.standard_normal(n) * signal.std() / 3.0


def hockey(path: Path, quick: bool) -> tuple[Any, np.ndarray]:
    """The plus-minus design of cran/gamlr; `quick`: a tenth of its rows, and of its columns the fullest."""
    with np.load(path) as stored:
        X = sp.csr_matrix(
            (stored["data"].astype(float), stored["indices"], stored["indptr"]), shape=tuple(stored["shape"])
        )
        y = stored["y"].astype(float)
    if quick:
        rows = np.arange(0, X.shape[0], 10)
        fullest = np.sort(np.argsort(-X.getnnz(axis=0), kind="stable")[: X.shape[1] // 10])
        X, y = X[rows][:, fullest].tocsr(), y[rows]
    return X, y


def about(problem: Problem) -> list[str]:
    """Name, sizes, stored entries, lam_max / alpha and the axis that ranks share, for a table."""
    n, p = problem.X.shape
    entries = problem.X.nnz if sp.issparse(problem.X) else problem.X.size
    split = "columns" if split_axis((n, p)) == 1 else "rows"
    divisor = lam_max(problem.X, problem.y) / problem.alpha
    return [problem.name, f"{n:,} x {p:,}", f"{entries:,}", f"{divisor:.0f}", split]
