"""Three ways from JPEG files to batches: plain loading, data echoing, and a first stage of PerFect."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
from perfect_case import BATCH, TESTED, VALIDATED, Augment, Case
from stoker.runners.loaders.reuse.buffer import ReuseBuffer
from stoker.runners.recipes.jpegs import SIDE, Jpegs, Sample, distort, load

_MEMORY = 1 << 30  #: no bound here: the count bounds the buffer


class Batch(NamedTuple):
    images: torch.Tensor  #: float (B, 1, 28, 28) in [0, 1]
    labels: torch.Tensor  #: int64 (B)


def to_batch(samples: Sequence[Sample]) -> Batch:
    return Batch(torch.stack([image for image, _ in samples]).float() / 255, torch.tensor([label for _, label in samples]))


@cache
def held_out(side: int = SIDE) -> tuple[Batch, Batch]:
    """Images to test with, and others to validate with while training; decoded once for all runs of a process."""
    images = load(side)
    whole = [images[index] for index in range(TESTED + VALIDATED)]
    return to_batch(whole[:TESTED]), to_batch(whole[TESTED:])


@cache
def in_memory(count: int, side: int = SIDE) -> list[Sample]:
    images = training(count, side)
    return [images[index] for index in range(len(images))]


def training(count: int, side: int = SIDE) -> Jpegs:
    first = TESTED + VALIDATED
    return load(side).part(first, first + count)


class Reader:
    """Reads and decodes the images in a random order, pass after pass; counts the decodes and their CPU time."""

    def __init__(self, case: Case) -> None:
        self._images: Sequence[Sample] | Jpegs = training(case.images) if case.decode else in_memory(case.images)
        self._seed, self._once = case.seed, case.augment == "once"
        self._position = 0
        self.decodes, self.cpu = 0, 0.0

    def take(self) -> tuple[int, Sample]:
        self._position += 1
        return self._position - 1, self.again(self._position - 1)

    def again(self, position: int) -> Sample:
        began = time.thread_time()
        sample = self._images[self.index(position)]
        self.cpu += time.thread_time() - began
        self.decodes += 1
        return distort(sample) if self._once else sample

    def index(self, position: int) -> int:
        epoch, place = divmod(position, len(self._images))
        return int(_order(len(self._images), self._seed, epoch)[place])


@cache
def _order(count: int, seed: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng((seed, epoch)).permutation(count)


class Source(Protocol):
    def next(self) -> list[Sample]:
        """The samples of a batch."""
        ...


class Plain:
    """Each image is decoded for each use. ``first``: positions that come before all others."""

    def __init__(self, reader: Reader, first: Sequence[int] = ()) -> None:
        self._samples = chain(map(reader.again, first), _decoded(reader))

    def next(self) -> list[Sample]:
        return [next(self._samples) for _ in range(BATCH)]


def _decoded(reader: Reader) -> Iterator[Sample]:
    while True:
        yield reader.take()[1]


class Echo:
    """Data echoing (Choi et al., 2019): ``repeat`` copies of each decoded image go through a shuffle buffer of samples."""

    def __init__(self, reader: Reader, case: Case) -> None:
        self._copies = (sample for sample in _decoded(reader) for _ in range(case.repeat))
        self._random = random.Random(case.seed)
        self._held = [next(self._copies) for _ in range(round(case.buffer * BATCH))]

    def next(self) -> list[Sample]:
        return [self._replaced(self._random.randrange(len(self._held))) for _ in range(BATCH)]

    def _replaced(self, place: int) -> Sample:
        sample, self._held[place] = self._held[place], next(self._copies)
        return sample


class Reuse:
    """The first stage of PerFect: Stoker's buffer."""

    def __init__(self, reader: Reader, case: Case) -> None:
        self.buffer = ReuseBuffer(
            reader,
            batch_size=BATCH,
            repeat=case.repeat,
            capacity_samples=round(case.buffer * BATCH),
            capacity_bytes=_MEMORY,
            seed=case.seed,
            identity=reader.index,
        )
        self.first_uses: list[int] = []  #: places in the last batch

    def next(self) -> list[Sample]:
        uses = self.buffer.next()
        self.first_uses = [place for place, use in enumerate(uses) if not use.use]
        return [use.sample for use in uses]


def source(reader: Reader, case: Case) -> Source:
    match case.method:
        case "plain":
            return Plain(reader)
        case "echo":
            return Echo(reader, case)
        case "perfect":
            return Reuse(reader, case)


def augmented(samples: Sequence[Sample], augment: Augment, stage: int) -> Sequence[Sample]:
    """As they are to be used now: an image of ``augment: once`` was distorted when it was decoded."""
    return [distort(sample) for sample in samples] if augment == "each-use" or (augment == "stage 2" and stage == 2) else samples
