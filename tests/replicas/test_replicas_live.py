"""A real daemon and its runner: a group that grows, shrinks and loses a member to ``kill -9``, as its user sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from replica_members import HERE, PATIENCE
from stoker.engine.home import Home

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
from stoker.runners.lease import processes
from stoker.runners.train.checkpoint import Checkpoints

STEPS = 600


@pytest.fixture
def jobs(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Iterator[Jobs]:
    daemon = start_daemon()
    start_runner("here", 3)
    yield Jobs(daemon.client())


def members(jobs: Jobs, least_step: int = 1) -> int:
    """Of the group those that took one and the same step, which is this one or a later one."""
    rows = jobs.sql("SELECT members, step FROM replicas_now WHERE lease_id IS NOT NULL AND members > 0 ORDER BY step DESC")
    return rows[0][0] if rows and rows[0][1] >= least_step else 0


def step(jobs: Jobs) -> int:
    return jobs.sql("SELECT coalesce(max(step), 0) FROM replicas_now")[0][0]


@pytest.mark.slow
def test_a_group_grows_shrinks_and_survives_a_kill_and_ends_with_each_sample_counted_once(home: Home, jobs: Jobs, tmp_path: Path) -> None:
    job: dict[str, Any] = {
        "name": "lm", "entrypoint": "counting:build", "workdir": str(HERE), "params": {"pace": 0.05, "hurry": str(tmp_path / "hurry")},
        "replicas": {"min": 2, "max": 3, "global_batch": 16, "quorum_timeout": f"{2 * PATIENCE:g}s"}, "stop": {"iterations": STEPS},
    }  # fmt: skip
    (tmp_path / "lm.yaml").write_text(yaml.safe_dump(job))
    assert command(home, "submit", str(tmp_path / "lm.yaml")).out == "jobs 1 to 3\n"
    until(lambda: members(jobs) == 3, 90)
    jobs.act("hold", 3)
    until(lambda: jobs.state(3) == "submitted" and members(jobs, step(jobs)) == 2, 60)
    jobs.act("release", 3)
    until(lambda: members(jobs, step(jobs)) == 3, 60)
    ((supervisor,),) = jobs.sql("SELECT w.pid FROM workers w JOIN jobs j ON j.lease_id = w.lease_id WHERE j.id = 1")
    for process in processes.descendants(supervisor, processes.table()):
        os.kill(process.pid, signal.SIGKILL)
    shown = command(home, "show", "lm").out
    assert "samples committed in steps of 16" in shown, shown
    (tmp_path / "hurry").touch()
    for number in (1, 2, 3):
        assert jobs.ended(number)["state"] == "completed", jobs.show(number)
    lost = jobs.sql("SELECT count(*) FROM leases WHERE job_id = 1 AND outcome = 'lost'")
    assert lost == [(1,)]  # the killed one has come back, at the cost of no retry
    states = [Checkpoints(home.path / "jobs" / str(number) / "checkpoints").load() for number in (1, 2, 3)]
    found = [state["model"]["used"].tolist() for state in states if state is not None and state["step"] == STEPS]
    assert len(found) >= 2 and all(one == found[0] for one in found)
    passes, left = divmod(STEPS * 16, 64)
    assert sorted(found[0]) == [float(passes)] * (64 - left) + [float(passes + 1)] * left
