"""The scripts in examples/ and the code in docs/writing-a-job.md run, and the aware one resumes exactly."""

import ast
import json
import os
import re
import sys
import time
from pathlib import Path

import preloaded
import pytest
import torch
from stoker.engine.spec.build import Context
from stoker.engine.spec.model import JobSpec, Memory, Stop
from stoker.engine.spec.reading.load import load_text
from stoker.runners.lease.rundir import PREEMPTED_EXIT
from stoker.runners.recipes import RECIPES
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train import rng
from stoker.runners.train import trainer as training
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks
from waiting import patient

ROOT = Path(__file__).resolve().parents[2]
TRANSFORMERS = ROOT / "examples" / "swap_transformers.py"
AWARE = [str(ROOT / "examples" / "aware_script.py"), "--steps=300", "--checkpoint-every=100"]

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]


@pytest.fixture
def environment(tmp_path):
    """Of a job; without it the scripts run outside Stoker."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"OMP_NUM_THREADS": "1"}

    def make(lease=None):
        if lease is None:
            return bare
        run_dir = tmp_path / f"run-{lease}"
        run_dir.mkdir()
        return bare | {"STOKER_RUN_DIR": str(run_dir), "STOKER_CHECKPOINT_DIR": str(tmp_path / "of-the-job")}

    return make


def run(command, cwd, env):
    process = preloaded.start(*command, cwd=cwd, env=env, output=cwd / "said.txt", errors=cwd / "errors.txt")
    process.join(patient(60))
    assert process.exitcode == 0, (cwd / "errors.txt").read_text()
    return taken(cwd / "said.txt")


def taken(output):
    said = output.read_text()
    output.unlink()
    return said


def test_the_plain_script_knows_nothing_of_stoker(tmp_path, environment):
    script = ROOT / "examples" / "plain_script.py"
    assert "import stoker" not in script.read_text()
    said = run([str(script), "--epochs=1", "--samples=2000"], cwd=tmp_path, env=environment())
    assert re.fullmatch(r"epoch 1: loss \d\.\d{3}, accuracy 0\.\d{3}\n", said)


#: A script that is asked to stop at one of its reports, however fast it and the machine are.
STOPPED = """
import os, runpy, signal, sys
import stoker

def told(**values):
    report(**values)
    if values["step"] == 20:
        os.kill(os.getpid(), signal.SIGTERM)

report, stoker.report = stoker.report, told
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_aware_script_resumes_exactly_and_runs_without_stoker_the_same(tmp_path, environment):
    alone = run(AWARE, cwd=tmp_path, env=environment())
    assert (tmp_path / "checkpoints" / "last.pt").exists()

    reports = tmp_path / "run-1" / "reports-0.jsonl"
    (tmp_path / "stopped.py").write_text(STOPPED)
    first = preloaded.start(str(tmp_path / "stopped.py"), *AWARE, cwd=tmp_path, env=environment(lease=1), output=tmp_path / "first.txt")
    first.join(patient(60))
    assert first.exitcode == PREEMPTED_EXIT
    stopped_at = int(re.fullmatch(r"asked to stop at step (\d+)\n", taken(tmp_path / "first.txt"))[1])
    assert json.loads(reports.read_bytes().splitlines()[-1])["checkpoint"] == stopped_at

    resumed = run(AWARE, cwd=tmp_path, env=environment(lease=2))
    assert resumed == f"resumed at step {stopped_at}\n{alone}"


def test_the_entrypoint_of_the_docs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "writing-a-job.md").read_text()
    (tmp_path / "fit.py").write_text(re.search(r"```python\n(# fit.py\n.*?)```", page, re.DOTALL)[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    with rng.preserved():
        task = worker.build(JobSpec(name="fit", entrypoint="fit:task", params={"width": 64, "lr": 0.01}))
        stop = Stop(iterations=500, metric="error", target=0.05, mode="min")
        trainer = training.Trainer(task, stop, tmp_path / "checkpoints", Ranks(0, 1, torch.device("cpu")))
        assert trainer.run()
    sys.modules.pop("fit")
    assert trainer.reached
    assert trainer.step < 500


@pytest.fixture
def swapped():
    """The job that stands in the docstring of the example that trains a model of transformers under a cap."""
    said = ast.get_docstring(ast.parse(TRANSFORMERS.read_text()))
    (text,) = (part for part in said.split("\n\n") if part.startswith("name: "))
    (job,) = load_text(text, "swapped.yaml", Context(now=time.time(), cwd=TRANSFORMERS.parent, recipes=RECIPES))
    return job


def test_the_example_of_transformers_is_accepted(swapped):
    assert swapped.entrypoint == f"{TRANSFORMERS.stem}:task" and swapped.memory.cap == 24 << 20


@pytest.mark.nightly  # by day other models of transformers under a cap: test_own_data.py
@pytest.mark.usefixtures("one_thread")
def test_the_example_of_transformers_is_trained_under_its_cap_as_without_one(swapped, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(TRANSFORMERS.parent)
    monkeypatch.syspath_prepend(TRANSFORMERS.parent)

    def losses(memory):
        told, peaks = [], []
        monkeypatch.setattr(script, "report", lambda **values: (told.append(values.get("loss")), peaks.append(values.get("swap_peak", 0))))
        rng.seed_all(3)
        task = worker.build(swapped)
        local = Ranks(0, 1, worker._device())
        assert Trainer(task, Stop(iterations=2), tmp_path / str(memory.cap), local, work=step_of(memory, task, local)).run()
        assert max(peaks) <= (memory.cap or 0)
        return told

    assert losses(swapped.memory) == losses(Memory(swap="off", accumulate=swapped.memory.batches)) != []
