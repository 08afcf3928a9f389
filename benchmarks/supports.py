"""Sparse vectors to be summed: uniform, clustered and Zipf supports, one a rank, from a seed."""

from __future__ import annotations

import numpy as np

SUPPORTS = ("uniform", "clustered", "zipf")
RUN = 256  # entries of a cluster


def support(kind: str, size: int, density: float, rank: int) -> np.ndarray:
    """Sorted indices (k,) uint32 that rank `rank` has.

    uniform: each position with probability `density`. clustered: runs of RUN positions at
    random places. zipf: position i with a probability that falls as 1 / (i + c), c such that the densest part
    of the vector is about full, as gradients of text models are.
    """
    rng = np.random.default_rng([rank, int(1e9 * density), SUPPORTS.index(kind)])
    if kind == "uniform":
        return np.flatnonzero(rng.random(size) < density).astype(np.uint32)
    if kind == "clustered":
        length = min(RUN, max(1, round(density * size)))
        runs = np.sort(rng.choice(size // RUN, max(1, round(density * size / RUN)), replace=False))
        return (runs[:, None] * RUN + np.arange(length)).ravel().astype(np.uint32)
    weight = 1.0 / (np.arange(size) + 0.002 * density * size + 1.0)
    weight *= density * size / weight.sum()
    for _ in range(40):  # what a full position cannot take goes to the others
        over = weight > 0.95
        if not over.any():
            break
        rest = density * size - 0.95 * over.sum()
        weight[over] = 0.95
        weight[~over] *= rest / weight[~over].sum()
        if (weight <= 0.95).all():
            break
    return np.flatnonzero(rng.random(size) < weight).astype(np.uint32)


def values(index: np.ndarray, rank: int) -> np.ndarray:
    """Values (k,) float32."""
    return np.random.default_rng(rank).standard_normal(index.size).astype(np.float32)
