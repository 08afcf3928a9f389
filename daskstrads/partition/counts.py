"""What counts are, and sparse blocks of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["LIMIT", "canonical", "count_damage", "index_type"]

LIMIT = 2**53  # below it a float64 holds every whole number


def count_damage(token: bytes) -> str:
    """Why a number is no count; empty: it is one."""
    value = float(token)
    if value < 0:
        return "is negative: counts are whole numbers from 0 on"
    if value != value or value in (np.inf, -np.inf):
        return "is no whole number: counts are"
    if value >= LIMIT:
        return "is too large: counts are read up to 2^53 - 1"
    if value != np.floor(value):
        return "is no whole number: counts are"
    return ""


def index_type(*largest: int) -> Any:
    """Of a sparse matrix with these extents: int32 where it is enough."""
    return np.int32 if max(largest) <= np.iinfo(np.int32).max else np.int64


def canonical(X: sp.csr_matrix) -> bool:
    """Sort the indices of each row of a matrix that is ours; whether none occurs twice in a row."""
    X.sort_indices()
    return bool(X.has_canonical_format)
