import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.comm.local import launch
from daskstrads.sparse_reduce import Stream, allreduce, collectives, tree_sum

ALGORITHMS = ["auto", "in_order", "recursive_doubling", "split", "dense_split", "ring", "dense"]

GO_DENSE = ["dense_split", "dense"]


class Distant:
    """A group without shared memory: only what the protocol promises; it counts what is sent."""

    shared = False

    def __init__(self, group):
        self.rank, self.size, self.recv, self.gather = group.rank, group.size, group.recv, group.gather
        self.memory, self.meet = group.memory, group.meet
        self._group, self.sent = group, 0

    def send(self, to, payload):
        self.sent += 1
        self._group.send(to, payload)


def everywhere(values, algorithm="auto", wrap=lambda group: group, **options):
    return launch(lambda group, x: allreduce(x, wrap(group), algorithm, **options), values, timeout=20)


def sparse(x):
    """A sparse stream of x, however full; -0.0 is stored."""
    index = np.flatnonzero((x != 0) | np.signbit(x))
    return Stream.from_coo(index, x[index], x.size)


def noise(size, n, seed):
    """One array a rank, some empty, with -0.0; magnitudes so different that the order of additions shows."""
    rng = np.random.default_rng(seed)
    magnitude = 10.0 ** rng.integers(-3, 4, (size, n))
    kept = rng.random((size, n)) < rng.choice([0, 0.02, 0.5], (size, 1))  # negative * False is -0.0
    stored = np.where(kept | (rng.random((size, n)) < 0.05), rng.standard_normal((size, n)), 0)
    return list((stored * magnitude).astype(np.float32) * kept)


@pytest.mark.parametrize("size", range(1, 18))  # case 66: not only powers of two
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([0, 1, 33, 2000]))
def test_every_way_gives_the_bits_of_the_tree(size, seed, n):
    arrays = noise(size, n, seed)
    streams = [sparse(x) for x in arrays]
    kept = [naive.bits(x) for x in arrays]
    wanted = naive.bits(naive.tree_total(arrays, np.add))
    summed = tree_sum(streams)
    for wrap, algorithm in [
        (lambda group: group, "auto"),
        (Distant, "auto"),
        (Distant, "in_order"),
        (lambda group: group, "in_order"),
        (Distant, "recursive_doubling"),
        (Distant, "split"),
        (lambda group: group, "split"),
    ]:
        for total in everywhere(arrays, algorithm, wrap):
            assert naive.bits(total) == wanted
        for total in everywhere(streams, algorithm, wrap):
            assert naive.bits(total.dense()) == wanted
            assert total.is_dense == summed.is_dense
            assert total.nnz == summed.nnz
    assert [naive.bits(x) for x in arrays] == kept


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_ranks_are_summed(algorithm):  # case 64: not a silent no-op
    streams = [Stream.from_coo([0], [v], 10) for v in (0.1, 0.2)]
    for total in everywhere(streams, algorithm):
        assert list(np.flatnonzero(total.dense())) == [0]
        assert total.dense()[0] == 0.1 + 0.2
        assert total.is_dense == (algorithm in GO_DENSE)
    assert [s.value[0] for s in streams] == [0.1, 0.2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("counts", [(3, 0, 1, 0), (0, 0, 0, 0), (0, 5), (100, 0, 100), (0,)])
def test_a_rank_has_nothing(algorithm, counts):  # case 65: also all empty, k = 0, k = dim
    streams = [Stream.from_coo(np.arange(k), np.ones(k), 100) for k in counts]
    wanted = sum((np.arange(100) < k).astype(float) for k in counts)
    for total in everywhere(streams, algorithm):
        np.testing.assert_array_equal(total.dense(), wanted)
        assert total.is_dense or total.nnz == max(counts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
def test_sizes_far_apart(algorithm, size):  # case 66: some ranks above the meeting's bound, some below
    n = collectives.MEETING_BYTES
    streams = [
        Stream.from_coo(np.arange(rank % 2 * n), np.full(rank % 2 * n, 0.5), 100 * n) for rank in range(size)
    ]
    for total in everywhere(streams, algorithm):
        assert np.count_nonzero(total.value) == (n if size > 1 else 0)
        assert (total.dense()[:n] == size // 2 * 0.5).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeats_cancellation_and_special_values(algorithm):  # case 67
    parts = [([1, 2, 4, 6], [1, 1, np.nan, -0.0]), ([2, 1, 5, 1], [1, -3, np.inf, 2]), ([], np.zeros(0))]
    for total in everywhere([Stream.from_coo(*part, 1000) for part in parts], algorithm):
        if algorithm not in GO_DENSE:
            assert list(total.index) == [1, 2, 4, 5, 6]
        values = total.dense()
        np.testing.assert_array_equal(values[[1, 2, 4, 5, 6]], [0, 2, np.nan, np.inf, 0])
        assert not np.signbit(values).any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [5, 5000])
def test_arrays_are_private(algorithm, size, n):
    values = [np.full(n, float(rank)) for rank in range(size)]
    for rank in range(1, size, 2):
        values[rank].flags.writeable = False  # travels by reference

    def rank(group, x):
        total = allreduce(x, group, algorithm)
        if x.flags.writeable:
            x[:] = -1  # too late to reach anybody
        total += group.rank
        group.gather(None)
        return total

    totals = launch(rank, values, timeout=20)
    for rank, total in enumerate(totals):
        np.testing.assert_array_equal(total, np.full(n, size * (size - 1) / 2 + rank))
    for rank in range(1, size, 2):
        assert (values[rank] == rank).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_numbers_and_any_shape(algorithm, size):
    for total in everywhere([1.5] * size, algorithm):
        assert type(total) is np.float64
        assert total == 1.5 * size
    for shape in [(), (2, 3), (0, 4)]:
        for total in everywhere([np.ones(shape, np.int32, order="F")] * size, algorithm):
            assert total.dtype == np.int32
            assert total.flags.writeable
            np.testing.assert_array_equal(total, np.full(shape, size))


def test_one_exchange_after_another():
    def rank(group, x):
        return [allreduce(x * k, group, ALGORITHMS[k % len(ALGORITHMS)])[0] for k in range(60)]

    assert launch(rank, [np.ones(1)] * 3, timeout=20) == [[3.0 * k for k in range(60)]] * 3


def test_messages_a_rank_sends():
    def rank(group, x):
        group = Distant(group)
        allreduce(x, group)
        return group.sent

    assert launch(rank, [np.ones(3)] * 8, timeout=20) == [3] * 8
    assert launch(rank, [np.ones(3)] * 6, timeout=20) == [3, 1, 3, 1, 2, 2]


def test_small_values_of_ranks_that_share_memory_meet():
    def rank(group, n):
        distant = Distant(group)
        distant.meet, distant.shared = group.meet, True
        allreduce(np.ones(n), distant)
        return distant.sent

    most = collectives.MEETING_BYTES // 8
    assert launch(rank, [most] * 4, timeout=20) == [0] * 4
    assert launch(rank, [most + 1] * 4, timeout=20) == [2] * 4
    assert launch(rank, [9 * most] * 2, timeout=20) == [0] * 2  # what two add, each adds anyway


@pytest.mark.parametrize("wrap", [lambda group: group, Distant], ids=["shared", "distant"])
@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("wrong", [0, -1])
@pytest.mark.parametrize(
    "odd",
    [
        np.ones(4),
        np.ones((3, 1)),
        np.ones(3, np.float32),
        np.ones(10_000),
        Stream.from_dense(np.ones(3)),
        1.0,
    ],
    ids=["length", "shape", "dtype", "large", "kind", "number"],
)
def test_values_that_differ_are_an_error_that_names_the_rank(wrap, size, wrong, odd):
    values = [np.ones(3)] * size
    values[wrong] = odd
    with pytest.raises(ValueError, match=rf"values differ.*\brank {wrong % size}: ") as caught:
        everywhere(values, wrap=wrap)
    assert str(np.shape(odd) if not isinstance(odd, Stream) else odd.shape) in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda group: group, Distant], ids=["shared", "distant"])
@pytest.mark.parametrize("odd", [Stream.from_coo([1], [1.0], 11), Stream.from_coo([1], [1], 10)])
def test_streams_that_differ(wrap, odd):
    with pytest.raises(ValueError, match=r"values differ.*rank 1: "):
        everywhere([Stream.from_coo([1], [1.0], 10), odd, Stream.from_coo([1], [1.0], 10)], wrap=wrap)


@pytest.mark.parametrize("odd", [None, "x", [1.0], np.array([True])])
def test_what_cannot_be_summed_names_its_rank(odd):
    with pytest.raises(TypeError, match="rank 1: can sum"):
        everywhere([np.ones(1), odd])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"algorithm": "tree"}, "unknown algorithm 'tree'; choose one of auto, in_order, recursive_doubling"),
        ({"op": "mean"}, "unknown op 'mean'; choose one of sum, max"),
    ],
)
def test_unknown_choices_before_anything_is_sent(options, told):
    class Silent:
        rank, size = 0, 2

    with pytest.raises(ValueError, match=told):
        allreduce(np.ones(1), Silent(), **options)
