"""Whatever fails, wherever it stands: one clear error within seconds, all freed, and the next run works."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client, Future, LocalCluster, Scheduler, SpecCluster, Worker, get_worker
from distributed.comm import CommClosedError

import daskstrads
from daskstrads import Gather, Program, RoundRobin, Sum, run
from daskstrads.comm.mesh_group import PeerLost
from daskstrads.engine.run import collected

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

LIMIT = 10.0  # seconds until a failed run must have ended
both = pytest.mark.parametrize("transport", ["mesh", "tasks"])


@pytest.fixture(scope="module", autouse=True)
def short_timeouts():
    with dask.config.set({"daskstrads.timeouts.silence": 2, "daskstrads.heartbeat": 0.3}):
        yield


@contextmanager
def two_workers(**options):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", **options) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client


class Shared:
    """A cluster that many tests use; a new one where a nanny has not brought a killed worker back."""

    def __init__(self):
        self.opened = ExitStack()
        self.current = None

    def client(self):
        try:
            if self.current is not None:
                self.current.wait_for_workers(2, timeout=10)
                return self.current
        except TimeoutError:
            self.opened.close()
        self.current = self.opened.enter_context(two_workers())
        return self.current


@pytest.fixture(scope="module")
def clusters():
    clusters = Shared()
    with clusters.opened:
        yield clusters


@pytest.fixture
def client(clusters):
    """Two workers of a process each; a test may stop or kill them."""
    return clusters.client()


class Fails(Program):
    """Five rounds; something happens on rank 1 (`schedule`: on rank 0) in a phase of round 2."""

    def __init__(self, phase="", act="", seconds=0.0):
        self.phase, self.act, self.seconds = phase, act, seconds

    def init(self, part, rank, size, rng):
        self.at("init", rank)
        return {"rank": rank, "sum": 0.0}

    def schedule(self, round, reports):
        if round == 2:
            self.at("schedule", 1)
        return round if round < 5 else None

    def push(self, shard, plan):
        if plan == 2:
            self.at("push", shard["rank"])
            self.at("exchange", shard["rank"])
        time.sleep(self.seconds)
        return Sum(np.ones(3))

    def pull(self, shard, plan, received, sent):
        if plan == 2:
            self.at("pull", shard["rank"])
        shard["sum"] += received.sum()
        return 1.0

    def result(self, shard):
        self.at("result", shard["rank"])
        return shard["sum"]

    def at(self, phase, rank):
        if phase != self.phase:
            return
        if phase == "exchange":  # rank 1 waits for rank 0, and is hit meanwhile
            if rank == 1:
                threading.Timer(0.3, self.hit).start()
            else:
                time.sleep(1)
        elif rank == 1:
            self.hit()

    def hit(self):
        if self.act == "raise":
            raise ZeroDivisionError("as asked")
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.act])


def failed(expected, program, transport, parts=(0, 1)):
    """What a run that fails in time says, with its notes."""
    start = time.monotonic()
    with pytest.raises(expected) as caught:
        run(program, parts, transport=transport)
    assert time.monotonic() - start < LIMIT
    return " | ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def works(transport="mesh"):
    assert run(Fails(), [0, 1], transport=transport).shards == [30.0, 30.0]


def on_worker(dask_worker):
    plugin = dask_worker.plugins.get("daskstrads-ranks")
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("daskstrads")]
    return [*threads, *plugin.ranks, *plugin.rooms] if plugin else threads


def on_scheduler(dask_scheduler):
    sessions = dask_scheduler.plugins["daskstrads-sessions"].sessions
    return [*sessions, *(str(key) for key in dask_scheduler.tasks if str(key).startswith("daskstrads"))]


def freed(client, without=None):
    """Wait until the workers (but one) and the scheduler have nothing of a run."""
    end = time.monotonic() + LIMIT
    while True:
        workers = [address for address in addresses(client) if address != without]
        left = client.run(on_worker, workers=workers), client.run_on_scheduler(on_scheduler)
        if not any(left[0].values()) and not left[1]:
            return
        if time.monotonic() > end:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)


def removed(client, address):
    """Wait until the scheduler knows that this worker has gone."""
    end = time.monotonic() + LIMIT
    while address in addresses(client):
        assert time.monotonic() < end
        time.sleep(0.02)


def addresses(client, count=1):
    """The workers; one that has just been killed may be counted for a moment, and be missing after that."""
    end = time.monotonic() + 20
    while True:
        found = client.run_on_scheduler(lambda dask_scheduler: sorted(dask_scheduler.workers))
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.05)


@both
@pytest.mark.parametrize("phase", ["init", "schedule", "push", "pull", "result"])
def test_an_error_of_a_rank_is_the_error_of_the_run(client, transport, phase):
    told = failed(ZeroDivisionError, Fails(phase, "raise"), transport)
    assert "as asked" in told
    assert f"raised on rank {0 if phase == 'schedule' else 1} of 2, worker tcp://" in told
    assert f"in phase {phase} of round { {'init': 0, 'result': 5}.get(phase, 2) }, Fails" in told
    freed(client)
    works(transport)


class Odd(Fails):
    """Rank 1 pushes something else in round 2."""

    def __init__(self, sent):
        super().__init__()
        self.sent = sent

    def push(self, shard, plan):
        return self.sent if plan == 2 and shard["rank"] == 1 else super().push(shard, plan)


@both
@pytest.mark.parametrize(
    ("sent", "expected", "message"),
    [
        (Sum(np.array([None, "x"])), TypeError, "cannot be exchanged"),
        ({"a": 1}, TypeError, "push must return Sum"),
        (Gather(np.ones(3)), RuntimeError, "different exchanges.*rank 0: .*Sum.*rank 1: .*Gather"),
        (None, RuntimeError, "different exchanges"),
        (Sum(np.ones(4)), ValueError, "rank 0.*rank 1"),
        (Sum(np.ones(3, np.float32)), ValueError, "rank 0.*rank 1"),
    ],
    ids=["objects", "dict", "kind", "none", "shape", "dtype"],
)
def test_a_push_that_cannot_be_exchanged_is_the_error(client, transport, sent, expected, message):
    start = time.monotonic()
    with pytest.raises(expected, match=message) as caught:
        run(Odd(sent), [0, 1], transport=transport)
    assert time.monotonic() - start < LIMIT
    notes = " | ".join(caught.value.__notes__)
    assert "in phase exchange of round 2, Odd" in notes
    assert "raised on rank" in notes
    freed(client)
    works(transport)


class Reports(Fails):
    """A built-in policy that is told something it can't use in round 2."""

    def __init__(self, report):
        super().__init__()
        self.report = report
        self.schedule = RoundRobin(4, tol=1e-3)
        self.count = 0

    def push(self, shard, plan):
        return Sum(np.ones(3))

    def pull(self, shard, plan, received, sent):
        return self.report if plan[0] == 2 and shard["rank"] == 1 else 1.0


@both
@pytest.mark.parametrize(
    ("report", "expected", "message"),
    [
        ("much", TypeError, "needs pull to return a number"),
        (float("nan"), FloatingPointError, "rank 1 reported a change of nan"),
    ],
    ids=["text", "nan"],
)
def test_a_policy_that_fails_on_the_scheduler_is_the_error(client, transport, report, expected, message):
    told = failed(expected, Reports(report), transport)
    assert message in told
    assert "in phase schedule of round 3, Reports" in told
    assert "raised on rank" in told
    freed(client)
    works(transport)


def process_ids(client):
    """Process ids of the workers; one that an earlier test has ended may still be on its way out."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            return client.run(os.getpid)
        except CommClosedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def lost_worker(client, transport, phase, act):
    """Run into it; the processes go on afterwards."""
    pids = process_ids(client)
    place = 0 if phase == "schedule" else 1
    address = addresses(client, 2)[place]
    try:
        told = failed(PeerLost, Fails(phase, act), transport)
        assert f"worker {place} with rank(s) [{place}] is lost" in told
        # Over a mesh either the other rank or the client notices first, and the client knows no phase.
        assert "in phase" in told if transport == "tasks" else address in told or f"rank {1 - place}" in told
        if act == "kill":
            removed(client, address)
        freed(client, without=address)
    finally:
        for pid in pids.values():
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


@both
@pytest.mark.parametrize("phase", ["init", "schedule", "push", "exchange", "pull", "result"])
def test_a_killed_worker_is_lost(client, transport, phase):
    lost_worker(client, transport, phase, "kill")
    works(transport)


@pytest.mark.parametrize(
    ("transport", "phase"), [("mesh", "init"), ("mesh", "push"), ("mesh", "result"), ("tasks", "push")]
)
def test_a_stopped_worker_is_lost(client, transport, phase):
    lost_worker(client, transport, phase, "stop")
    freed(client)
    works(transport)


class Running:
    """A run in a thread, and how it ends; entered once its rounds are on their way."""

    def __init__(self, client, transport, path, program=None):
        self.client, self.transport, self.path = client, transport, path
        self.program = program or Endless(str(path))
        self.error, self.ended = None, None

    def __enter__(self):
        self.thread = threading.Thread(target=self._go)
        self.thread.start()
        end = time.monotonic() + 20
        while not self.path.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert self.path.exists(), self.error
        time.sleep(0.3)
        self.start = time.monotonic()
        return self

    def _go(self):
        with self.client.as_current():
            try:
                run(self.program, [0, 1], transport=self.transport)
            except BaseException as error:
                self.error = error
        self.ended = time.monotonic()

    def __exit__(self, *exception):
        self.thread.join(2 * LIMIT)
        assert not self.thread.is_alive(), "the run hangs"
        if exception[0] is None:
            assert self.ended - self.start < LIMIT
            assert isinstance(self.error, Exception), self.error


class Endless(Fails):
    """Has a file made once it is in round 3."""

    def __init__(self, path):
        super().__init__(seconds=0.02)
        self.path = path

    def schedule(self, round, reports):
        if round == 3:
            with open(self.path, "w"):
                pass
        return round


@both
def test_a_cancelled_run_ends(client, transport, tmp_path):
    with Running(client, transport, tmp_path / "on") as running:
        keys = client.run_on_scheduler(
            lambda dask_scheduler: [
                key for key in dask_scheduler.tasks if str(key).startswith("daskstrads-Endless")
            ]
        )
        assert keys
        client.cancel([Future(key, client) for key in keys])
    assert "cancelled" in str(running.error), repr(running.error)
    assert isinstance(running.error, PeerLost | RuntimeError)
    freed(client)
    works(transport)


def test_a_worker_that_is_lost_with_its_result_is_a_clear_error():
    with two_workers() as client:  # of its own: the others' next test would meet the one that comes back
        done = run(Fails(), [0, 1], gather=False)
        [address] = client.who_has(done.shards)[done.shards[1].key]
        os.kill(process_ids(client)[address], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="a worker was lost with its share of the result"):
            collected(done.shards)


@both
def test_a_terminated_worker_is_lost(client, transport, tmp_path):
    with Running(client, transport, tmp_path / "on") as running:
        address = addresses(client, 2)[1]
        os.kill(client.run(os.getpid)[address], signal.SIGTERM)
    assert isinstance(running.error, PeerLost), repr(running.error)
    assert "worker 1 with rank(s) [1]" in str(running.error)
    removed(client, address)
    freed(client)
    works(transport)


@both
def test_a_retired_worker_ends_the_run(transport, tmp_path):
    with two_workers(processes=False) as client:
        address = addresses(client, 2)[1]
        with Running(client, transport, tmp_path / "on") as running:
            client.retire_workers([address], close_workers=True, remove=True)
        assert isinstance(running.error, PeerLost | RuntimeError), repr(running.error)
        told = " | ".join([str(running.error), *getattr(running.error, "__notes__", [])])
        assert address in told or "worker 1" in told
        freed(client)
        [left] = addresses(client)
        assert left != address
        works(transport)  # both ranks on the one that is left


@both
def test_a_closed_client_ends_the_run(client, transport, tmp_path):
    shared, client = client, Client(client.scheduler.address, set_as_default=False)
    with Running(client, transport, tmp_path / "on") as running:
        client.close()
    assert isinstance(running.error, PeerLost), repr(running.error)
    assert "client" in str(running.error)
    freed(shared)
    with shared.as_current():
        works(transport)


@contextmanager
def processes(tmp_path):
    """A scheduler and two workers started by hand; the client and the scheduler's process."""
    file = str(tmp_path / "scheduler.json")
    path = [str(Path(__file__).parent), str(Path(daskstrads.__file__).parents[1])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env, "cwd": tmp_path}
    run_module = [sys.executable, "-m"]
    where = ["--scheduler-file", file, "--no-dashboard"]
    scheduler = subprocess.Popen(
        [*run_module, "distributed.cli.dask_scheduler", "--port", "0", *where], **quiet
    )
    started = [scheduler]
    try:
        started += [
            subprocess.Popen(
                [*run_module, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *where],
                **quiet,
            )
            for _ in range(2)
        ]  # fmt: skip
        client = Client(scheduler_file=file, set_as_default=False, timeout=20)
        try:
            client.wait_for_workers(2, timeout=30)
            yield client, scheduler
        finally:
            client.close(timeout=1)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@both
def test_a_killed_scheduler_ends_the_run(transport, tmp_path):
    with (
        processes(tmp_path) as (client, scheduler),
        Running(client, transport, tmp_path / "on") as running,
    ):
        scheduler.kill()
    assert isinstance(running.error, PeerLost), repr(running.error)
    assert "scheduler" in str(running.error)


@both
def test_a_long_push_is_no_failure(client, transport):
    with dask.config.set({"daskstrads.timeouts.silence": 1.2}):
        done = run(LongPush(3.6), [0, 1], transport=transport)
    assert done.shards == [6.0, 6.0]


class LongPush(Fails):
    schedule = RoundRobin(1, sweeps=1)

    def push(self, shard, plan):
        time.sleep(self.phase)
        return Sum(np.ones(3))

    def pull(self, shard, plan, received, sent):
        shard["sum"] += received.sum()


class Where(Fails):
    """Its results are the workers' addresses."""

    def result(self, shard):
        return get_worker().address


@pytest.fixture(scope="module")
def uneven():
    """Workers of one, three and two threads, all in this process."""
    workers = {
        name: {"cls": Worker, "options": {"nthreads": nthreads}} for name, nthreads in enumerate([1, 3, 2])
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(workers, scheduler, name="uneven") as cluster:
        client = Client(cluster, set_as_default=False)
        client.wait_for_workers(3)
        yield client
        client.close()


@both
def test_ranks_fill_workers_of_unequal_threads(uneven, transport):
    threads = {address: each["nthreads"] for address, each in uneven.scheduler_info(-1)["workers"].items()}
    with uneven.as_current():
        found = run(Where(), range(6), transport=transport).shards
    assert {address: found.count(address) for address in threads} == threads
    assert found == sorted(found)


@both
def test_workers_without_a_rank_take_no_part(uneven, transport):
    with uneven.as_current():
        found = run(Where(), range(2), transport=transport).shards
    assert set(found) < set(addresses(uneven))
    freed(uneven)


def busy(client, seconds, workers):
    """Every slot of these workers is taken."""
    futures = []
    for address in workers:
        futures += client.map(
            lambda _: time.sleep(seconds), range(1), workers=[address], pure=False, key="busy-" + address
        )
    end = time.monotonic() + 10
    while client.run_on_scheduler(
        lambda dask_scheduler: sum(len(each.processing) for each in dask_scheduler.workers.values())
    ) < len(futures):
        assert time.monotonic() < end
        time.sleep(0.02)
    return futures


@both
def test_a_busy_cluster_is_waited_for(client, transport):
    start = time.monotonic()
    futures = busy(client, 2.0, addresses(client))
    works(transport)
    assert time.monotonic() - start > 1.9
    assert all(future.status == "finished" for future in futures)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cluster_that_stays_busy_is_a_clear_error(client, count):
    futures = busy(client, 3.0, addresses(client)[:count])
    with dask.config.set({"daskstrads.timeouts.start": 1}):
        told = failed(RuntimeError, Fails(), "mesh")
    assert "did not start their ranks within 1 s" in told
    assert "busy" in told
    assert "daskstrads.timeouts.start" in told
    for future in futures:
        future.result(timeout=20)
    freed(client)
    works()


class Slows(Fails):
    """Tasks take over after four rounds; rank 1 raises when they have."""

    def schedule(self, round, reports):
        return round if round < 9 else None

    def push(self, shard, plan):
        if plan < 4:
            time.sleep(1.05)
        elif plan == 6 and shard["rank"] == 1:
            raise ZeroDivisionError(threading.current_thread().name)
        return Sum(np.ones(3))


def test_an_error_after_tasks_took_over_is_the_error(client):
    told = failed(ZeroDivisionError, Slows(), "auto")
    assert "daskstrads-rank" not in told
    assert "in phase push of round 6, Slows" in told
    assert "raised on rank 1 of 2" in told
    freed(client)


@both
def test_results_that_nobody_will_fetch_are_forgotten(client, transport):
    with pytest.raises(ZeroDivisionError):
        run(Fails("result", "raise"), [0, 1], transport=transport, gather=False)
    freed(client)
