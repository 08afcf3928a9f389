"""Brute-force oracles that everything is compared with: slow, obvious, and written without the library."""

import numpy as np


def tree_total(values, add):
    """Total of one value a rank in T(P) order: pair the ranks beyond a power of two, then halve and halve."""
    power = 1
    while 2 * power <= len(values):
        power *= 2
    pairs = len(values) - power
    nodes = [add(values[2 * i], values[2 * i + 1]) for i in range(pairs)] + list(values[2 * pairs :])

    def halves(part):
        middle = len(part) // 2
        return part[0] if middle == 0 else add(halves(part[:middle]), halves(part[middle:]))

    return halves(nodes)


def add_entries(a, b):
    """Sum of two sparse vectors held as {index: numpy scalar}; what one of them lacks is +0.0."""
    total = {}
    with np.errstate(all="ignore"):
        for i in sorted({*a, *b}):
            zero = type(a[i] if i in a else b[i])(0)
            total[i] = a.get(i, zero) + b.get(i, zero)
    return total


def add_arrays(a, b):
    """Sum of two arrays, one scalar at a time."""
    total = np.empty(a.shape, a.dtype)
    with np.errstate(all="ignore"):
        for position in np.ndindex(a.shape):
            total[position] = a[position] + b[position]
    return total


def entries_of_pairs(index, value):
    """{index: scalar} of (index, value) pairs, repeats added in the order given."""
    total = {}
    with np.errstate(all="ignore"):
        for i, v in zip(index, value, strict=True):
            total[int(i)] = total[int(i)] + v if int(i) in total else v
    return total


def dense_of_entries(entries, size, dtype):
    """The vector behind {index: scalar}."""
    dense = np.zeros(size, dtype)
    for i, v in entries.items():
        dense[i] = v
    return dense


def bits(x):
    """What must be equal: dtype, shape and bytes, except that one NaN is as good as another."""
    x = np.array(x)
    if x.dtype.kind == "f":
        x[np.isnan(x)] = np.nan
    return x.dtype, x.shape, x.tobytes()
