"""Models of many forms are trained under the smallest cap as without one, to the bit: losses, weights, buffers, and what the optimizer
keeps of all gradients. What may be refused is, in one line; nothing is trained otherwise in silence.
"""

import random
import re

import numpy as np
import pytest
import torch
from forms_of_models import FORMS, LENGTH, LINE, WIDTH, WORDS, Block, Form, Net, blocks, calls, form, judged, words
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory, Stop
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from torch import nn
from torch.nn import functional

STEPS = 3
LOCAL = Ranks(0, 1, torch.device("cpu"))

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated", "ignore:Complex modules are a new feature"),
]


# ---- numbers of other kinds ----


@form
def autocast_in_blocks():
    def what(it, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = it.layer(x)
        return x + y.float()

    return blocks(what)


@form
def autocast_in_the_forward():
    def what(it, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = it.through(it.first(x))
        return it.last(x.float())

    return Net(what)


@form
def autocast_around_the_model():
    def loss(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer = model(x)
        return judged(answer.float(), x)

    return Net(), {"loss": loss}


def as_type(dtype):
    return Net().to(dtype), {"train": [torch.randn(LENGTH, WIDTH).to(dtype) for _ in range(24)]}


@form
def double():
    return as_type(torch.double)


@form
def bfloat16():
    return as_type(torch.bfloat16)


@form
def complex_weights():
    return as_type(torch.complex64)


@form
def weights_of_several_types():
    model = blocks(lambda it, x: x + it.layer(x.double()).float())
    for block in model.blocks:
        block.layer.double()
    return model


# ---- draws ----


@form
def draws_between_blocks():
    def what(it, x):
        x = functional.dropout(it.first(x), 0.3, it.training)
        for block in it.blocks:
            x = block(x) * (torch.rand(WIDTH) + 0.5) + torch.randn_like(x) * 0.1
        return it.last(x)

    return Net(what, block=lambda: Block(lambda it, x: x + it.drop(it.layer(x)), drop=nn.Dropout(0.2)))


@form
def draws_of_numpy_and_python():
    return blocks(lambda it, x: x + it.layer(x) * random.random() * float(np.random.rand()))


@form
def stochastic_depth_in_the_forward():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            if torch.rand(()) < 0.7:
                x = block(x)
        return it.last(x)

    return Net(what)


@form
def stochastic_depth_in_blocks():
    return blocks(lambda it, x: x if it.training and torch.rand(1) < 0.5 else x + it.layer(x))


@form(may=LINE)
def generator_of_its_own():
    draws = torch.Generator().manual_seed(1)
    return blocks(lambda it, x: x + it.layer(x) * torch.bernoulli(torch.full_like(x, 0.5), generator=draws))


@form
def loss_that_draws_before_and_after():
    def loss(model, x):
        answer = model(x + 0.1 * torch.randn_like(x))
        return judged(answer * torch.rand(WIDTH), x)

    return Net(block=lambda: Block(lambda it, x: x + functional.dropout(it.layer(x), 0.3))), {"loss": loss}


# ---- what depends on values and shapes ----


@form
def experts_mixed():
    def what(it, x):
        weights = it.layer(x)[..., :3].softmax(-1)
        return x + sum(weights[..., n : n + 1] * expert(x) for n, expert in enumerate(it.experts))

    return blocks(what, experts=lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def routed(it, x):
    flat = x.flatten(0, -2)
    weights, chosen = it.layer(flat)[:, :6].softmax(-1).max(-1)
    found = torch.zeros_like(flat)
    for n, expert in enumerate(it.experts):
        at = (chosen == n).nonzero()[:, 0]
        if len(at):
            found = found.index_add(0, at, expert(flat[at]) * weights[at, None])
    return x + found.view_as(x)


@form
def experts_chosen_in_blocks():
    return blocks(routed, experts=lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6)))


@form(may=LINE)
def blocks_chosen_by_values():
    return Net(lambda it, x: it.last(it.blocks[0](it.first(x)) if x.sum() > 0 else it.blocks[1](it.blocks[2](it.first(x)))))


@form
def as_many_rounds_as_the_batch_says():
    def what(it, x):
        x, rounds = it.first(x), 1 + int(x[0, 0, 0] > 0) + int(x[0, 0, 1] > 0)
        for n in range(rounds):
            x = it.blocks[n](x)
        return it.last(x)

    return Net(what)


@form
def one_block_as_often_as_the_batch_says():
    def what(it, x):
        y = it.first(x)
        for _ in range(1 + int(x[0, 0, 0] > 0)):
            y = it.blocks[1](it.blocks[0](y))
        return it.last(y)

    return Net(what)


@form
def batches_of_unlike_shapes():
    model, task = words(tied=True)
    return model, task | {"collate": lambda samples: torch.stack(samples)[:, : 2 + int(samples[0].sum()) % 4]}


# ---- changes in place ----


@form
def activations_in_place():
    return blocks(lambda it, x: x + it.act(it.layer(x)), act=lambda: nn.ReLU(inplace=True))


@form
def sums_in_place():
    """As ``h += layer(h)`` between blocks."""

    def what(it, x):
        x = it.first(x)
        x += 1
        for block in it.blocks:
            x += block(x.tanh())
        return it.last(x)

    return Net(what, block=lambda: nn.Linear(WIDTH, WIDTH))


@form
def activations_in_place_between_blocks():
    return Net(lambda it, x: it.last(functional.relu_(it.through(functional.relu_(it.first(x))))))


@form
def answer_in_place():
    return Net(), calls(lambda model, x: model(x).mul_(2))


@form
def scores_filled_in_place():
    def what(it, x):
        scores = x @ it.layer(x).transpose(1, 2)
        scores[:, torch.ones(LENGTH, LENGTH).triu(1).bool()] = -1e4
        return x + scores.softmax(-1) @ x

    return blocks(what)


@form(may=LINE)
def argument_in_place():
    return blocks(lambda it, x: x.mul_(0.5) + it.layer(x).tanh())


@form(may=LINE)
def input_in_place():
    return Net(lambda it, x: it.last(it.through(it.first(x.mul_(0.5)))))


@form(may=LINE)
def batch_in_place():
    return Net(), calls(lambda model, x: model(x.mul_(0.5)))


@form(may=LINE)
def embedding_with_a_largest_norm():
    model, task = words()
    model.first = nn.Embedding(WORDS, WIDTH, max_norm=0.5)
    return model, task


@form(may=LINE)
def weights_clamped_by_the_forward():
    def what(it, x):
        with torch.no_grad():
            it.layer.weight.clamp_(-0.1, 0.1)
        return x + it.layer(x)

    return blocks(what)


class Cache:
    """Of keys, as transformers' DynamicCache: each call of a layer extends it."""

    def __init__(self):
        self.keys = {}

    def extended(self, n, keys):
        self.keys[n] = torch.cat([self.keys[n], keys], 1) if n in self.keys else keys
        return self.keys[n]


@form(must=r"blocks.*use_cache=False")
def cache_that_blocks_extend():
    def what(it, x):
        cache, x = Cache(), it.first(x)
        for n, block in enumerate(it.blocks):
            x = block(x, cache, n)
        return it.last(x)

    def attention(it, x, cache, n):
        keys = cache.extended(n, it.layer(x))
        return x + (x @ keys.transpose(1, 2)).softmax(-1) @ keys

    return Net(what, block=lambda: Block(attention))


# ---- gradients of gradients ----


def pull(it, x):
    with torch.enable_grad():
        x = x if x.requires_grad else x.requires_grad_()
        (force,) = torch.autograd.grad(it.layer(x).tanh().sum(), x, create_graph=True)
    return force


@form(may=LINE)
def gradients_in_blocks():
    return blocks(lambda it, x: x + pull(it, x))


@form(may=LINE)
def gradients_in_the_forward():
    def what(it, x):
        x = x.clone().requires_grad_()
        (force,) = torch.autograd.grad(it.last(it.through(it.first(x))).square().sum(), x, create_graph=True)
        return force

    return Net(what)


@form(may=LINE)
def penalty_on_the_gradient_of_the_input():
    def loss(model, x):
        x = x.clone().requires_grad_()
        answer = model(x)
        (gradient,) = torch.autograd.grad(answer.sum(), x, create_graph=True)
        return judged(answer, x) + gradient.square().mean()

    return Net(), {"loss": loss}


@form(may=LINE)
def saved_tensors_packed():
    def loss(model, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
            return judged(model(x), x)

    return Net(), {"loss": loss}


# ---- losses, and how they are trained ----


@form
def loss_in_the_forward():
    model, task = words(lambda it, tokens, labels=None: {"loss": functional.cross_entropy(
        it.last(it.through(it.first(tokens)))[:, :-1].flatten(0, 1), labels[:, 1:].flatten())})  # fmt: skip
    return model, task | {"loss": lambda model, tokens: model(tokens, labels=tokens)["loss"]}


@form
def several_answers_in_the_loss():
    def what(it, x):
        found = [it.first(x)]
        for block in it.blocks:
            found.append(block(found[-1]))
        return it.last(found[-1]), found

    return Net(what), {"loss": lambda model, x: judged((found := model(x))[0], x) + 0.1 * sum(each.square().mean() for each in found[1])}


@form
def loss_of_one_element_in_a_row():
    return Net(), {"loss": lambda model, x: judged(model(x), x).reshape(1)}


@form(may=LINE)
def loss_that_calls_it_twice():
    return Net(), calls(lambda model, x: model(x) + model(x.flip(1)))


@form(may=LINE)
def loss_of_the_weights():
    return Net(), {"loss": lambda model, x: judged(model(x), x) + 0.01 * sum(each.square().sum() for each in model.parameters())}


@form
def largest_norm_of_the_gradient():
    return Net(), {"clip_norm": 0.05}


@form
def evaluated_between_steps():
    held_out = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    evaluate = lambda model: {"answer": float(model(held_out)[0].square().mean())}  # noqa: E731
    model = Net(lambda it, x: (it.last(it.through(it.drop(it.first(x)))), None), drop=nn.Dropout(0.3))
    return model, {"evaluate": evaluate, "eval_every": 1} | calls(lambda model, x: model(x)[0])


@form
def groups_of_parameters():
    def grouped(parameters):
        parameters = list(parameters)
        decayed, others = [each for each in parameters if each.dim() > 1], [each for each in parameters if each.dim() < 2]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1, "lr": 3e-2}, {"params": others, "weight_decay": 0.0}], lr=1e-2)

    return Net(), {"optimizer": grouped, "scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)}


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-2, momentum=0.5),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
}

for _name, _optimizer in OPTIMIZERS.items():
    FORMS[_name] = Form(lambda make=_optimizer: (Net(), {"optimizer": make}))


# ---- how they are compared ----


def trained(directory, monkeypatch, memory, make):
    """Losses and answers; weights, buffers and the optimizer's state at the end; and the swapped step's peaks."""
    torch.manual_seed(5)
    told, peaks = [], []

    def report(*, step, total=None, checkpoint=None, **values):
        told.extend((step, name, values[name]) for name in ("loss", "answer") if name in values)
        peaks.extend(values[name] for name in values if name == "swap_peak")

    monkeypatch.setattr(script, "report", report)
    torch.manual_seed(7)
    made = make()
    model, options = made if isinstance(made, tuple) else (made, {})
    settings = {
        "train": [torch.randn(LENGTH, WIDTH) for _ in range(24)], "loss": calls(lambda model, x: model(x))["loss"], "batch_size": 4,
        "iterations": STEPS, "checkpoint_every": None,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    }  # fmt: skip
    task = Task(model=model, **settings | options)
    torch.manual_seed(6)
    random.seed(6)
    np.random.seed(6)
    work = step_of(memory, task, LOCAL)
    assert Trainer(task, Stop(), directory, LOCAL, work=work).run()
    kept = {name: value.clone() for name, value in (*model.named_parameters(), *model.named_buffers())}
    for index, state in work.optimizer.state_dict()["state"].items():
        kept |= {f"{name} of {index}": value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    return told, kept, peaks


NAMED = re.compile(r"the smallest that would is (\d+)KiB")


def swapped(directory, monkeypatch, count, make):
    """Under the smallest cap, as a refusal names it; two micro-batches have a little more."""
    try:
        return trained(directory, monkeypatch, Memory(cap=5000, accumulate=count), make)
    except UsageError as error:
        if (named := NAMED.search(str(error))) is None:
            raise
    cap = int(named[1]) * (1024 if count == 1 else 1200)
    found = trained(directory, monkeypatch, Memory(cap=cap, accumulate=count), make)
    assert found[2] and max(found[2]) <= cap
    return found


def same(one, other):
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and one.dtype == other.dtype


def near(one, other):
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6 + 1e-5 * float(one.abs().max()))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_trained_as_without_a_cap_or_refused_in_one_line(name, count, tmp_path, monkeypatch):
    known = FORMS[name]
    wanted = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), known.make)
    assert len(wanted[0]) >= STEPS
    try:
        found = swapped(tmp_path / "swapped", monkeypatch, count, known.make)
    except UsageError as error:
        assert known.may or known.must, f"refused: {error}"
        assert re.search(known.may or known.must, str(error)) and "\n" not in str(error), str(error)
        return
    assert known.must is None, "it was not refused"
    assert found[1].keys() == wanted[1].keys()
    if known.close:
        assert [each[:2] for each in found[0]] == [each[:2] for each in wanted[0]]
        assert [each[2] for each in found[0]] == pytest.approx([each[2] for each in wanted[0]], rel=1e-5)
        assert [key for key in wanted[1] if not near(wanted[1][key], found[1][key])] == []
    else:
        assert found[0] == wanted[0]
        assert [key for key in wanted[1] if not same(wanted[1][key], found[1][key])] == []
