"""Steps that are given up for others and done again (`share: {memory: replay}`): what comes of them, and the memory that it takes."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_runner import Host
from stoker.engine.protocol import Assignment, Record, Records
from stoker.engine.spec.check import problems
from stoker.engine.spec.model import JobSpec, Memory, Replicas, Reuse, Share
from stoker.engine.store.store import Store
from stoker.policies import registry
from stoker.policies.contract import Allocation, Group
from stoker.runners.lease.rundir import ENV_RUN_DIR, TURN
from stoker.runners.share.replayed_step import ReplayedStep
from stoker.runners.share.slot_turns import memory_together
from stoker.runners.share.turn import Turn
from stoker.runners.share.yielding import Yielding
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import nn
from views import Job as Facts
from views import make_view

GIB = 1 << 30
SHARE = {"gpu": "switched", "memory": "replay"}


class Watched(nn.Module):
    """Knows which of the tensors that it has made are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.made: list[weakref.ref[torch.Tensor]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
            self.made.append(weakref.ref(inputs))
        return inputs

    def alive(self) -> int:
        return sum(one() is not None for one in self.made)


@pytest.mark.parametrize("look", [4, 6], ids=["in forward", "in backward"])
def test_while_others_have_the_turn_nothing_of_the_step_is_there(tmp_path: Path, monkeypatch: Any, look: int) -> None:
    looks, pauses = [], []
    model = Watched()
    step = ReplayedStep(
        PlainStep(
            Task(model=model, train=[0], loss=lambda net, batch: net(batch).square().mean(), batch_size=2), Ranks(0, 1, torch.device("cpu"))
        )
    )
    step.place(model)

    def wanted(turn: Turn) -> bool:
        looks.append(model.alive())
        return len(looks) >= look  # and from then on always

    def paused(turn: Turn) -> None:
        pauses.append((model.alive(), [parameter.grad for parameter in model.parameters()]))

    monkeypatch.setenv(ENV_RUN_DIR, str(tmp_path))
    monkeypatch.setattr(Turn, "wanted", wanted)
    monkeypatch.setattr(Turn, "pause", paused)
    (tmp_path / TURN).write_text(json.dumps({"path": str(tmp_path / "turn"), "priority": 0}))
    sharing = Yielding(model.parameters(), torch.device("cpu"))
    step.share_by(sharing)
    gc.disable()
    try:
        with sharing:
            loss = step.update([torch.randn(2, 64)], 1.0)
    finally:
        gc.enable()
    assert looks[look - 1] > 0, "there was something to give up"
    assert pauses == [(0, [None] * 8)]
    assert step.replayed == 1 and loss.isfinite() and not loss.requires_grad
    assert [parameter.grad for parameter in model.parameters()] == [None] * 8, "nor is anything left at the end"
    sharing.close()
    step.close()


class Counts(nn.Module):
    """Its buffer is there once it has been called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", None)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls = torch.ones(()) if self.calls is None else self.calls + 1
        return self.layers(inputs) * self.calls


class Calling(torch.optim.SGD):
    """Its step calls a module, at which others are looked for, in the middle of moving."""

    def step(self, closure: Any = None) -> Any:
        self.moves = getattr(self, "moves", 0) + 1
        super().step()
        nn.Identity()(torch.zeros(()))


@pytest.mark.parametrize(("look", "given_up"), [(3, 1), (9, 0)], ids=["while it computes", "while its weights move"])
def test_a_step_is_taken_once(tmp_path: Path, monkeypatch: Any, look: int, given_up: int) -> None:
    def trained(where: Path, wants: bool) -> tuple[nn.Module, Any, ReplayedStep]:
        torch.manual_seed(0)
        looks = []
        optimizer = partial(Calling, lr=0.1)
        task = Task(model=Counts(), train=[0], loss=lambda net, batch: net(batch).square().mean(), batch_size=2, optimizer=optimizer)
        step = ReplayedStep(PlainStep(task, Ranks(0, 1, torch.device("cpu"))))
        step.place(task.model)
        where.mkdir()
        monkeypatch.setenv(ENV_RUN_DIR, str(where))
        monkeypatch.setattr(Turn, "wanted", lambda turn: looks.append(0) or (wants and len(looks) >= look))
        monkeypatch.setattr(Turn, "pause", lambda turn: None)
        (where / TURN).write_text(json.dumps({"path": str(where / "turn"), "priority": 0}))
        sharing = Yielding(task.model.parameters(), torch.device("cpu"))
        step.share_by(sharing)
        with sharing:
            step.update([torch.ones(2, 4)], 1.0)
        sharing.close()
        assert wants is False or len(looks) >= look
        return task.model, step.optimizer, step

    alone, _, _ = trained(tmp_path / "alone", wants=False)
    shared, optimizer, step = trained(tmp_path / "shared", wants=True)
    assert (step.replayed, optimizer.moves) == (given_up, 1)
    assert all(torch.equal(one, other) for one, other in zip(shared.state_dict().values(), alone.state_dict().values(), strict=True))


# ---- memory ----


def test_what_each_keeps_fits_with_the_most_that_one_more_needs() -> None:
    def starts(*kept: float, memory: float = 10) -> bool:
        others = [Facts(number, memory=6 * GIB, share="switched") for number in range(2, max(len(kept), 2) + 1)]
        view = make_view([1], [Facts(1, memory=7 * GIB, share="switched", held=(0,)), *others], memory=[memory * GIB])
        if kept:
            view = dataclasses.replace(view, jobs=dataclasses.replace(view.jobs, kept=np.array(kept) * GIB))
        return others[-1].id in registry.create("switchflow", {}).plan(view).allocations

    assert not starts()
    assert starts(2, 3)  # 2 and 3, and 5 of the first
    assert not starts(2, 3.5) and not starts(7, 3)
    assert starts(7, 3, memory=13)
    assert starts(2, 6, 3)  # the one before it does not fit


def _told(job: int, memory: int, kept: int = 0) -> Assignment:
    return Assignment(lease=job, job=job, attempt=1, spec={}, gpus=["g"], world_size=1, gpu_memory=memory, kept_memory=kept)


def test_a_runner_judges_alike() -> None:
    assert memory_together([_told(1, 7), _told(2, 6)]) == 13
    assert memory_together([_told(1, 7, 2), _told(2, 6, 3)]) == 10
    assert memory_together([_told(1, 7, 2), _told(2, 6)]) == 13
    assert memory_together([]) == 0


def test_another_one_joins_when_it_is_known_what_both_keep(store: Store) -> None:
    host = Host(store, slots=1, memory=10 * GIB)

    def submit(name: str, needs: int) -> int:
        return host.submit(name, gpu_memory=needs * GIB, share=Share(gpu="switched", memory="replay"))

    def keeps(job: int, memory: int) -> None:
        host.report(records=[Records(lease=host.lease(job), rank=0, records=[Record(seq=1, ts=time.time(), step=1, kept=memory * GIB)])])

    alike = submit("second", 6)
    host.tick({alike: Allocation((0,))})
    host.runs(alike)
    keeps(alike, 3)
    host.ends(alike)
    first, second = submit("first", 7), submit("second", 6)
    assert host.rows(f"SELECT id, kept_memory FROM jobs WHERE id > {alike} ORDER BY id") == [(first, None), (second, 3 * GIB)]
    host.tick({first: Allocation((0,))})
    host.runs(first)
    both = {first: Allocation((0,)), second: Allocation((0,))}
    host.tick(both, groups=[Group("switched", (first, second))])
    assert len(host.shares()) == 1, "7 and 3, and 3 of the second"
    keeps(first, 4)
    host.tick(both, groups=[Group("switched", (first, second))])
    assert len(host.shares()) == 2, "4 and 3, and 3 of either"
    host.board.refresh()
    assert {one.job: (one.gpu_memory, one.kept_memory) for one in host.board._answers["n1"].leases} == {
        first: (7 * GIB, 4 * GIB), second: (6 * GIB, 3 * GIB),
    }  # fmt: skip


def test_what_one_keeps_is_known_of_those_like_it_that_wait(store: Store) -> None:
    host = Host(store, slots=1, memory=10 * GIB)
    replay, pause = Share(gpu="switched", memory="replay"), Share(gpu="switched")
    first, alike, whole = (
        host.submit(name, gpu_memory=7 * GIB, share=share) for name, share in (("a", replay), ("a", replay), ("a", pause))
    )
    host.tick({first: Allocation((0,))})
    host.runs(first)
    host.report(records=[Records(lease=host.lease(first), rank=0, records=[Record(seq=1, ts=time.time(), step=1, kept=2 * GIB)])])
    assert dict(host.rows("SELECT id, kept_memory FROM jobs")) == {first: 2 * GIB, alike: 2 * GIB, whole: None}
    host.tick({job: Allocation((0,)) for job in (first, alike)}, groups=[Group("switched", (first, alike))])
    assert len(host.shares()) == 2, "2 and 2, and 5 of either"


# ---- what is refused ----

WHAT = "share.memory"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "packed": ({"share": Share(gpu="packed", memory="replay")}, "write gpu: switched beside it, or remove it"),
    "alone": ({"share": Share(memory="replay")}, "write gpu: switched beside it, or remove it"),
    "a command": ({"recipe": None, "command": ("true",)}, "cannot do to a command"),
    "swapped parts": ({"memory": Memory(cap=1 << 30)}, "with memory.cap a step may have moved weights already"),
    "reuse": ({"reuse": Reuse(repeat=2)}, "with reuse its samples are used up"),
    "kept features": ({"params": {"features": "kept"}}, "features"),
}


@pytest.mark.parametrize("given", REFUSED)
def test_it_is_for_plain_steps_of_trainings_that_take_turns(given: str) -> None:
    fields, words = REFUSED[given]
    spec = JobSpec(**({"name": "a", "recipe": "toy", "share": Share(**SHARE)} | fields))  # type: ignore[arg-type]
    told = [problem.problem for problem in problems(spec) if problem.field == WHAT]
    assert len(told) == 1 and told[0].startswith("replay gives a step up for a job of higher priority, ") and words in told[0]


def test_replicas_are_refused_and_plain_micro_batches_are_not() -> None:
    spec = JobSpec(name="a", recipe="toy", share=Share(**SHARE), replicas=Replicas(min=1, max=2, global_batch=4))  # type: ignore[arg-type]
    assert any("share" in problem.problem for problem in problems(spec))
    plain = JobSpec(name="a", recipe="toy", share=Share(**SHARE), memory=Memory(accumulate=4))  # type: ignore[arg-type]
    assert not [problem for problem in problems(plain) if problem.field == WHAT]
