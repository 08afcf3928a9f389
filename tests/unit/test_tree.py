import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.sparse_reduce import Stream, tree_sum
from daskstrads.sparse_reduce.tree import steps

SIZES = [*range(1, 18), 64, 70]


def noise(size, n, seed):
    """One array a rank, with -0.0; magnitudes so different that another order of additions shows."""
    rng = np.random.default_rng(seed)
    magnitude = 10.0 ** rng.integers(-3, 4, (size, n))
    kept = rng.random((size, n)) < 0.4  # negative * False is -0.0
    return list((rng.standard_normal((size, n)) * magnitude).astype(np.float32) * kept)


def sparse(x):
    """A sparse stream of x, however full; -0.0 is stored."""
    index = np.flatnonzero((x != 0) | np.signbit(x))
    return Stream.from_coo(index, x[index], x.size)


def test_steps_are_those_of_recursive_doubling():
    assert steps(1) == ()
    assert steps(4) == ((0, 1), (2, 3), (0, 2))
    assert steps(5) == ((0, 1), (0, 2), (3, 4), (0, 3))
    assert steps(7) == ((0, 1), (2, 3), (4, 5), (0, 2), (4, 6), (0, 4))
    with pytest.raises(ValueError, match="no sum of 0"):
        steps(0)


@pytest.mark.parametrize("size", SIZES)
def test_steps_add_neighbours_in_the_order_of_the_oracle(size):
    said = [f"{rank}" for rank in range(size)]
    for left, right in steps(size):
        said[left] = f"({said[left]} {said[right]})"
    assert said[0] == naive.tree_total([f"{rank}" for rank in range(size)], lambda a, b: f"({a} {b})")
    assert len(steps(size)) == size - 1


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), n=st.integers(0, 40))
def test_sums_of_arrays_and_streams_have_the_same_bits(size, seed, n):
    arrays = noise(size, n, seed)
    wanted = naive.bits(naive.tree_total(arrays, naive.add_arrays))
    assert naive.bits(tree_sum(arrays)) == wanted
    streams = [sparse(x) for x in arrays]
    assert naive.bits(tree_sum(streams).dense()) == wanted
    mixed = [
        s if rank % 2 else Stream(n, None, x) for rank, (s, x) in enumerate(zip(streams, arrays, strict=True))
    ]
    assert naive.bits(tree_sum(mixed).dense()) == wanted
    far = [Stream(2**40, s.index.astype(np.uint64) * 2**30, s.value) for s in streams]  # never dense
    total = tree_sum(far)
    entries = naive.tree_total([naive.entries_of_pairs(s.index, s.value) for s in far], naive.add_entries)
    assert list(total.index) == list(entries)
    assert naive.bits(total.value) == naive.bits(np.array(list(entries.values()), np.float32))


def test_the_order_matters_to_the_bits():
    # Guards the tests above: with noise like this, left to right is not T(P).
    arrays = noise(16, 40, 1)
    assert naive.bits(tree_sum(arrays)) != naive.bits(sum(arrays[1:], arrays[0]))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("make", [np.copy, sparse, lambda x: Stream(x.size, None, x)])
def test_total_is_new_and_inputs_stay(size, make):
    arrays = noise(size, 30, 5)
    values = [make(x) for x in arrays]
    total = tree_sum(values)
    held = [v.value if isinstance(v, Stream) else v for v in values]
    result = total.value if isinstance(total, Stream) else total
    assert not any(np.shares_memory(result, x) for x in held)
    if isinstance(total, np.ndarray):
        total += 1
    for x, value in zip(arrays, values, strict=True):
        assert naive.bits(value.dense() if isinstance(value, Stream) else value) == naive.bits(x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (2, 0, 3)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_shape(shape, size):
    total = tree_sum([np.full(shape, 2.0) for _ in range(size)])
    assert type(total) is np.ndarray
    assert total.flags.writeable
    np.testing.assert_array_equal(total, np.full(shape, 2.0 * size))


def test_numbers_give_a_numpy_scalar():
    assert type(tree_sum([np.float32(1), np.float32(2), np.float32(4)])) is np.float32
    assert tree_sum([1, 2, 4]) == 7
    assert tree_sum([0.5]) == 0.5


def test_nan_and_infinities_add_up_without_a_warning():  # case 67
    arrays = [
        np.array([np.nan, np.inf, np.inf, 3e38], np.float32),
        np.array([1, 1, -np.inf, 3e38], np.float32),
    ]
    np.testing.assert_array_equal(tree_sum(arrays), np.array([np.nan, np.inf, np.nan, np.inf], np.float32))
    streams = [Stream.from_coo([0, 1, 2, 3], x, 100) for x in [*arrays, np.zeros(4, np.float32)]]
    np.testing.assert_array_equal(tree_sum(streams).value, [np.nan, np.inf, np.nan, np.inf])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([np.zeros(3), np.zeros(3), np.zeros(4)], r"ranks 0, 1: float64 .*\(3,\); rank 2: float64 .*\(4,\)"),
        ([np.zeros(3), np.zeros((3, 1))], r"rank 0: .*\(3,\); rank 1: .*\(3, 1\)"),
        ([np.zeros(3), np.zeros(3, np.float32)], "rank 0: float64 .*; rank 1: float32"),
        ([np.zeros(3), Stream.from_dense(np.zeros(3))], "rank 0: .*array.*; rank 1: .*Stream"),
        ([Stream.from_dense(np.zeros(n)) for n in (5, 6)], r"rank 0: .*\(5,\); rank 1: .*\(6,\)"),
        ([], "nothing to sum"),
    ],
)
def test_values_that_differ_are_named(values, told):
    with pytest.raises(ValueError, match=told):
        tree_sum(values)


@pytest.mark.parametrize("odd", [None, [1.0], "x", True, np.array([True]), np.array([object()])])
def test_what_cannot_be_summed(odd):
    with pytest.raises(TypeError, match="rank 1: can sum"):
        tree_sum([np.zeros(1), odd])
