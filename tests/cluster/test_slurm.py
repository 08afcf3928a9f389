"""The Slurm example on a real Slurm of one node, whose daemons are children of the test."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAEMONS = "munged", "slurmctld", "slurmd"
START = 20.0  # seconds for a daemon to answer
STOP = 10.0  # seconds for one to end when asked to

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=3
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=one Nodes={host} Default=YES State=UP
"""


@pytest.fixture
def slurm(tmp_path_factory):
    """Environment for Slurm's commands."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")
    missing = [name for name in (*DAEMONS, "sbatch") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: Debian has them in slurmctld, slurmd, slurm-client and munge")
    if importlib.util.find_spec("dask_jobqueue") is None:  # not imported: it writes to the user's settings
        pytest.skip("no dask_jobqueue, which submits the jobs: pip install dask-jobqueue")
    home = tmp_path_factory.mktemp("slurm")  # short: a socket's path has room for 107 characters
    with contextlib.ExitStack() as stack:
        stack.callback(end_all, home)
        yield started(home, stack)


def started(home, stack):
    for name in ("state", "spool"):
        (home / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    (home / "slurm.conf").write_text(CONF.format(home=home, host=host, ports=free_ports(2)))
    key = home / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    environment = os.environ | {"SLURM_CONF": str(home / "slurm.conf")}

    def up(command, answers):
        daemon = stack.enter_context(running(command, environment, home / f"{command[0]}.log"))
        end = time.monotonic() + START
        while not answers():
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.fail(
                    f"{command[0]} did not come up: {(home / f'{command[0]}.log').read_text()[-3000:]}"
                )
            time.sleep(0.1)

    def told(*command):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START)
        return done.stdout.split() if done.returncode == 0 else []

    munge = [f"--{name}={home}/munge.{end}" for name, end in MUNGE.items()]
    up(["munged", "--foreground", "--force", *munge], (home / "munge.socket").exists)
    up(["slurmctld", "-D"], lambda: "UP" in told("scontrol", "ping"))
    up(["slurmd", "-D", "-N", host], lambda: told("sinfo", "--noheader", "--format=%t") == ["idle"])
    return environment


MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def free_ports(count):
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in taken]


@contextlib.contextmanager
def running(command, environment, log):
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP)
            except subprocess.TimeoutExpired:
                process.kill()


def processes_of(home):
    """Processes that were started with this Slurm's configuration: its daemons, their steps, its jobs."""
    mark = f"SLURM_CONF={home}/".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    return found


def end_all(home):
    """Kill what is left once the daemons have ended: nothing, unless the test has failed."""
    end = time.monotonic() + STOP
    while (left := processes_of(home)) and time.monotonic() < end:
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)


@pytest.mark.timeout(150)
def test_example_fits_in_slurm_jobs_with_the_bits_of_threads_and_leaves_nothing(slurm, tmp_path):
    home = Path(slurm["SLURM_CONF"]).parent
    daemons = set(processes_of(home))
    environment = slurm | {
        "PYTHONPATH": str(ROOT),
        "DASK_CONFIG": str(tmp_path),  # dask_jobqueue writes a file there
        "DASK_TEMPORARY_DIRECTORY": str(tmp_path),
    }
    options = "--interface=lo", "--memory=1GiB", "--rows=600", "--features=2000", "--wait=60", "--compare"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "slurm_lasso.py", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + logs
    assert "jobs: 2, ranks: 2," in done.stdout
    assert "coefficients that differ from a fit here: 0\n" in done.stdout
    gap = float(done.stdout.partition("gap / P(0): ")[2].split()[0])
    assert 0 <= gap <= 1e-5

    end = time.monotonic() + STOP
    while time.monotonic() < end and processes_of(home).keys() != daemons:
        time.sleep(0.1)
    assert processes_of(home).keys() == daemons, "jobs or their slurmstepd are still there"
