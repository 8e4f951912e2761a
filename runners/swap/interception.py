"""Calls of units come to whoever computes in the thread, in place of what they would do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from .model_units import Slot, Units


@dataclass(slots=True)
class Unit:
    """``native``: what a call of it does, ``forward``: without its hooks; ``moving``: buffers that this changes.

    ``changing``: modules whose other attributes change.
    ``shared``: weights that others use too, so that autograd adds up their gradients.
    """

    name: str
    module: nn.Module
    native: Callable[..., Any]
    forward: Callable[..., Any]
    moving: Sequence[Slot] = ()
    changing: Sequence[nn.Module] = ()
    shared: Sequence[Slot] = ()


Called = Callable[[Unit, tuple[Any, ...], dict[str, Any]], Any]

here = threading.local()  #: ``here.called``: what answers in this thread in place of a unit, if anything does


_SLOT = "_compiled_call_impl"  #: what torch calls in place of a module, if it is set; copies and pickles of a module are without it


class Interception:
    """Until it is closed. In a thread in which nothing answers for units, they do what they always do."""

    def __init__(self, units: Units, called: Callable[..., Any] | None = None) -> None:
        """``called``: is given all calls of the model, with what it would do."""
        self.before = [(module, vars(module).get(_SLOT)) for module in (*units.modules.values(), units.model)]
        for name, module in units.modules.items():
            vars(module)[_SLOT] = _intercepted(_unit(units, name, module))
        if called is not None:
            vars(units.model)[_SLOT] = partial(called, _native(units.model))

    def close(self) -> None:
        for module, before in self.before:
            vars(module).pop(_SLOT, None)
            if before is not None:
                vars(module)[_SLOT] = before


def _native(module: nn.Module) -> Callable[..., Any]:
    """What a call of the module does by itself."""
    return vars(module).get(_SLOT) or partial(type(module)._call_impl, module)


def _unit(units: Units, name: str, module: nn.Module) -> Unit:
    native, slots = _native(module), units.slots
    inside, used = set(module.modules()), units.seen.used.get(name, ())
    return Unit(
        name, module, native, _without_hooks(module, native),
        moving=[slots[each] for each in units.tensors[name] if each in units.seen.moving],
        changing=[each for each in module.modules() if each in units.seen.changing],
        shared=[slots[each] for each in units.glue if slots[each].trains and (slots[each].module in inside or each in used)],
    )  # fmt: skip


def _intercepted(unit: Unit) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        called: Called | None = getattr(here, "called", None)
        return unit.native(*args, **kwargs) if called is None else called(unit, args, kwargs)

    return call


def _without_hooks(module: nn.Module, native: Callable[..., Any]) -> Callable[..., Any]:
    """The module's call without what only looks at its answer, or changes it: that is done outside, where gradients flow through it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        hooks = module._forward_hooks
        if not hooks:
            return native(*args, **kwargs)
        vars(module)["_forward_hooks"] = {}
        try:
            return native(*args, **kwargs)
        finally:
            vars(module)["_forward_hooks"] = hooks

    return call


def hooked(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
    """The answer, after the hooks that `_without_hooks` has left out."""
    module = unit.module
    for number, hook in list(module._forward_hooks.items()):
        given = (args, kwargs) if number in module._forward_hooks_with_kwargs else (args,)
        found = hook(module, *given, answer)
        answer = answer if found is None else found
    return answer
