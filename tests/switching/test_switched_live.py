"""Two real jobs that are switched on one CPU slot, from spec to runner: they take turns, or the kernel puts the lower one behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease import processes
from stoker.runners.share.kernel_priority import means

pytestmark = pytest.mark.slow

TOY: dict[str, Any] = {
    "recipe": "toy",
    "params": {"batch_size": 64, "samples": 1024, "width": 64, "step_ms": 2.0, "eval_every": 0, "checkpoint_every": 50},
    "stop": {"iterations": 1_000_000},
    "share": {"gpu": "switched"},
    "grace": 20.0,
    "retries": {"limit": 5, "backoff": 0.1},
}
CONFIG = "[guards]\nmin_run_time = 0.0\n[runners]\ntelemetry_interval = 0.5\n"


@pytest.fixture
def start(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Iterator[Any]:
    opened: list[Jobs] = []

    def begin(config: str = "") -> tuple[Jobs, int, int]:
        """A slot with two jobs, of which the second has the higher priority."""
        home.config.write_text(CONFIG + config)
        daemon = start_daemon(env={"PYTHONPATH": str(Path(__file__).parents[1] / "sharing")})
        start_runner(slots=1)
        jobs = Jobs(daemon.client())
        opened.append(jobs)
        jobs.client.post("/v1/policy", {"policy": "packs_all:PacksAll", "interval": 1.0, "config": {"kind": "switched"}})
        low, high = jobs.submit("low", **TOY), jobs.submit("high", **TOY, priority=10)
        wanted = sorted((job, "switched", "running") for job in (low, high))
        until(lambda: sorted(jobs.sql("SELECT job_id, share, lease_state FROM live_shares")) == wanted)
        return jobs, low, high

    yield begin
    for jobs in opened:
        for (job,) in jobs.sql("SELECT id FROM jobs WHERE finished_at IS NULL"):
            jobs.act("cancel", job)
        until(lambda jobs=jobs: not jobs.sql("SELECT 1 FROM jobs WHERE finished_at IS NULL"))


def step(jobs: Jobs, job: int) -> int:
    return int(jobs.sql(f"SELECT coalesce(max(step), 0) FROM metrics WHERE job_id = {job}")[0][0])


def goes_on(jobs: Jobs, job: int) -> None:
    before = step(jobs, job)
    until(lambda: step(jobs, job) > before + 5)


def supervisor(jobs: Jobs, job: int) -> int:
    rows = jobs.sql(f"SELECT pid FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {job} AND l.state = 'running'")
    return int(rows[0][0])


def tree(jobs: Jobs, job: int) -> list[int]:
    return [one.pid for one in processes.descendants(supervisor(jobs, job), processes.table())]


def said(jobs: Jobs, job: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((jobs.run_dir(job) / "turn.json").read_text())
    return found


def test_they_take_turns_and_the_death_of_one_costs_the_other_nothing(start: Any, home: Home) -> None:
    jobs, low, high = start('[share]\nturn = "cooperative"\n')
    until(lambda: said(jobs, low)["priority"] == 0 and said(jobs, high) == {**said(jobs, low), "priority": 10})
    assert said(jobs, low)["path"] == str(home.path / "turns" / "here%2Fcpu0")
    goes_on(jobs, high)
    assert command(home, "priority", "10", str(low)).code == 0
    until(lambda: said(jobs, low)["priority"] == 10)
    goes_on(jobs, low)
    goes_on(jobs, high)
    for pid in tree(jobs, high):
        os.kill(pid, signal.SIGKILL)
    goes_on(jobs, low)
    until(lambda: jobs.sql(f"SELECT count(*) FROM leases WHERE job_id = {high} AND state = 'running' AND share = 'switched'") == [(1,)])
    goes_on(jobs, high)
    jobs.act("cancel", low)
    assert jobs.ended(low)["state"] == "cancelled"
    assert "leaving at step" in (jobs.run_dir(low) / "output.log").read_text()


@pytest.mark.skipif(means() is None, reason="the kernel offers no way")
def test_the_kernel_puts_the_lower_one_behind_and_lets_it_go_when_the_other_has_left(start: Any) -> None:
    jobs, low, high = start()
    assert not (jobs.run_dir(low) / "turn.json").exists()
    until(lambda: {lowest(pid) for pid in tree(jobs, low)} == {True})
    assert {lowest(pid) for pid in tree(jobs, high)} == {False}
    jobs.act("cancel", high)
    jobs.ended(high)
    until(lambda: {lowest(pid) for pid in tree(jobs, low)} == {False})
    goes_on(jobs, low)


def lowest(pid: int) -> bool:
    if means() == "autogroup":
        return Path(f"/proc/{pid}/autogroup").read_text().endswith("nice 19\n")
    return os.sched_getscheduler(pid) == os.SCHED_IDLE
