"""Clusters where something is not installed as it should be, and Dask's configuration."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client

import daskstrads
from daskstrads import launch, run
from daskstrads.engine.options_dask import Options

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "daskstrads":
            raise ModuleNotFoundError("No module named 'daskstrads'", name="daskstrads")

sys.meta_path.insert(0, Without())
"""


@contextlib.contextmanager
def processes(tmp_path, lacking="none"):
    """A scheduler and a worker as processes of their own, one of which cannot import daskstrads.

    The worker finds modules in tmp_path as well.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    file = tmp_path / "scheduler.json"
    started = []
    try:
        for what, options in (
            ("scheduler", ["--port", "0", "--no-dashboard", "--scheduler-file", str(file)]),
            ("worker", ["--scheduler-file", str(file), "--no-nanny", "--no-dashboard", "--nthreads", "1"]),
        ):
            found = tmp_path / "site" if what == lacking else Path(daskstrads.__file__).parents[1]
            path = [str(found), str(tmp_path)][: 2 if what == "worker" else 1]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
            command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options]
            started.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    cwd=tmp_path,
                    stderr=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
            end = time.monotonic() + 60
            while not file.exists() and time.monotonic() < end:
                time.sleep(0.05)
        yield str(file)
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait(10)


@pytest.mark.parametrize("lacking", ["scheduler", "worker"])
def test_a_process_without_the_package_is_named_with_the_remedy(tmp_path, lacking):
    with processes(tmp_path, lacking) as file, Client(scheduler_file=file) as client:
        client.wait_for_workers(1, timeout=60)
        with pytest.raises(
            RuntimeError, match=rf"{lacking} cannot load daskstrads.*install the same version"
        ):
            launch(lambda group, part: part, [0])


PROGRAM = """
from daskstrads import Program, RoundRobin, Sum

class Theirs(Program):
    schedule = RoundRobin(2, sweeps=1)

    def init(self, part, rank, size, rng):
        return [part]

    def push(self, shard, plan):
        return Sum(float(shard[0]))

    def pull(self, shard, plan, received, sent):
        shard.append(received)
"""


@pytest.mark.parametrize("transport", ["mesh", "tasks"])
def test_the_scheduler_needs_no_module_of_the_users(tmp_path, monkeypatch, transport):
    (tmp_path / "theirs.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    from theirs import Theirs

    with processes(tmp_path) as file, Client(scheduler_file=file) as client:
        client.wait_for_workers(1, timeout=60)
        assert run(Theirs(), [1.0, 2.0], transport=transport).shards[1] == [2.0, 3.0, 3.0]


def test_ports_of_the_configuration_are_those_that_are_used(client):
    def ports(group, part):
        [link] = group._mesh._links.values()
        both = link.socket.getsockname()[1], link.socket.getpeername()[1]
        group.gather(None)  # nobody leaves before all have looked
        return both

    with dask.config.set({"daskstrads.ports": "23451-23460"}):
        for both in launch(ports, [0, 1]):
            assert any(23451 <= port <= 23460 for port in both)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeouts.start", "soon"),
        ("timeouts.connect", 0),
        ("timeouts.silence", "1s"),
        ("heartbeat", -1),
        ("ports", "http"),
        ("ports", "9000-80"),
        ("ports", 70_000),
        ("transport", "pigeon"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(key, value):
    with (
        dask.config.set({f"daskstrads.{key}": value}),
        pytest.raises(ValueError, match=f"daskstrads.{key}"),
    ):
        Options.read()


def test_settings_are_read_where_they_are_set():
    with dask.config.set(
        {"daskstrads.timeouts.silence": "5s", "daskstrads.heartbeat": "500ms", "daskstrads.ports": 9000}
    ):
        options = Options.read()
    assert (options.silence, options.beat, options.ports) == (5.0, 0.5, (9000, 9000))
    assert (options.limits.silence, options.limits.beat) == (5.0, 0.5)
    assert Options.read().ports is None


def test_workers_that_come_later_warm_up(client):
    class Warms:
        schedule = staticmethod(lambda round, reports: None)
        replicas = ()

        def init(self, part, rank, size, rng):
            return part

        def push(self, shard, plan):
            return None

        def pull(self, shard, plan, received, sent):
            return None

        @staticmethod
        def warm():
            import os

            os.environ["DASKSTRADS_TEST_WARM"] = "yes"

    assert run(Warms(), [np.ones(2), 1]).rounds == 0

    def state():
        return os.environ.get("DASKSTRADS_TEST_WARM")

    end = time.monotonic() + 10
    while set(client.run(state).values()) != {"yes"} and time.monotonic() < end:
        time.sleep(0.05)
    assert set(client.run(state).values()) == {"yes"}
    client.unregister_worker_plugin("daskstrads-warm-" + Warms.__qualname__)
