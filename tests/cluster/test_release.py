"""The client's connection survives every run: nothing is cancelled that others still need."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client

from daskstrads import Program, RoundRobin, Sum, run
from daskstrads.engine.tasks_dask import Tasks


class Adds(Program):
    """Many rounds dealt ahead; rank 1 may raise in one of them."""

    def __init__(self, fails=-1):
        self.schedule, self.fails = RoundRobin(18, sweeps=1), fails

    def init(self, part, rank, size, rng):
        return [rank, np.zeros(12_800)]

    def push(self, shard, plan):
        if shard[0] and plan[0] == self.fails:
            raise ZeroDivisionError("as asked")
        return Sum(np.ones(12_800))

    def pull(self, shard, plan, received, sent):
        shard[1] = shard[1] + received


@pytest.mark.parametrize("transport", ["mesh", "tasks"])
@pytest.mark.parametrize("fails", [-1, 3, 15])
def test_the_scheduler_keeps_the_client(client, caplog, monkeypatch, transport, fails):
    # Client.cancel may end the client's own connection: it asserts that somebody wants all dependents.
    calls = []
    monkeypatch.setattr(Client, "cancel", lambda *given, **named: calls.append(given))
    held = client.submit(np.ones, 3, pure=False)
    before = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.clients))
    with caplog.at_level(logging.ERROR, "distributed.core"):
        for _ in range(3):
            if fails < 0:
                assert run(Adds(), [0, 1], transport=transport).shards[0][1][0] == 36.0
            else:
                with pytest.raises(ZeroDivisionError):
                    run(Adds(fails), [0, 1], transport=transport)
    assert not [record for record in caplog.records if "register-client" in record.getMessage()]
    assert client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.clients)) == before
    assert not calls
    assert held.result(timeout=10).sum() == 3


def test_of_rounds_submitted_at_once_the_one_that_is_waited_for_is_named():
    tasks = Tasks(SimpleNamespace(parts=[None], ranks=[[0]]), 1.0)
    done, going = SimpleNamespace(status="finished"), SimpleNamespace(status="pending")
    tasks.round = 32
    tasks.pending = [("push", 3, done), ("pull", 3, going), ("push", 4, going)]
    assert tasks._where() == ", in phase pull of round 3"
