"""A training script that knows nothing of Stoker: a small network learns to tell digits that it draws itself.

    python plain_script.py --epochs 5
    stoker submit --name plain -- python plain_script.py --epochs 5

Stoker runs it as it is, keeps its log and its exit code, and ends it when it is cancelled. What it can add is in aware_script.py.
"""

import argparse
import os

import torch
from torch import nn

DIGITS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def draw(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits of 7 x 5 points, shifted by a point or none, under noise."""
    shapes = torch.tensor([[[float(point) for point in row] for row in digit.split()] for digit in DIGITS])
    labels = torch.randint(10, (samples,), generator=generator)
    images = nn.functional.pad(shapes[labels], (1, 1, 1, 1))
    shifts = torch.randint(-1, 2, (samples, 2), generator=generator).tolist()
    images = torch.stack([image.roll(shift, (0, 1)) for image, shift in zip(images, map(tuple, shifts), strict=True)])
    return images.unsqueeze(1) + 0.5 * torch.randn(images.unsqueeze(1).shape, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    images, labels = draw(options.samples, generator)
    test_images, test_labels = draw(1000, generator)

    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 5 * 3, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    for epoch in range(options.epochs):
        for batch in torch.randperm(options.samples).split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
