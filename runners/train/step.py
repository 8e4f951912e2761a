"""One step of a training: what a batch does to the weights. The seam at which memory, sharing and swapping enter the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.errors import UsageError
from ..worker.ranks import Ranks
from .batches import to_device
from .task import Task


class Step(Protocol):
    """How the weights are kept, and moved by a batch.

    Between two updates the parameters of the task's model hold the newest weights, wherever a step computes: evaluation, checkpoints
    and resuming need to know nothing of it.
    """

    accumulate: int  #: batches of a step
    optimizer: Optimizer  #: of the task, on the placed parameters; there once the model is placed

    def place(self, model: nn.Module) -> nn.Module:
        """Bring the weights to where they are kept, once; the module that the loss calls."""
        ...

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Move the weights by so many batches, ``weight`` times their mean gradient; the mean of their losses."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class PlainStep:
    """All weights on the rank's device, one batch a step; the gradients of several ranks averaged by DDP."""

    accumulate = 1

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks = task, ranks

    def place(self, model: nn.Module) -> nn.Module:
        self.model = model.to(self.ranks.device)
        self.optimizer = self.task.optimizer([parameter for parameter in self.model.parameters() if parameter.requires_grad])
        self.parallel = parallel(self.model, self.ranks)
        return self.parallel

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        (batch,) = batches
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = checked(self.task.loss(self.parallel, to_device(batch, self.ranks.device)))
        (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self.optimizer.step()
        return loss

    def close(self) -> None:
        pass


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
