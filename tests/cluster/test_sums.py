"""Sums between workers: the bits of threads by every algorithm, calls that do not match, a rank that dies."""

import itertools
import os
import signal
import sys
import time

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskstrads import launch
from daskstrads.comm.local import launch as launch_threads
from daskstrads.comm.mesh_group import PeerLost
from daskstrads.sparse_reduce import Stream, allreduce, broadcast, reduce_scatter, rotate
from daskstrads.sparse_reduce.collectives import ALGORITHM_NAMES

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

LIMIT = 10.0  # seconds until a failed launch must have ended


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set({"daskstrads.timeouts.silence": 2, "daskstrads.heartbeat": 0.3}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def two_workers(client):
    client.wait_for_workers(2, timeout=30)


def stream(seed, density=0.03, size=30_000):
    rng = np.random.default_rng(seed)
    index = np.flatnonzero(rng.random(size) < density)
    magnitude = 10.0 ** rng.integers(-3, 4, index.size)  # so that the order of additions shows
    return Stream.from_coo(index, (rng.standard_normal(index.size) * magnitude).astype(np.float32), size)


def sums(group, part):
    found = []
    for density, name, compress, op in itertools.product(
        (1e-4, 0.03, 0.4), ALGORITHM_NAMES, (False, True), ("sum", "max")
    ):
        total = allreduce(stream(part, density), group, name, op, compress=compress)
        found.append(total.dense())
        if name in ("in_order", "recursive_doubling", "split"):
            found.append(np.array([total.nnz, total.is_dense]))
    return found


@pytest.mark.parametrize("size", [2, 3, 5])
def test_sums_have_the_bits_of_threads(client, size):
    there, here = launch(sums, range(size)), launch_threads(sums, range(size))
    for far, near in zip(there, here, strict=True):
        for one, other, first in zip(far, near, there[0], strict=True):
            assert one.tobytes() == other.tobytes() == first.tobytes()


def others(group, part):
    x = np.random.default_rng(part).standard_normal((10, 3))
    own = reduce_scatter(stream(part), group).dense()
    return reduce_scatter(x, group), own, broadcast(x, group, group.size - 1), rotate(x, group)


@pytest.mark.parametrize("size", [2, 5])
def test_the_other_collectives_have_the_bits_of_threads(client, size):
    for far, near in zip(launch(others, range(size)), launch_threads(others, range(size)), strict=True):
        for one, other in zip(far, near, strict=True):
            assert one.tobytes() == other.tobytes()


def short(group, part):
    return float(allreduce(np.ones(1), group)[0])


def skips(group, part):
    if part != 1:
        allreduce(stream(part), group, "split")
    allreduce(stream(part), group, "recursive_doubling")


def test_a_rank_that_skips_a_call_ends_all(client):
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"different calls: rank . in collective 1 of its group"):
        launch(skips, range(2), timeout=60)
    assert time.monotonic() - start < LIMIT
    assert launch(short, range(2)) == [2.0, 2.0]


def lonely(group, part):
    return allreduce(np.ones(3), group) if part == 0 else None


def test_a_rank_that_returns_early_ends_all(client):
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="has returned while rank 0 waits"):
        launch(lonely, range(3), timeout=60)
    assert time.monotonic() - start < LIMIT
    assert launch(short, range(2)) == [2.0, 2.0]


def dies(group, name):
    for number in range(10_000):
        if number == 20 and group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        allreduce(stream(number + group.rank), group, name)


@pytest.mark.parametrize("name", ["recursive_doubling", "split", "ring"])
def test_a_rank_that_dies_in_a_sum_ends_all(client, name):
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank\(s\) \[1\]"):
        launch(dies, [name] * 2, timeout=60)
    assert time.monotonic() - start < LIMIT
    client.wait_for_workers(2, timeout=30)
    assert launch(short, range(2)) == [2.0, 2.0]
