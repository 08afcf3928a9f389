"""Collectives beside the sum, calls that do not match, and sums under random circumstances."""

import time

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads.comm.group import Aborted
from daskstrads.comm.local import launch
from daskstrads.sparse_reduce import Stream, allgather, allreduce, broadcast, reduce_scatter, rotate, tree_sum
from daskstrads.sparse_reduce.collectives import ALGORITHM_NAMES
from daskstrads.sparse_reduce.selector import Link

IN_TREE_ORDER = [name for name in ALGORITHM_NAMES if name != "ring"]


class Distant:
    """A group without shared memory, with a link on which narrow indices pay; slow at random."""

    shared = False

    def __init__(self, group, delays=None):
        self._group, self._delays = group, delays
        self.rank, self.size, self.memory = group.rank, group.size, group.memory
        self.send, self.gather, self.meet = group.send, group.gather, group.meet
        self.memory.setdefault("link", Link(1e-4, 1e-7))

    def recv(self, source):
        if self._delays is not None:
            time.sleep(self._delays.uniform(0, 2e-3) * (self._delays.random() < 0.2))
        return self._group.recv(source)


def stream(rank, seed, size, dtype, kind):
    """Supports that overlap, do not, are empty, full or in one corner."""
    rng = np.random.default_rng([seed, rank])
    if kind == "mixed":
        kind = rng.choice(["sparse", "empty", "full", "corner", "dense"])
    share = {"sparse": 0.02, "half": 0.4, "empty": 0.0, "full": 1.0, "corner": 0.0, "dense": 1.0}[kind]
    index = np.flatnonzero(rng.random(size) < share)
    if kind == "corner":
        index = np.arange(min(size, 40))
    value = (rng.standard_normal(index.size) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
    return Stream(size, None, value) if kind == "dense" else Stream.from_coo(index, value, size)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(1, 9),
    kind=st.sampled_from(["sparse", "half", "empty", "full", "corner", "mixed"]),
    size=st.sampled_from([0, 1, 7, 1000, 5000]),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    op=st.sampled_from(["sum", "max"]),
    names=st.lists(st.sampled_from(ALGORITHM_NAMES), min_size=1, max_size=4),
    far=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_sums_of_anything_by_anything(ranks, kind, size, dtype, op, names, far, seed):
    streams = [
        [stream(rank, seed + call, size, dtype, kind) for call in range(len(names))] for rank in range(ranks)
    ]

    def rank(group, own):
        group = Distant(group, np.random.default_rng([seed, group.rank])) if far else group
        return [allreduce(each, group, name, op) for each, name in zip(own, names, strict=True)]

    totals = launch(rank, streams, timeout=60)
    for call, name in enumerate(names):
        parts = [own[call] for own in streams]
        dense = [part.dense() for part in parts]
        ufunc = np.add if op == "sum" else np.maximum
        with np.errstate(over="ignore"):
            wanted = naive.tree_total(dense, ufunc)
        bits = {naive.bits(found[call].dense()) for found in totals}
        assert len(bits) == 1  # on all ranks the same
        if name in IN_TREE_ORDER:
            assert bits == {naive.bits(wanted + wanted.dtype.type(0))}
        else:
            np.testing.assert_allclose(totals[0][call].dense(), wanted, rtol=1e-4, atol=1e-30)
        if op == "sum" and name not in ("dense", "dense_split", "ring", "auto"):
            alike = tree_sum(parts)
            assert {(found[call].is_dense, found[call].nnz) for found in totals} == {
                (alike.is_dense, alike.nnz)
            }


def test_indices_above_32_bits():
    size = 2**40

    def rank(group, place):
        own = Stream.from_coo([place, 2**33 + place, size - 1], [1.0, 2.0, 3.0], size)
        group = Distant(group)
        return [allreduce(own, group, name) for name in ("recursive_doubling", "split", "ring", "in_order")]

    for totals in launch(rank, range(3), timeout=20):
        for total in totals:
            assert list(total.index) == [0, 1, 2, 2**33, 2**33 + 1, 2**33 + 2, size - 1]
            assert list(total.value) == [1, 1, 1, 2, 2, 2, 9]


def test_skewed_supports_are_cut_evenly():
    """The ranks' entries crowd in a thousandth of the vector; each must still get its share to sum."""
    size, k = 1 << 20, 2000
    rng = np.random.default_rng(0)
    supports = [
        np.unique(np.append(rng.choice(size // 1000, k // 2), rng.choice(size, 40))) for _ in range(4)
    ]

    def rank(group, index):
        group = Distant(group)
        arrived = []
        inner = group.recv

        def recv(source):
            payload = inner(source)
            arrived.append(
                sum(part.nbytes for part in payload[3][1:]) if isinstance(payload[3], tuple) else 0
            )
            return payload

        group.recv = recv
        allreduce(
            Stream.from_coo(index, np.ones(index.size, np.float32), size), group, "split", compress=False
        )
        return sum(arrived)

    got = launch(rank, supports, timeout=20)
    assert max(got) < 1.3 * min(got)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_reduce_scatter_gives_each_rank_its_part(ranks, far):
    rng = np.random.default_rng(1)
    arrays = rng.standard_normal((ranks, 11, 3))
    wanted = naive.tree_total(list(arrays), np.add)

    def rank(group, array):
        group = Distant(group) if far else group
        flat = Stream.from_dense(array.reshape(-1))
        ends = [0] * group.size + [11]
        return (
            reduce_scatter(array, group), reduce_scatter(flat, group),
            reduce_scatter(array, group, bounds=ends), reduce_scatter(array, group, "max"),
        )  # fmt: skip

    found = launch(rank, arrays, timeout=20)
    np.testing.assert_array_equal(np.concatenate([part[0] for part in found]), wanted)
    np.testing.assert_array_equal(sum(part[1].dense() for part in found), wanted.reshape(-1))
    assert [len(part[2]) for part in found] == [0] * (ranks - 1) + [11]
    np.testing.assert_array_equal(found[-1][2], wanted)
    np.testing.assert_array_equal(np.concatenate([part[3] for part in found]), arrays.max(axis=0))


@pytest.mark.parametrize("bounds", [[0, 5], [0, 6, 4, 11], [1, 2, 3, 11], [0, 4, 8, 10]])
def test_bounds_that_do_not_fit(bounds):
    with pytest.raises(ValueError, match="bounds must be 4 ascending offsets from 0 to 11"):
        launch(lambda group, x: reduce_scatter(x, group, bounds=bounds), [np.ones(11)] * 3, timeout=20)


def test_reduce_scatter_of_a_number():
    with pytest.raises(ValueError, match="needs an axis"):
        launch(lambda group, x: reduce_scatter(x, group), [1.0, 2.0], timeout=20)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_broadcast_rotate_and_allgather(ranks):
    def rank(group, place):
        own = {"who": place, "x": np.full(3, place)}
        told = [broadcast(own, group, root)["who"] for root in range(group.size)]
        turned = rotate(own, group)
        assert (turned["x"] == turned["who"]).all()
        return told, turned["who"], [entry["who"] for entry in allgather(own, group)]

    for place, (told, turned, gathered) in enumerate(launch(rank, range(ranks), timeout=20)):
        assert told == gathered == [*range(ranks)]
        assert turned == (place - 1) % ranks
    with pytest.raises(ValueError, match=f"no rank {ranks} in a group of {ranks}"):
        launch(lambda group, x: broadcast(x, group, ranks), range(ranks), timeout=20)


CALLS = {
    "sum": lambda group, s: allreduce(s, group, "recursive_doubling"),
    "split": lambda group, s: allreduce(s, group, "split"),
    "max": lambda group, s: allreduce(s, group, "split", "max"),
    "ring": lambda group, s: allreduce(s, group, "ring"),
    "auto": lambda group, s: allreduce(s, group),
    "longer": lambda group, s: allreduce(Stream.from_coo([1], [1.0], s.size + 1), group),
    "array": lambda group, s: allreduce(s.dense(), group),
    "float32": lambda group, s: allreduce(s.dense().astype(np.float32), group),
    "scatter": lambda group, s: reduce_scatter(s, group),
    "broadcast": lambda group, s: broadcast(1, group),
    "other root": lambda group, s: broadcast(1, group, group.size - 1),
    "rotate": lambda group, s: rotate(1, group),
    "nothing": lambda group, s: None,
    "message": lambda group, s: group.send((group.rank + 1) % group.size, 5),
}


@settings(max_examples=50, deadline=None)
@given(
    ranks=st.integers(2, 6),
    far=st.booleans(),
    orders=st.data(),
)
def test_random_orders_end_in_an_error_on_all_ranks_or_match(ranks, far, orders):
    """Never a hang: each rank makes two calls; where they differ between ranks, somebody notices."""
    common = orders.draw(st.lists(st.sampled_from([*CALLS]), min_size=2, max_size=2))
    odd = orders.draw(st.integers(0, ranks - 1))
    other = orders.draw(st.lists(st.sampled_from([*CALLS]), min_size=2, max_size=2))
    own = Stream.from_coo([0, 3], [1.0, 2.0], 500)

    def rank(group, place):
        group = Distant(group) if far else group
        for name in other if place == odd else common:
            CALLS[name](group, own)
        CALLS["sum"](group, own)

    try:
        launch(rank, range(ranks), timeout=5)
        ended = None
    except (RuntimeError, ValueError, TypeError) as error:
        ended = error
    assert not isinstance(ended, Aborted | TimeoutError)
    common, other = ([name for name in names if name != "nothing"] for names in (common, other))
    if common == other:
        assert ended is None or "message" in common
    elif ended is None:  # "auto" may have taken what the others did
        assert {"auto", "message"} & {*common, *other}
    assert launch(lambda group, x: allreduce(x, group), [1.0] * ranks, timeout=20) == [float(ranks)] * ranks


def test_a_call_that_does_not_match_names_the_ranks_and_the_calls():
    own = Stream.from_coo([0], [1.0], 9)

    def rank(group, place):
        group = Distant(group)
        if place == 1:
            allreduce(own, group, "split")
        allreduce(own, group, "recursive_doubling")

    with pytest.raises(RuntimeError, match=r"different calls: rank . in collective 1 of its group") as caught:
        launch(rank, range(2), timeout=20)
    assert "split by sum" in str(caught.value)
    assert "recursive_doubling by sum" in str(caught.value)


def test_a_message_of_the_users_own_is_no_sum():
    def rank(group, place):
        if place:
            group.send(0, np.ones(3))
        return allreduce(np.ones(3), Distant(group))

    with pytest.raises(
        RuntimeError, match="rank 0 is in recursive_doubling, but rank 1 sent a message of its own"
    ):
        launch(rank, range(2), timeout=20)


class Tagged(np.ndarray):
    """A subclass, such as a matrix."""


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ALGORITHM_NAMES)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_numbers_and_arrays_of_any_order_keep_their_kind(op, name, ranks, far):
    def rank(group, place):
        group = Distant(group) if far else group
        return [
            allreduce(given, group, name, op)
            for given in (
                float(place),
                np.array(float(place)),
                np.full(3000, place, ">f8"),
                np.array([[float(place)]]).view(Tagged),
            )
        ]

    wanted = ranks - 1.0 if op == "max" else ranks * (ranks - 1) / 2
    for number, scalar, swapped, tagged in launch(rank, range(ranks), timeout=20):
        assert type(number) is np.float64
        assert number == scalar == tagged[0, 0] == wanted
        assert type(scalar) is type(tagged) is np.ndarray
        assert scalar.flags.writeable
        assert swapped.dtype == ">f8"
        assert (swapped == wanted).all()


@pytest.mark.parametrize("value", [1.5, Stream.from_coo([1], [2.0], 9), np.ones(10_000)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_with_another_op_are_an_error(value, ranks):
    with pytest.raises(RuntimeError, match="different"):
        launch(
            lambda group, x: allreduce(x, group, op="max" if group.rank else "sum"),
            [value] * ranks,
            timeout=20,
        )


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_disagree_about_the_root_are_an_error(ranks, far):
    def rank(group, place):
        return broadcast(place, Distant(group) if far else group, place % 2)

    with pytest.raises(RuntimeError, match=r"different calls|returned while|deadlock"):
        launch(rank, range(ranks), timeout=20)


@pytest.mark.parametrize("size", [100, 2**32, 2**33])
def test_a_range_may_be_empty_at_the_end(size):
    own = Stream.from_coo([0, 5, size - 1], [1.0, 2.0, 3.0], size)

    def rank(group, _):
        return reduce_scatter(own, group, bounds=(0, size, size))

    all_of_it, nothing = launch(rank, range(2), timeout=20)
    assert list(all_of_it.index) == [0, 5, size - 1]
    assert list(all_of_it.value) == [2, 4, 6]
    assert nothing.nnz == 0


def test_arguments_that_are_no_whole_numbers():
    for wrong in (
        lambda group, x: reduce_scatter(x, group, bounds=(0, 1.9, 4)),
        lambda group, x: broadcast(x, group, 1.0),
        lambda group, x: Stream.from_dense(x).maximum(3),
    ):
        with pytest.raises(TypeError, match=r"integer|must be a Stream"):
            launch(wrong, [np.ones(4)] * 2, timeout=20)
