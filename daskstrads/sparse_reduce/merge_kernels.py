"""Kernels of the streams: merge, count a union, and go from sparse to dense and back.

`index` arrays are sorted without repeats, uint32 or uint64; `value` arrays float32, float64, int32 or int64.
Callers pass read-only views, so that a pair of dtypes is one signature. An absent entry counts as +0.0,
as in a dense array: sparse and dense sums then agree bit for bit, -0.0 + absent = 0.0 included.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["count_union", "merge_many", "merge_two", "scatter_add", "sum_runs", "to_dense", "to_sparse"]


@njit(nogil=True, cache=True)
def merge_two(index_a, value_a, index_b, value_b):
    """Sum of two sparse vectors: (index, value) of the union of their entries, a + b where both have one."""
    most = index_a.size + index_b.size
    index = np.empty(most, index_a.dtype)
    value = np.empty(most, value_a.dtype)
    zero = value_a.dtype.type(0)
    i = j = n = 0
    while i < index_a.size and j < index_b.size:
        a, b = index_a[i], index_b[j]
        # No branches: which side comes next is a coin toss that the processor cannot predict.
        has_a, has_b = a <= b, b <= a
        index[n] = a if has_a else b
        value[n] = (value_a[i] if has_a else zero) + (value_b[j] if has_b else zero)
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
    """
    index = index.copy()
    value = value.copy()
    stop = offsets[1:].copy()
    for step in range(steps.shape[0]):
        left, right = steps[step]
        a, b = offsets[left], offsets[right]
        merged, total = merge_two(
            index[a : stop[left]], value[a : stop[left]], index[b : stop[right]], value[b : stop[right]]
        )
        # The right one covers the ranks just after the left one, so there is room for both.
        stop[left] = a + merged.size
        index[a : stop[left]] = merged
        value[a : stop[left]] = total
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
