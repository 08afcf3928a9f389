"""Payloads as bytes and back without pickling: a JSON description and raw buffers, checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .group import Payload, freeze

__all__ = ["DecodeError", "decode", "encode", "frozen", "packed", "register", "unpacked"]

_ALIGN = 64  # buffers start at multiples of a cache line, so that arrays made of them are aligned
_KINDS = "biufcSU"
_DTYPE = re.compile(f"[<>|][{_KINDS}][1-9][0-9]{{0,8}}")
_AXES = 64  # numpy has no more
_DEPTH = 64  # levels of nesting: refused by the sender, since not every receiver has the stack for more

_PLAIN = frozenset({type(None), bool, int, float, str})

_by_name: dict[str, tuple[type, Callable[[Any], Any]]] = {}
_by_type: dict[type, tuple[str, Callable[[Any], Any]]] = {}


class DecodeError(ValueError):
    """Bytes that no `encode` made."""


def register(kind: type, apart: Callable[[Any], Any], together: Callable[[Any], Any]) -> None:
    """Let values of class `kind` travel: `apart` makes a payload of one, `together` the value again.

    Both sides must have registered the class under the same module and name; `together` is given data from
    the network and must check them.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    _by_name[name] = (kind, together)
    _by_type[kind] = (name, apart)


def frozen(payload: Payload) -> Payload:
    """`payload` with every writeable array replaced by a read-only copy, registered classes included.

    Raises:
        TypeError: something that `encode` refuses, so that it does not matter where a receiver is.
    """
    registered = _by_type.get(type(payload))
    if registered is not None:
        return _by_name[registered[0]][1](frozen(registered[1](payload)))
    if isinstance(payload, np.ndarray | np.generic):
        _check_array(payload)
        return freeze(payload)
    if isinstance(payload, tuple) and not hasattr(payload, "_make"):
        return tuple(map(frozen, payload))
    if isinstance(payload, list):
        return list(map(frozen, payload))
    if isinstance(payload, dict):
        return {key: frozen(entry) for key, entry in payload.items()}
    if payload is None or isinstance(payload, bool | int | float | complex | str | bytes):
        return payload
    raise _unknown(payload)


def encode(payload: Payload) -> tuple[bytes, list[memoryview | bytes], int]:
    """(description, buffers, bytes of the buffers): the buffers, one after the other, are the body.

    Raises:
        TypeError: something that cannot travel; names its type.
        ValueError: nested too deep.
    """
    buffers: list[memoryview | bytes] = []
    size = 0

    def put(raw: memoryview | bytes, length: int) -> None:
        nonlocal size
        buffers.append(raw)
        padding = -length % _ALIGN
        if padding:
            buffers.append(bytes(padding))
        size += length + padding

    def describe(value: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError(f"a payload nested deeper than {_DEPTH} levels cannot travel between workers")
        below = depth + 1
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is np.ndarray or isinstance(value, np.ndarray | np.generic):
            return ["a" if isinstance(value, np.ndarray) else "g", *array(value)]
        registered = _by_type.get(kind)
        if registered is not None:
            return ["r", registered[0], describe(registered[1](value), below)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple) and not hasattr(value, "_make"):
            return ["t", *(describe(entry, below) for entry in value)]
        if isinstance(value, list):
            return ["l", *(describe(entry, below) for entry in value)]
        if isinstance(value, dict):
            return ["d", *([describe(key, below), describe(entry, below)] for key, entry in value.items())]
        if isinstance(value, bytes):
            put(value, len(value))
            return ["b", len(value)]
        if isinstance(value, complex):
            return ["c", value.real, value.imag]
        raise _unknown(value)

    def array(given: np.ndarray | np.generic) -> list[Any]:
        _check_array(given)
        value = np.asarray(given)
        order: Literal["C", "F"] = "F" if value.flags.fnc else "C"
        if value.flags.writeable:  # it may change before it is on the wire
            value = value.copy(order)
        flat = np.asarray(value, order=order).reshape(-1, order=order)
        put(flat.view(np.uint8).data, flat.nbytes)
        return [value.dtype.str, list(value.shape), order]

    description = json.dumps(describe(payload, 0), separators=(",", ":")).encode()
    return description, buffers, size


def _check_array(value: np.ndarray | np.generic) -> None:
    if not _DTYPE.fullmatch(np.asarray(value).dtype.str):  # an empty string's own dtype has no bytes
        raise TypeError(f"an array of {value.dtype} cannot travel between workers; use a numeric dtype")
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):  # would lose its mask
        raise _unknown(value)


def _unknown(value: Any) -> TypeError:
    return TypeError(
        f"a {type(value).__name__} cannot travel between workers; send arrays, numbers, strings, or "
        "tuples, lists and dicts of these (a class of your own: daskstrads.comm.codec.register)"
    )


def decode(description: bytes, body: np.ndarray) -> Payload:
    """The payload; its arrays are read-only views of `body` (uint8).

    Raises:
        DecodeError: a description that does not fit the body, or is none.
    """
    try:
        reader = _Reader(body)
        payload = reader.value(json.loads(description), 0)
        if reader.place != body.size:
            raise DecodeError(f"the payload ends at {reader.place}, the body at {body.size}")
    except DecodeError:
        raise
    except Exception as error:  # json's, numpy's, those of a registered class
        raise DecodeError(f"not a payload: {type(error).__name__}: {str(error)[:200]}") from error
    return payload


def packed(payload: Payload) -> list[bytes]:
    """`encode` for carriers that take bytes: the description and the body.

    Raises: as `encode`.
    """
    description, buffers, _ = encode(payload)
    return [description, b"".join(buffers)]


def unpacked(parts: list[bytes]) -> Payload:
    """The payload of `packed`.

    Raises:
        DecodeError: parts that `packed` did not make.
    """
    description, body = parts
    return decode(description, np.frombuffer(body, np.uint8))


class _Reader:
    """Takes the body apart front to back: every byte is used once, so small frames stay small."""

    def __init__(self, body: np.ndarray):
        self.body = body.view()
        self.body.flags.writeable = False
        self.place = 0

    def value(self, given: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise DecodeError(f"a payload nested deeper than {_DEPTH} levels")
        if given is None or isinstance(given, bool | int | float | str):
            return given
        below = depth + 1
        match given:
            case ["a", dtype, shape, order]:
                return self.array(dtype, shape, order)
            case ["g", dtype, [], "C"]:
                return self.array(dtype, [], "C")[()]
            case ["t", *rest]:
                return tuple([self.value(entry, below) for entry in rest])
            case ["l", *rest]:
                return [self.value(entry, below) for entry in rest]
            case ["d", *rest]:
                return {self.value(key, below): self.value(entry, below) for key, entry in rest}
            case ["b", length]:
                return self.raw(length).tobytes()
            case ["c", float(real), float(imag)]:
                return complex(real, imag)
            case ["r", str(name), inner]:
                if name not in _by_name:
                    raise DecodeError(f"no class {name[:80]!r} is registered here")
                return _by_name[name][1](self.value(inner, below))
        raise DecodeError(f"unknown description {str(given)[:40]!r}")

    def raw(self, length: Any) -> np.ndarray:
        if type(length) is not int or length < 0:
            raise DecodeError("a buffer's length must be a whole number")
        start = self.place
        self.place += length + -length % _ALIGN
        if self.place > self.body.size:
            raise DecodeError(f"a buffer ends at {self.place}, the body at {self.body.size}")
        return self.body[start : start + length]

    def array(self, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype) or order not in ("C", "F"):
            raise DecodeError("an array of a dtype or in an order that does not travel")
        if not isinstance(shape, list) or len(shape) > _AXES:
            raise DecodeError("an array without a shape")
        kind = np.dtype(dtype)
        count = 1
        for length in shape:
            if type(length) is not int or not 0 <= length < 2**63:
                raise DecodeError("an array of an impossible shape")
            count *= length
        return self.raw(count * kind.itemsize).view(kind).reshape(shape, order=order)
