"""One of two jobs on a slot, or what keeps both, is killed, stopped or runs out of memory: nothing is lost, nothing runs twice, and the
other one does not notice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease import processes

#: Counts in a file of its checkpoints, and says in another one which process has counted what. Out of memory when it is told to be.
SCRIPT = """
import fcntl, os, pathlib, sys, time
import stoker
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
lock = open(folder / f"{name}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (folder / "twice").touch()
saved = stoker.checkpoint_dir() / "count"
step = int(saved.read_text()) if saved.exists() else 0
while True:
    if stoker.should_stop():
        sys.exit(75)
    if (folder / f"{name}.oom").exists():
        (folder / f"{name}.oom").unlink()
        raise MemoryError
    if (folder / f"{name}.done").exists():
        break
    step += 1
    with open(folder / f"{name}.counted", "a") as counted:
        counted.write(f"{os.getpid()} {step}\\n")
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").replace(saved)
    stoker.report(step=step, loss=1.0, checkpoint=step)
    time.sleep(0.05)
"""
CONFIG = """
[guards]
min_run_time = 0.0
cooldown = 0.0
"""
FIELDS: dict[str, Any] = {"retries": {"limit": 9, "backoff": 0.1}, "grace": 20.0}


class Pair:
    """Two jobs, left and right, that count on the one slot of a runner."""

    def __init__(self, folder: Path, daemon: DaemonProcess, runner: RunnerProcess) -> None:
        self.folder, self.daemon, self.runner = folder, daemon, runner
        self.jobs = Jobs(daemon.client())
        self.jobs.client.post("/v1/policy", {"policy": "packs_all:PacksAll", "interval": 1.0, "config": {}})
        self.left, self.right = self.begin("left"), self.begin("right")
        self.together(self.left, self.right)

    def begin(self, name: str, **fields: Any) -> int:
        return self.jobs.submit(name, sys.executable, "-c", SCRIPT, name, str(self.folder), **FIELDS, **fields)

    def counted(self, name: str) -> list[tuple[int, int]]:
        """(process, number) of what a job has counted."""
        path = self.folder / f"{name}.counted"
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [(int(pid), int(step)) for pid, step in map(str.split, lines)]

    def goes_on(self, name: str) -> tuple[int, int]:
        """The newest of it, once it has counted a few more."""
        before = len(self.counted(name))
        until(lambda: len(self.counted(name)) > before + 3)
        return self.counted(name)[-1]

    def together(self, *jobs: int) -> None:
        """Until these two run on the slot, and both are pinned to its core."""
        wanted = sorted((job, "packed", "running") for job in jobs)
        until(lambda: sorted(self.jobs.sql("SELECT job_id, share, lease_state FROM live_shares")) == wanted, says=self.said)
        own = frozenset(sorted(os.sched_getaffinity(0))[:1])
        until(lambda: all(self.cores(job) == {own} for job in jobs), says=lambda: str([self.cores(job) for job in jobs]))

    def cores(self, job: int) -> set[frozenset[int]]:
        found = set()
        for one in processes.descendants(self.supervisor(job), processes.table()):
            found.add(frozenset(os.sched_getaffinity(one.pid)))
        return found

    def supervisor(self, job: int) -> int:
        rows = self.jobs.sql(f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {job} AND l.state = 'running'")
        return int(rows[0][0])

    def said(self) -> str:
        return str(self.jobs.sql("SELECT id, state, reason, shared_with FROM jobs_now") + self.jobs.sql("FROM live_shares"))

    def end(self) -> None:
        for name in ("left", "right", "third"):
            (self.folder / f"{name}.done").touch()
        ids = [job for (job,) in self.jobs.sql("SELECT id FROM jobs WHERE finished_at IS NULL")]
        for job in ids:
            assert self.jobs.ended(job)["state"] == "completed"


@pytest.fixture
def pair(
    home: Home, tmp_path: Path, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> Iterator[Pair]:
    home.config.write_text(CONFIG)
    daemon = start_daemon(env={"PYTHONPATH": str(Path(__file__).parent)})
    opened = Pair(tmp_path, daemon, start_runner(slots=1))
    yield opened
    opened.end()


def kill_worker(pair: Pair) -> None:
    os.kill(pair.counted("left")[-1][0], signal.SIGKILL)


def kill_supervisor(pair: Pair) -> None:
    os.kill(pair.supervisor(pair.left), signal.SIGKILL)


def hold(pair: Pair) -> None:
    pair.jobs.act("hold", pair.left)
    until(lambda: pair.jobs.show(pair.left)["lease_id"] is None)
    pair.goes_on("right")
    pair.jobs.act("release", pair.left)


def preempt(pair: Pair) -> None:
    """A third job takes the place of one of them."""
    pair.jobs.act("priority", pair.right, priority=5)
    third = pair.begin("third", priority=9)
    pair.together(pair.right, third)
    assert pair.jobs.state(pair.left) == "pending"
    (pair.folder / "third.done").touch()
    pair.jobs.ended(third)


ONE = {kill_worker: "failed", kill_supervisor: "lost", hold: "preempted", preempt: "preempted"}


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(preempt, marks=pytest.mark.slow),
        # By day one that dies of too little memory (below), one whose process is killed where two take turns: test_switched_live
        *(pytest.param(act, marks=pytest.mark.nightly) for act in (kill_worker, kill_supervisor, hold)),
    ],
    ids=lambda act: act.__name__,
)
def test_what_happens_to_one_of_two_is_nothing_to_the_other(pair: Pair, act: Callable[[Pair], None]) -> None:
    before, (other, _) = pair.goes_on("left"), pair.goes_on("right")
    act(pair)
    until(lambda: pair.counted("left")[-1][0] != before[0], says=pair.said)
    pair.together(pair.left, pair.right)
    assert pair.goes_on("right")[0] == other, "another process counts"
    assert pair.jobs.sql("SELECT outcome FROM leases WHERE job_id = 1 AND state = 'ended'") == [(ONE[act],)]
    assert pair.jobs.show(pair.right)["attempts"] == 1
    nothing_is_lost_or_done_twice(pair)


def nothing_is_lost_or_done_twice(pair: Pair) -> None:
    """Each process goes on where the one before it had counted to, or counts the last one again: a kill may fall between the two
    files, of which the script writes that of the count first. There is never one beside another."""
    assert not (pair.folder / "twice").exists()
    for name in ("left", "right"):
        counted = pair.counted(name)
        for (process, step), (later, next_step) in pairwise(counted):
            assert next_step == step + 1 or (later != process and next_step == step), (name, process, step, later, next_step)


@pytest.mark.slow
def test_one_that_runs_out_of_memory_beside_the_other_goes_on_alone(pair: Pair) -> None:
    """It is no failure of its own, and they are not put together again."""
    other, (before, _) = pair.goes_on("right")[0], pair.goes_on("left")
    (pair.folder / "left.oom").touch()
    until(lambda: pair.jobs.sql("SELECT before, after FROM events WHERE kind = 'job.share'") == [(None, "exclusive")])
    until(lambda: pair.jobs.waits(pair.left) is not None)
    left = pair.jobs.show(pair.left)
    assert (left["state"], left["failures"], left["share"]) == ("pending", 0, "exclusive")
    assert pair.goes_on("right")[0] == other
    (pair.folder / "right.done").touch()
    pair.jobs.ended(pair.right)
    until(lambda: pair.counted("left")[-1][0] != before)
    pair.goes_on("left")
    assert pair.jobs.sql("SELECT outcome, share FROM leases WHERE job_id = 1 ORDER BY id") == [("oom", "packed"), (None, "exclusive")]
    nothing_is_lost_or_done_twice(pair)


@pytest.mark.slow
@pytest.mark.nightly  # that is preempted, or ends for want of memory: above
def test_one_that_is_cancelled_leaves_the_slot_to_the_other(pair: Pair) -> None:
    other, _ = pair.goes_on("right")
    pair.jobs.act("cancel", pair.left)
    assert pair.jobs.ended(pair.left)["state"] == "cancelled"
    assert pair.goes_on("right")[0] == other
    assert pair.jobs.sql("SELECT job_id, shared_with FROM gpus_now") == [(pair.right, None)]
    until(lambda: pair.cores(pair.right) == {frozenset(os.sched_getaffinity(0))}, says=lambda: str(pair.cores(pair.right)))
    third = pair.begin("third")
    pair.together(pair.right, third)
    assert pair.goes_on("right")[0] == other


@pytest.mark.slow
def test_neither_notices_that_the_runner_or_the_daemon_dies(pair: Pair) -> None:
    before = [pair.goes_on(name)[0] for name in ("left", "right")]
    for process in (pair.runner, pair.daemon):
        process.kill()
        [pair.goes_on(name) for name in ("left", "right")]
        process.launch()
    until(lambda: pair.jobs.client.get("/v1/status"), 90)
    until(lambda: pair.jobs.sql("SELECT pid FROM nodes WHERE state = 'up'") == [(pair.runner.pid,)])
    pair.together(pair.left, pair.right)
    assert [pair.goes_on(name)[0] for name in ("left", "right")] == before
    assert pair.jobs.sql("SELECT count(*), sum(attempt) FROM leases") == [(2, 2)]
    third = pair.begin("third")
    until(lambda: pair.jobs.waits(third) is not None)
    assert pair.jobs.state(third) == "pending", "the runner that came back knows both"
    nothing_is_lost_or_done_twice(pair)


@pytest.mark.slow
@pytest.mark.nightly  # leaving by a preemption: above; a runner that is drained: tests/hosts
def test_both_leave_a_runner_that_is_drained_and_share_it_again(pair: Pair) -> None:
    before = [pair.goes_on(name) for name in ("left", "right")]
    pair.jobs.client.post("/v1/runners/here/drain", {"now": True})
    until(lambda: pair.jobs.sql("SELECT DISTINCT state FROM jobs") == [("pending",)], says=pair.said)
    assert pair.jobs.sql("SELECT count(*) FROM live_shares") == [(0,)]
    pair.jobs.client.post("/v1/runners/here/resume", {})
    pair.together(pair.left, pair.right)
    after = [pair.goes_on(name) for name in ("left", "right")]
    assert all(pid != old and step > done for (old, done), (pid, step) in zip(before, after, strict=True))
    ((plan,),) = pair.jobs.sql("SELECT plan FROM decisions WHERE plan IS NOT NULL ORDER BY id DESC LIMIT 1")
    assert [start["share"] for start in json.loads(plan)["starts"]] == ["packed", "packed"]
    nothing_is_lost_or_done_twice(pair)


def test_a_start_that_waits_for_memory_says_so(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    home.config.write_text(CONFIG)
    jobs = Jobs(start_daemon(env={"PYTHONPATH": str(Path(__file__).parent)}).client())
    start_runner("here", 1, "--slot-memory", "1073741824")
    jobs.client.post("/v1/policy", {"policy": "packs_all:PacksAll", "interval": 1.0, "config": {}})
    first = jobs.shell("first", "sleep 600", gpu_memory=600 << 20)
    second = jobs.shell("second", "sleep 0.1", share={"gpu": "packed", "memory": 500 << 20})
    until(lambda: jobs.waits(second) == "deferred", says=lambda: str(jobs.client.get(f"/v1/jobs/{second}")["waiting"]))
    told = command(home, "explain", str(second))
    assert f"waits for memory of GPU here/cpu0: it would take 1.07 GiB with job {first}, of 1 GiB" in told.out, told
    jobs.act("cancel", first)
    assert jobs.ended(second)["state"] == "completed"
    jobs.ended(first)
