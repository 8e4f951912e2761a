"""How a worker's process ends: nothing that the user's code has begun is cut off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import patient

USER = """
import atexit, gc, os, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from stoker.runners.training import Task

idle = ThreadPoolExecutor(1)
left_open = open("unflushed.txt", "w") if os.environ["OPEN"] == "1" else None
gc.freeze()
gc.disable()

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.ones(2)

def slow():
    time.sleep(0.3)
    Path("thread.txt").write_text("to its end")

def loss(model, batch):
    assert not gc.isenabled()
    idle.submit(int).result()
    if left_open:
        left_open.write("all of it")
    threading.Thread(target=slow).start()
    atexit.register(Path("atexit.txt").write_text, "called")
    return model(batch).mean()

def task():
    return Task(model=torch.nn.Linear(2, 1), train=Data(), loss=loss, batch_size=2, iterations=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("opened", [pytest.param("0", marks=pytest.mark.nightly), "1"])
def test_the_users_threads_files_and_exit_functions_are_waited_for(tmp_path: Path, opened: str) -> None:
    (tmp_path / "user.py").write_text(USER)
    run = tmp_path / "run-1"
    run.mkdir()
    spec = {"name": "leaves", "entrypoint": "user:task", "stop": {"iterations": 1}}
    assignment = {"lease": 1, "job": 1, "attempt": 1, "spec": spec, "gpus": ["n/cpu0"], "world_size": 1}
    (run / "assignment.json").write_text(json.dumps(assignment))
    environment = os.environ | {"STOKER_RUN_DIR": str(run), "STOKER_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "OPEN": opened}
    done = subprocess.run(
        [sys.executable, "-m", "stoker.runners.worker.worker"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=patient(100), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "finished at step 1" in done.stdout
    assert (tmp_path / "thread.txt").read_text() == "to its end" and (tmp_path / "atexit.txt").read_text() == "called"
    if opened == "1":
        assert (tmp_path / "unflushed.txt").read_text() == "all of it"
