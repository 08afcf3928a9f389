"""The sparse sum between push and pull: streams, the fixed summation tree, and the sum over all ranks."""

from .collectives import allreduce
from .stream import Stream
from .tree import tree_sum

__all__ = ["Stream", "allreduce", "tree_sum"]
