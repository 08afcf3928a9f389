"""A cluster of three hosts, each a network namespace: nothing is shared but the network between them."""

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTS = 3
NET = "10.78.0"
SCHEDULER = f"tcp://{NET}.1:8786"
CUT = 12.0  # seconds from a cut to the client's error: silence, and grace for the others

BITS = """
import numpy as np
from distributed import Client

from daskstrads import Lasso, Sum, launch
from daskstrads.engine.exchange import exchange
from daskstrads.sparse_reduce import Stream, allreduce
from daskstrads.sparse_reduce.collectives import ALGORITHM_NAMES


def everything(group, seed):
    rng = np.random.default_rng(seed)
    sums = Sum(rng.standard_normal(20_000)), Sum(rng.standard_normal(50))
    parts = list(exchange(sums, group, 0, lambda checksums: None))
    index = np.flatnonzero(rng.random(300_000) < 0.05)
    stream = Stream.from_coo(index, rng.standard_normal(index.size), 300_000)
    for name in ALGORITHM_NAMES:
        parts += [allreduce(stream, group, name, compress=narrow).dense() for narrow in (False, True)]
    return np.concatenate([*parts, *group.gather(rng.standard_normal(5))])


def answers():
    found = launch(everything, range(HOSTS))
    rng = np.random.default_rng(0)
    for shape in (60, 300), (600, 40):  # split by columns, by rows
        X = rng.standard_normal(shape)
        model = Lasso(0.05, n_shards=HOSTS).fit(X, X[:, :4].sum(axis=1) + rng.standard_normal(shape[0]))
        found += [model.coef_, model.intercept_, model.dual_gap_]
    return found


if __name__ == "__main__":
    with Client(SCHEDULER, timeout=20) as client:
        client.wait_for_workers(HOSTS, timeout=30)
        hosts = {worker["host"] for worker in client.scheduler_info()["workers"].values()}
        there = answers()
    same = [np.array_equal(far, near) for far, near in zip(there, answers(), strict=True)]
    print(json.dumps({"hosts": sorted(hosts), "same": same}))
"""

LOSS = """
import itertools
import time
from pathlib import Path

import numpy as np
from distributed import Client

from daskstrads import launch
from daskstrads.comm.mesh_group import PeerLost
from daskstrads.sparse_reduce import allreduce


def endless(group, flag):
    for number in itertools.count():
        allreduce(np.ones(1000), group)
        if number == 20 and group.rank == 0:
            Path(flag).touch()


def short(group, part):
    return float(allreduce(np.ones(1), group)[0])


if __name__ == "__main__":
    with Client(SCHEDULER, timeout=20) as client:
        client.wait_for_workers(HOSTS, timeout=30)
        try:
            launch(endless, ["running"] * HOSTS)
        except PeerLost as error:
            print(json.dumps({"text": str(error), "when": time.monotonic()}), flush=True)
        input()  # the host is back
        client.wait_for_workers(HOSTS, timeout=30)
        print(json.dumps(launch(short, range(HOSTS))))
"""

PARTED = """
from distributed import Client

from daskstrads import launch
from daskstrads.comm.mesh_group import PeerLost

if __name__ == "__main__":
    with Client(SCHEDULER, timeout=20) as client:
        client.wait_for_workers(HOSTS, timeout=30)
        try:
            launch(lambda group, part: group.gather(part), range(HOSTS))
        except PeerLost as error:
            print(str(error), flush=True)
"""


class Network:
    """Namespaces `<name>0`, `<name>1`, ... with addresses NET.1, NET.2, ..., on a bridge in one more."""

    def __init__(self, stack, home):
        self.stack, self.home = stack, home
        self.bridge = f"{unique()}-bridge"
        self.names = [self.bridge.replace("bridge", str(host)) for host in range(HOSTS)]

    def build(self):
        self.add(self.bridge)
        ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            self.add(name)
            ends = f"link add port{host} type veth peer name eth0 netns {name}"
            ip("-n", self.bridge, *ends.split())
            ip("-n", self.bridge, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{NET}.{host + 1}/24", "dev", "eth0")
            for device in "lo", "eth0":
                ip("-n", name, "link", "set", device, "up")

    def add(self, name):
        ip("netns", "add", name)
        self.stack.callback(self.remove, name)

    def remove(self, name):
        for number in ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        ip("netns", "delete", name)

    def plug(self, host, state):
        """Put a host's cable in ("up") or pull it out ("down")."""
        ip("-n", self.bridge, "link", "set", f"port{host}", state)
        if state == "up":
            end = time.monotonic() + 10
            while "state UP" not in ip("-n", self.names[host], "link", "show", "eth0"):
                assert time.monotonic() < end, f"host {host} does not see its cable"
                time.sleep(0.05)
            for name in self.names:  # who could not be found a moment ago must be asked for again
                ip("-n", name, "neigh", "flush", "dev", "eth0")

    def part(self, *hosts):
        """Keep these hosts from reaching each other, as a firewall would; the others reach them all."""
        for host in hosts:
            ip("-n", self.bridge, "link", "set", f"port{host}", "type", "bridge_slave", "isolated", "on")

    def start(self, host, *command, **pipes):
        """Run a Python command on a host until the end of the test."""
        options = {"PYTHONPATH": str(ROOT), "DASK_TEMPORARY_DIRECTORY": str(self.home)}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, *command],
            env=os.environ | options,
            cwd=self.home,
            text=True,
            **pipes,
        )
        self.stack.callback(stop, process)
        return process

    def script(self, text):
        """Run a client on host 0; its output and input are pipes, its errors go to a file."""
        names = f"import json\n\nHOSTS, SCHEDULER = {HOSTS}, {SCHEDULER!r}\n"
        (self.home / "client.py").write_text(names + text)
        errors = self.stack.enter_context((self.home / "client.log").open("w"))
        return self.start(0, "client.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def logs(self):
        return "".join(f"\n{path.name}:\n{path.read_text()[-3000:]}" for path in self.home.glob("*.log"))


numbers = itertools.count()


def unique():
    return f"ds{os.getpid()}-{next(numbers)}"


def ip(*command):
    done = subprocess.run(["ip", *command], capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise OSError(f"ip {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def stop(process):
    with process:  # closes its pipes and waits
        process.kill()  # what is cut off would wait for its peers


def line(process, seconds, network):
    """The next line that a process prints."""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, f"nothing said for {seconds:g} s: {network.logs()}"
    return process.stdout.readline() or pytest.fail(f"it has ended: {network.logs()}")


@pytest.fixture
def network(tmp_path):
    """Three hosts with a worker each, the scheduler on host 0."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("no ip: Debian has it in iproute2")
    with contextlib.ExitStack() as stack:
        network = Network(stack, tmp_path)
        try:
            network.build()
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        scheduler = ["distributed.cli.dask_scheduler", "--host", f"{NET}.1", "--port", "8786"]
        start_module(network, stack, 0, "scheduler", scheduler)
        for host in range(HOSTS):
            worker = ["distributed.cli.dask_worker", SCHEDULER, "--host", f"{NET}.{host + 1}"]
            worker += ["--nthreads", "1", "--no-nanny", "--memory-limit", "1GiB"]
            start_module(network, stack, host, f"worker{host}", worker)
        yield network
    left = [name for name in ip("netns", "list").split() if name in (network.bridge, *network.names)]
    assert not left


def start_module(network, stack, host, name, command):
    log = stack.enter_context((network.home / f"{name}.log").open("w"))
    network.start(host, "-m", *command, "--no-dashboard", stdout=log, stderr=log)


@pytest.mark.timeout(100)
def test_fits_and_exchanges_over_three_hosts_have_the_bits_of_threads(network):
    client = network.script(BITS)
    out, _ = client.communicate(timeout=80)
    assert client.returncode == 0, network.logs()
    found = json.loads(out)
    assert found["hosts"] == [f"{NET}.{host + 1}" for host in range(HOSTS)]
    assert found["same"] == [True] * (HOSTS + 6)


@pytest.mark.timeout(100)
def test_a_host_cut_off_is_one_clear_error_in_seconds_and_the_next_run_with_it_works(network):
    client = network.script(LOSS)
    end = time.monotonic() + 40
    while not (network.home / "running").exists():
        assert client.poll() is None, network.logs()
        assert time.monotonic() < end, network.logs()
        time.sleep(0.05)
    cut = time.monotonic()
    network.plug(2, "down")
    told = json.loads(line(client, CUT + 10, network))
    assert "worker 2 with rank(s) [2] is lost" in told["text"]
    assert told["when"] - cut < CUT
    network.plug(2, "up")
    client.stdin.write("\n")
    client.stdin.flush()
    assert json.loads(line(client, 40, network)) == [float(HOSTS)] * HOSTS
    assert client.wait(20) == 0, network.logs()


@pytest.mark.timeout(100)
def test_workers_that_cannot_reach_each_other_are_one_error_that_names_both(network):
    network.part(1, 2)
    told = line(network.script(PARTED), 70, network)
    assert "worker 1" in told
    assert "worker 2" in told or "worker(s) [2]" in told
