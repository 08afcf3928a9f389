"""X, y -> data shards; variables -> balanced blocks. Pure index arithmetic."""

from .arrays import Compressed, Slab, split, split_axis
from .balance import balanced_bounds

__all__ = ["Compressed", "Slab", "balanced_bounds", "split", "split_axis"]
