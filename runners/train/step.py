"""One step of a training: the update of the weights by a batch. Memory, sharing and swapping enter the loop here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.errors import UsageError
from ..worker.ranks import Ranks
from . import rng
from .batches import to_device
from .task import Task

Arrived = Callable[[Sequence[nn.Parameter]], None]  #: called with parameters whose gradients are complete


class Step(Protocol):
    """Keeps the weights, and moves them by a batch.

    Between two updates the parameters of the task's model hold the newest weights, wherever a step computes: evaluation, checkpoints
    and resuming need to know nothing of it.
    """

    accumulate: int  #: batches of a step
    optimizer: Optimizer  #: of the task, on the placed parameters; set once the model is placed
    values: dict[str, float]  #: further metrics of the newest update

    def place(self, model: nn.Module) -> nn.Module:
        """Put the weights into their place, once; returns the module that the loss calls."""

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Move the weights by so many batches, ``weight`` times their mean gradient; the mean of their losses.

        Interrupted: the job is asked to stop, and nothing has been moved.
        """

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make their gradients those of the whole step, if others compute a part of it; before clipping and the optimizer."""

    def close(self) -> None:
        """Release its resources."""


class PartialStep(Step, Protocol):
    """A step of which others may compute a part."""

    together: int | None  #: batches that `share` takes at most; None: any number

    def prepare(self, batch: Any) -> None:
        """Plan, before others wait for it, how to compute a batch like this one. Interrupted: the job is asked to stop."""

    def share(self, batches: Iterable[Any], seeds: Sequence[int], scales: Sequence[float], arrived: Arrived) -> list[float]:
        """Losses of some batches. Each begins with the generators of its seed; the sum of their gradients, each scaled, is in ``.grad``.

        ``arrived`` gets parameters that have their sum while others are still computed, if there are such.
        """

    def move(self) -> None:
        """Clip the gradients at hand, and move the weights by them."""


class PlainStep:
    """All weights on the rank's device; the gradients of several ranks averaged by DDP.

    If a step has several batches, each draws from generators of its own, so their order does not matter.
    ``fused``: like a step in parts it uses the optimizer's fused kernels, if it has any, and takes no more than ``accumulate`` batches
    together of a step that others compute too.
    """

    def __init__(self, task: Task, ranks: Ranks, accumulate: int = 1, *, fused: bool = False) -> None:
        self.task, self.ranks, self.accumulate, self.fused = task, ranks, accumulate, fused
        self.together: int | None = accumulate if fused else None
        self.values: dict[str, float] = {}

    def place(self, model: nn.Module) -> nn.Module:
        self.model = model.to(self.ranks.device)
        self.optimizer = optimizer_of(self.task, self.model, fused=self.fused)
        self.parallel = parallel(self.model, self.ranks)
        return self.parallel

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.gradients(batches, weight)
        self.reduce(list(self.model.parameters()))
        self.move()
        return loss

    def move(self) -> None:
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self.optimizer.step()

    def gradients(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Add ``weight`` times the mean gradient of the batches to the parameters' gradients; returns the mean of the losses."""
        if len(batches) == 1:
            return self._backward(batches[0], weight)
        # A weight has one sum of gradients for each of its names; they are added at the end (see swap.swap_executor).
        with untied(self.model) if self.ranks.size == 1 else nullcontext():
            return self._accumulated(batches, weight)

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        pass  # DDP has averaged over the ranks, in `gradients`

    def prepare(self, batch: Any) -> None:
        pass

    def share(self, batches: Iterable[Any], seeds: Sequence[int], scales: Sequence[float], arrived: Arrived) -> list[float]:
        losses = []
        with untied(self.model):
            for batch, seed, scale in zip(batches, seeds, scales, strict=True):
                rng.seed_all(seed)
                losses.append(float(self._backward(batch, scale).detach()))
        return losses

    def _accumulated(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        base, losses, last = drawn(), [], len(batches) - 1
        with rng.preserved():
            for c, batch in enumerate(batches):
                rng.seed_all(rng.mixed(base, c))
                with nullcontext() if c == last else getattr(self.parallel, "no_sync", nullcontext)():
                    losses.append(self._backward(batch, weight / len(batches)).detach())
        return mean(losses)

    def _backward(self, batch: Any, weight: float) -> torch.Tensor:
        loss = checked(self.task.loss(self.parallel, to_device(batch, self.ranks.device)))
        scaled(loss, weight).backward()  # type: ignore[no-untyped-call]
        return loss

    def close(self) -> None:
        pass


def drawn() -> int:
    """A seed, drawn from the generators."""
    return int(torch.randint(1 << 62, ()))


def mean(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of losses of one element."""
    return losses[0] if len(losses) == 1 else torch.stack([loss.reshape(()) for loss in losses]).mean()


def scaled(loss: torch.Tensor, weight: float) -> torch.Tensor:
    return loss if weight == 1.0 else loss * weight


def optimizer_of(task: Task, model: nn.Module, *, fused: bool) -> Optimizer:
    """The task's, for the parameters that train; with fused kernels (on a CPU several times as fast) if the task leaves the choice.

    They are used where they work: each step decides for each weight, by the weight, its gradient and its state alone. So a step by
    parts, and one after a checkpoint was loaded, decide alike, and a gradient that turns out to be sparse is no special case.
    """
    optimizer = task.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    if fused and type(optimizer) in _FUSED:
        given = [group["fused"] for group in optimizer.param_groups]
        optimizer.step = MethodType(_step, optimizer)  # type: ignore[method-assign]
        optimizer.register_load_state_dict_post_hook(partial(_as_given, given))  # not as in the checkpoint
    return optimizer


_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_HALF = (torch.float16, torch.bfloat16)


def _as_given(given: Sequence[bool | None], optimizer: Optimizer) -> None:
    for group, fused in zip(optimizer.param_groups, given, strict=False):
        group["fused"] = fused


def _step(optimizer: Any, closure: Any = None) -> Any:
    """The optimizer's step, with groups divided by how their weights are moved."""
    groups = optimizer.param_groups
    if not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks):  # hooks may look at the groups
        optimizer.param_groups = [part for group in groups for part in _divided(optimizer, group)]
    try:
        return type(optimizer).step(optimizer, closure)
    finally:
        optimizer.param_groups = groups


def _divided(optimizer: Optimizer, group: dict[str, Any]) -> list[dict[str, Any]]:
    if group["fused"] is not None or group["foreach"] is not None or group["differentiable"]:
        return [group]
    parts: dict[tuple[bool, bool], list[torch.Tensor]] = {}
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = optimizer.state.get(parameter, {})
        fused = _works_fused(optimizer, parameter, state)
        if fused and "step" in state:  # elsewhere after steps of the other kind
            state["step"] = state["step"].to(parameter.device, torch.float32)
        # SGD's fused kernel begins the momentum of all of its weights, or of none.
        parts.setdefault((fused, state.get("momentum_buffer") is None), []).append(parameter)
    return [{**group, "params": parameters, "fused": fused or None} for (fused, _), parameters in parts.items()]


def _works_fused(optimizer: Optimizer, parameter: torch.Tensor, state: dict[str, Any]) -> bool:
    """Whether the fused kernels move this weight, with the same result as the others.

    They read memory in its order, whatever the strides say, so all tensors of a weight must have the same layout.
    SGD's does not move weights of 16 bits on a CPU (PyTorch 2.13).
    """
    if type(parameter) not in (nn.Parameter, torch.Tensor) or parameter.device.type not in ("cpu", "cuda"):
        return False
    if parameter.dtype not in (torch.float64, torch.float32, *_HALF):
        return False
    if parameter.dtype in _HALF and parameter.device.type == "cpu" and isinstance(optimizer, torch.optim.SGD):
        return False
    if parameter.layout != torch.strided or not (parameter.is_contiguous() or _IS_DENSE(parameter)):
        return False
    gradient = parameter.grad
    beside = [value for name, value in state.items() if name != "step" and isinstance(value, torch.Tensor)]
    return type(gradient) is torch.Tensor and all(_lies_as(parameter, tensor) for tensor in (gradient, *beside))


_IS_DENSE = torch.ops.aten.is_non_overlapping_and_dense.default


def _lies_as(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    if (other.layout, other.dtype, other.device, other.shape) != (torch.strided, parameter.dtype, parameter.device, parameter.shape):
        return False
    if other.is_neg() or parameter.is_neg():
        return False
    strides = zip(parameter.shape, parameter.stride(), other.stride(), strict=True)
    return parameter.stride() == other.stride() or all(one == two for size, one, two in strides if size > 1)


@contextmanager
def untied(model: nn.Module) -> Iterator[None]:
    """A parameter used at several places has a sum of gradients at each; at the end they are added from the last to the first."""
    places: dict[int, list[tuple[nn.Module, str, nn.Parameter]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                places.setdefault(id(parameter), []).append((module, name, parameter))
    tied = [found for found in places.values() if len(found) > 1]
    apart = [[nn.Parameter(parameter.detach()) for _, _, parameter in found] for found in tied]
    try:
        for found, copies in zip(tied, apart, strict=True):
            for (module, name, _), copy in zip(found, copies, strict=True):
                module._parameters[name] = copy
        yield
    finally:
        for found in tied:
            for module, name, parameter in found:
                module._parameters[name] = parameter
    for found, copies in zip(tied, apart, strict=True):
        for copy in reversed(copies):
            if copy.grad is not None:
                parameter = found[0][2]
                parameter.grad = copy.grad if parameter.grad is None else parameter.grad.add_(copy.grad)


def checked(loss: Any) -> torch.Tensor:
    """The return of the task's loss; UsageError if it cannot be trained on."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise UsageError("the task's loss(model, batch) must return a tensor of one element that depends on the model's parameters")
    return loss


def parallel(model: nn.Module, ranks: Ranks) -> nn.Module:
    """The model, wrapped to average its gradients if there are several ranks."""
    if ranks.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None)
