"""Kernels of the wire form: sorted indices as narrow gaps or as bits, and back with every bound checked.

A gap is the distance to the smallest index that could follow: index[i] - index[i - 1] - 1, the first one
index[0] - start. A narrow gap that is all ones stands for the next entry of `wide`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["count_wide", "from_bits", "from_gaps", "to_bits", "to_gaps"]


@njit(nogil=True, cache=True)
def count_wide(index, start):
    """How many gaps do not fit 8 bits, and how many do not fit 16."""
    eight = sixteen = 0
    if index.size:
        gap = np.uint64(index[0]) - start
        eight += gap >= np.uint64(255)
        sixteen += gap >= np.uint64(65535)
    for i in range(1, index.size):
        gap = index[i] - index[i - 1]
        eight += gap > 255
        sixteen += gap > 65535
    return eight, sixteen


@njit(nogil=True, cache=True)
def to_gaps(index, start, narrow, wide):
    """Write the gaps of `index` from `start` on; `wide` is as long as `count_wide` says."""
    mark = np.uint64(255) if narrow.itemsize == 1 else np.uint64(65535)
    one = np.uint64(1)
    expected, place = start, 0
    for i in range(index.size):
        at = np.uint64(index[i])
        gap = at - expected
        if gap >= mark:
            narrow[i] = mark
            wide[place] = gap
            place += 1
        else:
            narrow[i] = gap
        expected = at + one


@njit(nogil=True, cache=True)
def from_gaps(narrow, wide, start, stop, index):
    """Write the indices that `to_gaps` took apart; whether they are some, all in [start, stop)."""
    mark = np.uint64(255) if narrow.itemsize == 1 else np.uint64(65535)
    one = np.uint64(1)
    expected, place = start, 0
    for i in range(narrow.size):
        gap = np.uint64(narrow[i])
        if gap == mark:
            if place == wide.size:
                return False
            gap = np.uint64(wide[place])
            place += 1
        if gap >= stop - expected:  # expected <= stop always: no overflow
            return False
        expected += gap
        index[i] = expected
        expected += one
    return place == wide.size


@njit(nogil=True, cache=True)
def to_bits(index, start, bits):
    """Set bit index - start, lowest first, in `bits` (uint64), which is zero before."""
    for i in range(index.size):
        place = np.uint64(index[i]) - start
        bits[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))


@njit(nogil=True, cache=True)
def from_bits(bits, start, stop, index):
    """Write the indices of the set bits; whether there are as many as `index` takes, all below `stop`."""
    one, count = np.uint64(1), 0
    for w in range(bits.size):
        word = bits[w]
        base = start + (np.uint64(w) << np.uint64(6))
        place = np.uint64(0)
        while word:
            if word & np.uint64(0xFF) == np.uint64(0):
                word >>= np.uint64(8)
                place += np.uint64(8)
                continue
            if word & one:
                if count == index.size or base + place >= stop:
                    return False
                index[count] = base + place
                count += 1
            word >>= one
            place += one
    return count == index.size
