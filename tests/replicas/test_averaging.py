"""What members add up is the gradient of the whole batch, before it is clipped, and their weights stay equal to the bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from stoker.runners.replicas.averaging import ReplicaStep
from stoker.runners.replicas.membership import Decision, Member
from stoker.runners.replicas.replica_group import Settings
from stoker.runners.replicas.sample_ledger import shares
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import nn

BATCH, MEMBERS = 8, 2
DATA = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(1))
CPU = Ranks(0, 1, torch.device("cpu"))


class Model(nn.Module):
    """With a weight that stands at two places, one that nothing uses, and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(4))
        self.narrow = nn.Linear(4, 1).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.1)
        return self.narrow(self.second(torch.tanh(self.first(x))).to(torch.bfloat16)).float()


def task() -> Task:
    torch.manual_seed(0)
    return Task(
        model=Model(), train=range(BATCH), loss=lambda model, x: model(x).square().mean(), batch_size=BATCH, clip_norm=0.1,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    )  # fmt: skip


class Sums:
    """What the members of a group add up, each in a thread. ``lost``: how many sums fail for all, as when one more had died."""

    def __init__(self, lost: int = 0) -> None:
        self.lost, self.given, self.barrier = lost, dict[int, Sequence[torch.Tensor]](), threading.Barrier(MEMBERS, timeout=30)

    def add(self, lease: int, tensors: Sequence[torch.Tensor]) -> bool:
        self.given[lease] = [tensor.clone() for tensor in tensors]
        self.barrier.wait()
        for place, tensor in enumerate(tensors):
            tensor.copy_(self.given[1][place] + self.given[2][place])
        failed = self.lost > 0
        self.barrier.wait()
        self.lost -= lease == 1
        self.barrier.wait()
        return not failed


class Group:
    def __init__(self, lease: int, sums: Sums) -> None:
        self.settings = Settings(group=1, lease=lease, index=lease, host="", port=0, batch=BATCH, least=1)
        self.me = Member(group=1, lease=lease, index=lease, address="", step=0)
        self.sums = sums

    def tell(self, **now: Any) -> None:
        self.me = Member(**{name: getattr(self.me, name) for name in self.me.__struct_fields__} | now)

    def sum(self, tensors: Sequence[torch.Tensor], decision: Decision) -> bool:
        return self.sums.add(self.me.lease, tensors)


def decided(done: Sequence[Any]) -> Decision:
    members = tuple(Member(group=1, lease=lease, index=lease, address="", step=0) for lease in (1, 2))
    return Decision(verdict="go", members=members, source=members[0], shares=dict(zip((1, 2), shares(BATCH, done), strict=True)))


def trained(first: Decision, again: Decision, sums: Sums) -> list[ReplicaStep]:
    """Two members after one step; ``again``: who takes it after a sum that failed."""
    steps: dict[int, ReplicaStep] = {}

    def one(lease: int, made: Task) -> None:
        group: Any = Group(lease, sums)
        step = steps[lease] = ReplicaStep(made, CPU, group, 3, lambda places: DATA[list(places)], lambda: again)
        step.place(made.model)
        step.begin(first)
        step.update((), 1.0)

    threads = [threading.Thread(target=one, args=(lease, task()), daemon=True) for lease in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [steps[1], steps[2]]


@pytest.mark.parametrize("lost", [False, True])
def test_the_sum_is_the_gradient_of_the_whole_batch_before_it_is_clipped(lost: bool) -> None:
    """With a third member lost in the middle: what the two have done of the step stays, and they do the rest."""
    first, again = decided([(), ()]), decided([((0, 2),), ((2, 5),)])
    if lost:
        of_three = shares(BATCH, [(), (), ()])
        first = msgspec.structs.replace(first, shares={1: of_three[0], 2: of_three[1]})
    one, other = trained(first, again, Sums(lost=int(lost)))
    plain = PlainStep(made := task(), CPU)
    plain.place(made.model)
    loss = plain.update([DATA], 1.0)
    assert one.loss == other.loss == pytest.approx(loss.item(), rel=1e-2)
    for (name, here), there, alone in zip(one.model.named_parameters(), other.model.parameters(), made.model.parameters(), strict=True):
        assert torch.equal(here, there), name
        assert torch.allclose(here.float(), alone.float(), atol=2e-3), name
    assert torch.equal(one.model.unused.weight, made.model.unused.weight)  # no weight decay either: it had no gradient
    assert torch.equal(one.model.mean, other.model.mean)
