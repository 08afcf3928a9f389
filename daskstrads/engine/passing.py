"""Blocks that ranks pass on without waiting for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Passing"]


class Passing:
    """What the rank before has passed to this one and the program has not received yet."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self._arrives: Callable[[], Any] | None = None

    def expect(self, arrives: Callable[[], Any]) -> None:
        """A block is on its way; `arrives` waits for it."""
        self._arrives = arrives

    def settle(self) -> None:
        """Wait for the block that is on its way: nothing else of the same rank can come before it."""
        if self._arrives is not None:
            arrives, self._arrives = self._arrives, None
            self.blocks.append(arrives())

    def taken(self) -> list[Any]:
        """All that has arrived, in order; it is the program's from now on."""
        blocks, self.blocks = self.blocks, []
        return blocks
