"""Coordinate descent for matrix factorisation, a block of four features at a time.

One pass over a rank's ratings finishes a block and prepares the next (CCD++, Yu, Hsieh, Si and Dhillon
2012, fused): the rows' part of the block is solved from the columns' new one, the residual is written, and
what the next block's columns need, the sums over their ratings of x_i e_ij and of x_i x_i', is added up on
the way. The four features of a row, or of a column, are solved for exactly; with `positive` by sweeps that
keep them >= 0. `sums` (columns, 16): sum x e, then the lower triangle of sum x x' by rows, then padding to
a cache line. `pairs` (columns, 8): a column's new and old features of the block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
BLOCK = 4
# What kernels call is written into them: as functions of their own, with fast arithmetic, they come in
# several copies whose bits differ, and which one is linked depends on whether a kernel was compiled or read
# from the cache.
LINE = 16  # sums of a column: x e, the triangle of x x', and padding
_SWEEPS = 8  # of a positive block: near enough to its optimum, and never uphill


@njit(nogil=True, inline="always")
def _solve(gram, target, x, frozen):
    """Overwrite x with the minimum of 1/2 x'Gx - target'x over all but the feature `frozen`; G is destroyed.

    A feature without curvature is set to 0.
    """
    if frozen >= 0:
        for t in range(BLOCK):
            target[t] -= gram[t, frozen] * x[frozen]
            gram[t, frozen] = 0
            gram[frozen, t] = 0
        gram[frozen, frozen] = 1
        target[frozen] = x[frozen]
    for c in range(BLOCK):  # Cholesky
        pivot = gram[c, c]
        floor = np.float32(1e-6) * pivot
        for t in range(c):
            pivot -= gram[c, t] * gram[c, t]
        alive = pivot > floor and pivot > 0
        gram[c, c] = np.sqrt(pivot) if alive else 0
        for r in range(c + 1, BLOCK):
            entry = gram[r, c]
            for t in range(c):
                entry -= gram[r, t] * gram[c, t]
            gram[r, c] = entry / gram[c, c] if alive else 0
    for c in range(BLOCK):
        entry = target[c]
        for t in range(c):
            entry -= gram[c, t] * x[t]
        x[c] = entry / gram[c, c] if gram[c, c] > 0 else 0
    for c in range(BLOCK - 1, -1, -1):
        entry = x[c]
        for t in range(c + 1, BLOCK):
            entry -= gram[t, c] * x[t]
        x[c] = entry / gram[c, c] if gram[c, c] > 0 else 0


@njit(nogil=True, inline="always")
def _solve_positive(gram, target, x, first, frozen):
    """Lower 1/2 x'Gx - target'x from x by sweeps over its features; those from `first` on stay >= 0."""
    for _ in range(_SWEEPS):
        for t in range(BLOCK):
            if t == frozen or not gram[t, t] > 0:
                continue
            slope = target[t]
            for s in range(BLOCK):
                slope -= gram[t, s] * x[s]
            entry = x[t] + slope / gram[t, t]
            x[t] = max(entry, 0) if t >= first else entry


@njit(nogil=True, inline="always")
def _spread(x, line, squares):
    """x in the first places of `line`, and the triangle of x x' in its places of `squares`; zeros
    elsewhere.
    """
    place = BLOCK
    for t in range(BLOCK):
        line[t] = x[t]
        for s in range(t + 1):
            squares[place] = x[t] * x[s]
            place += 1


@njit(nogil=True, cache=True, fastmath=FAST)
def prepare(offsets, indices, residual, rows, at, sums):
    """The sums of the block of features [at, at + 4), from these rows' ratings."""
    line, squares = np.zeros(LINE, rows.dtype), np.zeros(LINE, rows.dtype)
    sums[:] = 0
    for i in range(np.uint64(rows.shape[0])):
        _spread(rows[i, at : at + BLOCK], line, squares)
        for z in range(np.uint64(offsets[i]), np.uint64(offsets[i + np.uint64(1)])):
            j, e = np.uint64(indices[z]), residual[z]
            for t in range(LINE):
                sums[j, t] += e * line[t] + squares[t]


@njit(nogil=True, cache=True, fastmath=FAST)
def sweep_rows(offsets, indices, residual, rows, pairs, weight, at, following, frozen, first, positive, sums):
    """Solve the rows' features [at, at + 4), write the residual, and the sums of [following, following + 4).

    Returns sum e^2 in float64.
    """
    dtype = rows.dtype
    old, new, target = np.empty(BLOCK, dtype), np.empty(BLOCK, dtype), np.empty(BLOCK, dtype)
    gram, zero = np.empty((BLOCK, BLOCK), dtype), dtype.type(0)
    line, squares = np.zeros(LINE, dtype), np.zeros(LINE, dtype)
    sums[:] = 0
    sse = 0.0
    for i in range(np.uint64(rows.shape[0])):
        start, stop = np.uint64(offsets[i]), np.uint64(offsets[i + np.uint64(1)])
        if start == stop:
            continue
        for t in range(BLOCK):
            old[t] = rows[i, at + t]
            new[t] = old[t]
        o0, o1, o2, o3 = old[0], old[1], old[2], old[3]
        b0 = b1 = b2 = b3 = g00 = g10 = g11 = g20 = g21 = g22 = g30 = g31 = g32 = g33 = zero
        for z in range(start, stop):
            j = np.uint64(indices[z])
            y0, y1, y2, y3 = pairs[j, 0], pairs[j, 1], pairs[j, 2], pairs[j, 3]
            e = residual[z] + o0 * pairs[j, 4] + o1 * pairs[j, 5] + o2 * pairs[j, 6] + o3 * pairs[j, 7]
            residual[z] = e  # without this block
            b0 += e * y0
            b1 += e * y1
            b2 += e * y2
            b3 += e * y3
            g00 += y0 * y0
            g10 += y1 * y0
            g11 += y1 * y1
            g20 += y2 * y0
            g21 += y2 * y1
            g22 += y2 * y2
            g30 += y3 * y0
            g31 += y3 * y1
            g32 += y3 * y2
            g33 += y3 * y3
        target[0], target[1], target[2], target[3] = b0, b1, b2, b3
        gram[0, 0], gram[1, 1], gram[2, 2], gram[3, 3] = g00, g11, g22, g33
        gram[1, 0], gram[2, 0], gram[2, 1], gram[3, 0], gram[3, 1], gram[3, 2] = g10, g20, g21, g30, g31, g32
        for t in range(BLOCK):
            for s in range(t):
                gram[s, t] = gram[t, s]
        for t in range(BLOCK):
            gram[t, t] += weight[i]
        if positive:
            _solve_positive(gram, target, new, first, frozen)
        else:
            _solve(gram, target, new, frozen)
        for t in range(BLOCK):
            rows[i, at + t] = new[t]
        _spread(rows[i, following : following + BLOCK], line, squares)
        n0, n1, n2, n3 = new[0], new[1], new[2], new[3]
        for z in range(start, stop):
            j = np.uint64(indices[z])
            e = residual[z] - n0 * pairs[j, 0] - n1 * pairs[j, 1] - n2 * pairs[j, 2] - n3 * pairs[j, 3]
            residual[z] = e
            sse += np.float64(e) * np.float64(e)
            for t in range(BLOCK):
                sums[j, t] += e * line[t]
            for t in range(BLOCK, BLOCK + 10):
                sums[j, t] += squares[t]
    return sse


@njit(nogil=True, cache=True, fastmath=FAST)
def solve_columns(sums, columns, weight, at, frozen, first, positive, pairs):
    """Solve some columns' features [at, at + 4) from the sums over all their ratings; `pairs` tells of it."""
    gram, target = np.empty((BLOCK, BLOCK), columns.dtype), np.empty(BLOCK, columns.dtype)
    new = np.empty(BLOCK, columns.dtype)
    for j in range(columns.shape[0]):
        place = BLOCK
        for t in range(BLOCK):
            new[t] = columns[j, at + t]
            pairs[j, BLOCK + t] = new[t]
            for s in range(t + 1):
                gram[t, s] = sums[j, place]
                gram[s, t] = sums[j, place]
                place += 1
        for t in range(BLOCK):
            target[t] = sums[j, t]
            for s in range(BLOCK):
                target[t] += gram[t, s] * new[s]
        for t in range(BLOCK):
            gram[t, t] += weight[j]
        if positive:
            _solve_positive(gram, target, new, first, frozen)
        else:
            _solve(gram, target, new, frozen)
        for t in range(BLOCK):
            columns[j, at + t] = new[t]
            pairs[j, t] = new[t]
