"""A model's profile: where it may be cut, and that time and peak memory come out as planned. Times are counted operations, not measured."""

from itertools import pairwise

import pytest
import torch
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.micro_batch import MicroBatch
from stoker.runners.swap.model_profile import Shape, measure
from stoker.runners.swap.partition import Parts, best_cuts, cost_of, smallest_cap
from stoker.runners.swap.swap_executor import SwapExecutor
from stoker.runners.swap.swap_plan import plan_step, planned
from stoker.runners.train import rng
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry
from unit_steps import micro_batch, units_of

WIDTH, WORDS, LENGTH = 32, 60, 12


pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    """Three tensors cross the places between its parts; one activation is in place."""

    def __init__(self):
        super().__init__()
        self.three, self.together = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.act, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(inplace=True), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.three(x).chunk(3, dim=-1)
        x = x + self.together(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)
        return x + self.drop(self.outer(self.act(self.inner(x))))


class Model(nn.Module):
    """A frozen first layer, blocks, statistics, a head tied to the words, and a skip connection over all of it."""

    def __init__(self, blocks=2, frozen=False):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(not frozen)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.statistics = nn.BatchNorm1d(LENGTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = first = self.first(self.words(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.statistics(x + first))


class Images(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(8 * 36, 64), nn.Tanh(), nn.Linear(64, WORDS),
        )  # fmt: skip


class Frozen(Model):
    """Its words are tied, so they train; of what comes next the first layer does not."""

    def __init__(self):
        super().__init__(frozen=True)


class Late(nn.Sequential):
    """Nothing trains before the middle."""

    def __init__(self):
        super().__init__(*(nn.Sequential(nn.Linear(WIDTH, WIDTH).requires_grad_(k >= 4), nn.GELU()) for k in range(8)))


class Task:
    """A model with its inputs and loss, on an emulated device whose clock counts operations."""

    def __init__(self, kind, bandwidth=5e6):
        torch.manual_seed(1)
        self.model = kind().train()
        generator = torch.Generator().manual_seed(2)
        shape = {Images: (12, 1, 12, 12), Late: (64, WIDTH)}.get(kind)
        made = torch.randint(WORDS, (8, LENGTH), generator=generator) if shape is None else torch.randn(shape, generator=generator)
        self.batch = made
        self.units = units_of(self.model, loss, [made, made])
        self.counter = Counter()
        self.device = self.new_device(bandwidth)
        self.bandwidth = bandwidth

    def new_device(self, bandwidth, cap=1 << 40):
        return MeteredDevice(cap, bandwidth=bandwidth, latency=1e-5, clock=lambda: 2e-8 * self.counter.done)

    def begun(self, device):
        there = device.put(self.batch)
        return MicroBatch(lambda: loss(self.model, there), rng.get_state(), there.numel() * there.element_size())

    def measured(self):
        with self.counter:
            return measure(self.units, self.begun, self.device, rounds=1)

    def run(self, cuts, count, cap=1 << 40):
        """One step: its times, and the peak of the device."""
        device = self.new_device(self.bandwidth, cap)
        executor = SwapExecutor(self.units, cuts, device)
        micro = [self.begun(device) for _ in range(count)]
        device.reset_peak()
        with self.counter, device.step() as times:
            executor.run(micro)
        self.model.zero_grad(set_to_none=True)
        return times, device.memory()[1]


def loss(model, batch):
    return model(batch).float().pow(2).mean()


class Counter(TorchDispatchMode):
    """Operations of matrix products, elements of what is made, a little for each call: a clock that tells the same in each run."""

    done = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if (flops := flop_registry.get(func._overloadpacket)) is not None:
            self.done += flops(*args, **(kwargs or {}), out_val=result) // 4
        self.done += 20 + sum(leaf.numel() for leaf in tree_iter(result) if isinstance(leaf, torch.Tensor))
        return result


def partitions(measured):
    """Several that the search may find, from one part to as many as there can be."""
    count = len(measured.pieces)
    found = [[], list(range(1, count)), list(range(3, count, 3)), [count // 2], [1, count - 1]]
    least = smallest_cap(measured, 2)
    found += [best_cuts(measured, cap, 2) for cap in (least, 2 * least)]
    return found


@pytest.mark.parametrize("kind", [Model, Images, Frozen, Late])
@pytest.mark.sampled(2)
def test_the_peak_is_never_above_the_planned_one_and_time_is_as_planned(kind):
    task = Task(kind)
    measured = task.measured()
    for cuts in partitions(measured):
        for count in (1, 3):
            plan = planned(measured, 0, count, cuts)
            times, peak = task.run(plan.cuts, count)
            assert peak <= plan.peak, (cuts, count)
            assert peak >= 0.5 * plan.peak, (cuts, count)
            assert times.seconds == pytest.approx(plan.seconds, rel=0.05), (cuts, count)


def test_a_step_within_the_smallest_cap_is_computed_under_it():
    task = Task(Model)
    cap = smallest_cap(task.measured(), 4)
    cuts = plan_step(task.measured(), cap, 4).cuts
    _, peak = task.run(cuts, 4, cap)  # else CapExceeded
    _, whole = task.run([], 4)
    assert peak <= cap < whole


def test_a_profile_leaves_everything_as_it_was():
    task = Task(Images)
    task.model(task.batch).sum().backward()
    state = {name: value.clone() for name, value in task.model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in task.model.parameters()]
    rng.seed_all(5)
    generators = rng.get_state()
    task.measured()
    assert all(torch.equal(value, state[name]) for name, value in task.model.state_dict().items())
    assert all(torch.equal(parameter.grad, before) for parameter, before in zip(task.model.parameters(), gradients, strict=True))
    assert torch.equal(rng.get_state()["torch"], generators["torch"])
    assert task.device.memory()[0] == 0


@pytest.mark.parametrize("kind", [Model, Images, Late])
def test_gradients_with_all_legal_cuts_are_those_of_the_plain_model_to_the_bit(kind):
    task = Task(kind)
    rng.seed_all(7)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    loss(task.model, task.batch).backward()
    expected = [parameter.grad for parameter in task.model.parameters() if parameter.requires_grad]
    task.model.zero_grad(set_to_none=True)
    task.model.load_state_dict(before)
    device = task.new_device(1e9)
    cuts = Shape(task.units, task.begun, device).cuts
    executor = SwapExecutor(task.units, cuts, device)
    rng.seed_all(7)
    executor.run([micro_batch(executor, loss, task.batch)])
    found = [parameter.grad for parameter in task.model.parameters() if parameter.requires_grad]
    assert len(cuts) > 2 and all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


class Again(nn.Module):
    """One block again and again, between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.norm, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = self.norm(self.block(x).relu())
        return self.last(x)


def test_no_cut_is_offered_between_the_calls_of_modules_that_are_called_again_and_again():
    units = units_of(Again(), loss, [torch.randn(4, 8)])
    assert units.order == ["first", *["block", "norm"] * 3, "last"] and units.cuts() == [1, 7]
    units.apart = True
    assert units.cuts() == list(range(1, 8))


def test_parts_of_tied_weights_load_them_once():
    measured = Task(Model).measured()
    whole = Parts(measured)(0, len(measured.pieces))
    pieces = [Parts(measured)(start, stop) for start, stop in pairwise(range(len(measured.pieces) + 1))]
    assert sum(piece.weights for piece in pieces) - whole.weights == 4 * WORDS * WIDTH
    assert whole.load < sum(piece.load for piece in pieces)
    assert cost_of(measured, [], 1).computing > 0
