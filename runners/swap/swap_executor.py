"""Executes a model layer-major (004 ch. 3.3.3, fig. 3-12): a part is loaded once and computes C micro-batches.

A step goes forward through the parts, then back; a part's activations are computed again on the way back. The last part stays in between,
and computes forward and backward in one. Gradients leave on a stream of their own while the next part computes the first half of its
micro-batches, or a single one goes back through half of its calls. When their memory is free (back-pressure), the part after that is
loaded, while the second half is computed.

On the host, each gradient is a sum over the micro-batches in their order, so it equals that of the plain loop to the bit. A weight with
several names (tied) has one such sum for each name, and these are added from the last name to the first.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from ...engine.errors import StokerError, UsageError
from ..device.device import Device, Event
from .interception import Unit, here, hooked
from .micro_batch import MicroBatch
from .model_units import ParameterChanged, Units
from .partition import halfway, room_after
from .unit_call import UnitCall, flattened

log = logging.getLogger(__name__)

_GLUE = -1  #: number of the glue where parts are counted; it is on the device for the whole step


Arrived = Callable[[Sequence[nn.Parameter]], None]
Gone = tuple[int, Event, list[str]]  #: a part, the event after which its gradients are on the host, and the names of these


class StaleWeights(StokerError):
    """A part was loaded before the optimizer's last step, and was about to compute with these weights."""


class Varies(StokerError):
    """Calls come in another order than they were seen in, and need another part after the last one has computed."""


@dataclass(slots=True)
class Loaded:
    """A part on the device."""

    event: Event
    version: int
    tensors: dict[str, torch.Tensor]
    constant: dict[str, int] = field(default_factory=dict)  #: by name, torch's count of changes in place when it was loaded
    held: dict[str, torch.Tensor] = field(default_factory=dict)  #: the tensors that the modules compute with


class SwapExecutor:
    """Steps of a model that is cut before the places ``cuts`` of its units' calls, on a device."""

    def __init__(self, units: Units, cuts: Sequence[int], device: Device) -> None:
        self.units, self.device = units, device
        self.parts = list(itertools.pairwise([0, *cuts, len(units)]))
        self.names = [units.names(*part) for part in self.parts]
        self.repeated = [units.repeated(*part) for part in self.parts]
        parts_of = Counter(name for names in self.names for name in names if units.trains(name))
        self.spread = [[name for name in names if parts_of[name] > 1] for names in self.names]  #: weights that other parts have too
        self._part_of = [k for k, (start, stop) in enumerate(self.parts) for _ in range(start, stop)]
        self.count = 1  #: micro-batches of the step
        self.version = 0  #: of the weights on the host: steps of the optimizer
        self.bottom = 0  #: the first part that is gone through backward
        self.astray = False  #: calls of this step do not come in the order in which they were seen
        self._loaded: dict[int, Loaded] = {}
        self._leaving: list[tuple[int, Event, dict[str, torch.Tensor]]] = []
        self._host_gradients: dict[tuple[int, str], torch.Tensor] = {}  #: by part: a unit may be called in several
        self._arrived: dict[str, torch.Tensor] = {}  #: gradients of this step on the host, by name
        self._each: dict[str, dict[int, torch.Tensor]] = {}  #: the same of each micro-batch, where several parts have some of it
        self._absent: dict[str, torch.Tensor] = {}

    # ---- one step ----

    def run(self, micro: Sequence[MicroBatch], arrived: Arrived = lambda whole: None) -> list[torch.Tensor]:
        """Losses of the micro-batches; the gradients are in ``.grad`` of the host's parameters.

        ``arrived``: is called with parameters whose gradients are complete, while others are still computed.
        """
        turns = [[batch] for batch in micro] if self.units.in_turn else [micro]
        try:
            self._begin(micro)
            for turn in turns:
                self._forward(turn)
                self._backward(turn, arrived if len(turns) == 1 else None)
                self._arrive(self._make_room())
                if len(turns) > 1:  # the next one's gradients come into other memory
                    self._host_gradients.clear()
            self._leaving.append(self._send(_GLUE))
            self._arrive(self._make_room())
            for name, each in self._each.items():
                first, *others = (each[id(batch)] for batch in micro if id(batch) in each)
                for other in others:
                    first.add_(other)
                self._arrived[name] = first
            arrived(self._sum())
            self._end()
        except BaseException:
            self.abandon(micro)
            raise
        return [batch.loss for batch in micro if batch.loss is not None]

    def _forward(self, micro: Sequence[MicroBatch]) -> None:
        """Through all parts but the last one."""
        self._load(0)
        for k in range(len(self.parts) - 1):
            self._load(k + 1)
            self._enter(k)
            for batch in micro:
                self._go(k, batch)
            self._leave(k)
            while astray := {batch.wanted[0] for batch in micro if batch.wanted is not None and batch.wanted[0] <= k}:
                self._detour(min(astray), micro)
            if k + 1 not in self._loaded:
                self._load(k + 1)

    def _backward(self, micro: Sequence[MicroBatch], arrived: Arrived | None) -> None:
        """Through the last part forward and back, then back through the other parts as far as gradients go."""
        k = last = len(self.parts) - 1
        while not all(batch.ended for batch in micro):
            if k not in self._loaded:
                self._load(k)
            self._enter(k)
            left: list[Gone] = []
            for c, batch in enumerate(micro):
                if len(micro) == 1 and k != last and (middle := halfway(*self.parts[k])) is not None:
                    batch.halt = middle
                    self._go(k, batch)
                    batch.halt = None
                if c == room_after(len(micro)):
                    left = self._make_room()
                    self.bottom = min((each.lowest for each in micro if each.lowest is not None), default=last)
                    if k > self.bottom:
                        self._load(k - 1)
                self._go_back(k, c, batch)
                while k == last and batch.wanted is not None and not batch.back:
                    self._beside(k, batch)
            self._leaving.append(self._send(k))
            self._arrive(left)  # on the host, while the device computes
            if left and arrived is not None and not self.astray:
                arrived(self._sum(k))
            while astray := {part for part, back in (batch.wanted for batch in micro if batch.wanted is not None) if part >= k or not back}:
                self._detour(min(astray), micro)
            k -= 1

    # ---- calls in another order than they were seen in ----

    def _detour(self, k: int, micro: Sequence[MicroBatch]) -> None:
        """A part is loaded once more, alone, for those that want it now."""
        self._strayed()
        for other in [other for other in self._loaded if other != _GLUE]:
            self._discard(other)
        self._arrive(self._make_room())
        self._load(k)
        self._enter(k)
        for batch in micro:
            self._go(k, batch)
        self._leaving.append(self._send(k))
        self._arrive(self._make_room())

    def _beside(self, k: int, batch: MicroBatch) -> None:
        """Load another part beside the last one, through which no gradients have gone yet."""
        if not self.units.varied:  # the last part has computed with its graph, and must stay until gradients have gone through it
            raise Varies
        self._strayed()
        assert batch.wanted is not None
        other = batch.wanted[0]
        if other != k:
            if other not in self._loaded:
                self._load(other)
            self._enter(other)
            self._go(other, batch)
            self._leave(other)
        for name, tensor in self._loaded[k].held.items():
            self.units.slots[name].put(tensor)
        self._go(k, batch)

    def _strayed(self) -> None:
        if not self.astray:
            log.info("swapping: calls of the model's modules do not come in the order in which they came at first; parts are loaded again")
        self.astray = True

    def _begin(self, micro: Sequence[MicroBatch]) -> None:
        self.units.refresh()
        self.count, self.astray = len(micro), False
        self._arrived.clear()
        self._each.clear()
        for name in {name for names in self.names for name in names}:
            self._put_absent(name)
        for batch in micro:
            batch.called, batch.last = partial(self._called, batch), len(self.parts) - 1
            batch.gone_back = partial(self._carry_out, batch=batch)
        self._load(_GLUE)
        self._enter(_GLUE)

    def _end(self) -> None:
        """The model has the host's weights again."""
        for name, slot in self.units.slots.items():
            slot.put(self.units.masters[name])

    def abandon(self, micro: Sequence[MicroBatch] = ()) -> None:
        """After an error: no thread waits, and no copy is under way into memory that is let go."""
        for batch in micro:
            batch.abandon()
        for _, event, _ in self._leaving:
            self.device.finish(event)
        for loaded in self._loaded.values():
            self.device.finish(loaded.event)
        self._loaded.clear()
        self._leaving.clear()
        self._end()

    def stepped(self) -> None:
        """The optimizer has moved the host's weights."""
        self.version += 1

    # ---- weights ----

    def _names(self, k: int) -> list[str]:
        return self.units.glue if k == _GLUE else self.names[k]

    def _put_absent(self, name: str) -> None:
        """Put a stand-in for a tensor that is not on the device: it has the same shape, but its one element is NaN."""
        master = self.units.masters[name]
        if (absent := self._absent.get(name)) is None or absent.requires_grad != master.requires_grad or absent.shape != master.shape:
            value = float("nan") if master.is_floating_point() or master.is_complex() else 0
            one = torch.full((), value, dtype=master.dtype, device=master.device if master.is_meta else self.device.device)
            absent = one.expand(master.shape)
            if isinstance(master, nn.Parameter):
                absent = nn.Parameter(absent, requires_grad=master.requires_grad)
            self._absent[name] = absent
        self.units.slots[name].put(absent)

    def _load(self, k: int) -> None:
        copies: dict[int, torch.Tensor] = {}  #: one of each weight, under however many names it stands in the part
        made: dict[str, torch.Tensor] = {}
        pairs = []
        for name in self._names(k):
            master = self.units.masters[name]
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
        made: dict[int, nn.Parameter] = {}  #: of several micro-batches each name has its own, as in a plain step (`untied`)
        for name, tensor in loaded.tensors.items():
            slot, master = self.units.slots[name], self.units.masters[name]
            if slot.trains and (id(tensor) not in made or self.count > 1):
                made[id(tensor)] = nn.Parameter(tensor, requires_grad=master.requires_grad)
            loaded.held[name] = made[id(tensor)] if slot.trains else tensor
            slot.put(loaded.held[name])
            loaded.constant[name] = tensor._version

    def _leave(self, k: int) -> None:
        """Free the part's memory. Buffers that a forward has changed are copied back to the host first."""
        loaded = self._loaded.pop(k)
        changed = []
        for name, tensor in loaded.tensors.items():
            slot = self.units.slots[name]
            now = slot.get()
            same = now.data_ptr() == tensor.data_ptr() and tensor._version == loaded.constant[name]
            if same and name not in self.units.seen.moving:  # the kernel of BatchNorm does not count its changes
                continue
            if slot.trains:
                raise ParameterChanged(name)
            if now.shape != self.units.masters[name].shape:
                raise UsageError(f"memory: the model's forward changes the shape of its buffer {name!r}; write 'memory: {{swap: off}}'")
            changed.append((now.detach(), self.units.masters[name]))
        if changed:
            self.device.finish(self.device.copy_out(changed))
        for name, tensor in loaded.tensors.items():
            self._put_absent(name)
            if isinstance(held := loaded.held.get(name), nn.Parameter):  # a graph that has been gone through still refers to it
                held.data, held.grad = self._absent[name].data, None
            self.device.drop(tensor)

    # ---- computing ----

    def _called(self, batch: MicroBatch, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answers in place of a unit, in the thread of a micro-batch."""
        part = self._part(batch, unit)
        stays = part == len(self.parts) - 1 and (not batch.back or batch.part == part) and not self.units.varied
        batch.pause(part)
        if stays or not leads_back(unit, args, kwargs):
            return unit.native(*args, **kwargs)
        batch.lowest = part if batch.lowest is None else min(part, batch.lowest)
        answer = UnitCall(unit, batch, part, batch.place - 1).answer(args, kwargs)
        return hooked(unit, args, kwargs, answer) if unit.module._forward_hooks else answer

    def _part(self, batch: MicroBatch | _Turn, unit: Unit) -> int:
        place = self.units.place_of(unit.name, batch.place)
        batch.place = place + 1
        return self._part_of[place]

    def _go(self, k: int, batch: MicroBatch) -> None:
        if not batch.ended and (batch.wanted is None or batch.wanted[0] == k):
            self.device.launch(lambda: batch.until(k))
            self._carry_out(k, batch)

    def _go_back(self, k: int, c: int, batch: MicroBatch) -> None:
        """Go back with one micro-batch. A weight that several calls use gets a sum of its own for each micro-batch, as without parts."""
        before = {name: self._gradient(name) for name in self.repeated[k] if name not in self.spread[k]} if c else {}
        for name in before:
            self.units.slots[name].get().grad = None
        self._go(k, batch)
        for name, gradient in before.items():
            now = self.units.slots[name].get()
            now.grad = gradient if now.grad is None else now.grad if gradient is None else gradient.add_(now.grad)

    def _carry_out(self, k: int, batch: MicroBatch) -> None:
        """Gradients of weights that other parts use too leave at once. Their sum for a micro-batch is made on the host, call by call."""
        for name in self.spread[k]:
            if (found := self._gradient(name)) is not None:
                self._add_each(name, id(batch), found)
                self.units.slots[name].get().grad = None

    def _add_each(self, name: str, batch: int, gradient: torch.Tensor) -> None:
        there = self.device.host_like(self.units.masters[name])
        self.device.finish(self.device.copy_out([(gradient, there)]))
        each = self._each.setdefault(name, {})
        each[batch] = each[batch].add_(there) if batch in each else there

    # ---- answers ----

    def answer(self, call: Callable[[], Any]) -> Any:
        """The answer of ``call``, which calls the model: computed in parts on the device, forward only."""
        self._begin(())
        turn = _Turn()
        before, here.called = getattr(here, "called", None), partial(self._answered, turn)
        try:
            return self.device.launch(call)
        finally:
            here.called = before
            self.abandon()

    def _answered(self, turn: _Turn, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        part = self._part(turn, unit)
        if part != turn.part:
            for k in [k for k in self._loaded if k not in (_GLUE, part)]:
                self._leave(k) if k == turn.part else self._discard(k)
            if part not in self._loaded:
                self._load(part)
            if part + 1 < len(self.parts):
                self._load(part + 1)
            self._enter(part)
            turn.part = part
        return unit.native(*args, **kwargs)

    def _discard(self, k: int) -> None:
        """Drop a part that was loaded in advance and is not needed."""
        loaded = self._loaded.pop(k)
        self.device.finish(loaded.event)
        for tensor in loaded.tensors.values():
            self.device.drop(tensor)

    # ---- gradients ----

    def _make_room(self) -> list[Gone]:
        """Back-pressure: wait for the gradients of the part before, and free their memory, before another part is loaded."""
        gone = []
        while self._leaving:
            k, event, sources = self._leaving.pop(0)
            self.device.wait(event)
            for gradient in sources.values():
                self.device.drop(gradient)
            gone.append((k, event, list(sources)))
        return gone

    def _send(self, k: int) -> tuple[int, Event, dict[str, torch.Tensor]]:
        """Start the copies of a part's gradients. A weight has none where its module has not used it."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        sources: dict[str, torch.Tensor] = {}
        for name in self._names(k):
            gradient = self._gradient(name)
            if gradient is None or any(gradient is other for other in sources.values()):
                continue
            if gradient.layout != torch.strided:
                module = name.rpartition(".")[0]
                raise UsageError(f"memory: {module} has sparse gradients, which cannot be swapped out; write sparse=False for it")
            there = self._host_gradients.get((k, name))
            if there is None or there is self._arrived.get(name):  # the part was there before in this step
                there = self._host_gradients[k, name] = self.device.host_like(self.units.masters[name])
            pairs.append((gradient, there))
            sources[name] = gradient
        event = self.device.copy_out(pairs)
        self._leave(k)
        return k, event, sources

    def _gradient(self, name: str) -> torch.Tensor | None:
        slot = self.units.slots[name]
        return slot.get().grad if slot.trains else None

    def _arrive(self, gone: Sequence[Gone]) -> None:
        """Add gradients that are on the host to those of this step."""
        for k, event, names in gone:
            self.device.finish(event)
            for name in names:
                gradient = self._host_gradients[k, name]
                self._arrived[name] = self._arrived[name].add_(gradient) if name in self._arrived else gradient

    def _sum(self, before: int | None = None) -> list[nn.Parameter]:
        """Set ``.grad`` of parameters that no part up to ``before`` has (None: of all). Names are added from the last to the first."""
        others = [] if before is None else [*self.names[: before + 1], self.units.glue]
        waiting = {id(self.units.masters[name]) for names in (*others, *([self._each] if others else [])) for name in names}
        whole: dict[int, nn.Parameter] = {}
        for name in reversed(list(self.units.slots)):
            master = self.units.masters[name]
            if name in self._arrived and id(master) not in waiting:
                assert isinstance(master, nn.Parameter)
                gradient = self._arrived.pop(name)
                master.grad = master.grad.add_(gradient) if id(master) in whole and master.grad is not None else gradient
                whole[id(master)] = master
        return list(whole.values())


@dataclass(slots=True)
class _Turn:
    """The part and the place that an evaluation has come to."""

    part: int | None = None
    place: int = 0


def leads_back(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether gradients go through this call of the unit."""
    if not torch.is_grad_enabled():
        return False
    if any(each.requires_grad for each in unit.module.parameters()):
        return True
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in flattened((args, kwargs))[0])
