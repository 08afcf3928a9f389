"""Kernels of the streams: merge, count a union, and go from sparse to dense and back.

`index` arrays are sorted without repeats, uint32 or uint64; `value` arrays float32, float64, int32 or int64.
Callers pass read-only views, so that a pair of dtypes is one signature. An absent entry counts as +0.0,
as in a dense array: sparse and dense sums then agree bit for bit, -0.0 + absent = 0.0 included.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "count_union",
    "max_two",
    "merge_many",
    "merge_two",
    "scatter_add",
    "sum_runs",
    "to_dense",
    "to_sparse",
]


@njit(nogil=True, cache=True)
def merge_rest(index_a, value_a, index_b, value_b, i, j, index, value, n):
    """Sum of what two sparse vectors hold from i and j on, written from n on; where it ends."""
    zero = value.dtype.type(0)
    while i < index_a.size and j < index_b.size:
        a, b, x, y = index_a[i], index_b[j], value_a[i], value_b[j]
        # No branches: which side comes next is a coin toss that the processor cannot predict.
        has_a, has_b = a <= b, b <= a
        index[n] = a if has_a else b
        value[n] = (x if has_a else zero) + (y if has_b else zero)
        i += has_a
        j += has_b
        n += 1
    while i < index_a.size:
        index[n] = index_a[i]
        value[n] = value_a[i] + zero
        i += 1
        n += 1
    while j < index_b.size:
        index[n] = index_b[j]
        value[n] = value_b[j] + zero
        j += 1
        n += 1
    return n


@njit(nogil=True, cache=True)
def merge_runs(index_a, value_a, index_b, value_b, index, value):
    """Write the sum of two sparse vectors of long runs; the number of its entries.

    Eight entries at a time are copied where one side has a run. The output may overlap b, where that begins
    at or after the end of the entries of a.
    """
    zero = value.dtype.type(0)
    i = j = n = 0
    while i + 8 <= index_a.size and j + 8 <= index_b.size:
        if index_a[i + 7] < index_b[j]:
            for k in range(8):
                index[n + k] = index_a[i + k]
                value[n + k] = value_a[i + k] + zero
            i += 8
            n += 8
        elif index_b[j + 7] < index_a[i]:
            for k in range(8):
                index[n + k] = index_b[j + k]
                value[n + k] = value_b[j + k] + zero
            j += 8
            n += 8
        else:
            for _ in range(8):
                a, b, x, y = index_a[i], index_b[j], value_a[i], value_b[j]
                has_a, has_b = a <= b, b <= a
                index[n] = a if has_a else b
                value[n] = (x if has_a else zero) + (y if has_b else zero)
                i += has_a
                j += has_b
                n += 1
    return merge_rest(index_a, value_a, index_b, value_b, i, j, index, value, n)


@njit(nogil=True, cache=True)
def merge_halves(index_a, value_a, index_b, value_b, index, value):
    """Write the sum of two sparse vectors; the number of its entries.

    Each step waits for the comparison before it; two halves side by side wait at the same time.
    """
    zero = value.dtype.type(0)
    half = index_a.size // 2
    other = np.searchsorted(index_b, index_a[half]) if index_a.size else 0
    i = j = n = 0
    k, o, m = half, other, half + other
    while i < half and j < other and k < index_a.size and o < index_b.size:
        a, b, c, d = index_a[i], index_b[j], index_a[k], index_b[o]
        x, y, z, w = value_a[i], value_b[j], value_a[k], value_b[o]
        has_a, has_b, has_c, has_d = a <= b, b <= a, c <= d, d <= c
        index[n] = a if has_a else b
        value[n] = (x if has_a else zero) + (y if has_b else zero)
        index[m] = c if has_c else d
        value[m] = (z if has_c else zero) + (w if has_d else zero)
        i += has_a
        j += has_b
        k += has_c
        o += has_d
        n += 1
        m += 1
    end = merge_rest(index_a, value_a, index_b, value_b, k, o, index, value, m)
    n = merge_rest(index_a[:half], value_a[:half], index_b[:other], value_b[:other], i, j, index, value, n)
    for place in range(half + other, end):
        index[n] = index[place]
        value[n] = value[place]
        n += 1
    return n


@njit(nogil=True, cache=True)
def has_runs(index):
    """Whether most of a sample of the indices have their next seven right behind them."""
    step, found, seen = max(8, index.size // 64), 0, 0
    for i in range(0, index.size - 7, step):
        found += index[i + 7] - index[i] == 7
        seen += 1
    return 2 * found > seen


@njit(nogil=True, cache=True)
def merge_two(index_a, value_a, index_b, value_b):
    """Sum of two sparse vectors: (index, value) of the union of their entries, a + b where both have one."""
    most = index_a.size + index_b.size
    index, value = np.empty(most, index_a.dtype), np.empty(most, value_a.dtype)
    if has_runs(index_a) and has_runs(index_b):
        n = merge_runs(index_a, value_a, index_b, value_b, index, value)
    else:
        n = merge_halves(index_a, value_a, index_b, value_b, index, value)
    return index[:n], value[:n]


@njit(nogil=True, cache=True)
def max_two(index_a, value_a, index_b, value_b):
    """Maximum of two sparse vectors, absent entries being 0: (index, value) of the union of their entries.

    NaN where either has one; never -0.0.
    """
    most = index_a.size + index_b.size
    index, value = np.empty(most, index_a.dtype), np.empty(most, value_a.dtype)
    zero = value_a.dtype.type(0)
    i = j = n = 0
    while i < index_a.size or j < index_b.size:
        has_a = j == index_b.size or (i < index_a.size and index_a[i] <= index_b[j])
        has_b = i == index_a.size or (j < index_b.size and index_b[j] <= index_a[i])
        x = value_a[i] if has_a else zero
        y = value_b[j] if has_b else zero
        index[n] = index_a[i] if has_a else index_b[j]
        value[n] = (x if x > y or x != x else y) + zero
        i += has_a
        j += has_b
        n += 1
    return index[:n], value[:n]


@njit(nogil=True, cache=True)
def count_union(index_a, index_b):
    """Number of different indices in the two."""
    i = j = n = 0
    while i < index_a.size and j < index_b.size:
        a, b = index_a[i], index_b[j]
        i += a <= b
        j += b <= a
        n += 1
    return n + (index_a.size - i) + (index_b.size - j)


@njit(nogil=True, cache=True)
def merge_many(index, value, offsets, steps):
    """Sum of k sparse vectors in one call, O(log k) an entry: two by two in the order of `steps`.

    Vector s is `index[offsets[s]:offsets[s + 1]]` with its values; `steps` (k - 1, 2) is `tree.steps(k)`.
    All are overwritten.
    """
    spare_index, spare_value = np.empty_like(index), np.empty_like(value)
    stop = offsets[1:].copy()
    runs = has_runs(index[: stop[0]])
    moved = np.zeros(stop.size, np.bool_)  # whether a vector is in the spare arrays now
    for step in range(steps.shape[0]):
        left, right = steps[step]
        a, b, u, v = offsets[left], offsets[right], stop[left], stop[right]
        index_a, value_a = (spare_index[a:u], spare_value[a:u]) if moved[left] else (index[a:u], value[a:u])
        index_b, value_b = (spare_index[b:v], spare_value[b:v]) if moved[right] else (index[b:v], value[b:v])
        # To where left is not. The right one covers the ranks just after the left one, so there is room.
        out_index = index[a:v] if moved[left] else spare_index[a:v]
        out_value = value[a:v] if moved[left] else spare_value[a:v]
        if moved[left] == moved[right] and not runs:
            n = merge_halves(index_a, value_a, index_b, value_b, out_index, out_value)
        else:
            n = merge_runs(index_a, value_a, index_b, value_b, out_index, out_value)
        moved[left] = not moved[left]
        stop[left] = a + n
    if moved[0]:
        return spare_index[: stop[0]], spare_value[: stop[0]]
    return index[: stop[0]], value[: stop[0]]


@njit(nogil=True, cache=True)
def sum_runs(index, value):
    """(index, value) with the repeats of a sorted `index` added up in the order given."""
    out_index = np.empty(index.size, index.dtype)
    out_value = np.empty(index.size, value.dtype)
    n = 0
    for i in range(index.size):
        if n > 0 and out_index[n - 1] == index[i]:
            out_value[n - 1] += value[i]
        else:
            out_index[n] = index[i]
            out_value[n] = value[i]
            n += 1
    return out_index[:n], out_value[:n]


@njit(nogil=True, cache=True)
def to_dense(index, value, size):
    """New array of `size` values, zero where there is no entry."""
    dense = np.zeros(size, value.dtype)
    for i in range(index.size):
        dense[index[i]] = value[i]
    return dense


@njit(nogil=True, cache=True)
def scatter_add(dense, index, value):
    """New array: `dense` plus the sparse vector."""
    total = np.empty(dense.size, dense.dtype)
    zero = dense.dtype.type(0)
    for i in range(dense.size):
        total[i] = dense[i] + zero
    for i in range(index.size):
        total[index[i]] = dense[index[i]] + value[i]
    return total


@njit(nogil=True, cache=True)
def to_sparse(dense, index, value):
    """Write the nonzeros of `dense` (NaN is one, -0.0 is not) to `index` and `value`, made to measure."""
    n = 0
    for i in range(dense.size):
        if dense[i] != 0:
            index[n] = i
            value[n] = dense[i]
            n += 1
