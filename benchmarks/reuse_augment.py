"""Reuse with a heavy augmentation of each use: how fast batches come, with the augmentation in the trainer's way and in stages.

JPEG digits that Pillow decodes, each used three times and augmented anew at each use, and a small convolutional network that is trained
on them. Ways: `reuse` alone; with a pipeline whose stages only decode, so that one thread augments while the training waits; with all
of it in stages, in threads and in processes. `warp` enlarges and turns an image (Pillow lets other threads run meanwhile), `python` turns
it pixel by pixel in Python, which holds the interpreter's lock, and `remote` waits 2 ms: an **emulated** service.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import torch
from common import arguments, machine, progress, show
from PIL import Image
from stoker.engine.spec.model import PipelineOptions, Reuse
from stoker.runners.recipes.jpegs import Sample, load
from stoker.runners.train.batch_feeds import ReuseFeed, SampleSource
from stoker.runners.train.batches import Order
from stoker.runners.train.feed_choice import Loading
from stoker.runners.train.piped import LoadingPlan
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate

BATCH, REPEAT = 32, 3
SIDE, LARGE = 28, 112  #: pixels a side: of an image, and that `warp` works on
LATENCY = 2e-3  #: seconds, of `remote`

_turns = count()  #: not the global generators: what draws from these may not be done in threads


def _angle() -> float:
    return 40.0 * random.Random(next(_turns)).random() - 20.0


def warp(sample: Sample) -> Sample:
    image, label = sample
    large = Image.fromarray(image[0].numpy()).resize((LARGE, LARGE), Image.Resampling.BICUBIC)
    turned = large.rotate(_angle(), Image.Resampling.BICUBIC).resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.from_numpy(np.array(turned))[None], label


def python(sample: Sample) -> Sample:
    image, label = sample
    pixels, angle, middle = image[0].tolist(), math.radians(_angle()), (SIDE - 1) / 2
    cos, sin = math.cos(angle), math.sin(angle)
    turned = [[0] * SIDE for _ in range(SIDE)]
    for y, x in ((y, x) for y in range(SIDE) for x in range(SIDE)):
        across = round(middle + cos * (x - middle) - sin * (y - middle))
        down = round(middle + sin * (x - middle) + cos * (y - middle))
        if 0 <= across < SIDE and 0 <= down < SIDE:
            turned[y][x] = pixels[down][across]
    return torch.tensor(turned, dtype=torch.uint8)[None], label


def remote(sample: Sample) -> Sample:
    time.sleep(LATENCY)
    return sample


AUGMENTATIONS: dict[str, Callable[[Sample], Sample]] = {"warp": warp, "python": python, "remote": remote}
WAYS: dict[str, PipelineOptions | None] = {
    "reuse alone": None,
    "decoding in stages": PipelineOptions(interval=1.0),
    "all in stages, threads": PipelineOptions(interval=1.0),
    "all in stages, processes": PipelineOptions(interval=1.0, processes=True),
}


class Training:
    """Steps of a small network, and what they took."""

    def __init__(self, feed: ReuseFeed) -> None:
        self.feed = feed
        self.model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
        self.model(torch.zeros(1, 1, SIDE, SIDE))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def steps(self, number: int) -> None:
        for _ in range(number):
            images, labels = self.feed.fetch().data
            self.optimizer.zero_grad()
            cross_entropy(self.model(images.float() / 255), labels).backward()
            self.optimizer.step()
            self.feed.used()


def _cpu() -> float:
    """Seconds of this process and of its worker processes."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def measured(way: str, augment: Callable[[Sample], Sample], warm: int, steps: int) -> dict[str, Any]:
    images = load(SIDE)
    order = Order(len(images), BATCH, seed=1)
    loading = Loading(SampleSource(images, augment, default_collate, 1, order), order, 0, 1, Reuse(repeat=REPEAT), WAYS[way])
    with patch.object(LoadingPlan, "follows_a_buffer", way.startswith("all")):
        feed = loading.reused()
    try:
        training = Training(feed)
        training.steps(warm)
        wall, cpu = time.perf_counter(), _cpu()
        training.steps(steps)
        wall, cpu = time.perf_counter() - wall, _cpu() - cpu
    finally:
        feed.close()
    return {"steps/s": steps / wall, "CPU ms a step": 1e3 * cpu / steps}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--augmentations", nargs="+", choices=AUGMENTATIONS, default=list(AUGMENTATIONS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--warm", type=int, default=60, help="steps before, in which the pipeline finds its sizes (default: 60)")
    parser.add_argument("--steps", type=int, default=60, help="that are measured (default: 60)")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    began, tables = machine(), {}
    for name in options.augmentations:
        rows: list[dict[str, Any]] = []
        for way in options.ways:
            progress(f"{name}: {way}")
            row = measured(way, AUGMENTATIONS[name], options.warm, options.steps)
            rows.append({"way": way, **row, "× the first": row["steps/s"] / (rows[0]["steps/s"] if rows else row["steps/s"])})
        tables[f"{name}, batches of {BATCH}, each sample used {REPEAT} times"] = rows
    show(options, began, tables)


if __name__ == "__main__":
    main()
