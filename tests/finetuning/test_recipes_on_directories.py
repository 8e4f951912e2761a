"""Recipes on backbones that people have: they learn, resume to the last bit, and train the same in parts."""

from __future__ import annotations

import pytest
import torch
from stoker.engine.spec.model import Memory
from stoker.runners.backbones.hub_body import HubTexts
from stoker.runners.backbones.hub_model import load
from stoker.runners.worker import script
from tiny_models import STEPS, build, same, trainer, weights

pytestmark = pytest.mark.xdist_group("tiny models")

#: recipe, model, params, and a cap of memory under which all of it is trained in parts
JOBS = {
    "causal-lm on Llama": ("causal-lm", "llama", {"data": "text", "context": 16, "lr": 1e-2}, 460 << 10),
    "causal-lm on Qwen2": ("causal-lm", "qwen2", {"data": "text", "context": 16, "lr": 1e-2}, 420 << 10),
    "text-classifier on BERT": ("text-classifier", "bert", {"data": "mails", "layers": "all"}, 560 << 10),
    "text-classifier on Llama": ("text-classifier", "llama", {"data": "mails", "layers": "last"}, 460 << 10),
    "prompt-tune on Qwen2": ("prompt-tune", "qwen2", {"data": "mails", "tokens": 4}, None),
}
each_job = pytest.mark.parametrize(("recipe", "model", "params", "cap"), JOBS.values(), ids=JOBS)


@pytest.fixture
def made(model_of, data):
    def make(recipe, model, params):
        return build(
            recipe, model_of(model), **{name: data.get(value, value) if name == "data" else value for name, value in params.items()}
        )

    return make


@each_job
@pytest.mark.sampled(2)
def test_left_and_resumed_it_ends_with_the_same_bits(recipe, model, params, cap, made, tmp_path, monkeypatch):
    whole = trainer(made(recipe, model, params), tmp_path / "whole")
    before = weights(whole)
    assert whole.run()
    first = trainer(made(recipe, model, params), tmp_path / "parts")
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 2)
    assert not first.run()
    monkeypatch.undo()
    second = trainer(made(recipe, model, params), tmp_path / "parts")
    assert second.step == 2 and second.run()
    assert same(weights(whole), weights(second)) and not same(weights(whole), before)


@pytest.mark.parametrize(
    ("recipe", "model", "params", "cap"), [job for job in JOBS.values() if job[3]], ids=[n for n, j in JOBS.items() if j[3]]
)
@pytest.mark.sampled(2)
def test_in_parts_it_is_the_plain_training_to_the_bit(recipe, model, params, cap, made, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(script, "report", lambda **values: told.append(values))

    def losses():
        found = [{name: each[name] for name in ("loss", "eval_loss", "accuracy") if name in each} for each in told]
        peaks = [each["swap_peak"] for each in told if "swap_peak" in each]
        told.clear()
        return [each for each in found if each], peaks

    plain = trainer(made(recipe, model, params), tmp_path / "plain", memory=Memory(swap="off", accumulate=2))
    assert plain.run()
    expected, _ = losses()
    swapped = trainer(made(recipe, model, params), tmp_path / "parts", memory=Memory(cap=cap, accumulate=2))
    assert swapped.run()
    found, peaks = losses()
    assert found == expected and same(weights(plain), weights(swapped))
    assert len(peaks) == STEPS and max(peaks) <= cap


@pytest.mark.parametrize(("model", "places"), [("bert", "layer.3"), ("llama", "layers.3")])
def test_as_much_is_trained_as_is_said(model, places, model_of):
    found = load(str(model_of(model)))
    for layers, trained in (("head", []), ("last", [places, "norm.weight"]), ("all", [""])):
        body = HubTexts(found, layers).train()
        names = [name for name, each in body.named_parameters() if each.requires_grad]
        assert all(any(one in name for one in trained) for name in names) and bool(names) == bool(trained)
        frozen = body.body.get_submodule(places.replace("layer.3", "encoder.layer.0") if model == "bert" else "layers.0")
        assert frozen.training == (layers == "all")


def test_padding_changes_nothing_of_a_text(model_of):
    for model in ("bert", "llama"):
        texts = HubTexts(load(str(model_of(model))), "head").eval()
        tokens, mask = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
        with torch.no_grad():
            assert torch.allclose(texts(tokens, mask)[:1], texts(tokens[:1, :3], mask[:1, :3]), atol=1e-6)


def test_a_prompt_is_answered_as_by_the_model_itself(model_of, made):
    for model in ("llama", "qwen2"):
        task = made("prompt-tune", model, {"data": "mails", "tokens": 4})
        soft, (ids, _) = task.model, task.train[0]
        hub = load(str(model_of(model))).model
        with torch.no_grad():
            vectors = torch.cat([soft.prompt, hub.get_input_embeddings()(torch.tensor(ids))])
            expected = hub(inputs_embeds=vectors[None]).logits[0, -1, soft.answers]
            longer = torch.tensor([[*ids, 0, 0], [*ids[1:], *ids[:3]]])
            assert torch.allclose(soft(longer, torch.tensor([len(ids) - 1, len(ids) + 1]))[0], expected, atol=1e-5)


def test_other_kinds_of_numbers_and_of_attention(made, tmp_path):
    narrow = made("causal-lm", "llama", {"data": "text", "context": 16, "dtype": "bfloat16", "attention": "eager"})
    assert {each.dtype for each in narrow.model.parameters()} == {torch.bfloat16}
    assert narrow.model.model.config._attn_implementation == "eager"
    assert trainer(narrow, tmp_path).run()


def test_what_is_trained_answers_too(made, model_of):
    task = made("causal-lm", "qwen2", {"data": "text", "context": 16})
    hub, ids = load(str(model_of("qwen2"))).model, list(range(65, 75))
    with torch.no_grad():
        expected = hub.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, 10).long(), max_new_tokens=6, do_sample=False, use_cache=True
        )
        assert task.model.eval().continuation(ids, 6) == expected[0, 10:].tolist()
    asked = task.prepare({"text": "one two", "tokens": 3})
    prompt = made("causal-lm", "qwen2", {"data": "text", "context": 16, "petl": "prompt", "r": 2})
    with torch.no_grad():
        assert isinstance(task.answer(task.model, [asked])[0], str) and isinstance(prompt.answer(prompt.model.eval(), [asked])[0], str)
        classify = made("text-classifier", "bert", {"data": "mails"})
        answers = classify.answer(classify.model.eval(), [classify.prepare(text) for text in ("note 1 zz", "")])
    assert len(answers) == 2
