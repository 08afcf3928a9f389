"""Stream: a vector that is sparse while that takes fewer bytes, and dense from then on (SparCML, sec. 5)."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..comm import codec
from ..comm.group import immutable

__all__ = ["Stream", "adopt", "dense_is_smaller"]

_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))
_MOST = 2**63 - 1


def dense_is_smaller(nnz: int, size: int, dtype: np.dtype) -> bool:
    """Whether `size` values take no more bytes than `nnz` (index, value) pairs: nnz (c + v) >= size v."""
    return nnz * (_index_dtype(size).itemsize + dtype.itemsize) >= size * dtype.itemsize


def adopt(size: int, index: np.ndarray | None, value: np.ndarray) -> Stream:
    """Stream of arrays that are valid and that nobody else will write to: nothing is checked or copied."""
    stream = object.__new__(Stream)
    stream._size = size
    stream._index = None if index is None else _read_only(index)
    stream._value = _read_only(value)
    for array in (index, value):
        while isinstance(array, np.ndarray):  # then they travel by reference between threads
            array.flags.writeable = False
            array = array.base
    return stream


class Stream:
    """A vector of `size` values: sorted indices, each once, with their values; or all values (dense).

    `index` is uint32 (uint64 when `size` > 2**32), None when dense; `value` is float32, float64, int32 or
    int64. Both are read-only. `Stream(size, index, value)` checks its arguments and copies what
    somebody could write to; `from_dense`, `from_coo` and `from_scipy` convert.

    The sum of two streams never drops an entry: where values cancel, a stored 0 stays. NaN and infinities
    follow IEEE 754, integers wrap round. Which bits a NaN has is left open.

    Raises:
        TypeError: a dtype that streams do not have.
        ValueError: indices out of order, repeated or out of range, or lengths that do not fit.
    """

    __slots__ = ("_index", "_size", "_value")
    __array_ufunc__ = None  # ndarray + Stream is a TypeError, not an array of objects

    def __init__(self, size: int, index: np.ndarray | None, value: np.ndarray):
        size = _checked_size(size)
        if not isinstance(value, np.ndarray) or value.dtype not in _DTYPES:
            raise TypeError(f"value must be an array of {_names()}, got {_kind(value)}")
        if index is None:
            if value.shape != (size,):
                raise ValueError(f"a dense stream of size {size} has value of shape {value.shape}")
        else:
            wanted = _index_dtype(size)
            if not isinstance(index, np.ndarray) or index.dtype != wanted:
                raise TypeError(f"index of a stream of size {size} must be {wanted}, got {_kind(index)}")
            if index.ndim != 1 or index.shape != value.shape:
                raise ValueError(f"index {index.shape} and value {value.shape} must be 1-D, equally long")
            if not _increasing(index):
                raise ValueError("index must increase strictly; Stream.from_coo sorts and adds repeats")
            if index.size and index[-1] >= size:
                raise ValueError(f"index {index[-1]} is outside a stream of size {size}")
            index = _owned(index)
        self._size = size
        self._index = index
        self._value = _owned(value)

    @classmethod
    def from_dense(cls, x: Any) -> Stream:
        """Stream of a 1-D array's nonzeros, NaN included, -0.0 not; dense when that takes fewer bytes.

        Raises:
            TypeError: `x` is not float32, float64, int32 or int64.
            ValueError: `x` is not 1-D.
        """
        x = _values(x, "x")
        if x.ndim != 1:
            raise ValueError(f"Stream.from_dense takes a 1-D array, got shape {x.shape}")
        nnz = int(np.count_nonzero(x))
        if dense_is_smaller(nnz, x.size, x.dtype):
            return adopt(x.size, None, x + x.dtype.type(0))  # no -0.0 here either
        from .merge_kernels import to_sparse

        index, value = np.empty(nnz, _index_dtype(x.size)), np.empty(nnz, x.dtype)
        to_sparse(_read_only(x), index, value)
        return adopt(x.size, index, value)

    @classmethod
    def from_coo(cls, index: Any, value: Any, size: int) -> Stream:
        """Sparse stream of `value[i]` at `index[i]`, in any order; repeats are added in the order given.

        Raises:
            TypeError: indices that are not integers, or a value dtype that streams do not have.
            ValueError: an index outside 0..size-1, or different lengths.
        """
        size = _checked_size(size)
        value = _values(value, "value")
        empty_list = not isinstance(index, np.ndarray) and np.size(index) == 0
        index = np.asarray(index, np.int64) if empty_list else np.asarray(index)
        if index.ndim != 1 or index.shape != value.shape:
            raise ValueError(f"index {index.shape} and value {value.shape} must be 1-D and equally long")
        if index.dtype.kind not in "iu":
            raise TypeError(f"index must be integers, got {index.dtype}")
        if index.size:
            for extreme in (index.min(), index.max()):
                if not 0 <= extreme < size:
                    raise ValueError(f"index {extreme} is outside a stream of size {size}")
        index = index.astype(_index_dtype(size))
        if _increasing(index):
            return adopt(size, index, value.copy())
        order = np.argsort(index, kind="stable")  # keeps the order of the repeats
        index, value = index[order], value[order]
        if not _increasing(index):
            from .merge_kernels import sum_runs

            with np.errstate(all="ignore"):
                index, value = sum_runs(_read_only(index), _read_only(value))
        return adopt(size, index, value)

    @classmethod
    def from_scipy(cls, vector: Any) -> Stream:
        """Sparse stream of a scipy.sparse row or column (1 x N, N x 1 or 1-D, any format), repeats added.

        Arrays of pydata's `sparse` do as well, where absent entries are 0.

        Raises:
            TypeError: not a sparse container, or a value dtype that streams do not have.
            ValueError: more than one row and more than one column, or absent entries that are not 0.
        """
        from scipy.sparse import issparse

        pydata = type(vector).__module__.startswith("sparse.") and hasattr(vector, "fill_value")
        if not (issparse(vector) or pydata):
            raise TypeError(f"Stream.from_scipy takes a scipy.sparse vector, got {_kind(vector)}")
        shape = vector.shape
        if len(shape) > 2 or (len(shape) == 2 and 1 not in shape):
            raise ValueError(f"Stream.from_scipy takes one row or one column, got shape {shape}")
        if pydata and vector.fill_value != 0:
            raise ValueError(f"absent entries must be 0, they are {vector.fill_value}")
        coo = vector if hasattr(vector, "coords") else vector.asformat("coo") if pydata else vector.tocoo()
        axis = 1 if len(shape) == 2 and shape[0] == 1 else 0
        return cls.from_coo(coo.coords[axis], coo.data, shape[axis])

    @classmethod
    def from_parts(cls, parts: tuple) -> Stream:
        """The stream that `to_parts` took apart; checked, since it may come from another machine.

        Raises:
            TypeError, ValueError: `parts` is not what `to_parts` makes.
        """
        if not isinstance(parts, tuple) or len(parts) != 3:
            raise TypeError(f"a stream's parts are (size, index or None, value), got {_kind(parts)}")
        return cls(*parts)

    def to_parts(self) -> tuple[int, np.ndarray | None, np.ndarray]:
        """(size, index or None, value), without a copy: a payload for `Group.send`."""
        return self._size, self._index, self._value

    def dense(self) -> np.ndarray:
        """All values as a new, writeable array of shape (size,)."""
        if self._index is None:
            return self._value.copy()
        from .merge_kernels import to_dense

        return to_dense(self._index, self._value, self._size)

    def copy(self) -> Stream:
        """A stream with arrays of its own."""
        return adopt(self._size, None if self._index is None else self._index.copy(), self._value.copy())

    def __add__(self, other: Stream) -> Stream:
        """Entry by entry sum; dense as soon as that takes fewer bytes, decided here alone.

        Raises:
            TypeError: the other is not a Stream or has another dtype.
            ValueError: the sizes differ.
        """
        if not isinstance(other, Stream):
            return NotImplemented
        self._check_fits(other)
        size, a, b = self._size, self._index, other._index
        from .merge_kernels import count_union, merge_two, scatter_add

        with np.errstate(all="ignore"):
            if a is None and b is None:
                return adopt(size, None, np.add(self._value, other._value))
            if a is None:
                return adopt(size, None, scatter_add(self._value, b, other._value))
            if b is None:
                return adopt(size, None, scatter_add(other._value, a, self._value))
            # The sum of the counts is an upper bound: only when that is too many is the union worth counting.
            if dense_is_smaller(a.size + b.size, size, self.dtype) and dense_is_smaller(
                count_union(a, b), size, self.dtype
            ):
                return adopt(size, None, scatter_add(_read_only(self.dense()), b, other._value))
            return adopt(size, *merge_two(a, self._value, b, other._value))

    def maximum(self, other: Stream) -> Stream:
        """Entry by entry maximum, absent entries being 0; dense as soon as that takes fewer bytes.

        NaN where either has one. Raises: as `+`.
        """
        self._check_fits(other)
        size, a, b = self._size, self._index, other._index
        from .merge_kernels import count_union, max_two

        with np.errstate(all="ignore"):
            if (
                a is not None
                and b is not None
                and not (
                    dense_is_smaller(a.size + b.size, size, self.dtype)
                    and dense_is_smaller(count_union(a, b), size, self.dtype)
                )
            ):
                return adopt(size, *max_two(a, self._value, b, other._value))
            value = np.maximum(*(s.dense() if s._index is not None else s._value for s in (self, other)))
            return adopt(size, None, value + self.dtype.type(0))

    def _check_fits(self, other: Stream) -> None:
        if not isinstance(other, Stream):
            raise TypeError(f"the other must be a Stream, got {_kind(other)}")
        if self._size != other._size:
            raise ValueError(f"streams of sizes {self._size} and {other._size} cannot be added")
        if self.dtype != other.dtype:
            raise TypeError(f"streams of {self.dtype} and {other.dtype} cannot be added; cast one first")

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self._size

    @property
    def shape(self) -> tuple[int]:
        """(size,)."""
        return (self._size,)

    @property
    def index(self) -> np.ndarray | None:
        """Sorted indices of the stored entries, (nnz,); None when dense."""
        return self._index

    @property
    def value(self) -> np.ndarray:
        """Values of the stored entries, (nnz,)."""
        return self._value

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self._value.dtype

    @property
    def is_dense(self) -> bool:
        """Whether all values are stored, without indices."""
        return self._index is None

    @property
    def nnz(self) -> int:
        """Number of stored entries, zeros included; `size` when dense."""
        return self._value.size

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return self._value.nbytes + (0 if self._index is None else self._index.nbytes)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        how = "dense" if self.is_dense else f"nnz={self.nnz}"
        return f"<Stream size={self._size} {how} {self.dtype}>"

    def __reduce__(self):
        return adopt, (self._size, self._index, self._value)


codec.register(Stream, Stream.to_parts, Stream.from_parts)


def _index_dtype(size: int) -> np.dtype:
    return np.dtype(np.uint32 if size <= 2**32 else np.uint64)


def _checked_size(size: Any) -> int:
    try:
        size = operator.index(size)
    except TypeError:
        raise TypeError(f"size must be an integer, got {_kind(size)}") from None
    if not 0 <= size <= _MOST:
        raise ValueError(f"size must be between 0 and 2**63 - 1, got {size}")
    return size


def _values(array: Any, name: str) -> np.ndarray:
    """`array` as a plain ndarray in native byte order."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill it first")
    array = np.asarray(array)
    for dtype in _DTYPES:
        if array.dtype.newbyteorder("=") == dtype:
            return array.astype(dtype, copy=False)
    raise TypeError(f"{name} must be {_names()}, got {array.dtype}; cast it first")


def _increasing(index: np.ndarray) -> bool:
    return bool(np.all(index[1:] > index[:-1]))


def _read_only(array: np.ndarray) -> np.ndarray:
    """A read-only view, contiguous and aligned: the one layout that the kernels are compiled for."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


def _owned(array: np.ndarray) -> np.ndarray:
    return _read_only(array if immutable(array) else array.copy())


def _names() -> str:
    return "float32, float64, int32 or int64"


def _kind(value: Any) -> str:
    return f"{value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
