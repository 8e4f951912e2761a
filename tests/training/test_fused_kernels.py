"""The optimizer's fused kernels: used where they work, and where they do not a job trains as it would without them."""

import pytest
import torch
from stoker.engine.spec.model import Memory
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train.step import PlainStep, optimizer_of
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import nn

CPU = Ranks(0, 1, torch.device("cpu"))
SGD = torch.optim.SGD


class Words(nn.Module):
    def __init__(self, late):
        super().__init__()
        self.words, self.bias, self.late = nn.Embedding(50, 16, sparse=True), nn.Parameter(torch.randn(16)), late
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        found = self.words(x.abs().mul(10).long() % 50).mean(1)
        return found if self.late and self.calls < 3 else found + self.bias


class Weights(nn.Module):
    """One linear layer, its weight as it is given."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return x.to(self.weight.dtype) @ self.weight.to_dense()


def turned(model):
    """Gradients that lie in memory otherwise than their weights."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: setattr(each, "grad", each.grad.t().contiguous().t()))
    return model


MODELS = {
    "plain": lambda: nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 1)),
    "complex": lambda: Weights(torch.randn(16, 40, dtype=torch.cfloat)),
    "sparse": lambda: Words(late=False),
    "sparse and late": lambda: Words(late=True),
    "half": lambda: Weights(torch.randn(16, 40).bfloat16()),
    "double beside single": lambda: nn.Sequential(nn.Linear(16, 33), Weights(torch.randn(33, 40).double())),
    "turned": lambda: Weights(torch.randn(40, 16).t()),
    "turned gradients": lambda: turned(Weights(torch.randn(16, 40))),
    "with gaps": lambda: Weights(torch.randn(16, 80)[:, ::2]),
    "one image layer": lambda: nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 1, 2).to(memory_format=torch.channels_last)),
    "empty": lambda: nn.Sequential(nn.Linear(16, 0), nn.Linear(0, 1)),
}
OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.01),
    "momentum": lambda p: SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "maximizing": lambda p: torch.optim.Adam(p, lr=0.01, maximize=True, amsgrad=True),
    "groups": lambda p: torch.optim.AdamW([{"params": [each], "lr": 0.01 / (1 + i)} for i, each in enumerate(p)]),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}


def loss(model, batch):
    answer = model(batch)
    return (answer.abs() if answer.is_complex() else answer).float().sub(1).square().mean()


def task(model, optimizer):
    torch.manual_seed(0)
    return Task(model=MODELS[model](), train=[0], loss=loss, optimizer=OPTIMIZERS[optimizer])


def trained(task, step, steps=4):
    step.place(task.model)
    torch.manual_seed(1)
    for _ in range(steps):
        step.update([torch.randn(8, 16) for _ in range(step.accumulate)], 1.0)
    return [parameter.detach().clone() for parameter in task.model.parameters()]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    # PyTorch has sparse gradients for SGD alone.
    [(model, each) for model in MODELS for each in OPTIMIZERS if not model.startswith("sparse") or each in ("sgd", "momentum")],
)
@pytest.mark.sampled(3)
def test_a_block_about_memory_changes_no_training(model, optimizer):
    plain, block = task(model, optimizer), task(model, optimizer)
    before = [parameter.detach().clone() for parameter in plain.model.parameters()]
    wanted = trained(plain, PlainStep(plain, CPU, 2))
    found = trained(block, step_of(Memory(accumulate=2), block, CPU))
    for one, two, first in zip(found, wanted, before, strict=True):
        rtol, atol = (0.02, 0.05) if one.dtype == torch.bfloat16 else (1e-4, 1e-5)
        torch.testing.assert_close(one, two, rtol=rtol, atol=atol)
        assert first.numel() == 0 or not torch.equal(one, first)


def kernels(optimizer):
    with torch.profiler.profile(acc_events=True) as profile:
        optimizer.step()
    return {event.name for event in profile.events() if "fused" in event.name}


def test_the_fused_kernels_are_used_where_they_work_and_nothing_was_chosen():
    weight, late = nn.Parameter(torch.randn(5, 7)), nn.Parameter(torch.randn(9, dtype=torch.cfloat))

    def used(**given):
        made = Task(model=nn.ParameterList([weight, late]), train=[0], loss=loss, optimizer=lambda p: torch.optim.AdamW(p, **given))
        optimizer = optimizer_of(made, made.model, fused=True)
        weight.grad, late.grad = torch.randn(5, 7), torch.randn(9, dtype=torch.cfloat)
        return kernels(optimizer)

    assert used() == {"aten::_fused_adamw_"}  # of the one weight, beside the other
    for choice in ({"foreach": True}, {"foreach": False}, {"fused": False}):
        assert not used(**choice), choice


def test_a_step_by_parts_is_one_of_all_weights_to_the_bit():
    """Also where a weight has its first gradient later than the others, and where one's lies otherwise."""

    def moved(apart):
        torch.manual_seed(0)
        model = nn.ParameterList([torch.randn(16, 40), torch.randn(40, 16).t(), torch.randn(90)])
        optimizer = optimizer_of(Task(model=model, train=[0], loss=loss, optimizer=OPTIMIZERS["momentum"]), model, fused=True)
        for step in range(4):
            gradients = [torch.randn(16, 40), torch.randn(16, 40), None if step < 2 else torch.randn(90)]
            for part in [[0], [1], [2]] if apart else [[0, 1, 2]]:
                for i, parameter in enumerate(model):
                    parameter.grad = gradients[i] if i in part else None
                optimizer.step()
        return list(model)

    for one, two in zip(moved(apart=True), moved(apart=False), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("before", ["as it is", "all fused", "none fused"])
def test_a_checkpoint_does_not_decide(before, optimizer):
    """A job goes on to the bit, and from a checkpoint in which the optimizer's state is of the other form too."""

    def step_of_(made, state=None):
        step = PlainStep(made, CPU, 1, fused=True)
        step.place(made.model)
        if state is not None:
            made.model.load_state_dict(state[0])
            step.optimizer.load_state_dict(state[1])
        return step

    def go_on(step, steps):
        for at in steps:
            torch.manual_seed(at)
            step.update([torch.randn(8, 16)], 1.0)

    whole = task("plain", optimizer)
    go_on(step_of_(whole), range(5))
    first = task("plain", optimizer)
    step = step_of_(first)
    go_on(step, range(3))
    saved = step.optimizer.state_dict()
    if before != "as it is":
        saved["param_groups"][0]["fused"] = before == "all fused"
        for each in saved["state"].values() if optimizer == "adamw" and before == "none fused" else ():
            each["step"] = each["step"].double()
    second = task("plain", optimizer)
    step = step_of_(second, (first.model.state_dict(), saved))
    go_on(step, range(3, 5))
    for one, two in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert step.optimizer.param_groups[0]["fused"] is None


def test_hooks_on_the_steps_see_the_groups_as_they_are():
    made = task("plain", "adamw")
    optimizer = optimizer_of(made, made.model, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen = []
    optimizer.register_step_pre_hook(lambda each, args, kwargs: seen.append(each.param_groups is optimizer.param_groups))
    optimizer.register_step_pre_hook(lambda each, args, kwargs: each.param_groups[0].update(weight_decay=0.5))
    loss(made.model, torch.randn(8, 16)).backward()
    optimizer.step()
    schedule.step()
    assert seen == [True]
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
    assert optimizer.param_groups[0]["lr"] == 0.005
