"""A model that is cut into parts computes what its forward would, whatever that does; where it could not, it is refused in one line.

Each of these models is trained otherwise, in silence, by parts that stand for a trace of its forward, or are computed again with less care.
"""

import random

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory, Stop
from stoker.runners.swap.swap_executor import SwapExecutor
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from torch import nn

WIDTH = 8
LOCAL = Ranks(0, 1, torch.device("cpu"))

pytestmark = pytest.mark.usefixtures("one_thread")


def between(middle):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, WIDTH))


def trained(directory, monkeypatch, memory, make, options):
    """Losses and answers, and the weights at the end."""
    torch.manual_seed(5)
    data = [torch.randn(WIDTH) for _ in range(40)]
    told = []
    monkeypatch.setattr(script, "report", lambda *, step, total=None, checkpoint=None, **values: told.append(
        {name: values[name] for name in ("loss", "answer") if name in values}))  # fmt: skip
    model = make()
    settings = {
        "loss": lambda model, batch: model(batch).square().mean(), "batch_size": 4, "iterations": 6, "eval_every": 3,
        "checkpoint_every": None,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    }  # fmt: skip
    task = Task(model=model, train=data, **settings | options(model))
    torch.manual_seed(6)
    random.seed(6)
    trainer = Trainer(task, Stop(), directory, LOCAL, work=step_of(memory, task, LOCAL))
    assert trainer.run()
    return [each for each in told if each], {name: value.clone() for name, value in model.state_dict().items()}


class ByValues(nn.Module):
    """It uses one layer or the other, of which the one then has no gradient."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.other(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.layer(x)


class InPlace(Block):
    """What no gradient needs is changed in place, and a view of it."""

    def forward(self, x):
        made = self.layer(x).add_(1.0)
        made[:, 0].mul_(2.0)
        return torch.relu_(made)


class NeededInPlace(Block):
    """The gradient of the sigmoid needs what it had made."""

    def forward(self, x):
        return torch.sigmoid(self.layer(x)).add_(1.0)


class LayerDrop(Block):
    def forward(self, x):
        return x if self.training and torch.rand(1) < 0.5 else super().forward(x)


class PythonsDrop(Block):
    def forward(self, x):
        return x if random.random() < 0.5 else super().forward(x)


class Noise(Block):
    def forward(self, x):
        return self.layer(x) + torch.randn(WIDTH) * torch.empty(1).bernoulli_(0.5)


class NoGradients(Block):
    def forward(self, x):
        with torch.no_grad():
            before = self.layer(x)
        return x + before


class NoGradientsOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.still, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            x = self.still(x).relu()
        return self.layer(x)


class LowPrecision(Block):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.layer(x)
        return x + y.float()


class Masked(nn.Module):
    """What it does depends on what it is not given."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, double=False):
        x = self.first(x)
        x = self.last(x) if mask is None else x * mask
        return 2 * x if double else x


def half_gradient(model):
    model[1].register_full_backward_hook(lambda module, come, goes: (come[0] * 0.5,))
    return {}


def masked(model):
    return {"loss": lambda model, batch: model(batch, mask=torch.full((WIDTH,), 0.5), double=True).square().mean()}


def inference(model):
    held_out = torch.ones(2, WIDTH)

    @torch.inference_mode()
    def evaluate(model):
        return {"answer": float(model(held_out).square().mean())}

    return {"evaluate": evaluate}


def nothing(model):
    return {}


class Scaled(nn.Module):
    """By an attribute, in whose place another buffer might stand."""

    def __init__(self):
        super().__init__()
        self.by = 1.0
        self.register_buffer("also", torch.ones(WIDTH))

    def forward(self, x):
        return x * self.by * self.also if self.by > 0.25 else x


def from_step_3(change):
    """A schedule of the learning rate that changes the model too."""

    def options(model):
        def rate(step):
            if step == 3:
                change(model)
            return 1.0

        return {"scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)}

    return options


def frozen_at_first(model):
    model[0].requires_grad_(False)
    return from_step_3(lambda model: model[0].requires_grad_())(model)


def each_other(model):
    given = {"mask": None}

    def loss(model, batch):
        return model(batch, **given).square().mean()

    return {"loss": loss} | from_step_3(lambda model: given.update(mask=torch.ones(WIDTH)))(model)


def under_autocast(model):
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().square().mean()

    return {"loss": loss}


def hooked(model):
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    return {}


class OwnDraws(Block):
    def __init__(self):
        super().__init__()
        self.draws = torch.Generator().manual_seed(1)

    def forward(self, x):
        return self.layer(x) * torch.bernoulli(torch.full_like(x, 0.5), generator=self.draws) if x.sum() > 0 else x


class DrawsOutside(NoGradientsOutside):
    def forward(self, x):
        return self.layer(x) if torch.rand(1) < 0.5 else self.still(x)


class LowPrecisionOutside(NoGradientsOutside):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.still(x)
        return self.layer(x.float())


def batch_in_place(model):
    return {"loss": lambda model, batch: model(batch.mul_(2.0)).square().mean()}


def answer_in_place(model):
    return {"loss": lambda model, batch: torch.sigmoid(model(batch)).mul_(2.0).sigmoid_().square().mean()}


class Does(nn.Module):
    """Something with its two layers."""

    def __init__(self, what):
        super().__init__()
        self.first, self.last, self.what = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), what

    def forward(self, x):
        return self.what(self, x)


def does(what):
    return lambda: Does(what)


def judged_by(loss):
    return lambda model: {"loss": loss}


def with_its_answer(it, x):
    early = it.first(x).relu()
    return early, it.last(early.sigmoid())


def shifted(model, batch):
    return (model(batch.clone()) - batch.sub_(0.5)).square().mean()


def doubled_answer(model, batch):
    return model(batch).mul_(2).square().mean()


def doubled_early_answer(model, batch):
    early, answer = model(batch)
    return (early.mul_(2) + answer).square().mean()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(does(lambda it, x: it.last(it.first(x).add_(1))), nothing, id="of a layer"),
        pytest.param(does(lambda it, x: it.last(it.first(x).t().add_(1).t())), nothing, id="of a view"),
        pytest.param(does(lambda it, x: it.last(it.first(x))), judged_by(doubled_answer), id="of the answer"),
    ],
)
@pytest.mark.parametrize("cap", [1 << 20, 2300])
@pytest.mark.sampled(3)
def test_changes_in_place_that_autograd_allows_are_those_without_a_cap_to_the_bit(make, options, cap, tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), make, options)
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=cap, swap="force"), make, options)
    assert plain[0] == swapped[0] and all(torch.equal(value, swapped[1][name]) for name, value in plain[1].items())


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (does(lambda it, x: it.last(it.first(x).chunk(1)[0].mul_(2))), nothing, r"in place; .* \(Output 0 of Split is a view and is being"),
        (does(lambda it, x: it.last(it.first(x) * it.first.bias.mul_(2))), nothing, r"in place; .* \(a leaf Variable that requires grad"),
        (does(lambda it, x: it.last(it.first(x)) * it.last.bias[:4].mul_(2).sum()), nothing, r"in place; .* \(a view of a leaf Variable"),
        (does(with_its_answer), judged_by(doubled_early_answer), r"in place; .* \(.* modified"),
    ],
)
def test_what_is_changed_in_place_and_still_needed_is_refused_before_the_first_step(make, options, line, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SwapExecutor, "stepped", lambda self: pytest.fail("a step was made"))
        with pytest.raises(UsageError, match=line) as caught:
            trained(tmp_path, monkeypatch, Memory(cap=1 << 20, swap="force", accumulate=2), make, options)
    assert str(caught.value).startswith("memory: ") and "\n" not in str(caught.value)


def test_a_model_that_changes_its_input_in_place_is_evaluated_as_without_a_cap(tmp_path, monkeypatch):
    def made():
        return Does(lambda it, x: it.last(it.first(x if it.training else x.mul_(2))))

    def options(model):
        return {"evaluate": lambda model: {"answer": float(model(torch.ones(2, WIDTH)).square().mean())}}

    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), made, options)
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20, swap="force"), made, options)
    assert plain[0] == swapped[0] and sum("answer" in told for told in plain[0]) == 2


def other_buffer(model):
    model[1].also = torch.full((WIDTH,), 0.5)


def other_attribute(model):
    model[1].by = 0.125


def other_weight(model):
    model[0].weight = nn.Parameter(torch.ones(WIDTH, WIDTH))


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (lambda: between(Block()), hooked, r"0.weight has a hook on its gradient"),
        (lambda: between(NeededInPlace()), nothing, r"what a gradient or another part needs is changed in place; write .* \(one of the"),
        (lambda: between(Block()), answer_in_place, r"what a gradient or another part needs is changed in place; write .* \(one of the"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(make, options, line, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=line) as caught:
        trained(tmp_path, monkeypatch, Memory(cap=1 << 20, swap="force", accumulate=2), make, options)
    assert str(caught.value).startswith("memory: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(lambda: between(ByValues()), nothing, id="by values"),
        pytest.param(lambda: between(LayerDrop()), nothing, id="layer drop"),
        pytest.param(lambda: between(PythonsDrop()), nothing, id="layer drop by Python's draws"),
        pytest.param(lambda: between(Noise()), nothing, id="noise"),
        pytest.param(lambda: between(InPlace()), nothing, id="in place"),
        pytest.param(lambda: between(NoGradients()), nothing, id="no gradients inside"),
        pytest.param(NoGradientsOutside, nothing, id="no gradients outside"),
        pytest.param(lambda: between(LowPrecision()), nothing, id="autocast inside"),
        pytest.param(lambda: between(Block()), half_gradient, id="hook on a backward"),
        pytest.param(Masked, nothing, id="not masked"),
        pytest.param(Masked, masked, id="masked"),
        pytest.param(lambda: between(Block()), inference, id="evaluated in inference mode"),
        pytest.param(lambda: between(Scaled()), from_step_3(other_attribute), id="an attribute that changes between steps"),
        pytest.param(lambda: between(Scaled()), from_step_3(other_buffer), id="another buffer"),
        pytest.param(lambda: between(Block()), from_step_3(other_weight), id="another weight"),
        pytest.param(lambda: between(Block()), frozen_at_first, id="begins to train"),
        pytest.param(Masked, each_other, id="given something else later"),
        pytest.param(lambda: between(Block()), under_autocast, id="under autocast"),
        pytest.param(lambda: between(OwnDraws()), nothing, id="draws of its own"),
        pytest.param(DrawsOutside, nothing, id="draws outside of modules"),
        pytest.param(LowPrecisionOutside, nothing, id="autocast outside of modules"),
        pytest.param(lambda: between(Block()), batch_in_place, id="the batch in place"),
        pytest.param(does(lambda it, x: it.last(it.first(x).chunk(1)[0] * 2)), nothing, id="one of several views"),
        pytest.param(does(lambda it, x: it.last(it.first(x.mul_(2)))), nothing, id="its input in place"),
        pytest.param(does(lambda it, x: it.last(torch.zeros(4, WIDTH).add_(it.first(x)))), nothing, id="a constant in place"),
        pytest.param(does(lambda it, x: it.last(it.first(x))), judged_by(shifted), id="the batch in place behind it"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.sampled(3)
def test_it_is_trained_as_without_a_cap_to_the_bit(make, options, count, tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), make, options)
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20, accumulate=count, swap="force"), make, options)
    assert plain[0] == swapped[0] and len(plain[0]) >= 6
    assert [name for name, value in plain[1].items() if not torch.equal(value, swapped[1][name])] == []


def test_freezing_what_has_trained_is_no_change_of_what_is_computed(tmp_path, monkeypatch):
    options = from_step_3(lambda model: model[0].requires_grad_(False))
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), lambda: between(Block()), options)
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20, swap="force"), lambda: between(Block()), options)
    assert plain[0] == swapped[0] and all(torch.equal(value, swapped[1][name]) for name, value in plain[1].items())
