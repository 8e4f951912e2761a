"""Executes a chain layer-major (004 ch. 3.3.3, fig. 3-12): a part is loaded once and computes C micro-batches.

Forward through the parts, then back; a part's activations are computed again on the way back. The last part stays in between and computes
forward and backward in one. Gradients leave on a stream of their own while the next part computes the first half of its micro-batches; not
before their memory is free again is the part after it loaded (back-pressure), while it computes the second half. On the host each gradient
is a sum over the micro-batches in their order, so it is that of the plain loop to the bit; a weight that stands under several names (tied)
has one such sum for each name, added from the last name to the first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...engine.errors import StokerError, UsageError
from ..device.device import Device, Event
from ..train import rng
from .chain import Chain, Values, tensors, versions
from .model_graph import BufferChanged, ParameterChanged
from .partition import room_after

_IN_PLACE = ("memory: what a gradient or another part needs is changed in place; write that operation so that it makes a new tensor, "
             "as x = x + 1 does for x += 1, or with inplace=False")  # fmt: skip

Tail = Callable[[int, Any], torch.Tensor]  #: from a micro-batch and the model's answer to the loss, scaled


class StaleWeights(StokerError):
    """A part was to compute with weights of before the last step."""


@dataclass(slots=True)
class Loaded:
    """A part on the device."""

    event: Event
    version: int
    tensors: dict[str, torch.Tensor]
    constant: dict[str, int] = field(default_factory=dict)  #: what computing must not change, with torch's count of its changes


@dataclass(slots=True)
class MicroBatch:
    """What is kept of one micro-batch between parts: values that are still wanted, and the generators before each part."""

    values: Values
    generators: dict[str, Any]
    before: dict[int, tuple[dict[str, Any], dict[str, torch.Tensor]]] = field(default_factory=dict)
    gradients: Values = field(default_factory=dict)


class SwapExecutor:
    """Steps of a chain that is cut before the nodes ``cuts``, on a device."""

    def __init__(self, chain: Chain, cuts: Sequence[int], device: Device) -> None:
        self.chain, self.device = chain, device
        bounds = [0, *cuts, len(chain)]
        self.parts = list(itertools.pairwise(bounds))
        self.names = [chain.names(*part) for part in self.parts]
        self.wanted = [chain.wanted(*part) for part in self.parts]
        self.made = [chain.made(*part) for part in self.parts]
        self._check_apart()
        self.version = 0  #: of the weights on the host: steps of the optimizer
        self.mutated = self._mutable_buffers()
        trained = [k for k, names in enumerate(self.names) if any(self._trains(name) for name in names)]
        if not trained:
            raise UsageError("memory: nothing of the model is trained")
        self.bottom = trained[0]  #: the first part that is gone through backward
        self._loaded: dict[int, Loaded] = {}
        self._leaving: list[tuple[int, Event, dict[str, torch.Tensor]]] = []
        self._host_gradients: dict[str, torch.Tensor] = {}
        self._seen: set[int] = set()

    def _check_apart(self) -> None:
        seen: dict[str, int] = {}
        for k, names in enumerate(self.names):
            for name in names:
                if seen.setdefault(name, k) != k and self._trains(name):
                    raise UsageError(f"memory: {name} is used in two parts under one name, so its gradients cannot be kept apart")

    def _trains(self, name: str) -> bool:
        return name in self.chain.parameters and self.chain.parameters[name].requires_grad

    def _mutable_buffers(self) -> set[str]:
        """Buffers that a forward may change: those of modules that say so by keeping statistics."""
        kept = ("running_mean", "running_var", "num_batches_tracked")
        return {name for name in self.chain.buffers if name.rpartition(".")[2] in kept}

    # ---- one step ----

    def run(self, micro: list[MicroBatch], tail: Tail, arrived: Callable[[int], None] = lambda part: None) -> list[torch.Tensor]:
        """Losses of the micro-batches; the gradients are in ``.grad`` of the host's parameters. ``arrived(k)``: those of part k are."""
        last = len(self.parts) - 1
        self._seen.clear()
        self._load(0)
        for k in range(last):
            self._load(k + 1)
            self._enter(k)
            for batch in micro:
                self._forward(k, batch)
            self._leave(k)
        losses = []
        for k in range(last, self.bottom - 1, -1):
            self._enter(k)
            left: list[tuple[int, Event, list[str]]] = []
            for c, batch in enumerate(micro):
                if c == room_after(len(micro)):
                    left = self._make_room()
                    if k > self.bottom:
                        self._load(k - 1)
                loss = self._backward(k, c, batch, tail if k == last else None)
                if loss is not None:
                    losses.append(loss)
            self._leaving.append(self._send(k))
            self._arrive(left, arrived)  # on the host, while the device computes
        self._arrive(self._make_room(), arrived)
        return losses

    @torch.no_grad()
    def answer(self, values: Values) -> Any:
        """What the model answers to inputs on the device, on the device; it is gone through forward only."""
        last = len(self.parts) - 1
        self._load(0)
        for k, (start, stop) in enumerate(self.parts):
            if k < last:
                self._load(k + 1)
            self._enter(k)
            self.device.launch(lambda start=start, stop=stop: self.chain.compute(values, start, stop))  # type: ignore[misc]
            self._leave(k)
        return self.chain.answer(values)

    def abandon(self) -> None:
        """After an error: the model has the host's weights again, and no copy is under way into memory that is let go."""
        for _, event, _ in self._leaving:
            self.device.finish(event)
        for loaded in self._loaded.values():
            self.device.finish(loaded.event)
            for name in loaded.tensors:
                self.chain.put(name, self.chain.master(name))
        self._loaded.clear()
        self._leaving.clear()

    def _make_room(self) -> list[tuple[int, Event, list[str]]]:
        """Back-pressure: the gradients of the part that went back before this one are gone before another one is loaded.

        Parts, when theirs are on the host, and of which names they are.
        """
        gone = []
        while self._leaving:
            k, event, sources = self._leaving.pop(0)
            self.device.wait(event)
            for gradient in sources.values():
                self.device.drop(gradient)
            gone.append((k, event, list(sources)))
        return gone

    def stepped(self) -> None:
        """The optimizer has moved the host's weights."""
        self.version += 1

    # ---- weights ----

    def _load(self, k: int) -> None:
        copies: dict[int, torch.Tensor] = {}  #: one of each weight, under however many names it stands in the part
        made: dict[str, torch.Tensor] = {}
        pairs = []
        for name in self.names[k]:
            master = self.chain.master(name)
            if id(master) not in copies:
                copies[id(master)] = self.device.empty_like(master.detach())
                pairs.append((master.detach(), copies[id(master)]))
            made[name] = copies[id(master)]
        self._loaded[k] = Loaded(self.device.copy_in(pairs), self.version, made)

    def _enter(self, k: int) -> None:
        """The part's modules compute with what was loaded."""
        loaded = self._loaded[k]
        if loaded.version != self.version:
            raise StaleWeights(
                f"part {k} was loaded before step {self.version} of the optimizer, with the weights of step {loaded.version}"
            )
        self.device.wait(loaded.event)
        for name, tensor in loaded.tensors.items():
            if name in self.chain.parameters:
                self.chain.put(name, nn.Parameter(tensor, requires_grad=self.chain.parameters[name].requires_grad))
            else:
                self.chain.put(name, tensor)
            if name not in self.mutated:
                loaded.constant[name] = tensor._version

    def _require_kept(self, k: int) -> None:
        """What was loaded of the part is as it was: changes of it would be dropped with it."""
        loaded = self._loaded[k]
        for name, version in loaded.constant.items():
            tensor, now = loaded.tensors[name], self.chain.attribute(name)
            if tensor._version != version or now.data_ptr() != tensor.data_ptr():
                if name in self.chain.constants:
                    raise UsageError(f"{_IN_PLACE} ({name}, which is no buffer, or is made by the forward and is the same in all steps)")
                raise ParameterChanged(name) if name in self.chain.parameters else BufferChanged(name)

    def _leave(self, k: int) -> None:
        """The host's weights are the model's again, and the part's memory is free; what a forward has changed of it goes back."""
        changed = [(self.chain.attribute(name), self.chain.buffers[name]) for name in self.names[k] if name in self.mutated]
        if changed:
            self.device.finish(self.device.copy_out(changed))
        self._require_kept(k)
        loaded = self._loaded.pop(k)
        for name, tensor in loaded.tensors.items():
            self.chain.put(name, self.chain.master(name))
            self.device.drop(tensor)

    # ---- computing ----

    def _forward(self, k: int, batch: MicroBatch) -> None:
        def work() -> None:
            rng.set_state(batch.generators)
            if k >= self.bottom:
                batch.before[k] = batch.generators, self._statistics(k)
            values = {node: _kept(batch.values[node]) for node in self.wanted[k]}
            with torch.autograd.graph.saved_tensors_hooks(lambda _: None, _nothing):  # the same kernels as on the way back; nothing is kept
                self._compute(k, values)
            for node in self.made[k]:
                batch.values[node] = _kept(values[node])
            for node in self.wanted[k]:
                if k < self.bottom and self.chain.last_use[node] < self.parts[k][1]:
                    del batch.values[node]
            batch.generators = rng.get_state()

        self.device.launch(work)

    def _compute(self, k: int, values: Values) -> None:
        keep = {node: values[node] for node in self.wanted[k]}
        with _unchanged(keep):
            self.chain.compute(values, *self.parts[k])
        for node, value in keep.items():
            values.setdefault(node, value)

    def _statistics(self, k: int) -> dict[str, torch.Tensor]:
        return {name: self.chain.attribute(name).clone() for name in self.names[k] if name in self.mutated}

    def _backward(self, k: int, c: int, batch: MicroBatch, tail: Tail | None) -> torch.Tensor | None:
        def work() -> torch.Tensor | None:
            if tail is None:  # computed again: with the draws and statistics of the first time, which then are as they were
                generators, statistics = batch.before.pop(k)
                after = self._statistics(k)
                self._restore(statistics)
                rng.set_state(generators)
            else:
                rng.set_state(batch.generators)
            leaves = {node: _kept(batch.values[node]) for node in self.wanted[k]}
            came: dict[Any, list[torch.Tensor]] = {node: [] for node in leaves}
            values = {node: _entered(leaf, came[node]) for node, leaf in leaves.items()}
            entered = dict(values)
            self._compute(k, values)
            roots: list[torch.Tensor] = []
            gradients: list[torch.Tensor | None] = []
            loss = None
            if tail is not None:
                with _unchanged(entered):
                    loss = tail(c, self.chain.answer(values))
                self._require_kept(k)
                roots, gradients = [loss], [None]
            else:
                # A value that goes on to later parts brings their gradient first, in the order in which one backward would add them.
                for node in (*self.made[k], *entered):
                    gradient = batch.gradients.pop(node, None)
                    value = entered.get(node, values.get(node))
                    if gradient is not None and isinstance(value, torch.Tensor) and value.requires_grad:
                        roots.append(value)
                        gradients.append(gradient)
            if roots:
                with _unchanged({}):
                    torch.autograd.backward(roots, gradients)
            if tail is None:  # not before: the backward of BatchNorm refuses statistics that have changed since
                self._restore(after)
            for node in leaves:
                if came[node]:
                    batch.gradients[node] = came[node].pop()
                if self.chain.place[node] >= (self.parts[k - 1][0] if k else 0) or k == 0 or not self._wanted_before(node, k):
                    batch.values.pop(node, None)
            return None if loss is None else loss.detach()

        return self.device.launch(work)

    def _wanted_before(self, node: Any, k: int) -> bool:
        return any(node in self.wanted[earlier] for earlier in range(k))

    def _restore(self, statistics: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, value in statistics.items():
                self.chain.attribute(name).copy_(value)

    # ---- gradients ----

    def _send(self, k: int) -> tuple[int, Event, dict[str, torch.Tensor]]:
        """The gradients that the part has: a module that decides by values may not have used all weights."""
        pairs, sources = [], {}
        for name in self.names[k]:
            if self._trains(name) and (gradient := self.chain.attribute(name).grad) is not None:
                if gradient.layout != torch.strided:
                    raise UsageError(f"memory: {name} has a sparse gradient, which cannot be swapped out; write sparse=False for it")
                if name not in self._host_gradients:
                    self._host_gradients[name] = self.device.host_like(self.chain.parameters[name])
                pairs.append((gradient, self._host_gradients[name]))
                sources[name] = gradient
        event = self.device.copy_out(pairs)
        self._leave(k)
        return k, event, sources

    def _arrive(self, gone: list[tuple[int, Event, list[str]]], arrived: Callable[[int], None]) -> None:
        for k, event, names in gone:
            self.device.finish(event)
            for name in reversed(names):
                master = self.chain.parameters[name]
                if id(master) in self._seen and master.grad is not None:
                    master.grad.add_(self._host_gradients[name])
                else:
                    self._seen.add(id(master))
                    master.grad = self._host_gradients[name]
            arrived(k)


def _nothing(_: None) -> torch.Tensor:
    raise RuntimeError("a part that was to go forward only was gone through backward")


def _kept(value: Any) -> Any:
    """The value without what led to it; whether it wants a gradient stays known."""
    if not isinstance(value, torch.Tensor):
        if any(True for _ in tensors(value)):
            raise UsageError("memory: a value of several tensors would cross a cut")
        return value
    return value.detach().requires_grad_(value.requires_grad)


class _Entry(torch.autograd.Function):
    """Where a value enters a part. Its gradient is kept as it comes: ``.grad`` of a leaf would lie in memory as the value does.

    That would give other sums further on, where the value is a transposed view.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, came: list[torch.Tensor]) -> torch.Tensor:
        ctx.came = came
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.came.append(gradients[0])
        return None, None


def _entered(leaf: Any, came: list[torch.Tensor]) -> Any:
    return _Entry.apply(leaf, came) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf  # type: ignore[no-untyped-call]


@contextmanager
def _unchanged(values: Values) -> Iterator[None]:
    """UsageError where one of these is changed in place, or autograd refuses a change in place."""
    before = {node: versions(value) for node, value in values.items()}
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).partition(". ")[0].split())
        if not re.search("in-?place", said):
            raise
        raise UsageError(f"{_IN_PLACE} ({said})") from None
    for node, value in values.items():
        if versions(value) != before[node]:
            raise UsageError(f"{_IN_PLACE} ({node.name!r})")
