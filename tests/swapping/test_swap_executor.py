"""The layer-major executor: gradients of the plain loop to the bit, under a cap, and faults that are seen."""

import copy

import pytest
import torch
from stoker.runners.device.cuda import CudaDevice
from stoker.runners.device.device import CapExceeded
from stoker.runners.device.memory_ledger import MemoryLedger
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.swap_executor import StaleWeights
from stoker.runners.train import rng
from torch import nn
from transformer_block import Block
from unit_steps import executor_of, micro_batch, units_of

WIDTH, VOCABULARY = 24, 40


pytestmark = pytest.mark.usefixtures("one_thread")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


class LateCuda(CudaDevice):
    """Copies come late, and memory that was let go, or into which nothing has come, is NaN: what does not wait is seen in every run."""

    def empty_like(self, tensor):
        return poisoned(super().empty_like(tensor))

    def host_like(self, tensor):
        return poisoned(super().host_like(tensor))

    def drop(self, tensor):
        poisoned(tensor)

    def _copy(self, stream, pairs):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)  # half a millisecond
        return super()._copy(stream, pairs)


def poisoned(tensor):
    with torch.no_grad():
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor


@pytest.fixture(params=["metered", pytest.param("cuda", marks=on_cuda)])
def device_of(request, monkeypatch):
    """Makes a device of so many bytes; on the GPU, what computes is told to be deterministic."""
    if request.param == "metered":
        yield MeteredDevice
        return
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield lambda cap: LateCuda(cap, torch.device("cuda", 0))
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


class Model(nn.Module):
    """Embedding, blocks with skip connections and dropout, statistics, and a head that is tied to the embedding."""

    def __init__(self, tied=True):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(3))
        self.statistics = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        first = x
        for block in self.blocks:
            x = block(x)
        x = self.statistics((x + first).transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def loss_of(answer, tokens):
    return nn.functional.cross_entropy(answer.flatten(0, 1), tokens.flatten())


def seeded(step, c):
    rng.seed_all(rng.mixed(step, c))


def plain(model, batches, step):
    """The reference: micro-batches one after the other, a sum for each name of a tied weight, added from the last name to the first."""
    tied = model.head.weight is model.words.weight
    if tied and len(batches) > 1:
        model.head.weight = nn.Parameter(model.words.weight.data)
    for c, tokens in enumerate(batches):
        seeded(step, c)
        (loss_of(model(tokens), tokens) / len(batches)).backward()
    if tied and len(batches) > 1:
        model.words.weight.grad = model.head.weight.grad + model.words.weight.grad
        model.head.weight = model.words.weight


def swapped(executor, batches, step):
    micro = []
    for c, tokens in enumerate(batches):
        seeded(step, c)
        micro.append(micro_batch(executor, lambda model, there: next_loss(model, there) / len(batches), tokens))
    return executor.run(micro)


def next_loss(model, tokens):
    return loss_of(model(tokens), tokens)


def tokens_of(step, count):
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(VOCABULARY, (2, 5), generator=generator) for _ in range(count)]


def pair(tied=True):
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(Model(tied))
    return models


def parted(model, parts, cap=1 << 30, device_of=MeteredDevice):
    """In more parts than it has blocks, the modules in them are units."""
    named = [f"blocks.{block}.{name}" for block in range(3) for name in ("norm", "inner", "outer")] if parts > 7 else ()
    return executor_of(units_of(model, next_loss, tokens_of(0, 2), named), parts, device_of(cap))


def train(model, step_of, count, steps=3, stepped=lambda: None):
    """Gradients of all steps, clipped, and what is held at the end. The optimizer is on the host, wherever the gradients were computed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        step_of(step, tokens_of(step, count))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        seen += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        stepped()
    return seen + [value.clone() for value in model.state_dict().values()]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("parts", [1, 4, 9])
@pytest.mark.sampled(4)
def test_gradients_weights_and_statistics_are_those_of_the_plain_loop_to_the_bit(parts, count, tied, device_of):
    one, other = pair(tied)
    executor = parted(other, parts, device_of=device_of)
    place = getattr(executor.device, "device", torch.device("cpu"))
    there = one if place.type == "cpu" else copy.deepcopy(one).to(place)

    def reference(step, batches):
        there.load_state_dict(one.state_dict())
        plain(there, [tokens.to(place) for tokens in batches], step)
        for mine, found in zip(one.parameters(), there.parameters(), strict=True):
            mine.grad, found.grad = found.grad.cpu(), None if found is not mine else found.grad
        for mine, found in zip(one.buffers(), there.buffers(), strict=True):
            mine.copy_(found)

    def step_of(step, batches):
        swapped(executor, batches, step)

    expected = train(one, reference, count)
    found = train(other, step_of, count, stepped=executor.stepped)
    assert not any(value.isnan().any() for value in found)
    assert [torch.equal(a, b) for a, b in zip(expected, found, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_computed_by_as_many_threads_as_outside_of_parts(threads):
    """How many there are decides how MKL divides the sums of a long product. A thread begins with those of the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        model, batch = nn.Sequential(nn.Linear(20_000, 3), nn.ReLU(), nn.Linear(3, 3)), torch.randn(64, 20_000)
        expected = model(batch).sum()
        executor = executor_of(units_of(model, lambda model, batch: model(batch).sum(), [batch]), 2)
        (found,) = executor.run([micro_batch(executor, lambda model, batch: model(batch).sum(), batch)])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, expected)


def test_all_memory_of_the_device_is_given_back_and_a_cap_holds():
    executor = parted(pair()[1], 9)
    swapped(executor, tokens_of(0, 2), 0)
    now, peak = executor.device.memory()
    assert now == 0 and peak > 0
    small = parted(pair()[1], 9, cap=peak)
    swapped(small, tokens_of(0, 2), 0)
    assert small.device.memory()[1] <= peak
    with pytest.raises(CapExceeded, match="emulated"):
        swapped(parted(pair()[1], 9, cap=peak - 1), tokens_of(0, 2), 0)


def test_no_storage_is_made_beside_those_that_the_device_counts():
    executor, seen = parted(pair()[1], 9), MemoryLedger()
    batches = tokens_of(0, 2)
    swapped(executor, batches, 0)  # now the host has its gradients
    executor.device.reset_peak()
    with seen:  # all that any operation makes, on whichever side
        swapped(executor, batches, 0)
    peak = executor.device.memory()[1]
    assert peak <= seen.peak <= peak + 1024  # the losses that are told


def test_bytes_moved_do_not_grow_with_the_micro_batches(device_of):
    moved = set()
    for count in (1, 4):
        executor = parted(pair()[1], 5, device_of=device_of)
        with executor.device.step() as times:
            swapped(executor, tokens_of(0, count), 0)
        moved.add((times.bytes_in, times.bytes_out))
    assert len(moved) == 1


def test_weights_of_before_the_optimizer_are_seen(monkeypatch):
    executor = parted(pair()[1], 5)
    load = executor._load
    monkeypatch.setattr(executor, "_load", lambda k: (load(k), executor.stepped()) if k == 1 else load(k))
    with pytest.raises(StaleWeights):
        swapped(executor, tokens_of(0, 1), 0)


def test_computing_before_its_load_is_seen(monkeypatch):
    """Not on a GPU: alone it was seen there in each run, behind other tests in none, so something else waits there."""
    executor = parted(pair()[1], 5)
    monkeypatch.setattr(executor.device, "wait", lambda event: None)
    losses = swapped(executor, tokens_of(0, 1), 0)
    assert any(loss.isnan() for loss in losses)


def test_gradients_that_leave_without_back_pressure_break_the_cap(monkeypatch):
    executor = parted(pair()[1], 9)
    swapped(executor, tokens_of(0, 1), 0)
    bounded = parted(pair()[1], 9, cap=executor.device.memory()[1])
    monkeypatch.setattr(bounded, "_make_room", list)
    with pytest.raises(CapExceeded):
        swapped(bounded, tokens_of(0, 1), 0)


def test_generators_that_are_not_restored_are_seen(monkeypatch, device_of):
    one, other = pair()
    swapped(parted(one, 5, device_of=device_of), tokens_of(0, 2), 0)
    executor = parted(other, 5, device_of=device_of)
    monkeypatch.setattr(rng, "set_state", lambda state: None)
    swapped(executor, tokens_of(0, 2), 0)
    assert not all(torch.equal(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@on_cuda
def test_gradients_that_are_used_before_they_came_are_seen(monkeypatch):
    executor = parted(pair()[1], 5, device_of=lambda cap: LateCuda(cap, torch.device("cuda", 0)))
    monkeypatch.setattr(executor.device, "finish", lambda event: None)
    swapped(executor, tokens_of(0, 1), 0)
    assert any(each.grad.isnan().any() for each in executor.units.model.parameters())


class Counting(nn.Module):
    """Keeps a buffer that is no statistic of BatchNorm: in place, by another tensor, or only for reading."""

    def __init__(self, way):
        super().__init__()
        self.way, self.layer = way, nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        if self.way == "in place":
            self.scale.mul_(2.0)
        elif self.way == "a view in place":
            self.scale[:2].add_(1.0)
        elif self.way == "another tensor":
            self.scale = self.scale * 2.0
        return self.layer(x) * self.scale


@pytest.mark.parametrize("apart", [False])  # whether what changes the buffer is no unit
@pytest.mark.parametrize("way", ["read", "in place", "a view in place", "another tensor"])
def test_a_buffer_that_a_forward_changes_is_changed_once_for_each_micro_batch(way, apart):
    def made():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), Counting(way), nn.Linear(4, 1))

    def loss(model, batch):
        return model(batch).sum()

    plain, model, batches = made(), made(), [torch.randn(2, 4) for _ in range(2)]
    for batch in batches:
        loss(plain, batch).backward()
    executor = executor_of(units_of(model, loss, batches, ["2.layer"] if apart else ()), 3)
    executor.run([micro_batch(executor, loss, batch) for batch in batches])
    assert torch.equal(model[2].scale, plain[2].scale) and (way == "read") == torch.equal(plain[2].scale, torch.ones(4))
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), plain.parameters(), strict=True))


# ---- memory of a GPU, whose allocator takes 20 MiB at once: large layers ----

LARGE = 2048  #: 16 MiB a layer


def large(layers, cap, width=LARGE):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    for parameter in model.parameters():
        parameter.data = parameter.data.pin_memory()
    units = units_of(model, square, [torch.randn(4, width)])
    return executor_of(units, layers, LateCuda(cap, torch.device("cuda", 0)))


def square(model, batch):
    return model(batch).square().mean()


def large_step(executor, count, width=LARGE):
    draw = torch.Generator().manual_seed(2)
    executor.run([micro_batch(executor, square, torch.randn(4, width, generator=draw)) for _ in range(count)])


@on_cuda
@pytest.mark.parametrize("count", [1, 4])
def test_a_cap_of_the_gpu_holds_and_all_is_given_back(count):
    torch.cuda.empty_cache()
    executor = large(16, 160 << 20)
    large_step(executor, count)  # the libraries take theirs
    before = executor.device.memory()[0]
    executor.device.reset_peak()
    large_step(executor, count)
    now, peak = executor.device.memory()
    assert now == before and peak <= 160 << 20 < 256 << 20


@on_cuda
def test_gradients_that_leave_without_back_pressure_break_the_cap_of_the_gpu(monkeypatch):
    torch.cuda.empty_cache()
    executor = large(24, 160 << 20)
    large_step(executor, 1)
    monkeypatch.setattr(executor, "_make_room", list)
    with pytest.raises(CapExceeded, match="under a cap"):
        large_step(executor, 1)
    executor.abandon()


@on_cuda
def test_after_running_out_of_memory_it_goes_on_with_less():
    torch.cuda.empty_cache()
    executor = large(3, 1 << 20)
    with pytest.raises(CapExceeded):
        large_step(executor, 1)
    executor.abandon()
    del executor
    torch.cuda.empty_cache()
    large_step(large(3, 160 << 20), 1)


@on_cuda
def test_a_block_of_more_than_200_mib_and_eight_micro_batches(monkeypatch):
    """To the bit too."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.empty_cache()
    width = 7424  # 210 MiB
    executor = large(3, 1 << 30, width)
    large_step(executor, 8, width)
    there = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3))).to("cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    there.load_state_dict(executor.units.model.state_dict())
    draw = torch.Generator().manual_seed(2)
    for _ in range(8):
        there(torch.randn(4, width, generator=draw).to("cuda")).square().mean().backward()
    found = list(executor.units.model.parameters())
    assert [torch.equal(one.grad, other.grad.cpu()) for one, other in zip(found, there.parameters(), strict=True)] == [True] * 3
