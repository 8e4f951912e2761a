"""A small convolutional network on handwritten digits that lie on disk as JPEG files: decoding is most of the work."""

from __future__ import annotations

import torch
from torch import nn

from ..train.batches import interruptible
from ..train.task import Task
from .jpegs import SEEN_SIDE, Jpegs, distort, load

_HELD_OUT = 1000
_EVAL_BATCH = 250

Images = tuple[torch.Tensor, torch.Tensor]  #: uint8 (batch, 1, 28, 28), labels


def build(
    *,
    lr: float,
    weight_decay: float,
    batch_size: int,
    channels: int,
    augment: bool,
    epochs: int,
    side: int,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    images = load(side)
    held_out = HeldOut(images.part(0, _HELD_OUT))
    return Task(
        model=Network(channels),
        train=images.part(_HELD_OUT, len(images)),
        augment=distort if augment else None,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        evaluate=held_out.accuracy,
        batch_size=batch_size,
        epochs=epochs,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        seed=seed,
    )


class Network(nn.Module):
    """Two convolutions with batch normalisation and a linear layer; pixels as they are in the files."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * (SEEN_SIDE // 4) ** 2, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images.float() / 255)
        return logits


class HeldOut:
    """Images that are not trained on, decoded once."""

    def __init__(self, images: Jpegs) -> None:
        self._images = images
        self._decoded: list[Images] = []

    def accuracy(self, model: nn.Module) -> dict[str, float]:
        if not self._decoded:
            self._decoded = self._decode()
        device = next(model.parameters()).device
        right = sum(int((model(images.to(device)).argmax(1) == labels.to(device)).sum()) for images, labels in interruptible(self._decoded))
        return {"accuracy": right / len(self._images)}

    def _decode(self) -> list[Images]:
        samples = [self._images[index] for index in interruptible(range(len(self._images)))]
        batches = [samples[start : start + _EVAL_BATCH] for start in range(0, len(samples), _EVAL_BATCH)]
        return [(torch.stack([image for image, _ in batch]), torch.tensor([label for _, label in batch])) for batch in batches]
