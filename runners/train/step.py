"""One step of a training: what a batch does to the weights. The seam at which memory, sharing and swapping enter the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.errors import UsageError
from ..worker.ranks import Ranks
from . import rng
from .batches import to_device
from .task import Task


class Step(Protocol):
    """How the weights are kept, and moved by a batch.

    Between two updates the parameters of the task's model hold the newest weights, wherever a step computes: evaluation, checkpoints
    and resuming need to know nothing of it.
    """

    accumulate: int  #: batches of a step
    optimizer: Optimizer  #: of the task, on the placed parameters; there once the model is placed
    values: dict[str, float]  #: further metrics of the newest update

    def place(self, model: nn.Module) -> nn.Module:
        """Bring the weights to where they are kept, once; the module that the loss calls."""
        ...

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Move the weights by so many batches, ``weight`` times their mean gradient; the mean of their losses.

        Interrupted: the job is asked to stop, and nothing has been moved.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class PlainStep:
    """All weights on the rank's device; the gradients of several ranks averaged by DDP.

    Of several batches a step, each draws from generators of its own, so that it does not matter in which order they are computed.
    ``fused``: the optimizer's fused kernels are used where it has any, as they are where parts are swapped.
    """

    def __init__(self, task: Task, ranks: Ranks, accumulate: int = 1, *, fused: bool = False) -> None:
        self.task, self.ranks, self.accumulate, self.fused = task, ranks, accumulate, fused
        self.values: dict[str, float] = {}

    def place(self, model: nn.Module) -> nn.Module:
        self.model = model.to(self.ranks.device)
        self.optimizer = optimizer_of(self.task, self.model, fused=self.fused)
        self.parallel = parallel(self.model, self.ranks)
        return self.parallel

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        if len(batches) == 1:
            loss = self._backward(batches[0], weight)
        else:
            # With one sum of gradients for each name of a weight, which are added at the end (see swap.swap_executor).
            with untied(self.model) if self.ranks.size == 1 else nullcontext():
                loss = self._accumulated(batches, weight)
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self.optimizer.step()
        return loss

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
    """A seed, of the generators."""
    return int(torch.randint(1 << 62, ()))


def mean(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of losses of one element."""
    return losses[0] if len(losses) == 1 else torch.stack([loss.reshape(()) for loss in losses]).mean()


def scaled(loss: torch.Tensor, weight: float) -> torch.Tensor:
    return loss if weight == 1.0 else loss * weight


def optimizer_of(task: Task, model: nn.Module, *, fused: bool) -> Optimizer:
    """The task's, for what trains; its fused kernels where it leaves the choice (on a CPU several times as fast)."""
    optimizer = task.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    for group in optimizer.param_groups if fused and type(optimizer) in _FUSED else ():
        if group["fused"] is None and not group["foreach"] and not group["differentiable"]:
            group["fused"] = True
    return optimizer


_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


@contextmanager
def untied(model: nn.Module) -> Iterator[None]:
    """A parameter that stands at several places has a sum of gradients at each; at the end they are added from the last to the first."""
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
    """What the task's loss returned, if it can be trained on."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise UsageError("the task's loss(model, batch) must return a tensor of one element that depends on the model's parameters")
    return loss


def parallel(model: nn.Module, ranks: Ranks) -> nn.Module:
    """The model, or what averages its gradients over the ranks."""
    if ranks.size == 1:
        return model
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None)
