"""Rotation: blocks of the model go round the ranks."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from ..comm import codec
from .policy import Policy, Report

__all__ = ["Rotation", "Turn"]


class Turn(NamedTuple):
    """A round of `Rotation`; sweep -1 in the rounds before the first one, where shift counts these."""

    sweep: int
    shift: int


codec.register(Turn, tuple, lambda parts: Turn(*parts))


class Rotation(Policy):
    """Blocks go round the ranks, so that in a sweep every rank holds every block (STRADS, section 3, LDA).

    The plan is a `Turn`; the program pushes `Rotate(block)` to pass its block on. With `blocks` a rank the
    ranks hold queues: a rank works on the first and passes it to the end of the next rank's, so that in a
    turn rank p works on block ((p - shift // blocks) mod P) blocks + shift mod blocks. `lead` rounds come
    before the first sweep. With `listens` the run may end after a sweep of at least this number: when a
    report of its last round holds "stop" among its terms; else the plan never depends on reports.

    Raises:
        ValueError: sweeps or lead below 0, blocks below 1. TypeError: with listens, reports of another kind
            than `Report`.
    """

    def __init__(self, sweeps: int, blocks: int = 1, *, lead: int = 0, listens: int | None = None):
        if sweeps < 0 or lead < 0:
            raise ValueError(f"sweeps and lead must be at least 0, got {sweeps}, {lead}")
        if blocks < 1:
            raise ValueError(f"every rank needs a block, got blocks={blocks}")
        self.sweeps, self.blocks, self.lead, self.listens = sweeps, blocks, lead, listens
        self._size = 1

    def begin(self, size: int, seed: int) -> Rotation:
        """Fresh copy for one run with `size` ranks, so `size` x `blocks` blocks."""
        fresh = copy.copy(self)
        fresh._size = size
        return fresh

    def waits(self, round: int) -> bool:
        """After a sweep that it listens to; else all turns are known from the start."""
        sweep, shift = divmod(round - self.lead, self._size * self.blocks)
        return self.listens is not None and shift == 0 and sweep > self.listens

    def __call__(self, round: int, reports: list[Any] | None) -> Turn | None:
        """This round's turn, or None to stop."""
        if round < self.lead:
            return Turn(-1, round)
        if self.waits(round):
            if reports is None or not all(isinstance(report, Report) for report in reports):
                raise TypeError("Rotation that listens needs a daskstrads.Report at the end of a sweep")
            if any(report.terms.get("stop") for report in reports):
                return None
        sweep, shift = divmod(round - self.lead, self._size * self.blocks)
        return Turn(sweep, shift) if sweep < self.sweeps else None
