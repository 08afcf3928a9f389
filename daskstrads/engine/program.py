"""The contract every algorithm is written against: four short methods, exchanges as values."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from dataclasses import dataclass
from typing import Any

from ..schedule.policy import Policy

__all__ = ["Gather", "Pass", "Program", "Rotate", "Scatter", "Sum", "check_program"]


@dataclass(frozen=True, slots=True)
class Sum:
    """Exchange: every rank receives the total of all ranks' `value` (array, scalar or Stream)."""

    value: Any


@dataclass(frozen=True, slots=True)
class Scatter:
    """Exchange: rank p receives the total of piece p of `value`, cut along axis 0.

    `bounds` (size + 1 offsets, the same on all ranks) says where; None: piece p starts at len * p // size.
    """

    value: Any
    bounds: Any = None


@dataclass(frozen=True, slots=True)
class Gather:
    """Exchange: every rank receives the list of all ranks' `value`, in rank order, read-only."""

    value: Any


@dataclass(frozen=True, slots=True)
class Rotate:
    """Exchange: rank p receives the block of rank p - 1 (rank 0 that of the last) and owns it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pass:
    """Exchange: as `Rotate`, but nobody waits: the block travels while the ranks work on another one.

    Rank p receives the list of blocks that rank p - 1 has passed in earlier rounds and that have not been
    received yet: at most one if every round has a Pass; with `last`, also that of this round. One a round.
    """

    value: Any
    last: bool = False


class Program:
    """A model-parallel algorithm: four short methods; the engine does the rest (STRADS, section 2).

    Subclasses define

    - `init(part, rank, size, rng) -> shard`: this rank's data, model variables and caches;
    - `schedule(round, reports) -> plan` (small, the same for all ranks) or None to stop; or a class or
      instance attribute `schedule = RoundRobin(...)`. `reports` is None before round 0;
    - `push(shard, plan)`: what to exchange, as values: `Sum`, `Scatter`, `Gather`, `Rotate`, `Pass`, a
      tuple of them, or None. A bare array or Stream means `Sum`;
    - `pull(shard, plan, received, sent) -> report`: commit to this shard. `received` mirrors what push
      returned (a tuple for a tuple); `sent` is what this rank pushed.

    What is exchanged, plans and reports are made of arrays, numbers, strings, None, and tuples, lists and
    dicts of these; exchanges may hold Streams too. Shards are anything.

    An optional `result(shard)` says what `run` returns for the rank, instead of the whole shard. An optional
    static method `warm()` loads what a first run would wait for (compiled kernels): after a run, workers that
    join the cluster later call it when they start.

    State private to a rank may be written in push; state replicated over ranks is written by pull alone,
    from `received`. `replicas` names the shard's replicated arrays: their checksums travel with every
    round, and ranks that disagree are an error.
    """

    replicas: tuple[str, ...] = ()


_SIGNATURES = {
    "init": ("part", "rank", "size", "rng"),
    "schedule": ("round", "reports"),
    "push": ("shard", "plan"),
    "pull": ("shard", "plan", "received", "sent"),
}


def check_program(program: Any) -> None:
    """Raise TypeError naming the first method that is missing, misspelt or takes the wrong arguments."""
    if isinstance(program, type):
        raise TypeError(f"run() takes a program, got the class {program.__name__}; call it first")
    name = type(program).__name__
    if isinstance(getattr(program, "replicas", ()), str):
        raise TypeError(f"{name}.replicas must be a tuple of names; for one: ({program.replicas!r},)")
    for method, arguments in _SIGNATURES.items():
        found = getattr(program, method, None)
        if not callable(found):
            own = [entry for entry in dir(program) if not entry.startswith("_") and entry not in _SIGNATURES]
            close = difflib.get_close_matches(method, own, 1)
            hint = f"; did you mean it by {close[0]!r}?" if close else ""
            raise TypeError(f"{name} has no method {method}({', '.join(arguments)}){hint}")
        if isinstance(found, type):
            raise TypeError(f"{name}.{method} is the class {found.__name__}; call it first")
        try:
            _signature(found).bind(*arguments)
        except (TypeError, ValueError) as error:  # ValueError: a method without even self
            raise TypeError(f"{name}.{method} must take ({', '.join(arguments)}): {error}") from None


@functools.lru_cache(maxsize=64)
def _bound_signature(function: Any) -> inspect.Signature:
    return inspect.signature(types.MethodType(function, object()))


def _signature(method: Any) -> inspect.Signature:
    """The signature of a method, looked up once a function: it takes longer than a round of a small fit."""
    if inspect.ismethod(method) and inspect.isfunction(method.__func__):
        return _bound_signature(method.__func__)
    if isinstance(method, Policy) and inspect.isfunction(type(method).__call__):
        return _bound_signature(type(method).__call__)
    return inspect.signature(method)
