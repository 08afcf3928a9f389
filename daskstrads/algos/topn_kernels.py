"""The best few of many scores, and products of pairs."""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}
_STRIDE = 64  # scores that are looked at together


@njit(nogil=True, cache=True)
def _worse(score, place, other, other_place):
    """Whether (score, place) comes after the other: lower, or as high and further back."""
    return score < other or (score == other and place > other_place)


@njit(nogil=True, cache=True)
def _sift(scores, places, size):
    """Restore the heap, whose root is the worst, after its root has changed."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _worse(scores[child + 1], places[child + 1], scores[child], places[child]):
            child += 1
        if not _worse(scores[child], places[child], scores[at], places[at]):
            return
        scores[at], scores[child] = scores[child], scores[at]
        places[at], places[child] = places[child], places[at]
        at = child


@njit(nogil=True, cache=True)
def _above(part, limit):
    """How many scores are above the limit: counting is done by whole vectors, finding the largest is not."""
    count = np.int32(0)
    for z in range(len(part)):
        count += np.int32(part[z] > limit)
    return count


@njit(nogil=True, cache=True)
def best(scores, barred, starts, excluded, count, found, values, lengths):
    """The `count` highest scores of every row, the best first, ties in order of their place.

    All rows leave out the places `barred`, row i `excluded[starts[i]:starts[i + 1]]`; its answer is in the
    first `lengths[i]` entries of `found` and `values` (rows, count). `scores` is written to.
    """
    for i in range(scores.shape[0]):
        row = scores[i]
        for z in barred:
            row[z] = -np.inf
        for z in range(starts[i], starts[i + 1]):
            row[excluded[z]] = -np.inf
        kept, places, size = values[i], found[i], 0
        start = 0
        while start < len(row):
            stop = min(start + _STRIDE, len(row))
            if size < count or _above(row[start:stop], kept[0]):
                for z in range(start, stop):
                    if row[z] == -np.inf:
                        continue
                    if size < count:
                        # The last leaf moves up to where its parent is worse.
                        at = size
                        size += 1
                        while at > 0:
                            parent = (at - 1) // 2
                            if not _worse(row[z], z, kept[parent], places[parent]):
                                break
                            kept[at], places[at] = kept[parent], places[parent]
                            at = parent
                        kept[at], places[at] = row[z], z
                    elif row[z] > kept[0]:
                        kept[0], places[0] = row[z], z
                        _sift(kept, places, size)
            start = stop
        lengths[i] = size
        for last in range(size - 1, 0, -1):  # the worst goes to the back
            kept[0], kept[last] = kept[last], kept[0]
            places[0], places[last] = places[last], places[0]
            _sift(kept, places, last)


@njit(nogil=True, cache=True, fastmath=FAST)
def pair_products(users, items, user_factors, item_factors, out):
    """out_z = x_(user z) . y_(item z); 0 where one of them is -1 (unknown)."""
    for z in range(len(users)):
        total = 0.0
        if users[z] >= 0 and items[z] >= 0:
            for t in range(user_factors.shape[1]):
                total += user_factors[users[z], t] * item_factors[items[z], t]
        out[z] = total
