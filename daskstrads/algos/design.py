"""A rank's share of the design matrix as an operator: moments, X'v, Xb and chosen columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..partition import Compressed, Slab

__all__ = [
    "Columns",
    "DenseDesign",
    "SparseDesign",
    "columns_axpy",
    "columns_gram",
    "design",
    "dot",
    "weighted_mean",
]


class Columns(NamedTuple):
    """Chosen columns in compact form, float64, read-only: dense `values` (k, n), or compressed."""

    values: np.ndarray
    indices: np.ndarray | None
    offsets: np.ndarray | None


class Moments(NamedTuple):
    """Weighted means, centred sums of squares and products with a vector of a rank's columns, (p,) each."""

    mean: np.ndarray
    spread: np.ndarray
    products: np.ndarray


_NOTHING = np.empty(0)


def design(slab: Slab) -> DenseDesign | SparseDesign:
    """The operator for a slab.

    Raises:
        ValueError: an index outside the matrix.
    """
    if isinstance(slab.matrix, Compressed):
        return SparseDesign(slab.matrix, slab.axis)
    return DenseDesign(slab.matrix)


class DenseDesign:
    """Dense X (n, p) in either order, a view of the caller's memory."""

    def __init__(self, X: np.ndarray):
        self.shape = X.shape
        self.by_columns = _packed(X.T)
        if not (self.by_columns or _packed(X)):
            X = np.ascontiguousarray(X)
        vectors = X.T if self.by_columns else X
        self._count, self._length = vectors.shape
        self._stride = vectors.strides[0] // X.itemsize if self._count > 1 else self._length
        extent = (self._count - 1) * self._stride + self._length if vectors.size else 0
        self._flat = np.lib.stride_tricks.as_strided(vectors, (extent,), (X.itemsize,), writeable=False)
        self._vectors = vectors

    def moments(self, weight: np.ndarray, centre: bool, v: np.ndarray = _NOTHING) -> Moments:
        """Means (0 where not `centre`), centred sums of squares, products with a `v` (n,) of mean 0."""
        from . import design_kernels as kernels

        out = Moments(*np.zeros((3, self.shape[1])))
        weight, v = _read_only(weight), _read_only(v)
        if self.by_columns:
            kernels.dense_moments_across(self._flat, self._stride, self._length, weight, centre, v, *out)
        else:
            kernels.dense_moments_along(self._flat, self._stride, self._count, weight, centre, v, *out)
        return out

    def sample(self, rows: np.ndarray) -> DenseDesign:
        """The chosen `rows`, as a design of their own, in float64."""
        picked = self._vectors[:, rows].T if self.by_columns else self._vectors[rows]
        return DenseDesign(np.array(picked, np.float64, order="C"))

    def correlate(self, v: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """X'v, (p,) float64, in `out` if given."""
        from . import design_kernels as kernels

        out = np.empty(self.shape[1]) if out is None else out
        if self.by_columns:
            kernels.dense_dots(self._flat, self._stride, self._length, _read_only(v), out)
        else:
            out[:] = 0.0
            kernels.dense_axpys(self._flat, self._stride, self._length, _read_only(v), out)
        return out

    def combine(self, ids: np.ndarray, coef: np.ndarray) -> np.ndarray:
        """X[:, ids] @ coef, (n,) float64."""
        from . import design_kernels as kernels

        out = np.zeros(self.shape[0])
        ids, coef = _read_only(ids), _read_only(coef)
        if self.by_columns:
            kernels.dense_pick_axpys(self._flat, self._stride, self._length, ids, coef, out)
        else:
            kernels.dense_pick_dots(self._flat, self._stride, self._count, ids, coef, out)
        return out

    def part(self, ids: np.ndarray) -> DensePart:
        """The columns `ids`, as an operator."""
        return DensePart(self, ids)

    def correlate_at(self, ids: np.ndarray, v: np.ndarray) -> np.ndarray:
        """X[:, ids]'v, (len(ids),) float64."""
        from . import design_kernels as kernels

        out, ids, v = np.zeros(len(ids)), _read_only(ids), _read_only(v)
        if self.by_columns:
            kernels.dense_dots_at(self._flat, self._stride, self._length, ids, v, out)
        else:
            kernels.dense_axpys_at(self._flat, self._stride, ids, v, out)
        return out

    def refresh(
        self, ids: np.ndarray, coef: np.ndarray, weight: np.ndarray, residual: np.ndarray
    ) -> np.ndarray:
        """residual -= X[:, ids] @ coef, in place; X' (weight * residual), (p,) float64."""
        from . import design_kernels as kernels

        if self.by_columns:
            residual -= self.combine(ids, coef)
            return self.correlate(weight * residual)
        grad = np.zeros(self.shape[1])
        kernels.dense_refresh(
            self._flat, self._stride, self._length, _read_only(ids), _read_only(coef), _read_only(weight),
            residual, grad,
        )  # fmt: skip
        return grad

    def take(self, ids: np.ndarray, scale: np.ndarray | None, mean: np.ndarray | None) -> Columns:
        """Columns `ids` less their `mean`, rows times `scale` (None: neither); (k, n) float64."""
        picked = self._vectors[ids] if self.by_columns else self._vectors[:, ids].T
        values = np.array(picked, dtype=np.float64, order="C")
        if mean is not None:
            values -= mean[:, None]
        if scale is not None:
            values *= scale
        values.flags.writeable = False  # travels by reference
        return Columns(values, None, None)

    def gram(
        self, new: np.ndarray, held: np.ndarray, weight: np.ndarray, mean: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        """Centred Gram X[:, new]' W X[:, held], (len(new), len(held)) float64; `held` ends with `new`.

        `own`: the weighted means of X's columns.
        """
        from . import gram_kernels as kernels

        total, old = np.zeros((len(new), len(held))), len(held) - len(new)
        if not self.by_columns:
            kernels.dense_rows_gram(
                self._flat, self._stride, _read_only(held), _read_only(mean[held]), _read_only(weight),
                old, total,
            )  # fmt: skip
            return _mirrored(total, old)
        rows = max(512, 2**21 // max(1, len(held)))  # a chunk's columns stay in cache
        root = np.sqrt(weight)
        for first in range(0, self.shape[0], rows):
            last = min(first + rows, self.shape[0])
            block = (self._vectors[:, first:last][held] - mean[held][:, None]) * root[first:last]
            kernels.dense_gram(_read_only(block[old:]), _read_only(block), old, total)
        return _mirrored(total, old)


class DensePart(NamedTuple):
    """Columns `ids` of a dense X, where they are."""

    whole: DenseDesign
    ids: np.ndarray

    def correlate(self, v: np.ndarray) -> np.ndarray:
        """X[:, ids]'v, (len(ids),) float64."""
        return self.whole.correlate_at(self.ids, v)

    def take(self, places: np.ndarray, scale: np.ndarray | None, mean: np.ndarray | None) -> Columns:
        """Columns ids[places], as `DenseDesign.take`."""
        return self.whole.take(self.ids[places], scale, mean)


class SparseDesign:
    """Sparse X (n, p), compressed along its columns (axis 1) or rows (axis 0)."""

    def __init__(self, compressed: Compressed, axis: int):
        count = len(compressed.starts) - 1
        self.shape = (compressed.length, count) if axis == 1 else (count, compressed.length)
        self.by_columns = axis == 1
        self._arrays = tuple(_read_only(array) for array in compressed[:3])
        self._full: np.ndarray | None = None

    def order(self) -> int:
        """0: indices ascend strictly in every vector; 1: unsorted or repeated ones.

        Raises:
            ValueError: an index outside the matrix.
        """
        from . import design_kernels as kernels

        length = self.shape[0] if self.by_columns else self.shape[1]
        state = kernels.sparse_order(self._arrays[1], self._arrays[2], length)
        if state == 2:
            raise ValueError(f"sparse X has an index outside its shape; expected indices in [0, {length})")
        return state

    def moments(self, weight: np.ndarray, centre: bool, v: np.ndarray = _NOTHING) -> Moments:
        """As `DenseDesign.moments`; products of row-compressed data only."""
        from . import design_kernels as kernels

        out = Moments(*np.zeros((3, self.shape[1])))
        weight = _read_only(weight)
        if self.by_columns:
            uniform = bool((weight == 1.0).all())
            kernels.sparse_moments_across(*self._arrays, weight, uniform, centre, out.mean, out.spread)
        else:
            kernels.sparse_moments_along(*self._arrays, weight, centre, _read_only(v), *out)
        return out

    def sample(self, rows: np.ndarray) -> SparseDesign:
        """The chosen `rows` of a row-compressed X, as a design of their own, in float64."""
        return SparseDesign(Compressed(*self.take(rows, None, None), length=self.shape[1]), 0)  # type: ignore[arg-type]

    def correlate(self, v: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """X'v, (p,) float64, in `out` if given."""
        from . import design_kernels as kernels

        out = np.empty(self.shape[1]) if out is None else out
        if not self.by_columns:
            out[:] = 0.0
        kernel = kernels.sparse_dots if self.by_columns else kernels.sparse_axpys
        kernel(*self._arrays, _read_only(v), out)
        return out

    def part(self, ids: np.ndarray) -> SparseDesign:
        """The columns `ids` of a column-compressed X, as an operator of its own: a copy, close together."""
        taken = Compressed(*self.take(ids, None, None), length=self.shape[0])  # type: ignore[arg-type]
        return SparseDesign(taken, 1)

    def refresh(
        self, ids: np.ndarray, coef: np.ndarray, weight: np.ndarray, residual: np.ndarray
    ) -> np.ndarray:
        """residual -= X[:, ids] @ coef, in place; X' (weight * residual), (p,) float64; X in rows."""
        from . import design_kernels as kernels

        full, grad = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        full[ids] = coef
        kernels.sparse_refresh(*self._arrays, _read_only(full), _read_only(weight), residual, grad)
        return grad

    def combine(self, ids: np.ndarray, coef: np.ndarray) -> np.ndarray:
        """X[:, ids] @ coef, (n,) float64."""
        from . import design_kernels as kernels

        out = np.zeros(self.shape[0])
        if self.by_columns:
            kernels.sparse_pick_axpys(*self._arrays, _read_only(ids), _read_only(coef), out)
        else:
            full = np.zeros(self.shape[1])
            full[ids] = coef
            kernels.sparse_dots(*self._arrays, _read_only(full), out)
        return out

    def take(self, ids: np.ndarray, scale: np.ndarray | None, mean: np.ndarray | None) -> Columns:
        """Columns `ids` of a column-compressed X, rows times `scale`.

        Their `mean` is left implicit, except in columns without zeros: there it costs nothing to take it off,
        and large ones would cost digits.
        """
        from . import design_kernels as kernels

        offsets, nothing = self._arrays[2], np.empty(0)
        lengths = np.full(len(ids), offsets[0]) if len(offsets) == 1 else offsets[ids + 1] - offsets[ids]
        size = int(lengths.sum())
        out = np.empty(size), np.empty(size, self._arrays[1].dtype), np.empty(len(ids) + 1, np.int64)
        shift, scale = nothing, nothing if scale is None else scale
        if mean is not None and (lengths == self.shape[0]).any():
            shift = np.where(lengths == self.shape[0], mean, 0.0)
        kernels.sparse_take(*self._arrays, _read_only(ids), _read_only(shift), _read_only(scale), *out)
        for array in out:
            array.flags.writeable = False  # travels by reference
        return Columns(*out)

    def gram(
        self, new: np.ndarray, held: np.ndarray, weight: np.ndarray, mean: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        """Centred Gram X[:, new]' W X[:, held] of a row-compressed X; `held` ends with `new`.

        `own`: the weighted means of X's columns.
        """
        from . import gram_kernels as kernels

        total, old = np.zeros((len(new), len(held))), len(held) - len(new)
        place = np.full(self.shape[1], -1, np.int32)
        place[held] = np.arange(len(held))
        means, shift = mean[held], np.zeros(len(held))
        if means.any() and (full := self._without_zeros()).any():
            # Taken off the entries where that is all there is to it: products of large means cost digits.
            shift = np.where(full[held], means, 0.0)
        kernels.rows_gram(*self._arrays, _read_only(weight), _read_only(place), _read_only(shift), old, total)
        total = _mirrored(total, old)
        if means.any():
            # sum w (x - m)(x' - m') = sum w x x' - m' sum w x - m sum w x' + m m' sum w
            weights, left = weight.sum(), means - shift
            sums = weights * (own[held] - shift)
            total -= np.outer(sums[old:], left) + np.outer(left[old:], sums - weights * left)
        return total

    def _without_zeros(self) -> np.ndarray:
        """Which columns of a row-compressed X store an entry in every row, (p,)."""
        if self._full is None:
            rows = np.diff(self._arrays[2])  # none where all have as many entries
            some = len(rows) == 0 or rows.min() > 0
            counts = (
                np.bincount(self._arrays[1], minlength=self.shape[1]) if some else np.zeros(self.shape[1])
            )
            self._full = counts == self.shape[0]
        return self._full


def _mirrored(part: np.ndarray, old: int) -> np.ndarray:
    """The new rows of a Gram matrix from what is on and below its diagonal, which starts at column `old`."""
    square = part[:, old:]
    part[:, old:] = np.tril(square) + np.tril(square, -1).T
    return part


def _packed(vectors: np.ndarray) -> bool:
    """Whether the rows of a 2-D array are contiguous vectors that do not overlap."""
    count, length = vectors.shape
    if any(stride % vectors.itemsize for stride in vectors.strides):  # a field of a packed record
        return False
    step, inner = (stride // vectors.itemsize for stride in vectors.strides)
    return (length <= 1 or inner == 1) and (count <= 1 or step >= length)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """a . b without BLAS, whose threads change the bits."""
    return float(np.einsum("i,i", a, b))


def weighted_mean(weight: np.ndarray, v: np.ndarray) -> float:
    """Weighted mean of v, exact when v is constant; 0 without weight."""
    total = float(weight.sum())
    if not total > 0:
        return 0.0
    first = v[np.argmax(weight > 0)]
    return float(first) + dot(weight, v - first) / total


def columns_gram(
    columns: Columns, mean: np.ndarray, scale: np.ndarray, residual: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Z'Z (k, k) and Z'residual (k,) of chosen columns; compressed ones are z = x - mean scale."""
    from . import design_kernels, gram_kernels

    k = len(mean)
    gram, grad = np.zeros((k, k)), np.empty(k)
    if columns.offsets is None:
        gram_kernels.dense_gram(columns.values, columns.values, 0, gram)
        return _mirrored(gram, 0), np.einsum("ij,j->i", columns.values, residual)
    work = np.zeros(len(scale))
    gram_kernels.compressed_gram(*columns, mean, dot(scale, scale), work, gram)
    design_kernels.sparse_dots(*columns, _read_only(residual), grad)
    return gram, grad - mean * dot(scale, residual)


def columns_axpy(
    columns: Columns, mean: np.ndarray, scale: np.ndarray, coef: np.ndarray, out: np.ndarray
) -> None:
    """out += Z coef for chosen columns; compressed ones are z = x - mean scale."""
    from . import design_kernels

    if columns.offsets is None:
        out += np.einsum("i,ij->j", coef, columns.values)
    else:
        design_kernels.sparse_axpys(*columns, _read_only(coef), out)
        out -= dot(coef, mean) * scale


def _read_only(array: Any) -> np.ndarray:
    """A read-only view: kernels then have one signature, whatever the flags of what the caller passed."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
