"""The tree T(P) as a Dask graph: one merge task a step, on the workers that hold the values."""

from __future__ import annotations

from typing import Any

from dask import delayed
from dask.delayed import Delayed
from distributed import Future

from .tree import add, steps, tree_sum

__all__ = ["tree_sum_graph"]


def tree_sum_graph(values: list[Any]) -> Any:
    """`tree_sum` of Futures or Delayed: a Future when there are Futures, else a Delayed; the same bits.

    No value passes through the client: log2(P) levels of tasks add pairs, in T(P) order.

    Raises:
        TypeError: some values are lazy and some are not.
    """
    if not all(isinstance(value, Future | Delayed) for value in values):
        raise TypeError("tree_sum takes Futures and Delayed, or values, not both; scatter the values first")
    client = next((value.client for value in values if isinstance(value, Future)), None)
    nodes = [delayed(value) for value in values]
    if len(nodes) == 1:
        nodes[0] = delayed(_alone)(nodes[0])
    for left, right in steps(len(nodes)):
        nodes[left] = delayed(_merge, pure=True)(nodes[left], nodes[right])
    return nodes[0] if client is None else client.compute(nodes[0])


def _merge(left: Any, right: Any) -> Any:
    return add(left, right) if hasattr(left, "to_parts") else tree_sum([left, right])


def _alone(value: Any) -> Any:
    return tree_sum([value])
