"""The smallest cap that a refusal names suffices, whatever an allocation of the device is rounded up to."""

import re

import hypothesis.strategies as st
import pytest
import torch
from as_hardware import Hardware
from hypothesis import given, settings
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


class Residual(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return x + self.outer(self.inner(x).relu())


LAYERS = {
    "linear": lambda width, size: [nn.Linear(width, size), nn.Linear(size, width)],
    "residual": lambda width, size: [Residual(width, size)],
    "dropout": lambda width, size: [nn.Dropout(0.3), nn.Tanh()],
    "norm": lambda width, size: [nn.LayerNorm(width)],
    "statistics": lambda width, size: [nn.BatchNorm1d(width)],
    "frozen": lambda width, size: [nn.Linear(width, width).requires_grad_(False)],
}
LAYER = st.tuples(st.sampled_from(sorted(LAYERS)), st.integers(1, 60))


def task(layers, width, rows):
    torch.manual_seed(3)
    made = [each for kind, size in layers for each in LAYERS[kind](width, size)]
    model = nn.Sequential(*made, nn.Linear(width, 3))
    return Task(model=model, train=[0, 1], loss=lambda model, batch: model(batch).square().mean(), batch_size=rows,
                optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))  # fmt: skip


def trained(step, model, batches):
    """Losses of the steps, and the weights after them."""
    step.place(model)
    try:
        losses = [step.update(each, 1.0).item() for each in batches]
    finally:
        step.close()
    return losses, [value.clone() for value in model.state_dict().values()]


@settings(max_examples=30)
@given(
    layers=st.lists(LAYER, min_size=1, max_size=6), width=st.integers(2, 40), rows=st.integers(2, 9), count=st.integers(1, 4),
    page=st.sampled_from([1, 512, 4096]), kind=st.sampled_from([MeteredDevice, Hardware]), share=st.floats(0, 1),
)  # fmt: skip
def test_the_smallest_cap_that_is_named_suffices_to_the_bit(layers, width, rows, count, page, kind, share):
    torch.manual_seed(4)
    batches = [[torch.randn(rows, width) for _ in range(count)] for _ in range(2)]
    plain = task(layers, width, rows)
    wanted = trained(PlainStep(plain, Ranks(0, 1, torch.device("cpu")), count, fused=True), plain.model, batches)

    def swapped(cap):
        made, device = task(layers, width, rows), kind(cap, page=page)
        step = SwappedStep(made, Memory(cap=cap, accumulate=count), device)
        found = trained(step, made.model, batches)
        assert 0 < step.values["swap_peak"] <= cap
        return found

    least = count * -(-rows * width * 4 // page) * page  # less is another refusal: the batches alone do not fit
    cap = int(least + share * 100_000)
    try:
        found = swapped(cap)
    except UsageError as error:
        named = re.search(r"does not fit into \d+KiB however it is cut; the smallest that would is (\d+)KiB", str(error))
        assert named, str(error)
        assert int(named[1]) * 1024 > cap
        found = swapped(int(named[1]) * 1024)
    assert found[0] == wanted[0]
    assert all(map(torch.equal, found[1], wanted[1]))


class WordsRead(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.reads = nn.Embedding(200, 32), nn.LSTM(32, 32, 3, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 200)
        self.head.weight = self.words.weight

    def forward(self, x):
        found = self.words(x)
        return self.head(found + self.reads(found)[0])


@pytest.mark.parametrize("count", [1, 3])
def test_a_cap_that_is_named_for_an_lstm_suffices(count):
    def swapped(cap):
        torch.manual_seed(3)
        task = Task(model=WordsRead(), train=[0, 1], loss=lambda model, batch: model(batch).square().mean(), batch_size=2)
        step = SwappedStep(task, Memory(cap=cap, accumulate=count), MeteredDevice(cap))
        trained(step, task.model, [[torch.randint(200, (2, 9)) for _ in range(count)] for _ in range(2)])
        return step.values["swap_peak"]

    with pytest.raises(UsageError) as refused:
        swapped(50_000)
    named = int(re.search(r"the smallest that would is (\d+)KiB", str(refused.value))[1]) * 1024
    assert 0.7 * named < swapped(named) <= named


def test_a_block_s_weights_gradients_and_those_of_one_batch_are_all_that_is_there_at_once_where_the_cap_asks_for_it():
    width, rows, count = 100, 2, 4
    block = width * (width + 1) * 4
    torch.manual_seed(4)
    batches = [[torch.randn(rows, width) for _ in range(count)] for _ in range(2)]

    def made():
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
        return Task(model=model, train=[0, 1], loss=lambda model, batch: model(batch).square().mean(), batch_size=rows)

    plain, inside = made(), made()
    wanted = trained(PlainStep(plain, Ranks(0, 1, torch.device("cpu")), count, fused=True), plain.model, batches)
    cap = int(3.5 * block)  # a part beside it would be a fourth
    step = SwappedStep(inside, Memory(cap=cap, accumulate=count), MeteredDevice(cap))
    found = trained(step, inside.model, batches)
    assert found[0] == wanted[0] and all(map(torch.equal, found[1], wanted[1]))
    assert 3 * block < step.values["swap_peak"] <= cap
