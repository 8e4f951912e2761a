"""Jobs with ``reuse:`` and ``pipeline:`` on real parts: a daemon, a runner, and users' own code that is slow, fails and dies."""

import pytest
from e2e import Jobs, until

USER = """
import os, random, signal, time
from pathlib import Path
import torch
from stoker.runners.training import Task

class Digits:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), index / 64), torch.tensor([index % 2.0])

class Unreadable(Digits):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("sample 7 is unreadable")
        return super().__getitem__(index)

class Deadly(Digits):
    # The first worker that reads sample 7 is killed by the kernel, as one that leaks is.
    def __getitem__(self, index):
        if index == 7 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

def shaken(sample):
    inputs, target = sample
    return inputs + 0.1 * torch.randn(4) * random.random(), target

def loss(model, batch):
    if not HELD:  # what is to be held comes to no end before, however late the holder looks
        time.sleep(PACE if model[1].num_batches_tracked < 30 else 10 * PACE)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

PACE, HELD = 0.0, True

def task(data="Digits", pace=0.0, holds=0):
    global PACE, HELD
    PACE, HELD = pace, int(os.environ.get("STOKER_RESUME_COUNT", "0")) >= holds
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    return Task(model=model, train=globals()[data](), augment=shaken, loss=loss, batch_size=4, checkpoint_every=10,
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
"""

REUSE = {"repeat": 3, "switch": {"on": "fraction", "fraction": 0.5}}
STEPS = 40


@pytest.fixture
def jobs(home, start_daemon, start_runner):
    (home.path / "work").mkdir()
    (home.path / "work" / "user.py").write_text(USER)
    daemon = start_daemon()
    start_runner(slots=2)
    return Jobs(daemon.client())


def submit(jobs, home, name, **fields):
    return jobs.submit(name, entrypoint="user:task", workdir=str(home.path / "work"), stop={"iterations": STEPS}, **fields)


def values(jobs, job, name):
    return jobs.sql(f"SELECT step, value FROM metrics WHERE job_id = {job} AND name = '{name}' ORDER BY step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "held"),  # before and after the switch
    [
        pytest.param({"reuse": REUSE}, (5, 25), id="reuse", marks=pytest.mark.nightly),
        pytest.param({"pipeline": {"interval": 0.2}}, (5, 25), id="pipeline", marks=pytest.mark.nightly),
        pytest.param({"reuse": REUSE, "pipeline": {"interval": 0.2}}, (5,), id="both", marks=pytest.mark.nightly),
        pytest.param({"reuse": REUSE, "pipeline": {"interval": 0.2}}, (5, 25), id="both, twice", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.xdist_group("clock")  # by day worker processes are stopped so in test_loading_jobs.py, and a live one in test_swapped_jobs.py
def test_a_job_that_is_held_and_released_ends_as_if_it_had_not_been(jobs, home, blocks, held):
    whole = submit(jobs, home, "whole", **blocks)
    parts = submit(jobs, home, "parts", params={"pace": 0.3, "holds": len(held)}, **blocks)
    for at in held:
        until(lambda at=at: values(jobs, parts, "loss")[at - 1 : at])
        jobs.act("hold", parts)
        until(lambda: jobs.state(parts) not in ("running", "suspending"))
        assert jobs.show(parts)["finished_at"] is None
        jobs.act("release", parts)
    assert jobs.ended(parts)["state"] == "completed"
    assert jobs.ended(whole)["state"] == "completed"
    assert len(values(jobs, whole, "loss")) == STEPS
    for name in ("loss", "stage", "fresh_samples", "first_use_loss"):
        assert values(jobs, parts, name) == values(jobs, whole, name)
    stages = [stage for _, stage in values(jobs, whole, "stage")]
    assert stages == ([1.0] * 20 + [2.0] * 20 if "reuse" in blocks else [])
    assert not values(jobs, whole, "first_use_loss")  # a fraction watches nothing


@pytest.mark.xdist_group("clock")
@pytest.mark.nightly  # by day in this process: test_loading_jobs.py; what a task raises is a job's message in test_swapped_jobs.py
def test_what_a_data_set_raises_is_the_job_s_message(jobs, home):
    alone = submit(jobs, home, "alone", params={"data": "Unreadable"}, reuse=REUSE)
    piped = submit(jobs, home, "piped", params={"data": "Unreadable"}, pipeline={})
    for job in (alone, piped):
        row = jobs.ended(job)
        assert row["state"] == "failed" and "ValueError: sample 7 is unreadable" in row["state_reason"], row
        assert "\n" not in row["state_reason"]
    assert "in stage 'decode' of the pipeline, item " in jobs.show(piped)["state_reason"]


@pytest.mark.xdist_group("clock")
@pytest.mark.nightly  # by day without a job: test_pipeline_processes.py
def test_a_worker_process_of_the_pipeline_that_is_killed_is_made_up_for(jobs, home):
    processes = {"pipeline": {"processes": True, "workers": {"decode": 2}}}
    deadly, calm = submit(jobs, home, "deadly", params={"data": "Deadly"}, **processes), submit(jobs, home, "calm", **processes)
    assert [jobs.ended(job, 200)["state"] for job in (deadly, calm)] == ["completed"] * 2
    assert (home.path / "work" / "died").exists()
    assert values(jobs, deadly, "loss") == values(jobs, calm, "loss")
