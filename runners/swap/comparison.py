"""Compares the model in parts with the model itself before the first step, and refuses a model that would train otherwise in parts.

It runs on the host, with few samples, in two passes. The plain pass computes loss and backward of two micro-batches, one after the other.
The second pass computes them through units: each unit is a part of its own, and the micro-batches run side by side. Losses and gradients
must be equal, but for the order of sums. The plain pass also shows in which order units are called, which of their weights the glue uses,
and which buffers change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...engine.errors import UsageError
from ..device.memory_ledger import tensors_in
from ..train.batches import Interrupted
from .interception import Interception, Unit, hooked
from .micro_batch import MicroBatch
from .model_units import Finder, ParameterChanged, Seen, Units
from .module_state import differing, equal, held_by, untouched
from .swap_executor import leads_back
from .unit_call import ComputesOtherwise, Leaked, NoUnit, UnitCall

log = logging.getLogger(__name__)

_COMPARED_ELEMENTS = 4096  #: elements of a gradient that are compared, beside its norm
#: largest difference, relative to the gradient's largest element: another order of sums stays within it, other numbers do not
_TOLERANCE = {torch.float16: 3e-2, torch.bfloat16: 1e-1, torch.float64: 1e-8, torch.complex128: 1e-8}
_USUAL_TOLERANCE = 1e-3

Begin = Callable[[], MicroBatch]


class PlainFails(Exception):
    """The model itself cannot be computed on the host, or not with few samples."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which tensors of other units an operation uses while one unit, or the glue, computes."""

    def __init__(self, units: Units) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inside: str | None = None  #: the unit that computes; None: the glue
        self.looks = True
        self.used: dict[str, set[str]] = {}  #: names by unit, "" for the glue
        self._names: dict[int, list[tuple[str, str]]] = {}
        for unit, names in units.tensors.items():
            for name in names:
                self._names.setdefault(units.masters[name].untyped_storage()._cdata, []).append((unit, name))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_in((args, tuple(kwargs.values()))) if self.looks else ():
            owners = self._names.get(tensor.untyped_storage()._cdata, ())
            if owners and all(unit != self.inside for unit, _ in owners):
                self.used.setdefault(self.inside or "", set()).update(name for _, name in owners)
        return func(*args, **kwargs)


@dataclass(slots=True)
class _Sketch:
    """A gradient in short: its norm, its largest element and a sample of its elements."""

    norm: float
    largest: float
    sample: torch.Tensor

    @classmethod
    def of(cls, gradient: torch.Tensor) -> _Sketch:
        flat = gradient.detach().to_dense().reshape(-1)
        norm = float(torch.linalg.vector_norm(flat, dtype=torch.complex128 if flat.is_complex() else torch.float64))
        step = max(1, flat.numel() // _COMPARED_ELEMENTS)
        return cls(norm, float(flat.abs().max()) if flat.numel() else 0.0, flat[::step].clone())

    def like(self, other: _Sketch) -> bool:
        close = _TOLERANCE.get(self.sample.dtype, _USUAL_TOLERANCE)
        largest = max(self.largest, other.largest)
        off = float((self.sample - other.sample).abs().max()) if self.sample.numel() else 0.0
        return off <= close * largest and abs(self.norm - other.norm) <= close * max(self.norm, other.norm)


@dataclass(slots=True)
class _Found:
    """Losses and gradients of a pass."""

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, _Sketch] = field(default_factory=dict)


def seen_plainly(units: Units, begin: Sequence[Begin]) -> tuple[Seen, _Found]:
    """Compute the micro-batches one after the other, without parts."""
    seen, found, interception, others = Seen(), _Found(), Interception(units), list[str]()
    watch, versions = _Watch(units), {name: slot.get()._version for name, slot in units.slots.items() if slot.trains}
    before = {name: slot.get().clone() for name, slot in units.slots.items() if not slot.trains}
    try:
        for number, make in enumerate(begin):
            batch = make()
            order = seen.order if number == 0 else others
            batch.called = partial(_watched, watch, units, seen, order)
            batch.computed = partial(_forward_done, watch, units, versions)  # type: ignore[method-assign]
            watch.inside, watch.looks = None, True
            try:
                with watch:
                    batch.until(0)
            except UsageError:
                raise
            except Exception as error:
                raise PlainFails from error
            assert batch.loss is not None
            found.losses.append(float(batch.loss))
        seen.used, seen.varied = watch.used, bool(others) and others != seen.order
        seen.moving.update(name for name, value in before.items() if not equal(units.slots[name].get(), value))
        found.gradients = _gradients(units.model)
    finally:
        interception.close()
    return seen, found


def _forward_done(watch: _Watch, units: Units, versions: Mapping[str, int]) -> None:
    """Stop watching, as backward follows. ParameterChanged where the forward has changed a weight."""
    watch.looks = False
    for name, version in reversed(list(versions.items())):
        if (now := units.slots[name].get()) is not units.masters[name] or now._version != version:
            raise ParameterChanged(name)


def _watched(watch: _Watch, units: Units, seen: Seen, order: list[str], unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a unit without parts, and record which buffers and attributes it changes."""
    versions = [parameter._version for parameter in unit.module.parameters()]
    slots = {name: units.slots[name] for name in units.tensors[unit.name] if not units.slots[name].trains}
    if watch.inside is not None:
        raise NoUnit(watch.inside, f"calls {unit.name}", "let the module around both do so")
    looks, watch.looks = watch.looks, False
    held, buffers = held_by(unit.module.modules()), {name: slot.get().clone() for name, slot in slots.items()}
    watch.inside, watch.looks = unit.name, looks
    try:
        answer = unit.forward(*args, **kwargs)
        watch.looks = False
        seen.changing.update(differing(held))
        _require_constant(units, unit, versions)
        seen.moving.update(name for name, slot in slots.items() if not equal(slot.get(), buffers[name]))
    finally:
        watch.inside, watch.looks = None, looks
    order.append(unit.name)
    return hooked(unit, args, kwargs, answer) if unit.module._forward_hooks else answer


def _require_constant(units: Units, unit: Unit, versions: Sequence[int]) -> None:
    for (name, parameter), version in zip(unit.module.named_parameters(), versions, strict=True):
        if parameter._version != version:
            raise ParameterChanged(f"{unit.name}.{name}".lstrip("."))


def _gradients(model: nn.Module) -> dict[str, _Sketch]:
    return {name: _Sketch.of(each.grad) for name, each in model.named_parameters() if each.grad is not None}


# ---- the same through units ----


class _Checked(UnitCall):
    """A call that must make the same tensors when it is computed again."""

    def _joined(self, made: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.first = [_Sketch.of(leaf) for leaf in made]
        return super()._joined(made)

    def _compute_again(self) -> None:
        try:
            super()._compute_again()
        except UsageError:
            raise
        except Exception as error:
            raise ComputesOtherwise(self.unit.name, said(error)) from None
        assert self.again is not None
        for number, first in zip(self.numbers, self.first, strict=True):
            made = self.again.made[number] if number < len(self.again.made) else None
            if not isinstance(made, torch.Tensor) or not _Sketch.of(made).like(first):
                raise ComputesOtherwise(self.unit.name, "its answer is another one")


def through_units(units: Units, begin: Sequence[Begin]) -> _Found:
    """Compute the micro-batches side by side, each call as a part of its own."""
    found, interception = _Found(), Interception(units)
    batches = [make() for make in begin]
    try:
        for together in [[batch] for batch in batches] if units.in_turn else [batches]:
            _side_by_side(units, together)
        found.losses = [float(batch.loss) for batch in batches if batch.loss is not None]
        found.gradients = _gradients(units.model)
    except Leaked as error:
        raise NoUnit(error.unit, "answers tensors in an object of its own", "let it answer a dataclass or a dict") from None
    except Exception as error:
        if isinstance(error, Interrupted) or str(error).startswith("memory"):
            raise
        raise UsageError(f"memory: the model fails where it is computed in parts ({said(error)}); write 'memory: {{swap: off}}'") from None
    finally:
        for batch in batches:
            batch.abandon()
        interception.close()
    return found


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _side_by_side(units: Units, batches: Sequence[MicroBatch]) -> None:
    for batch in batches:
        batch.called, batch.last = partial(_noted, units, batch), len(units)
        batch.until(-1)
    while going := [batch for batch in batches if not batch.ended]:
        wanted = [batch.wanted for batch in going if batch.wanted is not None]
        forward = [part for part, back in wanted if not back]
        turn = (min(forward), False) if forward else (max(part for part, _ in wanted), True)
        for batch in going:
            if batch.wanted == turn:
                batch.until(turn[0])


def _noted(units: Units, batch: MicroBatch, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    place = units.place_of(unit.name, batch.place)
    batch.place = place + 1
    batch.pause(place)
    if not leads_back(unit, args, kwargs):
        return unit.native(*args, **kwargs)
    answer = _Checked(unit, batch, place, place).answer(args, kwargs)
    return hooked(unit, args, kwargs, answer) if unit.module._forward_hooks else answer


def compared(model: nn.Module, finder: Finder, begin: Sequence[Begin]) -> Units:
    """The model's units, as the plain pass shows them. UsageError where losses or gradients differ through units."""
    while True:
        try:
            with untouched(model):
                units = Units(model, finder.units())
                seen, plain = seen_plainly(units, begin)
            units = Units(model, list(units.modules), seen)
            units.varied, units.in_turn = seen.varied, len(begin) > 1 and units.remember()
            try:
                _require_same(units, plain, begin)
            except NoUnit:
                raise
            except UsageError:
                if len(begin) == 1 or units.in_turn:
                    raise
                units.in_turn = True
                _require_same(units, plain, begin)
            if units.in_turn:
                log.info("swapping: what one batch of a step leaves is seen by others, so they are computed one after the other")
        except NoUnit as error:
            if finder.open(error.unit):
                continue
            raise
        return units


def _require_same(units: Units, plain: _Found, begin: Sequence[Begin]) -> None:
    """UsageError where losses or gradients through units are not those of the plain pass."""
    with untouched(units.model):
        found = through_units(units, begin)
    if not all(map(math.isfinite, plain.losses)):
        return  # the step will say so
    for one, other in zip(plain.losses, found.losses, strict=True):
        if not _Sketch.of(torch.tensor(one)).like(_Sketch.of(torch.tensor(other))):
            raise UsageError(
                f"memory: the first loss is {other:.6g} where the model is computed in parts, and {one:.6g} where it is not: it keeps "
                "values beside what its modules give to each other; write 'memory: {swap: off}'"
            )
    for name, gradient in plain.gradients.items():
        other_gradient = found.gradients.get(name)
        if other_gradient is None or not gradient.like(other_gradient):
            raise UsageError(
                f"memory: the gradient of {name} is another one where the model is computed in parts: something reaches it past the calls "
                "of modules; name the module that holds both in Task.units, or write 'memory: {swap: off}'"
            )
