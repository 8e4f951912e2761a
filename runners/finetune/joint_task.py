"""Two tasks of one backbone that train together for a while (spatial transfer, 002 ch. 3.2): common weights, and a head for each.

To a trainer that is one task like any other. Its batches hold samples of both, in shares that go from those of the data sets towards equal
ones (annealed sampling, Stickland and Murray 2019), so that a smaller task counts fully at the end of the phase.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...engine.errors import Conflict
from ..train.batches import Dataset, Order
from ..train.task import Task

_ANNEALED = 0.8  #: fall of the exponent of the sizes, which begins at 1


class AnnealedOrder(Order):
    """Samples 0 to ``first`` - 1 are those of the first task. Like any order it depends on the step alone."""

    def __init__(self, first: int, second: int, batch_size: int, seed: int, steps: int) -> None:
        super().__init__(first + second, batch_size, seed)
        self._made = first, second, batch_size, seed, steps
        self._of = Order(first, 1, seed), Order(second, 1, seed + 1)
        self._first = first
        self._counts, wanted, given = [], 0.0, 0
        for step in range(steps):
            wanted += batch_size * share_of_first(first, second, step, steps)
            self._counts.append(min(max(round(wanted) - given, 1), batch_size - 1))  # each batch has some of both
            given += self._counts[-1]
        self._before = [sum(self._counts[:step]) for step in range(steps + 1)]

    def count(self, step: int) -> int:
        """Samples of the first task in a batch; after the last step as in that one."""
        return self._counts[min(step, len(self._counts) - 1)]

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> list[int]:
        count, past = self.count(step), max(step - len(self._counts), 0)
        begin = self._before[min(step, len(self._counts))] + past * count
        rest = step * self.batch_size - begin
        ours = [self._of[0].index(position) for position in range(begin, begin + count)]
        others = [self._first + self._of[1].index(position) for position in range(rest, rest + self.batch_size - count)]
        return [*ours, *others][rank::ranks]

    def index(self, position: int) -> int:
        step, place = divmod(position, self.batch_size)
        return self.batch(step)[place]

    def __reduce__(self) -> tuple[type[Order], tuple[Any, ...]]:
        return AnnealedOrder, self._made


def share_of_first(first: int, second: int, step: int, steps: int) -> float:
    """In proportion to the sizes to the power of 1 - 0.8 (step / last step)."""
    power = 1.0 - _ANNEALED * step / max(steps - 1, 1)
    return float(first**power / (first**power + second**power))


class Together(nn.Module):
    """Two models with the same parameters, except their tasks' own; gives the loss of a batch of both."""

    def __init__(self, first: Task, second: Task) -> None:
        super().__init__()
        ours = dict(first.model.named_parameters()) | dict(first.model.named_buffers())
        theirs = dict(second.model.named_parameters()) | dict(second.model.named_buffers())
        shared = {name: value for name, value in theirs.items() if not second.owns(name)}
        for name, value in shared.items():
            own = ours.get(name)
            if own is None or own.shape != value.shape or own.requires_grad != value.requires_grad:
                raise Conflict(f"they do not train the same of one backbone: they differ in {name}")
        if lacking := [name for name in ours if name not in shared and not first.owns(name)]:
            raise Conflict(f"they do not train the same of one backbone: they differ in {lacking[0]}")
        for name in shared:
            module, _, last = name.rpartition(".")
            where = second.model.get_submodule(module)
            (where._parameters if last in where._parameters else where._buffers)[last] = ours[name]  # type: ignore[assignment]
        self.first, self.second = first.model, second.model
        self._losses = first.loss, second.loss

    def forward(self, batch: Sequence[Any]) -> torch.Tensor:
        first, second, share = batch
        loss: torch.Tensor = share * self._losses[0](self.first, first) + (1 - share) * self._losses[1](self.second, second)
        return loss

    def halves(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The present weights of each of the two, by its own names, without frozen ones."""
        return trained(self.first), trained(self.second)


def joint(first: Task, second: Task, steps: int, total: int) -> Task:
    """The common task, for so many steps, with the batch size and the rates of the first, which has ``total`` steps alone.

    Conflict: they are not of one backbone and form.
    """
    if second.batch_size != first.batch_size:
        raise Conflict(f"they train with batches of {first.batch_size} and {second.batch_size}; give both one batch_size")
    if first.batch_size < 2:
        raise Conflict("a batch of one sample has none of the other; give both a batch_size of 2 at least")
    schedule = first.scheduler
    return replace(
        first,
        model=Together(first, second),
        train=_Both(first.train, second.train),
        augment=functools.partial(_augmented, (first.augment, second.augment)) if first.augment or second.augment else None,
        collate=functools.partial(_collated, (first.collate, second.collate)),
        loss=lambda model, batch: model(batch),
        order=AnnealedOrder(len(first.train), len(second.train), first.batch_size, first.seed, steps),
        # The rates are those of the first training's beginning: they must not decay within the phase.
        scheduler=(lambda optimizer, _: schedule(optimizer, total)) if schedule else None,
        evaluate=functools.partial(_evaluated, first, second) if first.evaluate or second.evaluate else None,
        own=(),
        units=(),
        finish=None,
        leaves=None,
    )


class _Both:
    def __init__(self, first: Dataset, second: Dataset) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        known = len(self._first)
        return (0, self._first[index]) if index < known else (1, self._second[index - known])


def _augmented(augments: Sequence[Any], item: tuple[int, Any]) -> tuple[int, Any]:
    which, sample = item
    return which, sample if augments[which] is None else augments[which](sample)


def _collated(collates: Sequence[Any], items: Sequence[tuple[int, Any]]) -> tuple[Any, Any, float]:
    """A batch of each, and the first one's share."""
    parts = [[sample for which, sample in items if which == wanted] for wanted in (0, 1)]
    return collates[0](parts[0]), collates[1](parts[1]), len(parts[0]) / len(items)


def _evaluated(first: Task, second: Task, model: nn.Module) -> Mapping[str, float]:
    """The first task's metrics by their names, the other's prefixed with its name."""
    found = dict(first.evaluate(model.get_submodule("first"))) if first.evaluate else {}
    others = second.evaluate(model.get_submodule("second")) if second.evaluate else {}
    return found | {f"partner_{name}": value for name, value in others.items()}


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of a model's state without frozen parameters."""
    frozen = {name for name, value in model.named_parameters(remove_duplicate=False) if not value.requires_grad}
    return {name: value.detach().clone() for name, value in model.state_dict().items() if name not in frozen}
