"""Jobs on a model's directory, and on its prompt bank, killed with SIGKILL under a real daemon and runner: they end with the same bits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home
from stoker.runners.lease import processes
from stoker.runners.train.checkpoint import Checkpoints
from tiny_models import same

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("tiny models")]  # by day in this process: test_recipes_on_directories.py
STEPS = 400


def test_a_killed_job_ends_with_the_bits_of_one_that_was_left_alone(
    home: Home,
    start_daemon: Callable[..., DaemonProcess],
    start_runner: Callable[..., RunnerProcess],
    model_of: Any,
    data: dict[str, str],
    tmp_path: Path,
) -> None:
    jobs = Jobs(start_daemon().client())
    start_runner("here", 2, "--warm", "auto")
    path = str(model_of("qwen2"))
    texts = ["Is this note one of zz?", "Sort this note", "What is asked here?", "Is it aa or zz?"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = command(home, "prompt", "bank", "build", "--llm", path, "--from", str(tmp_path / "texts.jsonl"), "--json")
    assert said.code == 0 and json.loads(said.out)["prompts"] == 4, said.err
    said = command(home, "prompt", "lookup", "--llm", path, "--data", data["mails"], "--here", "--json")
    assert said.code == 0 and json.loads(said.out)["candidates"][0]["text"] in texts, said.err

    small = {"batch_size": 4, "eval_limit": 4, "eval_every": 100, "checkpoint_every": 20}
    common = {"backbone": path, "stop": {"iterations": STEPS}, "retries": {"limit": 1, "backoff": 0.1}}
    kinds = {
        "lm": {"recipe": "causal-lm", "params": {"data": data["text"], "context": 16, **small}},
        "tune": {"recipe": "prompt-tune", "kind": "prompt", "params": {"data": data["mails"], "init": "bank", "tokens": 4, **small}},
    }
    for name, spec in kinds.items():
        killed, whole = jobs.submit_all({"name": f"{name}-killed", **common, **spec}, {"name": f"{name}-whole", **common, **spec})
        until(lambda job=killed: jobs.sql(f"FROM progress WHERE job_id = {job} AND checkpoint_step BETWEEN 20 AND {STEPS - 50}"))
        ((supervisor,),) = jobs.sql(f"SELECT w.pid FROM workers w JOIN jobs j ON j.lease_id = w.lease_id WHERE j.id = {killed}")
        for process in processes.descendants(supervisor, processes.table()):
            os.kill(process.pid, signal.SIGKILL)
        rows = [jobs.ended(job) for job in (whole, killed)]
        assert [(row["state"], row["failures"]) for row in rows] == [("completed", 0), ("completed", 1)], rows
        assert "resumed at step" in (jobs.run_dir(killed) / "output.log").read_text()
        left, expected = (Checkpoints(home.path / "jobs" / str(job) / "checkpoints").load()["model"] for job in (killed, whole))
        assert same(left, expected) and all(torch.isfinite(value).all() for value in left.values())
        losses = [jobs.sql(f"SELECT DISTINCT step, value FROM metrics WHERE job_id = {job} AND name = 'eval_loss' ORDER BY step")
                  for job in (killed, whole)]  # fmt: skip
        assert losses[0] == losses[1] and losses[0]
    assert jobs.sql("SELECT DISTINCT used FROM bank_use") == [(True,)]
