"""Kernels over a rank's share of the design matrix, dense in either order or compressed.

Dense data come as a flat buffer of `count` vectors of `length` values, `stride` apart (columns of an
F-ordered X, rows of a C-ordered one), so that one kernel serves both orders and their slices.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# No "nnan", "ninf": the finiteness checks rely on NaN and inf behaving.
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
def dense_dots_at(flat, stride, length, ids, v, out):
    """out[o] = vector ids[o] . v; two vectors share a load of v."""
    count = out.size
    for o in range(0, count - 1, 2):
        a, b = ids[o] * stride, ids[o + 1] * stride
        s0 = s1 = 0.0
        for i in range(length):
            s0 += flat[a + i] * v[i]
            s1 += flat[b + i] * v[i]
        out[o], out[o + 1] = s0, s1
    if count % 2:
        a = ids[count - 1] * stride
        s0 = 0.0
        for i in range(length):
            s0 += flat[a + i] * v[i]
        out[count - 1] = s0


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
def dense_axpys_at(flat, stride, ids, v, out):
    """out[k] += sum_o v[o] vector_o[ids[k]]."""
    for o in range(v.size):
        start, c = o * stride, v[o]
        for k in range(ids.size):
            out[k] += c * flat[start + ids[k]]


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_refresh(flat, stride, length, ids, coef, weight, residual, grad):
    """residual[o] -= sum_k vector_o[ids[k]] coef[k]; grad += sum_o weight[o] residual[o] vector_o.

    In one pass over X in rows; four rows share a load and store of grad.
    """
    count = residual.size
    for first in range(0, count, 4):
        last = min(first + 4, count)
        for o in range(first, last):
            s = 0.0
            for k in range(ids.size):
                s += flat[o * stride + ids[k]] * coef[k]
            residual[o] -= s
        if last - first == 4:
            a = first * stride
            b, c, d = a + stride, a + 2 * stride, a + 3 * stride
            v0, v1 = weight[first] * residual[first], weight[first + 1] * residual[first + 1]
            v2, v3 = weight[first + 2] * residual[first + 2], weight[first + 3] * residual[first + 3]
            for i in range(length):
                grad[i] += v0 * flat[a + i] + v1 * flat[b + i] + v2 * flat[c + i] + v3 * flat[d + i]
        else:
            for o in range(first, last):
                v0 = weight[o] * residual[o]
                for i in range(length):
                    grad[i] += v0 * flat[o * stride + i]


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
def dense_moments_across(flat, stride, length, weight, centre, v, mean, spread, products):
    """Mean and centred weighted sum of squares of every vector (X compressed along its columns), and its
    product with weight * v where that has a size.
    """
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
        if v.size:
            s = 0.0
            for i in range(length):
                s += weight[i] * v[i] * (flat[start + i] - m)
            products[o] = s


@njit(nogil=True, cache=True, fastmath=FAST)
def dense_moments_along(flat, stride, count, weight, centre, v, mean, spread, products):
    """Mean and centred weighted sum of squares of every position over the vectors (X in rows), and the sum of
    weight * v times the vectors where v has a size; four vectors share loads and stores.
    """
    length = mean.size
    total = weight.sum()
    lead = leading(weight)[0] * stride
    mean[:] = 0.0
    spread[:] = 0.0
    products[:] = 0.0
    if centre and total > 0:
        for o in range(count):
            w = weight[o] / total
            for i in range(length):
                mean[i] += w * (flat[o * stride + i] - np.float64(flat[lead + i]))
        for i in range(length):
            mean[i] += flat[lead + i]
    o = 0
    while o + 4 <= count:
        a, b, c, d = o * stride, (o + 1) * stride, (o + 2) * stride, (o + 3) * stride
        wa, wb, wc, wd = weight[o], weight[o + 1], weight[o + 2], weight[o + 3]
        if v.size:
            va, vb, vc, vd = wa * v[o], wb * v[o + 1], wc * v[o + 2], wd * v[o + 3]
            for i in range(length):
                m = mean[i]
                xa, xb, xc, xd = flat[a + i] - m, flat[b + i] - m, flat[c + i] - m, flat[d + i] - m
                spread[i] += wa * xa * xa + wb * xb * xb + wc * xc * xc + wd * xd * xd
                products[i] += va * xa + vb * xb + vc * xc + vd * xd
        else:
            for i in range(length):
                m = mean[i]
                xa, xb, xc, xd = flat[a + i] - m, flat[b + i] - m, flat[c + i] - m, flat[d + i] - m
                spread[i] += wa * xa * xa + wb * xb * xb + wc * xc * xc + wd * xd * xd
        o += 4
    while o < count:
        w = weight[o]
        for i in range(length):
            x = flat[o * stride + i] - mean[i]
            spread[i] += w * x * x
            if v.size:
                products[i] += w * v[o] * x
        o += 1


@njit(nogil=True, cache=True)
def sparse_order(indices, offsets, length):
    """0: every vector's indices ascend strictly; 1: unsorted or repeated; 2: an index out of range."""
    stored = indices
    falls, least, most = 0, np.int64(0), np.int64(0)
    if stored.size:
        least = most = np.int64(stored[0])
    for k in range(1, stored.size):  # one flat loop over all entries is vectorised
        falls += stored[k] <= stored[k - 1]
        least, most = min(least, np.int64(stored[k])), max(most, np.int64(stored[k]))
    if least < 0 or most >= length:
        return 2
    last = 0  # from one vector to the next they may fall
    width = offsets[0]
    for o in range(1, stored.size // width if offsets.size == 1 and width else offsets.size - 1):
        k = o * width if offsets.size == 1 else offsets[o]
        if last < k < stored.size:
            falls -= stored[k] <= stored[k - 1]
        last = k
    return 1 if falls else 0


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_dots(values, indices, offsets, v, out):
    """out[o] = vector o . v."""
    for o in range(out.size):
        s = 0.0
        for k in entries(offsets, o):
            s += values[k] * v[np.uint64(indices[k])]
        out[o] = s


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_dots_at(values, indices, offsets, ids, v, out):
    """out[o] = vector ids[o] . v."""
    for o in range(out.size):
        s = 0.0
        for k in entries(offsets, ids[o]):
            s += values[k] * v[np.uint64(indices[k])]
        out[o] = s


@njit(nogil=True, cache=True)
def sparse_axpys(values, indices, offsets, v, out):
    """out += sum_o v[o] vector_o."""
    for o in range(v.size):
        c = v[o]
        if c != 0.0:
            for k in entries(offsets, o):
                out[np.uint64(indices[k])] += c * values[k]


@njit(nogil=True, cache=True)
def sparse_refresh(values, indices, offsets, coef, weight, residual, grad):
    """residual[o] -= vector o . coef; grad += sum_o weight[o] residual[o] vector_o: in one pass over rows."""
    for o in range(residual.size):
        s = 0.0
        for k in entries(offsets, o):
            s += values[k] * coef[np.uint64(indices[k])]
        residual[o] -= s
        c = weight[o] * residual[o]
        if c != 0.0:
            for k in entries(offsets, o):
                grad[np.uint64(indices[k])] += c * values[k]


@njit(nogil=True, cache=True)
def sparse_pick_axpys(values, indices, offsets, ids, coef, out):
    """out += sum_k coef[k] vector_ids[k]."""
    for k in range(ids.size):
        c = coef[k]
        for e in entries(offsets, ids[k]):
            out[np.uint64(indices[e])] += c * values[e]


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_moments_across(values, indices, offsets, weight, uniform, centre, mean, spread):
    """Mean and centred weighted sum of squares of every vector, zeros counted; `uniform`: weights are 1."""
    if uniform:  # without a look at indices
        for o in range(mean.size):
            place = entries(offsets, o)
            count = len(place)
            m = 0.0
            if centre and count:
                first = np.float64(values[place.start]) if count == weight.size else 0.0
                for k in entries(offsets, o):
                    m += np.float64(values[k]) - first
                m = first + m / weight.size
            s = (weight.size - count) * m * m
            for k in entries(offsets, o):
                x = np.float64(values[k]) - m
                s += x * x
            mean[o], spread[o] = m, s
        return
    total = weight.sum()
    _, rows = leading(weight)
    for o in range(mean.size):
        m, first, stored = 0.0, 0.0, 0
        if 0 < rows <= len(entries(offsets, o)):
            for k in entries(offsets, o):
                if weight[np.uint64(indices[k])] > 0.0:
                    if stored == 0:
                        first = np.float64(values[k])
                    stored += 1
            if stored < rows:
                first = 0.0
        if centre and total > 0:
            for k in entries(offsets, o):
                m += weight[np.uint64(indices[k])] * (values[k] - first)
            m = first + m / total
        s, held = 0.0, 0.0
        for k in entries(offsets, o):
            x = values[k] - m
            s += weight[np.uint64(indices[k])] * x * x
            held += weight[np.uint64(indices[k])]
        if stored < rows:
            s += max(total - held, 0.0) * m * m
        mean[o], spread[o] = m, s


@njit(nogil=True, cache=True, fastmath=FAST)
def sparse_moments_along(values, indices, offsets, weight, centre, v, mean, spread, products):
    """Mean and centred weighted sum of squares of every position over the vectors, zeros counted, and the sum
    of weight * v times the vectors where v has a size.
    """
    total = weight.sum()
    count = weight.size
    held = np.zeros(mean.size)
    mean[:] = 0.0
    spread[:] = 0.0
    products[:] = 0.0
    for o in range(count):
        w = weight[o]
        c = v[o] if v.size else 0.0
        if not centre:
            for k in entries(offsets, o):
                at, x = np.uint64(indices[k]), w * values[k]
                spread[at] += x * values[k]
                products[at] += x * c
        else:
            for k in entries(offsets, o):
                at, x = np.uint64(indices[k]), w * values[k]
                held[at] += w
                mean[at] += x
                spread[at] += x * values[k]
                products[at] += x * c
    if not (centre and total > 0):
        mean[:] = 0.0
        return
    careful = False  # sums of squares do for columns with zeros: their spread is no small difference
    for i in range(mean.size):
        careful |= held[i] > 0.999 * total
        m = mean[i] / total
        mean[i] = m
        s = spread[i] - total * m * m
        spread[i] = 0.0 if s < 0.0 else s  # nan stays nan
    if not careful:
        return
    lead, rows = leading(weight)
    stored = np.zeros(mean.size, np.int64)
    first = np.zeros(mean.size)
    for o in range(count):
        for k in entries(offsets, o):
            stored[np.uint64(indices[k])] += weight[o] > 0.0
    for k in entries(offsets, lead):
        if stored[np.uint64(indices[k])] == rows:
            first[np.uint64(indices[k])] = values[k]
    mean[:] = 0.0
    spread[:] = 0.0
    for o in range(count):
        w = weight[o] / total
        for k in entries(offsets, o):
            mean[np.uint64(indices[k])] += w * (values[k] - first[np.uint64(indices[k])])
    for i in range(mean.size):
        mean[i] += first[i]
    for o in range(count):
        w = weight[o]
        for k in entries(offsets, o):
            x = values[k] - mean[np.uint64(indices[k])]
            spread[np.uint64(indices[k])] += w * x * x
    for i in range(mean.size):
        if stored[i] < rows:
            spread[i] += max(total - held[i], 0.0) * mean[i] * mean[i]


@njit(nogil=True, cache=True)
def sparse_take(values, indices, offsets, ids, shift, scale, out_values, out_indices, out_offsets):
    """Vectors `ids`, less `shift`, times `scale` at their index (each as it is where that has size 0)."""
    place = np.uint64(0)
    for k in range(ids.size):
        out_offsets[k] = place
        for e in entries(offsets, ids[k]):
            out_indices[place] = indices[e]
            x = np.float64(values[e])
            if shift.size:
                x -= shift[k]
            out_values[place] = x * scale[np.uint64(indices[e])] if scale.size else x
            place += np.uint64(1)
    out_offsets[ids.size] = place
