"""Jobs that begin with what others have left, under a real daemon and runner, which are killed where it matters."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease import processes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tiny models")]


def kill_worker(jobs: Jobs, job: int) -> None:
    ((supervisor,),) = jobs.sql(f"SELECT w.pid FROM workers w JOIN jobs j ON j.lease_id = w.lease_id WHERE j.id = {job}")
    for process in processes.descendants(supervisor, processes.table()):
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.nightly  # each part of it: test_adapter_bank.py, test_beginnings.py
def test_a_job_waits_for_another_and_begins_with_what_it_left_whoever_is_killed(
    home: Home,
    start_daemon: Callable[..., DaemonProcess],
    start_runner: Callable[..., RunnerProcess],
    model_of: Any,
    tmp_path: Path,
) -> None:
    """The daemon is killed while B waits for A; once B has begun, what A left is deleted and B killed; then C is offered B's."""
    daemon = start_daemon()
    start_runner("here", 1, "--warm", "auto")
    jobs = Jobs(daemon.client())

    def job(name: str, begin: str, steps: int) -> dict[str, Any]:
        data = tmp_path / f"{name}.jsonl"
        rows = [{"text": f"{name} {number} {'zz' if number % 2 else 'aa'}", "label": number % 2} for number in range(40)]
        data.write_text("\n".join(map(json.dumps, rows)))
        params = {"data": str(data), "petl": "lora", "batch_size": 4, "eval_limit": 8, "eval_every": 20, "checkpoint_every": 20, "lr": 1e-2}
        return {
            "name": name, "recipe": "text-classifier", "backbone": str(model_of("bert")), "params": params, "begin": begin,
            "stop": {"iterations": steps}, "retries": {"limit": 1, "backoff": 0.1},
        }  # fmt: skip

    first, second = jobs.submit_all(job("a", "never", 100), job("b", "job:a", 400))
    until(lambda: jobs.state(first) == "running" and jobs.waits(second) == "dependency")
    assert "waits for job 1 to end, with whose adapter it is to begin" in command(home, "explain", "b").out
    daemon.kill()
    jobs = Jobs(start_daemon().client())
    assert jobs.ended(first)["state"] == "completed"
    until(lambda: jobs.sql(f"FROM progress WHERE job_id = {second} AND checkpoint_step BETWEEN 20 AND 200"))
    shutil.rmtree(home.path / "jobs" / str(first) / "checkpoints")
    kill_worker(jobs, second)
    (third,) = jobs.submit_all(job("c", "auto", 20))
    row = jobs.ended(second)
    assert (row["state"], row["failures"]) == ("completed", 1)
    assert "resumed at step" in (jobs.run_dir(second) / "output.log").read_text()
    assert jobs.sql("SELECT from_job, outcome, same_data, steps FROM transfers WHERE job = 'b'") == [(first, "begun", False, 400)]
    assert jobs.ended(third)["state"] == "completed"
    ((source, outcome, cost, why),) = jobs.sql("SELECT from_job, outcome, cost_steps, why FROM transfers WHERE job = 'c'")
    assert (source, cost) == (second, 5) and outcome in ("kept", "undone") and "at step 5" in why
    listed = {row["job_id"]: row for row in json.loads(command(home, "adapters", "--all", "--json").out)["adapters"]}
    assert (listed[first]["helped"], listed[second]["helped"] + listed[second]["undone"]) == (1, 1)
