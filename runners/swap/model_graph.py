"""The graph of a model's forward, and what must stay as it was for the graph to stand for it.

It is traced by torch.fx, in which modules of torch.nn are single nodes. Tracing runs the forward once, with stand-ins for tensors: what
does not go through them would be the same in every step from then on. So modules stay whole that decide by values, draw random numbers by
themselves, or compute under autocast; and attributes of the others must not change while it trains.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from ...engine.errors import UsageError, nearest
from ..train import rng

_NO_GRADIENTS = "without gradients"  #: of a node, in its ``meta``: the forward computes it under torch.no_grad()


class BufferChanged(UsageError):
    """The forward changes a buffer that would not be carried back: the change would be lost in silence."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's forward changes its buffer {name!r}, and of buffers only running statistics (running_mean, running_var, "
            "num_batches_tracked) are carried back from a part; write 'memory: {swap: off}'"
        )


class ParameterChanged(UsageError):
    """The forward or the loss changes a weight by itself: it changes the copy in a part, which is dropped."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's parameter {name!r} is changed while the model or its loss computes, as an Embedding with max_norm does; "
            "where parts are swapped that is lost: let the optimizer do it, or write 'memory: {swap: off}'"
        )


class AttributeChanged(UsageError):
    """The forward changes what is neither parameter nor buffer: parts are computed twice, and traced code runs once for all steps."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's forward changes its attribute {name!r}, which a model that is cut into parts cannot keep; "
            "leave that out, or write 'memory: {swap: off}'"
        )


class _MustStayWhole(Exception):
    """What a forward does that a graph of it would not do."""


@dataclass(frozen=True, slots=True)
class Traced:
    graph: fx.Graph
    given: Mapping[str, Any]  #: arguments that are None, bool or str: the graph holds for these values alone, and has no inputs for them


class _Tracer(fx.Tracer):
    """Goes into all modules but torch's own, those that the task names as whole, and those that could not be traced."""

    proxy_buffer_attributes = True  #: else what the forward does to a buffer is done once, while tracing, and is not in the graph

    def __init__(self, whole: set[str], given: Mapping[str, Any]) -> None:
        super().__init__(autowrap_modules=(math,))
        self.whole, self.given = whole, given
        self.inside: list[str] = []  #: modules that are being traced, outermost first
        self.draws, self.autocast = _draws(), _autocast()

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        hooked = module._backward_hooks or module._backward_pre_hooks  # they hang on tensors, for which tracing has stand-ins
        return name in self.whole or bool(hooked) or super().is_leaf_module(module, name)

    def call_module(self, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(module)
        if self.is_leaf_module(module, name):
            return super().call_module(module, forward, args, kwargs)
        self.inside.append(name)
        done = super().call_module(module, forward, args, kwargs)
        self.require_no_draws()
        self.inside.pop()
        return done

    def require_no_draws(self) -> None:
        if _draws() != self.draws:
            raise _MustStayWhole("it draws random numbers by itself, such as torch.rand(1), not in the form of a tensor")

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _autocast() != self.autocast:
            raise _MustStayWhole("it computes under torch.autocast")
        node = super().create_node(*args, **kwargs)
        if not torch.is_grad_enabled():
            node.meta[_NO_GRADIENTS] = True
        return node

    def _proxy_placeholder(self, name: str, *args: Any) -> Any:
        return self.given[name] if name in self.given else super()._proxy_placeholder(name, *args)


def _draws() -> tuple[Any, ...]:
    """Where the random generators are."""
    _, keys, position, _, gauss = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), np.asarray(keys).tobytes(), position, gauss, random.getstate()


def _autocast() -> tuple[Any, ...]:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def without_gradients(node: fx.Node) -> AbstractContextManager[object]:
    """What the node is computed under."""
    return torch.no_grad() if _NO_GRADIENTS in node.meta else nullcontext()


def trace(model: nn.Module, whole: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> Traced:
    """The graph of the model's forward in its present mode. Modules that cannot be traced into are nodes of their own.

    ``given``: arguments that are no tensors (see `arguments`), by default those that the forward has of itself.
    """
    leaves = set(whole)
    known = [name for name, _ in model.named_modules()]
    if unknown := leaves.difference(known):
        raise UsageError(f"memory: Task.whole: the model has no module {min(unknown)!r}{nearest(min(unknown), known)}")
    if given is None:
        defaults = {name: parameter.default for name, parameter in inspect.signature(type(model).forward).parameters.items()}
        given = {name: value for name, value in defaults.items() if _fixed(value)}
    while True:
        attributes = held_by(model)
        buffers = [(module, dict(module._buffers)) for module in model.modules()]
        with rng.preserved(), torch.enable_grad():
            tracer = _Tracer(leaves, given)
            try:
                graph = tracer.trace(model)
                tracer.require_no_draws()
            except Exception as error:
                if not tracer.inside:
                    why = " ".join(str(error).split()) or type(error).__name__
                    raise UsageError(
                        f"memory: the model cannot be cut into parts: tracing its forward fails ({why}); name the modules that must stay "
                        "whole in Task.whole, or write 'memory: {swap: off}'"
                    ) from None
                leaves.add(tracer.inside[-1])
            else:
                for name, value in model.named_modules():
                    if replaced := [key for key, now in value._buffers.items() if isinstance(now, fx.Proxy)]:
                        raise BufferChanged(f"{name}.{replaced[0]}".lstrip("."))
                require_same(model, attributes)
                return Traced(graph, given)
            finally:
                for module, held in buffers:
                    module._buffers.update(held)


def _fixed(value: Any) -> bool:
    """Whether a forward may decide by it, unseen by a stand-in for it."""
    return value is None or isinstance(value, (bool, str))


def arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a call gives to the model's forward, by name: all of it, and what a graph holds for alone."""
    try:
        bound = inspect.signature(type(model).forward).bind(model, *args, **kwargs)
    except TypeError as error:
        raise UsageError(f"memory: the task's loss calls the model with arguments that its forward does not take ({error})") from None
    bound.apply_defaults()
    return bound.arguments, {name: value for name, value in bound.arguments.items() if _fixed(value)}


# ---- what must stay as it was ----


Held = dict[nn.Module, dict[str, tuple[Any, Any]]]  #: attributes of modules: the value, and what is in it where that is a container


def held_by(module: nn.Module) -> Held:
    """What the module and those in it hold beside parameters, buffers and modules."""
    return {each: _attributes(each) for each in module.modules()}


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    own = ("_parameters", "_buffers", "_modules", "forward")  # the last one: where a `LossCall` stands
    return {
        name: (value, _content(value))
        for name, value in vars(module).items()
        if name not in own and not name.startswith("_tensor_constant")  # those that tracing has put there
    }


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value._version
    if isinstance(value, torch.Generator):  # what it draws when a part is computed again would be something else
        return value.get_state().numpy().tobytes()
    if isinstance(value, Mapping):
        return [(name, id(each)) for name, each in value.items()]
    return list(map(id, value)) if isinstance(value, (list, set, deque)) else None


def require_same(module: nn.Module, before: Held, path: str = "") -> None:
    """AttributeChanged where the module does not hold what it held; that is put back where it was another value."""
    paths = {each: name for name, each in module.named_modules(prefix=path)}
    for each, held in held_by(module).items():
        for name in held.keys() | before[each].keys():
            was, now = before[each].get(name), held.get(name)
            if was is None or now is None or was[0] is not now[0] or was[1] != now[1]:
                vars(each).update({name: was[0]} if was is not None else {})
                raise AttributeChanged(f"{paths[each]}.{name}".lstrip("."))


class Fixed:
    """What a graph has taken from a model: its parameters and buffers, which of them train, and attributes of what was traced into."""

    def __init__(self, model: nn.Module, whole: set[str]) -> None:
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.trained = {name for name, parameter in self.parameters.items() if parameter.requires_grad}
        self.buffers = dict(model.named_buffers(remove_duplicate=False))
        inside = {each for name in whole for each in model.get_submodule(name).modules()}
        self.modules = {name: module for name, module in model.named_modules() if module not in inside}
        self.held = {name: _attributes(module) for name, module in self.modules.items()}

    def require(self, model: nn.Module) -> None:
        """UsageError where it is another."""
        for was, now in (
            (self.parameters, dict(model.named_parameters(remove_duplicate=False))),
            (self.buffers, dict(model.named_buffers(remove_duplicate=False))),
        ):
            for name in was.keys() | now.keys():
                if was.get(name) is not now.get(name):
                    raise _changed(f"the model's {name} is another tensor", f"change it in place, as {name}.data.copy_(...) does")
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and name not in self.trained:
                raise _changed(f"the model's {name} has begun to train", "let it train from the start, with a learning rate of 0")
        for path, held in self.held.items():
            found = _attributes(self.modules[path])
            for name in held.keys() | found.keys():
                if name not in held or name not in found or _differs(held[name], found[name]):
                    full = f"{path}.{name}".lstrip(".")
                    raise _changed(f"the model's attribute {full!r} has changed", "make it a buffer, or name its module in Task.whole")


def _changed(what: str, remedy: str) -> UsageError:
    return UsageError(
        f"memory: {what} since the model was cut into parts, which goes by what it was then; {remedy}, or write 'memory: {{swap: off}}'"
    )


def _differs(was: tuple[Any, Any], now: tuple[Any, Any]) -> bool:
    """Tensors are loaded anew for each step; numbers and text may be others that are equal."""
    if was[0] is now[0]:
        return not isinstance(now[0], torch.Tensor) and bool(was[1] != now[1])
    return not (isinstance(now[0], (int, float, str)) and type(was[0]) is type(now[0]) and was[0] == now[0])
