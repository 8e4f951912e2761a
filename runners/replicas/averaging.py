"""A step of which each member of a group computes its share, and the sum that makes the gradients of all of them equal.

What is summed are gradients of means, each weighted by the samples of its batch over those of the step: so the sum is the gradient of the
mean over the whole global batch, whoever computed which part of it. Replicas end equal to the bit, as all apply the same sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.errors import StokerError
from ..train import rng
from ..train.batches import to_device
from ..train.step import PlainStep, checked, untied
from ..train.task import Task
from ..worker.ranks import Ranks
from . import sample_ledger
from .membership import Decision
from .replica_group import Group


class Behind(Exception):
    """The others have taken the step without this member."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision


class ReplicaStep(PlainStep):
    """Computes this member's share of a step, sums with the others, and computes more where one of them was lost.

    ``load``: a batch of the positions of the present step; ``meet``: who takes the step, once the members of before are no more.
    """

    def __init__(
        self, task: Task, ranks: Ranks, group: Group, most: int, load: Callable[[range], Any], meet: Callable[[], Decision]
    ) -> None:
        super().__init__(task, ranks)
        self.group, self.most, self.load, self.meet = group, most, load, meet
        self.batch = group.settings.batch
        self.loss = 0.0  #: summed over this member's samples; after `reduce` the mean of the step

    def begin(self, decision: Decision) -> None:
        """The members of the step that comes."""
        self.decision = decision

    def gradients(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        self.loss, self.computed = 0.0, 0.0
        self.group.tell(done=())
        self._compute()
        return torch.tensor(self.loss / self.batch)

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        super().update(batches, weight)
        return torch.tensor(self.loss)

    def _compute(self) -> None:
        """Add what is this member's to do to its sum."""
        share = self.decision.shares.get(self.group.me.lease)
        if share is None:  # it has just copied the state
            return
        if not share.kept:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = 0.0
        began = time.perf_counter()
        with untied(self.model):
            for positions in sample_ledger.batches(share.todo, self.most):
                self._add(positions)
        self.computed += time.perf_counter() - began
        self.group.tell(done=share.all)

    def _add(self, positions: range) -> None:
        data = to_device(self.load(positions), self.ranks.device)
        rng.seed_all(rng.mixed(self.task.seed, self.group.me.step, positions.start))
        loss = checked(self.task.loss(self.parallel, data))
        (loss * (len(positions) / self.batch)).backward()  # type: ignore[no-untyped-call]
        self.loss += loss.item() * len(positions)

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        while not self._summed(trained):
            self.decision = self.meet()
            if self.decision.lags(self.group.me.lease):
                raise Behind(self.decision)
            self._compute()

    def _summed(self, parameters: Sequence[nn.Parameter]) -> bool:
        own = self.group.me.lease
        done = self.group.me.done
        begun = [parameter.grad is not None for parameter in parameters]
        told = [sample_ledger.size(done), sample_ledger.checksum(done), self.loss, *begun]
        counts = torch.tensor(told, dtype=torch.float64)
        flat = {
            kind: _joined([_gradient(each) for each in parameters if _carrier(each.dtype) is kind], kind) for kind in _kinds(parameters)
        }
        first = next(one.lease for one in self.decision.members if one.lease in self.decision.shares)
        buffers = _buffers(self.model)
        values = _joined(buffers, torch.float64)
        if own != first:
            values.zero_()
        if not self.group.sum([counts, *flat.values(), *([values] if len(values) else [])], self.decision):
            return False
        samples, places, loss, *any_begun = counts.tolist()
        whole = ((0, self.batch),)
        if (samples, places) != (self.batch, sample_ledger.checksum(whole)):
            raise StokerError(
                f"replicas: the samples of step {self.group.me.step} do not add up: {samples:.0f} of {self.batch}; nothing was moved, "
                "and this is a mistake of Stoker's: please tell it with the logs of all members"
            )
        for kind, summed in flat.items():
            _take([each for each in parameters if _carrier(each.dtype) is kind], summed)
        for parameter, some in zip(parameters, any_begun, strict=True):
            if not some:  # as it is where one trains alone: the optimizer leaves it as it is
                parameter.grad = None
        _give(buffers, values)
        self.loss = loss / self.batch
        return True


def _carrier(kind: torch.dtype) -> torch.dtype:
    """In which numbers those of a kind are summed."""
    return torch.float64 if kind == torch.float64 else torch.float32


def _kinds(parameters: Iterable[nn.Parameter]) -> list[torch.dtype]:
    return list(dict.fromkeys(_carrier(each.dtype) for each in parameters))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    return grad.to_dense() if grad.is_sparse else grad


def _joined(tensors: Sequence[torch.Tensor], kind: torch.dtype) -> torch.Tensor:
    """One tensor of the host with copies of all."""
    parts = [each.detach().to("cpu", kind).reshape(-1) for each in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=kind)


def _take(parameters: Sequence[nn.Parameter], summed: torch.Tensor) -> None:
    at = 0
    for parameter in parameters:
        part = summed[at : at + parameter.numel()].view(parameter.shape)
        grad = torch.empty_like(parameter)  # lies as the parameter does
        parameter.grad = grad.copy_(part)
        at += parameter.numel()


def _buffers(model: nn.Module) -> list[torch.Tensor]:
    """What is saved of a model besides its parameters, as running means: the first member's count."""
    names = model.state_dict().keys()
    return [buffer for name, buffer in model.named_buffers() if name in names and not buffer.is_complex()]


def _give(buffers: Sequence[torch.Tensor], values: torch.Tensor) -> None:
    at = 0
    with torch.no_grad():
        for buffer in buffers:
            buffer.copy_(values[at : at + buffer.numel()].view(buffer.shape))
            at += buffer.numel()
