"""Conjugate gradients on the normal equations of alternating least squares.

For one row i with ratings r_ij of the columns j: minimise over x
    sum_j (r_ij - x . y_j)^2 + l ||x||^2,   so  (sum_j y_j y_j' + l I) x = sum_j r_ij y_j,
a few steps from the last x (Takacs, Pilaszy and Tikk 2011). The residual e_ij = r_ij - x_i . y_j is kept up
to date from the products that the steps need anyway, so the right-hand side costs no products of its own.
Features are padded: those that are zero on both sides stay zero. `frozen` is a feature that is not updated
(the constant 1 beside the other side's bias), -1 for none.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


# Indices are unsigned: to check whether one counts from the end costs a third. Four ratings at a time: a
# feature of the direction is loaded once for all four. Sums of different columns are loops of their own, as
# one loop over four would first have to check that they are different.
@njit(nogil=True, cache=True, fastmath=FAST)
def solve_rows(offsets, indices, residual, rows, columns, weight, hold, frozen, steps):
    """`steps` steps of conjugate gradients for every row; its factors and residuals are written.

    `weight` (rows,) are l_i; `hold` (rows,) adds hold_i ||x - x_old||^2 to a row's objective, (0,): nothing.
    """
    n, width = rows.shape
    longest = 0
    for i in range(n):
        longest = max(longest, offsets[i + 1] - offsets[i])
    slope, direction, image = (
        np.empty(width, rows.dtype),
        np.empty(width, rows.dtype),
        np.empty(width, rows.dtype),
    )
    products = np.empty(longest, rows.dtype)
    zero = rows.dtype.type(0)
    for i in range(np.uint64(n)):
        start, stop = np.uint64(offsets[i]), np.uint64(offsets[i + ONE])
        if start == stop:
            continue
        decay = weight[i]
        for t in range(width):
            slope[t] = -decay * rows[i, t]
        if len(hold):
            decay += hold[i]
        z = start
        while z + FOUR <= stop:
            j0, j1 = np.uint64(indices[z]), np.uint64(indices[z + ONE])
            j2, j3 = np.uint64(indices[z + TWO]), np.uint64(indices[z + THREE])
            e0, e1, e2, e3 = residual[z], residual[z + ONE], residual[z + TWO], residual[z + THREE]
            for t in range(width):
                slope[t] += (
                    e0 * columns[j0, t] + e1 * columns[j1, t] + e2 * columns[j2, t] + e3 * columns[j3, t]
                )
            z += FOUR
        while z < stop:
            j0, e0 = np.uint64(indices[z]), residual[z]
            for t in range(width):
                slope[t] += e0 * columns[j0, t]
            z += ONE
        if frozen >= 0:
            slope[frozen] = zero
        left = zero
        for t in range(width):
            direction[t] = slope[t]
            left += slope[t] * slope[t]
        for _ in range(steps):
            if not left > zero:
                break
            for t in range(width):
                image[t] = decay * direction[t]
            z = start
            while z + FOUR <= stop:
                j0, j1 = np.uint64(indices[z]), np.uint64(indices[z + ONE])
                j2, j3 = np.uint64(indices[z + TWO]), np.uint64(indices[z + THREE])
                d0, d1, d2, d3 = zero, zero, zero, zero
                for t in range(width):
                    p = direction[t]
                    d0 += p * columns[j0, t]
                    d1 += p * columns[j1, t]
                    d2 += p * columns[j2, t]
                    d3 += p * columns[j3, t]
                for t in range(width):
                    image[t] += (
                        d0 * columns[j0, t] + d1 * columns[j1, t] + d2 * columns[j2, t] + d3 * columns[j3, t]
                    )
                o = z - start
                products[o], products[o + ONE], products[o + TWO], products[o + THREE] = d0, d1, d2, d3
                z += FOUR
            while z < stop:
                j0 = np.uint64(indices[z])
                d0 = zero
                for t in range(width):
                    d0 += direction[t] * columns[j0, t]
                for t in range(width):
                    image[t] += d0 * columns[j0, t]
                products[z - start] = d0
                z += ONE
            if frozen >= 0:
                image[frozen] = zero
            curvature = zero
            for t in range(width):
                curvature += direction[t] * image[t]
            if not curvature > zero:
                break
            step = left / curvature
            before, left = left, zero
            for t in range(width):
                rows[i, t] += step * direction[t]
                slope[t] -= step * image[t]
                left += slope[t] * slope[t]
            for place in range(start, stop):
                residual[place] -= step * products[place - start]
            for t in range(width):
                direction[t] = slope[t] + left / before * direction[t]


@njit(nogil=True, cache=True, fastmath=FAST)
def tile_slope(offsets, cursor, indices, residual, rows, first, stop, out):
    """out_j = sum_i e_ij x_i for the columns [first, stop), from these rows' ratings.

    `cursor` (rows,): where each row's ratings of the tile begin; they are in order of their columns.
    """
    width = rows.shape[1]
    out[:] = 0
    for i in range(np.uint64(rows.shape[0])):
        z, end = np.uint64(cursor[i]), np.uint64(offsets[i + ONE])
        while z + ONE < end and indices[z + ONE] < stop:
            j0, j1 = np.uint64(indices[z] - first), np.uint64(indices[z + ONE] - first)
            e0, e1 = residual[z], residual[z + ONE]
            for t in range(width):
                out[j0, t] += e0 * rows[i, t]
            for t in range(width):
                out[j1, t] += e1 * rows[i, t]
            z += TWO
        if z < end and indices[z] < stop:
            j0, e0 = np.uint64(indices[z] - first), residual[z]
            for t in range(width):
                out[j0, t] += e0 * rows[i, t]


@njit(nogil=True, cache=True, fastmath=FAST)
def tile_images(offsets, cursor, indices, residual, rows, first, stop, direction, step, products, out):
    """out_j = sum_i (x_i . p_j) x_i for the columns [first, stop) and their directions p (`direction`).

    `products` (ratings of the tile) are x_i . p_j in order of the rows: those of the last call, times
    `step`, leave the residual; those of this one take their place.
    """
    width = rows.shape[1]
    zero = rows.dtype.type(0)
    out[:] = 0
    o = np.uint64(0)
    for i in range(np.uint64(rows.shape[0])):
        z, end = np.uint64(cursor[i]), np.uint64(offsets[i + ONE])
        while z + THREE < end and indices[z + THREE] < stop:
            j0, j1 = np.uint64(indices[z] - first), np.uint64(indices[z + ONE] - first)
            j2, j3 = np.uint64(indices[z + TWO] - first), np.uint64(indices[z + THREE] - first)
            d0, d1, d2, d3 = zero, zero, zero, zero
            for t in range(width):
                x = rows[i, t]
                d0 += x * direction[j0, t]
                d1 += x * direction[j1, t]
                d2 += x * direction[j2, t]
                d3 += x * direction[j3, t]
            for t in range(width):
                out[j0, t] += d0 * rows[i, t]
            for t in range(width):
                out[j1, t] += d1 * rows[i, t]
            for t in range(width):
                out[j2, t] += d2 * rows[i, t]
            for t in range(width):
                out[j3, t] += d3 * rows[i, t]
            residual[z] -= step[j0] * products[o]
            residual[z + ONE] -= step[j1] * products[o + ONE]
            residual[z + TWO] -= step[j2] * products[o + TWO]
            residual[z + THREE] -= step[j3] * products[o + THREE]
            products[o], products[o + ONE], products[o + TWO], products[o + THREE] = d0, d1, d2, d3
            z += FOUR
            o += FOUR
        while z < end and indices[z] < stop:
            j0 = np.uint64(indices[z] - first)
            d0 = zero
            for t in range(width):
                d0 += rows[i, t] * direction[j0, t]
            for t in range(width):
                out[j0, t] += d0 * rows[i, t]
            residual[z] -= step[j0] * products[o]
            products[o] = d0
            z += ONE
            o += ONE


@njit(nogil=True, cache=True)
def tile_done(offsets, cursor, indices, residual, first, stop, step, products):
    """The last step leaves the residual, and the cursors move on; sum e^2 of the tile, in float64."""
    total = 0.0
    o = np.uint64(0)
    for i in range(np.uint64(len(cursor))):
        z, end = np.uint64(cursor[i]), np.uint64(offsets[i + ONE])
        while z < end and indices[z] < stop:
            residual[z] -= step[np.uint64(indices[z] - first)] * products[o]
            total += np.float64(residual[z]) ** 2
            z += ONE
            o += ONE
        cursor[i] = z
    return total


@njit(nogil=True, cache=True, fastmath=FAST)
def begin(slope, columns, weight, frozen, left):
    """The slope of some columns' objective from the sum over their ratings, in place; left_j =
    ||slope_j||^2.
    """
    for j in range(slope.shape[0]):
        for t in range(slope.shape[1]):
            slope[j, t] -= weight[j] * columns[j, t]
        if frozen >= 0:
            slope[j, frozen] = 0
        left[j] = 0
        for t in range(slope.shape[1]):
            left[j] += slope[j, t] * slope[j, t]


@njit(nogil=True, cache=True, fastmath=FAST)
def advance(images, direction, slope, weight, frozen, left, step, following):
    """A step of some columns along `direction`, given sum_i (x_i . p_j) x_i: its length, the next direction.

    `slope` and `left` are written, `step` and `following` are the results. A column that has arrived, or has
    no rating, has a step of 0.
    """
    for j in range(slope.shape[0]):
        if frozen >= 0:
            images[j, frozen] = 0
        curvature = slope.dtype.type(0)
        for t in range(slope.shape[1]):
            images[j, t] += weight[j] * direction[j, t]
            curvature += direction[j, t] * images[j, t]
        alive = left[j] > 0 and curvature > 0
        step[j] = left[j] / curvature if alive else 0
        before, left[j] = left[j], 0
        for t in range(slope.shape[1]):
            slope[j, t] -= step[j] * images[j, t]
            left[j] += slope[j, t] * slope[j, t]
        share = left[j] / before if alive else slope.dtype.type(0)
        for t in range(slope.shape[1]):
            following[j, t] = slope[j, t] + share * direction[j, t]


@njit(nogil=True, cache=True)
def move(columns, step, direction):
    """Add step_j p_j to every column's factors."""
    for j in range(columns.shape[0]):
        for t in range(columns.shape[1]):
            columns[j, t] += step[j] * direction[j, t]


@njit(nogil=True, cache=True, fastmath=FAST)
def solve_positive(offsets, indices, residual, rows, columns, weight, hold, frozen, first, sweeps):
    """Coordinate descent on every row by itself, its features from `first` on kept >= 0; as `solve_rows`
    else.
    """
    for i in range(rows.shape[0]):
        start, stop = offsets[i], offsets[i + 1]
        if start == stop:
            continue
        still = hold[i] if len(hold) else rows.dtype.type(0)
        origin = rows[i].copy()  # what holds a row holds it here, not where the last sweep left it
        for _ in range(sweeps):
            moved = rows.dtype.type(0)
            for t in range(rows.shape[1]):
                if t == frozen:
                    continue
                slope = -weight[i] * rows[i, t] - still * (rows[i, t] - origin[t])
                curvature = weight[i] + still
                for z in range(start, stop):
                    y = columns[indices[z], t]
                    slope += residual[z] * y
                    curvature += y * y
                if not curvature > 0:
                    continue
                x = rows[i, t] + slope / curvature
                if t >= first:
                    x = max(x, 0)
                change = x - rows[i, t]
                moved = max(moved, abs(change) / (1 + abs(x)))
                rows[i, t] = x
                if change != 0:
                    for z in range(start, stop):
                        residual[z] -= change * columns[indices[z], t]
            if moved < 1e-6:
                break
