"""The fixed summation tree T(P): one order of additions for P ranks, whatever carries the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .stream import Stream, adopt, dense_is_smaller

__all__ = ["add", "check_alike", "describe", "fold", "merged", "steps", "sum_alike", "tree_sum"]

_SUMMABLE = (np.ndarray, np.generic, int, float, complex)
_NOT_SUMMABLE = (bool, np.ma.MaskedArray)  # True + True is True; a mask would be lost


def fold(size: int) -> tuple[int, int]:
    """(nodes, pairs): the largest power of two <= `size`, and how many pairs of ranks are added first.

    Node i < pairs is rank 2 i plus rank 2 i + 1; a later node i is rank i + pairs alone.
    """
    nodes = 1 << (size.bit_length() - 1)
    return nodes, size - nodes


@lru_cache(maxsize=256)
def steps(size: int) -> tuple[tuple[int, int], ...]:
    """T(size) as (left, right) in order: value[left] = value[left] + value[right]; the total ends in 0.

    The order of recursive doubling (SparCML, section 5.3): the ranks beyond a power of two are paired
    first, then nodes at distance 1, 2, 4, ... are added, always lower + higher.

    Raises:
        ValueError: `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"there is no sum of {size} values")
    nodes, pairs = fold(size)
    order = [(2 * i, 2 * i + 1) for i in range(pairs)]
    home = [2 * i if i < pairs else i + pairs for i in range(nodes)]
    distance = 1
    while distance < nodes:
        order += [(home[i], home[i + distance]) for i in range(0, nodes, 2 * distance)]
        distance *= 2
    return tuple(order)


def tree_sum(values: Sequence[Any]) -> Any:
    """Total of one value a rank (arrays, numbers or Streams, all alike) in T(P) order, as a new object.

    Arrays of any shape; numbers give a numpy scalar. The bits are those of `allreduce` over as many ranks.
    Dask Futures or Delayed are summed where they are, by a graph of merge tasks; the result is lazy too.

    Raises:
        TypeError: a value that cannot be summed.
        ValueError: no values, or kinds, dtypes, shapes or sizes that differ; names the ranks.
    """
    values = list(values)
    if any(type(value).__module__.startswith(("dask.", "distributed.")) for value in values):
        from .tree_dask import tree_sum_graph

        return tree_sum_graph(values)
    check_alike({rank: describe(value, rank) for rank, value in enumerate(values)})
    return sum_alike(values)


def add(left: Any, right: Any, op: str = "sum") -> Any:
    """left + right, or with op "max" their maximum, as a new object; both of the same kind, dtype and shape.

    Overflow and NaN do not warn.
    """
    if isinstance(left, Stream):
        return left + right if op == "sum" else left.maximum(right)
    with np.errstate(all="ignore"):
        out = np.empty_like(left, subok=False)
        if op == "sum":
            return np.add(left, right, out=out)
        np.maximum(left, right, out=out)
        return np.add(out, left.dtype.type(0), out=out)  # no -0.0, whichever of two zeros it took


def describe(value: Any, rank: int) -> tuple[str, np.dtype, tuple[int, ...]]:
    """(kind, dtype, shape) of what `rank` sums; must be equal on all ranks.

    Raises:
        TypeError: not an array of numbers, a number or a Stream; names the rank.
    """
    if isinstance(value, Stream):
        return "Stream", value.dtype, value.shape
    if isinstance(value, _SUMMABLE) and not isinstance(value, _NOT_SUMMABLE):
        array = np.asarray(value)
        if array.dtype.kind in "iufc":
            return "array", array.dtype, array.shape
        found = f"{array.dtype} array"
    else:
        found = type(value).__name__
    raise TypeError(f"rank {rank}: can sum an array of numbers, a number or a Stream, got {found}")


def check_alike(found: Mapping[int, tuple]) -> None:
    """Check that the descriptions, one a rank, are equal.

    Raises:
        ValueError: they are not, or there are none; names the ranks.
    """
    ranks: dict[tuple, list[int]] = {}
    for rank, description in found.items():
        ranks.setdefault(description, []).append(rank)
    if not ranks:
        raise ValueError("there is nothing to sum: one value a rank is needed")
    if len(ranks) > 1:
        told = "; ".join(
            f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {dtype} {kind} of shape {shape}"
            for (kind, dtype, shape), who in ranks.items()
        )
        raise ValueError(f"the ranks' values differ and cannot be summed ({told})")


def sum_alike(values: list, op: str = "sum") -> Any:
    """`tree_sum` of at least one value, known to be alike, or their maximum; overwrites the list."""
    if op == "max" and len(values) > 1:
        for left, right in steps(len(values)):
            values[left] = add(values[left], values[right], op)
        return values[0]
    if isinstance(values[0], Stream):
        return _sum_streams(values)
    total = _sum_arrays([np.asarray(value) for value in values])
    return total if isinstance(values[0], np.ndarray) else total[()]


def _sum_arrays(arrays: list[np.ndarray]) -> np.ndarray:
    if len(arrays) == 1:
        return np.array(arrays[0])
    fresh = [False] * len(arrays)
    with np.errstate(all="ignore"):
        for left, right in steps(len(arrays)):
            out = arrays[left] if fresh[left] else np.empty_like(arrays[left], subok=False)
            arrays[left] = np.add(arrays[left], arrays[right], out=out)
            fresh[left] = True
    return arrays[0]


def _sum_streams(streams: list[Stream]) -> Stream:
    if len(streams) == 1:
        return streams[0].copy()
    size, dtype = streams[0].size, streams[0].dtype
    entries = sum(stream.nnz for stream in streams)
    may_go_dense = any(stream.is_dense for stream in streams) or dense_is_smaller(entries, size, dtype)
    if may_go_dense or len(streams) == 2:  # whether and when it does is for Stream.__add__ to say
        for left, right in steps(len(streams)):
            streams[left] = streams[left] + streams[right]
        return streams[0]
    return adopt(size, *merged([stream.index for stream in streams], [stream.value for stream in streams]))


def merged(indices: list[Any], values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index, value) of the sum of sparse vectors, one a rank, in T(P) order."""
    from .merge_kernels import merge_many

    offsets = np.cumsum([0, *map(len, indices)], dtype=np.int64)
    offsets.flags.writeable = False
    with np.errstate(all="ignore"):
        return merge_many(np.concatenate(indices), np.concatenate(values), offsets, _step_array(len(indices)))


@lru_cache(maxsize=64)
def _step_array(size: int) -> np.ndarray:
    array = np.array(steps(size), np.int64).reshape(size - 1, 2)
    array.flags.writeable = False
    return array
