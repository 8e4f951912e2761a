"""Prompt tuning as jobs of a real daemon and runner, on the tiny LLM."""

import json
import re
import time

import numpy as np
import pytest
import yaml
from e2e import Jobs, command, until
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.prompts.activations import features

PROMPTS = [f"{verb} the {what}" for verb in ("sort", "find", "tell", "mark") for what in ("mails", "spam", "rest")]


@pytest.fixture
def jobs(home, start_daemon, start_runner):
    rows = [json.dumps({"text": f"note {number} {'zz' if number % 2 else 'aa'}", "label": number % 2}) for number in range(60)]
    (home.path / "mails.jsonl").write_text("\n".join(rows))
    daemon = start_daemon()
    start_runner(slots=2)
    return Jobs(daemon.client())


def write_bank(home):
    llm = load_llm("tiny")
    path = home.bank(llm.name, llm.revision, llm.tokens)
    path.parent.mkdir(parents=True)
    medoid = np.array([row // 3 * 3 for row in range(len(PROMPTS))], dtype=np.int32)
    rows = features(llm, PROMPTS)
    np.savez(path, prompts=np.array(PROMPTS), features=rows, medoid=medoid, ids=np.arange(len(PROMPTS)), llm=llm.key, tokenizer=llm.tokens)


def tuning(home, **fields):
    params = {"data": str(home.path / "mails.jsonl"), "init": "bank", "eval_every": 2}
    return {"kind": "prompt", "recipe": "prompt-tune", "backbone": "tiny", "params": params, "stop": {"iterations": 6}, **fields}


def strict(seconds):
    return {"kind": "strict", "tiers": [{"deadline": time.time() + seconds, "reward": 100.0}]}


def bank_values(jobs, job):
    return dict(jobs.sql(f"SELECT name, value FROM metrics WHERE job_id = {job} AND name LIKE 'bank%'"))


@pytest.mark.slow
def test_a_tuning_says_whether_the_bank_was_used_and_leaves_an_adapter(jobs, home):
    write_bank(home)
    unreached = {"metric": "accuracy", "target": 1.5, "iterations": 4}
    used = jobs.submit("used", **tuning(home, demand=strict(3600), stop=unreached))
    assert jobs.ended(used)["state"] == "completed"
    assert bank_values(jobs, used)["bank_used"] == 1.0 and bank_values(jobs, used)["bank_scores"] == 4 + 2
    assert "; the prompt bank was used: 6 scores in " in command(home, "explain", str(used)).out
    log = (jobs.run_dir(used) / "output.log").read_text()
    assert "the bank is used: 6 of 12 prompts were scored in" in log
    assert "finished at step 4: accuracy did not reach 1.5; it ended at 0." in log or "it ended at 1" in log
    adapter = home.path / "jobs" / str(used) / "checkpoints" / "prompt"
    assert json.loads((adapter / "adapter_config.json").read_text())["num_virtual_tokens"] == 12
    assert json.loads((adapter / "prompt.json").read_text())["started_from"]["text"] in PROMPTS

    assert jobs.sql("SELECT job_id, used, scores, why_not IS NULL FROM bank_use") == [(used, True, 6, True)]


@pytest.mark.slow
@pytest.mark.nightly  # by day in this process: test_initial_prompt.py
def test_a_tuning_without_time_for_a_lookup_says_so(jobs, home):
    write_bank(home)
    late = jobs.submit("late", hold=True, **tuning(home, demand=strict(6)))
    passed = time.time() + 6
    until(lambda: time.time() > passed)
    assert command(home, "release", str(late)).code == 0
    assert jobs.ended(late)["state"] == "completed"
    assert bank_values(jobs, late)["bank_used"] == 0.0
    said = command(home, "explain", str(late)).out
    assert "; the prompt bank was not used: a lookup may take " in said and "more than 20 % of the time until the deadline (0 s)" in said
    assert jobs.sql("SELECT job_id, used, scores, why_not IS NULL FROM bank_use") == [(late, False, 2, False)]


@pytest.mark.nightly  # by day in this process: test_initial_prompt.py, test_prompt_tuning.py
def test_what_is_wrong_is_the_job_s_message(jobs, home):
    none = jobs.submit("none", **tuning(home))
    params = {"data": str(home.path / "mails.txt")}
    wrong = jobs.submit("wrong", **tuning(home, params=params))
    row = jobs.ended(none)
    assert row["state"] == "failed" and row["exit_code"] == 3
    assert f"params.init: there is no prompt bank of {load_llm('tiny').key} in " in row["state_reason"]
    row = jobs.ended(wrong)
    assert row["state"] == "failed" and row["exit_code"] == 2 and "params.data: there is no set " in row["state_reason"]


def test_a_submission_is_checked_against_the_recipe(home, start_daemon, tmp_path):
    start_daemon()
    job = {"recipe": "prompt-tune", "kind": "prompt", "backbone": "smollm3-135m", "params": {"init": "text: Is this spam?"}}
    (tmp_path / "prompt.yaml").write_text(yaml.safe_dump(job))
    said = command(home, "submit", str(tmp_path / "prompt.yaml"))
    assert (
        said.code == 2
        and "backbone: 'smollm3-135m' is not one of smollm2-135m, tiny, OWNER/NAME of Hugging Face's, the path" in said.err
        and "(did you mean 'smollm2-135m'?)" in said.err
    )


@pytest.mark.slow
def test_a_deadline_that_cannot_be_kept_is_said_at_submission_with_the_chance(jobs, home, tmp_path):
    """By a simulation of the pool with its own policy, in which the LLM has to load first."""
    said = command(home, "policy", "set", "prompttuner", "loading=60")
    assert said.code == 0, said.err

    def submitted(deadline, *options):
        job = tuning(home, name="spam", estimate="10m", deadline=deadline)
        (tmp_path / "prompt.yaml").write_text(yaml.safe_dump(job))
        return command(home, "submit", str(tmp_path / "prompt.yaml"), *options)

    said = submitted("5m", "--require-deadline")
    impossible = r"impossible: needs at least 10m.* on 1 GPU, .* are left; the earliest that can be kept"
    assert said.code == 4 and re.search(impossible, said.err) and jobs.sql("SELECT id FROM jobs") == []
    said = submitted("2h", "--dry-run")
    assert "likely met (100% of 32 simulated runs)" in said.err
    said = submitted("10m30s", "--dry-run")
    chance = re.search(r"\((\d+)% of 32 simulated runs\)", said.err)
    assert chance is not None and int(chance[1]) < 90
    said = submitted("5m")
    assert said.code == 0 and "deadline" in said.err and len(jobs.sql("SELECT id FROM jobs")) == 1  # a busy host may not know it at once
