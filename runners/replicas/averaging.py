"""A training step in which each member of a group computes its share, and the sum that gives all members the same gradients.

Each gradient of a batch's mean is weighted by the share of the batch in the step's samples: so the sum is the gradient of the mean
over the whole global batch, whichever member computed which part. Replicas stay equal to the bit, as all apply the same sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.errors import StokerError
from ..train import rng
from ..train.step import PartialStep
from . import sample_ledger
from .membership import Decision
from .replica_group import JoinedGroup

BUNDLE = 4 << 20  #: numbers after which the next bundle of gradients begins
Sent = tuple[torch.Tensor, Any]  #: a bundle, and its pending sum


class Behind(Exception):
    """The others have taken the step without this member."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision


class ReplicaStep:
    """Computes this member's share of a step, sums with the others, and computes more when one of them was lost.

    ``work`` computes gradients and moves weights; ``load`` makes a batch of positions of the present step; ``meet`` decides the members of
    the step when the former ones are no longer all there. The gradients are summed in *bundles* of parameters, from the last one to the
    first: the sum of a bundle starts as soon as all of its gradients are computed, while the rest is still being computed.
    """

    accumulate = 1

    def __init__(
        self, work: PartialStep, group: JoinedGroup, seed: int, most: int, load: Callable[[range], Any], meet: Callable[[], Decision]
    ) -> None:
        self.work, self.group, self.seed, self.most, self.load, self.meet = work, group, seed, most, load, meet
        self.batch = group.settings.batch
        self.loss = 0.0  #: sum over this member's samples; after `reduce` the mean of the step
        self.values: dict[str, float] = {}
        self.wrong = -1  #: step of which the samples of all have not added up once

    def place(self, model: nn.Module) -> nn.Module:
        self.model, placed = model, self.work.place(model)
        self.optimizer = self.work.optimizer
        self.trained = [each for each in model.parameters() if each.requires_grad]
        self.bundles = _bundles(self.trained)
        return placed

    def prepare(self) -> None:
        """Do slow one-time work before other members wait for this one."""
        self.work.prepare(self.load(range(self.most)))

    def begin(self, decision: Decision) -> None:
        """Set the members of the next step."""
        self.decision = decision

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Take a step; its batches are those of the ledger."""
        self.loss, self.computed, self.values = 0.0, 0.0, {}
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        self.group.tell(done=())
        self._compute()
        self.reduce(self.trained)
        self.work.move()
        return torch.tensor(self.loss)

    def _compute(self) -> None:
        """Compute this member's share and add it to its sum."""
        self.sent: list[Sent] = []  #: bundles whose sums are pending
        share = self.decision.shares.get(self.group.me.lease)
        if share is None:  # this member has just copied the state
            return
        if not share.kept:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = 0.0
        began = time.perf_counter()
        todo = sample_ledger.batches(share.todo, self.most)
        rounds = _divided(todo, self.work.together or len(todo))
        for number, positions in enumerate(rounds, 1):
            self._round(positions, last=number == len(rounds))
        self.computed += time.perf_counter() - began
        self.group.tell(done=share.all)

    def _round(self, positions: Sequence[range], last: bool) -> None:
        """Add the gradients of these batches. Several rounds are summed one after another."""
        before = {each: each.grad.clone() for each in self.trained if each.grad is not None}
        self.optimizer.zero_grad(set_to_none=True)
        whole: set[nn.Parameter] = set()

        def arrived(found: Sequence[nn.Parameter]) -> None:
            for each in found:
                if each in before:
                    each.grad = before[each] if each.grad is None else each.grad.add_(before[each])
            whole.update(found)
            while last and len(self.sent) < len(self.bundles) and whole.issuperset(bundle := self.bundles[len(self.sent)]):
                self._send(bundle)

        seeds = [rng.mixed(self.seed, self.group.me.step, each.start) for each in positions]
        scales = [len(each) / self.batch for each in positions]
        losses = self.work.share(map(self.load, positions), seeds, scales, arrived)
        arrived([each for each in self.trained if each not in whole])
        self.loss += sum(loss * len(each) for loss, each in zip(losses, positions, strict=True))
        for name, value in self.work.values.items():
            self.values[name] = max(self.values.get(name, 0.0), value) if name == "swap_peak" else self.values.get(name, 0.0) + value

    def _send(self, bundle: Sequence[nn.Parameter]) -> None:
        flat = _joined([_gradient(each) for each in bundle], _carrier(bundle[0].dtype))
        self.sent.append((flat, self.group.start(flat, self.decision)))

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        while not self._summed(parameters):
            self.decision = self.meet()
            if self.decision.lags(self.group.me.lease):
                raise Behind(self.decision)
            self._compute()

    def _summed(self, parameters: Sequence[nn.Parameter]) -> bool:
        for bundle in self.bundles[len(self.sent) :]:
            self._send(bundle)
        own = self.group.me.lease
        done = self.group.me.done
        begun = [parameter.grad is not None for parameter in parameters]
        told = [sample_ledger.size(done), sample_ledger.checksum(done), self.loss, *begun]
        counts = torch.tensor(told, dtype=torch.float64)
        first = next(one.lease for one in self.decision.members if one.lease in self.decision.shares)
        buffers = _buffers(self.model)
        values = _joined(buffers, torch.float64)
        if own != first:
            values.zero_()
        under_way = [work for _, work in self.sent]
        if not self.group.sum([counts, *([values] if len(values) else [])], self.decision, under_way):
            return False
        samples, places, loss, *any_begun = counts.tolist()
        whole = ((0, self.batch),)
        if (samples, places) != (self.batch, sample_ledger.checksum(whole)):
            if self.wrong == self.group.me.step:
                raise StokerError(
                    f"replicas: the samples of step {self.group.me.step} do not add up: {samples:.0f} of {self.batch}; nothing was moved, "
                    "and this is a mistake of Stoker's: please tell it with the logs of all members"
                )
            self.wrong = self.group.me.step
            self.group.broken(self.decision, "one went by what another had told before")
            return False
        for bundle, (summed, _) in zip(self.bundles, self.sent, strict=True):
            _take(bundle, summed)
        for parameter, some in zip(parameters, any_begun, strict=True):
            if not some:  # None as in training alone, so that the optimizer leaves the parameter unchanged
                parameter.grad = None
        _give(buffers, values)
        self.loss = loss / self.batch
        return True

    def close(self) -> None:
        self.work.close()


def _carrier(kind: torch.dtype) -> torch.dtype:
    """The type of numbers in which numbers of this type are summed."""
    return torch.float64 if kind == torch.float64 else torch.float32


def _divided(todo: Sequence[range], most: int) -> list[Sequence[range]]:
    return [todo[begin : begin + most] for begin in range(0, len(todo), most)] if todo else []


def _bundles(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Bundles from the last parameter to the first, the order of their gradients. They depend only on the model, so all members agree."""
    found: list[list[nn.Parameter]] = []
    size = 0
    kind: torch.dtype | None = None
    for each in reversed(parameters):
        if not found or size > BUNDLE or _carrier(each.dtype) is not kind:
            found.append([])
            size, kind = 0, _carrier(each.dtype)
        found[-1].append(each)
        size += each.numel()
    return found


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    return grad.to_dense() if grad.is_sparse else grad


def _joined(tensors: Sequence[torch.Tensor], kind: torch.dtype) -> torch.Tensor:
    """One tensor in host memory with copies of all."""
    parts = [each.detach().to("cpu", kind).reshape(-1) for each in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=kind)


def _take(parameters: Sequence[nn.Parameter], summed: torch.Tensor) -> None:
    at = 0
    for parameter in parameters:
        part = summed[at : at + parameter.numel()].view(parameter.shape)
        grad = torch.empty_like(parameter)  # with the memory layout of the parameter
        parameter.grad = grad.copy_(part)
        at += parameter.numel()


def _buffers(model: nn.Module) -> list[torch.Tensor]:
    """The saved buffers of a model, such as running means: those of the first member are used."""
    names = model.state_dict().keys()
    return [buffer for name, buffer in model.named_buffers() if name in names and not buffer.is_complex()]


def _give(buffers: Sequence[torch.Tensor], values: torch.Tensor) -> None:
    at = 0
    with torch.no_grad():
        for buffer in buffers:
            buffer.copy_(values[at : at + buffer.numel()].view(buffer.shape))
            at += buffer.numel()
