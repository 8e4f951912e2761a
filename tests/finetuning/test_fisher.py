"""Embeddings of tasks by the diagonal of the Fisher information of a common probe."""

from __future__ import annotations

import json

import pytest
import torch
from fisher import embedding
from stoker.engine.errors import UsageError
from stoker.runners.train.task import Task
from tiny_models import build, same
from torch import nn
from transfer_gain import symmetric_distance

pytestmark = [pytest.mark.xdist_group("tiny models"), pytest.mark.filterwarnings("ignore::UserWarning:peft.*")]


class Scaled(nn.Module):
    """One trained number before the head, so that the information can be computed by hand."""

    def __init__(self, classes=2):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.head = nn.Linear(1, classes)

    def forward(self, x):
        return self.head(self.scale * x)


def numbers(rows, model=None):
    def collate(items):
        return torch.tensor([[x] for x, _ in items]), torch.tensor([label for _, label in items])

    return Task(model=model or Scaled(), train=rows, collate=collate)


def test_it_is_the_expected_square_of_the_gradient_of_what_the_model_itself_would_say():
    """d/ds log p(y) = x (w_y - sum p w): over many drawn labels its square is the mean of x² Var(w), with the head that was fitted."""
    rows = [(1.0, 1), (-1.0, 0), (2.0, 1), (-2.0, 0), (0.5, 0), (-0.5, 1)] * 400
    task = numbers(rows)
    seen = {}

    def keep(module, given, said):
        seen["head"] = module.weight.detach().clone(), module.bias.detach().clone()

    hook = task.model.head.register_forward_hook(keep)
    found = embedding(task, samples=len(rows))
    hook.remove()
    weight, bias = seen["head"]
    x = torch.tensor([[x] for x, _ in rows])
    chances = torch.softmax(0.5 * x @ weight.T + bias, 1)
    mean = chances @ weight
    variance = chances @ weight.square() - mean.square()
    assert float(found.whole) == pytest.approx(float((x.square() * variance).mean()), rel=0.1)
    assert torch.allclose(found.whole, (found.halves[0] + found.halves[1]) / 2)
    assert task.model.scale.item() == 0.5


@pytest.fixture
def task(model_of, tmp_path):
    def make(name, words, seed=0, **params):
        path = tmp_path / f"{name}.jsonl"
        rows = [{"text": f"{name} {number} {words[number % 2]}", "label": number % 2} for number in range(60)]
        path.write_text("\n".join(map(json.dumps, rows)))
        return build("text-classifier", model_of("bert"), data=str(path), petl="lora", seed=seed, **params)

    return make


def test_tasks_are_compared_by_one_probe_and_stay_as_they_were(task):
    one, again, other = task("mails", ("aa", "zz")), task("mails", ("aa", "zz"), seed=5), task("news", ("zzzz zzzz zzzz", "b"))
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    found = [embedding(each, samples=24) for each in (one, again, other)]
    assert same(one.model.state_dict(), before)
    assert found[0].whole.numel() == sum(v.numel() for n, v in one.model.named_parameters() if v.requires_grad and not one.owns(n))
    assert (found[0].whole > 0).float().mean() > 0.9  # what an adapter has as zeros keeps nothing from having gradients
    near, far = (symmetric_distance(found[0].whole.numpy(), each.whole.numpy()) for each in found[1:])
    assert near < far and torch.equal(embedding(one, samples=24).whole, found[0].whole)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: numbers([(1.0, 0)] * 4), "64 training samples are looked at, and there are 4"),
        (lambda: numbers([(1.0, 0)] * 64, nn.Linear(1, 2)), "a classifier with a linear head"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(made, words):
    with pytest.raises(UsageError, match=words):
        embedding(made())
