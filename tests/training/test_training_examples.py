"""The scripts in examples/ and the code in docs/writing-a-job.md run, and the aware one resumes exactly."""

import json
import os
import re
import sys
from pathlib import Path

import preloaded
import pytest
import torch
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners.host.rundir import PREEMPTED_EXIT
from stoker.runners.train import rng
from stoker.runners.train import trainer as training
from stoker.runners.worker import worker
from stoker.runners.worker.ranks import Ranks
from waiting import patient

ROOT = Path(__file__).resolve().parents[2]
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
