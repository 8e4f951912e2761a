"""Made-up clicks in the form of a real log of advertisements: text lines of a label, 13 counts and 26 hashed categories.

The form and the skew are those of the public Criteo logs (values missing, few categories very common, most rare: Zipf's law, tables
from a handful of values to many thousands); the clicks follow a hidden logistic model, so that there is something to learn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from ..made import made_once
from ..train.batches import interruptible

DENSE, CATEGORIES = 13, 26
_SHARD = 10_000  #: lines of a file
_SKEW = 1.2  #: exponent of Zipf's law
_MISSING = 0.1  #: of the values
_CLICKS = -1.2  #: logit of the mean
_WIDTHS = np.geomspace(8, 50_000, CATEGORIES).astype(np.int64)  #: distinct values of each category
_DATA_VERSION = 1

Sample = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  #: dense (13,), buckets (26,), label ()


class Clicks:
    """A map-style data set: each read takes a line from its file and parses it.

    Categories are hashed into ``buckets`` each, counts are scaled by a logarithm, missing values are 0.
    """

    def __init__(self, folder: Path, start: int, stop: int, buckets: int) -> None:
        self.folder, self.start, self.stop, self.buckets = folder, start, stop, buckets

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard, line = divmod(self.start + index, _SHARD)
        offsets = _offsets(self.folder, shard)
        with _shard(self.folder, shard).open("rb") as file:
            return self._parse(_line(file, int(offsets[line]), int(offsets[line + 1])))

    def _parse(self, line: str) -> Sample:
        label, *fields = line.rstrip("\n").split("\t")
        counts = [math.log1p(int(field)) if field else 0.0 for field in fields[:DENSE]]
        # 0 stands for a missing value; the field's number keeps equal hashes of two categories apart.
        values = [1 + (int(field, 16) * 31 + number) % (self.buckets - 1) if field else 0 for number, field in enumerate(fields[DENSE:])]
        return torch.tensor(counts), torch.tensor(values), torch.tensor(float(label))


def load(rows: int, held_out: int, buckets: int) -> tuple[Clicks, Clicks]:
    """Clicks to train on and clicks held out; made in the cache directory when they are not there."""
    total = rows + held_out
    folder = made_once(f"clicks-{_DATA_VERSION}-{total}", lambda folder: _make(folder, total))
    return Clicks(folder, 0, rows, buckets), Clicks(folder, rows, total, buckets)


def _shard(folder: Path, shard: int) -> Path:
    return folder / f"part-{shard:05d}.tsv"


@functools.lru_cache(maxsize=64)
def _offsets(folder: Path, shard: int) -> NDArray[np.int64]:
    """The begins of a file's lines, and the end of the last one."""
    offsets: NDArray[np.int64] = np.load(_shard(folder, shard).with_suffix(".npy"))
    return offsets


def _line(file: IO[bytes], start: int, end: int) -> str:
    file.seek(start)
    return file.read(end - start).decode("ascii")


def _make(folder: Path, rows: int) -> None:
    generator = np.random.default_rng(11)
    weights = generator.normal(0, 0.8, (CATEGORIES, 64)), generator.normal(0, 0.25, DENSE)
    for shard, first in enumerate(interruptible(range(0, rows, _SHARD))):
        lines = list(_lines(generator, weights, min(_SHARD, rows - first)))
        _shard(folder, shard).write_text("".join(lines), encoding="ascii")
        np.save(_shard(folder, shard).with_suffix(".npy"), np.cumsum([0, *map(len, lines)]))


def _lines(generator: np.random.Generator, weights: tuple[NDArray[np.float64], NDArray[np.float64]], rows: int) -> Iterator[str]:
    counts = np.floor(generator.lognormal(1.5, 1.2, (rows, DENSE))).astype(np.int64)
    ranks = np.column_stack([_zipf(generator, width, rows) for width in _WIDTHS])
    of_categories, of_counts = weights
    liked = of_categories[np.arange(CATEGORIES), ranks % 64].sum(1) / math.sqrt(CATEGORIES)
    logits = _CLICKS + (np.log1p(counts) - 1.5) @ of_counts + liked
    labels = generator.random(rows) < 1 / (1 + np.exp(-logits))
    hashes = ((ranks + 1) * 2654435761 + np.arange(CATEGORIES) * 40503) % (1 << 32)  # Knuth's multiplicative hashing
    missing = generator.random((rows, DENSE + CATEGORIES)) < _MISSING
    for row in range(rows):
        fields = [*map(str, counts[row].tolist()), *(f"{value:08x}" for value in hashes[row].tolist())]
        fields = ["" if gone else field for gone, field in zip(missing[row].tolist(), fields, strict=True)]
        yield "\t".join([str(int(labels[row])), *fields]) + "\n"


def _zipf(generator: np.random.Generator, width: int, rows: int) -> NDArray[np.int64]:
    """Ranks from 0 to ``width`` - 1, rank k with a probability proportional to (k + 1) ** -skew."""
    cumulative = np.cumsum(np.arange(1, width + 1, dtype=np.float64) ** -_SKEW)
    return np.searchsorted(cumulative / cumulative[-1], generator.random(rows)).clip(max=width - 1).astype(np.int64)
