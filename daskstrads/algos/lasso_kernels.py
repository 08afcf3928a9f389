"""Coordinate descent on one block of columns, to the block's own optimum.

The block problem, for columns z_j and residual q (everything else held fixed):
    min_b  1/2 ||q||^2 + lam ||b||_1 + beta/2 ||b||^2,   q moves by -z_j when b_j grows.
Every solver alternates a look at all columns, which certifies the block by its duality gap and finds the
violators, with sweeps over the active ones only. Every few sweeps it tries the point that the last iterates
head for (Anderson extrapolation; Bertrand and Massias 2021) and keeps it when the objective is lower.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
MEMORY = 5  # iterates behind an extrapolation
SWEEPS = 2 * MEMORY  # between two looks at all columns: a look costs about one full sweep


# In every file that needs it: numba's cache does not notice when a function of another file changes.
@njit(nogil=True, cache=True)
def entries(offsets, o):
    """Places of vector o's entries; unsigned: to check whether one counts from the end costs a third."""
    return range(np.uint64(offsets[o]), np.uint64(offsets[o + 1]))


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
def summary(grad, coef, beta, positive):
    """max |grad - beta b| (nan if there is one; `positive`: without |.|), ||b||_1, ||b||^2, nonzeros of b."""
    largest, l1, l2 = 0.0, 0.0, 0.0
    support = 0
    sane = True
    for j in range(coef.size):
        b = coef[j]
        d = grad[j] - beta * b
        if not positive:
            d = abs(d)
        sane &= d == d
        largest = max(largest, d)
        if b != 0.0:
            l1 += abs(b)
            l2 += b * b
            support += 1
    return largest if sane else np.nan, l1, l2, support


@njit(nogil=True, cache=True)
def steep(grad, coef, floor, positive, places, weights):
    """Columns in use (weight inf) or with |gradient| above `floor`: their number; the first of `places` and
    `weights`, as long as `coef`, are theirs.
    """
    count = 0
    for j in range(coef.size):
        g = grad[j] if positive else abs(grad[j])
        if coef[j] != 0.0:
            g = np.inf
        if g > floor:
            places[count], weights[count] = j, g
            count += 1
    return count


@njit(nogil=True, cache=True)
def inspect(grad, coef, norms, rr, lam, beta, positive, active):
    """Gap of the block from its gradient, and how many columns are active (their places in `active`)."""
    largest = 0.0
    l1 = l2 = 0.0
    tr = rr
    count = 0
    for t in range(coef.size):
        b, g = coef[t], grad[t] if norms[t] > 0.0 else 0.0
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
        # The gap of ridge, which is ||slope||^2 / (2 beta); without beta, the decrease promised one by one.
        gap = 0.0
        for t in range(coef.size):
            d = (grad[t] if norms[t] > 0.0 else 0.0) - beta * coef[t]
            if positive and coef[t] == 0.0:
                d = max(d, 0.0)
            if beta > 0.0:
                gap += 0.5 * d * d / beta
            elif norms[t] > 0.0:
                gap += 0.5 * d * d / norms[t]
        return gap, count
    return duality_gap(rr, tr, l1, l2, largest, lam, beta, positive), count


@njit(nogil=True, cache=True, fastmath=FAST)
def square(v):
    """||v||^2."""
    s = 0.0
    for i in range(v.size):
        s += v[i] * v[i]
    return s


@njit(nogil=True, cache=True)
def penalty(coef, lam, beta):
    """lam ||b||_1 + beta / 2 ||b||^2."""
    s = 0.0
    for t in range(coef.size):
        s += lam * abs(coef[t]) + 0.5 * beta * coef[t] * coef[t]
    return s


# Loops, not array expressions: those take long to compile.
@njit(nogil=True, cache=True)
def pick(v, places, out):
    """out = v[places]."""
    for a in range(places.size):
        out[a] = v[places[a]]


@njit(nogil=True, cache=True)
def overwrite(out, v):
    """out = v."""
    for i in range(v.size):
        out[i] = v[i]


@njit(nogil=True, cache=True)
def extrapolate(iterates, positive, out):
    """Where the iterates (MEMORY + 1, k) head for, in `out` (k,); False when they do not say.

    out = sum_m c_m iterate_{m+1} with sum c = 1 that minimises ||sum_m c_m (iterate_{m+1} - iterate_m)||.
    """
    m = iterates.shape[0] - 1
    system = np.zeros((m, m + 1))
    for a in range(m):
        for b in range(a + 1):
            s = 0.0
            for t in range(out.size):
                s += (iterates[a + 1, t] - iterates[a, t]) * (iterates[b + 1, t] - iterates[b, t])
            system[a, b] = system[b, a] = s
        system[a, m] = 1.0
    trace = 0.0
    for a in range(m):
        trace += system[a, a]
    if not trace > 0.0:
        return False
    for a in range(m):
        system[a, a] += 1e-12 * trace
    for a in range(m):  # positive definite: elimination needs no pivots
        if not system[a, a] > 0.0:
            return False
        for b in range(a + 1, m):
            factor = system[b, a] / system[a, a]
            for c in range(a, m + 1):
                system[b, c] -= factor * system[a, c]
    total = 0.0
    for a in range(m - 1, -1, -1):
        for c in range(a + 1, m):
            system[a, m] -= system[a, c] * system[c, m]
        system[a, m] /= system[a, a]
        total += system[a, m]
    if not abs(total) > 0.0:
        return False
    for t in range(out.size):
        s = 0.0
        for a in range(m):
            s += system[a, m] / total * iterates[a + 1, t]
        out[t] = max(s, 0.0) if positive else s
    return True


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_gradient(columns, residual, grad):
    """grad = Z'q."""
    for t in range(grad.size):
        s = 0.0
        for i in range(residual.size):
            s += columns[t, i] * residual[i]
        grad[t] = s


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_sweep(columns, norms, coef, residual, active, lam, beta, positive):
    """Every active column in turn; the decrease of the objective, twice over."""
    progress = 0.0
    for a in range(active.size):
        t = active[a]
        curvature = norms[t] + beta
        if norms[t] == 0.0:
            continue
        s = 0.0
        for i in range(residual.size):
            s += columns[t, i] * residual[i]
        step = shrink(s + norms[t] * coef[t], lam, positive) / curvature - coef[t]
        if step != 0.0:
            coef[t] += step
            for i in range(residual.size):
                residual[i] -= step * columns[t, i]
            progress += step * step * curvature
    return progress


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_jump(columns, coef, residual, active, goal, lam, beta):
    """Move the active coefficients to `goal` if that lowers the objective."""
    moved = residual.copy()
    there = coef.copy()
    for a in range(active.size):
        t = active[a]
        step = goal[a] - coef[t]
        there[t] = goal[a]
        for i in range(moved.size):
            moved[i] -= step * columns[t, i]
    before = 0.5 * square(residual) + penalty(coef, lam, beta)
    if 0.5 * square(moved) + penalty(there, lam, beta) < before:
        overwrite(residual, moved)
        overwrite(coef, there)


@njit(nogil=True, cache=True)
def solve_dense(columns, norms, coef, residual, lam, beta, positive, target, limit):
    """Optimum of the block with dense columns (k, n); writes coef (k,) and residual (n,).

    Returns the looks used and the visits of single columns in between.
    """
    k, visits = coef.size, 0
    grad, places = np.empty(k), np.empty(k, np.int64)
    enough = 0.1 * target
    for look in range(limit):
        dense_gradient(columns, residual, grad)
        gap, count = inspect(grad, coef, norms, square(residual), lam, beta, positive, places)
        if gap <= target or count == 0:
            return look, visits
        active = places[:count]
        iterates, goal = np.empty((MEMORY + 1, count)), np.empty(count)
        for sweep in range(SWEEPS):
            if sweep % MEMORY == 0:
                pick(coef, active, iterates[0])
            progress = dense_sweep(columns, norms, coef, residual, active, lam, beta, positive)
            visits += count
            if progress <= enough:
                enough *= 0.1  # should the next look disagree
                break
            pick(coef, active, iterates[sweep % MEMORY + 1])
            if (sweep + 1) % MEMORY == 0 and extrapolate(iterates, positive, goal):
                dense_jump(columns, coef, residual, active, goal, lam, beta)
    return limit, visits


@njit(nogil=True, cache=True)
def settle(residual, shift, scale):
    """residual += shift * scale."""
    if shift != 0.0:
        for i in range(residual.size):
            residual[i] += shift * scale[i]


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_sweep(
    values, indices, offsets, mean, norms, scale, total, coef, residual, shift, active, lam, beta, positive
):
    """Every active column in turn; the decrease of the objective, twice over, and the new shift."""
    progress = 0.0
    for a in range(active.size):
        t = active[a]
        curvature = norms[t] + beta
        if norms[t] == 0.0:
            continue
        s = shift * total * mean[t]
        for e in entries(offsets, t):
            s += values[e] * residual[np.uint64(indices[e])]
        step = shrink(s + norms[t] * coef[t], lam, positive) / curvature - coef[t]
        if step != 0.0:
            coef[t] += step
            for e in entries(offsets, t):
                residual[np.uint64(indices[e])] -= step * values[e]
            if 2 * (offsets[t + 1] - offsets[t]) > residual.size:
                # A well-filled column may have a large mean, and postponing that would cost digits.
                settle(residual, step * mean[t], scale)
            else:
                shift += step * mean[t]
            progress += step * step * curvature
    return progress, shift


@njit(nogil=True, cache=True)
def sparse_jump(values, indices, offsets, mean, scale, coef, residual, active, goal, lam, beta):
    """Move the active coefficients to `goal` if that lowers the objective; `residual` is without shift."""
    moved = residual.copy()
    there = coef.copy()
    shift = 0.0
    for a in range(active.size):
        t = active[a]
        step = goal[a] - coef[t]
        there[t] = goal[a]
        shift += step * mean[t]
        for e in entries(offsets, t):
            moved[np.uint64(indices[e])] -= step * values[e]
    settle(moved, shift, scale)
    before = 0.5 * square(residual) + penalty(coef, lam, beta)
    if 0.5 * square(moved) + penalty(there, lam, beta) < before:
        overwrite(residual, moved)
        overwrite(coef, there)


@njit(nogil=True, cache=True)
def solve_sparse(
    values, indices, offsets, mean, norms, scale, total, coef, residual, lam, beta, positive, target, limit
):
    """Optimum of the block with compressed columns z_j = x_j - mean_j scale, never formed.

    `scale` is the square root of the rows' weights, `total` their sum. The residual's part along `scale`
    is kept as one number: q = residual + shift * scale, and scale'q = 0 throughout, so
    z_j'q = x_j'residual + shift * total * mean_j. On return `residual` is q itself. Returns the looks used
    and the visits of single columns in between.
    """
    k, visits = coef.size, 0
    grad, places = np.empty(k), np.empty(k, np.int64)
    enough = 0.1 * target
    centred = False
    for t in range(k):
        centred |= mean[t] != 0.0
    for look in range(limit):
        if centred:  # rounding moves scale'q away from 0, and large means would magnify that
            along = 0.0
            for i in range(residual.size):
                along += scale[i] * residual[i]
            settle(residual, -along / total, scale)
        for t in range(k):
            s = 0.0
            for e in entries(offsets, t):
                s += values[e] * residual[np.uint64(indices[e])]
            grad[t] = s
        gap, count = inspect(grad, coef, norms, square(residual), lam, beta, positive, places)
        if gap <= target or count == 0:
            return look, visits
        active = places[:count]
        iterates, goal = np.empty((MEMORY + 1, count)), np.empty(count)
        shift = 0.0
        for sweep in range(SWEEPS):
            if sweep % MEMORY == 0:
                pick(coef, active, iterates[0])
            progress, shift = sparse_sweep(
                values, indices, offsets, mean, norms, scale, total,
                coef, residual, shift, active, lam, beta, positive,
            )  # fmt: skip
            visits += count
            if progress <= enough:
                enough *= 0.1  # should the next look disagree
                break
            pick(coef, active, iterates[sweep % MEMORY + 1])
            if (sweep + 1) % MEMORY == 0 and extrapolate(iterates, positive, goal):
                settle(residual, shift, scale)
                shift = 0.0
                sparse_jump(values, indices, offsets, mean, scale, coef, residual, active, goal, lam, beta)
        settle(residual, shift, scale)
    return limit, visits


@njit(nogil=True, cache=True, fastmath=FAST)
def gram_sweep(gram, norms, grad, coef, active, lam, beta, positive):
    """Every active column in turn; the decrease of the objective, twice over, and the change of ||q||^2."""
    progress = change = 0.0
    for a in range(active.size):
        t = active[a]
        curvature = norms[t] + beta
        if norms[t] == 0.0:
            continue
        step = shrink(grad[t] + norms[t] * coef[t], lam, positive) / curvature - coef[t]
        if step != 0.0:
            coef[t] += step
            change += step * (step * norms[t] - 2.0 * grad[t])
            for u in range(coef.size):
                grad[u] -= step * gram[t, u]
            progress += step * step * curvature
    return progress, change


@njit(nogil=True, cache=True, fastmath=FAST)
def gram_jump(gram, grad, coef, active, goal, lam, beta):
    """Move the active coefficients to `goal` if that lowers the objective; the change of ||q||^2."""
    moved = grad.copy()
    there = coef.copy()
    for a in range(active.size):
        t = active[a]
        step = goal[a] - coef[t]
        there[t] = goal[a]
        for u in range(moved.size):
            moved[u] -= step * gram[t, u]
    change = 0.0
    for a in range(active.size):
        t = active[a]
        change -= (there[t] - coef[t]) * (grad[t] + moved[t])
    if 0.5 * change + penalty(there, lam, beta) < penalty(coef, lam, beta):
        overwrite(grad, moved)
        overwrite(coef, there)
        return change
    return 0.0


@njit(nogil=True, cache=True)
def solve_gram(gram, norms, grad, coef, rr, lam, beta, positive, target, limit):
    """Optimum of the block from its Gram matrix (k, k) and gradient z'q; writes coef and grad.

    Returns the new ||q||^2 and the visits of single columns.
    """
    places, visits = np.empty(coef.size, np.int64), 0
    enough = 0.1 * target
    for _look in range(limit):
        gap, count = inspect(grad, coef, norms, rr, lam, beta, positive, places)
        if gap <= target or count == 0:
            break
        active = places[:count]
        iterates, goal = np.empty((MEMORY + 1, count)), np.empty(count)
        for sweep in range(SWEEPS):
            if sweep % MEMORY == 0:
                pick(coef, active, iterates[0])
            progress, change = gram_sweep(gram, norms, grad, coef, active, lam, beta, positive)
            rr += change
            visits += count
            if progress <= enough:
                enough *= 0.1  # should the next look disagree
                break
            pick(coef, active, iterates[sweep % MEMORY + 1])
            if (sweep + 1) % MEMORY == 0 and extrapolate(iterates, positive, goal):
                rr += gram_jump(gram, grad, coef, active, goal, lam, beta)
    return rr, visits
