"""Sixteen cells at a time: sums, searches and draws that numba's own loops do not turn into vector code.

Every function is written twice, as vector instructions (LLVM's own, for any processor) and in plain Python,
which says what it does and runs where numba's compiler is off (NUMBA_DISABLE_JIT=1).
A cell is an unsigned integer: a topic in its lower half, a count in its upper half. `weight` is float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "ask", "dot", "dot_dense", "find", "pick", "pick_among", "pick_dense"]

LANES = 16

_WIDE, _SMALL, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
_FLOATS, _FLAGS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(_BIT, LANES)


def _counts(cells: Any, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Topics and counts of sixteen cells, in plain Python."""
    half = cells.itemsize * 4
    some = cells[place : place + LANES]
    return (some & ((1 << half) - 1)).astype(np.int64), (some >> half).astype(np.float32)


def _first_above(shares: np.ndarray, left: Any) -> int:
    above = np.flatnonzero((np.cumsum(shares, dtype=np.float32) > left) & (shares > 0))
    return int(above[0]) if len(above) else LANES


def _dot(cells, place, weight):
    """Sum of count x weight[topic] over the cells [place, place + 16)."""
    topics, counts = _counts(cells, place)
    return np.float32((counts * weight[topics]).sum())


def _dot_dense(counts, place, weight, topic):
    """Sum of counts[place + i] x weight[topic + i] for i < 16."""
    return np.float32(
        (counts[place : place + LANES].astype(np.float32) * weight[topic : topic + LANES]).sum()
    )


def _find(cells, place, topic):
    """Which of the cells [place, place + 16) has this topic, and is not 0; 16: none."""
    topics, _ = _counts(cells, place)
    found = np.flatnonzero((topics == topic) & (cells[place : place + LANES] != 0))
    return int(found[0]) if len(found) else LANES


def _pick(cells, place, weight, left):
    """The first of sixteen cells that counts, up to which count x weight[topic] add up to more than `left`.

    16: none.
    """
    topics, counts = _counts(cells, place)
    return _first_above(counts * weight[topics], left)


def _pick_dense(counts, place, weight, topic, left):
    """The same of counts[place + i] x weight[topic + i]."""
    shares = counts[place : place + LANES].astype(np.float32) * weight[topic : topic + LANES]
    return _first_above(shares, left)


def _pick_among(weight, topic, left):
    """The same of weight[topic + i]."""
    return _first_above(weight[topic : topic + LANES], left)


def _ask(array, place):
    """Have the memory at array[place] brought near, to be changed."""


class _Gathered(ir.instructions.Instruction):
    """Pointers to array[index] for a vector of indices; llvmlite's builder only knows single ones."""

    def __init__(self, block: Any, pointer: Any, indices: Any):
        name = block.parent.scope.deduplicate("gathered")
        kind = ir.VectorType(pointer.type, LANES)
        super().__init__(block, kind, "getelementptr", [pointer, indices], name=name)
        self.element = pointer.type.pointee

    def descr(self, text: list[str]) -> None:
        pointer, indices = self.operands
        text.append(
            f"getelementptr {self.element}, {pointer.type} {pointer.get_reference()}, "
            f"{indices.type} {indices.get_reference()}\n"
        )


class _Builder:
    """Sixteen lanes of LLVM code in one function."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any):
        self.context, self.builder, self.signature, self.arguments = context, builder, signature, arguments

    def pointer(self, argument: int, place: Any) -> Any:
        array = self.context.make_array(self.signature.args[argument])
        return self.builder.gep(array(self.context, self.builder, self.arguments[argument]).data, [place])

    def load(self, argument: int, place: Any) -> Any:
        """array[place : place + 16]."""
        pointer = self.pointer(argument, place)
        loaded = self.builder.load(
            self.builder.bitcast(pointer, ir.VectorType(pointer.type.pointee, LANES).as_pointer())
        )
        loaded.align = self.signature.args[argument].dtype.bitwidth // 8
        return loaded

    def call(self, name: str, result: Any, arguments: list[Any], **more: Any) -> Any:
        kind = ir.FunctionType(result, [each.type for each in arguments])
        return self.builder.call(
            cgutils.get_or_insert_function(self.builder.module, kind, name), arguments, **more
        )

    def same(self, value: Any) -> Any:
        """A vector of sixteen times a value."""
        kind = ir.VectorType(value.type, LANES)
        none = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(none, value, ir.Constant(_SMALL, 0))
        return self.builder.shuffle_vector(
            first, none, ir.Constant(ir.VectorType(_SMALL, LANES), [0] * LANES)
        )

    def topics(self, cells: Any) -> Any:
        half = cells.type.element.width // 2
        return self.builder.and_(cells, ir.Constant(cells.type, [(1 << half) - 1] * LANES))

    def shares(self) -> Any:
        """count x weight[topic] of cells (argument 0), at a place (1), with weights (2)."""
        builder = self.builder
        cells = self.load(0, self.arguments[1])
        half = cells.type.element.width // 2
        counts = builder.lshr(cells, ir.Constant(cells.type, [half] * LANES))
        weights = self.pointer(2, ir.Constant(_WIDE, 0))
        pointers = _Gathered(builder.block, weights, self.topics(cells))
        builder._insert(pointers)
        four, all_, zero = ir.Constant(_SMALL, 4), ir.Constant(_FLAGS, [1] * LANES), self.zeros
        gathered = self.call("llvm.masked.gather.v16f32.v16p0", _FLOATS, [pointers, four, all_, zero])
        return builder.fmul(builder.sitofp(counts, _FLOATS), gathered)

    def dense_shares(self) -> Any:
        """counts x weights of counts (argument 0) at a place (1), weights (2) at a topic (3)."""
        counts = self.builder.sitofp(self.load(0, self.arguments[1]), _FLOATS)
        return self.builder.fmul(counts, self.load(2, self.arguments[3]))

    @property
    def zeros(self) -> Any:
        return ir.Constant(_FLOATS, [0.0] * LANES)

    def total(self, shares: Any) -> Any:
        zero = ir.Constant(ir.FloatType(), 0.0)
        return self.call("llvm.vector.reduce.fadd.v16f32", ir.FloatType(), [zero, shares], fastmath=("fast",))

    def first(self, flags: Any) -> Any:
        """The first lane that is set; 16: none."""
        builder = self.builder
        bits = builder.zext(builder.bitcast(flags, ir.IntType(LANES)), _WIDE)
        bits = builder.or_(bits, ir.Constant(_WIDE, 1 << LANES))
        return self.call("llvm.cttz.i64", _WIDE, [bits, ir.Constant(_BIT, 1)])

    def first_above(self, shares: Any, left: Any) -> Any:
        """The first lane that has a share, and up to which shares add up to more than `left`."""
        builder = self.builder
        # Sums of more lanes may be larger by rounding alone: a lane without a share is never drawn.
        filled = builder.fcmp_ordered(">", shares, self.zeros)
        for step in (1, 2, 4, 8):
            lanes = [LANES + lane if lane < step else lane - step for lane in range(LANES)]
            shifted = builder.shuffle_vector(
                shares, self.zeros, ir.Constant(ir.VectorType(_SMALL, LANES), lanes)
            )
            shares = builder.fadd(shares, shifted)
        return self.first(builder.and_(filled, builder.fcmp_ordered(">", shares, self.same(left))))


def _vector(plain: Callable, result: Any, given: tuple, generate: Callable[[_Builder], Any]) -> Any:
    """The function as vector code: `given` are the types of its arguments, None: whatever array comes."""
    if config.DISABLE_JIT:
        return plain

    def made(typing_context: Any, *kinds: Any) -> Any:
        kept = [kind if wanted is None else wanted for kind, wanted in zip(kinds, given, strict=True)]
        return result(*kept), lambda *environment: generate(_Builder(*environment))

    made.__name__ = made.__qualname__ = plain.__name__[1:]
    made.__doc__ = plain.__doc__
    named = list(inspect.signature(plain).parameters.values())
    first = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made.__signature__ = inspect.Signature([first, *named])  # type: ignore[attr-defined]  # numba asks for it
    return intrinsic(made)


def _asked(lanes: _Builder) -> Any:
    pointer = lanes.builder.bitcast(lanes.pointer(0, lanes.arguments[1]), cgutils.voidptr_t)
    one, near = ir.Constant(_SMALL, 1), ir.Constant(_SMALL, 3)
    lanes.call("llvm.prefetch.p0", ir.VoidType(), [pointer, one, near, one])
    return lanes.context.get_dummy_value()


def _found(lanes: _Builder) -> Any:
    builder, cells = lanes.builder, lanes.load(0, lanes.arguments[1])
    sought = (
        builder.trunc(lanes.arguments[2], cells.type.element)
        if cells.type.element.width < 64
        else lanes.arguments[2]
    )
    same = builder.icmp_unsigned("==", lanes.topics(cells), lanes.same(sought))
    filled = builder.icmp_unsigned("!=", cells, ir.Constant(cells.type, [0] * LANES))
    return lanes.first(builder.and_(same, filled))


_PLACE, _FLOAT, _INT = types.intp, types.float32, types.int64
dot = _vector(_dot, _FLOAT, (None, _PLACE, None), lambda lanes: lanes.total(lanes.shares()))
dot_dense = _vector(
    _dot_dense, _FLOAT, (None, _PLACE, None, _PLACE), lambda lanes: lanes.total(lanes.dense_shares())
)
find = _vector(_find, _INT, (None, _PLACE, _INT), _found)
pick = _vector(
    _pick,
    _INT,
    (None, _PLACE, None, _FLOAT),
    lambda lanes: lanes.first_above(lanes.shares(), lanes.arguments[3]),
)
pick_dense = _vector(
    _pick_dense, _INT, (None, _PLACE, None, _PLACE, _FLOAT),
    lambda lanes: lanes.first_above(lanes.dense_shares(), lanes.arguments[4]),
)  # fmt: skip
pick_among = _vector(
    _pick_among, _INT, (None, _PLACE, _FLOAT),
    lambda lanes: lanes.first_above(lanes.load(0, lanes.arguments[1]), lanes.arguments[2]),
)  # fmt: skip
ask = _vector(_ask, types.void, (None, _PLACE), _asked)
