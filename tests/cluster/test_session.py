"""Runs on Dask clusters: the same bits as threads, and every failure one clear error."""

import os
import signal
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, Future, LocalCluster

from daskstrads import ElasticNet, Gather, Lasso, Program, Rotate, RoundRobin, Scatter, Sum, launch, run
from daskstrads.comm.local import launch as launch_threads
from daskstrads.comm.mesh_group import PeerLost
from daskstrads.sparse_reduce import Stream, allreduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        client.wait_for_workers(2)
        yield client


def everything(group, part):
    """One of each exchange and collective, deterministic."""
    rng = np.random.default_rng(part)
    from daskstrads.engine.exchange import exchange

    small, large = rng.standard_normal(50), rng.standard_normal(20_000)
    stream = Stream.from_dense(np.where(rng.random(1000) < 0.1, rng.standard_normal(1000), 0.0))
    # Large as an array, and of very different bytes from rank to rank.
    count = 30 if part % 2 else 15_000
    uneven = Stream.from_coo(np.arange(count), np.full(count, 1.5), 60_000)
    sent = (
        Sum(uneven),
        Sum(small),
        Sum(large),
        Scatter(large),
        Gather({"rank": group.rank, "x": small}),
        Rotate(small),
        Sum(stream),
    )
    received = exchange(sent, group, 0, lambda checksums: None)
    mixed, total, whole, piece, gathered, block, streams = received
    block[0] = 0.0  # the receiver owns it
    return (
        mixed.dense(), total, whole, piece, [entry["x"] for entry in gathered], block, streams.dense(),
        allreduce(large, group), allreduce(stream, group).dense(),
    )  # fmt: skip


def flat(entry):
    if isinstance(entry, list | tuple):
        return np.concatenate([flat(each) for each in entry])
    return np.ravel(entry)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_exchanges_have_the_bits_of_threads(client, size):
    there, here = launch(everything, range(size)), launch_threads(everything, range(size))
    for far, near in zip(there, here, strict=True):
        np.testing.assert_array_equal(flat(far), flat(near))


def problem(shape, sparse=False):
    rng = np.random.default_rng(3)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.3) + (0 if sparse else 0.5)
    y = X[:, :4] @ [1.0, -2, 3, 1] + rng.standard_normal(shape[0])
    return (sp.csr_matrix(X) if sparse else X), y


@pytest.mark.parametrize(
    ("shape", "sparse", "update"),
    [
        ((80, 200), False, "exact"),
        ((80, 200), True, "parallel"),
        ((80, 200), True, "apart"),
        ((400, 40), False, "parallel"),
        ((400, 40), True, "exact"),
    ],
)
def test_lasso_has_the_bits_of_threads(client, shape, sparse, update):
    X, y = problem(shape, sparse)
    model = ElasticNet(0.05, l1_ratio=0.9, tol=1e-8, n_shards=3, update=update, rho=0.5, random_state=0)
    there = model.fit(X, y).coef_, model.intercept_, model.dual_gap_, model.n_iter_
    with client.as_current():
        pass
    here = threads(lambda: model.fit(X, y))
    np.testing.assert_array_equal(there[0], here.coef_)
    assert there[1:] == (here.intercept_, here.dual_gap_, here.n_iter_)


def threads(fit):
    """`fit()` as if there were no client."""
    from daskstrads.engine import run as engine

    saved, engine._client = engine._client, lambda: None
    try:
        return fit()
    finally:
        engine._client = saved


def test_default_shards_fill_the_cluster(client):
    from daskstrads.engine.run import ranks_available

    assert ranks_available(7) == 2
    assert threads(lambda: ranks_available(7)) == 7


def test_inputs_are_not_changed(client):
    X, y = problem((80, 200))
    before = X.copy(), y.copy()
    Lasso(0.05, n_shards=2).fit(X, y)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])


class Fails(Program):
    """Raises on rank 1 in a phase, or does something worse."""

    def __init__(self, phase, what):
        self.phase, self.what = phase, what

    def init(self, part, rank, size, rng):
        return self.at("init", rank) or {"rank": rank}

    def schedule(self, round, reports):
        return round if round < 500 else None

    def push(self, shard, plan):
        return self.at("push", shard["rank"], plan) or Sum(np.ones(3))

    def pull(self, shard, plan, received, sent):
        time.sleep(0.002)
        return self.at("pull", shard["rank"], plan)

    def at(self, phase, rank, round=2):
        if phase == self.phase and rank == 1 and round == 2:
            if self.what == "raise":
                raise ZeroDivisionError("as asked")
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        return None


def test_a_stopped_worker_is_one_clear_error_with_the_default_timeouts_and_the_next_run_works():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        pids = set(client.run(os.getpid).values())
        start = time.monotonic()
        with pytest.raises(PeerLost, match=r"worker 1 with rank\(s\) \[1\]"):
            run(Fails("push", "stop"), [0, 1])
        assert time.monotonic() - start < 11  # what is promised, and a second for a busy machine
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
        client.wait_for_workers(2, timeout=30)
        assert run(Fails("never", "raise"), [0, 1]).rounds == 500


def test_two_runs_at_once(client):
    found = {}

    def one(seed):
        with client.as_current():
            found[seed] = launch(everything, [seed, seed + 1])

    both = [threading.Thread(target=one, args=(seed,)) for seed in (10, 20)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(60)
    for seed in (10, 20):
        here = launch_threads(everything, [seed, seed + 1])
        for far, near in zip(found[seed], here, strict=True):
            np.testing.assert_array_equal(flat(far), flat(near))


def test_inside_a_task_a_run_stays_in_its_process(client):
    def task():
        return [
            set(where) for where in launch(lambda group, _: {os.getpid(), group.size}, [0, 1])
        ], os.getpid()

    found, pid = client.submit(task, pure=False).result(timeout=60)
    assert found == [{pid, 2}, {pid, 2}]


def test_processes_false_and_more_ranks_than_threads():
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        there = launch(everything, range(7))
    here = launch_threads(everything, range(7))
    for far, near in zip(there, here, strict=True):
        np.testing.assert_array_equal(flat(far), flat(near))


def test_no_workers_is_a_clear_error():
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster),
        pytest.raises(RuntimeError, match="no workers"),
    ):
        launch(everything, [0, 1])


def test_asynchronous_client_is_a_clear_error():
    import asyncio

    async def main():
        async with (
            LocalCluster(n_workers=1, processes=False, dashboard_address=":0", asynchronous=True) as cluster,
            Client(cluster, asynchronous=True),
        ):
            with pytest.raises(RuntimeError, match="asynchronous"):
                launch(everything, [0])

    asyncio.run(main())


def test_nothing_stays_on_the_cluster(client):
    launch(everything, [0, 1])
    end = time.monotonic() + 10
    while time.monotonic() < end:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        sessions = client.run_on_scheduler(
            lambda dask_scheduler: len(dask_scheduler.plugins["daskstrads-sessions"].sessions)
        )
        alive = client.run(lambda: [t.name for t in threading.enumerate() if t.name.startswith("daskstrads")])
        if not left and not sessions and not any(alive.values()):
            return
        time.sleep(0.1)
    pytest.fail(f"{left} tasks, {sessions} sessions, threads {alive}")


def test_round_robin_program_of_one_rank(client):
    class Count(Program):
        schedule = RoundRobin(3, sweeps=2)

        def init(self, part, rank, size, rng):
            return [0]

        def push(self, shard, plan):
            return Sum(np.float64(plan[0]))

        def pull(self, shard, plan, received, sent):
            shard[0] += received

    done = run(Count(), [0])
    assert done.rounds == 6
    assert done.shards[0][0] == 6.0


def test_tls_cluster():
    from distributed.security import Security

    security = Security.temporary()
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(protocol="tls://", security=security, **options) as cluster,
        Client(cluster, security=security) as client,
    ):
        client.wait_for_workers(2)
        there = launch(everything, range(2))
    for far, near in zip(there, launch_threads(everything, range(2)), strict=True):
        np.testing.assert_array_equal(flat(far), flat(near))


def test_a_cancelled_run_frees_its_workers(client):
    class Endless(Fails):
        def schedule(self, round, reports):
            return round

    caught = []

    def go():
        with client.as_current():
            try:
                run(Endless("never", "raise"), [0, 1])
            except Exception as error:
                caught.append(error)

    running = threading.Thread(target=go)
    running.start()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        keys = client.run_on_scheduler(
            lambda dask_scheduler: [
                key
                for key, task in dask_scheduler.tasks.items()
                if str(key).startswith("daskstrads-Endless") and task.state == "processing"
            ]
        )
        if len(keys) == 2:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    client.cancel([Future(key, client) for key in keys])
    running.join(20)
    assert not running.is_alive()
    assert isinstance(caught[0], PeerLost | RuntimeError)
    end = time.monotonic() + 10
    while time.monotonic() < end and any(client.run(rank_threads).values()):
        time.sleep(0.1)
    assert not any(client.run(rank_threads).values())
    assert run(Fails("never", "raise"), [0, 1]).rounds == 500


def rank_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("daskstrads")]
