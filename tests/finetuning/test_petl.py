"""Few parameters trained in a model's place: what Stoker makes peft reads, and the other way; what does not fit is never mixed."""

from __future__ import annotations

import json
import resource
import shutil

import pytest
import torch
from stoker.engine.errors import StokerError, UsageError
from stoker.engine.spec.model import Memory
from stoker.runners.backbones.hub_model import library, load
from stoker.runners.train.checkpoint import CheckpointError
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from tiny_models import ALONE, build, same, save, trainer, weights
from torch import nn

pytestmark = [pytest.mark.xdist_group("tiny models"), pytest.mark.filterwarnings("ignore::UserWarning:peft.*")]

TEXT = {"recipe": "text-classifier", "data": "mails", "lr": 1e-2}
LM = {"recipe": "causal-lm", "data": "text", "context": 16, "lr": 1e-2}
FORMS = [("bert", TEXT, "lora"), ("llama", TEXT, "prompt"), ("bert", TEXT, "adapter"), ("qwen2", LM, "lora"), ("qwen2", LM, "prompt")]
each_form = pytest.mark.parametrize(("model", "job", "petl"), FORMS)
TOKENS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def made(model_of, data):
    def make(model, job, **params):
        job = {**job, **params}
        return build(job.pop("recipe"), model_of(model), **{**job, "data": data.get(job["data"], job["data"])})

    return make


@pytest.fixture(scope="module")
def trained(model_of, data, tmp_path_factory):
    """Directory of an adapter of BERT, and the training that left it."""
    done = trainer(build("text-classifier", model_of("bert"), data=data["mails"], petl="lora", lr=1e-2), tmp_path_factory.mktemp("trained"))
    assert done.run()
    return done.checkpoints.path / "adapter", done


def base(path, job):
    auto = library("transformers")
    found = (auto.AutoModel if job is TEXT else auto.AutoModelForCausalLM).from_pretrained(path)
    return found.eval()


def answer(model, job):
    with torch.no_grad():
        out = model(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS))
    return out.last_hidden_state if job is TEXT else out.logits


def adapted(task):
    """peft's model within ours."""
    return (task.model.encoder.body if hasattr(task.model, "encoder") else task.model.model).eval()


@each_form
def test_peft_reads_what_a_job_left_and_computes_the_same(model, job, petl, made, model_of, tmp_path):
    done = trainer(made(model, job, petl=petl), tmp_path)
    before = weights(done)
    assert done.run()
    changed = {name for name, value in weights(done).items() if not torch.equal(value, before[name])}
    kinds = {"lora": "lora_", "adapter": "ia3_", "prompt": "prompt_encoder"}
    assert changed and all(kinds[petl] in name or name.startswith("head.") for name in changed)
    folder = done.checkpoints.path / "adapter"
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors", "stoker.json"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000
    peft = library("peft")
    theirs = peft.PeftModel.from_pretrained(base(model_of(model), job), str(folder)).eval()
    found = answer(theirs, job)
    assert torch.equal(found, answer(adapted(done.task), job))
    if petl != "prompt":
        assert not torch.allclose(found, answer(base(model_of(model), job), job), atol=1e-6)


@each_form
@pytest.mark.sampled(2)
def test_a_job_begins_with_what_peft_made(model, job, petl, made, model_of, tmp_path):
    peft = library("peft")
    kind = "FEATURE_EXTRACTION" if job is TEXT else "CAUSAL_LM"
    config = {
        "lora": lambda: peft.LoraConfig(task_type=kind, r=3, lora_dropout=0.1, target_modules="all-linear"),
        "adapter": lambda: peft.IA3Config(task_type=kind),
        "prompt": lambda: peft.PromptTuningConfig(task_type=kind, num_virtual_tokens=3),
    }[petl]()
    theirs = peft.get_peft_model(base(model_of(model), job), config)
    with torch.no_grad():
        for each in theirs.parameters():
            each.copy_(torch.randn_like(each) if each.requires_grad else each)
    theirs.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    task = made(model, job, adapter=str(tmp_path / "theirs"))
    assert torch.equal(answer(adapted(task), job), answer(theirs.eval(), job))
    assert trainer(task, tmp_path).run()


@each_form
@pytest.mark.sampled(2)
def test_left_and_resumed_it_ends_with_the_same_bits(model, job, petl, made, tmp_path, monkeypatch):
    whole = trainer(made(model, job, petl=petl), tmp_path / "whole")
    assert whole.run()
    first = trainer(made(model, job, petl=petl), tmp_path / "parts")
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 2)
    assert not first.run()
    monkeypatch.undo()
    assert all("lora" in name or "ia3" in name or "prompt" in name or "head" in name for name in first.checkpoints.load()["model"])
    second = trainer(made(model, job, petl=petl), tmp_path / "parts")
    assert second.step == 2 and second.run()
    assert same(weights(whole), weights(second))
    name = "adapter/adapter_model.safetensors"
    assert (whole.checkpoints.path / name).read_bytes() == (second.checkpoints.path / name).read_bytes()


def test_in_parts_it_is_the_plain_training_to_the_bit(made, tmp_path):
    plain = trainer(made("qwen2", LM, petl="lora"), tmp_path / "plain", memory=Memory(swap="off", accumulate=2))
    swapped = trainer(made("qwen2", LM, petl="lora"), tmp_path / "parts", memory=Memory(cap=340 << 10, accumulate=2))
    assert plain.run() and swapped.run()
    assert same(weights(plain), weights(swapped))


def test_a_job_begins_where_another_ended_also_with_its_head_if_the_classes_are_the_same(trained, made, tmp_path):
    folder, done = trained
    again = made("bert", TEXT, adapter=str(folder))
    assert same(again.model.state_dict(), weights(done))
    rows = [json.dumps({"text": f"note {number}", "label": "abc"[number % 3]}) for number in range(30)]
    (tmp_path / "other.jsonl").write_text("\n".join(rows))
    other = made("bert", TEXT, adapter=str(folder), data=str(tmp_path / "other.jsonl"))
    ours, theirs = other.model.state_dict(), weights(done)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if not name.startswith("head."))
    assert len(other.model.head.weight) == 3

    # and by its checkpoints, as `weights: job:NAME` has it
    task = made("bert", TEXT, petl="lora", seed=3)
    begun = Trainer(task, done.stop, tmp_path / "checkpoints", ALONE, begin_from=done.checkpoints.path)
    names = [name for name in theirs if "lora_" in name]
    assert names and all(torch.equal(begun.model.state_dict()[name], theirs[name]) for name in names)


def test_nothing_of_a_frozen_body_drops_out(made):
    task = made("bert", TEXT, petl="lora")
    task.model.train()
    assert not any(each.training for each in task.model.encoder.body.modules() if isinstance(each, nn.Dropout))
    one, other = (task.model.encoder(TOKENS, TOKENS > 0) for _ in range(2))
    assert torch.equal(one, other)


def test_layers_are_found_in_models_that_call_them_otherwise(model_of):
    from stoker.runners.finetune.petl import _targets

    assert _targets(load(str(model_of("bert"))).body, "auto") == ["query", "value"]
    assert _targets(load(str(model_of("llama"))).body, "auto") == ["q_proj", "v_proj"]
    odd = nn.Sequential(*(nn.Sequential() for _ in range(2)))
    for each in odd:
        each.mix = nn.Linear(2, 2)
    odd.head = nn.Linear(2, 2)
    assert _targets(odd, "auto") == ["mix"]
    assert _targets(load(str(model_of("bert"))).body, "key, output.dense") == ["key", "output.dense"]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"petl": "lora", "targets": "qeury"}, r"params.targets: no layer is called 'qeury'; there are .*query"),
        ({"petl": "lora", "targets": " , "}, r"params.targets: no layer is called"),
        ({"petl": "prompt", "targets": "query"}, r"params.targets: a prompt changes no modules"),
        ({"petl": "prompt", "r": 120}, r"params.r: 120 tokens and params.max_tokens are more than .* reads at once, 128"),
        ({"adapter": "nowhere"}, r"params.adapter: nowhere has no adapter that can be read"),
    ],
)
def test_what_cannot_be_is_one_line(params, line, made):
    with pytest.raises(StokerError, match=line) as told:
        made("bert", TEXT, **params)
    assert "\n" not in str(told.value)


def test_petl_is_for_what_was_trained(data):
    with pytest.raises(UsageError, match=r"params.petl: there is nothing to adapt with backbone: none; leave it out"):
        build("causal-lm", "none", data=data["text"], petl="lora")


def spoilt(folder, what):
    if what == "cut":
        path = folder / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
    elif what == "no config":
        (folder / "adapter_config.json").unlink()
    else:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | what))


@pytest.mark.parametrize(
    ("what", "params", "line"),
    [
        ("cut", {}, r"has no adapter that can be read"),
        ("no config", {}, r"has no adapter_config.json; give a directory written by peft or Stoker"),
        ({"peft_type": "LOHA"}, {}, r"is of the kind LOHA; Stoker tunes LORA, IA3, PROMPT_TUNING"),
        ({"init_lora_weights": "pissa"}, {}, r"changes the backbone's own weights \(pissa\); convert it to plain LoRA"),
        ({"r": 3}, {}, r"does not fit the backbone: "),
        ({"target_modules": ["query", "key"]}, {}, r"does not fit the backbone: 16 of its weights have no counterpart"),
        ({"task_type": "CAUSAL_LM"}, {}, r"is of a model for CAUSAL_LM, and this is one for FEATURE_EXTRACTION; never mixed"),
        ({}, {"petl": "prompt"}, r"params.petl: prompt is another form than that of .*, LORA; leave petl out, or the adapter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_never_taken(what, params, line, trained, made, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "adapter")
    spoilt(folder, what)
    with pytest.raises(StokerError, match=line) as told:
        made("bert", TEXT, adapter=str(folder), **params)
    assert "\n" not in str(told.value)


def test_an_adapter_of_other_weights_of_the_same_shapes_is_never_taken(trained, data, tmp_path):
    other = save("bert", tmp_path / "bert", seed=1)
    with pytest.raises(
        StokerError, match=r"params.adapter: .* is of .*bert \(\w+\), and the backbone here is .*bert \(\w+\); they are never"
    ):
        build("text-classifier", other, data=data["mails"], adapter=str(trained[0]))


def test_a_full_disk_at_the_end_is_one_line(trained, tmp_path):
    _, done = trained
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CheckpointError, match=r"^cannot write the adapter to .*; free some space there") as error:
            done.task.finish(done.model, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
