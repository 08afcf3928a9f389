"""Gram matrices of chosen columns: of dense ones, from sparse rows, of compressed columns."""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}


# In every file that needs it: numba's cache does not notice when a function of another file changes.
@njit(nogil=True, cache=True)
def entries(offsets, o):
    """Places of vector o's entries; unsigned: to check whether one counts from the end costs a third."""
    if offsets.size == 1:  # all have as many
        width = np.uint64(offsets[0])
        return range(np.uint64(o) * width, np.uint64(o) * width + width)
    return range(np.uint64(offsets[o]), np.uint64(offsets[o + 1]))


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


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_rows_gram(flat, stride, ids, mean, weight, old, gram):
    """gram[a, b] += sum over rows of weight z_i,old+a z_ib for b <= old + a, z = X[:, ids] - mean.

    X in rows; eight rows share a load and store of gram.
    """
    k = ids.size
    z = np.empty((8, k))
    rows = weight.size
    for first in range(0, rows, 8):
        for r in range(8):
            o = first + r
            if o < rows:
                for b in range(k):
                    z[r, b] = flat[o * stride + ids[b]] - mean[b]
            else:
                for b in range(k):
                    z[r, b] = 0.0
        w0 = weight[first]
        w1 = weight[first + 1] if first + 1 < rows else 0.0
        w2 = weight[first + 2] if first + 2 < rows else 0.0
        w3 = weight[first + 3] if first + 3 < rows else 0.0
        w4 = weight[first + 4] if first + 4 < rows else 0.0
        w5 = weight[first + 5] if first + 5 < rows else 0.0
        w6 = weight[first + 6] if first + 6 < rows else 0.0
        w7 = weight[first + 7] if first + 7 < rows else 0.0
        for a in range(k - old):
            c = old + a
            u0, u1, u2, u3 = w0 * z[0, c], w1 * z[1, c], w2 * z[2, c], w3 * z[3, c]
            u4, u5, u6, u7 = w4 * z[4, c], w5 * z[5, c], w6 * z[6, c], w7 * z[7, c]
            for b in range(c + 1):
                gram[a, b] += (
                    u0 * z[0, b] + u1 * z[1, b] + u2 * z[2, b] + u3 * z[3, b]
                    + u4 * z[4, b] + u5 * z[5, b] + u6 * z[6, b] + u7 * z[7, b]
                )  # fmt: skip


@njit(nogil=True, cache=True)
def rows_gram(values, indices, offsets, weight, place, shift, old, gram):
    """gram[a, b] += sum over rows of weight x_i,old+a x_ib for b <= old + a, as `dense_gram`.

    place (p,) says which column of gram a column of X is, -1 for none; `shift`, a column of gram, is taken
    off its stored entries.
    """
    hits, found = np.empty(gram.shape[1], np.int64), np.empty(gram.shape[1])
    for o in range(weight.size):
        w = weight[o]
        if w == 0.0:
            continue
        count = new = 0
        for k in entries(offsets, o):
            b = place[np.uint64(indices[k])]
            if b >= 0:
                hits[count], found[count] = b, values[k] - shift[b]
                count += 1
                new += b >= old
        if new == 0:
            continue
        for s in range(count):
            a = hits[s] - old
            if a >= 0:
                x = w * found[s]
                for t in range(count):
                    if hits[t] <= hits[s]:
                        gram[a, hits[t]] += x * found[t]


@njit(nogil=True, cache=True)
def compressed_gram(values, indices, offsets, mean, total, work, gram):
    """gram = Z'Z of compressed columns z_j = x_j - mean_j scale; `work` (n,) is zero before and after."""
    k = mean.size
    for t in range(k):
        for e in entries(offsets, t):
            work[np.uint64(indices[e])] = values[e]
        for u in range(t + 1):
            s = 0.0
            for e in entries(offsets, u):
                s += values[e] * work[np.uint64(indices[e])]
            gram[t, u] = gram[u, t] = s - total * mean[t] * mean[u]
        for e in entries(offsets, t):
            work[np.uint64(indices[e])] = 0.0
