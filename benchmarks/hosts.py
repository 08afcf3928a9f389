"""Emulated hosts: network namespaces joined by a bridge, with links of a given rate; needs root, ip, tc."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NET = "10.79.0"
_NUMBER = itertools.count()
BURST = "64kb"  # what a link lets pass at once


def why_not() -> str | None:
    """Why there can be no emulated hosts here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian: iproute2)"
    made = subprocess.run(["ip", "netns", "add", f"probe{os.getpid()}"], capture_output=True, check=False)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "delete", f"probe{os.getpid()}"], check=True)
    return None


class Hosts:
    """`count` namespaces with addresses NET.1, NET.2, ... and links that can be slowed down."""

    def __init__(self, count: int):
        own = f"b{os.getpid()}n{next(_NUMBER)}"  # the kernel takes its time to let a name go
        self.names = [f"{own}h{host}" for host in range(count)]
        self.bridge, self.here = f"{own}br", own

    def build(self) -> None:
        """Make them."""
        self._ip("netns", "add", self.bridge)
        self._ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self.bridge, "link", "set", "bridge", "up")
        # One end is here, so that a client in this process reaches the hosts.
        here = ["link", "add", "port", "type", "veth", "peer", "name", self.here, "netns", str(os.getpid())]
        self._ip("-n", self.bridge, *here)
        self._ip("-n", self.bridge, "link", "set", "port", "master", "bridge", "up")
        self._ip("address", "add", f"{NET}.254/24", "dev", self.here)
        self._ip("link", "set", self.here, "up")
        for host, name in enumerate(self.names):
            self._ip("netns", "add", name)
            ends = ["link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", name]
            self._ip("-n", self.bridge, *ends)
            self._ip("-n", self.bridge, "link", "set", f"port{host}", "master", "bridge", "up")
            self._ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in "lo", "eth0":
                self._ip("-n", name, "link", "set", device, "up")

    def shape(self, rate: str) -> None:
        """Limit both directions of every link to `rate`, as tc writes it: 100mbit."""
        for host, name in enumerate(self.names):
            for where, device in (name, "eth0"), (self.bridge, f"port{host}"):
                limit = ["tbf", "rate", rate, "burst", BURST, "latency", "20ms"]
                command = ["ip", "netns", "exec", where, "tc", "qdisc", "replace", "dev", device, "root"]
                subprocess.run([*command, *limit], check=True)

    def address(self, host: int) -> str:
        """Of a host."""
        return f"{NET}.{host + 1}"

    def start(self, host: int, command: list[str], **options) -> subprocess.Popen:
        """Run a command on a host."""
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], **options)

    def remove(self) -> None:
        """End what runs on them, and the hosts."""
        subprocess.run(["ip", "link", "delete", self.here], capture_output=True, check=False)
        for name in (*self.names, self.bridge):
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for number in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def emulated(count: int, rate: str) -> Iterator[Hosts]:
    """`count` hosts with links of `rate`."""
    hosts = Hosts(count)
    try:
        hosts.build()
        hosts.shape(rate)
        yield hosts
    finally:
        hosts.remove()


@contextlib.contextmanager
def dask_on(hosts: Hosts) -> Iterator[str]:
    """A scheduler on the first host and a worker of one thread on each; the scheduler's address."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    address = f"tcp://{hosts.address(0)}:8786"
    place = ["--host", hosts.address(0), "--port", "8786"]
    running = [hosts.start(0, ["dask", "scheduler", *place, "--no-dashboard"], **quiet)]
    time.sleep(1.5)
    # Workers import what the client has in its folder; Dask's sampling of stacks, 100 times a second in
    # eight processes on a few cores, is left off.
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(folders), "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    quiet |= {"env": {**os.environ, **settings}}
    options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
    for host in range(len(hosts.names)):
        command = ["dask", "worker", address, "--host", hosts.address(host), *options]
        running.append(hosts.start(host, command, **quiet))
    try:
        yield address
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
