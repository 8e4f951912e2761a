"""Saves the attributes that modules have beside their weights, and restores them where a model is computed again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import nn

from ..train import rng
from .model_units import TensorPlace

#: attributes of nn.Module itself, which are not saved
_OF_NN = ("_parameters", "_buffers", "_modules", "_compiled_call_impl", "_forward_hooks")

Held = list[tuple[nn.Module, dict[str, tuple[Any, Any]]]]  #: modules with their attributes, and the content of those that are containers


def held_by(modules: Iterable[nn.Module]) -> Held:
    return [(module, {name: (value, _content(value)) for name, value in vars(module).items() if name not in _OF_NN}) for module in modules]


def _content(value: Any) -> Any:
    if isinstance(value, (dict, list, set, deque)):
        return copy(value)
    return value.get_state() if isinstance(value, torch.Generator) else None


def hold(held: Held) -> None:
    """Give the modules exactly these attributes, with this content."""
    for module, attributes in held:
        now = vars(module)
        for name in [name for name in now if name not in attributes and name not in _OF_NN]:
            del now[name]
        for name, (value, content) in attributes.items():
            now[name] = value
            _fill(value, content)


def _fill(value: Any, content: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(content)
    elif isinstance(value, list):
        value[:] = content
    elif isinstance(value, deque):
        value.clear()
        value.extend(content)
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(content)


def differing(held: Held) -> Iterator[nn.Module]:
    """Modules whose attributes are others by now."""
    for module, attributes in held:
        now = {name: value for name, value in vars(module).items() if name not in _OF_NN}
        if now.keys() != attributes.keys() or any(
            now[name] is not value or not _same(_content(value), content) for name, (value, content) in attributes.items()
        ):
            yield module


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    if isinstance(one, (list, deque)):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return bool(one == other)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two values are equal, to the bit."""
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Afterwards weights, gradients, buffers, hooks, other attributes of modules and random generators are as they were before."""
    named = [(each, name, value) for each in model.modules() for name, value in each._buffers.items() if value is not None]
    buffers = [(each, name, value, value.clone()) for each, name, value in named]
    # A functional call that was broken off may have left other weights in their places. In TorchScript it cannot.
    weights = [(each, dict(each._parameters)) for each in model.modules() if isinstance(each._parameters, dict)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    hooks = [(module._forward_hooks, copy(module._forward_hooks)) for module in model.modules()]  # a first forward may add hooks
    held = held_by(model.modules())
    try:
        with rng.preserved():
            yield
    finally:
        with torch.no_grad():
            for module, name, value, content in buffers:
                module._buffers[name] = value.copy_(content)
        for module, those in weights:
            module._parameters.update(those)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for there, before in hooks:
            _fill(there, before)
        hold(held)


@contextmanager
def back_after_error(moving: Sequence[TensorPlace], changing: Iterable[nn.Module]) -> Iterator[None]:
    """If the block fails, buffers and attributes that it changes are as they were before."""
    buffers, held = [(slot, slot.get(), slot.get().clone()) for slot in moving], held_by(changing)
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for slot, value, content in buffers:
                slot.put(value.copy_(content))
        hold(held)
        raise
