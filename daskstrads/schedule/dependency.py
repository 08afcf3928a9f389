"""The dependency check: which candidates may be updated at the same time."""

from __future__ import annotations

import numpy as np

__all__ = ["independent"]


def independent(gram: np.ndarray, rho: float) -> np.ndarray:
    """Places (ascending) of the candidates that may be updated together (STRADS, section 4).

    `gram` is the (k, k) Gram matrix of the candidates' columns in order of priority. Greedy: a candidate
    stays when |g_ij| / sqrt(g_ii g_jj) < rho for every earlier one that stays; its rivals wait for a
    later round. A zero column depends on nothing.
    """
    norms = np.sqrt(np.diagonal(gram))
    scale = np.where(norms > 0, norms, 1.0)
    clash = np.abs(gram) >= rho * scale[:, None] * scale
    clash[norms == 0, :] = clash[:, norms == 0] = False
    kept: list[int] = []
    blocked = np.zeros(len(gram), dtype=bool)
    for place in range(len(gram)):
        if not blocked[place]:
            kept.append(place)
            blocked |= clash[place]
    return np.array(kept, dtype=np.int64)
