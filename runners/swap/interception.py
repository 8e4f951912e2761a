"""Sends each call of a unit to the function that answers for units in this thread, a micro-batch's for example."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from .model_units import TensorPlace, Units


@dataclass(slots=True)
class Unit:
    """A unit, and the facts about it that a call needs."""

    name: str
    module: nn.Module
    native: Callable[..., Any]  #: the module's own call
    forward: Callable[..., Any]  #: the same without its forward hooks
    moving: Sequence[TensorPlace] = ()  #: buffers that a call changes
    changing: Sequence[nn.Module] = ()  #: modules whose other attributes a call changes
    shared: Sequence[TensorPlace] = ()  #: weights that others use too, so that autograd adds up their gradients


Called = Callable[[Unit, tuple[Any, ...], dict[str, Any]], Any]

here = threading.local()  #: ``here.called``: answers in this thread in place of a unit; None or not set: units compute as always


_REPLACED_CALL = "_compiled_call_impl"  #: torch calls it in place of the module where it is set; copies and pickles are without it


class Interception:
    """Intercepts calls of units until it is closed. In a thread where ``here.called`` is not set, units compute as always."""

    def __init__(self, units: Units, called: Callable[..., Any] | None = None) -> None:
        """``called``: is called in place of the model, with the model's own call as its first argument."""
        self.before = [(module, vars(module).get(_REPLACED_CALL)) for module in (*units.modules.values(), units.model)]
        for name, module in units.modules.items():
            vars(module)[_REPLACED_CALL] = _intercepted(_unit(units, name, module))
        if called is not None:
            vars(units.model)[_REPLACED_CALL] = partial(called, _native(units.model))

    def close(self) -> None:
        for module, before in self.before:
            vars(module).pop(_REPLACED_CALL, None)
            if before is not None:
                vars(module)[_REPLACED_CALL] = before


def _native(module: nn.Module) -> Callable[..., Any]:
    """The module's own call."""
    return vars(module).get(_REPLACED_CALL) or partial(type(module)._call_impl, module)


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
    """The module's call without its forward hooks. `hooked` runs them outside of the call, where gradients flow through what they do."""

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
