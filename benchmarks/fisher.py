"""Embeddings of tasks by their gradients (Task2Vec, 002 Eqn 3.2): the diagonal of the Fisher information of what a probe trains.

The probe is the adapter that a classifier trains, filled alike for all tasks, with a head of each task's own. Distances are in
`transfer_gain.py`. Gradients are taken sample by sample, which asks nothing of the model: `torch.func.vmap` would refuse one
that looks at its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from stoker.engine.errors import UsageError
from stoker.runners.train.batches import interruptible
from stoker.runners.train.task import Task
from torch import nn

SAMPLES = 64
_RIDGE = 5e-3  #: of the head's weights, which 64 samples alone would let grow without end
_SMALL = 1e-3  #: of what an adapter has as zeros: with these its other part has no gradient
_FITTING = 60  #: iterations of the head


@dataclass(frozen=True)
class Embedding:
    """``whole`` is the mean of those of the two halves of the samples, which tell how far two embeddings of one task are apart."""

    whole: torch.Tensor
    halves: tuple[torch.Tensor, torch.Tensor]


def embedding(task: Task, *, samples: int = SAMPLES, seed: int = 0) -> Embedding:
    """Of a classifier with a linear ``head``, which is as it was afterwards. ``seed``: of the probe and of the labels that are drawn."""
    head = dict(task.model.named_modules()).get("head")
    probed = {name: value for name, value in task.model.named_parameters() if value.requires_grad and not task.owns(name)}
    if not isinstance(head, nn.Linear) or not probed:
        raise UsageError("similarity: a task is compared by what a classifier with a linear head trains below it; this one has none")
    if len(task.train) < samples:
        raise UsageError(f"similarity: {samples} training samples are looked at, and there are {len(task.train)}")
    batches = [task.collate([task.train[index]]) for index in range(samples)]
    generator = torch.Generator().manual_seed(seed)
    with _as_probe(task, probed, head, generator):
        features, labels = _features(task.model, head, batches)
        _fit(head, features, labels)
        squares = list(_squares(task.model, list(probed.values()), batches, generator))
    middle = samples // 2
    halves = torch.stack(squares[:middle]).mean(0), torch.stack(squares[middle:]).mean(0)
    return Embedding((halves[0] + halves[1]) / 2, halves)


@contextmanager
def _as_probe(task: Task, probed: Mapping[str, nn.Parameter], head: nn.Linear, generator: torch.Generator) -> Iterator[None]:
    """The adapter as that of all tasks; what is trained of the backbone itself is alike already."""
    kept = {name: value.detach().clone() for name, value in task.model.named_parameters() if value.requires_grad}
    training = task.model.training
    task.model.eval()
    try:
        with torch.no_grad():
            for name, value in probed.items():
                if ".lora_" in name:
                    drawn = torch.randn(value.shape, generator=generator)
                    value.copy_(drawn * (_SMALL if ".lora_B" in name else value.shape[-1] ** -0.5))
        yield
    finally:
        with torch.no_grad():
            for name, value in task.model.named_parameters():
                if name in kept:
                    value.copy_(kept[name])
        task.model.train(training)


def _features(model: nn.Module, head: nn.Linear, batches: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        with torch.no_grad():
            for batch in interruptible(batches):
                model(*batch[:-1])
    finally:
        hook.remove()
    return torch.cat(seen), torch.cat([batch[-1] for batch in batches])


def _fit(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> None:
    """The head of a logistic regression on what the probe makes of the samples."""
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=_FITTING, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(features), labels) + _RIDGE * head.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def _squares(
    model: nn.Module, probed: Sequence[nn.Parameter], batches: Sequence[Any], generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Of each sample the squared gradients of the log-probability of a label that the model itself draws (3.2)."""
    for batch in interruptible(batches):
        known = torch.log_softmax(model(*batch[:-1])[0], -1)
        label = torch.multinomial(known.detach().exp(), 1, generator=generator)
        found = torch.autograd.grad(known[label].sum(), probed, allow_unused=True)
        yield torch.cat([torch.zeros(one.numel()) if g is None else g.square().flatten() for one, g in zip(probed, found, strict=True)])
