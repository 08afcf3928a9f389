"""What workers run for a fit on dask arrays: tasks that need no scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..partition import Slab
from ..partition.collections_dask import slab as slab_of
from .lasso_columns import ColumnPart
from .lasso_rows import RowPart

__all__ = ["measured", "predicted_block", "rank_part"]


def predicted_block(block: Any, coef: np.ndarray, intercept: Any) -> np.ndarray:
    """X b + c of a chunk, dense or sparse."""
    if hasattr(block, "to_scipy_sparse"):
        block = block.to_scipy_sparse()
    return np.asarray(block @ coef.T) + intercept


def measured(slab: Slab) -> np.ndarray:
    """Stored entries of a slab, 1 if they are float32, 1 if it is dense; to be added up."""
    dense = isinstance(slab.matrix, np.ndarray)
    values = slab.matrix if dense else slab.matrix.values
    return np.array([slab.entries, values.dtype == np.float32, dense], np.int64)


def rank_part(
    block: Any,
    place: tuple[int, int, int],
    y: np.ndarray,
    weight: np.ndarray | None,
    start: np.ndarray | None,
    shape: tuple[int, int],
    total: float | None,
) -> ColumnPart | RowPart:
    """A rank's part, made where its slab or block is (`place`: axis, start, stop).

    Weights sum to n over all ranks; `start` None is zeros.

    Raises:
        ValueError: NaN or infinity in y, or weights that are negative or all zero.
    """
    y = np.require(y, np.float64, "A")
    if not np.isfinite(y).all():
        raise ValueError("Input y contains NaN or infinity")
    if weight is None:
        weight = np.ones(len(y))
    else:
        weight = np.require(weight, np.float64, "A")
        if not (np.isfinite(weight).all() and (weight >= 0).all() and total):
            raise ValueError("sample_weight must be finite and not negative, and not zero everywhere")
        weight = weight * (shape[0] / total)
    slab = block if isinstance(block, Slab) else slab_of(block, *place)
    if start is None:
        start = np.zeros(slab.stop - slab.start if slab.axis == 1 else shape[1])
    return (ColumnPart if slab.axis == 1 else RowPart)(slab, y, weight, start)
