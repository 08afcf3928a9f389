"""The wire form of a stretch of a sparse vector: its indices in as few bytes as pays, then its values.

A form is a tuple that `Group.send` takes: a name, then arrays. "pairs": indices as they are. "gaps":
distances in 8 or 16 bits, long ones apart. "bits": one bit a position. "dense": no indices, all values. The
values are in one array of their own, so that a low-precision form can take its place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..comm.codec import DecodeError

__all__ = ["Stretch", "index_bytes", "packed", "unpacked"]

_NARROW: dict[int, Any] = {1: np.uint8, 2: np.uint16}


class Stretch(NamedTuple):
    """Entries of a vector at `places` in [start, stop), ascending; None: all of them are in `value`."""

    start: int
    stop: int
    places: np.ndarray | None
    value: np.ndarray


def packed(stretch: Stretch, compress: bool) -> tuple:
    """The form with the fewest bytes, or without `compress` the one that takes no work."""
    start, stop, index, value = stretch
    if index is None:
        return ("dense", value)
    if not compress or index.size == 0:
        return ("pairs", index, value)
    from . import wire_kernels as kernels

    first = np.uint64(start)
    eight, sixteen = kernels.count_wide(index, first)
    wide = index.itemsize
    words = (stop - start + 63) // 64
    sizes = {1: index.size + wide * eight, 2: 2 * index.size + wide * sixteen, 0: 8 * words}
    least = min(sizes, key=lambda width: sizes[width])
    if sizes[least] >= index.nbytes:
        return ("pairs", index, value)
    if least == 0:
        bits = np.zeros(words, np.uint64)
        kernels.to_bits(index, first, bits)
        return ("bits", _frozen(bits), value)
    narrow = np.empty(index.size, _NARROW[least])
    far = np.empty(eight if least == 1 else sixteen, index.dtype)
    kernels.to_gaps(index, first, narrow, far)
    return ("gaps", _frozen(narrow), _frozen(far), value)


def unpacked(
    form: Any, start: int, stop: int, index_dtype: np.dtype, dtype: np.dtype, *, trusted: bool = False
) -> Stretch:
    """The stretch [start, stop) that `packed` took apart.

    Every bound is checked, nothing large allocated that the form's own size does not warrant. Only of a
    `trusted` one, which comes from this process, the order of plain indices is taken for granted.

    Raises:
        DecodeError: no form of a stretch of this range and these dtypes.
    """
    from . import wire_kernels as kernels

    if not (isinstance(form, tuple) and form and isinstance(form[0], str)):
        raise DecodeError(f"no form of a stream: {str(form)[:60]}")
    match form:
        case ("dense", np.ndarray() as value):
            index = None
            good = value.shape == (stop - start,)
        case ("pairs", np.ndarray() as index, np.ndarray() as value):
            good = index.dtype == index_dtype and index.ndim == 1 and index.shape == value.shape
            if good and index.size and not trusted:
                good = start <= index[0] and index[-1] < stop and bool(np.all(index[1:] > index[:-1]))
        case ("gaps", np.ndarray() as narrow, np.ndarray() as far, np.ndarray() as value):
            good = narrow.dtype in (np.uint8, np.uint16) and narrow.ndim == 1
            good = good and far.dtype == index_dtype and far.ndim == 1 and narrow.shape == value.shape
            if good:
                index = np.empty(narrow.size, index_dtype)
                bounds = np.uint64(start), np.uint64(stop)
                good = kernels.from_gaps(_plain(narrow), _plain(far), *bounds, index)
        case ("bits", np.ndarray() as bits, np.ndarray() as value):
            good = bits.dtype == np.uint64 and bits.shape == ((stop - start + 63) // 64,) and value.ndim == 1
            if good:
                index = np.empty(value.size, index_dtype)
                good = kernels.from_bits(_plain(bits), np.uint64(start), np.uint64(stop), index)
        case _:
            raise DecodeError(f"no form of a stream: {str(form)[:60]}")
    if not good or value.dtype != dtype:
        raise DecodeError(f"a damaged stretch [{start}, {stop}) of {dtype} in the form {form[0]!r}")
    return Stretch(start, stop, index, value)


def index_bytes(density: float, width: int, compress: bool) -> float:
    """Bytes an entry's index takes at `density` if it is even; `width`: bytes of a plain index.

    Gaps are then geometric: a share (1 - density)^255 of them does not fit 8 bits.
    """
    if not compress or density <= 0:
        return float(width)
    eight, sixteen = (1.0 - min(density, 1.0)) ** np.array([255.0, 65535.0])
    return float(min(width, 1 + width * eight, 2 + width * sixteen, 1 / (8 * density)))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False  # travels by reference
    return array


def _plain(array: np.ndarray) -> np.ndarray:
    """Read-only, contiguous and aligned: one signature for the kernels."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    view = array.view()
    view.flags.writeable = False
    return view
