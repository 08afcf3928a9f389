"""The best items of each user: scores by blocks of users, a block a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

__all__ = ["ragged", "top"]

_ROWS = 256  # queries of a block
_BLOCK = 1 << 23  # scores of one at most
_gate = threading.Lock()
_limits: list[Any] = []  # who limits BLAS at the moment: calls in progress


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """BLAS in one thread, and as before when the last of the calls that overlap is through.

    The limit is the process's: each call on its own would restore what another one had set.
    """
    with _gate:
        _limits.append(None if _limits else threadpool_limits(1, user_api="blas"))
    try:
        yield
    finally:
        with _gate:
            if len(_limits) == 1:
                _limits[0].restore_original_limits()
                _limits.clear()
            else:
                _limits.pop()  # the first stays: it knows what there was


def top(
    queries: np.ndarray, factors: np.ndarray, offsets: np.ndarray, count: int, barred: np.ndarray,
    starts: np.ndarray, excluded: np.ndarray, threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Places and scores of the `count` largest q . y_j + offset_j for every query, and how many there are.

    `queries` (n, k), `factors` (m, k), `offsets` (m,). All leave out the places `barred`, query i the places
    `excluded[starts[i]:starts[i + 1]]`. A block's product is one BLAS call in one thread, so scores do not
    depend on how many threads there are.
    """
    from . import topn_kernels as kernels

    n, m = len(queries), len(factors)
    count = min(count, m)
    found = np.zeros((n, count), np.int64)  # what is not found is a place all the same
    values = np.empty((n, count), factors.dtype)
    lengths = np.zeros(n, np.int64)
    rows = max(1, min(_ROWS, _BLOCK // max(1, m)))
    # The offsets as one more feature: a pass over the scores less.
    left = np.column_stack([queries, np.ones(n, queries.dtype)])
    right = np.column_stack([factors, offsets.astype(factors.dtype, copy=False)]).T
    own = threading.local()

    def answer(first: int) -> None:
        if not hasattr(own, "scores"):
            own.scores = np.empty((rows, m), factors.dtype)
        block = slice(first, first + rows)
        scores = own.scores[: len(left[block])]
        np.matmul(left[block], right, out=scores)
        ends = starts[first : first + len(scores) + 1]
        kernels.best(scores, barred, ends, excluded, count, found[block], values[block], lengths[block])

    if count:
        # BLAS threads of its own would only get in the way of these.
        with _one_blas_thread(), ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(answer, range(0, n, rows)):
                pass
    return found, values, lengths


def ragged(found: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> tuple[Any, Any]:
    """2-D arrays where all rows have as many answers, else lists of arrays: never padding."""
    if len(lengths) and (lengths == lengths[0]).all():
        return found[:, : lengths[0]], values[:, : lengths[0]]
    return (
        [row[:length] for row, length in zip(found, lengths, strict=True)],
        [row[:length] for row, length in zip(values, lengths, strict=True)],
    )
