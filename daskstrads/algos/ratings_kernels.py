"""Kernels over a rank's ratings: their layout, the first factors, and what is left of them."""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@njit(nogil=True, cache=True)
def arrange(values, indices, offsets, place, mean, residual, columns):
    """Write every row's ratings less `mean`, and the places of their columns, ascending.

    `place` (columns,) int64: where each column has gone. Returns the first row with an index outside of it,
    or with the same column twice; -1 for none.
    """
    longest = 0
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    keys = np.empty(longest, np.int64)
    for i in range(len(offsets) - 1):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        for z in range(length):
            column = np.int64(indices[start + z])
            if column < 0 or column >= len(place):
                return i
            keys[z] = place[column] * longest + z
        row = keys[:length]
        row.sort()
        last = np.int64(-1)
        for z in range(length):
            here, source = row[z] // longest, row[z] % longest
            if here == last:
                return i
            last = here
            columns[start + z] = here
            residual[start + z] = values[start + source] - mean
    return -1


@njit(nogil=True, cache=True)
def _mixed(x):
    """A bijection of 64 bits under which neighbours have nothing in common (splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def draw(seed, ids, scale, positive, factors):
    """Fill `factors` (ids, features) with uniform numbers of variance scale^2, or in [0, scale) if
    `positive`.

    A number depends on the seed, the id and the feature alone.
    """
    spread = 2.0 * scale * np.sqrt(3.0)
    for i in range(len(ids)):
        base = _mixed(np.uint64(seed) + np.uint64(_GOLDEN) * (np.uint64(ids[i]) + np.uint64(1)))
        for t in range(factors.shape[1]):
            word = _mixed(base + np.uint64(_GOLDEN) * np.uint64(t + 1))
            share = np.float64(word >> np.uint64(40)) / 16777216.0
            factors[i, t] = scale * share if positive else spread * (share - 0.5)


@njit(nogil=True, cache=True, fastmath=FAST)
def subtract(offsets, indices, rows, columns, residual):
    """residual_ij -= x_i . y_j for all ratings."""
    for i in range(len(offsets) - 1):
        for z in range(np.uint64(offsets[i]), np.uint64(offsets[i + 1])):
            j = np.uint64(indices[z])
            product = rows.dtype.type(0)
            for t in range(rows.shape[1]):
                product += rows[i, t] * columns[j, t]
            residual[z] -= product


@njit(nogil=True, cache=True, fastmath=FAST)
def penalty_of(factors, weight, frozen):
    """sum_i weight_i ||x_i||^2 in float64, without the feature `frozen` (-1: with all)."""
    total = 0.0
    for i in range(factors.shape[0]):
        row = 0.0
        for t in range(factors.shape[1]):
            x = np.float64(factors[i, t])
            row += x * x if t != frozen else 0.0
        total += np.float64(weight[i]) * row
    return total
