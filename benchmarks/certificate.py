"""How good is a Lasso solution? A duality gap in plain numpy, that shares no code with any solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Certificate(NamedTuple):
    """What can be proved about a coefficient vector."""

    primal: float
    gap: float
    relative: float
    support: int


def certify(X, y, coef, alpha: float) -> Certificate:
    """Bound on how far `coef` (p) is from the optimum of scikit-learn's Lasso without an intercept.

    Primal: P(w) = ||y - Xw||^2 / (2n) + alpha ||w||_1. Dual: D(s) = (||y||^2 - ||y - s r||^2) / (2n) along
    the residual r = y - Xw, feasible where |s| ||X'r||_inf <= n alpha; s is the best such scale. Then
    P(w) - min P <= gap = P(w) - D(s); `relative` is the gap over P(0) = ||y||^2 / (2n).
    """
    coef = np.asarray(coef, dtype=np.float64).ravel()
    y = np.asarray(y, dtype=np.float64)
    if coef.shape != (X.shape[1],) or y.shape != (X.shape[0],):
        raise ValueError(f"X is {X.shape}, coef {coef.shape} and y {y.shape}")
    if not np.isfinite(coef).all():
        return Certificate(np.inf, np.inf, np.inf, np.count_nonzero(coef))
    n = y.size
    residual = y - X @ coef
    squared, along = residual @ residual, residual @ y
    penalty = alpha * np.abs(coef).sum()
    steepest = np.abs(X.T @ residual).max()
    limit = n * alpha / steepest if steepest > 0 else np.inf
    scale = float(np.clip(along / squared, -limit, limit)) if squared > 0 else 0.0
    # P - D with ||y||^2 cancelled by hand: small gaps keep their digits.
    gap = penalty + ((1 + scale**2) * squared - 2 * scale * along) / (2 * n)
    primal = penalty + squared / (2 * n)
    return Certificate(primal, gap, gap / (y @ y / (2 * n)), np.count_nonzero(coef))
