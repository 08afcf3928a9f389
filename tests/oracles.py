"""Certificates and brute-force solvers for linear models: dense float64 numpy, written without the library.

The objective is scikit-learn's, weights counting by their ratios only:
    1 / (2 sum w) sum_i w_i (y_i - x_i b - c)^2 + alpha l1_ratio ||b||_1 + alpha (1 - l1_ratio) / 2 ||b||^2
With several targets every function returns one number (or row) a target.
"""

import numpy as np
import scipy.sparse as sp


def dense(X):
    """X as a float64 array of its own, repeated sparse entries added."""
    return np.array(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


def _a_target(function, y, *per_target):
    """One call a column of a 2-D y, one for a 1-D y."""
    y = np.asarray(y, np.float64)
    if y.ndim == 1:
        return function(y, *per_target)
    return np.array([function(y[:, k], *(rows[k] for rows in per_target)) for k in range(y.shape[1])])


def shares(weight, n):
    """Each row's share of the loss, sum 1."""
    weight = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    return weight / weight.sum()


def root_problem(X, y, fit_intercept, weight):
    """Z, t with ||t - Z b||^2 / 2 the loss of b, the best intercept put in."""
    X, y = dense(X), np.asarray(y, np.float64)
    share = shares(weight, len(y))
    if fit_intercept:
        X, y = X - share @ X, y - share @ y
    root = np.sqrt(share)
    return root[:, None] * X, root * y


def scale(X, y, *, fit_intercept=True, weight=None):
    """What tol is relative to: ||y||^2 / n, y centred when there is an intercept."""
    return _a_target(lambda y: float(np.sum(root_problem(X, y, fit_intercept, weight)[1] ** 2)), y)


def objective(X, y, coef, intercept, alpha, l1_ratio=1.0, *, weight=None):
    X, intercept = dense(X), np.broadcast_to(intercept, np.shape(y)[1:])

    def value(y, b, c):
        loss = shares(weight, len(y)) @ (y - X @ b - c) ** 2 / 2
        return loss + alpha * l1_ratio * np.abs(b).sum() + alpha * (1 - l1_ratio) / 2 * (b @ b)

    return _a_target(value, y, np.asarray(coef, np.float64), intercept)


def duality_gap(X, y, coef, alpha, l1_ratio=1.0, *, fit_intercept=True, weight=None, positive=False):
    """P(b) - D(theta) for the best multiple theta of the residual that is dual feasible; alpha > 0.

    The elastic net is the lasso of a design with sqrt(beta) I below it and zeros below y, written out.
    Without an l1 term the dual is unconstrained:
    D(theta) = t'theta - ||theta||^2 / 2 - ||Z'theta||^2 / (2 beta).
    """
    lam, beta = alpha * l1_ratio, alpha * (1 - l1_ratio)

    def value(y, b):
        Z, t = root_problem(X, y, fit_intercept, weight)
        q = t - Z @ b
        primal = q @ q / 2 + lam * np.abs(b).sum() + beta / 2 * (b @ b)
        if lam == 0:
            slope = Z.T @ q
            if positive:
                slope = np.maximum(slope, 0)
            return primal - (t @ q - q @ q / 2 - slope @ slope / (2 * beta))
        wide = np.vstack([Z, np.sqrt(beta) * np.eye(len(b))])
        long = np.concatenate([t, np.zeros(len(b))])
        theta = long - wide @ b
        slope = wide.T @ theta
        worst = max(slope.max(initial=0.0), 0.0) if positive else np.abs(slope).max(initial=0.0)
        bound = lam / worst if worst > 0 else np.inf
        best = (long @ theta) / (theta @ theta) if theta @ theta > 0 else 1.0
        multiple = min(max(best, 0.0 if positive else -bound), bound)
        dual = (long @ long - np.sum((long - multiple * theta) ** 2)) / 2
        return primal - dual

    return _a_target(value, y, np.asarray(coef, np.float64))


def alpha_max(X, y, l1_ratio=1.0, *, fit_intercept=True, weight=None):
    """Smallest alpha whose solution is zero."""
    Z, t = root_problem(X, y, fit_intercept, weight)
    return float(np.abs(Z.T @ t).max() / l1_ratio)


def solve(
    X, y, alpha, l1_ratio=1.0, *, fit_intercept=True, weight=None, positive=False, sweeps=20_000, tol=1e-15
):
    """(coef, intercept) by cyclic coordinate descent, one variable after another until none moves."""
    Z, t = root_problem(X, y, fit_intercept, weight)
    lam, beta = alpha * l1_ratio, alpha * (1 - l1_ratio)
    b, gram, slope = np.zeros(Z.shape[1]), Z.T @ Z, Z.T @ t
    for _ in range(sweeps):
        largest = 0.0
        for j in range(len(b)):
            if gram[j, j] + beta == 0:
                continue
            z = slope[j] - gram[j] @ b + gram[j, j] * b[j]
            new = max(z - lam, 0.0) - (0.0 if positive else max(-z - lam, 0.0))
            new /= gram[j, j] + beta
            largest, b[j] = max(largest, abs(new - b[j])), new
        if largest <= tol * max(1.0, np.abs(b).max(initial=0.0)):
            break
    share = shares(weight, len(t))
    return b, float(share @ (np.asarray(y, np.float64) - dense(X) @ b)) if fit_intercept else 0.0
