"""Jobs with ``memory:`` on real parts: a daemon, a runner, a user's model in parts, left, killed inside a step, and refused."""

import pytest
from e2e import Jobs, until

USER = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from stoker.runners.training import Task

class Digits:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), index / 64), torch.tensor([index % 2.0])

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3)) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)

class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)

HELD = int(os.environ.get("STOKER_RESUME_COUNT", "0")) >= 1

def task(width=64, pace=0.0, kill=False, deciding=False):
    calls = []

    def loss(model, batch):
        answer = model(batch[0])
        if not HELD and pace:
            time.sleep(pace)
        calls.append(1)
        if kill and len(calls) == 31 and not Path("died").exists():  # a second micro-batch: inside a step, parts loaded
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.mse_loss(answer, batch[1])

    return Task(model=Deciding() if deciding else Model(width), train=Digits(), loss=loss, batch_size=4, checkpoint_every=5, eval_every=10,
                evaluate=lambda model: {"held_out": float(model(torch.linspace(0, 1, 32).reshape(8, 4)).square().mean())},
                optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
"""

STEPS = 20


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
@pytest.mark.nightly  # left and resumed, in this process: test_swapped_step.py; live: below, and test_swap_command.py
def test_a_job_under_a_cap_trains_as_without_also_where_it_is_held_or_killed_inside_a_step(jobs, home):
    memory = {"cap": 96 * 1024, "accumulate": 2}
    plain = submit(jobs, home, "plain", memory={"swap": "off", "accumulate": 2})
    killed = submit(jobs, home, "killed", memory=memory, params={"kill": True}, retries={"limit": 1, "backoff": 0})
    held = submit(jobs, home, "held", memory=memory, params={"pace": 0.2})
    until(lambda: values(jobs, held, "loss")[6:7], says=lambda: [jobs.show(job)["state_reason"] for job in (plain, killed, held)])
    jobs.act("hold", held)
    until(lambda: jobs.state(held) not in ("running", "suspending"))
    assert jobs.show(held)["finished_at"] is None
    jobs.act("release", held)
    for job in (plain, killed, held):
        assert jobs.ended(job)["state"] == "completed"
    assert (home.path / "work" / "died").exists()
    expected = {name: values(jobs, plain, name) for name in ("loss", "held_out", "samples")}
    assert len(expected["loss"]) == STEPS and len(expected["held_out"]) == 2 and expected["samples"][-1] == (STEPS, STEPS * 8.0)
    for job in (killed, held):
        # After the kill some steps are made and told again, alike.
        assert {name: sorted(set(values(jobs, job, name))) for name in expected} == expected
        peaks = values(jobs, job, "swap_peak")
        assert len(peaks) >= STEPS and max(peak for _, peak in peaks) <= 96 * 1024
        # Each process plans by what it has measured, and then moves the same in each step.
        moved = f"SELECT count(DISTINCT value) FROM metrics WHERE job_id = {job} AND name = 'swap_in' GROUP BY lease_id"
        assert jobs.sql(moved) == [(1,), (1,)]
        assert jobs.sql(f"SELECT gpu_memory FROM jobs WHERE id = {job}") == [(96 * 1024,)]
    assert values(jobs, plain, "swap_peak") == []


@pytest.mark.slow
def test_what_does_not_fit_or_cannot_be_cut_ends_with_a_line_that_says_so(jobs, home):
    small = submit(jobs, home, "small", memory={"cap": 9 * 1024}, retries={"limit": 50, "backoff": 0})
    deciding = submit(jobs, home, "deciding", memory={"cap": 1 << 20, "swap": "force"}, params={"deciding": True})
    lines = [jobs.ended(job)["state_reason"] for job in (small, deciding)]
    assert "memory.cap: this model with accumulate: 1 does not fit into 9KiB however it is cut; the smallest that would is " in lines[0]
    assert "memory.swap: force: the model cannot be cut into parts; write swap: off" in lines[1]
