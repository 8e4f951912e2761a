"""Prompt tuning on a tiny LLM: it learns, resumes to the last bit, is written for peft; and on the real one where it can be had."""

import json

import pytest
import torch
from stoker.engine.errors import StokerError, Unreachable, UsageError
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners.backbones import packaged
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.prompts import soft_prompt
from stoker.runners.prompts.activations import features
from stoker.runners.prompts.labelled_samples import batch_of, load_samples
from stoker.runners.prompts.prompt_score import score
from stoker.runners.recipes import find
from stoker.runners.train import rng
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks

#: One worker of the tests imports transformers, and reads the models.
pytestmark = pytest.mark.xdist_group("tiny models")

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def as_a_worker(one_thread):
    with rng.preserved():
        yield


@pytest.fixture
def mails(tmp_path):
    """Samples that even a random LLM can tell apart: their last words differ."""
    rows = ["text,label"]
    rows += [f"note {number} says {'zzzz' if number % 2 else 'aaaa'},{'good' if number % 2 else 'bad'}" for number in range(80)]
    path = tmp_path / "mails.csv"
    path.write_text("\n".join(rows))
    return path


def train(folder, data, steps, **params):
    rng.seed_all(0)
    spec = JobSpec(name="job", recipe="prompt-tune", backbone="tiny", params={"data": str(data), "lr": 0.05, **params})
    return Trainer(worker.build(spec), Stop(iterations=steps), folder / "checkpoints", ALONE)


def test_a_prompt_learns_what_the_frozen_llm_does_not_know(tmp_path, mails):
    frozen = {name: value.clone() for name, value in load_llm("tiny").model.state_dict().items()}
    trainer = train(tmp_path, mails, 120, batch_size=16, tokens=24, lr=0.1, eval_every=0)
    with torch.no_grad():
        before = trainer.task.evaluate(trainer.model)["eval_loss"]
    assert trainer.run()
    with torch.no_grad():
        after = trainer.task.evaluate(trainer.model)
    assert after["eval_loss"] < 0.8 * before and after["accuracy"] >= 0.75
    assert all(torch.equal(value, frozen[name]) for name, value in load_llm("tiny").model.state_dict().items())
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*120")
    assert list(torch.load(checkpoint / "state.pt", weights_only=True)["model"]) == ["prompt"]


def test_it_resumes_to_the_last_bit(tmp_path, monkeypatch, mails):
    whole = train(tmp_path / "whole", mails, 20)
    assert whole.run()
    first = train(tmp_path / "parts", mails, 20)
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 9)
    assert not first.run()
    monkeypatch.undo()
    second = train(tmp_path / "parts", mails, 20)
    assert second.step == 9 and second.run()
    assert torch.equal(whole.model.prompt, second.model.prompt)


def test_a_tuned_prompt_is_written_for_peft_and_for_people(tmp_path, mails):
    from safetensors.torch import load_file

    trainer = train(tmp_path, mails, 3, init="text: sort mails")
    assert trainer.run()
    folder = tmp_path / "checkpoints" / "prompt"
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors", "prompt.json"]
    weights = load_file(folder / "adapter_model.safetensors")
    assert list(weights) == ["prompt_embeddings"] and torch.equal(weights["prompt_embeddings"], trainer.model.prompt)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["num_virtual_tokens"], config["token_dim"]) == ("PROMPT_TUNING", 12, 32)
    about = json.loads((folder / "prompt.json").read_text())
    assert about["llm"] == load_llm("tiny").key
    assert about["answers"] == {"bad": " A", "good": " B"}  # to tiny, " bad" and " good" begin alike
    assert about["started_from"] == {"init": "text", "text": "sort mails"} and about["input"] == "{prompt}{text}\nAnswer:"
    assert about["nearest_tokens"] == "sort mailsso"  # three steps have moved no vector away from its token


def test_peft_reads_it_where_it_is_installed(tmp_path, mails):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    trainer = train(tmp_path, mails, 3)
    assert trainer.run()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(packaged.directory("tiny"))
    loaded = peft.PeftModel.from_pretrained(theirs, tmp_path / "checkpoints" / "prompt").eval()
    tokens, last, _ = batch_of(trainer.task.train[:1])
    with torch.no_grad():
        expected = loaded(tokens, attention_mask=torch.ones_like(tokens)).logits[0, -1, trainer.model.answers]
        assert torch.allclose(trainer.model.eval()(tokens, last)[0], expected, atol=1e-4)


def test_a_text_is_tokenised_when_it_is_first_used(tmp_path, mails, caplog):
    """A step of four samples reads four texts, not the set; a text is cut where it is too long, which the log says once and counts."""
    caplog.set_level("INFO")
    trainer = train(tmp_path, mails, 2, batch_size=4, max_tokens=8, eval_every=0, eval_limit=3)
    assert trainer.task.train.read == 0
    assert trainer.run()
    llm, read = load_llm("tiny"), trainer.task.train
    assert read.read == 8 and caplog.text.count("there are texts of more than 8 tokens, which are cut there (max_tokens)") == 2
    assert "8 of the 8 training texts were cut (max_tokens)" in caplog.text  # the other line is of the held-out texts
    whole = load_samples(llm, str(mails), max_tokens=100).train
    assert [read[row] for row in range(len(read))] == [
        (whole[row][0][:8] + llm.ids("\nAnswer:"), whole[row][1]) for row in range(len(whole))
    ]
    assert list(read[3:5]) == [read[3], read[4]] and read.labels == [label for _, label in read] and read.read == len(read)


# ---- scores and features ----


def test_scores_are_the_loss_that_a_tuning_begins_with(mails):
    llm = load_llm("tiny")
    samples = load_samples(llm, str(mails), max_tokens=32)
    common = samples.common(16, 0)
    texts = ["a", "sort these mails into good and bad, and be quick about it", "a"]
    found = score(llm, texts, common, samples.answers, length=12)
    model = soft_prompt.SoftPrompt(llm, soft_prompt.of_text(llm, texts[1], 12), samples.answers)
    by_hand = []
    for ids, label in common:  # one at a time, the whole input at once, all logits
        vectors = torch.cat([model.prompt, llm.model.embed_tokens(torch.tensor(ids))])
        states = llm.model.states(vectors[None])
        logits = torch.nn.functional.linear(states[0, -1], llm.model.embed_tokens.weight)[list(samples.answers)]
        by_hand.append(-logits.log_softmax(-1)[label].item())
    assert found[1] == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-5)
    assert found[0] == found[2] and score(llm, texts[:1], common, samples.answers, length=12)[0] == found[0]


def test_common_samples_are_balanced_of_the_training_part_and_the_same_for_all(mails):
    samples = load_samples(load_llm("tiny"), str(mails), max_tokens=32)
    common = samples.common(16, seed=3)
    assert common == samples.common(16, seed=3) != samples.common(16, seed=4)
    assert [label for _, label in common].count(0) == 8
    held_out = {tuple(ids) for ids, _ in samples.held_out}
    assert all(sample in samples.train and tuple(sample[0]) not in held_out for sample in common)


def test_features_tell_texts_apart_and_do_not_depend_on_their_neighbours():
    llm = load_llm("tiny")
    found = features(llm, ["one text", "another one", "one text", "x" * 5000])
    assert found.shape == (4, 32) and found.dtype == "float32"
    assert (found[0] == found[2]).all() and not (found[0] == found[1]).all()
    assert (features(llm, ["one text"])[0] == found[0]).all()
    assert (features(llm, ["x" * 128])[0] == found[3]).all()  # what is longer is read to there
    assert features(llm, []).shape == (0, 32)


def test_starts_are_of_the_asked_length_and_the_same_each_time():
    llm = load_llm("tiny")
    assert torch.equal(soft_prompt.of_text(llm, "ab", 5), llm.model.embed_tokens(torch.tensor(llm.ids("ababa"))))
    assert torch.equal(soft_prompt.of_text(llm, "abcdef", 3), llm.model.embed_tokens(torch.tensor(llm.ids("abc"))))
    for start in (soft_prompt.of_vocabulary, soft_prompt.of_numbers):
        assert start(llm, 7, 1).shape == (7, 32) and torch.equal(start(llm, 7, 1), start(llm, 7, 1))
        assert not torch.equal(start(llm, 7, 1), start(llm, 7, 2))
    assert soft_prompt.nearest_text(llm, soft_prompt.of_text(llm, "naïve", 6) * 3) == "naïve"


# ---- bad input ----

ROWS = "\n".join(f"text {number},{'a' if number % 2 else 'b'}" for number in range(40))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "text,label\nhello,a\nbye,\n", r"params.data: x.csv, line 3 has no label; each sample is"),
        ("x.csv", "text,label\nhello\n", r"params.data: x.csv, line 2 has no label"),
        ("x.jsonl", '{"text": "hello"}\n', r"params.data: x.jsonl, line 1 has no label"),
        ("x.jsonl", '{"text": "", "label": 1}\n', r"params.data: x.jsonl, line 1 has no text"),
        ("x.jsonl", "hello\n", r"params.data: x.jsonl, line 1 is not JSON"),
        ("x.jsonl", "[1]\n", r"params.data: x.jsonl, line 1 has no text"),
        ("x.csv", "words,label\nhello,a\n", r"params.data: x.csv has no column 'text'; its first line names words, label"),
        ("x.csv", "", r"params.data: x.csv has no column 'text'; its first line names nothing"),
        ("x.csv", "text,label\n", r"x.csv has no samples; there must be some of each label"),
        ("x.csv", "text,label\n" + ROWS.replace("b", "a"), r"all samples of .*x.csv have the label 'a'; a tuning needs two labels or more"),
        (
            "x.csv",
            "text,label\n" + ROWS + "\nrare,c",
            r"x.csv has one sample of 'c'; bring two or more of each label: one is held out",
        ),
        ("x.csv", "text,label\n" + "\n".join(f"{n},label {n}" for n in range(40)), r"has 40 labels; 26 can be told apart at most"),
        ("x.csv", b"\xff\xfe", r"params.data: x.csv, line 1 is not text in UTF-8 \(byte 0xff\)"),
        ("x.txt", "", r"params.data: there is no set '.*x.txt'.*; there are trec, .*; or give FILE.csv, FILE.jsonl or FILE.parquet"),
    ],
)
def test_samples_that_cannot_be_tuned_on_are_named_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message) as raised:
        load_samples(load_llm("tiny"), str(tmp_path / name), max_tokens=32)
    assert "\n" not in str(raised.value)


def test_what_is_longer_than_the_context_is_refused(tmp_path, mails):
    with pytest.raises(UsageError, match=r"params.max_tokens: 320 tokens with prompt and question are more than the context of tiny, 256"):
        train(tmp_path, mails, 1, max_tokens=300)
    with pytest.raises(UsageError, match=r"params.data: .*none.csv cannot be read: No such file or directory"):
        train(tmp_path, tmp_path / "none.csv", 1)


@pytest.mark.parametrize(
    ("params", "backbone", "message"),
    [
        ({"init": "bnak"}, None, r"params.init: 'bnak' is not one of bank, random, vocabulary, 'text: …' \(did you mean 'bank'\?\)"),
        ({}, "smollm3", r"params.backbone: 'smollm3' is not one of smollm2-135m, tiny"),
    ],
)
def test_what_is_asked_of_the_recipe_is_checked(params, backbone, message):
    with pytest.raises(UsageError, match=message):
        find("prompt-tune").resolve(params, backbone)
    assert find("prompt-tune").resolve({"init": "text: Is this spam?"}, "tiny")["backbone"] == "tiny"


def test_an_init_without_a_text_is_refused(tmp_path, mails):
    with pytest.raises(UsageError, match=r"params.init: no text stands after 'text:'"):
        train(tmp_path, mails, 1, init="text: ")


# ---- the real one ----


@pytest.mark.nightly  # a claim of the evaluation: the tiny one learns above, and test_backbones.py reads the real one
def test_spam_is_learned_by_the_real_llm(tmp_path):
    try:
        load_llm("smollm2-135m")
        rng.seed_all(0)
        params = {"data": "sms-spam", "init": "text: Is this message spam?", "eval_every": 0, "eval_limit": 8}
        task = worker.build(JobSpec(name="job", recipe="prompt-tune", backbone="smollm2-135m", params=params))
    except Unreachable as error:
        pytest.skip(str(error))
    trainer = Trainer(task, Stop(iterations=5), tmp_path / "checkpoints", ALONE)
    with torch.no_grad():
        before = trainer.task.evaluate(trainer.model)["eval_loss"]
    assert trainer.run()
    with torch.no_grad():
        assert trainer.task.evaluate(trainer.model)["eval_loss"] < before


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path, mails):
    trainer = train(tmp_path, mails, 1)
    for name in [name for name in __import__("sys").modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(StokerError, match=r"needs the package 'safetensors'; install it with: pip install '.\[llm\]'"):
        trainer.run()
