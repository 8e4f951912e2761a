"""A small network fitted to a made-up function, with dropout and noise drawn from the global generators, at a set pace."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from ..train.batches import interruptible
from ..train.task import Task

_TICK = 0.05  #: seconds between looks at the request to stop during a pause
_FEATURES = 8


class _Waves:
    """Inputs and a smooth function of them, with fresh noise at each look, as augmentation draws it."""

    def __init__(self, samples: int, load_seconds: float, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(20)
        self.inputs = torch.randn(samples, _FEATURES, generator=generator)
        self.targets = torch.sin(self.inputs @ torch.randn(_FEATURES, generator=generator)).unsqueeze(1)
        self.pause = load_seconds / batch_size

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pause:
            time.sleep(self.pause)
        return self.inputs[index] + 0.01 * torch.randn(_FEATURES), self.targets[index]


def build(
    *,
    samples: int,
    width: int,
    batch_size: int,
    lr: float,
    step_ms: float,
    load_ms: float,
    eval_ms: float,
    build_ms: float,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    _pause(build_ms)
    data = _Waves(samples, load_ms / 1000, batch_size)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(step_ms / 1000)
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def evaluate(model: nn.Module) -> dict[str, float]:
        _pause(eval_ms)
        device = next(model.parameters()).device
        return {"eval_loss": float(nn.functional.mse_loss(model(data.inputs.to(device)), data.targets.to(device)))}

    def answer(model: nn.Module, requests: list[list[float]]) -> list[float]:
        time.sleep(step_ms / 1000)
        inputs = torch.tensor(requests, dtype=torch.float32, device=next(model.parameters()).device)
        found: list[float] = model(inputs).squeeze(1).tolist()
        return found

    return Task(
        model=nn.Sequential(nn.Linear(_FEATURES, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1)),
        train=data,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        evaluate=evaluate,
        batch_size=batch_size,
        iterations=100,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        seed=seed,
        answer=answer,
    )


def _pause(milliseconds: float) -> None:
    for _ in interruptible(range(math.ceil(milliseconds / 1000 / _TICK))):
        time.sleep(_TICK)
