"""Kernels over a rank's share of the design matrix, dense in either order or compressed.

Dense data come as a flat buffer of `count` vectors of `length` values, `stride` apart (columns of an
F-ordered X, rows of a C-ordered one), so that one kernel serves both orders and their slices.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# No "nnan", "ninf": the finiteness checks rely on NaN and inf behaving.
FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_dots(flat, stride, length, v, out):
    """out[o] = vector o . v; four vectors share a load of v."""
    count = out.size
    o = 0
    while o + 4 <= count:
        a, b, c, d = o * stride, (o + 1) * stride, (o + 2) * stride, (o + 3) * stride
        s0 = s1 = s2 = s3 = 0.0
        for i in range(length):
            vi = v[i]
            s0 += flat[a + i] * vi
            s1 += flat[b + i] * vi
            s2 += flat[c + i] * vi
            s3 += flat[d + i] * vi
        out[o], out[o + 1], out[o + 2], out[o + 3] = s0, s1, s2, s3
        o += 4
    while o < count:
        s0 = 0.0
        for i in range(length):
            s0 += flat[o * stride + i] * v[i]
        out[o] = s0
        o += 1


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_axpys(flat, stride, length, v, out):
    """out[i] += sum_o v[o] vector_o[i]; four vectors share a load and store of out."""
    count = v.size
    o = 0
    while o + 4 <= count:
        a, b, c, d = o * stride, (o + 1) * stride, (o + 2) * stride, (o + 3) * stride
        v0, v1, v2, v3 = v[o], v[o + 1], v[o + 2], v[o + 3]
        for i in range(length):
            out[i] += v0 * flat[a + i] + v1 * flat[b + i] + v2 * flat[c + i] + v3 * flat[d + i]
        o += 4
    while o < count:
        v0 = v[o]
        for i in range(length):
            out[i] += v0 * flat[o * stride + i]
        o += 1


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_pick_dots(flat, stride, count, ids, coef, out):
    """out[o] += sum_k vector_o[ids[k]] coef[k]: a product with few nonzero coefficients."""
    for o in range(count):
        s = 0.0
        for k in range(ids.size):
            s += flat[o * stride + ids[k]] * coef[k]
        out[o] += s


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_pick_axpys(flat, stride, length, ids, coef, out):
    """out[i] += sum_k coef[k] vector_ids[k][i]."""
    for k in range(ids.size):
        start, c = ids[k] * stride, coef[k]
        for i in range(length):
            out[i] += c * flat[start + i]


# Means are taken relative to a column's first value that has weight: what is constant has spread 0 exactly.
@njit(nogil=True, cache=True)
def leading(weight):
    """Place of the first positive weight (0 when there is none), and how many there are."""
    lead, count = 0, 0
    for i in range(weight.size):
        if weight[i] > 0.0:
            if count == 0:
                lead = i
            count += 1
    return lead, count


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_moments_across(flat, stride, length, weight, centre, mean, spread):
    """Mean and centred weighted sum of squares of every vector (X compressed along its columns)."""
    total = weight.sum()
    lead, _ = leading(weight)
    for o in range(mean.size):
        start = o * stride
        m = 0.0
        if centre and total > 0:
            first = np.float64(flat[start + lead])
            for i in range(length):
                m += weight[i] * (flat[start + i] - first)
            m = first + m / total
        s = 0.0
        for i in range(length):
            x = flat[start + i] - m
            s += weight[i] * x * x
        mean[o], spread[o] = m, s


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_moments_along(flat, stride, count, weight, centre, mean, spread):
    """Mean and centred weighted sum of squares of every position over the vectors (X in rows)."""
    length = mean.size
    total = weight.sum()
    lead = leading(weight)[0] * stride
    mean[:] = 0.0
    spread[:] = 0.0
    if centre and total > 0:
        for o in range(count):
            w = weight[o] / total
            for i in range(length):
                mean[i] += w * (flat[o * stride + i] - np.float64(flat[lead + i]))
        for i in range(length):
            mean[i] += flat[lead + i]
    for o in range(count):
        w = weight[o]
        for i in range(length):
            x = flat[o * stride + i] - mean[i]
            spread[i] += w * x * x


@njit(nogil=True, cache=True)
def sparse_order(indices, offsets, length):
    """0: every vector's indices ascend strictly; 1: unsorted or repeated; 2: an index out of range."""
    state = 0
    for o in range(offsets.size - 1):
        last = -1
        for k in range(offsets[o], offsets[o + 1]):
            i = indices[k]
            if i < 0 or i >= length:
                return 2
            if i <= last:
                state = 1
            last = i
    return state


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_dots(values, indices, offsets, v, out):
    """out[o] = vector o . v."""
    for o in range(out.size):
        s = 0.0
        for k in range(offsets[o], offsets[o + 1]):
            s += values[k] * v[indices[k]]
        out[o] = s


@njit(nogil=True, cache=True)
def sparse_axpys(values, indices, offsets, v, out):
    """out += sum_o v[o] vector_o."""
    for o in range(v.size):
        c = v[o]
        if c != 0.0:
            for k in range(offsets[o], offsets[o + 1]):
                out[indices[k]] += c * values[k]


@njit(nogil=True, cache=True)
def sparse_pick_axpys(values, indices, offsets, ids, coef, out):
    """out += sum_k coef[k] vector_ids[k]."""
    for k in range(ids.size):
        c = coef[k]
        for e in range(offsets[ids[k]], offsets[ids[k] + 1]):
            out[indices[e]] += c * values[e]


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_moments_across(values, indices, offsets, weight, centre, mean, spread):
    """Mean and centred weighted sum of squares of every vector, its zeros counted."""
    total = weight.sum()
    _, rows = leading(weight)
    for o in range(mean.size):
        start, stop = offsets[o], offsets[o + 1]
        m, first, stored = 0.0, 0.0, 0
        if 0 < rows <= stop - start:
            for k in range(start, stop):
                if weight[indices[k]] > 0.0:
                    if stored == 0:
                        first = np.float64(values[k])
                    stored += 1
            if stored < rows:
                first = 0.0
        if centre and total > 0:
            for k in range(start, stop):
                m += weight[indices[k]] * (values[k] - first)
            m = first + m / total
        s, held = 0.0, 0.0
        for k in range(start, stop):
            x = values[k] - m
            s += weight[indices[k]] * x * x
            held += weight[indices[k]]
        if stored < rows:
            s += max(total - held, 0.0) * m * m
        mean[o], spread[o] = m, s


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_moments_along(values, indices, offsets, weight, centre, mean, spread):
    """Mean and centred weighted sum of squares of every position over the vectors, zeros counted."""
    total = weight.sum()
    count = offsets.size - 1
    lead, rows = leading(weight)
    held = np.zeros(mean.size)
    stored = np.zeros(mean.size, np.int64)
    first = np.zeros(mean.size)
    mean[:] = 0.0
    spread[:] = 0.0
    for o in range(count):
        for k in range(offsets[o], offsets[o + 1]):
            held[indices[k]] += weight[o]
            stored[indices[k]] += weight[o] > 0.0
    if centre and total > 0:
        for k in range(offsets[lead], offsets[lead + 1]):
            if stored[indices[k]] == rows:
                first[indices[k]] = values[k]
        for o in range(count):
            w = weight[o] / total
            for k in range(offsets[o], offsets[o + 1]):
                mean[indices[k]] += w * (values[k] - first[indices[k]])
        for i in range(mean.size):
            mean[i] += first[i]
    for o in range(count):
        w = weight[o]
        for k in range(offsets[o], offsets[o + 1]):
            x = values[k] - mean[indices[k]]
            spread[indices[k]] += w * x * x
    for i in range(mean.size):
        if stored[i] < rows:
            spread[i] += max(total - held[i], 0.0) * mean[i] * mean[i]


@njit(nogil=True, cache=True)
def sparse_take(values, indices, offsets, ids, scale, out_values, out_indices, out_offsets):
    """Vectors `ids`, their values times `scale` at their index (scale of size 0: as they are)."""
    place = 0
    for k in range(ids.size):
        out_offsets[k] = place
        for e in range(offsets[ids[k]], offsets[ids[k] + 1]):
            i = indices[e]
            out_indices[place] = i
            out_values[place] = values[e] * scale[i] if scale.size else values[e]
            place += 1
    out_offsets[ids.size] = place


@njit(nogil=True, cache=True, fastmath=FAST)
def gram_tile(A, a, B, b, first, last, gram):
    """gram[a:a+4, b:b+4] += A[a:a+4] B[b:b+4]' over [first, last): sixteen products share eight loads."""
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = 0.0
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = 0.0
    for i in range(first, last):
        w, x, y, z = B[b, i], B[b + 1, i], B[b + 2, i], B[b + 3, i]
        v = A[a, i]
        s00, s01, s02, s03 = s00 + v * w, s01 + v * x, s02 + v * y, s03 + v * z
        v = A[a + 1, i]
        s10, s11, s12, s13 = s10 + v * w, s11 + v * x, s12 + v * y, s13 + v * z
        v = A[a + 2, i]
        s20, s21, s22, s23 = s20 + v * w, s21 + v * x, s22 + v * y, s23 + v * z
        v = A[a + 3, i]
        s30, s31, s32, s33 = s30 + v * w, s31 + v * x, s32 + v * y, s33 + v * z
    sums = (s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33)
    for place in range(16):
        gram[a + place // 4, b + place % 4] += sums[place]


@njit(nogil=True, cache=True, fastmath=FAST)
def gram_entry(A, a, B, b, first, last, gram):
    """gram[a, b] += A[a] . B[b] over [first, last)."""
    s = 0.0
    for i in range(first, last):
        s += A[a, i] * B[b, i]
    gram[a, b] += s


@njit(nogil=True, cache=True)
def dense_gram(A, B, old, gram):
    """gram[a, b] += A[a] . B[b] for b <= old + a; A (k, n) are the last rows of B (old + k, n).

    What lies above that diagonal is the mirror image, and is left to the caller.
    """
    k, n = A.shape
    for first in range(0, n, 256):  # pieces of the vectors that stay in cache
        last = min(first + 256, n)
        for a in range(0, k - 3, 4):
            stop = min(old + a + 4, B.shape[0])
            for b in range(0, stop - 3, 4):
                gram_tile(A, a, B, b, first, last, gram)
            for b in range(stop - stop % 4, stop):
                for c in range(a, a + 4):
                    gram_entry(A, c, B, b, first, last, gram)
        for a in range(k - k % 4, k):
            for b in range(old + a + 1):
                gram_entry(A, a, B, b, first, last, gram)


@njit(nogil=True, cache=True)
def rows_gram(values, indices, offsets, weight, place_a, place_b, old, gram):
    """gram[a, b] += sum over rows of weight x_ia x_ib for b <= old + a, as `dense_gram`.

    place_a and place_b say which row and column of gram a column of X is, -1 for none.
    """
    for o in range(offsets.size - 1):
        w = weight[o]
        if w == 0.0:
            continue
        for k in range(offsets[o], offsets[o + 1]):
            a = place_a[indices[k]]
            if a >= 0:
                x = w * values[k]
                for e in range(offsets[o], offsets[o + 1]):
                    b = place_b[indices[e]]
                    if 0 <= b <= old + a:
                        gram[a, b] += x * values[e]


@njit(nogil=True, cache=True)
def compressed_gram(values, indices, offsets, mean, total, work, gram):
    """gram = Z'Z of compressed columns z_j = x_j - mean_j scale; `work` (n,) is zero before and after."""
    k = mean.size
    for t in range(k):
        for e in range(offsets[t], offsets[t + 1]):
            work[indices[e]] = values[e]
        for u in range(t + 1):
            s = 0.0
            for e in range(offsets[u], offsets[u + 1]):
                s += values[e] * work[indices[e]]
            gram[t, u] = gram[u, t] = s - total * mean[t] * mean[u]
        for e in range(offsets[t], offsets[t + 1]):
            work[indices[e]] = 0.0
