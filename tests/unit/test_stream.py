import pickle
import subprocess
import sys

import naive
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.sparse_reduce import Stream, merge_kernels

DTYPES = ["float32", "float64", "int32", "int64"]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan]
NUMBERS = {
    "f": st.sampled_from(SPECIAL) | st.floats(width=32),
    "i": st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]) | st.integers(-100, 100),
}


@st.composite
def pairs(draw, dtype, size, sort=False):
    """(index, value): entries of a vector, repeats only when not sorted."""
    index = draw(st.lists(st.integers(0, size - 1), max_size=30, unique=sort) if size else st.just([]))
    value = draw(st.lists(NUMBERS[np.dtype(dtype).kind], min_size=len(index), max_size=len(index)))
    return np.array(sorted(index) if sort else index, np.int64), np.array(value, dtype)


def entries(stream):
    return dict(zip(map(int, stream.index), stream.value, strict=True))


def check(stream, wanted, dtype):
    """The stream is sparse and holds exactly these entries."""
    assert stream.dtype == dtype
    assert list(stream.index) == sorted(wanted)
    assert naive.bits(stream.value) == naive.bits(np.array([wanted[i] for i in sorted(wanted)], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_from_coo_sorts_and_adds_repeats(dtype, data):  # case 67
    size = data.draw(st.sampled_from([0, 1, 7, 1000, 2**32, 2**32 + 1]))
    index, value = data.draw(pairs(dtype, size))
    kept = index.copy(), value.copy()
    stream = Stream.from_coo(index, value, size)
    check(stream, naive.entries_of_pairs(index, value), dtype)
    assert stream.index.dtype == (np.uint32 if size <= 2**32 else np.uint64)
    assert naive.bits(index) == naive.bits(kept[0])
    assert naive.bits(value) == naive.bits(kept[1])
    assert index.flags.writeable
    assert value.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_sum_is_the_sum_of_the_dictionaries(dtype, data):  # case 67
    size = data.draw(st.sampled_from([0, 1, 20, 70, 10_000, 2**40]))
    coo = [data.draw(pairs(dtype, size, sort=True)) for _ in range(2)]
    a, b = (Stream.from_coo(*one, size) for one in coo)
    total = a + b
    wanted = naive.add_entries(entries(a), entries(b))
    index_bytes = 4 if size <= 2**32 else 8
    item = np.dtype(dtype).itemsize
    # The exact union decides, not the sum of the counts.
    assert total.is_dense == (len(wanted) * (index_bytes + item) >= size * item)
    if total.is_dense:
        assert naive.bits(total.value) == naive.bits(naive.dense_of_entries(wanted, size, dtype))
    else:
        check(total, wanted, dtype)
    if size <= 10_000:  # the other representations
        wanted = naive.bits(naive.add_arrays(a.dense(), b.dense()))
        full = [Stream(size, None, s.dense()) for s in (a, b)]
        for one in (total, full[0] + full[1], a + full[1], full[0] + b):
            assert naive.bits(one.dense()) == wanted
        assert (a + full[1]).is_dense


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_from_dense_keeps_the_nonzeros(dtype, data):
    x = np.array(data.draw(st.lists(NUMBERS[np.dtype(dtype).kind], max_size=40)), dtype)
    x = np.concatenate([x, np.zeros(data.draw(st.integers(0, 60)), dtype)])
    stream = Stream.from_dense(x)
    assert naive.bits(stream.dense()) == naive.bits(x + x.dtype.type(0))
    nnz = sum(v != 0 for v in x)
    assert stream.is_dense == (nnz * (4 + x.itemsize) >= x.nbytes)
    assert stream.nnz == (x.size if stream.is_dense else nnz)
    assert stream.nbytes <= x.nbytes
    assert x.flags.writeable
    assert not np.shares_memory(stream.value, x)


def test_repeats_are_added_in_the_order_given():  # case 67
    assert entries(Stream.from_coo([5, 2, 5, 5], [1e20, 7.0, -1e20, 1.0], 9)) == {2: 7, 5: 1}
    assert entries(Stream.from_coo([5, 2, 5, 5], [1.0, 7.0, -1e20, 1e20], 9)) == {2: 7, 5: 0}


def test_small_values_are_not_dropped():
    assert Stream.from_dense(np.array([0, 1e-45, 0, 0, 0], np.float32)).nnz == 1


def test_cancelled_entries_stay_stored():  # case 67
    total = Stream.from_coo([1, 2], [1.0, 1.0], 100) + Stream.from_coo([1, 2], [-1.0, 1.0], 100)
    assert list(total.index) == [1, 2]
    assert list(total.value) == [0, 2]
    assert not np.signbit(total.value[0])


def test_minus_zero_plus_absent_is_zero():  # case 67
    minus, nothing = Stream.from_coo([3], [-0.0], 100), Stream.from_coo([], np.zeros(0), 100)
    for total in (minus + nothing, nothing + minus, minus + Stream.from_coo([3], [0.0], 100)):
        assert not np.signbit(total.dense()[3])
    assert np.signbit((minus + minus).dense()[3])


def test_nan_propagates_and_infinity_stays():  # case 67
    a = Stream.from_coo([0, 1, 2], [np.nan, np.inf, np.inf], 100)
    total = a + Stream.from_coo([0, 1, 2], [1.0, 1.0, -np.inf], 100)
    np.testing.assert_array_equal(total.value, [np.nan, np.inf, np.nan])


@pytest.mark.parametrize("nnz", [0, 1, 50, 100])
def test_nothing_and_everything(nnz):  # case 65: k = 0, k = dim
    index = np.arange(nnz)
    stream = Stream.from_coo(index, np.ones(nnz), 100)
    nothing = Stream.from_coo([], np.zeros(0), 100)
    for total in (stream + nothing, nothing + stream):
        np.testing.assert_array_equal(total.dense(), np.arange(100) < nnz)
    assert not (nothing + nothing).is_dense
    assert (stream + nothing).is_dense == (nnz * 12 >= 800)


def test_same_support_stays_sparse_where_the_sum_of_counts_says_dense():
    stream = Stream.from_coo(np.arange(60), np.ones(60), 100)
    assert not (stream + stream).is_dense
    assert (stream + Stream.from_coo(np.arange(40, 100), np.ones(60), 100)).is_dense


@pytest.mark.parametrize(
    "container", [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_matrix, sp.dok_array]
)
def test_from_scipy_takes_rows_and_columns(container):
    x = np.array([[0, 2.5, 0, -1]])
    for vector in (container(x), container(x.T)):
        stream = Stream.from_scipy(vector)
        assert entries(stream) == {1: 2.5, 3: -1}
        assert stream.size == 4


def test_from_scipy_adds_repeats_and_keeps_zeros():
    coo = sp.coo_array(([1.0, 2.0, 0.0], ([0, 0, 0], [5, 5, 2])), shape=(1, 9))
    assert entries(Stream.from_scipy(coo)) == {2: 0, 5: 3}
    assert entries(Stream.from_scipy(sp.coo_array(np.array([0, 1.0])))) == {1: 1}
    assert Stream.from_scipy(sp.csr_array((1, 1))).size == 1


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: Stream.from_coo([0.0], [1.0], 3), TypeError, "index must be integers, got float64"),
        (lambda: Stream.from_coo(np.zeros(0), np.zeros(0), 3), TypeError, "index must be integers"),
        (lambda: Stream.from_coo([True], [1.0], 3), TypeError, "got bool"),
        (lambda: Stream.from_coo([-1, 2], [1.0, 1.0], 3), ValueError, "index -1 is outside"),
        (lambda: Stream.from_coo([0, 3], [1.0, 1.0], 3), ValueError, "index 3 is outside .* size 3"),
        (lambda: Stream.from_coo([0, 1], [1.0], 3), ValueError, "equally long"),
        (lambda: Stream.from_coo([[0]], [[1.0]], 3), ValueError, "1-D"),
        (lambda: Stream.from_coo([0], [True], 3), TypeError, "got bool; cast"),
        (lambda: Stream.from_coo([0], np.ones(1, np.float16), 3), TypeError, "got float16"),
        (lambda: Stream.from_coo([0], [1.0], -1), ValueError, "size must be"),
        (lambda: Stream.from_coo([0], [1.0], 2.0), TypeError, "size must be an integer"),
        (lambda: Stream.from_coo([0], [1.0], 2**63), ValueError, "size must be"),
        (lambda: Stream.from_dense(np.zeros((2, 2))), ValueError, r"1-D array, got shape \(2, 2\)"),
        (lambda: Stream.from_dense(np.zeros(2, complex)), TypeError, "complex128"),
        (lambda: Stream.from_dense(np.ma.array([1.0], mask=[True])), TypeError, "masked"),
        (lambda: Stream.from_scipy(sp.csr_array((2, 2))), ValueError, "one row or one column"),
        (lambda: Stream.from_scipy(np.zeros((1, 2))), TypeError, "scipy.sparse"),
        (lambda: Stream.from_coo([0], [1.0], 3) + Stream.from_coo([0], [1.0], 4), ValueError, "3 and 4"),
        (
            lambda: Stream.from_coo([0], [1.0], 3) + Stream.from_coo([0], [1], 3),
            TypeError,
            "float64 and int64",
        ),
    ],
)
def test_clear_errors(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_arrays_and_streams_are_not_mixed():
    stream = Stream.from_coo([0], [1.0], 3)
    for left, right in [(stream, np.zeros(3)), (np.zeros(3), stream), (stream, 1.0), (0, stream)]:
        with pytest.raises(TypeError):
            left + right


U32 = np.uint32


@pytest.mark.parametrize(
    ("parts", "error", "told"),
    [
        ((3, None), TypeError, "parts are"),
        ("abc", TypeError, "parts are"),
        ((3, None, np.zeros(2)), ValueError, "size 3 has value of shape"),
        ((3, None, np.zeros((3, 1))), ValueError, "has value of shape"),
        ((3, None, [0.0, 0.0, 0.0]), TypeError, "value must be an array of"),
        ((3, None, np.zeros(3, ">f8")), TypeError, "value must be an array of"),
        ((3, np.array([1, 1], U32), np.zeros(2)), ValueError, "increase strictly"),
        ((3, np.array([2, 1], U32), np.zeros(2)), ValueError, "increase strictly"),
        ((3, np.array([1, 3], U32), np.zeros(2)), ValueError, "index 3 is outside"),
        ((3, np.array([1], np.int64), np.zeros(1)), TypeError, "must be uint32, got int64"),
        ((2**33, np.array([1], U32), np.zeros(1)), TypeError, "must be uint64, got uint32"),
        ((3, np.array([1], U32), np.zeros(2)), ValueError, "equally long"),
        ((-3, np.array([1], U32), np.zeros(1)), ValueError, "size must be"),
    ],
)
def test_bad_parts_are_refused(parts, error, told):
    with pytest.raises(error, match=told):
        Stream.from_parts(parts)


@pytest.mark.parametrize(
    "stream",
    [
        Stream.from_coo([5, 1], [1.0, 2.0], 9),
        Stream.from_dense(np.ones(4, np.int32)),
        Stream.from_coo([2**40], [1.0], 2**41),
        Stream.from_coo([2**32 - 1], [1.0], 2**32),
    ],
    ids=repr,
)
def test_parts_and_pickle_give_the_stream_back(stream):
    parts = tuple(p.copy() if isinstance(p, np.ndarray) else p for p in stream.to_parts())
    for twin in (
        Stream.from_parts(stream.to_parts()),
        Stream.from_parts(parts),
        pickle.loads(pickle.dumps(stream)),
    ):
        assert twin.size == stream.size == len(twin)
        assert twin.is_dense == stream.is_dense
        assert naive.bits(twin.value) == naive.bits(stream.value)
        assert stream.is_dense or naive.bits(twin.index) == naive.bits(stream.index)
        assert not twin.value.flags.writeable
    assert parts[2].flags.writeable
    assert not np.shares_memory(Stream.from_parts(parts).value, parts[2])


def test_from_outside_nothing_changes():
    stream = Stream.from_coo([1], [1.0], 9)
    for array in (stream.index, stream.value, Stream.from_dense(np.ones(3)).value, (stream + stream).value):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    for name in ("size", "index", "value", "other"):
        with pytest.raises(AttributeError):
            setattr(stream, name, None)
    stream.dense()[:] = 7
    dense = Stream.from_dense(np.ones(3))
    dense.dense()[:] = 7
    assert list(dense.value) == [1, 1, 1]


def test_later_changes_of_the_callers_arrays_do_not_show():
    index, value, x = np.array([1, 3], U32), np.ones(2), np.ones(3)
    streams = [Stream.from_coo(index, value, 9), Stream(9, index, value), Stream.from_dense(x)]
    index[:], value[:], x[:] = 0, 7, 7
    for stream in streams[:2]:
        assert entries(stream) == {1: 1, 3: 1}
    assert list(streams[2].value) == [1, 1, 1]


def test_strange_layouts_are_straightened():
    x = np.arange(40.0)[::-4]
    assert naive.bits(Stream.from_dense(x).dense()) == naive.bits(x)
    swapped = np.array([0, 3.0, 0, 0], ">f8")
    assert list(Stream.from_dense(swapped).dense()) == [0, 3, 0, 0]
    raw = np.frombuffer(b"\0" + np.array([2.0, 3.0]).tobytes(), np.uint8)[1:].view(np.float64)
    total = Stream(9, np.array([1, 2], U32), raw) + Stream.from_coo([2], [1.0], 9)
    assert entries(total) == {1: 2, 2: 4}


def test_what_it_says_of_itself():
    stream = Stream.from_coo([1], np.ones(1, np.float32), 9)
    assert repr(stream) == "<Stream size=9 nnz=1 float32>"
    assert repr(Stream.from_dense(np.ones(3))) == "<Stream size=3 dense float64>"
    assert (stream.shape, stream.nbytes, stream.nnz, len(stream)) == ((9,), 8, 1, 9)


@settings(max_examples=25)
@given(data=st.data())
def test_kernels_on_read_only_views(data):
    size = 50
    streams = [
        Stream.from_coo(*data.draw(pairs("float32", size, sort=True)), size)
        for _ in range(data.draw(st.integers(2, 6)))
    ]
    a, b = streams[:2]
    assert merge_kernels.count_union(a.index, b.index) == len({*entries(a), *entries(b)})
    offsets = np.cumsum([0, *(s.nnz for s in streams)])
    # Any order that adds neighbours: here from the right, which T(P) is not.
    steps = np.array([(s, s + 1) for s in reversed(range(len(streams) - 1))])
    arrays = [
        np.concatenate([s.index for s in streams]),
        np.concatenate([s.value for s in streams]),
        offsets,
        steps,
    ]
    for array in arrays[2:]:  # the streams' own are overwritten
        array.flags.writeable = False
    with np.errstate(all="ignore"):
        index, value = merge_kernels.merge_many(*arrays)
    wanted = entries(streams[-1])
    for stream in reversed(streams[:-1]):
        wanted = naive.add_entries(entries(stream), wanted)
    assert list(index) == list(wanted)
    assert naive.bits(value) == naive.bits(np.array(list(wanted.values()), np.float32))


def test_import_does_not_load_numba():
    code = (
        "import sys, numpy as np, daskstrads.sparse_reduce as r;"
        "r.Stream.from_coo([0], [1.0], 3); r.tree_sum([np.ones(3)] * 3);"
        "assert 'numba' not in sys.modules and 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["coo", "gcxs", "dok"])
@pytest.mark.parametrize("shape", [(9,), (9, 1), (1, 9)])
def test_arrays_of_pydata_sparse(kind, shape):
    import sparse

    dense = np.zeros(9)
    dense[[1, 4, 8]] = [2.0, -1.0, 3.0]
    found = Stream.from_scipy(sparse.COO.from_numpy(dense.reshape(shape)).asformat(kind))
    np.testing.assert_array_equal(found.dense(), dense)
    assert found.nnz == 3


def test_pydata_sparse_with_another_fill_value():
    import sparse

    with pytest.raises(ValueError, match=r"absent entries must be 0, they are 1\.0"):
        Stream.from_scipy(sparse.COO.from_numpy(np.ones(3), fill_value=1.0))


@pytest.mark.parametrize("dtype", ["float16", "complex128", "uint8", "bool"])
def test_dtypes_that_streams_do_not_have(dtype):
    for make in (
        lambda x: Stream.from_dense(x),
        lambda x: Stream.from_coo([0, 1, 2], x, 3),
        lambda x: Stream(3, None, x),
    ):
        with pytest.raises(TypeError, match=r"must be (an array of )?float32, float64, int32 or int64"):
            make(np.ones(3, dtype))


def test_the_maximum_counts_what_is_absent_as_zero():
    a = Stream.from_coo([0, 1, 2, 5], [-1.0, 2.0, np.nan, -0.0], 9)
    b = Stream.from_coo([1, 2, 3], [3.0, 1.0, -2.0], 9)
    for one, other in (a, b), (b, a):
        total = one.maximum(other)
        assert list(total.index) == [0, 1, 2, 3, 5]
        np.testing.assert_array_equal(total.value, [0.0, 3.0, np.nan, 0.0, 0.0])
        assert not np.signbit(total.value).any()
    with pytest.raises(ValueError, match="cannot be added"):
        a.maximum(Stream.from_coo([0], [1.0], 8))
