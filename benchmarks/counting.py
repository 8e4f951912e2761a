"""A training that counts: each use of a sample adds one to its own weight, so that these tell which were taken, and how often."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from stoker.runners.training import Task
from torch import nn


class Ones:
    """Sample i is i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Counts(nn.Module):
    def __init__(self, samples: int, start: float) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.full((samples,), start))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.used[index]


def build(
    samples: int = 64, batch: int = 4, pace: float = 0.0, hurry: str = "", batch_of_step: int = 16, start: float = 0.0, seed: int = 0
) -> Task:
    """``pace``: seconds of a sample, unless there is a file ``hurry``; ``batch_of_step``: by whose inverse each use moves its weight."""

    def loss(model: nn.Module, index: torch.Tensor) -> torch.Tensor:
        if not (hurry and Path(hurry).exists()):
            time.sleep(pace * len(index))
        return -model(index).mean()

    return Task(
        model=Counts(samples, start), train=Ones(samples), loss=loss, batch_size=batch, seed=seed, checkpoint_every=5,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=float(batch_of_step)),
    )  # fmt: skip


def deep(pace: float = 0.0) -> Task:
    """A model of some layers that draws, so that it can be swapped; ``pace``: seconds of a batch."""

    def loss(model: nn.Module, index: torch.Tensor) -> torch.Tensor:
        time.sleep(pace)
        return (model(rows[index]) - rows[index]).square().mean()

    torch.manual_seed(0)
    rows = torch.randn(64, 32)
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6)]
    return Task(
        model=nn.Sequential(*blocks), train=Ones(64), loss=loss, batch_size=4, checkpoint_every=5,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )  # fmt: skip
