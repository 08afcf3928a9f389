"""Coordinate descent on one block of columns, to the block's own optimum.

The block problem, for columns z_j and residual q (everything else held fixed):
    min_b  1/2 ||q||^2 + lam ||b||_1 + beta/2 ||b||^2,   q moves by -z_j when b_j grows.
Every solver alternates a look at all columns, which certifies the block by its duality gap and finds the
violators, with sweeps over the active ones only.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
SWEEPS = 10  # between two looks at all columns: a look costs about one full sweep


@njit(nogil=True, cache=True)
def shrink(z, lam, positive):
    """Soft threshold S(z, lam), its positive part for `positive`."""
    if z > lam:
        return z - lam
    if z < -lam and not positive:
        return z + lam
    return 0.0


@njit(nogil=True, cache=True)
def duality_gap(rr, tr, l1, l2, largest, lam, beta, positive):
    """P(b) - D(s q) for lam > 0 with the best feasible scaling s of the residual.

    rr = ||q||^2, tr = target . q, l1 = ||b||_1, l2 = ||b||^2, largest = max_j |z_j'q - beta b_j| (max
    without |.| for `positive`). The l2 term counts as extra rows of the design, so the dual point is
    feasible for every beta (Massias et al. 2018, section 2; elastic net as augmented lasso).
    """
    full = rr + beta * l2
    bound = lam / largest if largest > 0.0 else np.inf
    s = tr / full if full > 0.0 else 1.0
    s = min(s, bound)
    s = max(s, 0.0 if positive else -bound)
    return 0.5 * full + lam * l1 - s * tr + 0.5 * s * s * full


@njit(nogil=True, cache=True)
def inspect(grad, coef, norms, rr, lam, beta, positive, active):
    """Gap of the block from its gradient, and how many columns are active (their places in `active`)."""
    largest = 0.0
    l1 = l2 = 0.0
    tr = rr
    count = 0
    for t in range(coef.size):
        b, g = coef[t], grad[t]
        d = g - beta * b
        if not positive:
            d = abs(d)
        largest = max(largest, d)
        l1 += abs(b)
        l2 += b * b
        tr += b * g
        if b != 0.0 or d > lam:
            active[count] = t
            count += 1
    if lam == 0.0:
        # No l1 term, no useful dual point: the decrease that the columns promise one by one.
        gap = 0.0
        for t in range(coef.size):
            d = grad[t] - beta * coef[t]
            if positive and coef[t] == 0.0:
                d = max(d, 0.0)
            if norms[t] + beta > 0.0:
                gap += 0.5 * d * d / (norms[t] + beta)
        return gap, count
    return duality_gap(rr, tr, l1, l2, largest, lam, beta, positive), count


@njit(nogil=True, cache=True, fastmath=FAST)
def solve_dense(columns, norms, coef, residual, lam, beta, positive, target, limit):
    """Optimum of the block with dense columns (k, n); writes coef (k,) and residual (n,); looks used."""
    k, n = columns.shape
    grad = np.empty(k)
    active = np.empty(k, np.int64)
    for look in range(limit):
        rr = 0.0
        for i in range(n):
            rr += residual[i] * residual[i]
        for t in range(k):
            s = 0.0
            for i in range(n):
                s += columns[t, i] * residual[i]
            grad[t] = s
        gap, count = inspect(grad, coef, norms, rr, lam, beta, positive, active)
        if gap <= target or count == 0:
            return look
        for _ in range(SWEEPS):
            progress = 0.0
            for a in range(count):
                t = active[a]
                curvature = norms[t] + beta
                if curvature == 0.0:
                    continue
                s = 0.0
                for i in range(n):
                    s += columns[t, i] * residual[i]
                new = shrink(s + norms[t] * coef[t], lam, positive) / curvature
                step = new - coef[t]
                if step != 0.0:
                    coef[t] = new
                    for i in range(n):
                        residual[i] -= step * columns[t, i]
                    progress += step * step * curvature
            if progress <= 0.1 * target:
                break
    return limit


@njit(nogil=True, cache=True, fastmath=FAST)
def solve_sparse(
    values, indices, offsets, mean, norms, scale, total, coef, residual, lam, beta, positive, target, limit
):
    """Optimum of the block with compressed columns z_j = x_j - mean_j scale, never formed.

    `scale` is the square root of the rows' weights, `total` their sum. The residual's part along `scale`
    is kept as one number: q = residual + shift * scale, and scale'q = 0 throughout, so
    z_j'q = x_j'residual + shift * total * mean_j. On return `residual` is q itself; looks used.
    """
    k = coef.size
    n = residual.size
    grad = np.empty(k)
    active = np.empty(k, np.int64)
    shift = 0.0
    for look in range(limit):
        rr = 0.0
        for i in range(n):
            residual[i] += shift * scale[i]
            rr += residual[i] * residual[i]
        shift = 0.0
        for t in range(k):
            s = 0.0
            for e in range(offsets[t], offsets[t + 1]):
                s += values[e] * residual[indices[e]]
            grad[t] = s
        gap, count = inspect(grad, coef, norms, rr, lam, beta, positive, active)
        if gap <= target or count == 0:
            return look
        for _ in range(SWEEPS):
            progress = 0.0
            for a in range(count):
                t = active[a]
                curvature = norms[t] + beta
                if curvature == 0.0:
                    continue
                s = shift * total * mean[t]
                for e in range(offsets[t], offsets[t + 1]):
                    s += values[e] * residual[indices[e]]
                new = shrink(s + norms[t] * coef[t], lam, positive) / curvature
                step = new - coef[t]
                if step != 0.0:
                    coef[t] = new
                    for e in range(offsets[t], offsets[t + 1]):
                        residual[indices[e]] -= step * values[e]
                    shift += step * mean[t]
                    progress += step * step * curvature
            if progress <= 0.1 * target:
                break
    for i in range(n):
        residual[i] += shift * scale[i]
    return limit


@njit(nogil=True, cache=True, fastmath=FAST)
def solve_gram(gram, norms, grad, coef, rr, lam, beta, positive, target, limit):
    """Optimum of the block from its Gram matrix (k, k) and gradient z'q; writes coef, grad; new ||q||^2."""
    k = coef.size
    active = np.empty(k, np.int64)
    for _look in range(limit):
        gap, count = inspect(grad, coef, norms, rr, lam, beta, positive, active)
        if gap <= target or count == 0:
            break
        for _ in range(SWEEPS):
            progress = 0.0
            for a in range(count):
                t = active[a]
                curvature = norms[t] + beta
                if curvature == 0.0:
                    continue
                new = shrink(grad[t] + norms[t] * coef[t], lam, positive) / curvature
                step = new - coef[t]
                if step != 0.0:
                    coef[t] = new
                    rr += step * (step * norms[t] - 2.0 * grad[t])
                    for u in range(k):
                        grad[u] -= step * gram[t, u]
                    progress += step * step * curvature
            if progress <= 0.1 * target:
                break
    return rr
