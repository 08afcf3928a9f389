import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import daskstrads
from daskstrads.comm.group import Aborted, Group, freeze
from daskstrads.comm.local import LocalGroup, launch
from daskstrads.sparse_reduce import allreduce

SOON = 5.0  # seconds: far above what an end of all ranks takes, far below the timeouts given
Pair = namedtuple("Pair", "left right")


def read_only(array):
    array.flags.writeable = False
    return array


def ends_soon(error, match, fn, parts, **options):
    """The error of a launch that must end soon although some of its ranks wait for others."""
    start = time.monotonic()
    with pytest.raises(error, match=match) as caught:
        launch(fn, parts, **options)
    assert time.monotonic() - start < SOON
    return caught.value


@pytest.mark.parametrize("size", [1, 2, 3, 9, 32])
def test_gather_is_in_rank_order_on_every_rank(size):
    def rank(group, part):
        assert isinstance(group, Group)
        return [group.gather((part, k)) for k in range(20)]

    parts = [f"part {rank}" for rank in range(size)]
    for gathered in launch(rank, parts, timeout=20):
        assert gathered == [[(part, k) for part in parts] for k in range(20)]


def test_results_are_in_rank_order():
    def rank(group, part):
        time.sleep(0.02 * (group.size - group.rank))
        return group.rank, group.size, part

    assert launch(rank, "abc") == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c")]


def test_one_part_runs_in_the_calling_thread():
    def rank(group, _):
        group.send(0, "to myself")
        return threading.current_thread(), group.recv(0), group.gather(1)

    assert launch(rank, [None]) == [(threading.current_thread(), "to myself", [1])]


def test_messages_arrive_in_the_order_sent_from_each_rank():
    def rank(group, _):
        for k in range(50):
            for to in range(group.size):
                group.send(to, (group.rank, k))
        return [[group.recv(source) for _ in range(50)] for source in reversed(range(group.size))]

    for received in launch(rank, [None] * 3, timeout=20):
        assert received == [[(source, k) for k in range(50)] for source in (2, 1, 0)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("how", ["gather", "send"])
def test_writeable_arrays_are_copied_and_read_only_ones_are_not(size, how):
    def rank(group, own):
        mine, promised = own
        payload = {"a": [mine], "b": Pair(promised, 2.5)}
        if how == "gather":
            received = group.gather(payload)[group.rank - 1]
        else:
            group.send((group.rank + 1) % group.size, payload)
            received = group.recv((group.rank - 1) % group.size)
        mine[:] = -1  # too late to reach anybody
        group.gather(None)
        (copied,), pair = received["a"], received["b"]
        assert not copied.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            copied[0] = 1.0
        assert type(pair) is Pair
        assert pair.right == 2.5
        return copied, pair.left

    parts = [(np.full(4, float(rank)), read_only(np.full(4, float(rank)))) for rank in range(size)]
    for place, (copied, promised) in enumerate(launch(rank, parts, timeout=20)):
        source = (place - 1) % size
        assert (copied == source).all()
        assert promised is parts[source][1]


def test_freeze_keeps_values_and_layout():
    x = np.asfortranarray(np.arange(6).reshape(2, 3))
    y = freeze(x)
    assert y.flags.f_contiguous
    assert not np.shares_memory(x, y)
    assert x.flags.writeable
    np.testing.assert_array_equal(x, y)
    plain = (None, True, 1, 2.5, 1j, "text", b"bytes", np.float32(3))
    assert freeze(plain) == plain
    assert freeze([(), {}, [{"a": 1}]]) == [(), {}, [{"a": 1}]]


@pytest.mark.parametrize(
    "payload",
    [
        np.array([object()]),
        [{"deep": (np.array(["a", None], object),)}],
        np.zeros(2, [("a", int), ("b", object)]),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_object_arrays_are_refused(payload, size):
    ends_soon(TypeError, "array of objects cannot be exchanged", lambda g, _: g.gather(payload), [0] * size)
    ends_soon(TypeError, "array of objects cannot be exchanged", lambda g, _: g.send(0, payload), [0] * size)


@pytest.mark.parametrize("payload", [{1}, object(), int, lambda: 0])
def test_what_no_wire_could_carry_is_refused(payload):
    with pytest.raises(TypeError, match="cannot be exchanged between ranks; send arrays, numbers"):
        launch(lambda group, _: group.gather(payload), [None] * 2)


def test_ranks_that_meet_for_different_exchanges():
    def rank(group, label):
        group.gather(None, "first")
        group.gather(None, label)

    told = r"different exchanges \(rank 0: apples, rank 1: pears, rank 2: apples\)"
    ends_soon(RuntimeError, told, rank, ["apples", "pears", "apples"])


def waits_in_gather(group):
    group.gather(None)


def waits_in_recv(group):
    group.recv(1)


def waits_for_another_waiter(group):
    group.recv(2 if group.rank == 0 else 0)


WAITS = [waits_in_gather, waits_in_recv, waits_for_another_waiter]


@pytest.mark.parametrize("delay", [0.0, 0.1])  # the others have not met yet; they wait
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("error", [KeyError, SystemExit, KeyboardInterrupt, Aborted])
def test_one_failing_rank_ends_all_with_the_root_cause(wait, delay, error):
    ended = []

    def rank(group, _):
        if group.rank == 1:
            group.gather(None)
            time.sleep(delay)
            raise error("the root")
        try:
            group.gather(None)
            wait(group)
        except Aborted as woken:
            ended.append((group.rank, type(woken.__cause__)))
            raise

    caught = ends_soon(error, "the root", rank, [None] * 4)
    assert sorted(ended) == [(rank, error) for rank in (0, 2, 3)]
    if error is not Aborted:
        assert caught.__notes__ == ["raised on rank 1 of 4"]


@pytest.mark.parametrize("act", [lambda g: g.send(0, 1), lambda g: g.gather(1), lambda g: g.recv(1)])
def test_a_rank_that_comes_late_to_a_failed_group_ends_too(act):
    ended = []

    def rank(group, _):
        if group.rank == 1:
            raise KeyError("the root")
        time.sleep(0.1)
        try:
            act(group)
        except Aborted:
            ended.append(group.rank)

    ends_soon(KeyError, "the root", rank, [None] * 3)
    assert sorted(ended) == [0, 2]


def test_the_first_of_several_failures_is_told():
    def rank(group, delay):
        time.sleep(delay)
        raise KeyError(f"after {delay}")

    ends_soon(KeyError, r"after 0\.0", rank, [0.3, 0.0, 0.3])


@pytest.mark.parametrize("delays", [(0.1, 0.0), (0.0, 0.1)])  # of the rank that returns, of the others
@pytest.mark.parametrize("wait", [waits_in_gather, waits_in_recv, lambda g: g.recv((g.rank + 1) % 3)])
def test_a_rank_that_returns_early_is_named(wait, delays):
    def rank(group, _):
        time.sleep(delays[group.rank != 1])
        if group.rank != 1:
            wait(group)

    told = r"rank\(s\) \[1\] returned while rank\(s\) \[.*\] wait for them"
    ends_soon(RuntimeError, told, rank, [None] * 3)


def test_messages_sent_before_a_rank_returned_still_arrive():
    def rank(group, _):
        if group.rank == 1:
            group.send(0, "bye")
            return None
        time.sleep(0.1)
        return group.recv(1)

    assert launch(rank, [None] * 2) == ["bye", None]


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda g: g.gather(None, "votes"), r"rank 0 waited 0\.2 s in 'votes' for rank\(s\) \[1, 2\]"),
        (lambda g: g.recv(2), r"rank 0 waited 0\.2 s for a message from rank 2"),
    ],
)
def test_waiting_has_an_end(act, told):
    done = threading.Event()

    def rank(group, _):
        if group.rank == 0:
            try:
                act(group)
            finally:
                done.set()
        done.wait(SOON)

    ends_soon(TimeoutError, told, rank, [None] * 3, timeout=0.2)


@pytest.mark.parametrize("timeout", [1e6, 1e300, float("inf")])
def test_long_timeouts(timeout):
    def rank(group, _):
        group.send(1 - group.rank, group.rank)
        time.sleep(0.05 * group.rank)
        return group.recv(1 - group.rank), group.gather(None)

    assert launch(rank, [None] * 2, timeout=timeout) == [(1, [None] * 2), (0, [None] * 2)]


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_timeouts_that_make_no_sense(timeout):
    with pytest.raises(ValueError, match="timeout must be positive"):
        launch(lambda *_: None, [1, 2], timeout=timeout)


def test_no_parts():
    with pytest.raises(ValueError, match="at least one part"):
        launch(lambda *_: None, [])


def test_a_launch_inside_a_rank():
    def inner(group, part):
        return sum(group.gather(part))

    def outer(group, part):
        return group.gather(launch(inner, [part, 10 * part], timeout=20))

    assert launch(outer, [1, 2, 3], timeout=20) == [[[11, 11], [22, 22], [33, 33]]] * 3


def test_a_failure_in_a_launch_inside_a_rank():
    def inner(group, part):
        if part == 20:
            raise KeyError("the root")
        group.gather(None)

    def outer(group, part):
        launch(inner, [part, 10 * part])
        group.gather(None)

    caught = ends_soon(KeyError, "the root", outer, [1, 2, 3])
    assert caught.__notes__ == ["raised on rank 1 of 2", "raised on rank 1 of 3"]


def test_two_launches_at_once():
    results = {}

    def rank(group, part):
        total = 0
        for _ in range(200):
            total += sum(group.gather(part))
        return total

    def start(name, parts):
        results[name] = launch(rank, parts, timeout=20)

    callers = [threading.Thread(target=start, args=(k, [k, k + 1, k + 2])) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert results == {k: [200 * (3 * k + 3)] * 3 for k in range(4)}


def test_ranks_of_different_speed_never_mix_meetings():
    # A fast rank may be a meeting ahead of a slow reader.
    def rank(group, rng):
        for k in range(150):
            if rng.random() < 0.1:
                time.sleep(0.001)
            assert group.gather(np.full(3, k))[rng.integers(group.size)][0] == k
            assert group.gather(k, "other") == [k] * group.size

    launch(rank, [np.random.default_rng(seed) for seed in range(6)], timeout=20)


def test_no_thread_is_left_behind():
    before = threading.active_count()

    def rank(group, part):
        if part == 7:
            raise KeyError("the root")
        group.gather(None)

    launch(rank, range(5))
    with pytest.raises(KeyError):
        launch(rank, range(32))
    assert threading.active_count() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("daskstrads-rank-")]
    assert LocalGroup.__doc__


INTERRUPTED = {
    "gather": "launch(lambda g, _: started() if g.rank == 0 else g.gather(None), [0] * 3)",
    "recv": "launch(lambda g, _: started() if g.rank == 0 else g.recv(0), [0] * 3)",
    "between exchanges": """
def rank(group, _):
    while True:
        group.gather(None)
        if group.rank == 0:
            started(0.01)
launch(rank, [0] * 3)""",
    "one rank": "launch(lambda g, _: started(60), [0])",
    "run": """
class Endless(Program):
    def init(self, part, rank, size, rng): return rank
    def schedule(self, round, reports): return round
    def push(self, shard, plan): return 1.0
    def pull(self, shard, plan, received, sent):
        if shard == 0: started(0.01)
run(Endless(), [0] * 3)""",
}


@pytest.mark.parametrize("how", INTERRUPTED)
def test_ctrl_c_ends_all_ranks(how):
    script = f"""
import time
from daskstrads import Program, launch, run
import daskstrads.sparse_reduce
def started(seconds=1.0):
    print("started", flush=True)
    time.sleep(seconds)
{INTERRUPTED[how]}
"""
    path = os.pathsep.join([str(Path(daskstrads.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "started\n"
        time.sleep(0.1)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - start < SOON
    assert process.returncode == -signal.SIGINT
    assert told.count("Traceback") == 1
    assert told.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("other", [-1, 2])
@pytest.mark.parametrize(
    "call", [lambda group, other: group.send(other, 1), lambda group, other: group.recv(other)]
)
def test_no_such_rank(call, other):
    with pytest.raises(ValueError, match=f"no rank {other} in a group of 2"):
        launch(lambda group, _: call(group, other), [0, 1])


@dataclass(frozen=True)
class TakesNoNote(Exception):  # noqa: N818
    what: str


def test_an_error_that_takes_no_note_is_still_the_root_cause():
    def rank(group, part):
        if group.rank == 1:
            raise TakesNoNote("boom")
        return group.gather(1)

    ends_soon(TakesNoNote, "boom", rank, range(3), timeout=60)


@pytest.mark.parametrize(
    "view", [np.diagonal, lambda a: np.broadcast_to(a[0], (2, 3)), lambda a: read_only(a[:2])]
)
def test_a_read_only_view_of_what_can_change_is_copied(view):
    mine = np.arange(9.0).reshape(3, 3)
    frozen = freeze(view(mine))
    wanted = view(mine).copy()
    mine[:] = -1
    np.testing.assert_array_equal(frozen, wanted)


def test_containers_are_not_shared_between_ranks():
    def rank(group, part):
        got = group.gather({"a": [group.rank]})
        for entry in got:
            entry["a"].append("mine")
        group.gather(None)
        return got

    for got in launch(rank, range(3), timeout=20):
        assert got == [{"a": [rank, "mine"]} for rank in range(3)]


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="masked"):
        freeze(np.ma.masked_array([1.0, 2.0], [0, 1]))


@pytest.mark.parametrize("wait", [lambda group: group.gather(1), lambda group: group.recv(1 - group.rank)])
def test_a_timeout_ends_the_launch_although_it_is_caught(wait):
    def rank(group, part):
        if group.rank == 1:
            time.sleep(0.6)
        with contextlib.suppress(TimeoutError):
            wait(group)
        return group.gather(group.rank)

    ends_soon(TimeoutError, "waited 0.2 s", rank, range(2), timeout=0.2)


def mixed(group):
    return group.gather(1) if group.rank else allreduce(np.ones(3), group, "recursive_doubling")


def mutual(group):
    return group.recv(1 - group.rank)


def ring(group):
    return group.recv((group.rank + 1) % group.size)


@pytest.mark.parametrize(
    ("wait", "size"), [(mixed, 2), (mutual, 2), (ring, 5), (lambda group: group.recv(0), 1)]
)
def test_a_deadlock_is_noticed_at_once(wait, size):
    ends_soon(RuntimeError, "deadlock.*rank", lambda group, _: wait(group), range(size), timeout=60)


def test_messages_on_their_way_are_no_deadlock():
    def rank(group, _):
        total = 0
        for k in range(300):
            group.send((group.rank + 1) % group.size, k)
            total += group.recv((group.rank - 1) % group.size)
            if k % 7 == 0:
                group.gather(k)
        return total

    assert launch(rank, range(4), timeout=30) == [sum(range(300))] * 4


def test_after_the_end_nobody_waits():
    def rank(group, _):
        if group.rank == 0:
            raise KeyError("root")
        for _ in range(3):
            with contextlib.suppress(Aborted):
                group.recv(0)
        return None

    ends_soon(KeyError, "root", rank, range(2), timeout=60)


def test_ranks_run_in_the_callers_context():
    with np.errstate(divide="ignore"):
        results = launch(lambda group, _: np.geterr()["divide"], range(2))
    assert results == ["ignore"] * 2
