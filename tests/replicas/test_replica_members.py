"""Groups of real members: they grow and shrink, are killed and cut off, and end with the same bits and each sample counted once."""

from __future__ import annotations

from pathlib import Path

import pytest
from members import Member, World, counting, world

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import torch


def weights_of(member: Member) -> torch.Tensor:
    from stoker.runners.train.checkpoint import Checkpoints

    state = Checkpoints(member.directory.parent / "checkpoints").load()
    assert state is not None
    return state["model"]["used"]


def ended_alike(there: World, *members: Member, steps: int = 40) -> None:
    for member in members:
        assert there.wait(member) == 0, member.log
    assert len({member.weights for member in members}) == 1
    assert all(member.step == steps for member in members)
    uses = weights_of(members[0])
    passes, left = divmod(steps * 16, 64)
    assert sorted(uses.tolist()) == [float(passes)] * (64 - left) + [float(passes + 1)] * left


def test_members_come_and_go_and_end_with_the_same_bits(tmp_path: Path) -> None:
    with world(tmp_path, counting(least=2, pace=0.004)) as there:
        first, second = there.start(0, 1)
        there.until_step(first, 5)
        (third,) = there.start(2)
        there.until_step(third, 8)
        there.kill(second)
        there.until_step(first, 20)
        (again,) = there.start(1)
        ended_alike(there, first, third, again)
