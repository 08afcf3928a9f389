"""Parts on their way to a worker: with the same bits, and the same order and alignment in memory."""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
import numpy as np

__all__ = ["Parts"]


class Parts(tuple):
    """A worker's parts as one object: what several of them share travels once."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        _Packer(file, 5, buffers.append).dump(tuple(self))
        return _unpacked, (file.getvalue(), buffers)


def _unpacked(raw: bytes, buffers: list[Any]) -> Parts:
    return Parts(pickle.loads(raw, buffers=map(_aligned, buffers)))


def _aligned(buffer: Any) -> Any:
    """The buffer, or a copy: it arrives at any offset, and numpy adds unaligned arrays in another order."""
    view = memoryview(buffer)
    found = np.asarray(view)
    if not found.size or found.ctypes.data % 16 == 0:
        return buffer
    found = found.copy()
    found.flags.writeable = not view.readonly
    return found


class _Packer(cloudpickle.Pickler):
    """Keeps the order of an array's axes in memory, on which the bits of sums depend.

    Pickle alone turns rows cut from a Fortran-ordered array into C order.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not (obj.flags.forc or obj.dtype.hasobject):
            return obj.copy(order="K").__reduce_ex__(5)
        return super().reducer_override(obj)
