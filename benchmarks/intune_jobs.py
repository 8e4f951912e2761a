"""The jobs of the InTune benchmark: what is read, the user's function, what a batch is made of, and the model that is trained.

clicks   DLRM: click records as text in shards on disk (26 categorical columns with Zipf skew, 13 dense columns, as Criteo's); the UDF
         parses, looks words up in vocabularies, hashes the rare ones and takes logarithms, all in Python; embedding tables, MLPs
images   JPEG files decoded, scaled and distorted by Pillow; a small convolutional network
remote   the click records again, each read with an emulated latency of remote storage (a sleep)
"""

from __future__ import annotations

import io
import json
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler

CATEGORICAL, DENSE = 26, 13
SIZES = tuple(int(size) for size in np.geomspace(12, 40_000, CATEGORICAL))  #: words of each column
SHARD = 4096  #: records in a file
RARE = 64  #: buckets of a column's words that its vocabulary lacks
KNOWN = 0.9  #: of the draws of a column are words of its vocabulary, about
LATENCY = 0.025  #: seconds, emulated, of a read of remote storage


class Job(NamedTuple):
    """One training. A batch is ``group`` items; an item is read, then given to the UDF."""

    name: str
    items: int  #: that there are; they are read again and again, each time in another order
    read: Callable[[int], Any]
    udf: Callable[[Any], Any]
    group: int
    join: Callable[[Sequence[Any]], Any]
    samples: int  #: of a batch
    processes: bool | None  #: the UDF is in processes, because it holds the interpreter's lock; None: as who sizes the pipeline finds best
    along: bool  #: processes of the UDF read what they work on, as reading does not wait
    trainer: Callable[[], Callable[[Any], None]]  #: makes a model; what it returns trains it on a batch


class Endless(Sampler[int]):
    """Every item once a pass, in another order each, without end."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        order = random.Random(0)
        while True:
            yield from order.sample(range(self.items), self.items)


# -- clicks --------------------------------------------------------------------------------------------------------------


class Clicks:
    """Click records on disk: ``label<TAB>13 counts<TAB>26 words`` a line, and the vocabulary of each column."""

    def __init__(self, folder: Path, block: int) -> None:
        self.folder, self.block = folder, block

    @cached_property
    def blocks(self) -> list[tuple[str, int, int]]:
        """File, offset and length of each block of records."""
        found = []
        for path in sorted(self.folder.glob("*.tsv")):
            ends = np.flatnonzero(np.frombuffer(path.read_bytes(), np.uint8) == ord("\n")) + 1
            edges = [0, *ends[self.block - 1 :: self.block].tolist()]
            found += [(str(path), first, last - first) for first, last in pairwise(edges)]
        return found


def make_clicks(folder: Path, records: int) -> None:
    """Write the shards; what is there already is left."""
    done = folder / "vocabularies.json"
    if done.exists() and json.loads(done.read_text())["records"] == records:
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(26)
    # A rank r is drawn with probability ~ 1/r, which is what words of clicks follow; the first few make up most of the draws.
    weights = [1 / np.arange(1, size + 1) for size in SIZES]
    words = [np.array([f"{zlib.crc32(f'{column}:{rank}'.encode()):08x}" for rank in range(size)]) for column, size in enumerate(SIZES)]
    effects = [draw.normal(0, 0.5, size) for size in SIZES]
    for shard in range(-(-records // SHARD)):
        count = min(SHARD, records - shard * SHARD)
        ranks = [draw.choice(size, count, p=weight / weight.sum()) for size, weight in zip(SIZES, weights, strict=True)]
        dense = np.floor(draw.lognormal(1.5, 1.5, (count, DENSE))).astype(int)
        logit = sum(effect[rank] for effect, rank in zip(effects, ranks, strict=True)) - 1.2 + 0.3 * (np.log1p(dense[:, 0]) - 1.7)
        label = (draw.random(count) < 1 / (1 + np.exp(-logit))).astype(int)
        shown = np.where(draw.random(dense.shape) < 0.05, "", dense.astype(str))  # a twentieth is missing, as in real logs
        rows = np.column_stack([label.astype(str), shown, *(column[rank] for column, rank in zip(words, ranks, strict=True))])
        (folder / f"{shard:04d}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    kept = [column[: np.searchsorted(np.cumsum(weight) / weight.sum(), KNOWN) + 1] for column, weight in zip(words, weights, strict=True)]
    done.write_text(json.dumps({"records": records, "columns": [column.tolist() for column in kept]}))


@cache
def vocabularies(folder: Path) -> list[tuple[dict[bytes, int], int]]:
    """By column, the row of the embedding table of each word, and the first row of the rare ones; the rows of all stand in one table."""
    tables, row = [], 0
    for words in json.loads((folder / "vocabularies.json").read_text())["columns"]:
        tables.append(({word.encode(): row + RARE + place for place, word in enumerate(words)}, row))
        row += RARE + len(words)
    return tables


class ReadBlock:
    """The text of a block of records, from disk; ``latency`` is slept first, as remote storage takes it."""

    def __init__(self, clicks: Clicks, latency: float = 0.0) -> None:
        self.blocks, self.latency = clicks.blocks, latency

    def __call__(self, number: int) -> bytes:
        path, offset, length = self.blocks[number]
        if self.latency:
            time.sleep(self.latency)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)


class Parse:
    """The UDF: a block of text to arrays, record by record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tables = vocabularies(self.folder)
        labels, dense, rows = [], [], []
        for line in text.splitlines():
            fields = line.split(b"\t")
            labels.append(int(fields[0]))
            dense.append([int(field) if field else 0 for field in fields[1 : 1 + DENSE]])
            rows.append(
                [
                    table[word] if word in table else rare + zlib.crc32(word) % RARE
                    for word, (table, rare) in zip(fields[1 + DENSE :], tables, strict=True)
                ]
            )
        return np.array(labels, np.float32), np.log1p(np.array(dense, np.float32)), np.array(rows, np.int64)


def join_blocks(blocks: Sequence[tuple[np.ndarray, ...]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.concatenate(column)) for column in zip(*blocks, strict=True))


class Dlrm(nn.Module):
    """Bottom MLP for the dense columns, an embedding for each categorical one, their dot products, top MLP."""

    def __init__(self, rows: int, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=True)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        features = CATEGORICAL + 1
        first, second = torch.triu_indices(features, features, 1)
        self.register_buffer("pairs", first * features + second)
        self.top = nn.Sequential(nn.Linear(width + features * (features - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        below = self.bottom(dense)
        features = torch.cat([below[:, None], self.table(rows)], dim=1)
        products = (features @ features.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([below, products], dim=1))[:, 0]


def train_dlrm(folder: Path) -> Callable[[Any], None]:
    torch.manual_seed(0)
    model = Dlrm(sum(RARE + len(table) for table, _ in vocabularies(folder)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(batch: Any) -> None:
        label, dense, rows = batch
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(dense, rows), label).backward()
        optimizer.step()

    return train


# -- images --------------------------------------------------------------------------------------------------------------


class ReadFile:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> tuple[bytes, int]:
        return (self.folder / f"{number:04d}.jpg").read_bytes(), number


class Decode:
    """The UDF: an image decoded, scaled down and distorted."""

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = labels

    def __call__(self, item: tuple[bytes, int]) -> tuple[torch.Tensor, int]:
        from PIL import Image
        from stoker.runners.recipes.jpegs import SEEN_SIDE, distort

        content, number = item
        with Image.open(io.BytesIO(content)) as image:
            seen = image.resize((SEEN_SIDE, SEEN_SIDE), Image.Resampling.BILINEAR).convert("L")
        return distort((torch.from_numpy(np.array(seen))[None], self.labels[number]))


def join_images(samples: Sequence[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return torch.stack(images).float().div_(255), torch.tensor(labels)


def train_cnn() -> Callable[[Any], None]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 10)
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(batch: Any) -> None:
        images, labels = batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return train


# -- all three -----------------------------------------------------------------------------------------------------------


def _clicks(name: str, folder: Path, records: int, block: int, group: int, latency: float) -> Job:
    make_clicks(folder, records)
    clicks = Clicks(folder, block)
    return Job(
        name, len(clicks.blocks), ReadBlock(clicks, latency), Parse(folder), group, join_blocks, block * group,
        processes=None if latency else True, along=not latency, trainer=lambda: train_dlrm(folder),
    )  # fmt: skip


def clicks(folder: Path, records: int) -> Job:
    """click records on disk, UDF in Python (processes), DLRM of embedding tables and MLPs"""
    return _clicks("clicks", folder, records, 256, 4, 0.0)


def remote(folder: Path, records: int) -> Job:
    """the same records, each block read with an emulated latency of 25 ms, UDF in Python (threads to begin with)"""
    return _clicks("remote", folder, records, 32, 8, LATENCY)


def images(folder: Path, records: int) -> Job:
    """JPEG files of 224 pixels decoded and distorted by Pillow (threads to begin with), a small convolutional network"""
    from stoker.runners.recipes.jpegs import load

    found = load(side=224)
    decode = Decode(found.labels)
    return Job("images", len(found), ReadFile(found.folder), decode, 64, join_images, 64, processes=None, along=True, trainer=train_cnn)


JOBS = {job.__name__: job for job in (clicks, images, remote)}
