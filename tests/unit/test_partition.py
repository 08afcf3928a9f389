from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from daskstrads.algos.design import SparseDesign
from daskstrads.partition import Compressed, balanced_bounds, split

lengths = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10_000)), max_size=60)


@given(lengths=lengths, pieces=st.integers(1, 70), first=st.integers(0, 100))
def test_bounds_cover_everything_in_pieces_of_like_work(lengths, pieces, first):
    offsets = first + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    bounds = balanced_bounds(offsets, pieces)
    assert bounds.dtype == np.int64
    assert len(bounds) == pieces + 1
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    assert (np.diff(bounds) >= (1 if len(lengths) >= pieces else 0)).all()
    work = np.array(lengths, dtype=np.int64) + 1  # a vector weighs a little by itself
    heaviest = max(int(work[start:stop].sum()) for start, stop in pairwise(bounds))
    assert heaviest <= work.sum() / pieces + work.max(initial=0)


@pytest.mark.parametrize(
    ("lengths", "pieces", "wanted"),
    [
        ([1] * 8, 4, [0, 2, 4, 6, 8]),
        ([0] * 6, 3, [0, 2, 4, 6]),
        ([9, 1, 1, 1, 1, 1, 1, 1, 1, 1], 2, [0, 3, 10]),
        ([1, 1, 1, 999, 1, 1, 1], 4, [0, 3, 4, 5, 7]),  # a giant that spans several goals
        ([5, 5], 2, [0, 1, 2]),
        ([5, 5], 5, [0, 0, 1, 1, 2, 2]),
        ([], 3, [0, 0, 0, 0]),
    ],
)
def test_bounds_by_hand(lengths, pieces, wanted):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=int)]).astype(np.int32)
    bounds = balanced_bounds(offsets, pieces)
    if pieces == 5:  # where nothing goes is left open
        assert (np.diff(bounds) <= 1).all()
    else:
        np.testing.assert_array_equal(bounds, wanted)


def test_no_pieces():
    with pytest.raises(ValueError, match="cannot cut into 0 pieces"):
        balanced_bounds(np.arange(3), 0)


def test_many_entries_do_not_overflow():
    offsets = np.arange(6, dtype=np.int64) * 2**61 // 5
    np.testing.assert_array_equal(balanced_bounds(offsets, 5), range(6))


def entries(slab):
    """A slab as a dense array, whatever it is."""
    matrix = slab.matrix
    if not isinstance(matrix, Compressed):
        return matrix
    vectors = np.zeros((len(matrix.starts) - 1, matrix.length))
    for j in range(len(vectors)):
        place = slice(matrix.starts[j], matrix.starts[j + 1])
        vectors[j, matrix.indices[place]] = matrix.values[place]
    return vectors.T if slab.axis == 1 else vectors


FORMATS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "csc": sp.csc_array,
    "csr": sp.csr_array,
    "csc matrix": sp.csc_matrix,
    "coo": sp.coo_array,
}


def example(shape=(7, 11), seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < 0.4)


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", FORMATS)
def test_slabs_are_x_cut_up(form, axis, size):
    X = example()
    slabs = split(FORMATS[form](X), size, axis)
    assert len(slabs) == size
    assert [slab.start for slab in slabs] == [0, *(slab.stop for slab in slabs[:-1])]
    assert slabs[-1].stop == X.shape[axis]
    assert all(slab.axis == axis for slab in slabs)
    np.testing.assert_array_equal(np.concatenate([entries(slab) for slab in slabs], axis=axis), X)
    for slab in slabs:
        whole = form in "CF" or form == "strided"
        for array in [slab.matrix] if whole else slab.matrix[:3]:
            assert not array.flags.writeable
        if not whole:
            converted = form.split()[0] != ("csc" if axis == 1 else "csr")
            assert slab.matrix.indices.dtype == (np.uint16 if converted else np.int32)
            assert slab.matrix.offsets.dtype == np.int64
            assert slab.matrix.starts[0] == 0
            assert slab.matrix.length == X.shape[1 - axis]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("form", ["C", "F", "strided"])
def test_dense_slabs_are_views(form, axis):
    X = FORMATS[form](example())
    assert all(np.shares_memory(slab.matrix, X) for slab in split(X, 3, axis))
    assert X.flags.writeable  # only the slabs are read-only


@pytest.mark.parametrize(("form", "axis"), [("csc", 1), ("csr", 0), ("csc matrix", 1)])
def test_sparse_slabs_are_views_along_their_own_axis(form, axis):
    X = FORMATS[form](example())
    for slab in split(X, 3, axis):
        assert np.shares_memory(slab.matrix.values, X.data)
        assert np.shares_memory(slab.matrix.indices, X.indices)
    assert X.data.flags.writeable


@pytest.mark.parametrize(("form", "axis"), [("csc", 1), ("csr", 0), ("csr", 1)])
def test_64_bit_indices_are_narrowed_where_they_fit(form, axis):
    X = FORMATS[form](example())
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    slabs = split(X, 2, axis)
    narrow = np.uint16 if (form, axis) == ("csr", 1) else np.int32  # the first is converted anyway
    assert {slab.matrix.indices.dtype for slab in slabs} == {np.dtype(narrow)}
    np.testing.assert_array_equal(np.concatenate([entries(slab) for slab in slabs], axis=axis), example())


def test_64_bit_indices_stay_where_they_are_needed():
    long = 2**31 + 5
    X = sp.csc_array((np.ones(2), np.array([3, long - 1]), np.array([0, 1, 2])), shape=(long, 2))
    slabs = split(X, 2, 1)
    assert [slab.matrix.indices.dtype for slab in slabs] == [np.int64] * 2
    assert [list(slab.matrix.indices) for slab in slabs] == [[3], [long - 1]]


@pytest.mark.parametrize("width", [0, 1, 3])
def test_vectors_of_one_width_need_no_offsets(width):
    X = sp.csc_array((np.ones(5 * width), np.tile(np.arange(width), 5), width * np.arange(6)), shape=(3, 5))
    for slab in split(X, 2, 1):
        assert len(slab.matrix.offsets) == (1 if width else slab.stop - slab.start + 1)
        np.testing.assert_array_equal(entries(slab), X.toarray()[:, slab.start : slab.stop])
        operator = SparseDesign(slab.matrix, 1)
        assert operator.shape == (3, slab.stop - slab.start)
        assert operator.order() == 0
    X.indices[:2] = X.indices[:2][::-1]
    if width == 3:
        assert SparseDesign(split(X, 2, 1)[0].matrix, 1).order() == 1


@pytest.mark.parametrize("length", [2**16, 2**16 + 1])
def test_indices_of_a_copy_take_two_bytes_where_they_fit(length):
    X = sp.csc_array((np.ones(3), np.array([3, length - 1, 0]), np.array([0, 2, 3])), shape=(length, 2))
    slabs = split(X, 2, 1, owned=True)
    kind = np.uint16 if length == 2**16 else np.int32
    assert {slab.matrix.indices.dtype for slab in slabs} == {np.dtype(kind)}
    assert [list(slab.matrix.indices) for slab in slabs] == [[3, length - 1], [0]]
    assert split(X, 2, 1)[0].matrix.indices.dtype == np.int32


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 2), 1), ((2, 3), 0), ((4, 0), 1), ((0, 4), 0)])
def test_more_ranks_than_vectors(form, shape, axis):
    slabs = split(FORMATS[form](example(shape)), 5, axis)
    counts = [slab.stop - slab.start for slab in slabs]
    assert sum(counts) == shape[axis]
    assert max(counts) <= 1
    for slab in slabs:
        assert entries(slab).shape[axis] == slab.stop - slab.start


def test_cuts_follow_the_nonzeros():
    X = np.zeros((30, 10))
    X[:, 0] = 1.0
    X[0, :] = 1.0
    assert [slab.stop for slab in split(sp.csc_array(X), 2, 1)] == [1, 10]
    assert [slab.stop for slab in split(X, 2, 1)] == [5, 10]
