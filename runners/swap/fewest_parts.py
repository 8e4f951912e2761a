"""Cuts a chain into as few parts as a cap allows, each filled up: found by trying them, so that the peak is measured and not guessed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...engine.errors import UsageError
from ..device.device import CapExceeded, Device
from ..device.metered import MeteredDevice
from ..train import rng
from .chain import Chain, Values, size_of, tensors
from .swap_executor import MicroBatch, SwapExecutor, Tail

Begin = Callable[[], Values]  #: the inputs of a new micro-batch on the device


def cuts_for(chain: Chain, cap: int, accumulate: int, begin: Begin, tail: Tail, device: Device, least: int = 1) -> tuple[int, ...]:
    """Nodes before which the chain is cut, so that a step of ``accumulate`` micro-batches stays below ``cap`` bytes; ``least``: parts."""

    def step(executor: SwapExecutor) -> None:
        executor.run([MicroBatch(begin(), rng.get_state()) for _ in range(accumulate)], tail)

    return _fewest(chain, cap, begin, step, device, least, f"with accumulate: {accumulate} ")


def cuts_of_answers(chain: Chain, cap: int, begin: Begin, device: Device) -> tuple[int, ...]:
    """The same for computing answers, without gradients."""
    return _fewest(chain, cap, begin, lambda executor: executor.answer(begin()), device, 1, "for evaluation ")


def _fewest(
    chain: Chain, cap: int, begin: Begin, work: Callable[[SwapExecutor], object], device: Device, least: int, purpose: str
) -> tuple[int, ...]:
    with _untouched(chain):
        weights, legal = _weights(chain), legal_cuts(chain, begin())
        if len(legal) + 1 < least:
            raise UsageError("memory.swap: force: the model cannot be cut into parts; write swap: off")
        beside = device.memory()[0] if isinstance(device, MeteredDevice) else 0  # batches; on a GPU they are in the peak
        smallest: int | None = None
        tried: set[tuple[int, ...]] = set()
        count = least
        while True:
            cuts = _filled(weights, legal, count)
            if cuts not in tried and len(cuts) + 1 >= least:
                tried.add(cuts)
                peak = _peak(SwapExecutor(chain, cuts, _unbounded(device)), work)
                peak = None if peak is None else peak + beside
                if peak is not None and peak <= cap:
                    return cuts
                smallest = peak if smallest is None or (peak is not None and peak < smallest) else smallest
            if count > len(legal):
                break
            count = min(2 * count, len(legal) + 1)
    would = f"the smallest that would is {-(-smallest // 1024)}KiB" if smallest is not None else "ask for more of the GPU"
    raise UsageError(f"memory.cap: this model {purpose}does not fit into {-(-cap // 1024)}KiB however it is cut; {would}")


def _filled(weights: Sequence[int], legal: Sequence[int], count: int) -> tuple[int, ...]:
    """Cuts into about ``count`` parts of like bytes; all legal cuts where there are no more."""
    if count > len(legal):
        return tuple(legal)
    goal = sum(weights) / count
    cuts: list[int] = []
    filled = 0
    places = [0, *legal, len(weights)]
    for start, stop in itertools.pairwise(places):
        size = sum(weights[start:stop])
        if start and filled and filled + size > goal:
            cuts.append(start)
            filled = 0
        filled += size
    return tuple(cuts)


def _weights(chain: Chain) -> list[int]:
    """Bytes that each node adds to a part; its share of them for one that has none, so that these are divided too."""
    sizes = [size_of([chain.master(name) for name in names]) for names in chain.tensors_of]
    each = max(1, sum(sizes) // (10 * len(sizes)))
    return [size + each for size in sizes]


def _peak(executor: SwapExecutor, work: Callable[[SwapExecutor], object]) -> int | None:
    """Most bytes that the work took; None where the device itself has no room for it."""
    executor.device.reset_peak()
    try:
        work(executor)
    except CapExceeded:
        executor.abandon()
        return None
    finally:
        for parameter in executor.chain.parameters.values():
            parameter.grad = None
    return executor.device.memory()[1]


def _unbounded(device: Device) -> Device:
    """Emulated memory is measured without end, that of hardware as it is."""
    return MeteredDevice(1 << 60) if isinstance(device, MeteredDevice) else device


def legal_cuts(chain: Chain, values: Values) -> list[int]:
    """Cuts that leave two sides which can be computed apart, as a forward with these inputs shows.

    A weight is used on one side. What crosses is one tensor a value, no view of a weight, and is not changed in place later.
    """
    trained = {name for name, value in chain.parameters.items() if value.requires_grad}
    bound = chain.bound_cuts(trained | chain.buffers.keys())
    weights = {value.untyped_storage()._cdata for held in (chain.parameters, chain.buffers, chain.constants) for value in held.values()}
    values = {node: _on_host(value) for node, value in values.items()}
    with torch.no_grad():
        for index in range(len(chain)):
            before = dict(values)
            versions = {node: [leaf._version for leaf in tensors(value)] for node, value in before.items()}
            result = chain.compute_node(values, index)
            for node, version in versions.items():
                if [leaf._version for leaf in tensors(before[node])] != version:
                    bound |= set(range(chain.place[node] + 1, index + 1))
            several = not isinstance(result, torch.Tensor) and any(True for _ in tensors(result))
            if several or any(leaf.untyped_storage()._cdata in weights for leaf in tensors(result)):
                bound |= set(range(index + 1, chain.last_use[chain.nodes[index]] + 1))
    return [cut for cut in range(1, len(chain)) if cut not in bound]


def _on_host(value: object) -> object:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


@contextmanager
def _untouched(chain: Chain) -> Iterator[None]:
    """Gradients, buffers and generators are left as they were."""
    buffers = {name: value.clone() for name, value in chain.buffers.items()}
    gradients = {name: parameter.grad for name, parameter in chain.parameters.items()}
    try:
        with rng.preserved():
            yield
    finally:
        with torch.no_grad():
            for name, value in buffers.items():
                chain.buffers[name].copy_(value)
        for name, gradient in gradients.items():
            chain.parameters[name].grad = gradient
