"""Starts the ranks of `allreduce_peers.py`, here or on emulated hosts."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from hosts import Hosts

SCRIPT = str(Path(__file__).with_name("allreduce_peers.py"))
PATIENCE = 1800  # seconds


def peers(
    python: str, cells: list, how: tuple, ranks: int, hosts: Hosts | None
) -> tuple[list[dict[str, float]], list[str]]:
    """{peer: ms} of every cell, and why peers are missing."""
    found: list[dict[str, float]] = [{} for _ in cells]
    missing = []
    for name, run in (("gloo", _gloo), ("mpi", _mpi)):
        try:
            for cell, more in zip(found, run(python, cells, how, ranks, hosts), strict=True):
                cell |= more
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            missing.append(f"{name}: {str(error)[-300:]}")
    return found, missing


def _arguments(kind: str, rank: int, ranks: int, address: str, cells: list, how: tuple) -> list[str]:
    return [SCRIPT, kind, str(rank), str(ranks), address, json.dumps(cells), *map(str, how)]


def _gloo(python: str, cells: list, how: tuple, ranks: int, hosts: Hosts | None) -> list[dict[str, float]]:
    address = hosts.address(0) if hosts else "127.0.0.1"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0" if hosts else "lo", "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(ranks):
        command = [python, *_arguments("gloo", rank, ranks, address, cells, how)]
        options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(
            hosts.start(rank, command, **options) if hosts else subprocess.Popen(command, **options)
        )
    try:
        out, err = running[0].communicate(timeout=PATIENCE)
        if running[0].returncode:
            raise RuntimeError(err)
        return json.loads(out.splitlines()[-1])
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _mpi(python: str, cells: list, how: tuple, ranks: int, hosts: Hosts | None) -> list[dict[str, float]]:
    mpiexec = str(Path(python).with_name("mpiexec"))
    # Every rank counts as a machine of its own: no shared memory between emulated hosts.
    environment = {**os.environ, "MPIR_CVAR_NOLOCAL": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"UCX_TLS": "tcp", "FI_PROVIDER": "tcp"}  # whichever MPICH was built with
    inner = [python, *_arguments("mpi", 0, ranks, "-", cells, how)]
    with tempfile.TemporaryDirectory() as folder:
        if hosts is None:
            command = [mpiexec, "-n", str(ranks), *inner]
        else:
            environment |= {"UCX_NET_DEVICES": "eth0", "FI_TCP_IFACE": "eth0"}
            places = [hosts.address(rank) for rank in range(ranks)]
            remote = Path(folder, "remote")
            remote.write_text(_remote(hosts, places))
            remote.chmod(remote.stat().st_mode | stat.S_IXUSR)
            launcher = ["-launcher", "ssh", "-launcher-exec", str(remote), "-hosts", ",".join(places)]
            here = ["ip", "netns", "exec", hosts.names[0], mpiexec, "-localhost", places[0]]
            command = [*here, *launcher, "-ppn", "1", "-n", str(ranks), *inner]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


def _remote(hosts: Hosts, places: list[str]) -> str:
    """What MPICH calls instead of ssh: its last arguments are the address and the command."""
    cases = "\n".join(f"  {place}) name={name};;" for place, name in zip(places, hosts.names, strict=False))
    return f"""#!/bin/sh
while case "$1" in -*) true;; *) false;; esac; do shift; done
case "$1" in
{cases}
esac
shift
exec ip netns exec "$name" sh -c "$*"
"""
