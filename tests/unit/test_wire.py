"""The wire form of streams: back and forth, few bytes, and whatever else may arrive."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.comm.codec import DecodeError, decode, encode
from daskstrads.sparse_reduce.wire import Stretch, index_bytes, packed, unpacked

DTYPES = ["float32", "float64", "int32", "int64"]
HUGE = 2**40


def entries(density, span, start, width, seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    index = np.flatnonzero(rng.random(span) < density).astype(width) + np.array(start, width)
    value = rng.integers(-9, 9, index.size).astype(dtype)
    index.flags.writeable = value.flags.writeable = False
    return Stretch(start, start + span, index, value)


def back(stretch, compress=True):
    form = packed(stretch, compress)
    width = stretch.places.dtype if stretch.places is not None else np.dtype(np.uint32)
    return form, unpacked(form, stretch.start, stretch.stop, width, stretch.value.dtype)


@pytest.mark.parametrize("compress", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    density=st.sampled_from([0.0, 1e-4, 0.01, 0.2, 0.9, 1.0]),
    span=st.integers(0, 70_000),
    start=st.sampled_from([0, 5, 2**31, HUGE]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_back_and_forth(compress, density, span, start, dtype, seed):
    given_ = entries(density, span, start, np.uint64 if start == HUGE else np.uint32, seed, dtype)
    form, found = back(given_, compress)
    assert found[:2] == given_[:2]
    np.testing.assert_array_equal(found.places, given_.places)
    assert found.places.dtype == given_.places.dtype
    assert found.value.tobytes() == given_.value.tobytes()
    if compress:
        assert sum(array.nbytes for array in form[1:-1]) <= given_.places.nbytes


@pytest.mark.parametrize(
    ("density", "form"), [(1e-3, "gaps"), (0.02, "gaps"), (0.3, "bits"), (1.0, "bits"), (1e-6, "pairs")]
)
def test_the_form_fits_the_density(density, form):
    stretch = entries(density, 1 << 20, 0, np.uint32, 1)
    found, _ = back(stretch)
    assert found[0] == form or (form == "pairs" and stretch.places.size < 4)
    taken = sum(array.nbytes for array in found[1:-1]) / max(1, stretch.places.size)
    if stretch.places.size > 100:
        assert taken == pytest.approx(index_bytes(density, 4, True), rel=0.1)


def test_far_gaps_and_the_ends_of_the_range():
    for index in [0], [2**32 - 1], [0, 254, 255, 510, 766, 65535 + 767, 2**32 - 1], [0, 2**31]:
        value = np.ones(len(index), np.float32)
        stretch = Stretch(0, 2**32, np.array(index, np.uint32), value)
        np.testing.assert_array_equal(back(stretch)[1].places, index)
    far = np.array([1, 300, HUGE, HUGE + 1, 2**62], np.uint64)
    np.testing.assert_array_equal(back(Stretch(0, 2**63 - 1, far, np.ones(5)))[1].places, far)


def test_a_dense_stretch_is_its_values():
    form, found = back(Stretch(3, 7, None, np.arange(4.0)))
    assert form[0] == "dense"
    assert found.places is None
    np.testing.assert_array_equal(found.value, np.arange(4.0))


GOOD = entries(0.1, 500, 10, np.uint32, 3)


def damaged():
    value = GOOD.value
    narrow = np.full(value.size, 9, np.uint8)
    none = np.empty(0, np.uint32)
    yield None
    yield ()
    yield (np.zeros(3, np.uint16), np.zeros(2))
    yield ("dense",)
    yield ("dense", np.ones(3, np.float32))
    yield ("dense", np.ones((500, 1), np.float32))
    yield ("pairs", GOOD.places, value[1:])
    yield ("pairs", GOOD.places[::-1], value)
    yield ("pairs", np.zeros(value.size, np.uint32), value)
    yield ("pairs", GOOD.places.astype(np.int64), value)
    yield ("pairs", GOOD.places + np.uint32(500), value)
    yield ("pairs", GOOD.places, value.astype(np.float64))
    yield ("gaps", np.full(value.size, 254, np.uint8), none, value)  # past the end
    yield ("gaps", np.full(value.size, 255, np.uint8), none, value)  # marks without a far gap
    yield ("gaps", narrow, np.ones(1, np.uint32), value)  # a far gap without a mark
    yield ("gaps", narrow.astype(np.int8), none, value)
    yield ("gaps", narrow[1:], none, value)
    yield ("gaps", np.full(1, 255, np.uint8), np.array([2**32 - 1], np.uint32), value[:1])
    yield ("bits", np.zeros(8, np.uint64), value)  # too few bits
    yield ("bits", np.full(8, 2**64 - 1, np.uint64), np.ones(500, np.float32))  # bits past the end
    yield ("bits", np.full(7, 2**64 - 1, np.uint64), value)
    yield ("words", GOOD.places, value)


@pytest.mark.parametrize("form", [*damaged()], ids=lambda form: str(form)[:30])
def test_damaged_forms_are_errors(form):
    with pytest.raises(DecodeError):
        unpacked(form, GOOD.start, GOOD.stop, np.dtype(np.uint32), np.dtype(np.float32))


@settings(max_examples=200, deadline=None)
@given(
    density=st.sampled_from([0.001, 0.05, 0.5]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 200),
)
def test_a_damaged_frame_is_an_error_or_another_stretch(density, flips, cut):
    """Never a crash, a hang, or more memory than the frame itself accounts for."""
    stretch = entries(density, 3000, 100, np.uint32, 5)
    description, buffers, _ = encode(packed(stretch, True))
    raw = bytearray(description) + bytearray(b"".join(buffers))
    for place, byte in flips:
        raw[int(place * len(raw))] = byte
    body = np.frombuffer(bytes(raw[len(description) : len(raw) - cut]), np.uint8)
    try:
        form = decode(bytes(raw[: len(description)]), body)
        found = unpacked(form, 100, 3100, np.dtype(np.uint32), np.dtype(np.float32))
    except DecodeError:
        return
    assert found.places is None or ((found.places >= 100).all() and (found.places < 3100).all())
    assert found.places is None or (np.diff(found.places.astype(np.int64)) > 0).all()
