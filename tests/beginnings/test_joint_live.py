"""Two jobs whose first steps are trained together, under a real daemon and runner, of which everything is killed on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease.rundir import ENV_RUN_DIR

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.xdist_group("tiny models")]


def kill(home: Home, job: int, supervisor_too: bool) -> None:
    """At once, without asking the daemon: the phase takes seconds."""
    where = str(home.path / "jobs" / str(job))
    found = [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get(ENV_RUN_DIR, "").startswith(where)]
    pids = {one.pid for one in found} | ({one.ppid() for one in found} if supervisor_too else set())
    assert found and os.getpid() not in pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_whatever_is_killed_in_the_phase_one_goes_on_and_the_other_has_not_run(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess], tmp_path: Path
) -> None:
    """The worker and its supervisor, then the daemon; what the phase leaves is what both go on from."""
    daemon = start_daemon()
    start_runner("here", 1)
    jobs = Jobs(daemon.client())

    def job(name: str, merge: str, steps: int) -> dict[str, Any]:
        data = tmp_path / f"{name}.jsonl"
        rows = [{"text": f"{name} {number} {'good' if number % 2 else 'bad'}", "label": number % 2} for number in range(60)]
        data.write_text("\n".join(map(json.dumps, rows)))
        params = {"data": str(data), "batch_size": 16, "eval_limit": 8, "eval_every": 20, "checkpoint_every": 5}
        return {
            "name": name, "recipe": "text-classifier", "backbone": "minilm", "params": params, "merge": merge,
            "warm": "off", "stop": {"iterations": steps}, "retries": {"limit": 3, "backoff": 0.1},
        }  # fmt: skip

    first, second = jobs.submit_all(job("a", "transfer", 52), job("b", "job:a", 6))
    until(lambda: jobs.waits(second) == "dependency")
    assert "waits to train its first steps together with job 1" in command(home, "explain", "b").out
    phase = home.path / "jobs" / str(first) / "checkpoints" / f"joint-{second}" / "phase"
    seen: set[Path] = set()
    for supervisor_too in (False, True):
        until(lambda seen=seen: set(phase.glob("step-*")) - seen)  # type: ignore[misc]
        kill(home, first, supervisor_too)
        seen = set(phase.glob("step-*"))  # the next one is of the next attempt
        assert jobs.sql(f"SELECT attempts FROM jobs WHERE id = {second}") == [(0,)]
    daemon.kill()
    jobs = Jobs(start_daemon().client())
    assert jobs.ended(first)["state"] == "completed" and jobs.ended(second)["state"] == "completed"
    assert jobs.sql("SELECT job_id, from_job, outcome, cost_steps, steps FROM transfers ORDER BY 1") == [
        (first, second, "joint", 0, 52), (second, first, "joint", 25, 6),
    ]  # fmt: skip
    assert jobs.sql("SELECT attempts FROM jobs ORDER BY id") == [(3,), (1,)]
    assert "has trained 25 steps together with job 1" in command(home, "explain", "b").out
    assert jobs.sql(f"SELECT count(*) FROM metrics WHERE job_id = {first} AND name = 'partner_accuracy'")[0][0] >= 1
