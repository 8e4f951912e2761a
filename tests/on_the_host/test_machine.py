"""What may be used of the machine: affinity, quota and share; limits of cgroups v1 and v2; memory of a tree of processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from stoker.runners.loaders.readings import machine
from stoker.runners.worker import cores, script
from waiting import patient

MIB = 1 << 20


def tree(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own").write_text(own)
    return folder, folder / "own"


V1_NONE = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("own", "files", "limit", "group"),
    [
        ("0::/job\n", {"job/memory.max": "1048576\n"}, MIB, "job"),
        ("0::/job\n", {"job/memory.max": "max\n"}, None, None),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "2097152\n"}, 2 * MIB, "a"),
        ("0::/a/b\n", {"a/b/memory.max": "1048576\n", "a/memory.max": "2097152\n"}, MIB, "a/b"),
        ("0::/../../host\n", {"memory.max": "1048576\n"}, MIB, "."),
        ("5:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "1048576\n"}, MIB, "memory/job"),
        ("5:memory:/job\n", {"memory/job/memory.limit_in_bytes": V1_NONE}, None, None),
        ("5:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "1048576\n"}, MIB, "memory"),
        ("3:cpu,cpuacct:/job\n", {"memory/job/memory.limit_in_bytes": "1048576\n"}, None, None),
        ("", {}, None, None),
    ],
    ids=["v2", "v2-unlimited", "v2-above", "v2-both", "v2-container", "v1", "v1-unlimited", "v1-container", "other", "none"],
)
def test_memory_limits(own: str, files: dict[str, str], limit: int | None, group: str | None, tmp_path: Path) -> None:
    folder, path = tree(tmp_path, own, files)
    found, where = machine._limit(folder, path)
    assert found == (machine._UNLIMITED if limit is None else limit)
    assert where == (None if group is None else folder / group)


@pytest.mark.parametrize(
    "files",
    [
        {"memory.current": "5000000\n", "memory.stat": "anon 1\ninactive_file 2000000\n"},
        {"memory.usage_in_bytes": "5000000\n", "memory.stat": "cache 9\ntotal_inactive_file 2000000\n"},
    ],
    ids=["v2", "v1"],
)
def test_file_cache_that_the_kernel_would_give_back_is_not_in_use(files: dict[str, str], tmp_path: Path) -> None:
    folder, _ = tree(tmp_path, "", files)
    assert machine._used(folder) == 3_000_000


def test_memory_under_a_limit_is_the_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = tree(tmp_path, "0::/job\n", {"job/memory.max": str(64 * MIB), "job/memory.current": str(9 * MIB)})
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(own.read_text())
    (proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 500000 kB\n")
    monkeypatch.setattr(machine, "_CGROUPS", folder)
    monkeypatch.setattr(machine, "_PROC", proc)
    assert machine.memory() == (9 * MIB, 64 * MIB)
    assert machine.memory_total() == 64 * MIB


def test_memory_without_a_limit_is_this_processs_and_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_tree", machine._Tree())
    monkeypatch.setattr(machine, "_others", machine._Others())
    monkeypatch.setattr(machine, "tree_bytes", lambda: 300 * MIB)
    used, total = machine.memory()
    assert used == 300 * MIB
    assert 0 < total <= psutil.virtual_memory().total
    assert machine.memory_total() == total


#: A process alone, whose tree nobody else changes: what it holds, what a child of it holds, and what both share.
FAMILY = """
import mmap, os
from stoker.runners.loaders.readings import machine
before = machine.tree_bytes()
own, shared = b"x" * (64 << 20), mmap.mmap(-1, 64 << 20)
shared.write(own)
alone = machine.tree_bytes()
(told, tell), (gate, opens) = os.pipe(), os.pipe()
if not os.fork():
    data = b"y" * (64 << 20)
    read = shared[:]
    os.write(tell, b"1")
    os.close(opens)
    os.read(gate, 1)
    os._exit(0)
os.read(told, 1)
print(before, alone, machine.tree_bytes())
"""


def test_memory_of_children_counts_and_shared_pages_once() -> None:
    done = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True, timeout=patient(60))
    before, alone, both = map(int, done.stdout.split())
    assert before > MIB
    assert 120 * MIB < alone - before < 140 * MIB
    assert 120 * MIB < both - alone < 150 * MIB, "64 MiB of its own, and 64 MiB that it read out of what both share"


def test_what_others_hold_moves_in_steps() -> None:
    """Each page that another process takes is no resize of our machine."""
    others = machine._Others()
    host = 1600 * MIB
    first = others.left(host, available=1000 * MIB, used=200 * MIB)
    assert first == 1200 * MIB  # 400 MiB are held by others
    assert [others.left(host, available=(1000 + change) * MIB, used=200 * MIB) for change in (1, 30, 90)] == [first] * 3
    assert others.left(host, available=900 * MIB, used=200 * MIB) == 1100 * MIB
    assert others.left(host, available=0, used=0) == 100 * MIB  # a sixteenth at least: never nothing


def test_ranks_of_a_node_do_not_count_the_same_memory_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = tree(tmp_path, "0::/job\n", {"job/memory.max": str(1600 * MIB), "job/memory.current": str(800 * MIB)})
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(own.read_text())
    (proc / "meminfo").write_text(f"MemTotal: {3200 << 10} kB\nMemFree: 1 kB\nMemAvailable: {1600 << 10} kB\n")
    monkeypatch.setattr(machine, "_CGROUPS", folder)
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(machine, "tree_bytes", lambda: 200 * MIB)
    monkeypatch.setattr(machine, "_tree", machine._Tree())
    monkeypatch.setattr(machine, "_others", machine._Others())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    used, total = machine.memory()
    assert (used, total) == (200 * MIB, 400 * MIB)
    assert 4 * (total - used) <= 800 * MIB, "all four may grow so in the same moment"
    assert machine.memory_total() == total
    (folder / "job" / "memory.current").write_text(str(1400 * MIB))
    used, total = machine.memory()
    assert 0 < 4 * (total - used) <= 200 * MIB, "less is free now"
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "none")
    monkeypatch.setattr(machine, "_others", machine._Others())
    used, total = machine.memory()
    assert (used, total) == (200 * MIB, 600 * MIB), "of the host: a quarter of what is free, and what it has"


@pytest.mark.parametrize(
    ("ranks", "share", "part"), [("", None, 1.0), ("4", None, 0.25), ("1", 2.0, 0.25), ("2", 4.0, 0.5), ("2", 1.0, 0.125), ("x", 99.0, 1.0)]
)
def test_the_part_of_the_memory(ranks: str, share: float | None, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a job share it evenly, jobs as they share the cores of the node; the share is that of one rank."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(cores, "usable", lambda: 8.0)
    monkeypatch.setattr(script, "given_cores", lambda: share)
    assert machine.part() == part


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert machine._pss(Path("/proc/999999999")) == 0


@pytest.mark.parametrize(("share", "quota", "wanted"), [(None, 1.5, 1.5), (0.5, 1.5, 0.5), (64.0, 0.25, 0.25)])
def test_cores_are_the_least_of_what_is_allowed(share: float | None, quota: float, wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable", lambda: quota)
    monkeypatch.setattr(script, "given_cores", lambda: share)
    assert machine.cpus() == wanted


RANK = "import os; from stoker.runners.loaders.readings import machine; print(machine.cpus(), len(os.sched_getaffinity(0)))"


def test_ranks_of_a_plain_script_share_the_cores_unless_they_are_pinned() -> None:
    def cpus(setup: str = "") -> list[float]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"LOCAL_WORLD_SIZE": "2"}
        done = subprocess.run(
            [sys.executable, "-c", setup + RANK], env=environment, capture_output=True, text=True, check=True, timeout=patient(60)
        )
        return [float(word) for word in done.stdout.split()]

    there = min(float(len(os.sched_getaffinity(0))), cores.quota())
    assert cpus()[0] == there / 2
    pinned = cpus("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); ")
    assert pinned == [min(1.0, there / 2), 1.0]


def test_fewer_cores_at_once_when_the_affinity_changes() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one core only")
    before = machine.cpus()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert machine.cpus() == min(1.0, before)
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.cpus() == before


def test_clock_and_bandwidth_are_measured_once() -> None:
    assert 0 <= machine.clock() < 20
    assert 100 < machine.bandwidth() < 10_000_000
    assert math.isclose(machine.bandwidth(), machine.bandwidth())
