"""Jobs that begin with what others have left, under a real daemon and runner, of which each is killed where it matters."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, rank_of, until
from stoker.engine.home import Home

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tiny models")]


@pytest.fixture
def mails(tmp_path: Path) -> Callable[[str], str]:
    def write(name: str) -> str:
        rows = [json.dumps({"text": f"{name} {number} {'zz' if number % 2 else 'aa'}", "label": number % 2}) for number in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        return str(tmp_path / f"{name}.jsonl")

    return write


def test_a_job_waits_for_another_and_begins_with_what_it_left_whoever_is_killed(
    home: Home,
    start_daemon: Callable[..., DaemonProcess],
    start_runner: Callable[..., RunnerProcess],
    model_of: Any,
    mails: Callable[[str], str],
) -> None:
    """A trains and B waits; the daemon is killed; B has begun, and A's directory is deleted and B killed; C is offered both by itself."""
    daemon = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())

    def job(name: str, begin: str | None, steps: int, data: str | None = None) -> dict[str, Any]:
        small = {"batch_size": 4, "eval_limit": 8, "eval_every": 20, "checkpoint_every": 20, "petl": "lora", "lr": 1e-2}
        return {
            "name": name, "recipe": "text-classifier", "backbone": str(model_of("bert")), "begin": begin,
            "retries": {"limit": 2, "backoff": 0.1}, "params": {"data": mails(data or name), **small},
            "stop": {"iterations": steps, "metric": "accuracy", "target": 2.0},
        }  # fmt: skip

    first, second = jobs.submit_all(job("a", None, 60), job("b", "job:a", 120))
    until(lambda: jobs.show(first)["state"] == "running" and jobs.waits(second) == "dependency")
    assert "waits for job 1 to end, with whose adapter it is to begin" in command(home, "explain", "b").out
    daemon.kill()
    jobs = Jobs(start_daemon().client())
    assert jobs.ended(first)["state"] == "completed"
    until(lambda: jobs.sql("SELECT step FROM progress WHERE job_id = 2 AND checkpoint_step >= 20"))
    shutil.rmtree(home.path / "jobs" / "1")
    until(lambda: (pid := rank_of(jobs)) and os.kill(pid, signal.SIGKILL) is None)
    assert jobs.ended(second)["state"] == "completed" and jobs.show(second)["failures"] == 1
    assert jobs.sql("SELECT from_job, outcome, same_data, steps FROM transfers") == [(1, "begun", False, 120)]
    third = jobs.submit_all(job("c", "auto", 20))[0]
    assert jobs.ended(third)["state"] == "completed"
    ((source, outcome, cost, why),) = jobs.sql("SELECT from_job, outcome, cost_steps, why FROM transfers WHERE job_id = 3")
    assert source == 2 and outcome in ("kept", "undone") and cost == 5 and "at step 5" in why
    said = command(home, "explain", "c").out
    assert f"{'began' if outcome == 'kept' else 'had begun'} with the adapter of job 2 (" in said
    listed = {row["job_id"]: row for row in json.loads(command(home, "adapters", "--all", "--json").out)["adapters"]}
    assert listed[2][{"kept": "helped", "undone": "undone"}[outcome]] == 1 and listed[1]["helped"] == 1
    if 1 in {row[0] for row in jobs.sql("SELECT job_id FROM adapters WHERE gone IS NOT NULL")}:
        assert "no longer there" in listed[1]["gone"]
