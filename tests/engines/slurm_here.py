"""A cluster of Slurm with two nodes or more on this host: munged, slurmctld and two slurmd of its own, up after some 2 s."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
FREEZER = Path("/sys/fs/cgroup/freezer")  #: of cgroup v1
CONFIGURATION = """\
ClusterName=stoker{number}
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={port}
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
KillWait=30
MinJobAge=300
SlurmdTimeout=20
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE DefaultTime=5 State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
CGROUPS = (
    "CgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin={}\nConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n"
)


def why_not() -> str | None:
    """Why there can be no Slurm here; None: there can."""
    if lacking := [tool for tool in PROGRAMS if shutil.which(tool) is None]:
        return f"there is no program {lacking[0]} (Debian: apt-get install --no-install-recommends slurm-wlm munge)"
    return None if os.geteuid() == 0 else "slurmd needs root"


class Slurm:
    """While it lives, Slurm's commands of this process and its children speak to it: SLURM_CONF is set."""

    def __init__(self, folder: Path, letters: str) -> None:
        self.folder = folder
        self.nodes = [f"{letter}{os.getpid()}" for letter in letters]  # cgroups are named after them: of two clusters here they must differ
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 RealMemory=500 State=UNKNOWN"
            for name in self.nodes
        ]
        told = {"number": os.getpid(), "host": host, "folder": folder, "port": free_port()}
        text = CONFIGURATION.format(**told, nodes="\n".join(nodes), names=",".join(self.nodes))
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text(CGROUPS.format("cgroup/v1" if FREEZER.exists() else "autodetect"))
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)

    def start(self) -> None:
        files = [f"--{name}={self.folder}/munge{end}" for name, end in (("key-file", ".key"), ("socket", ".sock"), ("pid-file", ".pid"),
                                                                       ("log-file", ".log"), ("seed-file", ".seed"))]  # fmt: skip
        self.launch("munged", "--foreground", "--force", *files)
        self._await((self.folder / "munge.sock").exists)
        configuration = f"{self.folder}/slurm.conf"
        self.launch("slurmctld", "-D", "-c", "-f", configuration)
        for name in self.nodes:
            self.launch("slurmd", "-D", "-f", configuration, "-N", name)
        os.environ["SLURM_CONF"] = configuration
        self._await(lambda: {state for _, state in self.states()} == {"idle"} and len(self.states()) == len(self.nodes))

    def launch(self, *argv: str) -> None:
        with open(self.folder / f"{argv[0]}.out", "ab") as log:
            self.processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _await(self, what: Any) -> None:
        end = time.monotonic() + 20
        while not what():
            dead = [process for process in self.processes if process.poll() is not None]
            if dead or time.monotonic() > end:
                said = "".join(path.read_text()[-400:] for path in sorted(self.folder.glob("*.out")))
                pytest.skip(f"Slurm does not start here: {' '.join(said.split())}")
            time.sleep(0.05)

    def states(self) -> list[tuple[str, str]]:
        """Nodes with what Slurm says of them."""
        told = self.ask("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%N %T", check=False)
        return [(name, state) for name, state in (line.split() for line in told.splitlines())]

    def ask(self, *argv: str, check: bool = True) -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=check, timeout=60).stdout

    def jobs(self) -> dict[int, tuple[str, str]]:
        """State and node of every job."""
        rows = json.loads(self.ask("squeue", "--json", "--states=all"))["jobs"]
        return {row["job_id"]: (row["job_state"], row["nodes"]) for row in rows}

    def running(self) -> list[tuple[int, str]]:
        """Jobs that run, with their nodes."""
        return [(job, node) for job, (state, node) in sorted(self.jobs().items()) if state == "RUNNING"]

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.ask("scancel", "--user=root")
            self.ask("scancel", "--user=root", "--signal=KILL", "--full")
            end = time.monotonic() + 10
            while time.monotonic() < end and any(state in ("RUNNING", "COMPLETING") for state, _ in self.jobs().values()):
                time.sleep(0.1)
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.environ.pop("SLURM_CONF", None)
        for name in self.nodes:
            for path in sorted(FREEZER.glob(f"slurm_{name}/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()


@contextlib.contextmanager
def slurm(folder: Path, letters: str = "ab") -> Iterator[Slurm]:
    """``letters``: of each node one."""
    if (why := why_not()) is not None:
        pytest.skip(f"no Slurm here: {why}")
    folder.mkdir()
    cluster = Slurm(folder, letters)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
