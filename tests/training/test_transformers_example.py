"""The example that trains a model of transformers under a cap: its job is accepted, and its losses are those without a cap."""

import ast
import time
from pathlib import Path

import pytest
from stoker.engine.spec.build import Context
from stoker.engine.spec.model import Memory, Stop
from stoker.engine.spec.reading.load import load_text
from stoker.runners.recipes import RECIPES
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train import rng
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "swap_transformers.py"


@pytest.fixture
def spec():
    """The job that stands in its docstring."""
    said = ast.get_docstring(ast.parse(EXAMPLE.read_text()))
    (text,) = (part for part in said.split("\n\n") if part.startswith("name: "))
    (job,) = load_text(text, "swapped.yaml", Context(now=time.time(), cwd=EXAMPLE.parent, recipes=RECIPES))
    return job


def test_its_job_is_accepted(spec):
    assert spec.entrypoint == f"{EXAMPLE.stem}:task" and spec.memory.cap == 24 << 20


@pytest.mark.usefixtures("one_thread")
def test_it_is_trained_under_its_cap_as_without_one(spec, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(EXAMPLE.parent)
    monkeypatch.syspath_prepend(EXAMPLE.parent)

    def losses(memory):
        told, peaks = [], []
        monkeypatch.setattr(script, "report", lambda **values: (told.append(values.get("loss")), peaks.append(values.get("swap_peak", 0))))
        rng.seed_all(3)
        task = worker.build(spec)
        local = Ranks(0, 1, worker._device())
        assert Trainer(task, Stop(iterations=2), tmp_path / str(memory.cap), local, work=step_of(memory, task, local)).run()
        assert max(peaks) <= (memory.cap or 0)
        return told

    assert losses(spec.memory) == losses(Memory(swap="off", accumulate=spec.memory.batches)) != []
