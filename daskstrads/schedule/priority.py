"""A rank's side of dynamic priority: which of its variables it proposes."""

from __future__ import annotations

import numpy as np

__all__ = ["Recency", "strongest"]


def strongest(weights: np.ndarray, count: int, floor: float = 0.0) -> np.ndarray:
    """Places of the `count` largest weights above `floor`, ascending; no full sort."""
    places = np.flatnonzero(weights > floor)
    if len(places) > count:
        chosen = np.argpartition(weights[places], len(places) - count)[len(places) - count :]
        places = np.sort(places[chosen])
    return places


class Recency:
    """Candidates by recent change plus eta (STRADS, section 4) over `size` variables, without an O(J) draw.

    STRADS draws j with probability |b_j(t-1) - b_j(t-2)| + eta. That is a mixture: with the share of the
    recent changes a draw among the variables that changed, with the share of eta a uniform draw over all;
    both cost O(candidates). Variables that were proposed but not updated (rivals of the dependency
    check) keep their weight, so their turn comes.
    """

    def __init__(self, size: int, rng: np.random.Generator, eta: float = 0.01):
        self.size, self.eta = size, eta
        self._rng = rng
        self._weights: dict[int, float] = {}

    def restart(self, places: np.ndarray, weights: np.ndarray) -> None:
        """Forget the past; `weights` (the change each variable would make now) are known for `places`."""
        self._weights = {int(j): float(w) for j, w in zip(places, weights, strict=True) if w > 0}

    def record(self, places: np.ndarray, changes: np.ndarray) -> None:
        """The variables at `places` changed by |changes|."""
        for j, change in zip(places, changes, strict=True):
            if change != 0:
                self._weights[int(j)] = abs(float(change))
            else:
                self._weights.pop(int(j), None)

    def propose(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` places and their weights, drawn without replacement."""
        if not self.size:
            return np.empty(0, np.int64), np.empty(0)
        known = np.fromiter(self._weights.keys(), np.int64, len(self._weights))
        weights = np.fromiter(self._weights.values(), np.float64, len(self._weights))
        floor = self.eta * weights.mean() if len(weights) else 1.0
        recent, everything = weights.sum(), floor * self.size
        from_all = self._rng.binomial(count, everything / (recent + everything))
        if len(known) > count - from_all:
            # Exponential keys: the smallest ones are a weighted sample without replacement.
            keys = self._rng.exponential(size=len(known)) / weights
            best = np.argpartition(keys, count - from_all)[: count - from_all]
            known, weights = known[best], weights[best]
        drawn = np.unique(self._rng.integers(0, self.size, from_all))
        drawn = drawn[~np.isin(drawn, known)]
        places = np.concatenate([known, drawn])
        weights = np.concatenate([weights + floor, np.full(len(drawn), floor)])
        order = np.argsort(places)
        return places[order], weights[order]
