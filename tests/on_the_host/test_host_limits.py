"""`host: {memory, cpus}` with real processes: a leak is told before it ends the job, and no other; cores are those that were asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from spec_as_yaml import dump
from stoker.engine.errors import UsageError
from stoker.engine.spec.build import Context
from stoker.engine.spec.reading.load import load_text
from stoker.runners.lease import host_limits
from stoker.runners.lease.host_limits import HostLimits, NotHere, _group
from stoker.runners.lease.rundir import RunDir
from waiting import patient

MIB = 1 << 20


def supervised(home: Path, code: str, lease: int = 1, **host: int) -> tuple[dict[str, Any], str]:
    """The last word and the log of a Python program that runs under a supervisor with limits of the host."""
    run = RunDir(home, job=1, lease=lease)
    run.path.mkdir(parents=True)
    env = {**os.environ, "STOKER_TAG": run.tag, "STOKER_LEASE_ID": str(lease), "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, "-S", "-c", textwrap.dedent(code)]
    launch = {"argv": argv, "env": env, "cwd": str(home), "log_limit": MIB, "kill_wait": 5.0, "host": host}
    command = [sys.executable, "-I", "-m", "stoker.runners.lease.supervisor", str(run.path)]
    subprocess.run(command, input=json.dumps(launch).encode(), check=True, timeout=patient(60))
    word: dict[str, Any] = run.read("exit.json")
    return word, run.log.read_text()


def test_a_leak_is_told_before_it_ends_the_job(tmp_path: Path) -> None:
    leak = """
        import time
        kept = []
        for _ in range(400):
            kept.append(b"x" * (8 << 20))
            time.sleep(0.12)
    """
    word, log = supervised(tmp_path, leak, memory=160 * MIB)
    assert word["outcome"] == "oom"
    assert word["message"].startswith("it took ") and "and host.memory is 160 MiB: raise it, or use fewer loader workers" in word["message"]
    first, told, ended = (line for line in log.splitlines() if line.startswith("stoker: host"))
    assert first.startswith("stoker: host: memory 160 MiB, kept by ") and "of 160 MiB now; beyond that it is ended" in told
    assert ended.endswith(": it is ended")


def test_memory_is_that_of_all_its_processes(tmp_path: Path) -> None:
    children = """
        import subprocess, sys
        own = "x = b'x' * (80 << 20)\\nimport time\\ntime.sleep(30)"
        for child in [subprocess.Popen([sys.executable, "-S", "-c", own]) for _ in range(3)]:
            child.wait()
    """
    word, _ = supervised(tmp_path, children, memory=200 * MIB)
    assert word["outcome"] == "oom" and "host.memory is 200 MiB" in word["message"]


def test_what_grows_faster_than_it_is_looked_at_is_stopped_too(tmp_path: Path) -> None:
    word, _ = supervised(tmp_path, "x = bytearray(3 << 30)", memory=64 * MIB)
    assert word["outcome"] == "oom" and "host.memory is 64 MiB: raise it, or" in word["message"]


def test_a_job_that_keeps_to_its_memory_is_left_alone(tmp_path: Path) -> None:
    word, log = supervised(tmp_path, "import time; x = b'x' * (20 << 20); time.sleep(1.2); print('done')", memory=400 * MIB)
    assert (word["outcome"], log.splitlines()[1:]) == ("completed", ["done"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core can be limited to no fewer")
def test_cores_are_as_many_as_were_asked_for_and_not_the_same_for_all(tmp_path: Path) -> None:
    code = "import os, subprocess, sys; print('cores', sorted(os.sched_getaffinity(0)), flush=True); subprocess.run(['nproc'])"
    seen = set()
    for lease in (1, 2):
        _, log = supervised(tmp_path, code, lease, cpus=1)
        first, cores, nproc = log.splitlines()
        assert first.startswith("stoker: host: cpus 1, kept by ") and nproc == "1"
        seen.add(cores)
    assert len(seen) == 2


# -- Control groups, by files that are as the kernel's are ------------------------------------------------------------------


class Groups:
    """A mount of cgroup v2 in which this process is in /a/b; ``handed``: what /a hands on."""

    def __init__(self, root: Path, handed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = root / "mount" / "a"
        (self.base / "b" / "cgroup.subtree_control").mkdir(parents=True)  # cannot be written, as that of a group with processes
        (self.base / "cgroup.subtree_control").write_text(handed)
        self.mounts, self.own = root / "mounts", root / "own"
        self.mounts.write_text(f"none {root / 'mount'} cgroup2 rw 0 0\n")
        self.own.write_text("4:memory:/x\n0::/a/b\n")
        made = Path.mkdir

        def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
            made(path, *args, **kwargs)
            if path.parent == self.base:
                for file in ("memory.max", "memory.oom.group", "cpu.max", "cgroup.procs"):
                    (path / file).write_text("")

        monkeypatch.setattr(Path, "mkdir", mkdir)


def test_groups_of_supervisors_that_were_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(tmp_path, "memory", monkeypatch)
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, alive = (groups.base / f"stoker-3-{pid}" for pid in (gone.pid, os.getpid()))
    for folder in (left, alive):
        os.mkdir(folder)  # noqa: PTH102 - an empty one, as the kernel's are to rmdir
    HostLimits("stoker-7", MIB, None, measure=lambda: 0, say=lambda _: None, mounts=groups.mounts, own=groups.own)
    assert alive.is_dir() and not left.exists()


def test_a_cgroup_beside_ours_is_made_where_one_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, said = Groups(tmp_path, "cpu memory pids", monkeypatch), []
    limits = HostLimits("stoker-7", 64 * MIB, 2, measure=lambda: 0, say=said.append, mounts=groups.mounts, own=groups.own)
    group = groups.base / "stoker-7"
    assert limits.group == group and said == ["host: memory 64 MiB, cpus 2, kept by a cgroup"]
    assert (group / "memory.max").read_text() == str(64 * MIB) and (group / "cpu.max").read_text() == "200000 100000"
    limits.enter(123, 1)
    assert (group / "cgroup.procs").read_text() == "123"
    (group / "memory.current").write_text(str(63 * MIB))
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {3 * MIB}\n")  # what was read of files goes when room is needed
    assert not limits.exceeded() and said[1:] == ["host.memory: it takes 60 MiB of 64 MiB now; beyond that it is ended"]
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    limits.close()
    assert limits.over == "it took more of main memory than host.memory, 64 MiB"


def test_why_there_is_no_cgroup_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(tmp_path, "pids", monkeypatch)
    with pytest.raises(NotHere, match="no cgroup v2 hands on memory here"):
        monkeypatch.setattr(Path, "write_text", _refuse)
        _group("stoker-8", MIB, None, groups.mounts, groups.own)
    with pytest.raises(NotHere, match="this host has no cgroup v2"):
        _group("stoker-8", MIB, None, tmp_path / "none", groups.own)
    assert host_limits.sizes(3 << 29) == "1.5 GiB"


def _refuse(*_: object, **__: object) -> int:
    raise PermissionError(13, "Permission denied")


# -- The field --------------------------------------------------------------------------------------------------------------

HERE = Context(now=1_900_000_000.0, cwd=Path("/work"), files=False)


def test_the_field_is_read_with_its_units_and_written_back() -> None:
    (spec,) = load_text("command: echo\nhost: {memory: 8GiB, cpus: 2}\n", "f.yaml", HERE)
    assert spec.host is not None and (spec.host.memory, spec.host.cpus) == (8 << 30, 2)
    assert load_text(dump([spec]), "g.yaml", HERE) == [spec]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host: {}", "host: is empty; give memory"),
        ("host: {memory: 1KiB}", "host.memory: is 1024 bytes"),
        ("host: {cpus: 0}", "host.cpus: "),
        ("host: {cpus: 1.5}", "host.cpus: must be a whole number"),
        ("host: {memory: many}", "host.memory: "),
        ("host: {cpu: 2}", "host.cpu: unknown field (did you mean 'cpus'?)"),
        ("host: {cpus: 1}\nshare: {gpu: packed}\ngpu_memory: 1GiB", "host.cpus: does not work for a job that shares its GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_text(f"command: echo\n{text}\n", "f.yaml", HERE)
    assert words in str(raised.value)
