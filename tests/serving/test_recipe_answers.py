"""What recipes answer is what they have learnt: as their own evaluation says it."""

from __future__ import annotations

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import JobSpec
from stoker.runners.recipes import RECIPES, find
from stoker.runners.recipes import text as text_recipe
from stoker.runners.worker.worker import build

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server", "one_thread")]


def built(name, **params):
    recipe = find(name)
    torch.manual_seed(0)
    task = recipe.load()(**recipe.resolve(params))
    task.model.eval()
    return task


def answers(task, *requests):
    with torch.no_grad():
        return list(task.answer(task.model, [task.prepare(request) if task.prepare else request for request in requests]))


def test_every_recipe_that_is_said_to_answer_does():
    assert {name for name, recipe in RECIPES.items() if recipe.answers} == {
        "text-classifier",
        "image-classifier",
        "digits-cnn",
        "causal-lm",
        "toy",
    }


def test_a_text_has_a_label_whoever_is_in_its_batch():
    from stoker.runners import texts

    task = built("text-classifier", limit=16, eval_limit=16)
    data = texts.load("trec")
    held_out = data.held_out[:16]
    found = answers(task, *(text for text, _ in held_out))
    right = sum(answer["label"] == data.classes[label] for answer, (_, label) in zip(found, held_out, strict=True))
    with torch.no_grad():
        assert right / 16 == task.evaluate(task.model)["accuracy"]
    (alone,) = answers(task, held_out[0][0])
    assert alone["label"] == found[0]["label"] and alone["probability"] == pytest.approx(found[0]["probability"], abs=1e-5)
    with pytest.raises(UsageError, match="a request is a text, not int"):
        task.prepare(3)


def test_a_server_of_texts_prepares_no_training_set_and_answers_alike(monkeypatch):
    params = {"limit": 300, "eval_limit": 20}
    trained, tokenised = built("text-classifier", **params), []
    monkeypatch.setattr(text_recipe, "_tokenised", lambda tokenizer, rows: tokenised.extend(rows) or [([0], 0)])
    torch.manual_seed(0)
    server = build(JobSpec(name="job", kind="infer", recipe="text-classifier", params=params))
    assert len(tokenised) == 2
    server.model.eval().load_state_dict(trained.model.state_dict())
    assert answers(server, "how far is it") == answers(trained, "how far is it")


def test_an_image_has_a_digit():
    task = built("digits-cnn")
    images, labels = task.train.images[:50], task.train.labels[:50]
    requests = [(image[0] * 255).round().int().tolist() for image in images]
    found = [answer["digit"] for answer in answers(task, *requests)]
    with torch.no_grad():
        assert found == task.model(images).argmax(1).tolist() and len(labels) == 50
    assert answers(task, images[0].flatten().mul(255).tolist())[0]["digit"] == found[0]
    for wrong in ("text", [1, 2], [[300] * 28] * 28, None, {}):
        with pytest.raises(UsageError, match="a request is an image"):
            task.prepare(wrong)


def test_a_text_goes_on_as_it_would_without_what_is_kept():
    task = built("causal-lm", backbone="none", layers=2, width=32, context=64, limit=4000)
    for text in ("It is", "x" * 100):
        (answer,) = answers(task, {"text": text, "tokens": 12})
        ids = list(text.encode())[12 - 64 :]
        with torch.no_grad():
            for _ in range(12):
                ids.append(int(task.model(torch.tensor([ids]))[0, -1].argmax()))
        assert answer == bytes(ids[-12:]).decode(errors="replace")
    for wrong in ("", 3, {"text": "a", "tokens": 0}, {"text": "a", "tokens": 64}, {"text": "a", "length": 3}, {"text": "a", "tokens": "9"}):
        with pytest.raises(UsageError, match=r"a request is a text|tokens: "):
            task.prepare(wrong)
