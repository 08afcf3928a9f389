"""Generated ratings: low rank, biases and noise, rounded to half stars; few users and items have most of
them.

Sizes: S 943 x 1 682 with 100 000 ratings, M 69 878 x 10 677 with 10 M, L 480 189 x 17 770 with 100 M (the
sizes of MovieLens 100K, MovieLens 10M and Netflix). A tenth of the ratings, drawn at random, is for
testing. A user's number of ratings is lognormal, an item's popularity a power law, no pair is rated twice.
The noise has a standard deviation of 0.75, so with the rounding no model's test RMSE is below about 0.764.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit
from workloads import default_cache

SIZES = {"S": (943, 1_682, 100_000), "M": (69_878, 10_677, 10_000_000), "L": (480_189, 17_770, 100_000_000)}
RANK, NOISE, MEAN = 30, 0.75, 3.55


class Ratings(NamedTuple):
    """Training ratings (users x items, float32), and test ratings as triples."""

    train: sp.csr_array
    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray

    def centred(self) -> Ratings:
        """Less the mean of the training ratings."""
        mean = np.float32(self.train.data.mean(dtype=np.float64))
        train = sp.csr_array(
            (self.train.data - mean, self.train.indices, self.train.indptr), self.train.shape
        )
        return Ratings(train, self.users, self.items, self.ratings - mean)

    def part(self, divisor: int) -> Ratings:
        """The first users, one in `divisor`."""
        users = self.train.shape[0] // divisor
        keep = self.users < users
        return Ratings(self.train[:users], self.users[keep], self.items[keep], self.ratings[keep])


def load_ratings(name: str, scale: int = 1, cache: Path | None = None) -> Ratings:
    """Ratings of a size divided by `scale`, kept in the cache folder."""
    place = Path(cache or default_cache()) / f"ratings-{name}-{scale}"
    fields = ("data", "indices", "indptr", "users", "items", "ratings")
    if not (place / "ratings.npy").exists():
        place.mkdir(parents=True, exist_ok=True)
        made = _made(*SIZES[name], scale)
        arrays = (made.train.data, made.train.indices, made.train.indptr, *made[1:])
        for field, array in zip(fields, arrays, strict=True):
            np.save(place / f"{field}.npy", array)
    found = {field: np.load(place / f"{field}.npy") for field in fields}
    n_users, n_items = _smaller(*SIZES[name][:2], scale)
    train = sp.csr_array((found["data"], found["indices"], found["indptr"]), shape=(n_users, n_items))
    train.has_canonical_format = True
    return Ratings(train, found["users"], found["items"], found["ratings"])


def _smaller(users: int, items: int, scale: int) -> tuple[int, int]:
    root = math.sqrt(scale)
    return max(20, int(users / root)), max(20, int(items / root))


def _made(users: int, items: int, entries: int, scale: int, seed: int = 0) -> Ratings:
    users, items = _smaller(users, items, scale)
    entries = entries // scale
    rng = np.random.default_rng(seed)
    degree = _degrees(rng, users, items, entries)
    offsets = np.concatenate([[0], np.cumsum(degree)])
    popularity = rng.permutation((np.arange(items) + items / 50) ** -1.3)
    ends = np.cumsum(popularity / popularity.sum())
    chosen = np.empty(offsets[-1], np.int32)
    _choose(offsets, ends, chosen, rng)
    decay = (1.0 + np.arange(RANK)) ** -0.5
    width = np.sqrt(decay * np.sqrt(0.45 / (decay**2).sum()))  # of x . y: variance 0.45
    x = (rng.standard_normal((users, RANK)) * width).astype(np.float32)
    y = (rng.standard_normal((items, RANK)) * width).astype(np.float32)
    bias = rng.normal(0, 0.40, users).astype(np.float32), rng.normal(0, 0.45, items).astype(np.float32)
    values = np.empty(offsets[-1], np.float32)
    for first in range(0, users, 4096):  # in pieces: of L, all products at once are 12 GB
        rows = np.arange(first, min(first + 4096, users))
        part = slice(offsets[rows[0]], offsets[rows[-1] + 1])
        who = np.repeat(rows, degree[rows])
        exact = MEAN + bias[0][who] + bias[1][chosen[part]] + np.einsum("ij,ij->i", x[who], y[chosen[part]])
        noisy = exact + NOISE * rng.standard_normal(len(who), np.float32)
        values[part] = np.clip(np.rint(2 * noisy) / 2, 0.5, 5.0)
    tested = rng.random(len(values), np.float32) < 0.1
    who = np.repeat(np.arange(users, dtype=np.int32), degree)
    kept = np.bincount(who[~tested], minlength=users)
    train = sp.csr_array(
        (values[~tested], chosen[~tested], np.concatenate([[0], np.cumsum(kept)])), shape=(users, items)
    )
    return Ratings(train, who[tested], chosen[tested], values[tested])


def _degrees(rng: np.random.Generator, users: int, items: int, entries: int) -> np.ndarray:
    """Ratings a user: at least 20 (or half the mean), at most 60 % of the items, lognormal between."""
    most, least = int(0.6 * items), min(20, entries // users // 2)
    shares = rng.lognormal(0, 1.15, users)
    degree = np.minimum(least + shares * (entries - least * users) / shares.sum(), most).astype(np.int64)
    while (short := entries - degree.sum()) > 0:
        below = np.flatnonzero(degree < most)
        degree[rng.choice(below, min(short, len(below)), replace=False)] += 1
    return degree


@njit(cache=True)
def _choose(offsets, ends, chosen, rng):
    """Different items for every user, drawn by popularity (`ends`: its cumulative sum); sorted."""
    mark = np.full(len(ends), -1, np.int64)
    for i in range(len(offsets) - 1):
        start, need = offsets[i], offsets[i + 1] - offsets[i]
        found, tries = 0, 0
        while found < need:
            tries += 1
            if tries < 20 * need:
                j = min(np.searchsorted(ends, rng.random()), len(ends) - 1)
            else:  # who rates nearly everything takes the rest as it comes
                j = rng.integers(0, len(ends))
            if mark[j] != i:
                mark[j] = i
                chosen[start + found] = j
                found += 1
        chosen[start : start + need].sort()
