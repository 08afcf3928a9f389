import collections
import contextlib
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from daskstrads.comm import codec
from daskstrads.comm.codec import DecodeError, decode, encode, frozen
from daskstrads.schedule import Plan, Report, Turn
from daskstrads.sparse_reduce import Stream

Pair = collections.namedtuple("Pair", "left right")


def body_of(buffers):
    return np.frombuffer(bytearray(b"".join(buffers)), np.uint8)


def trip(payload):
    description, buffers, size = encode(payload)
    body = body_of(buffers)
    assert body.size == size
    return decode(description, body)


def same(a, b):
    """Equal in kind and bit for bit."""
    assert type(a) is type(b)
    match a:
        case np.ndarray():
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()
            assert not b.flags.writeable
            assert b.flags.aligned
        case np.generic():
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
        case Stream():
            same(a.to_parts(), b.to_parts())
        case tuple() | list():
            assert len(a) == len(b)
            for left, right in zip(a, b, strict=True):
                same(left, right)
        case dict():
            same([*a.items()], [*b.items()])
        case float():
            assert np.float64(a).tobytes() == np.float64(b).tobytes() or (math.isnan(a) and math.isnan(b))
        case complex():
            same((a.real, a.imag), (b.real, b.imag))
        case _:
            assert a == b


dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.byte_string_dtypes(max_len=5),
    hnp.unicode_string_dtypes(endianness="?", max_len=5),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw):
    array = draw(hnp.arrays(draw(dtypes), draw(shapes)))
    form = draw(st.sampled_from(["as it is", "Fortran", "transposed", "strided", "backwards", "read-only"]))
    if form == "Fortran":
        array = np.asfortranarray(array)
    elif form == "transposed":
        array = array.T
    elif form == "strided" and array.ndim:
        array = array[::2]
    elif form == "backwards" and array.ndim:
        array = array[..., ::-1]
    elif form == "read-only":
        array.flags.writeable = False
    return array


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary()
)
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()]))
streams = st.lists(st.integers(0, 99), unique=True).map(
    lambda index: Stream.from_coo(sorted(index), np.arange(len(index)) / 7, 100)
)
registered = st.one_of(
    streams,
    st.builds(
        Report,
        hnp.arrays(np.int64, 3),
        hnp.arrays(np.float64, 3),
        st.dictionaries(st.text(max_size=5), st.floats()),
    ),
    st.builds(Plan, st.text(), hnp.arrays(np.int64, 2), st.floats()),
    st.builds(Turn, st.integers(), st.integers()),
)
payloads = st.recursive(
    st.one_of(plain, scalars, arrays(), registered),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.integers())), inner, max_size=4),
    ),
    max_leaves=8,
)


@given(payloads)
def test_payloads_come_back_bit_for_bit(payload):
    same(payload, trip(payload))


@given(arrays())
def test_the_layout_comes_back(array):
    found = trip(array)
    if array.flags.forc:
        assert (found.flags.c_contiguous, found.flags.f_contiguous) == (
            array.flags.c_contiguous,
            array.flags.f_contiguous,
        )


@pytest.mark.parametrize(
    "value",
    [
        np.longdouble(1) / 3,
        np.array(1j, np.clongdouble),
        np.float16(0.1),
        np.bytes_(b""),
        np.str_(""),
        np.zeros((0, 2**40)),
        np.array(math.nan, ">f8"),
        -0.0,
        -math.inf,
        10**400,
        "\ud800",
    ],
)
def test_corner_values(value):
    same(value, trip(value))


def test_writeable_arrays_are_copied_once_and_others_travel_by_reference():
    mine, promised = np.ones(1000), np.ones(1000)
    promised.flags.writeable = False
    for array, shared in ((mine, False), (promised, True), (promised[::2], False)):
        raw = np.frombuffer(encode(array)[1][0], np.uint8)
        assert np.shares_memory(raw, array) == shared


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Opaque(), "Opaque"),
        ({1}, "set"),
        (Pair(1, 2), "Pair"),
        (len, "builtin_function_or_method"),
        (memoryview(b""), "memoryview"),
        (bytearray(), "bytearray"),
        (np.array([None]), "object"),
        (np.zeros(2, "f4,f4"), "f4"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.void(b"12"), "V2"),
        (np.ma.masked_equal([1, 2], 2), "MaskedArray"),
        (np.rec.array([(1, 2.0)], dtype="i4,f8"), "f8"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [{"a": (v,)}], lambda v: Report(v, v, {})])
def test_what_is_no_payload_is_named(value, name, wrap):
    for act in (encode, frozen):
        with pytest.raises(TypeError, match=f"{name}.* cannot travel between workers"):
            act(wrap(value))


@given(payloads)
def test_frozen_keeps_values_and_takes_writeability(payload):
    kept = frozen(payload)
    same(trip(payload), trip(kept))
    if isinstance(payload, np.ndarray):
        assert (kept is payload) == (not payload.flags.writeable)
        assert not kept.flags.writeable


def test_frozen_reaches_into_registered_classes():
    report = Report(np.arange(3), np.ones(3), {"a": np.ones(2)})
    kept = frozen([report])[0]
    assert type(kept) is Report
    report.ids[:] = 9
    assert kept.ids.tolist() == [0, 1, 2]
    assert not kept.terms["a"].flags.writeable
    stream = Stream.from_coo([1], [1.0], 5)
    same(frozen(stream), stream)


def nested(levels, tag="l"):
    return b'["%s",' % tag.encode() * levels + b"null" + b"]" * levels


def test_nesting_has_a_limit_that_sender_and_receiver_share():
    payload = None
    for _ in range(64):
        payload = [payload]
    assert trip(payload) == payload
    with pytest.raises(ValueError, match="nested deeper than 64"):
        encode([payload])
    for levels in (65, 500, 3000, 100_000, 1_000_000):
        with pytest.raises(DecodeError):
            decode(nested(levels), np.empty(0, np.uint8))


STREAM = "daskstrads.sparse_reduce.stream.Stream"
MALFORMED = [
    b"",
    b"\xff\xfe",
    b"nul",
    b'["a"',
    b"{}",
    b"[]",
    b"[[]]",
    b'["x"]',
    b"[null]",
    b"[7]",
    b'["a"]',
    b'["a","<f8",[1]]',
    b'["a","<f8",[1],"C",0]',
    b'["a","<f8",[2],"C"]',  # 16 bytes padded to 64; the body has 128
    b'["a","<f8",[17],"C"]',
    b'["a","<f8",[-1],"C"]',
    b'["a","<f8",[true],"C"]',
    b'["a","<f8",[NaN],"C"]',
    b'["a","<f8",[1.0],"C"]',
    b'["a","<f8",["1"],"C"]',
    b'["a","<f8",1,"C"]',
    b'["a","<f8",null,"C"]',
    b'["a","<f8",{},"C"]',
    b'["a","<f8","","C"]',
    b'["a","<f8",[4611686018427387904,4],"C"]',
    b'["a","<f8",[9223372036854775807,9223372036854775807],"C"]',
    b'["a","<f8",[' + b"9" * 4000 + b'],"C"]',
    b'["a","<f8",[' + b"9" * 5000 + b'],"C"]',
    b'["a","<f8",[' + b"1," * 70 + b'1],"C"]',
    b'["a","<f8",[1],"K"]',
    b'["a","<f8",[1],null]',
    b'["a","<f8",[1],["C"]]',
    *(
        b'["a",%s,[1],"C"]' % json.dumps(dtype).encode()
        for dtype in (
            "O", "|O8", "<f8,<f8", "(2,3)<f4", "f8", "<f3", "<f0", "V8", "|V8", "<M8[s]", "Float64",
            "a5", "T", "", " ", "<U999999999", "<U99999999999999999999", "\x00", "é", "x" * 10**5,
            None, 8, [["a", "<f8"]], {"names": ["a"], "formats": ["O"]}, True,
        )
    ),
    b'["g","<f8",[1],"C"]',
    b'["g","<f8",[],"F"]',
    b'["g","<U4",[],"C"]',
    b'["b"]',
    b'["b",-1]',
    b'["b",1e3]',
    b'["b",NaN]',
    b'["b",true]',
    b'["b","1"]',
    b'["b",129]',
    b'["b",64]',  # half of the body is left over
    b'["b",18446744073709551616]',
    b'["l",["b",128],["b",1]]',
    b'["l",["b",128],["b",128]]',
    b'["c"]',
    b'["c",1.0]',
    b'["c","1","2"]',
    b'["c",1.0,null]',
    b'["d",1]',
    b'["d",[1]]',
    b'["d",[1,2,3]]',
    b'["d",[["l"],1]]',
    b'["d",[["a","<f8",[16],"C"],1]]',
    b'["r"]',
    b'["r","Stream"]',
    b'["r","os.system",["t","ls"]]',
    b'["r",["l"],null]',
    b'["r",null,null]',
    *(
        b'["r","%s",%s]' % (STREAM.encode(), inner)
        for inner in (
            b"null", b"7", b'["t"]', b'["t",3,null,null]', b'["l",2,null,["a","<f8",[16],"C"]]',
            b'["t",4,["a","<u4",[2],"C"],["a","<f8",[2],"C"]]', b'["t",-1,null,["a","<f8",[16],"C"]]',
        )
    ),
    b'["r","daskstrads.schedule.policy.Report",["t",1,2]]',
    b'["r","daskstrads.schedule.policy.Report",null]',
]  # fmt: skip


@pytest.mark.parametrize("description", MALFORMED, ids=lambda raw: repr(raw[:50]))
def test_malformed_descriptions_are_refused(description):
    body = np.full(128, 255, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(description, body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()


def test_one_buffer_cannot_be_asked_for_many_times():
    # 12 bytes of description for each copy of the body would be a way to fill the receiver's memory.
    body = np.zeros(1 << 20, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(b'["l"' + b',["b",1048576]' * 10_000 + b"]", body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_whatever_a_registered_class_raises_is_a_decode_error(monkeypatch):
    def together(parts):
        return 1 / parts

    monkeypatch.setitem(codec._by_name, "x", (int, together))
    with pytest.raises(DecodeError, match="ZeroDivisionError"):
        decode(b'["r","x",0]', np.empty(0, np.uint8))


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
        st.sampled_from(["a", "g", "t", "l", "d", "b", "c", "r", "<f8", "|S3", "<U2", "C", "F", STREAM]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=2), inner)),
    max_leaves=20,
)  # fmt: skip


def decode_or_refuse(description, body):
    with contextlib.suppress(DecodeError):
        decode(description, body)


@given(VALUES, st.binary(max_size=200))
@settings(max_examples=200)
def test_any_json(value, body):
    decode_or_refuse(json.dumps(value).encode(), np.frombuffer(body, np.uint8))


@given(payloads, st.data())
@settings(max_examples=150)
def test_damaged_descriptions_and_bodies(payload, data):
    description, buffers, _ = encode(payload)
    body = body_of(buffers)
    cut = data.draw(st.integers(0, len(description)))
    decode_or_refuse(description[:cut], body)
    damaged = bytearray(description)
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(description) - 1), st.integers(0, 255)), max_size=4)
    ):
        damaged[place] = byte
    decode_or_refuse(bytes(damaged), body)
    if body.size:
        with pytest.raises(DecodeError):
            decode(description, body[: data.draw(st.integers(0, body.size - 1))])
    with pytest.raises(DecodeError):
        decode(description, np.concatenate([body, np.zeros(64, np.uint8)]))


@given(st.binary(max_size=300), st.binary(max_size=64))
def test_random_bytes(description, body):
    decode_or_refuse(description, np.frombuffer(body, np.uint8))
