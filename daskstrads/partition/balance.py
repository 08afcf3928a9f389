"""Where to cut: ranges of equal work, by nonzeros and not by count."""

from __future__ import annotations

import numpy as np

__all__ = ["balanced_bounds"]


def balanced_bounds(offsets: np.ndarray, pieces: int) -> np.ndarray:
    """Cut the vectors whose entries start at `offsets` (count + 1, int) into ranges of equal nonzeros.

    Returns `pieces` + 1 places from 0 to count, ascending. Every vector also weighs a little by itself,
    so that empty ones are spread too. Ranges are empty only when there are fewer vectors than pieces.
    """
    count = len(offsets) - 1
    if pieces < 1:
        raise ValueError(f"cannot cut into {pieces} pieces")
    if pieces == 1:
        return np.array([0, count], np.int64)
    work = np.asarray(offsets, dtype=np.int64) - int(offsets[0]) + np.arange(count + 1)
    goals = work[-1] * np.arange(1, pieces) / pieces
    inner = np.searchsorted(work, goals)
    # The nearer of the two places around each goal.
    before = np.maximum(inner - 1, 0)
    inner = np.where(goals - work[before] < work[np.minimum(inner, count)] - goals, before, inner)
    bounds = np.concatenate([[0], inner, [count]]).astype(np.int64)
    if count < pieces:
        return np.maximum.accumulate(bounds)
    # Nobody empty-handed when there is something for everybody: every bound at least one past the last.
    place = np.arange(pieces + 1)
    bounds = np.maximum.accumulate(bounds - place) + place
    return np.minimum(bounds, count - pieces + place)
