"""The bank, a lookup and a tuning from end to end, nothing doubled: an LLM of random weights, a real daemon, a real runner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e import DaemonProcess, command

pytestmark = pytest.mark.slow

ROWS = [("win cash now", "spam"), ("claim your prize", "spam"), ("see you at noon", "ham"), ("thanks for dinner", "ham")] * 12


@pytest.mark.nightly  # a tuning with the bank, live: test_prompt_jobs.py
def test_a_tuning_begins_with_what_the_bank_gives(start_daemon, start_runner, tmp_path: Path) -> None:
    daemon: DaemonProcess = start_daemon()
    start_runner(slots=1)
    (tmp_path / "mails.csv").write_text("text,label\n" + "".join(f"{text} {row},{label}\n" for row, (text, label) in enumerate(ROWS)))
    texts = ["Is this mail spam?", "Sort this mail", "Translate into French", "Is this film good?", "What is asked here?"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "tune.yaml").write_text(
        "name: mails\nrecipe: prompt-tune\nstop: {iterations: 100}\n"
        f"params: {{backbone: tiny, data: {tmp_path / 'mails.csv'}, init: bank, tokens: 4, eval_limit: 4}}\n"
    )

    said = command(daemon.home, "prompt", "bank", "build", "--llm", "tiny", "--from", str(tmp_path / "texts.jsonl"), "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["prompts"] == 5
    said = command(daemon.home, "prompt", "lookup", "--llm", "tiny", "--data", "mails.csv", "--here", "--json", cwd=tmp_path)
    assert said.code == 0, said.err
    best = json.loads(said.out)["candidates"][0]["text"]
    assert best in texts
    said = command(daemon.home, "prompt", "tune", str(tmp_path / "tune.yaml"), "--iterations", "4", "--json")
    assert said.code == 0, said.err
    tuned = json.loads(said.out)
    assert tuned["job"]["state"] == "completed" and tuned["progress"]["step"] == 4
    assert tuned["prompt"]["started_from"]["text"] in texts and "used: " in tuned["prompt"]["started_from"]["bank"]
    assert (Path(tuned["path"]) / "adapter_model.safetensors").exists()
    assert "; the prompt bank was used: " in command(daemon.home, "explain", "mails").out
    assert json.loads(command(daemon.home, "show", "mails", "--json").out)["job"]["kind"] == "prompt"

    said = command(daemon.home, "prompt", "bank", "add", "--job", "mails", "--here", "--json")
    assert said.code == 0 and json.loads(said.out)["added"] == 1, said.err
    assert command(daemon.home, "prompt", "bank", "add", "--job", "mails", "--here").out.endswith("0 prompts added, 1 known before\n")
    (row,) = json.loads(command(daemon.home, "prompt", "bank", "search", "tuned", "--json").out)
    assert row["task"] == "mails.csv" and row["source"] == f"job {tuned['job']['id']}" and row["medoid"] is not None
    said = command(daemon.home, "prompt", "bank", "show", str(row["id"]))
    assert "4 tokens, with which a tuning begins" in said.out
    said = command(daemon.home, "prompt", "bank", "add", "--job", "1", "--here")  # that of 'bank build'
    assert said.code == 3 and "job 1 (completed) has left no tuned prompt on this host" in said.line
    states = {row["state"] for row in json.loads(command(daemon.home, "ps", "--all", "--json").out)}
    assert states == {"completed"}, "the build's job too"
    (tmp_path / "toy.yaml").write_text("recipe: toy\n")
    said = command(daemon.home, "prompt", "tune", str(tmp_path / "toy.yaml"))
    assert said.code == 2 and "of recipe prompt-tune" in said.line


@pytest.mark.nightly  # by day without a process: test_prompt_commands.py, test_backbones.py
def test_a_lookup_that_cannot_be_is_told_in_a_line(start_daemon, tmp_path: Path) -> None:
    daemon: DaemonProcess = start_daemon()
    (tmp_path / "mails.csv").write_text("text,label\nwin cash now,spam\nsee you at noon,ham\n")
    said = command(daemon.home, "prompt", "lookup", "--llm", "smollm2", "--data", "mails.csv", "--here", cwd=tmp_path)
    assert said.code == 3 and "there is no LLM 'smollm2' (did you mean 'smollm2-135m'?)" in said.line
    said = command(daemon.home, "prompt", "lookup", "--llm", "tiny", "--data", "nowhere.csv", "--here", cwd=tmp_path)
    assert said.code in (2, 3) and "nowhere.csv" in said.line
