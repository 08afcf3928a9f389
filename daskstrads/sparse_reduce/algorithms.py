"""The algorithms of an allreduce: each makes (total, entries) of (call, value) (SparCML, section 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..comm.group import Group
from .stream import Stream, adopt, dense_is_smaller
from .tree import add, check_alike, fold, merged, sum_alike
from .wire import Stretch, packed, unpacked

__all__ = ["ALGORITHMS", "Call", "Total", "even_bounds"]

_READY = -1  # in place of entries: nothing else is coming in, send

Total = tuple[Any, int]
"""A sum, and how many entries all ranks brought to it."""


class Call:
    """One collective call, seen from one rank: every message says which call it belongs to.

    `own` describes what is summed (`tree.describe`) and is the same on all ranks; `bounds` (size + 1) cuts
    the vector into one stretch a rank; `compress`: indices travel in as few bytes as they can. `careful`: a
    rank sends when the other has said that it has nothing else coming in: two that send to one at a time
    overflow the queues of its switch, and waiting for what was lost takes longer than taking turns.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        op: str,
        own: tuple,
        bounds: Any = None,
        *,
        compress: bool = False,
        careful: bool = False,
    ):
        self.group, self.op, self.own = group, op, own
        self.compress, self.careful = compress, careful
        self.rank, self.size = group.rank, group.size
        self.number = group.memory["calls"] = group.memory.get("calls", 0) + 1
        kind, dtype, shape = own
        # One string: to describe and to check many small things takes longer than a small sum.
        self.head = ";".join((name, op, kind, dtype.str, str(shape)))
        self._bounds = bounds

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where each rank's stretch begins, and the end."""
        if self._bounds is None:
            self._bounds = even_bounds(math.prod(self.own[2]), self.size)
        return self._bounds

    def send(self, to: int, entries: int, form: Any) -> None:
        """Hand a form to another rank, and how many entries went into it."""
        self.group.send(to, (self.number, self.head, entries, form))

    def receive(self, source: int) -> tuple[int, Any]:
        """The next message from `source`: entries and form.

        Raises:
            ValueError: its values differ in kind, dtype or shape.
            RuntimeError: it is in another call.
        """
        match self.group.recv(source):
            case (int() as number, str() as head, int() as entries, form) if head.count(";") == 4:
                if (number, head) != (self.number, self.head):
                    self._differs(source, number, head)
                return entries, form
            case other:
                raise RuntimeError(
                    f"rank {self.rank} is in {self.head.split(';')[0]}, but rank {source} sent a message of "
                    f"its own ({type(other).__name__})"
                )

    def _differs(self, source: int, number: int, head: str) -> None:
        mine, theirs = self.head.split(";"), head.split(";")
        if mine[2:] != theirs[2:]:
            described = {
                rank: (kind, np.dtype(dtype), shape)
                for rank, (_, _, kind, dtype, shape) in ((self.rank, mine), (source, theirs))
            }
            check_alike(described)
        raise RuntimeError(
            f"the ranks are in different calls: rank {self.rank} in collective {self.number} of its group, "
            f"{mine[0]} by {mine[1]}; rank {source} in {number}, {theirs[0]} by {theirs[1]}"
        )

    def swap(self, to: int, entries: int, form: Any, source: int) -> tuple[int, Any]:
        """Send to one rank and receive from another, which does likewise."""
        if self.careful:
            self.send(source, _READY, None)
            if self.receive(to)[0] != _READY:
                raise RuntimeError(f"rank {to} sent before rank {self.rank} was told that it would")
        self.send(to, entries, form)
        return self.receive(source)

    def with_all(self, outgoing: Callable[[int], tuple[int, Any]]) -> Iterator[tuple[int, int, Any]]:
        """Send `outgoing(other)`, entries and form, to every other rank; (source, entries, form) of each.

        The next rank comes first, so that not all begin with the same.
        """
        steps = range(1, self.size)
        if self.careful:
            for step in steps:
                to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
                yield source, *self.swap(to, *outgoing(to), source)
            return
        for step in steps:
            to = (self.rank + step) % self.size
            self.send(to, *outgoing(to))
        for step in steps:
            source = (self.rank - step) % self.size
            yield source, *self.receive(source)

    def all(self, payload: Any) -> list[Any]:
        """Every rank's payload, in rank order; raises as `receive`."""
        found = [payload] * self.size
        for source, _, form in self.with_all(lambda other: (0, payload)):
            found[source] = form
        return found

    def stretch(self, form: Any, owner: int) -> Stretch:
        """What a form holds of the stretch of `owner`. DecodeError when it is damaged."""
        start, stop = self.bounds[owner : owner + 2]
        return unpacked(form, start, stop, self.index_dtype, self.own[1], trusted=self.group.shared)

    @property
    def index_dtype(self) -> np.dtype:
        """That of the vector's indices."""
        return np.dtype(np.uint32 if self.bounds[-1] <= 2**32 else np.uint64)


def even_bounds(size: int, ranks: int) -> tuple[int, ...]:
    """Stretches of equal length."""
    return tuple(size * place // ranks for place in range(ranks + 1))


def recursive_doubling(call: Call, value: Any) -> Total:
    """Fold to a power of two, exchange and add at distance 1, 2, 4, ..., unfold (section 5.3)."""
    rank = call.rank
    nodes, pairs = fold(call.size)
    total, node, entries = value, rank - pairs, _count(value)
    if rank < 2 * pairs:
        if rank % 2:
            call.send(rank - 1, entries, _form(call, value))
            entries, form = call.receive(rank - 1)
            return _private(_from_form(call, rank - 1, form)), entries
        more, form = call.receive(rank + 1)
        total = add(value, _from_form(call, rank + 1, form), call.op)
        node, entries = rank // 2, entries + more
    distance = 1
    while distance < nodes:
        other = node ^ distance
        peer = 2 * other if other < pairs else other + pairs
        # A total made here is never written again; the caller's own array is, and is copied on its way.
        more, form = call.swap(peer, entries, _form(call, total if total is value else _final(total)), peer)
        received = _from_form(call, peer, form)
        # Lower node first: every rank adds in one order, so totals agree bit for bit.
        total = add(total, received, call.op) if node < other else add(received, total, call.op)
        entries += more
        distance *= 2
    if rank < 2 * pairs:
        call.send(rank + 1, entries, _form(call, total))
    return total, entries


def split(call: Call, value: Any, *, dense: bool = False) -> Total:
    """Each rank sums its own stretch of everybody's vectors, then all get all stretches (section 5.3, SSAR).

    With `dense` the sums travel as all their values (section 5.4, DSAR).
    """
    if not isinstance(value, Stream):
        return _split_array(call, value, value.size)
    own, entries = reduce_stretch(call, value)
    if dense:
        own = own._replace(places=None, value=_densified(own))
    stretches: list[Any] = [None] * call.size
    stretches[call.rank] = own
    outgoing = entries, packed(own, call.compress)
    for other, more, form in call.with_all(lambda to: outgoing):
        stretches[other] = call.stretch(form, other)
        entries += more
    return _assembled(call, stretches), entries


def dense_split(call: Call, value: Any) -> Total:
    """`split` whose sums travel as all their values; the total is dense (section 5.4, DSAR)."""
    return split(call, value, dense=True)


def dense(call: Call, value: Any) -> Total:
    """All values from the start: reduce-scatter and allgather of the dense vector."""
    if not isinstance(value, Stream):
        return split(call, value)
    array = value.dense()
    array.flags.writeable = False
    total, entries = _split_array(call, array, value.nnz)
    return adopt(value.size, None, total), entries


def ring(call: Call, value: Any) -> Total:
    """Each stretch goes round once to be summed and once to be seen; in ring order, not that of T(P)."""
    size, rank = call.size, call.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    entries = _count(value)
    stretches = _cut(call, value)
    for step in range(2 * size - 2):
        gone, come = (rank - step) % size, (rank - step - 1) % size
        outgoing = entries if step < size - 1 else 0, packed(stretches[gone], call.compress)
        more, form = call.swap(after, *outgoing, before)
        got = call.stretch(form, come)
        if step < size - 1:
            stretches[come] = _added([got, stretches[come]], call.op)
            # What the left neighbour brought, and what it has heard of so far.
            entries = _count(value) + more
        else:
            stretches[come] = got
    return _assembled(call, stretches), entries


ALGORITHMS = {
    "recursive_doubling": recursive_doubling,
    "split": split,
    "dense_split": dense_split,
    "ring": ring,
    "dense": dense,
}


def reduce_stretch(call: Call, value: Stream) -> tuple[Stretch, int]:
    """The sum over all ranks of this rank's own stretch, in T(P) order, and how many entries went into it."""
    stretches = _cut(call, value)
    entries = _count(stretches[call.rank])
    mine: list[Any] = [None] * call.size
    mine[call.rank] = stretches[call.rank]
    outgoing = lambda to: (_count(stretches[to]), packed(stretches[to], call.compress))  # noqa: E731
    for other, more, form in call.with_all(outgoing):
        mine[other] = call.stretch(form, call.rank)
        entries += more
    return _added(mine, call.op), entries


def reduce_slice(call: Call, flat: np.ndarray, entries: int) -> Total:
    """The sum over all ranks of this rank's own stretch of a flat array, in T(P) order, and of `entries`."""
    bounds, rank = call.bounds, call.rank
    brought = entries
    mine: list[Any] = [None] * call.size
    mine[rank] = flat[bounds[rank] : bounds[rank + 1]]
    for other, more, form in call.with_all(lambda to: (brought, flat[bounds[to] : bounds[to + 1]])):
        mine[other] = _fits(call, form, rank, other)
        entries += more
    return sum_alike(mine, call.op), entries


def _split_array(call: Call, value: np.ndarray, entries: int) -> Total:
    flat, bounds, rank = np.asarray(value).reshape(-1), call.bounds, call.rank
    own, entries = reduce_slice(call, flat, entries)
    own = _final(own)
    out = np.empty(flat.size, flat.dtype)
    out[bounds[rank] : bounds[rank + 1]] = own
    for other, _, form in call.with_all(lambda to: (0, own)):
        out[bounds[other] : bounds[other + 1]] = _fits(call, form, other, other)
    return out.reshape(value.shape), entries


def _fits(call: Call, array: Any, owner: int, source: int) -> np.ndarray:
    wanted = (call.bounds[owner + 1] - call.bounds[owner],)
    if not isinstance(array, np.ndarray) or array.dtype != call.own[1] or array.shape != wanted:
        raise RuntimeError(f"rank {source} sent no {wanted[0]} values of {call.own[1]} to rank {call.rank}")
    return array


def _count(value: Any) -> int:
    """Entries that a rank brings."""
    if isinstance(value, Stream):
        return value.nnz
    return value.value.size if isinstance(value, Stretch) else value.size


def _cut(call: Call, value: Any) -> list[Stretch]:
    """The stretches of all ranks; views."""
    bounds = call.bounds
    if not isinstance(value, Stream):
        flat = np.asarray(value).reshape(-1)
        return [Stretch(a, b, None, flat[a:b]) for a, b in pairwise(bounds)]
    index, values = value.index, value.value
    if index is None:
        return [Stretch(a, b, None, values[a:b]) for a, b in pairwise(bounds)]
    most = np.iinfo(index.dtype).max  # a bound may be one more than an index can be
    starts = np.searchsorted(index, np.array([min(bound, most) for bound in bounds[:-1]], index.dtype))
    cuts = [index.size if bound > most else int(start) for bound, start in zip(bounds, starts, strict=False)]
    cuts.append(index.size)
    ranges = zip(pairwise(bounds), pairwise(cuts), strict=True)
    return [Stretch(a, b, index[c:d], values[c:d]) for (a, b), (c, d) in ranges]


def _added(stretches: list[Stretch], op: str) -> Stretch:
    """The sum of one stretch of several ranks, in T(P) order.

    It stays sparse, however full it gets, unless one of them is dense: whether the total is dense
    must not depend on where it was cut.
    """
    start, stop = stretches[0][:2]
    if any(each.places is None for each in stretches):
        return Stretch(start, stop, None, _final(sum_alike([_densified(each) for each in stretches], op)))
    if op == "sum":
        return Stretch(
            start, stop, *map(_final, merged([e.places for e in stretches], [e.value for e in stretches]))
        )
    streams = [adopt(stop, each.places, each.value) for each in stretches]
    return Stretch(start, stop, *_maximum(streams))


def _maximum(streams: list[Stream]) -> tuple[np.ndarray, np.ndarray]:
    from .merge_kernels import max_two
    from .tree import steps

    pairs: list[Any] = [(stream.index, stream.value) for stream in streams]
    with np.errstate(all="ignore"):
        for left, right in steps(len(pairs)):
            pairs[left] = tuple(map(_final, max_two(*pairs[left], *pairs[right])))
    return pairs[0]


def _densified(stretch: Stretch) -> np.ndarray:
    """All values of a stretch; nothing that others may write to."""
    start, stop, index, value = stretch
    if index is None:
        return value
    from .merge_kernels import to_dense

    first = index.dtype.type(start)
    return _final(to_dense(_final(index - first), _final(value), stop - start))


def _assembled(call: Call, stretches: list[Stretch]) -> Any:
    """The total from the stretches of all ranks: dense if one is, or when that takes fewer bytes."""
    shape, dtype = call.own[2], call.own[1]
    if call.own[0] != "Stream":
        return np.concatenate([each.value for each in stretches], dtype=dtype).reshape(shape)
    size = shape[0]
    if any(each.places is None for each in stretches):
        return adopt(size, None, np.concatenate([_densified(each) for each in stretches]))
    index = np.concatenate([each.places for each in stretches])  # type: ignore[arg-type]
    value = np.concatenate([each.value for each in stretches])
    if dense_is_smaller(index.size, size, dtype):
        from .merge_kernels import to_dense

        return adopt(size, None, to_dense(_final(index), _final(value), size))
    return adopt(size, index, value)


def _form(call: Call, value: Any) -> Any:
    """A whole value as what travels."""
    if isinstance(value, Stream):
        return packed(Stretch(0, value.size, value.index, value.value), call.compress)
    return value


def _from_form(call: Call, source: int, form: Any) -> Any:
    """The value again; checked."""
    if call.own[0] == "Stream":
        size = call.own[2][0]
        stretch = unpacked(form, 0, size, call.index_dtype, call.own[1], trusted=call.group.shared)
        return adopt(size, stretch.places, stretch.value)
    if not isinstance(form, np.ndarray) or (form.dtype, form.shape) != call.own[1:]:
        raise RuntimeError(f"rank {source} sent no array of {call.own[1]} to rank {call.rank}")
    return form


def _final(total: Any) -> Any:
    """`total`, made read-only, so that it travels by reference and kernels have one signature."""
    if isinstance(total, np.ndarray):
        total.flags.writeable = False
    return total


def _private(total: Any) -> Any:
    """`total` as what the caller may write to; a Stream is read-only for all."""
    return total if isinstance(total, Stream) or total.flags.writeable else total.copy()
