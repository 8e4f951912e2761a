"""A training script that uses each decoded sample three times, then goes on without reuse. It needs no daemon.

    python reuse_script.py

Stage 1 decodes a third of what it trains on. It ends when the loss on samples used for the first time no longer falls, or when a
quarter of the steps is left; stage 2 makes good what reuse costs in accuracy, with a learning rate schedule of its own.
"""

import argparse
import sys
from collections.abc import Iterator

import torch
from stoker.loaders import FineTune, HighestRates, Switch, SwitchRule, fine_tune_schedule, reuse
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Images that have to be decoded; `decoded` counts how many were."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.decoded = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.decoded += 1
        label = index % 2
        return torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index)) + (label - 0.5), label


def flip(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """The augmentation: done anew at each use, which costs little beside decoding."""
    image, label = sample
    return (image.flip(-1) if torch.rand(()) < 0.5 else image), label


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=8, help="what a training without reuse would make")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = Images(options.samples)
    batches = reuse(DataLoader(images, batch_size=32, shuffle=True), repeat=3, transform=flip, seed=0)
    steps = options.passes * options.samples // 32
    rule, highest = SwitchRule(Switch(fraction=0.25), steps), HighestRates()
    schedule: FineTune | None = None

    for inputs, targets in endless(batches):
        highest.saw(optimizer)
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        elif switch_due(rule, batches.steps, batches.fresh / options.samples, losses.detach(), batches.uses):
            print(f"step {batches.steps} of {steps}, {images.decoded} samples decoded: from here on without reuse, as {rule.reason}")
            batches.switch()
            schedule = fine_tune_schedule(optimizer, steps - batches.steps, highest)
        if batches.steps == steps:
            break
    print(f"{steps} steps of 32 samples, {images.decoded} decoded, {steps * 32 - images.decoded} saved; loss {losses.mean().item():.3f}")
    return 0


def endless(batches: Iterator[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """One pass after the other."""
    while True:
        yield from batches


def switch_due(rule: SwitchRule, step: int, epochs: float, losses: torch.Tensor, uses: list[int]) -> bool:
    """Tell the rule the loss on the batch's first uses: that on samples used before falls even where nothing is learnt."""
    first = losses[torch.tensor(uses) == 0]
    if len(first):
        rule.first_use(step, epochs, first.mean().item(), len(first))
    return rule.stepped(step, epochs)


if __name__ == "__main__":
    sys.exit(main())
