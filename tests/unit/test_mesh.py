import contextlib
import gc
import os
import socket
import ssl
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daskstrads.comm import link as wire
from daskstrads.comm.group import Aborted, Group
from daskstrads.comm.link import ABORT, BEAT, HEADER, HELLO, LEAVE, MAGIC, MAIL, MEET, VERSION, Limits, frame
from daskstrads.comm.local import launch
from daskstrads.comm.mesh import Mesh
from daskstrads.comm.mesh_group import MeshGroup, PeerLost, Room
from daskstrads.engine.exchange import exchange
from daskstrads.engine.program import Gather, Rotate, Scatter, Sum
from daskstrads.schedule import Report
from daskstrads.sparse_reduce import Stream

SOON = 5.0  # seconds: far above what an end of all ranks takes, far below the timeouts given
TOKEN = b"a secret of thirty-two characters"[:32]
HOST = "127.0.0.1"
STEADY = Limits(beat=0.2, silence=30.0)
QUICK = Limits(connect=5.0, beat=0.05, silence=0.6)
LAYOUTS = [[[0], [1]], [[0, 1], [2]], [[0], [1], [2]], [[0, 1, 2], [3], [4, 5]]]


def open_sockets():
    """Those of this process, as a number; Linux alone tells."""
    held = 0
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # the listing's own
            held += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
    return held


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    before = mesh_threads()
    yield
    assert not mesh_threads() - before


def mesh_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("daskstrads-")}


@pytest.fixture(autouse=True, scope="module")
def no_socket_left_behind():
    before = open_sockets()
    yield
    gc.collect()
    assert open_sockets() <= before


class Workers:
    """Several workers' meshes in one process, with their ranks as threads."""

    def __init__(self, ranks, *, limits=STEADY, contexts=(None, None), timeout=20.0, host=HOST):
        self.ranks = ranks
        if isinstance(limits, Limits):
            limits = [limits] * len(ranks)
        self.rooms = [Room(sum(map(len, ranks)), members, timeout) for members in ranks]
        self.meshes = [
            Mesh(room, index, ranks, TOKEN, limits=limits[index], contexts=contexts)
            for index, room in enumerate(self.rooms)
        ]
        self.addresses = [(host, mesh.listen(host)) for mesh in self.meshes]
        self.errors = {}

    def connect(self, index):
        try:
            self.meshes[index].connect(self.addresses)
        except Exception as error:
            self.errors[index] = error

    def start(self, *indices):
        threads = [threading.Thread(target=self.connect, args=(index,)) for index in indices]
        for thread in threads:
            thread.start()
        return threads

    def __enter__(self):
        for thread in self.start(*range(len(self.meshes))):
            thread.join(20)
        assert not self.errors
        return self

    def __exit__(self, *error):
        closing = [threading.Thread(target=mesh.close) for mesh in self.meshes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(20)

    def run(self, fn):
        """What the ranks return, or raise, in rank order; as the host of a worker's ranks does it."""
        outcomes = {}

        def live(index, rank):
            room, mesh = self.rooms[index], self.meshes[index]
            try:
                outcomes[rank] = fn(MeshGroup(room, mesh, rank))
            except Aborted as error:
                room.abort(error)
                outcomes[rank] = error
            except BaseException as error:
                error.add_note(f"raised on rank {rank}")
                if room.abort(error):
                    mesh.tell_abort(error)
                outcomes[rank] = error
            else:
                room.leave(rank)
                mesh.tell_leave(rank)

        threads = [
            threading.Thread(target=live, args=(index, rank), name=f"daskstrads-rank-{rank}")
            for index, members in enumerate(self.ranks)
            for rank in members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return [outcomes[rank] for rank in sorted(outcomes)]

    def results(self, fn):
        outcomes = self.run(fn)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def causes(self, fn):
        """The room's cause of every worker, which must all end soon."""
        start = time.monotonic()
        outcomes = self.run(fn)
        assert time.monotonic() - start < SOON
        for outcome in outcomes:
            assert isinstance(outcome, BaseException) or outcome is None
        return [room.cause for room in self.rooms]


class Peer:
    """Worker 1 of 2 as a bare socket that says what a test wants it to; worker 0 is a real one."""

    def __init__(self, limits=STEADY, context=None, accept=None, greeting=b""):
        self.room = Room(2, [0], 20.0)
        self.mesh = Mesh(self.room, 0, [[0], [1]], TOKEN, limits=limits, contexts=(accept, None))
        address = (HOST, self.mesh.listen(HOST))
        connecting = threading.Thread(target=self.mesh.connect, args=([address, address],))
        connecting.start()
        self.socket = socket.create_connection(address, 10)
        if context is not None:
            self.socket = context.wrap_socket(self.socket)
        self.socket.sendall(wire.hello(1, TOKEN) + greeting)
        assert wire.greeted(self.socket, TOKEN, time.monotonic() + 10) == 0
        connecting.join(10)
        self.socket.settimeout(10)
        self.group = MeshGroup(self.room, self.mesh, 0)
        self.link = self.mesh._links[1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()
        self.mesh.close()

    def say(self, kind, payload=None, source=1, to=0, epoch=0):
        self.socket.sendall(b"".join(frame(kind, epoch, source, to, payload, 1 << 40)))

    def header(self, kind, *, magic=MAGIC, version=VERSION, epoch=0, source=1, to=0, description=0, body=0):
        self.socket.sendall(HEADER.pack(magic, version, kind, 0, epoch, source, to, description, body))

    def end(self):
        self.socket.shutdown(socket.SHUT_WR)

    def heard(self):
        """The frames that worker 0 sent until it closed: (kind, payload bytes)."""
        frames = []
        while raw := self.exactly(HEADER.size):
            *_, kind, _, _, _, _, description, body = HEADER.unpack(raw)
            frames.append((kind, self.exactly(description), len(self.exactly(body))))
        return frames

    def exactly(self, size):
        raw = bytearray()
        while len(raw) < size and (more := self.socket.recv(min(1 << 20, size - len(raw)))):
            raw += more
        return bytes(raw)

    def loss(self):
        """Why worker 0 gives this peer up; its thread must survive that."""
        start = time.monotonic()
        with pytest.raises(Aborted) as caught:
            self.group.recv(1)
        assert time.monotonic() - start < SOON
        cause = caught.value.__cause__
        assert isinstance(cause, PeerLost)
        assert self.mesh._thread.is_alive()
        return str(cause)


def eventually(condition, seconds=SOON):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# What ranks may do


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_gather_is_in_rank_order_on_every_rank(ranks):
    size = sum(map(len, ranks))

    def rank(group):
        assert isinstance(group, Group)
        return [group.gather((group.rank, k), "counts") for k in range(30)]

    with Workers(ranks) as workers:
        for gathered in workers.results(rank):
            assert gathered == [[(source, k) for source in range(size)] for k in range(30)]


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_messages_arrive_in_the_order_sent_and_do_not_mix_with_meetings(ranks):
    size = sum(map(len, ranks))

    def rank(group):
        for k in range(20):
            for to in range(size):
                group.send(to, (group.rank, k, np.full(k * 997, k)))
            assert group.meet(k, "in between") == [k] * size
        found = [[group.recv(source) for _ in range(20)] for source in reversed(range(size))]
        assert all((entry[2] == entry[1]).all() for entries in found for entry in entries)
        return [[entry[:2] for entry in entries] for entries in found]

    with Workers(ranks) as workers:
        for received in workers.results(rank):
            assert received == [[(source, k) for k in range(20)] for source in reversed(range(size))]


def test_ranks_of_different_speed_never_mix_meetings():
    def rank(group):
        rng = np.random.default_rng(group.rank)
        for k in range(100):
            if rng.random() < 0.1:
                time.sleep(0.002)
            assert group.gather(np.full(3, k))[rng.integers(group.size)][0] == k
            assert group.gather(k, "other") == [k] * group.size

    with Workers(LAYOUTS[3]) as workers:
        workers.results(rank)


def both_ways(group):
    big = np.arange(8_000_000, dtype=np.float64) + group.rank  # 64 MB
    group.send(1 - group.rank, big)
    small = group.gather(group.rank)  # waits behind the large one
    received = group.recv(1 - group.rank)
    assert not received.flags.writeable
    return small, bool((received == np.arange(8_000_000) + (1 - group.rank)).all())


def test_64_megabytes_both_ways_at_once():
    with Workers([[0], [1]]) as workers:
        assert workers.results(both_ways) == [([0, 1], True)] * 2


@pytest.mark.parametrize("how", ["send", "gather"])
@pytest.mark.parametrize("ranks", LAYOUTS[:2])
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_writeable_arrays_are_copied(how, ranks, size):
    def rank(group):
        mine = np.full(size, group.rank)
        payload = {"a": [mine], "report": Report(mine, mine, {})}
        if how == "send":
            group.send((group.rank + 1) % group.size, payload)
        received = group.gather(payload)[group.rank - 1] if how == "gather" else None
        mine[:] = -1
        group.gather(None)
        received = received or group.recv((group.rank - 1) % group.size)
        for copied in (received["a"][0], received["report"].ids, received["report"].weights):
            assert not copied.flags.writeable
            assert (copied == (group.rank - 1) % group.size).all()

    with Workers(ranks) as workers:
        workers.results(rank)


class Opaque:
    pass


@pytest.mark.parametrize("to", [0, 1, 2])  # itself, on the same worker, on another
def test_what_cannot_travel_is_refused_wherever_the_receiver_is(to):
    with Workers([[0, 1], [2]]) as workers:
        group = MeshGroup(workers.rooms[0], workers.meshes[0], 0)
        for payload in (Opaque(), [{1}], np.array([None]), np.ma.masked_array([1])):
            with pytest.raises(TypeError, match="cannot travel between workers"):
                group.send(to, payload)
        stream = Stream.from_coo([1], [1.0], 9)
        group.send(to, stream)
        receiver = MeshGroup(workers.rooms[to == 2], workers.meshes[to == 2], to)
        assert receiver.recv(0).index.tolist() == [1]


@pytest.mark.parametrize("other", [-1, 3])
@pytest.mark.parametrize("act", [lambda g, other: g.send(other, 1), lambda g, other: g.recv(other)])
def test_no_such_rank(act, other):
    with (
        Workers([[0, 1], [2]]) as workers,
        pytest.raises(ValueError, match=f"no rank {other} in a group of 3"),
    ):
        workers.results(lambda group: act(group, other))


def test_a_payload_that_is_too_large():
    with Workers([[0], [1]], limits=STEADY._replace(frame=1000)) as workers:
        causes = workers.causes(lambda group: group.gather(np.ones(1000)))
        assert all(isinstance(cause, ValueError | PeerLost) for cause in causes)
        assert "send pieces" in str(causes[0])


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_long_timeouts(timeout):
    with Workers([[0], [1]], timeout=timeout) as workers:
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2


def test_one_worker_needs_no_connections():
    with Workers([[0, 1]]) as workers:
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with Workers([[0], [1]], host="::1") as workers:
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2


# The engine's exchanges


def sent(rank, what):
    rng = np.random.default_rng(rank)
    sparse = Stream.from_coo(np.sort(rng.choice(50_000, 400, replace=False)), rng.normal(size=400), 50_000)
    dense = Stream.from_dense(rng.normal(size=20_000))
    match what:
        case "sums":
            return Sum(rng.normal(size=100)), Sum(rng.normal(size=(30, 1000))), rng.normal(), np.float32(rank)
        case "streams":
            return Sum(sparse), Sum(dense), Gather(sparse)
        case "scatter":
            return Scatter(rng.normal(size=(7, 3))), Scatter(rng.normal(size=9), bounds=(0, 0, 2, 9))
        case "gather":
            return Gather({"a": rng.normal(size=rank + 1), "b": [rank, None, "c"]}), Gather(None)
        case "rotate":
            return Rotate(rng.normal(size=(2, 3))), Rotate(
                [sparse, (rank, np.asfortranarray(np.ones((2, 3))))]
            )
        case "all":
            return Rotate(sparse), Sum(rng.normal(size=20_000)), Scatter(rng.normal(size=6)), Gather(rank)


def bits(value):
    match value:
        case np.ndarray() | np.generic():
            return type(value), value.dtype, value.shape, value.tobytes()
        case Stream():
            return Stream, *map(bits, value.to_parts())
        case tuple() | list():
            return type(value), *map(bits, value)
        case dict():
            return [(key, bits(entry)) for key, entry in value.items()]
    return value


@pytest.mark.parametrize("what", ["sums", "streams", "scatter", "gather", "rotate", "all"])
@pytest.mark.parametrize("ranks", LAYOUTS[1:3])
def test_exchanges_have_the_bits_of_threads(what, ranks):
    def rank(group, _=None):
        def compare(checksums):
            assert checksums == [7] * group.size

        return [bits(exchange(sent(group.rank, what), group, 7, compare)) for _ in range(3)]

    with Workers(ranks) as workers:
        assert workers.results(rank) == launch(rank, [None] * 3, timeout=20)


# Ranks that fail


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_ranks_that_meet_for_different_exchanges(ranks):
    with Workers(ranks) as workers:
        outcomes = workers.run(lambda group: group.gather(1, "pears" if group.rank == 1 else "apples"))
    told = [str(error) for error in outcomes if not isinstance(error, Aborted)]
    assert told
    assert all("different exchanges (rank 0: apples, rank 1: pears" in each for each in told)


WAITS = [lambda g: g.gather(None), lambda g: g.recv(1), lambda g: g.recv((g.rank + 1) % g.size)]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("ranks", LAYOUTS)
def test_one_failing_rank_ends_all_with_the_cause(ranks, delay, wait):
    def rank(group):
        group.gather(None)
        if group.rank == 1:
            time.sleep(delay)
            raise KeyError("the root")
        wait(group)

    with Workers(ranks) as workers:
        causes = workers.causes(rank)
    home = next(index for index, members in enumerate(ranks) if 1 in members)
    for index, cause in enumerate(causes):
        if index == home:
            assert isinstance(cause, KeyError)
        else:
            assert isinstance(cause, PeerLost)
            assert str(cause) == f"on worker {home}: KeyError: 'the root' (raised on rank 1)"


class Mute(Exception):  # noqa: N818
    def __str__(self):
        raise TypeError("no words")


@pytest.mark.parametrize(("error", "told"), [(Mute(), "Mute"), (ValueError("x" * 10**7), "ValueError: xxx")])
def test_errors_that_are_hard_to_tell(error, told):
    def rank(group):
        if group.rank == 1:
            raise error
        group.gather(None)

    with Workers([[0], [1]]) as workers:
        text = str(workers.causes(rank)[0])
    assert text.startswith(f"on worker 1: {told}")
    assert len(text) < 20_000


@pytest.mark.parametrize("delays", [(0.1, 0.0), (0.0, 0.1)])
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("ranks", LAYOUTS[:3])
def test_a_rank_that_returns_early_is_named(ranks, wait, delays):
    def rank(group):
        time.sleep(delays[group.rank != 1])
        if group.rank != 1:
            wait(group)

    with Workers(ranks) as workers:
        causes = workers.causes(rank)
    told = [str(cause) for cause in causes if cause is not None]
    assert told
    for text in told:  # on every worker, also those that wait for a rank that waits
        assert "rank 1 has returned while rank" in text


def test_messages_sent_before_a_rank_returned_still_arrive():
    big = np.ones(4_000_000)

    def rank(group):
        if group.rank == 1:
            for _ in range(3):
                group.send(0, big)
            return None
        time.sleep(0.2)
        return [group.recv(1).sum() for _ in range(3)]

    with Workers([[0], [1]]) as workers:
        assert workers.results(rank) == [[4e6] * 3, None]


@pytest.mark.parametrize("act", [lambda g: g.gather(None, "votes"), lambda g: g.recv(2)])
def test_waiting_has_an_end(act):
    done = threading.Event()

    def rank(group):
        if group.rank:
            done.wait(SOON)
            return
        try:
            act(group)
        finally:
            done.set()

    with Workers([[0, 1], [2]], timeout=0.2) as workers:
        first, *_ = workers.run(rank)
    assert isinstance(first, TimeoutError)
    assert "rank 0 waited 0.2 s in '" in str(first)


def test_a_rank_that_goes_on_after_a_failure_is_refused():
    with Workers([[0], [1]]) as workers:
        workers.rooms[0].abort(KeyError("the root"))
        group = MeshGroup(workers.rooms[0], workers.meshes[0], 0)
        for act in (
            lambda: group.send(0, 1),
            lambda: group.send(1, 1),
            lambda: group.gather(1),
            lambda: group.recv(1),
        ):
            with pytest.raises(Aborted) as caught:
                act()
            assert isinstance(caught.value.__cause__, KeyError)


def test_news_overtakes_what_is_queued():
    with Peer(STEADY) as peer:
        for _ in range(50):
            peer.group.send(1, np.ones(1_000_000))
        eventually(lambda: len(peer.link._out[0]) < 3)
        peer.mesh.tell_abort(KeyError("the root"))
        assert len(peer.link._out) <= 2
        closing = threading.Thread(target=peer.mesh.close)
        closing.start()
        frames = [entry for entry in peer.heard() if entry[0] != BEAT]
        peer.socket.close()
        closing.join(10)
    assert len(frames) < 10
    assert frames[-1][0] == ABORT
    assert b"the root" in frames[-1][1]


# Workers that go


@pytest.mark.parametrize("how", ["shutdown", "reset"])
def test_a_worker_whose_connections_close_is_named(how):
    def rank(group):
        group.gather(None)
        if group.rank == 2:
            workers.meshes[2].tell_abort = lambda cause: None  # a worker that dies says nothing
            for link in workers.meshes[2]._links.values():
                if how == "reset":
                    link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                link.socket.shutdown(socket.SHUT_RDWR)
        group.gather(None)

    with Workers([[0], [1], [2]]) as workers:
        causes = workers.causes(rank)
    for cause in causes[:2]:
        assert isinstance(cause, PeerLost)
        assert "worker 2 with rank(s) [2] is lost" in str(cause)


def test_a_silent_worker_is_lost_within_its_limit():
    stopped, ended = threading.Event(), threading.Semaphore(0)
    times = []

    def rank(group):
        group.gather(None)
        if group.rank != 1:
            group.send(1, "all have been heard of")
        start = time.monotonic()
        if group.rank == 1:
            for source in (0, 2):
                group.recv(source)
            stopped.set()
            for _ in range(2):
                ended.acquire(timeout=SOON)
            stopped.clear()
            return
        try:
            group.recv(1)
        finally:
            times.append(time.monotonic() - start)
            ended.release()

    with Workers([[0], [1], [2]], limits=QUICK) as workers:
        turn = workers.meshes[1]._turn

        def hang():
            while stopped.is_set():
                time.sleep(0.01)
            turn()

        workers.meshes[1]._turn = hang
        outcomes = workers.run(rank)
    assert max(times) < 2 * QUICK.silence + 1.0
    for outcome in (outcomes[0], outcomes[2]):
        assert "worker 1 with rank(s) [1] is lost: not heard of for 0.6 s" in str(outcome.__cause__)


def test_a_busy_worker_is_not_lost():
    def rank(group):
        time.sleep(2 * QUICK.silence * group.rank)
        return group.gather(group.rank)

    with Workers([[0], [1]], limits=QUICK) as workers:
        assert workers.results(rank) == [[0, 1]] * 2


def test_a_worker_that_was_stopped_itself_does_not_blame_the_others():
    # Its thread did not run for long: what they have sent meanwhile is there, unread.
    limits = [QUICK, STEADY]
    with Workers([[0], [1]], limits=limits) as workers:
        mesh, stopped = workers.meshes[0], threading.Event()
        ready = mesh._ready

        def pause(patience):
            if not stopped.is_set():
                stopped.set()
                time.sleep(2 * QUICK.silence)
            return ready(patience)

        mesh._ready = pause
        assert stopped.wait(SOON)
        time.sleep(2.5 * QUICK.silence)
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2


def test_a_worker_that_still_waits_for_others_is_not_lost():
    # It beats only once it has found everybody.
    workers = Workers([[0], [1]], limits=QUICK)
    begin = workers.meshes[1]._begin
    workers.meshes[1]._begin = lambda: (time.sleep(2 * QUICK.silence), begin())
    with workers:
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2


def test_a_peer_that_never_starts_is_lost_in_the_end():
    with Peer(Limits(connect=0.3, beat=0.05, silence=0.2)) as peer:
        assert "not heard of" in peer.loss()


def test_long_transfers_do_not_starve_other_peers():
    # Worker 0 sends more than the silence lasts; its peers' beats are read in between.
    rounds = 25

    def rank(group):
        if group.rank == 0:
            block = np.ones(4_000_000)
            block.flags.writeable = False
            for _ in range(rounds):
                group.send(1, block)
        if group.rank == 1:
            for _ in range(rounds):
                group.recv(0)
        return group.gather(None)

    with Workers([[0], [1], [2]], limits=QUICK) as workers:
        workers.results(rank)


def test_a_crash_of_the_thread_ends_all():
    with Workers([[0], [1]]) as workers:

        def crash(now):
            raise KeyError("a bug")

        workers.meshes[0]._beat = crash
        first, second = workers.causes(lambda group: group.recv(1 - group.rank))
    assert "connections of worker 0 failed: KeyError('a bug')" in str(first)
    assert isinstance(first.__cause__, KeyError)
    assert "worker 0 with rank(s) [0] is lost" in str(second)


# Connecting


def test_a_refused_connection_is_named():
    workers = Workers([[0], [1]])
    workers.meshes[0].close()
    with pytest.raises(PeerLost, match=r"worker 1 cannot reach worker 0 at \('127.0.0.1', \d+\): .*refused"):
        workers.meshes[1].connect(workers.addresses)


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_worker_that_does_not_connect_is_named_by_all(absent):
    workers = Workers([[0], [1], [2]], limits=STEADY._replace(connect=0.4))
    start = time.monotonic()
    for thread in workers.start(*{0, 1, 2} - {absent}):
        thread.join(10)
    assert time.monotonic() - start < 3.0
    workers.meshes[absent].close()
    assert all(isinstance(error, PeerLost) for error in workers.errors.values())
    assert any(
        f"worker {absent} at" in str(e) or f"worker(s) [{absent}]" in str(e) for e in workers.errors.values()
    )
    assert len(workers.errors) == 2


@pytest.mark.parametrize("answer", [b"", wire.hello(0, b"x" * 32), wire.hello(2, TOKEN), b"x" * 100, None])
def test_whoever_answers_must_be_the_worker(answer):
    with socket.create_server((HOST, 0)) as impostor:
        mesh = Mesh(Room(2, [1], 5.0), 1, [[0], [1]], TOKEN, limits=STEADY._replace(connect=0.5))
        mesh.listen(HOST)

        def reply():
            connection, _ = impostor.accept()
            with connection:
                if answer is not None:
                    connection.sendall(answer)
                else:
                    time.sleep(0.8)

        replying = threading.Thread(target=reply)
        replying.start()
        with pytest.raises(PeerLost, match="worker 1 cannot reach worker 0"):
            mesh.connect([impostor.getsockname(), (HOST, 1)])
        replying.join(5)


STRANGERS = {
    "silent": b"",
    "garbage": os.urandom(300),
    "short garbage": b"GET / HTTP/1.1\r\n\r\n",
    "half a hello": wire.hello(1, TOKEN)[:20],
    "wrong token": wire.hello(1, b"x" * 32),
    "wrong worker": wire.hello(7, TOKEN),
    "the worker itself": wire.hello(0, TOKEN),
    "wrong version": wire.HELLO_FRAME.pack(MAGIC, VERSION + 1, HELLO, 0, 1, TOKEN),
    "wrong kind": wire.HELLO_FRAME.pack(MAGIC, VERSION, MAIL, 0, 1, TOKEN),
}


def with_strangers(sayings, contexts=(None, None), hang_up=False):
    workers = Workers([[0], [1]], contexts=contexts)
    connecting = workers.start(0)
    strangers = []
    for saying in sayings:
        strangers.append(socket.create_connection(workers.addresses[0], 5))
        strangers[-1].sendall(saying)
        if hang_up:
            strangers[-1].close()
    time.sleep(0.1)
    assert connecting[0].is_alive()
    start = time.monotonic()
    for thread in connecting + workers.start(1):
        thread.join(10)
    assert time.monotonic() - start < 2.0
    assert not workers.errors
    with contextlib.ExitStack() as stack:
        for mesh in workers.meshes:
            stack.callback(mesh.close)
        assert workers.results(lambda group: group.gather(group.rank)) == [[0, 1]] * 2
        for stranger in strangers:
            if not hang_up:
                stranger.settimeout(2)
                with contextlib.suppress(ConnectionError):
                    stranger.recv(4096)  # whatever a TLS server says to that
                    assert stranger.recv(4096) == b""
            stranger.close()
        with pytest.raises(ConnectionError):  # the door is shut
            socket.create_connection(workers.addresses[0], 5).close()


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("hang_up", [False, True])
def test_strangers_are_dropped(stranger, hang_up):
    with_strangers([STRANGERS[stranger]], hang_up=hang_up)


def test_many_strangers_at_once():
    with_strangers([*STRANGERS.values()] * 2)


@pytest.mark.parametrize("token", [b"", b"short", b"x" * 33])
def test_tokens_have_one_length(token):
    mesh = Mesh(Room(2, [0], 5.0), 0, [[0], [1]], token)
    mesh.listen(HOST)
    with pytest.raises(ValueError, match="token has 32 bytes"):
        mesh.connect([(HOST, 1)] * 2)


def test_closing_early_and_twice():
    mesh = Mesh(Room(2, [0], 5.0), 0, [[0], [1]], TOKEN)
    mesh.close()
    mesh.close()
    with Workers([[0], [1]]) as workers:
        pass
    for mesh in workers.meshes:
        mesh.close()
        mesh.tell_leave(0)
        mesh.tell_abort(KeyError())
        mesh.post(1 - mesh.index, MAIL, 0, 0, np.ones(1000))
        assert not mesh._links[1 - mesh.index].pending


def test_close_ends_a_connect():
    workers = Workers([[0], [1]])
    (connecting,) = workers.start(0)
    time.sleep(0.1)
    start = time.monotonic()
    for mesh in workers.meshes:
        mesh.close()
    connecting.join(5)
    assert time.monotonic() - start < 1.0
    assert isinstance(workers.errors[0], PeerLost)


# What a peer must not send


NOT_FRAMES = {
    "wrong magic": (lambda p: p.header(MAIL, magic=b"HTTP"), "not a frame"),
    "wrong version": (lambda p: p.header(MAIL, version=9), "not a frame"),
    "wrong epoch": (lambda p: p.say(MAIL, 1, epoch=3), "epoch 3 in epoch 0"),
    "large body": (lambda p: p.header(MAIL, body=1 << 62), "too large"),
    "larger body": (lambda p: p.header(MAIL, body=(1 << 64) - 1), "too large"),
    "large description": (lambda p: p.header(MAIL, description=(1 << 32) - 1), "too large"),
    "beat with a body": (lambda p: p.header(BEAT, body=1000), "too large"),
    "rank that is elsewhere": (lambda p: p.header(MAIL, source=0, body=1 << 19), "rank 0, which is not on"),
    "rank that is not there": (lambda p: p.header(MEET, source=9, body=1 << 19), "rank 9, which is not on"),
    "leave for another": (lambda p: p.say(LEAVE, source=0), "rank 0, which is not on"),
    "mail to a rank elsewhere": (lambda p: p.header(MAIL, to=1, body=1 << 19), "rank 1, which is not on"),
    "mail to nobody": (lambda p: p.header(MAIL, to=1 << 31, body=1 << 19), "which is not on worker 0"),
    "unknown kind": (lambda p: p.header(99, body=1 << 19), "unknown kind 99"),
    "second hello": (lambda p: p.header(HELLO), "unknown kind 0"),
    "meeting without a label": (lambda p: p.say(MEET, 5), "without a label"),
    "meeting with an array for a label": (lambda p: p.say(MEET, (np.ones(3), 1)), "without a label"),
    "end without a reason": (lambda p: p.say(ABORT, 5), "without a reason"),
    "no description": (lambda p: p.header(MAIL), "not a payload"),
    "garbage": (lambda p: (p.header(MAIL, description=9), p.socket.sendall(b"not json!")), "not a payload"),
    "half a header": (lambda p: (p.socket.sendall(MAGIC), p.end()), "closed"),
    "half a body": (lambda p: (p.header(MAIL, description=2, body=90), p.end()), "closed"),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_FRAMES)
def test_what_is_no_frame_ends_in_one_clear_error(what):
    act, told = NOT_FRAMES[what]
    with Peer(STEADY._replace(frame=1 << 20)) as peer:
        peer.say(BEAT)
        tracemalloc.start()
        try:
            act(peer)
            text = peer.loss()
            assert tracemalloc.get_traced_memory()[1] < 1 << 18
        finally:
            tracemalloc.stop()
    assert text.startswith("worker 1 with rank(s) [1] is lost: ")
    assert told in text


def test_a_frame_that_memory_is_too_small_for():
    with Peer(STEADY._replace(frame=1 << 62)) as peer:
        peer.header(MAIL, description=2, body=1 << 61)
        peer.socket.sendall(b"[]")
        assert "is lost: Unable to allocate" in peer.loss()


@given(st.binary(min_size=1, max_size=200), st.booleans(), st.integers(0, 6), st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_frames_never_hang(raw, valid, kind, data):
    if valid:  # a good frame, cut or with damage
        raw = (
            b"".join(frame(kind or MAIL, 0, 1, 0, ("label", np.arange(5)), 1 << 20)) if kind != BEAT else raw
        )
        damaged = bytearray(raw)
        damaged[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = bytes(damaged[: data.draw(st.integers(1, len(raw)))])
    with Peer(STEADY._replace(frame=1 << 20)) as peer:
        with contextlib.suppress(ConnectionError):
            peer.socket.sendall(raw)
            peer.socket.close()
        with pytest.raises((Aborted, RuntimeError)) as caught:
            take_all(peer.group)
        error = caught.value
        assert isinstance(error.__cause__, PeerLost) or "rank 1 has returned" in str(error)
        assert peer.mesh._thread.is_alive()


def take_all(group):
    """What came whole, then whatever ends it."""
    for _ in range(20):
        group.recv(1)


def test_frames_in_pieces_of_one_byte():
    with Peer() as peer:
        for byte in b"".join(frame(MAIL, 0, 1, 0, {"a": np.arange(3)}, 1 << 20)):
            peer.socket.sendall(bytes([byte]))
        assert peer.group.recv(1)["a"].tolist() == [0, 1, 2]


def test_many_frames_in_one_piece():
    with Peer() as peer:
        block = np.arange(40_000)
        peer.socket.sendall(
            b"".join(b"".join(frame(MAIL, 0, 1, 0, (k, block[: k * 397]), 1 << 20)) for k in range(100))
        )
        for k in range(100):
            found, values = peer.group.recv(1)
            assert found == k
            np.testing.assert_array_equal(values, block[: k * 397])


# Ending well


def test_last_words_count_when_sending_fails_first(monkeypatch):
    monkeypatch.setattr(Mesh, "_live", lambda mesh: None)
    with Peer() as peer:
        peer.say(MAIL, "bye")
        peer.say(LEAVE)
        time.sleep(0.05)

        def write():
            raise BrokenPipeError("broken")

        peer.link.write = write
        peer.mesh._try(peer.link, peer.link.write)
        assert peer.link.lost
        assert peer.room.cause is None
        assert peer.group.recv(1) == "bye"


def test_what_was_sent_last_arrives_although_nobody_reads_what_comes_back():
    # Closing a socket with something unread resets it, and what it had still to send is lost.
    with Peer() as peer:
        peer.group.send(1, np.ones(125_000))
        peer.mesh.tell_leave(0)
        closing = threading.Thread(target=peer.mesh.close)
        closing.start()
        eventually(lambda: peer.mesh._closing)
        for _ in range(10):
            time.sleep(0.01)
            peer.say(MAIL, "nobody reads this")
        frames = [entry for entry in peer.heard() if entry[0] != BEAT]
        assert [(kind, size) for kind, _, size in frames] == [(MAIL, 1_000_000), (LEAVE, 0)]
        peer.socket.close()
        closing.join(10)


def test_nothing_is_delivered_and_nobody_blamed_after_the_end():
    with Peer() as peer:
        closing = threading.Thread(target=peer.mesh.close, args=(1.0,))
        closing.start()
        eventually(lambda: peer.mesh._closing)
        with contextlib.suppress(ConnectionError):
            peer.say(ABORT, "too late")
            peer.socket.sendall(b"garbage" * 100)
        peer.socket.close()
        closing.join(5)
        assert peer.room.cause is None


def test_closing_does_not_wait_for_a_peer_that_hangs():
    with Peer(STEADY) as peer:
        peer.group.send(1, np.ones(4_000_000))
        start = time.monotonic()
        peer.mesh.close(0.3)
        assert 0.2 < time.monotonic() - start < 2.0


# TLS


@pytest.fixture(scope="module")
def contexts():
    pytest.importorskip("cryptography")
    from distributed.security import Security

    security = Security.temporary()
    return (
        security.get_listen_args("worker")["ssl_context"],
        security.get_connection_args("worker")["ssl_context"],
    )


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_tls_round_trips(contexts, ranks):
    size = sum(map(len, ranks))

    def rank(group):
        assert isinstance(workers.meshes[0]._links[1].socket, ssl.SSLSocket)
        for k in range(100):
            group.send((group.rank + 1) % size, np.full(k * 300, k))
            assert group.gather((group.rank, k)) == [(source, k) for source in range(size)]
            assert (group.recv((group.rank - 1) % size) == k).all()

    with Workers(ranks, contexts=contexts) as workers:
        workers.results(rank)


def test_tls_64_megabytes_both_ways_at_once(contexts):
    with Workers([[0], [1]], contexts=contexts) as workers:
        assert workers.results(both_ways) == [([0, 1], True)] * 2


def test_tls_strangers_are_dropped(contexts):
    with_strangers([b"", *STRANGERS.values()], contexts)


def test_tls_needs_certificates_of_this_cluster(contexts):
    workers = Workers([[0], [1]], contexts=contexts, limits=STEADY._replace(connect=1.0))
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    workers.meshes[1]._connect_context = stranger
    for thread in workers.start(0, 1):
        thread.join(5)
    assert sorted(workers.errors) == [0, 1]
    assert all(isinstance(error, PeerLost) for error in workers.errors.values())


def test_tls_what_was_decrypted_with_the_hello_is_not_forgotten(contexts):
    # One record: nothing more arrives that a select would tell of.
    greeting = b"".join(frame(MAIL, 0, 1, 0, "at once", 1 << 20))
    accept, call = contexts
    with Peer(STEADY, call, accept, greeting) as peer:
        start = time.monotonic()
        assert peer.group.recv(1) == "at once"
        assert time.monotonic() - start < 1.0


def test_tls_failures_end_all(contexts):
    def rank(group):
        group.gather(None)
        if group.rank == 1:
            raise KeyError("the root")
        group.gather(None)

    with Workers([[0], [1], [2]], contexts=contexts) as workers:
        causes = workers.causes(rank)
    assert "on worker 1: KeyError" in str(causes[0])
    assert "on worker 1: KeyError" in str(causes[2])


def test_tls_messages_sent_last_arrive(contexts):
    def rank(group):
        if group.rank == 1:
            group.send(0, np.ones(4_000_000))
            return None
        time.sleep(0.2)
        return group.recv(1).sum()

    with Workers([[0], [1]], contexts=contexts) as workers:
        assert workers.results(rank) == [4e6, None]
