"""The scheduler's handlers, called as workers and clients call them, on a scheduler in this process."""

import asyncio
import pickle
import threading
import time

import numpy as np
import pytest
from distributed.utils_test import gen_cluster

from daskstrads import DynamicPriority, Rotation, RoundRobin
from daskstrads.comm import codec
from daskstrads.comm.mesh_group import PeerLost
from daskstrads.engine.plugin_dask import RankPlugin
from daskstrads.schedule.plugin_dask import SessionPlugin, packed_policy

two_workers = gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, timeout=30)
three_workers = gen_cluster(nthreads=[("127.0.0.1", 1)] * 3, timeout=30)
with_client = gen_cluster(nthreads=[("127.0.0.1", 1)] * 2, client=True, timeout=30)


async def installed(s, *workers):
    """The plugins of the scheduler and of the workers, whose session "run" has a room that notes its end."""
    plugin = SessionPlugin()
    await s.register_scheduler_plugin(plugin, idempotent=True)
    heard = []
    for worker in workers:
        await worker.plugin_add(RankPlugin())
        worker.plugins[RankPlugin.name].rooms["run"] = heard.append
        worker.plugins[RankPlugin.name].ranks["run", 0] = "a rank"
    return plugin, heard


async def opened(plugin, workers, policy=None, *, session="run", client="somebody", ranks=None):
    ranks = tuple(map(tuple, ranks or [[place] for place in range(len(workers))]))  # as they arrive
    addresses = [worker.address for worker in workers]
    await plugin.open(session, client, addresses, ranks, 3, policy and packed_policy(policy))


def member(worker, place, **versions):
    told = {"numpy": "2.0", "python": "3.13"} | versions
    return {"worker": worker.address, "host": "10.0.0.1", "port": 9000 + place, "versions": told}


def started(awaitable):
    return asyncio.ensure_future(awaitable)


async def still_waits(*tasks):
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 5)


def plans(answer):
    return [codec.unpacked(plan) for plan in answer["plans"]]


def packed(**reports):
    return [(int(rank[1:]), codec.packed(report)) for rank, report in reports.items()]


@two_workers
async def test_join_waits_for_all_and_tells_all_the_same(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b])
    late = started(plugin.join("run", 1, member(b, 1), 10))
    await still_waits(late)
    assert (await plugin.status("run"))["joined"] == 1
    answer = await soon(plugin.join("run", 0, member(a, 0), 10))
    assert await soon(late) == answer
    assert answer["addresses"] == [("10.0.0.1", 9000), ("10.0.0.1", 9001)]
    assert len(answer["token"]) == 32
    assert answer["epoch"] == 1
    status = await plugin.status("run")
    assert status["joined"] == 2
    assert status["lost"] == []
    assert set(status["silent"]) == {a.address, b.address}
    assert all(-1 < seconds < 20 for seconds in status["silent"].values())
    await opened(plugin, [a, b], session="other")
    other = started(plugin.join("other", 1, member(b, 1), 10))
    assert (await soon(plugin.join("other", 0, member(a, 0), 10)))["token"] != answer["token"]
    await soon(other)


@two_workers
async def test_versions_that_differ_are_told_to_both(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b])
    first = started(plugin.join("run", 0, member(a, 0), 10))
    second = await soon(plugin.join("run", 1, member(b, 1, numpy="2.1"), 10))
    for answer in (await soon(first), second):
        assert "versions differ" in answer["trouble"]
        for text in (a.address, b.address, "numpy 2.0", "numpy 2.1"):
            assert text in answer["trouble"]
        assert not answer["deaf"]


@two_workers
async def test_who_did_not_start_in_time_is_named(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b])
    start = time.monotonic()
    answer = await soon(plugin.join("run", 0, member(a, 0), 0.2))
    assert time.monotonic() - start < 2
    assert "1 of 2 workers did not start their ranks within 0.2 s" in answer["trouble"]
    assert b.address in answer["trouble"]
    assert a.address not in answer["trouble"]
    assert "daskstrads.timeouts.start" in answer["trouble"]
    late = await soon(plugin.join("run", 1, member(b, 1), 10))
    assert late["trouble"] == answer["trouble"]


@two_workers
async def test_a_worker_without_a_port_ends_the_waiting(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b])
    first = started(plugin.join("run", 0, member(a, 0), 10))
    await still_waits(first)
    second = await soon(plugin.join("run", 1, member(b, 1) | {"deaf": "no port"}, 10))
    assert await soon(first) == second == {"trouble": "no port", "deaf": True}


@two_workers
async def test_nobody_knows_a_session_that_was_never_opened(s, a, b):
    plugin, _ = await installed(s)
    for answer in (
        await plugin.join("run", 0, member(a, 0), 10),
        await plugin.deal("run", 0, 0, [], False, 1),
    ):
        assert answer == {"trouble": "the session was ended"}
    assert await plugin.status("run") == {"joined": 0, "lost": [], "silent": {}}
    assert not await plugin.keep("run", {"x": [a.address]}, {"x": 8})
    await plugin.leave("run", [])
    await opened(plugin, [a, b])  # without a policy there is nothing to deal
    assert "trouble" in await soon(plugin.deal("run", 0, 0, [], False, 2))


@two_workers
async def test_a_plan_waits_for_the_fresh_reports_of_all_ranks(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], RoundRobin(2, tol=0.5), ranks=[[0, 2], [1]])
    for asker in (0, 1):
        answer = await soon(plugin.deal("run", asker, 0, [], True, 2))
        np.testing.assert_array_equal(plans(answer), [[0]])
        assert not answer["more"]
        assert answer["reports"] is None
    changes = [0.0, 0.7, 0.0, 0.1, 0.0]  # of rank 1: the first sweep moved, the second did not
    for round, change in enumerate(changes[:4], 1):
        first = started(plugin.deal("run", 0, round, packed(r0=0.1, r2=0.2), True, 2))
        await still_waits(first)
        second = await soon(plugin.deal("run", 1, round, packed(r1=change), False, 2))
        first = await soon(first)
        assert first["plans"] == second["plans"]
        assert [codec.unpacked(entry) for entry in first["reports"]] == [0.1, change, 0.2]
        assert second["reports"] is None
        if round < 4:
            np.testing.assert_array_equal(plans(first), [[round % 2]])
        else:
            assert plans(first) == [None]
            assert not first["more"]


@two_workers
async def test_old_reports_change_nothing(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], RoundRobin(2, tol=0.5))
    await soon(plugin.deal("run", 0, 0, [], False, 2))
    first = started(plugin.deal("run", 0, 1, packed(r0=0.1), False, 2))
    # Worker 1 still asks for the round before.
    again = await soon(plugin.deal("run", 1, 0, packed(r1=float("nan")), False, 2))
    np.testing.assert_array_equal(plans(again), [[0]])
    await still_waits(first)
    await soon(plugin.deal("run", 1, 1, packed(r1=0.2), False, 2))
    np.testing.assert_array_equal(plans(await soon(first)), [[1]])


@pytest.mark.parametrize("policy", [RoundRobin(3, sweeps=50, shuffled=True), Rotation(60)], ids=str)
@two_workers
async def test_plans_that_need_no_reports_are_dealt_ahead(s, a, b, policy):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], policy)
    alone, wanted = policy.begin(2, 3), []
    while not wanted or wanted[-1] is not None:
        wanted.append(alone(len(wanted), None))
    found = {0: [], 1: []}
    kept = 0
    while any(not each or each[-1] is not None for each in found.values()):
        for asker, each in found.items():
            if not each or each[-1] is not None:
                answer = await soon(plugin.deal("run", asker, len(each), [], True, 2))
                each += plans(answer)
                assert answer["reports"] is None
                assert answer["more"] == (each[-1] is not None)
                assert len(answer["plans"]) > 1 or each[-1] is None
        kept = max(kept, len(plugin.sessions["run"].deal.plans))
    for each in found.values():
        assert codec.packed(each) == codec.packed(wanted)
    assert len(wanted) > 120
    assert kept < 110  # old plans are forgotten


@two_workers
async def test_a_long_plan_is_no_reason_to_wait(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], RoundRobin(20_000, block=20_000, sweeps=3))
    answer = await soon(plugin.deal("run", 0, 0, [], False, 2))
    assert len(answer["plans"]) == 1  # larger than what is put into one answer
    assert answer["more"]
    assert len(plans(await soon(plugin.deal("run", 0, 1, [], False, 2)))[0]) == 20_000


@two_workers
async def test_an_error_of_the_policy_reaches_every_asker(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], RoundRobin(2, tol=0.5))
    await soon(plugin.deal("run", 0, 0, [], False, 2))
    first = started(plugin.deal("run", 0, 1, packed(r0=float("nan")), False, 2))
    await still_waits(first)
    second = started(plugin.deal("run", 1, 1, packed(r1=0.1), False, 2))
    for waiting in (first, second, started(plugin.deal("run", 1, 1, packed(r1=0.1), False, 2))):
        with pytest.raises(FloatingPointError, match="rank 0 reported a change of nan"):
            await soon(waiting)


@two_workers
async def test_policies_are_asked_off_the_event_loop(s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], RoundRobin(2, sweeps=1))
    deal, threads = plugin.sessions["run"].deal, []
    ask = deal.advance
    deal.advance = lambda: (threads.append(threading.current_thread()), ask())
    await soon(plugin.deal("run", 0, 0, [], False, 2))
    assert threads
    assert threading.current_thread() not in threads


class Own(RoundRobin):
    """A user's own class, though it is derived from a policy."""


class Evil:
    def __reduce__(self):
        return print, ("this runs on the scheduler",)


@two_workers
async def test_nothing_but_built_in_policies_is_made_on_the_scheduler(s, a, b):
    assert packed_policy(Own(3, sweeps=1)) is None
    assert packed_policy(lambda round, reports: None) is None
    assert packed_policy(DynamicPriority(3)) is not None
    plugin, _ = await installed(s)
    with pytest.raises(pickle.UnpicklingError, match="no part of a built-in policy"):
        await plugin.open("run", "somebody", [a.address], [[0]], 0, pickle.dumps(Evil()))
    assert not plugin.sessions


@three_workers
async def test_a_lost_worker_ends_its_sessions_alone(s, a, b, c):
    plugin, heard = await installed(s, a, b, c)
    gone = a.address
    await opened(plugin, [a, b], RoundRobin(2, tol=0.5))
    await opened(plugin, [b, c], RoundRobin(2, tol=0.5), session="other")
    joining = started(plugin.join("run", 1, member(b, 1), 20))
    other = started(plugin.join("other", 0, member(b, 0), 20))
    await soon(plugin.deal("run", 1, 0, [], False, 2))
    dealing = started(plugin.deal("run", 1, 1, packed(r1=0.1), False, 2))
    await still_waits(joining, dealing, other)
    assert plugin.sessions["run"].epoch == 1
    await soon(a.close())
    wanted = rf"worker 0 with rank(s) [0] is lost: {gone} left the cluster"
    assert (await soon(joining))["trouble"] == wanted
    assert (await soon(dealing))["trouble"] == wanted
    await still_waits(other)
    assert plugin.sessions["run"].epoch == 2
    assert plugin.sessions["other"].epoch == 1
    status = await plugin.status("run")
    assert status["lost"] == [gone]
    assert set(status["silent"]) == {b.address}
    assert (await soon(plugin.join("run", 0, member(b, 0), 10)))["trouble"] == wanted
    assert (await soon(plugin.deal("run", 1, 1, packed(r1=0.1), False, 2)))["trouble"] == wanted
    told = [error for error in heard if isinstance(error, PeerLost)]
    while not told:  # its own plugin says goodbye, the scheduler tells worker b
        await asyncio.sleep(0.01)
        told = [error for error in heard if isinstance(error, PeerLost)]
    assert str(told[0]) == wanted
    assert not b.plugins[RankPlugin.name].ranks
    assert c.plugins[RankPlugin.name].ranks
    await soon(plugin.join("other", 1, member(c, 1), 10))
    assert "trouble" not in await soon(other)


@with_client
async def test_sessions_end_with_their_client(client, s, a, b):
    plugin, heard = await installed(s, a, b)
    await opened(plugin, [a, b], client=client.id)
    await opened(plugin, [a, b], session="other")
    joining = started(plugin.join("run", 1, member(b, 1), 20))
    other = started(plugin.join("other", 1, member(b, 1), 20))
    await still_waits(joining, other)
    await client.close()
    assert (await soon(joining))["trouble"] == "the client of this run has gone"
    await still_waits(other)
    assert set(plugin.sessions) == {"other"}
    while len(heard) < 2:
        await asyncio.sleep(0.01)
    assert {str(error) for error in heard} == {"the client of this run has gone"}
    assert not await plugin.keep("run", {"x": [a.address]}, {"x": 8})
    await plugin.leave("other", [])
    await soon(other)


@two_workers
async def test_leaving_ends_a_session_and_tells_its_workers(s, a, b):
    plugin, heard = await installed(s, a, b)
    await opened(plugin, [a, b], RoundRobin(2, tol=0.5))
    joining = started(plugin.join("run", 1, member(b, 1), 20))
    await soon(plugin.deal("run", 1, 0, [], False, 2))
    dealing = started(plugin.deal("run", 1, 1, packed(r1=0.1), False, 2))
    await still_waits(joining, dealing)
    await plugin.leave("run", [])
    assert (await soon(joining))["trouble"] == "the session was ended"
    assert (await soon(dealing))["trouble"] == "the session was ended"
    assert not plugin.sessions
    while len(heard) < 2:
        await asyncio.sleep(0.01)
    assert all(isinstance(error, PeerLost) and "ended" in str(error) for error in heard)
    assert not a.plugins[RankPlugin.name].ranks
    await plugin.leave("run", [])  # once more does no harm


@with_client
async def test_kept_results_belong_to_the_client_once_it_knows_them(client, s, a, b):
    plugin, _ = await installed(s)
    await opened(plugin, [a, b], client=client.id)
    for worker, key in ((a, "known"), (b, "unknown")):
        told = worker.update_data(data={key: 5})
        assert await plugin.keep("run", {key: [worker.address]}, told["nbytes"])
    assert {key for key, task in s.tasks.items() if task.state == "memory"} == {"known", "unknown"}
    await plugin.leave("run", ["known"])
    assert set(s.tasks) == {"known"}
    end = time.monotonic() + 5
    while b.data and time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert not b.data
    assert dict(a.data) == {"known": 5}


@three_workers
async def test_members_of_a_session_are_not_scaled_down(s, a, b, c):
    plugin, _ = await installed(s)
    everybody = {a.address, b.address, c.address}
    assert set(s.workers_to_close(n=3)) == everybody
    await opened(plugin, [a, b])
    assert set(s.workers_to_close(n=3)) == {c.address}
    await opened(plugin, [b, c], session="other")
    assert not s.workers_to_close(n=3)
    await plugin.leave("run", [])
    assert set(s.workers_to_close(n=3)) == {a.address}
    await plugin.leave("other", [])
    assert set(s.workers_to_close(n=3)) == everybody
