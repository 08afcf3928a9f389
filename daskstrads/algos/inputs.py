"""What a fit is given, checked: parameters, and arrays that this process holds, cut into shards."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import _check_sample_weight, validate_data

from ..comm.local import launch
from ..engine.run import check_memory, on_cluster
from ..partition import Slab, split, split_axis
from .design import SparseDesign
from .lasso_columns import ColumnPart
from .lasso_rows import RowPart
from .problem import Problem, check_finite, check_sparse, without_hidden

if TYPE_CHECKING:
    from .lasso import ElasticNet

__all__ = ["COLUMN_TAKEN", "check_parameters", "problem_of", "start_coefficients"]

COLUMN_TAKEN = (  # scikit-learn's words
    "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
    "(n_samples, ), for example using ravel()."
)


def check_parameters(model: ElasticNet) -> None:
    """Raise TypeError or ValueError for a parameter of the wrong type, or out of range."""
    for name, low, high in (
        ("alpha", 0, np.inf), ("l1_ratio", 0, 1), ("tol", 0, np.inf), ("max_iter", 1, np.inf),
        ("rho", 0, np.inf), ("n_shards", 1, np.inf),
    ):  # fmt: skip
        value: Any = getattr(model, name, 1)  # Lasso has no l1_ratio
        if value is None and name in ("rho", "n_shards"):
            continue
        kind = Integral if name in ("max_iter", "n_shards") else Real
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{name} must be {kind.__name__.lower()}, got {value!r}")
        if not low <= float(value) <= high or (name == "alpha" and np.isinf(float(value))):
            raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")
    for name in ("fit_intercept", "copy_X", "warm_start", "positive"):
        if not isinstance(getattr(model, name), bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {getattr(model, name)!r}")
    choices_of = {"selection": ("dynamic", "cyclic", "random"), "update": ("exact", "apart", "parallel")}
    for name, choices in choices_of.items():
        if getattr(model, name) not in choices:
            raise ValueError(f"{name} must be one of {choices}, got {getattr(model, name)!r}")


def _weights(sample_weight: Any, X: Any) -> np.ndarray:
    """Weights (n,) that sum to n: only their ratios matter, as in scikit-learn's Lasso."""
    if sample_weight is None:
        return np.ones(X.shape[0])
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():
        raise ValueError("sample_weight is zero everywhere: there is nothing to fit")
    weight = weight / weight.max()
    weight[weight < 1e-290] = 0.0  # denormals lose their digits
    return weight * (len(weight) / weight.sum())


def problem_of(model: ElasticNet, X: Any, y: Any, sample_weight: Any) -> Problem:
    """What is to be fitted, checked, and cut into shards."""
    if sp.issparse(y):
        raise TypeError("y is sparse; fit takes a dense one: y.toarray(), or .ravel() of that for one target")
    # X's entries are checked by the ranks, in their first pass, where they are threads.
    kinds = {"accept_sparse": ("csc", "csr"), "dtype": [np.float64, np.float32]}
    X, y = validate_data(model, X, y, **kinds, multi_output=True, y_numeric=True, ensure_all_finite=False)
    column = np.ndim(y) == 2 and np.shape(y)[1] == 1
    if column:
        y = np.ravel(y)
    targets = np.asarray(y, np.float64).reshape(len(y), -1)
    if np.isnan(targets).any():
        raise ValueError("Input y contains NaN")
    weight = _weights(sample_weight, X)
    if not weight.all():
        targets = np.where(weight[:, None] > 0, targets, 0.0)  # 0 times something huge is nan
    squares = np.einsum("i,ij,ij->j", weight, targets, targets)
    if not np.isfinite(squares).all():
        raise ValueError("y is too large: its sum of squares overflows; rescale it")
    if squares.min() < 1e-290 and (targets[weight > 0][:, squares < 1e-290] != 0).any():
        raise ValueError("y is too small: its sum of squares underflows; rescale it")
    X, slabs = _slabs(model, X)
    if on_cluster():  # where that would have to travel first
        check_finite(X)
    if slabs[0].axis == 1:
        rows = [slice(None)] * len(slabs)
    else:
        rows = [slice(slab.start, slab.stop) for slab in slabs]
    slabs = [without_hidden(slab, weight[each]) for slab, each in zip(slabs, rows, strict=True)]

    def parts(k: int, start: np.ndarray) -> list[Any]:
        y = np.ascontiguousarray(targets[:, k])
        if slabs[0].axis == 1:
            return [ColumnPart(slab, y, weight, start[slab.start : slab.stop]) for slab in slabs]
        return [RowPart(slab, y[each], weight[each], start) for slab, each in zip(slabs, rows, strict=True)]

    entries = sum(slab.entries for slab in slabs)
    weighted = bool((weight != 1.0).any())
    return Problem(
        X.shape, slabs[0].axis, entries, X.dtype, targets.shape[1], np.ndim(y) == 1, column, weighted, parts
    )


def _slabs(model: ElasticNet, X: Any) -> tuple[Any, list[Slab]]:
    """X's shards; a sparse X with unsorted or repeated entries is put right on a copy."""
    axis = split_axis(X.shape)
    entries = X.nnz if sp.issparse(X) else X.size
    size = model._n_ranks(X.shape, entries)
    check_memory(model.memory_plan(X.shape, entries if sp.issparse(X) else None, dtype=X.dtype, n_ranks=size))
    if not sp.issparse(X):
        return X, split(X, size, axis)
    check_sparse(X, converted=X.format != ("csc" if axis == 1 else "csr"))
    given, X = X, X.tocsc() if axis == 1 else X.tocsr()
    slabs = split(X, size, axis, owned=X is not given)
    if any(launch(lambda _, slab: SparseDesign(slab.matrix, slab.axis).order(), slabs)):
        X = X.copy()
        X.sum_duplicates()
        slabs = split(X, size, axis, owned=True)
    return X, slabs


def start_coefficients(model: ElasticNet, p: int, targets: int) -> np.ndarray:
    """Coefficients (targets, p) that a fit starts from: the last ones with `warm_start`, else zeros.

    Raises:
        ValueError: the last ones have another shape, or are not finite.
    """
    if not (model.warm_start and hasattr(model, "coef_")):
        return np.zeros((targets, p))
    if not np.isfinite(model.coef_).all():
        raise ValueError("warm_start: coef_ is not finite; refit with warm_start=False")
    start = np.asarray(model.coef_, np.float64).reshape(-1, p) if np.size(model.coef_) % p == 0 else None
    if start is None or len(start) != targets:
        raise ValueError(
            f"warm_start: coef_ has shape {np.shape(model.coef_)}, the data need ({targets}, {p}); "
            "refit with warm_start=False"
        )
    return np.maximum(start, 0.0) if model.positive else start
