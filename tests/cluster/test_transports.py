"""What carries a run changes nothing of it: threads, the mesh and Dask tasks give the same bits."""

import copy
import hashlib
import socket
import sys
import threading
import time
from contextlib import contextmanager

import cloudpickle
import dask
import numpy as np
import programs
import pytest
from distributed import Client, Future, LocalCluster
from test_programs import PROGRAMS, arrays_of, bits, regression

import daskstrads
from daskstrads import Gather, Lasso, Program, RoundRobin, Sum
from daskstrads.algos.lasso_block import Rules
from daskstrads.algos.lasso_columns import ColumnPart, LassoColumns
from daskstrads.algos.objective import Distance, Penalty
from daskstrads.comm import codec
from daskstrads.comm.mesh_group import Unreachable
from daskstrads.partition import split
from daskstrads.schedule import Certified, DynamicPriority

for module in (programs, sys.modules[__name__]):  # workers cannot import the tests
    cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="module")
def client():
    """Not the default client, so that a run without `there` stays in this process."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        client = Client(cluster, set_as_default=False)
        client.wait_for_workers(2)
        yield client
        client.close()


def here(program, parts, **options):
    return daskstrads.run(program, parts, seed=3, round_timeout=60, **options)


def there(client, transport, program, parts, **options):
    with client.as_current():
        return here(program, parts, transport=transport, **options)


def digest(payload):
    return hashlib.sha256(b"".join(codec.packed(payload))).hexdigest()


class Diary:
    """A callback that writes down what it is told, wherever it runs."""

    def __init__(self, path):
        self.path = str(path)

    def __call__(self, round, plan, reports):
        with open(self.path, "a") as file:
            print(round, digest(plan), digest(reports), file=file)

    def read(self):
        with open(self.path) as file:
            return file.read().splitlines()


def brief(case):
    """The case's program with few rounds: tasks take some 50 ms each."""
    program = case.program()
    schedule = program.schedule
    if isinstance(schedule, RoundRobin):
        schedule.sweeps = 1 + 10 // schedule.rounds_per_sweep
    elif hasattr(schedule, "max_measures"):
        schedule.max_measures = 2
    return program


SIZES = [(case, 3) for case in PROGRAMS]
SIZES += [(case, size) for case, size in zip(PROGRAMS, [5, 1, 2, 5], strict=False)]


@pytest.mark.parametrize(("case", "size"), SIZES, ids=str)
def test_programs_have_the_bits_of_threads(client, tmp_path, case, size):
    parts = case.parts(size)
    before = copy.deepcopy(parts)
    diaries = {name: Diary(tmp_path / name) for name in ("threads", "mesh", "tasks")}
    wanted = here(brief(case), parts, callback=diaries["threads"])
    assert wanted.rounds > 1
    for transport in ("mesh", "tasks"):
        found = there(client, transport, brief(case), parts, callback=diaries[transport])
        assert bits(case.model(found.shards)) == bits(case.model(wanted.shards)), transport
        assert found.rounds == wanted.rounds, transport
        assert digest(found.reports) == digest(wanted.reports), transport
        assert diaries[transport].read() == diaries["threads"].read(), transport
    assert len(diaries["threads"].read()) == wanted.rounds + 1
    assert [*map(bits, map(arrays_of, parts))] == [*map(bits, map(arrays_of, before))]


def test_plans_dealt_from_old_reports_have_the_bits_of_threads(client, tmp_path):
    X, y = regression(40, 60, 5)
    penalty = Penalty(2.0, 0.0, False)
    limits = {"every": 5, "max_measures": 1}
    policy = Certified(DynamicPriority(4, lookahead=2), Distance(penalty), 1e-9, **limits)
    program = LassoColumns(policy, penalty, Rules(True, False, True, 0.1, 12, 1e-9))
    parts = [ColumnPart(slab, y, np.ones(40), np.zeros(slab.stop - slab.start)) for slab in split(X, 2, 1)]
    diaries = {name: Diary(tmp_path / name) for name in ("threads", "mesh", "tasks")}
    wanted = here(program, parts, callback=diaries["threads"])
    nothing = digest(None)
    waited = "".join("." if line.endswith(nothing) else "w" for line in diaries["threads"].read())
    assert waited == "..w..w..w"  # p m u u u u u m -
    for transport in ("mesh", "tasks"):
        found = there(client, transport, program, parts, callback=diaries[transport])
        assert digest([tuple(piece) for piece in found.shards]) == digest(list(map(tuple, wanted.shards)))
        assert diaries[transport].read() == diaries["threads"].read(), transport


@pytest.mark.parametrize("update", ["exact", "parallel"])
@pytest.mark.parametrize("transport", ["mesh", "tasks"])
def test_rows_of_a_fortran_ordered_matrix_have_the_bits_of_threads(client, transport, update):
    X, y = regression(400, 40, 5)
    assert X.flags.f_contiguous
    model = Lasso(0.05, tol=1e-3, n_shards=3, update=update, random_state=0)
    wanted = model.fit(X, y).coef_.copy(), model.intercept_
    with client.as_current(), dask.config.set({"daskstrads.transport": transport}):
        found = model.fit(X, y)
    np.testing.assert_array_equal(found.coef_, wanted[0])
    assert found.intercept_ == wanted[1]


class Layout(Program):
    """Shards tell how their part, and what was gathered, lies in memory."""

    schedule = RoundRobin(1, sweeps=1)

    def init(self, part, rank, size, rng):
        return {"part": self.told(part)}

    def push(self, shard, plan):
        return Gather([np.ones(3), "an odd string", np.ones((2, 5), order="F")])

    def pull(self, shard, plan, received, sent):
        shard["received"] = [self.told([entry[0], entry[2]]) for entry in received]

    def told(self, arrays):
        return [(array.flags.aligned, array.flags.c_contiguous, array.flags.f_contiguous) for array in arrays]


@pytest.mark.parametrize("transport", ["mesh", "tasks"])
def test_arrays_arrive_aligned_and_in_their_order(client, transport):
    X = np.asfortranarray(np.ones((9, 4)))
    parts = [[X, X.T.copy(), np.ones(rank + 1, np.int8), np.ones(5)] for rank in range(3)]
    for shard in there(client, transport, Layout(), parts).shards:
        assert all(aligned for aligned, _, _ in shard["part"])
        assert [order[1:] for order in shard["part"][:2]] == [(False, True), (True, False)]
        assert all(aligned for entry in shard["received"] for aligned, _, _ in entry)
    cut = [[np.asfortranarray(np.ones((9, 4)))[2:7]]] * 2  # contiguous in neither order
    for shard in there(client, transport, Layout(), cut).shards:
        assert shard["part"] == [(True, False, True)]


def keys(client):
    return client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])


def forgotten(client):
    """Wait until the scheduler has no task."""
    end = time.monotonic() + 10
    while left := keys(client):
        if time.monotonic() > end:
            pytest.fail(f"the scheduler still has {left}")
        time.sleep(0.05)


class Told(programs.NNLS):
    """A program that has a `result`."""

    def result(self, shard):
        return {"x": shard.x, "rows": len(shard.A)}


@pytest.mark.parametrize("transport", ["mesh", "tasks"])
def test_kept_results_are_dask_data_until_they_are_released(client, transport):
    A, b = regression(60, 4, 1)
    parts = [(A[start::3], b[start::3]) for start in range(3)]
    gathered = there(client, transport, Told(4, tol=1e-2), parts)
    forgotten(client)
    kept = there(client, transport, Told(4, tol=1e-2), parts, gather=False)
    assert kept.rounds == gathered.rounds
    assert digest(kept.reports) == digest(gathered.reports)
    holders = client.who_has(kept.shards)
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    assert len(holders) == 3
    for shard, wanted in zip(kept.shards, gathered.shards, strict=True):
        assert isinstance(shard, Future)
        assert shard.status == "finished"
        assert len(holders[shard.key]) == 1
        assert set(holders[shard.key]) <= workers
        found = shard.result(timeout=10)
        np.testing.assert_array_equal(found["x"], wanted["x"])
        assert found["rows"] == wanted["rows"]
    total = client.submit(lambda *shards: sum(shard["rows"] for shard in shards), *kept.shards, pure=False)
    assert total.result(timeout=10) == 60
    assert {shard.key for shard in kept.shards} <= set(keys(client))
    del kept, shard, total
    forgotten(client)


class OnWhich(Program):
    """Sums that depend on all that came before; shards tell which threads ran them. Slow at first."""

    replicas = ("total",)

    def __init__(self, schedule, slow):
        self.slow = slow
        if schedule is not None:
            self.schedule = schedule
        self.seen = 0.0

    def schedule(self, round, reports):
        """Of the user's own, and with a state that must survive."""
        self.seen += sum(reports or [0.0])
        return int(self.seen * 1e6) % 7 if round < 10 else None

    def init(self, part, rank, size, rng):
        return Shard(rng)

    def push(self, shard, plan):
        where = threading.current_thread().name
        if self.slow and len(shard.hosted) < 4:
            time.sleep(self.slow)
        shard.hosted.append(where.startswith("daskstrads-rank-"))
        shard.own = (shard.own * 3.7 * (1 - shard.own)) + 1e-3 * float(np.sum(plan))
        return Sum(np.float64(shard.own))

    def pull(self, shard, plan, received, sent):
        shard.total = shard.total * 0.9 + received
        return abs(shard.own)


class Shard:
    def __init__(self, rng):
        self.own, self.total, self.hosted = rng.random() * 0.5, np.float64(0), []


OWN = {
    "own": lambda: None,
    "with tol": lambda: RoundRobin(3, sweeps=4, tol=1e-9),
    "dealt ahead": lambda: RoundRobin(3, sweeps=4),
}


@pytest.mark.parametrize("schedule", ["own", "dealt ahead"])
def test_slow_rounds_go_on_as_tasks(client, tmp_path, schedule):
    diaries = Diary(tmp_path / "here"), Diary(tmp_path / "there")
    wanted = here(OnWhich(OWN[schedule](), 0), [0, 1], callback=diaries[0])
    found = there(client, "auto", OnWhich(OWN[schedule](), 1.05), [0, 1], callback=diaries[1])
    assert found.rounds == wanted.rounds >= 10
    for one, other in zip(found.shards, wanted.shards, strict=True):
        assert (one.own, one.total) == (other.own, other.total)
        assert one.hosted[:4] == [True] * 4  # the fourth round is the one in which all hear of it
        assert not any(one.hosted[4:])
    assert digest(found.reports) == digest(wanted.reports)
    assert diaries[0].read() == diaries[1].read()
    forgotten(client)


class Slow(programs.Carousel):
    """Blocks that are on their way when tasks take over."""

    def push(self, shard, plan):
        if shard.turn < 5:
            time.sleep(1.05)
        return super().push(shard, plan)


def test_blocks_on_their_way_arrive_when_tasks_take_over(client):
    parts = [[[1.0], [2.0]], [[3.0], [4.0]]]
    wanted = here(programs.Carousel(16), parts)
    found = there(client, "auto", Slow(16), parts)
    for one, other in zip(found.shards, wanted.shards, strict=True):
        np.testing.assert_array_equal(one.queue, other.queue)
    forgotten(client)


class Failing(programs.Carousel):
    """A rank that fails while the others' blocks are on their way."""

    def push(self, shard, plan):
        if (shard.rank, shard.turn) == (1, 3):
            raise OSError("disk full")
        return super().push(shard, plan)


@pytest.mark.parametrize("transport", ["mesh", "tasks"])
def test_a_rank_that_fails_while_blocks_are_on_their_way_is_the_error(client, transport):
    parts = [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]]
    with pytest.raises(OSError, match="disk full") as caught:
        there(client, transport, Failing(16), parts)
    assert any("in phase push of round 3" in note for note in caught.value.__notes__)
    found, wanted = there(client, transport, programs.Carousel(16), parts), here(programs.Carousel(16), parts)
    for one, other in zip(found.shards, wanted.shards, strict=True):
        np.testing.assert_array_equal(one.queue, other.queue)
    forgotten(client)


def test_the_mesh_keeps_slow_rounds_when_it_is_asked_for(client):
    found = there(client, "mesh", OnWhich(RoundRobin(5, sweeps=1), 1.05), [0, 1])
    assert all(all(shard.hosted) for shard in found.shards)


def test_without_a_client_transports_that_need_one_are_an_error():
    A, b = regression(30, 3, 1)
    wanted = here(programs.NNLS(3), [(A, b)])
    for transport in "auto", "threads":
        found = here(programs.NNLS(3), [(A, b)], transport=transport)
        np.testing.assert_array_equal(found.shards[0].x, wanted.shards[0].x)
    for transport in "mesh", "tasks":
        with pytest.raises(ValueError, match="needs a current"):
            here(programs.NNLS(3), [(A, b)], transport=transport)


@pytest.mark.parametrize("transport", ["mash", "", "Mesh", 1])
def test_bad_transports_are_an_error_with_and_without_a_client(client, transport):
    A, b = regression(30, 3, 1)
    with pytest.raises(ValueError, match="transport must be"):
        here(programs.NNLS(3), [(A, b)], transport=transport)
    with pytest.raises(ValueError, match="transport must be"):
        there(client, transport, programs.NNLS(3), [(A, b)])
    config = dask.config.set({"daskstrads.transport": transport})
    with config, pytest.raises(ValueError, match=r"daskstrads\.transport must be one of"):
        there(client, None, programs.NNLS(3), [(A, b)])


def test_the_configured_transport_is_used(client):
    with dask.config.set({"daskstrads.transport": "tasks"}):
        configured = there(client, None, OnWhich(RoundRobin(2, sweeps=1), 0), [0, 1])
        asked = there(client, "mesh", OnWhich(RoundRobin(2, sweeps=1), 0), [0, 1])
    assert not any(configured.shards[0].hosted)
    assert all(asked.shards[0].hosted)


@contextmanager
def sampled(client):
    """How many tasks the scheduler has, again and again."""
    sizes, stop = [], threading.Event()

    def look():
        while not stop.wait(0.02):
            sizes.append(len(keys(client)))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield sizes
    finally:
        stop.set()
        looking.join()


# A round of two ranks is ten tasks; without a tolerance 32 plans come at once, the next 32 before these end.
@pytest.mark.parametrize(("tol", "sweeps", "most"), [(1e-12, 10, 40), (None, 20, 650)])
def test_the_graph_does_not_grow_with_the_rounds(client, tol, sweeps, most):
    program = OnWhich(RoundRobin(6, sweeps=sweeps, tol=tol), 0)
    with sampled(client) as sizes:
        done = there(client, "tasks", program, [0, 1])
    assert done.rounds == 6 * sweeps
    assert len(sizes) > 20
    assert 5 < max(sizes) < most
    forgotten(client)


@pytest.fixture
def taken():
    """A port that nobody else can open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with dask.config.set({"daskstrads.ports": str(port)}):
            yield port


def test_workers_without_a_port_are_unreachable(client, taken):
    start = time.monotonic()
    with pytest.raises(Unreachable, match=rf"can open no port of .*{taken}"):
        there(client, "mesh", OnWhich(RoundRobin(3, sweeps=1), 0), [0, 1])
    assert time.monotonic() - start < 5


def test_one_port_is_not_enough_for_two_workers(client):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for _ in range(2):  # whichever of them comes first
        with (
            dask.config.set({"daskstrads.ports": str(port)}),
            pytest.warns(RuntimeWarning, match=rf"cannot connect.*{port}"),
        ):
            found = there(client, "auto", OnWhich(RoundRobin(2, sweeps=1), 0), [0, 1])
        assert not any(found.shards[0].hosted)


@pytest.mark.parametrize("schedule", ["own", "with tol"])
def test_workers_without_a_port_run_tasks_and_say_so(client, taken, schedule):
    wanted = here(OnWhich(OWN[schedule](), 0), [0, 1])
    with pytest.warns(RuntimeWarning, match=rf"cannot connect.*as Dask tasks.*{taken}"):
        found = there(client, "auto", OnWhich(OWN[schedule](), 0), [0, 1])
    assert [shard.total for shard in found.shards] == [shard.total for shard in wanted.shards]
    assert found.rounds == wanted.rounds
    assert not any(found.shards[0].hosted)
    forgotten(client)


def test_ranges_of_ports_are_kept_to(client):
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = server.getsockname()[1]
    # Close together, and none of them needs to be free but two.
    with dask.config.set({"daskstrads.ports": f"{first}-{min(first + 200, 65535)}"}):
        found = there(client, "mesh", OnWhich(RoundRobin(3, sweeps=1), 0), [0, 1])
    assert all(found.shards[0].hosted)
