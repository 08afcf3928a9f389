"""The sparse sum between push and pull: streams, the fixed summation tree, and collectives over all ranks."""

from .collectives import allgather, allreduce, broadcast, pass_on, reduce_scatter, rotate
from .stream import Stream
from .tree import tree_sum

__all__ = ["Stream", "allgather", "allreduce", "broadcast", "pass_on", "reduce_scatter", "rotate", "tree_sum"]
