"""Models of many forms are trained under the smallest cap as without one, to the bit: losses, weights, buffers, and what the optimizer
keeps of all gradients. What may be refused is, in one line; nothing is trained otherwise in silence.
"""

import random
import re

import numpy as np
import pytest
import torch
from forms_of_models import FORMS, LENGTH, LINE, WIDTH, WORDS, Block, Form, Net, blocks, calls, form, images, judged, of_words, words
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory, Stop
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from torch import nn
from torch.nn import functional

STEPS = 2
LOCAL = Ranks(0, 1, torch.device("cpu"))

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated", "ignore:Complex modules are a new feature"),
]


# ---- layers that people use ----


@form
def batch_norm():
    norm = lambda it, x: x + it.norm(it.layer(x).transpose(1, 2)).transpose(1, 2)  # noqa: E731
    held_out = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    evaluate = lambda model: {"answer": float(model(held_out).square().mean())}  # noqa: E731
    return blocks(norm, norm=lambda: nn.BatchNorm1d(WIDTH)), {"evaluate": evaluate, "eval_every": 1}


@form
def batch_norm_between_blocks():
    def what(it, x):
        x = it.first(x)
        for norm, block in zip(it.norms, it.blocks, strict=True):
            x = norm(block(x).transpose(1, 2)).transpose(1, 2).relu()
        return it.last(x)

    return Net(what, norms=nn.ModuleList(nn.BatchNorm1d(WIDTH, momentum=None) for _ in range(4)))


@form
def batch_norm_that_several_parts_call():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = it.norm(block(x).transpose(1, 2)).transpose(1, 2).relu()
        return it.last(x)

    return Net(what, norm=nn.BatchNorm1d(WIDTH))


@form
def residual_net_of_images():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.Conv2d(6, 6, 3, padding=1, bias=False)
            self.norm, self.other, self.act = nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.other(self.two(self.act(self.norm(self.one(x)))))
            y += x
            return self.act(y)

    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), *(Residual() for _ in range(3))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)), images()


@form
def statistics_of_its_own():
    def what(it, x):
        with torch.no_grad():
            it.seen += 1
            it.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x + it.layer(x - it.mean) / it.seen.sqrt()

    def block():
        made = Block(what)
        made.register_buffer("seen", torch.zeros(()))
        made.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        return made

    return Net(block=block)


@form
def buffers_of_the_root():
    def what(it, x):
        it.seen.add_(1)
        return it.last(it.through(it.first(x) * it.scale / it.seen))

    model = Net(what)
    model.register_buffer("seen", torch.zeros(()))
    model.register_buffer("scale", torch.rand(WIDTH), persistent=False)
    return model


@form
def batch_norm_that_stays_in_eval():
    class Frozen(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), Frozen(LENGTH), nn.ReLU())))


@form(may=LINE)
def buffer_that_is_replaced():
    def what(it, x):
        it.mean = 0.9 * it.mean + 0.1 * x.detach().mean((0, 1))
        return x + it.layer(x - it.mean)

    def block():
        made = Block(what)
        made.register_buffer("mean", torch.zeros(WIDTH))
        return made

    return Net(block=block)


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True, **options)


@form
def torch_s_encoder():
    return Net(lambda it, x: it.last(it.encoder(it.first(x))), encoder=nn.TransformerEncoder(encoder_layer(), 3))


@form
def torch_s_encoder_with_masks():
    encoder = nn.TransformerEncoder(encoder_layer(norm_first=True), 3, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    model = Net(lambda it, x, **masks: it.last(it.encoder(it.first(x), **masks)), encoder=encoder)

    def call(model, x):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return model(x, mask=mask, src_key_padding_mask=(x[..., 0] > 5).float(), is_causal=True)

    return model, calls(call)


@form
def torch_s_transformer():
    return nn.Transformer(WIDTH, 2, 2, 2, 2 * WIDTH, batch_first=True), calls(lambda model, x: model(x, x.roll(1, 1)))


@form
def layers_of_an_lstm():
    return words(lambda it, tokens: it.last(it.lstm(it.first(tokens))[0]), lstm=nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.2))


@form
def cells_in_a_loop():
    def what(it, tokens):
        x, h = it.first(tokens), torch.zeros(len(tokens), WIDTH)
        found = []
        for t in range(tokens.shape[1]):
            h = it.cell(x[:, t], h)
            found.append(h)
        return it.last(torch.stack(found, 1))

    return words(what, cell=nn.GRUCell(WIDTH, WIDTH))


@form
def gru_in_two_directions():
    def what(it, tokens):
        x = it.first(tokens)
        for layer in it.layers:
            x = layer(x)[0]
        return it.last(x)

    return words(what, layers=nn.ModuleList(nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True) for _ in range(3)))


@form
def bags_of_words():
    model = nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), Block(), Block(), nn.Linear(WIDTH, WORDS))
    return model, of_words(loss=lambda model, tokens: functional.cross_entropy(model(tokens), tokens[:, 0]))


@form
def gpt():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.register_buffer("seen", torch.ones(LENGTH, LENGTH).tril().bool(), persistent=False)

        def forward(self, x):
            q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.three(x).split(WIDTH, -1))
            drop = 0.1 if self.training else 0.0
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.seen[: x.shape[1], : x.shape[1]], dropout_p=drop)
            return self.out(found.transpose(1, 2).flatten(2))

    def block():
        mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        return Block(lambda it, x: (y := x + it.attention(it.one(x))) + it.mlp(it.two(y)), attention=Attention(), mlp=mlp,
                     one=nn.LayerNorm(WIDTH), two=nn.LayerNorm(WIDTH))  # fmt: skip

    def what(it, tokens, targets=None):
        _, length = tokens.size()
        assert length <= LENGTH, f"{length} is too long"
        x = it.drop(it.first(tokens) + it.places(torch.arange(length)))
        logits = it.last(it.norm(it.through(x)))
        return logits, functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=-1)

    model, task = words(what, tied=True, block=block, places=nn.Embedding(LENGTH, WIDTH), drop=nn.Dropout(0.1), norm=nn.LayerNorm(WIDTH))
    return model, task | {"loss": lambda model, tokens: model(tokens, tokens.roll(-1, 1))[1]}


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


@form
def fourier_transforms():
    return blocks(lambda it, x: x + torch.fft.fft2(it.layer(x)).real)


@form
def complex_numbers_between_blocks():
    def what(it, x):
        x = torch.fft.rfft(it.first(x), n=2 * WIDTH - 2)
        for block in it.blocks:
            x = block(x)
        return it.last(torch.fft.irfft(x)[..., :WIDTH])

    return Net(what, block=lambda: Block(lambda it, x: x + torch.complex(it.layer(x.real), x.imag)))


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


@form(may=LINE, grows=True)
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


@form(grows=True)
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


def in_all_parts(directory, monkeypatch, count, make, grows=False):
    """Cut at every place that the model's units allow; where one micro-batch goes back through a part by halves, at every other one."""
    monkeypatch.setattr("stoker.runners.swap.swapped_step.cuts_for", lambda units, *_: tuple(units.cuts()[2 - count :: 3 - count]))
    return trained(directory, monkeypatch, Memory(cap=1 << 40, accumulate=count), make)


NAMED = re.compile(r"the smallest that would is (\d+)KiB")


def under_the_smallest_cap(directory, monkeypatch, count, make, grows=False):
    """As a refusal names it; two micro-batches have a little more."""
    cap, caps = 5000, iter(range(3 if grows else 1))
    while True:
        try:
            found = trained(directory, monkeypatch, Memory(cap=cap, accumulate=count), make)
        except UsageError as error:
            if (named := NAMED.search(str(error))) is None or next(caps, None) is None:
                raise
            cap = int(named[1]) * (1024 if count == 1 else 1200)
        else:
            assert found[2] and max(found[2]) <= cap
            return found


def same(one, other):
    return torch.equal(one.detach().nan_to_num(), other.detach().nan_to_num()) and one.dtype == other.dtype


class Wrong(Exception):
    pass


class WrongWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Wrong


def wrong(x):
    raise Wrong


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("what", [wrong, WrongWayBack.apply])
@pytest.mark.parametrize("where", ["in a block", "between blocks", "in the loss"])
@pytest.mark.sampled(3)
def test_an_error_of_the_model_comes_as_it_is_and_another_training_begins(where, what, count, tmp_path, monkeypatch):
    def make():
        inside, between, after = ((what if where == place else lambda x: x) for place in ("in a block", "between blocks", "in the loss"))
        model = Net(lambda it, x: it.last(between(it.through(it.first(x)))), block=lambda: Block(lambda it, x: x + inside(it.layer(x))))
        return model, calls(lambda model, x: after(model(x)))

    with pytest.raises(Wrong):
        in_all_parts(tmp_path / "wrong", monkeypatch, count, make)
    wanted = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), Net)
    assert in_all_parts(tmp_path / "swapped", monkeypatch, count, Net)[0] == wanted[0]


@pytest.mark.parametrize("cuts", [(1, 3, 5, 7), (1, 3, 5, 7, 7), (2, 7, 8)])
def test_gradients_of_a_part_that_is_gone_to_again_on_the_way_back_are_whole(cuts, tmp_path, monkeypatch):
    """A reentrant checkpoint calls its blocks anew then: the calls of the last blocks are in the part in which the loss was."""
    make = FORMS["each block checkpointed reentrant"].make
    wanted = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=2), make)
    monkeypatch.setattr("stoker.runners.swap.swapped_step.cuts_for", lambda *_: cuts)
    found = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 40, accumulate=2), make)
    assert found[0] == wanted[0] and [key for key in wanted[1] if not same(wanted[1][key], found[1][key])] == []


def by_day_one_count_a_form():
    """By turns one micro-batch and two, by night the other one too; what has another answer for two is by day with two."""
    for number, (name, known) in enumerate(FORMS.items()):
        for count in (1, 2):
            by_day = count == (2 if known.several is not None else 1 + number % 2)
            yield pytest.param(name, count, marks=() if by_day else pytest.mark.nightly, id=f"{name}-{count}")


@pytest.mark.parametrize(("name", "count"), list(by_day_one_count_a_form()))
@pytest.mark.parametrize("swapped", [in_all_parts, pytest.param(under_the_smallest_cap, marks=pytest.mark.nightly)])
@pytest.mark.sampled(5)
def test_it_is_trained_as_without_a_cap_or_refused_in_one_line(swapped, name, count, tmp_path, monkeypatch):
    known = FORMS[name]
    legal = [line for line in (known.may, known.must, known.several if count > 1 else None) if line is not None]
    wanted = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), known.make)
    assert len(wanted[0]) >= STEPS
    try:
        found = swapped(tmp_path / "swapped", monkeypatch, count, known.make, known.grows)
    except UsageError as error:
        assert legal, f"refused: {error}"
        assert any(re.search(line, str(error)) for line in legal) and "\n" not in str(error), str(error)
        return
    assert known.must is None, "it was not refused"
    assert found[1].keys() == wanted[1].keys()
    assert found[0] == wanted[0]
    assert [key for key in wanted[1] if not same(wanted[1][key], found[1][key])] == []
