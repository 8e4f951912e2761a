"""A prompt bank of a model that people have: named by the last part of its path, told from others by its revision, never mixed."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest
from stoker.engine.cli.prompts import prompt_checks
from stoker.engine.errors import Conflict, UsageError
from stoker.engine.home import Home
from stoker.runners.backbones.pretrained import read_llm
from stoker.runners.prompts import bank_work
from stoker.runners.prompts.adapter_file import read_adapter
from stoker.runners.prompts.bank_llm import BankLlm
from tiny_models import build, save, trainer

#: what serves a bank is a process of its own, which leaves its file open
pytestmark = [pytest.mark.xdist_group("tiny models"), pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def asked(folder, work, path, home, **more):
    folder.mkdir()
    (folder / "request.json").write_bytes(msgspec.json.encode({"work": work, "llm": str(path), "home": str(home), **more}))
    bank_work.serve(folder, lambda name: BankLlm(read_llm(name)))
    return [json.loads(line) for line in (folder / "answer.jsonl").read_text().splitlines()]


def test_features_and_tuned_prompts_are_of_the_model_and_of_no_other(model_of, data, tmp_path):
    path = model_of("qwen2")
    done = trainer(build("prompt-tune", path, data=data["mails"], tokens=4), tmp_path / "job")
    assert done.run()
    prompt = done.checkpoints.path / "prompt"
    llm = read_llm(str(path))
    assert (llm.name, llm.key) == ("qwen2", f"qwen2@{llm.revision}")
    bank, some, _ = asked(tmp_path / "features", "features", path, tmp_path, texts=["a prompt", "another"])
    assert bank["bank"] == {"llm": "qwen2", "revision": llm.revision, "tokenizer": llm.tokens}
    assert len(some["features"]) == 2 and len(some["features"][0]) == 32
    _, tuned, _ = asked(tmp_path / "tuned", "tuned", path, tmp_path, folders=[str(prompt)])
    assert len(tuned["vectors"]) == 4 * 32
    other = read_llm(str(save("qwen2", tmp_path / "qwen2", seed=1)))
    assert other.name == llm.name and other.revision != llm.revision
    with pytest.raises(Conflict, match="they are never mixed: tune it again on this one"):
        read_adapter(prompt, other)
    with pytest.raises(Conflict):
        read_adapter(prompt, dataclasses.replace(llm, tokens="others"))


def test_the_command_line_takes_a_directory_and_calls_its_bank_by_its_last_part(model_of, tmp_path, monkeypatch):
    path = model_of("llama")
    assert prompt_checks.require_llm(str(path)) == (str(path), "llama")
    monkeypatch.chdir(path.parent)
    assert prompt_checks.require_llm("./llama") == (str(path), "llama")
    assert prompt_checks.require_llm("tiny") == ("tiny", "tiny")
    with pytest.raises(UsageError, match=r"--llm: .*/lama does not exist"):
        prompt_checks.require_llm("./lama")
    prompt_checks.require_tuning(Home(tmp_path), {"data": "bbc"}, str(path), str(tmp_path))
