"""`stoker swap plan`: by a child process and by a job, what it shows, and what bad input gets."""

import json

import pytest
from stoker.engine.cli.jobs.swap import _show
from stoker.engine.cli.main import run
from stoker.engine.client import Client
from stoker.engine.errors import UsageError
from stoker.runners.swap.partition import ACCUMULATE

TASKS = """
import torch
from torch import nn
from stoker.runners.training import Task


class Data:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def chain(seed=0):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    return Task(model=model, train=Data(), loss=lambda model, batch: model(batch).pow(2).mean(), batch_size=4)


def odd():
    return Task(model=Odd(8, 8), train=Data(), loss=lambda model, batch: model(batch).mean(), batch_size=4)

"""


@pytest.fixture
def plan(home, tmp_path, capsys, monkeypatch):
    """The command for a task of the module above: its exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STOKER_URL", raising=False)
    (tmp_path / "tasks_to_plan.py").write_text(TASKS)

    def call(task, *options):
        (tmp_path / "job.yaml").write_text(f"name: small\nentrypoint: tasks_to_plan:{task}\nstop: {{iterations: 3}}\n")
        code = run(["--home", str(home.path), "swap", "plan", "job.yaml", *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.slow
def test_without_a_daemon_a_child_process_plans(plan, capsys):
    code, out, err = plan("chain", "--cap", "5KiB", "--accumulate", "2", "--json")
    assert code == 0 and "measuring here, on the CPU" in err
    found = json.loads(out)
    assert found["peak"] <= found["cap"] == 5120 < found["whole"]
    assert found["emulated"] and found["accumulate"] == 2
    assert [part["start"] for part in found["parts"]] == [0, *found["cuts"]] and found["parts"][-1]["stop"] == 12
    assert found["seconds"] >= found["ideal"] > 0
    assert {busy["stream"] for busy in found["timeline"]} == {"load", "compute", "out"}
    _show(found)
    assert_a_plan_is_drawn(capsys.readouterr().out, "5.0 KiB")


def assert_a_plan_is_drawn(text, cap):
    lines = text.splitlines()
    assert any(line.startswith("peak ") and f"of {cap}" in line for line in lines)
    (compute,) = [line for line in lines if line.startswith("compute ")]
    assert set(compute.split()[1]) <= set("1234.") and "1" in compute


@pytest.mark.slow
@pytest.mark.nightly  # by day a job plans for a submission: below
def test_a_daemon_has_a_job_plan(plan, home, start_daemon, start_runner):
    start_daemon()
    start_runner()
    code, out, err = plan("chain", "--cap", "1MiB", "--accumulate", "auto")
    assert code == 0, err
    assert "job 1 measures the model" in err
    assert_a_plan_is_drawn(out, "1.0 MiB")


@pytest.mark.slow
def test_batches_are_chosen_once_where_a_job_is_submitted(home, tmp_path, capsys, monkeypatch, start_daemon, start_runner):
    (tmp_path / "tasks_to_plan.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    job = "name: small\nentrypoint: tasks_to_plan:chain\nstop: {iterations: 2}\nmemory: {cap: 64KiB, accumulate: auto}\n"
    (tmp_path / "job.yaml").write_text(job + "hold: true\narray: {params: {seed: [1, 2]}}\n")
    start_daemon()
    client = Client(home, url="", token="")
    body = {
        "jobs": [{"name": "a", "recipe": "toy", "memory": {"cap": 4096, "accumulate": "auto"}}],
        "provenance": {"argv": ["test"], "cwd": "/"},
    }
    with pytest.raises(UsageError, match=r"memory.accumulate: auto is chosen by 'stoker submit'"):
        client.post("/v1/jobs", body)
    start_runner(slots=1)
    assert run(["--home", str(home.path), "submit", "job.yaml"]) == 0
    said = capsys.readouterr()
    found = client.post("/v1/sql", {"query": "SELECT name, spec ->> '$.memory.accumulate', spec ->> '$.recipe' FROM jobs ORDER BY id"})[
        "rows"
    ]
    client.close()
    (_, _, recipe), (_, first, _), (_, second, _) = found
    assert recipe == "swap-plan" and first == second and int(first) in ACCUMULATE
    assert said.err.count("measuring how many batches hide the loading") == 1
    assert [line.rpartition(" ")[2] for line in said.err.splitlines() if "memory.accumulate: " in line and "auto" not in line] == [
        first
    ] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "cap", "words"),
    [
        ("chain", "1KiB", "memory.cap: no partition of the model fits into 1KiB with accumulate: 1; the smallest cap that would"),
        ("odd", "600B", "memory.cap: no partition of the model fits into 1KiB"),
    ],
)
@pytest.mark.sampled(2)
def test_what_cannot_be_planned_is_told_in_one_line(plan, task, cap, words):
    code, out, err = plan(task, "--cap", cap)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("stoker: error: ") and words in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "memory.cap: the job has none"),
        (("--cap", "0"), "must be at least one byte"),
        (("--cap", "much"), "--cap"),
        (("--cap", "1MiB", "--accumulate", "0"), "--accumulate"),
        (("--cap", "1MiB", "--accumulate", "some"), "neither a whole number nor auto"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(plan, options, words):
    code, out, err = plan("chain", *options)
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err


def test_a_command_has_no_model_to_plan(home, tmp_path, capsys):
    (tmp_path / "job.yaml").write_text('name: other\ncommand: "true"\n')
    assert run(["--home", str(home.path), "swap", "plan", str(tmp_path / "job.yaml"), "--cap", "1MiB"]) == 2
    assert "a plan is for a recipe or an entrypoint" in capsys.readouterr().err
