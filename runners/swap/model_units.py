"""The units of a model: modules at whose calls its forward is cut into parts. No unit lies within another one.

Units are a model's repeated blocks, and the modules that stand beside them. The *glue* is all that is computed between units. Weights that
the glue uses, above all those of modules around the units, stay on the device for the whole step.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ...engine.errors import UsageError, nearest

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_NOT_CALLED = (nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a module holds a parameter or a buffer."""

    module: nn.Module
    attribute: str
    trains: bool  #: it is a parameter, which may require gradients

    def get(self) -> torch.Tensor:
        held = self.module._parameters if self.trains else self.module._buffers
        found = held[self.attribute]
        assert found is not None
        return found

    def put(self, tensor: torch.Tensor) -> None:
        """The module computes with this one from here on."""
        if type(self.module).__setattr__ is not nn.Module.__setattr__:  # RNNs keep a list of their weights besides
            setattr(self.module, self.attribute, tensor)
        elif self.trains:
            self.module._parameters[self.attribute] = tensor  # type: ignore[assignment]
        else:
            self.module._buffers[self.attribute] = tensor


def slots_of(model: nn.Module) -> dict[str, TensorPlace]:
    """All parameters and buffers; a tensor that stands at several places (tied) has several names, a module only one."""
    found: dict[str, TensorPlace] = {}
    for path, module in model.named_modules():
        for held, trains in ((module._parameters, True), (module._buffers, False)):
            found |= {f"{path}.{name}".lstrip("."): TensorPlace(module, name, trains) for name, value in held.items() if value is not None}
    return found


# ---- which modules are units ----


class Finder:
    """``named``: modules that are to be units; ``whole``: modules that are not divided."""

    def __init__(self, model: nn.Module, named: Collection[str] = (), whole: Collection[str] = ()) -> None:
        self.model, self.opened = model, set[str]()  #: ``opened``: modules that have turned out not to be units
        self.limit = sys.maxsize  #: bytes above which a unit is opened
        modules = dict(model.named_modules())
        for option, names in (("units", named), ("whole", whole)):
            if unknown := sorted(set(names) - modules.keys()):
                raise UsageError(f"memory: Task.{option}: the model has no module {unknown[0]!r}{nearest(unknown[0], list(modules))}")
        for name in named:
            if inner := [other for other in named if other.startswith(f"{name}.")]:
                raise UsageError(f"memory: Task.units: {inner[0]!r} lies within {name!r}; name one of the two")
        self.named, self.whole = {modules[name] for name in named}, {modules[name] for name in whole}

    def units(self) -> list[str]:
        """Their names, in the order in which the model defines them."""
        found = list(self._below("", self.model))
        return found or [""]

    def open(self, name: str) -> bool:
        """Take the modules in it as units in its place. False: its user has named it as a unit."""
        self.opened.add(name)
        return self.model.get_submodule(name) not in self.named

    def open_largest(self) -> bool:
        """Open each unit of more than half the size of the largest one that can be opened. False: none can be."""
        found = [self.model.get_submodule(name) for name in self.units()]
        sizes = [bytes_of(each) for each in found if each not in self.named and each not in self.whole and _divisible(each)]
        self.limit = max(sizes, default=0) // 2
        return bool(sizes)

    def _below(self, path: str, module: nn.Module) -> Iterator[str]:
        for name, child in module.named_children():
            inner = f"{path}.{name}".lstrip(".")
            if not any(True for _ in child.parameters()):
                continue
            if self._opens(inner, child, isinstance(module, _CONTAINERS)):
                yield from self._below(inner, child)
            else:
                yield inner

    def _opens(self, path: str, module: nn.Module, in_container: bool) -> bool:
        if isinstance(module, _NOT_CALLED) or path in self.opened:
            return True
        if module in self.named or module in self.whole or not _divisible(module):
            return False
        if self.named.intersection(module.modules()) or _hooked_inside(module):
            return True
        return bytes_of(module) > self.limit or (_is_stage(module) if in_container else any(map(_is_stage, module.modules())))


def _divisible(module: nn.Module) -> bool:
    """Whether it has modules with weights, and calls them as far as can be known."""
    if hasattr(module, "parametrizations") or isinstance(module, nn.MultiheadAttention):
        return False
    return any(any(True for _ in child.parameters()) for child in module.children())


def _is_stage(module: nn.Module) -> bool:
    """Whether it is a row of blocks: modules of one kind with modules in them."""
    if not isinstance(module, _CONTAINERS):
        return False
    kinds = [type(child) for child in module.children() if _divisible(child)]
    return len(kinds) > len(set(kinds))


def _hooked_inside(module: nn.Module) -> bool:
    """Whether a module in it has a forward hook. The hook must see tensors through which gradients flow, so that the unit is opened."""
    return any(inner._forward_hooks for inner in module.modules() if inner is not module)


def bytes_of(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in (*module.parameters(), *module.buffers()))


# ---- units in the order of their calls ----


class ParameterChanged(UsageError):
    """The forward or the loss changes a weight. In parts it would change a copy, which is dropped."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's parameter {name!r} is changed while the model or its loss computes, as an Embedding with max_norm does; "
            "where parts are swapped that is lost: let the optimizer do it, or write 'memory: {swap: off}'"
        )


@dataclass(slots=True)
class Seen:
    """Facts about units that a forward has shown: the order of their calls, tensors that others use too, buffers that change."""

    order: list[str] = field(default_factory=list)
    used: dict[str, set[str]] = field(default_factory=dict)  #: by unit, "" for the glue: tensors of other units that it uses
    moving: set[str] = field(default_factory=set)
    changing: set[nn.Module] = field(default_factory=set)  #: modules whose other attributes change
    varied: bool = False  #: another batch's calls come in another order

    @property
    def shared(self) -> set[str]:
        return set[str]().union(*self.used.values())


class Units:
    """A model's units, by *places*: their calls in order. A unit that was not called follows the one before it in the model."""

    def __init__(self, model: nn.Module, names: Sequence[str], seen: Seen | None = None) -> None:
        self.model, self.seen = model, seen or Seen()
        self.varied = False  #: calls come in this order and in others; then the last part is computed again as all others are
        self.in_turn = False  #: micro-batches are computed one after the other, as each sees what others leave
        self.apart = False  #: calls of one unit may be in several parts
        self.modules: Mapping[str, nn.Module] = {name: model.get_submodule(name) for name in names}
        self.slots = slots_of(model)
        inside = {module: name for name, unit in self.modules.items() for module in unit.modules()}
        self.tensors: dict[str, list[str]] = {name: [] for name in names}  #: of each unit
        self.glue: list[str] = []
        for name, slot in self.slots.items():
            unit = inside.get(slot.module)
            (self.glue if unit is None or name in self.seen.shared else self.tensors[unit]).append(name)
        self.order = _with_all(self.seen.order, names)
        self.masters = {name: slot.get() for name, slot in self.slots.items()}
        self.places: dict[str, list[int]] = {name: [] for name in names}
        for place, name in enumerate(self.order):
            self.places[name].append(place)

    def __len__(self) -> int:
        return len(self.order)

    def names(self, start: int, stop: int) -> list[str]:
        """Parameters and buffers of the units that are called from place ``start`` to ``stop``."""
        return [name for unit in dict.fromkeys(self.order[start:stop]) for name in self.tensors[unit]]

    def trains(self, name: str) -> bool:
        return self.slots[name].trains and self.masters[name].requires_grad

    def remember(self) -> bool:
        """Whether a unit is called repeatedly and changes in each call: between parts another micro-batch's first call would come first."""
        repeated = (set(self.modules[unit].modules()) for unit, places in self.places.items() if len(places) > 1)
        changing = self.seen.changing | {self.slots[name].module for name in self.seen.moving}
        return any(modules & changing for modules in repeated)

    def refresh(self) -> None:
        """The masters are what the model holds now."""
        for name, slot in self.slots.items():
            self.masters[name] = slot.get()

    def place_of(self, unit: str, after: int) -> int:
        """Place of the unit's next call from ``after`` on, or of its last call where there is none."""
        return next((place for place in self.places[unit] if place >= after), self.places[unit][-1])

    def cuts(self) -> list[int]:
        """Places before which the model may be cut. A row of calls whose units are all called repeatedly is not cut, unless ``apart``."""
        bound: set[int] = set()
        for places in self.places.values():
            first, last = places[0], places[-1]
            if not self.apart and all(len(self.places[self.order[place]]) > 1 for place in range(first, last + 1)):
                bound |= set(range(first + 1, last + 1))
        return [cut for cut in range(1, len(self)) if cut not in bound]

    def repeated(self, start: int, stop: int) -> list[str]:
        """Parameters of units that are called more than once from place ``start`` to ``stop``."""
        counts = Counter(self.order[start:stop])
        return [name for unit, count in counts.items() if count > 1 for name in self.tensors[unit] if self.trains(name)]


def _with_all(order: Sequence[str], names: Sequence[str]) -> list[str]:
    full = list(order)
    for index, name in enumerate(names):
        if name not in order:
            before = names[index - 1] if index else None
            full.insert(len(full) - full[::-1].index(before) if before is not None else 0, name)
    return full
