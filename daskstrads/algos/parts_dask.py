"""What workers run for a fit on dask arrays: tasks that need no scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..partition import Compressed, Slab
from ..partition.collections_dask import scipy_block
from ..partition.collections_dask import slab as slab_of
from .lasso_columns import ColumnPart
from .lasso_rows import RowPart
from .problem import without_hidden

__all__ = ["all_finite", "is_dense", "measured", "predicted_block", "rank_part", "scaled_sum", "valid"]


def predicted_block(block: Any, coef: np.ndarray, intercept: Any) -> np.ndarray:
    """X b + c of a chunk, dense or sparse."""
    return np.asarray(scipy_block(block) @ coef.T) + intercept


def measured(slab: Slab) -> np.ndarray:
    """Stored entries of a slab, 1 if they are float32, 1 if it is dense; to be added up."""
    dense = isinstance(slab.matrix, np.ndarray)
    values = slab.matrix if dense else slab.matrix.values
    return np.array([slab.entries, values.dtype == np.float32, dense], np.int64)


def is_dense(block: Any) -> int:
    """1 for a dense block."""
    return int(isinstance(block, np.ndarray))


def all_finite(block: Any) -> bool:
    """Whether a chunk, dense or sparse, has no NaN and no infinity."""
    block = scipy_block(block)
    return bool(np.isfinite(block.data if sp.issparse(block) else block).all())


def scaled_sum(weight: np.ndarray, largest: float) -> float:
    """Sum of the weights over the largest of all: sums of weights may overflow."""
    return float(_scaled(weight, largest).sum())


def valid(weight: np.ndarray) -> bool:
    """Whether weights are finite and not negative."""
    return bool(np.isfinite(weight).all() and (weight >= 0).all())


def _scaled(weight: np.ndarray, largest: float) -> np.ndarray:
    weight = np.require(weight, np.float64, "A")
    if not (valid(weight) and largest > 0):
        raise ValueError("sample_weight must be finite and not negative, and not zero everywhere")
    weight = weight / largest
    weight[weight < 1e-290] = 0.0  # denormals lose their digits
    return weight


def rank_part(
    block: Any,
    place: tuple[int, int, int],
    targets: np.ndarray,
    k: int,
    weight: np.ndarray | None,
    scale: tuple[float, float] | None,
    start: np.ndarray | None,
    shape: tuple[int, int],
) -> ColumnPart | RowPart:
    """A rank's part for target `k`, made where its slab or block is (`place`: axis, start, stop).

    Weights over the first of `scale` sum to its second over all ranks; `start` None is zeros.

    Raises:
        ValueError: a block of another shape than its array says; NaN, infinity or complex numbers in y, or
            numbers that overflow; weights that are negative or all zero.
    """
    slab = block if isinstance(block, Slab) else slab_of(block, *place)
    matrix = slab.matrix
    length = matrix.length if isinstance(matrix, Compressed) else matrix.shape[1 - slab.axis]
    if length != shape[1 - slab.axis]:
        raise ValueError(f"a chunk of X has {length} entries along axis {1 - slab.axis}, X has shape {shape}")
    targets = np.asarray(targets)
    if targets.dtype.kind == "c":
        raise ValueError("Complex data not supported: y is complex")
    y = np.require(targets if targets.ndim == 1 else targets[:, k], np.float64, ["A", "C"])
    if not np.isfinite(y).all():
        raise ValueError("Input y contains NaN or infinity")
    if scale is None:
        weight = np.ones(len(y))
    else:
        weight = _scaled(np.asarray(weight), scale[0]) * (shape[0] / scale[1])
        slab, y = without_hidden(slab, weight), np.where(weight > 0, y, 0.0)
    if not np.isfinite(np.einsum("i,i,i->", weight, y, y)):
        raise ValueError("y is too large: its sum of squares overflows; rescale it")
    if start is None:
        start = np.zeros(slab.stop - slab.start if slab.axis == 1 else shape[1])
    return (ColumnPart if slab.axis == 1 else RowPart)(slab, y, weight, start)
