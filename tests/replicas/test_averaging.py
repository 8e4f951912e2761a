"""What members add up is the gradient of the whole batch, before it is clipped, and their weights stay equal to the bit.

Also where the model is swapped: then they are those of plain members, and gradients are on their way while others are still computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from stoker.engine.spec.model import Memory
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.replicas import averaging
from stoker.runners.replicas.averaging import ReplicaStep
from stoker.runners.replicas.membership import Decision, Member
from stoker.runners.replicas.replica_group import Settings
from stoker.runners.replicas.sample_ledger import shares
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.train.step import PartialStep, PlainStep
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
        self.lost, self.given, self.barrier = lost, dict[int, Sequence[torch.Tensor]](), threading.Barrier(MEMBERS, timeout=120)

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
    def __init__(self, lease: int, sums: Sums, model: nn.Module) -> None:
        self.settings = Settings(group=1, lease=lease, index=lease, host="", port=0, batch=BATCH, least=1)
        self.me = Member(group=1, lease=lease, index=lease, address="", step=0)
        self.sums, self.model, self.early = sums, model, 0  #: ``early``: tensors on their way while parts of the model are not there

    def tell(self, **now: Any) -> None:
        self.me = Member(**{name: getattr(self.me, name) for name in self.me.__struct_fields__} | now)

    def start(self, tensor: torch.Tensor, decision: Decision) -> torch.Tensor:
        self.early += any(bool(each.isnan().any()) for each in self.model.parameters())
        return tensor

    def sum(self, tensors: Sequence[torch.Tensor], decision: Decision, under_way: Sequence[torch.Tensor]) -> bool:
        return self.sums.add(self.me.lease, [*under_way, *tensors])


def decided(done: Sequence[Any]) -> Decision:
    members = tuple(Member(group=1, lease=lease, index=lease, address="", step=0) for lease in (1, 2))
    return Decision(verdict="go", members=members, source=members[0], shares=dict(zip((1, 2), shares(BATCH, done), strict=True)))


def trained(
    first: Decision, again: Decision, sums: Sums, work: Callable[[Task], PartialStep] = lambda task: PlainStep(task, CPU), most: int = 3
) -> list[ReplicaStep]:
    """Two members after one step; ``again``: who takes it after a sum that failed; ``most``: samples that are computed at once."""
    steps: dict[int, ReplicaStep] = {}

    for lease in (1, 2):
        made = task()
        group: Any = Group(lease, sums, made.model)
        steps[lease] = ReplicaStep(work(made), group, made.seed, most, lambda places: DATA[list(places)], lambda: again)
        steps[lease].place(made.model)
        steps[lease].prepare()
        steps[lease].begin(first)
    threads = [threading.Thread(target=step.update, args=((), 1.0), daemon=True) for step in steps.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
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


def swapped(made: Task) -> PartialStep:
    """Two parts or more; at most two batches go through them together."""
    return SwappedStep(made, Memory(cap=1 << 20, accumulate=2, swap="force"), MeteredDevice(1 << 20))


@pytest.mark.parametrize("lost", [False, True])
def test_swapped_members_end_with_the_weights_of_plain_ones_to_the_bit(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the batches of one sample that each has, three or four, a second round of two takes the rest."""
    monkeypatch.setattr(averaging, "BUNDLE", 1)
    first, again = decided([(), ()]), decided([((0, 2),), ((2, 5),)])
    if lost:
        of_three = shares(BATCH, [(), (), ()])
        first = msgspec.structs.replace(first, shares={1: of_three[0], 2: of_three[1]})
    plain = trained(first, again, Sums(lost=int(lost)), lambda made: PlainStep(made, CPU, 2, fused=True), most=1)
    found = trained(first, again, Sums(lost=int(lost)), swapped, most=1)
    for one in found:
        assert one.loss == plain[0].loss
        for (name, here), there in zip(one.model.state_dict().items(), plain[0].model.state_dict().values(), strict=True):
            assert torch.equal(here, there), name
        assert one.group.early > 0 and one.values["swap_in"] > 0  # type: ignore[attr-defined]
    assert not any(one.group.early for one in plain)  # type: ignore[attr-defined]
