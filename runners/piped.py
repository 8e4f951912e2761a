"""Feeds whose samples are decoded in stages beside the training (003): the stages of `loaders.pipeline`, sized while they run.

Workers are threads or processes. A process seeds its own generators by the position of each sample. Threads share the global
generators with the training, so nothing that draws from them may run in one: a data set that does is refused, and an augmentation
that does is done when the batch is wanted. What goes from stage to stage are lists of samples: a way through a queue costs as much
as parsing a line does.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.errors import UsageError
from ..engine.spec.model import PipelineOptions
from . import rng
from .batches import Dataset, Loader, Positions
from .feeds import Direct, Part, Source, State, seed_augmenting, seed_decoding
from .loaders.autotuned import autotuned
from .loaders.pipeline import Pipeline
from .loaders.stages import Map, Prefetch, Stage
from .loaders.stages import Source as Read

log = logging.getLogger(__name__)

Place = tuple[int, int]  #: a position and the index of its sample
Numbered = tuple[int, Any]  #: a position and its sample


@dataclass(frozen=True, slots=True)
class Plan:
    """How the loading of a task is divided into stages."""

    source: Source
    options: PipelineOptions
    augments: bool  #: it is done in the stages; else, if at all, when the batch is wanted

    @property
    def unfinished(self) -> bool:
        """Whether batches leave the stages as lists of samples that are still to be augmented."""
        return self.source.augment is not None and not self.augments

    @classmethod
    def of(cls, source: Source, options: PipelineOptions, index: int, *, each_use: bool) -> Plan:
        """The plan for a task, by a look at its sample ``index``. ``each_use``: samples are augmented behind the stages.

        Raises UsageError when it cannot be loaded like this.
        """
        why = "the task has no augment" if source.augment is None else "with reuse it is done at each use" if each_use else ""
        if not options.processes:
            _refuse_draws(source, index)
        draws = not options.processes and _augmenting_draws(source, index)
        if draws and not why:
            why = "it draws from the global random generators, which threads would share with the training"
            log.info("augment is done when a batch is wanted, not in a stage: %s; 'processes: true' allows it", why)
        if "augment" in options.workers and (why or options.processes):
            where = "in processes it is done with the decoding"
            raise UsageError(f"pipeline.workers.augment: there is no such stage: {why or where}; leave it out")
        if "batch" in options.workers and draws:
            raise UsageError(
                "pipeline.workers.batch: there is no such stage: augment draws from the global random generators; leave it out"
            )
        return cls(source, options, augments=not why)

    def samples(self, positions: Positions, chunk: int) -> Running:
        """Lists of ``chunk`` samples with their positions, from where the stream stands."""
        return self._run(self._stages(positions, chunk))

    def batches(self, positions: Positions) -> Running:
        """The rank's parts of batches: collated, or `unfinished`."""
        stages = self._stages(positions, positions.share)
        if not self.unfinished:
            stages.append(Map(Collating(self.source.collate), name="batch", workers=self.options.workers.get("batch", 1)))
        return self._run(stages)

    def _stages(self, positions: Positions, chunk: int) -> list[Stage]:
        source, workers, augment = self.source, self.options.workers, self.source.augment if self.augments else None
        places, decoders = Places(positions, chunk), workers.get("decode", 1)
        if self.options.processes:  # in one stage: each more costs a way between processes
            decode = Seeded(source.data, augment, source.seed)
            return [Read(decode, sampler=places, name="decode", workers=decoders, processes=True)]
        stages: list[Stage] = [Read(Decoding(source.data), sampler=places, name="decode", workers=decoders)]
        if augment is not None:
            stages.append(Map(Augmenting(augment), name="augment", workers=workers.get("augment", 1)))
        return stages

    def _run(self, stages: Sequence[Stage]) -> Running:
        return Running(Pipeline([*stages, Prefetch()], name="loading"), self.options)


def _augmenting_draws(source: Source, index: int) -> bool:
    augment = source.augment
    return augment is not None and rng.draws(lambda: augment(source.data[index]))


def _refuse_draws(source: Source, index: int) -> None:
    if rng.draws(lambda: source.data[index]):
        raise UsageError(
            "pipeline: the task's train[index] draws from the global random generators, which threads would share with the training; "
            "write 'pipeline: {processes: true}', or move what is random to Task.augment"
        )


class Piped:
    """Decoded samples of a stream, from the stages; ``augment``: and augmented for their first use."""

    def __init__(self, plan: Plan, positions: Positions, chunk: int, *, augment: bool) -> None:
        self._plan, self._positions, self._augment = plan, positions, augment
        self._direct = Direct(plan.source, positions, augment=augment)
        self._running = plan.samples(positions, chunk)
        self._ready: Iterator[Numbered] = iter(())  #: of the newest list

    def take(self) -> tuple[int, Any]:
        found = next(self._ready, None)
        if found is None:
            self._ready = iter(self._running.next())
            found = next(self._ready)
        position, sample = found
        self._positions.take()
        if self._augment and self._plan.unfinished:
            sample = self._plan.source.augmented(position, 0, sample)
        return position, sample

    def again(self, position: int) -> Any:
        return self._direct.again(position)

    def close(self) -> None:
        self._running.close()


class PipelineFeed:
    """Batches from the stages, each sample used once."""

    def __init__(self, plan: Plan, positions: Positions) -> None:
        self._plan, self._positions = plan, positions
        self._before = positions.state()
        self._running = plan.batches(positions)
        self._loader = Loader(self._load)

    def fetch(self, *, first: bool = False) -> Part:
        part: Part = self._loader.fetch()
        return part

    def used(self) -> None:
        self._before = self._positions.state()

    def state(self) -> State:
        return {"positions": self._before}

    def close(self) -> None:
        self._running.close()
        self._loader.close()

    def _load(self) -> Part:
        count = self._positions.share
        data = self._running.next()
        if self._plan.unfinished:
            source = self._plan.source
            with rng.host_preserved():
                data = source.collate([source.augmented(position, 0, sample) for position, sample in data])
        self._positions.taken += count
        return Part(count, data, count)


class Running:
    """A pipeline that is tuned, and its one pass."""

    def __init__(self, pipeline: Pipeline, options: PipelineOptions) -> None:
        self._tuned = autotuned(pipeline, controller=options.tune, interval=options.interval, memory=options.memory)
        self._items: Iterator[Any] | None = None

    def next(self) -> Any:
        if self._items is None:
            self._items = iter(self._tuned)
        return next(self._items)

    def close(self) -> None:
        self._tuned.close()


class Places:
    """What is to be decoded, lazily and without end: lists of ``chunk`` places."""

    def __init__(self, positions: Positions, chunk: int) -> None:
        self._positions, self._chunk = positions, chunk

    def __iter__(self) -> Iterator[list[Place]]:
        order, ahead = self._positions.order, self._positions.ahead()
        while True:
            yield [(position, order.index(position)) for position in itertools.islice(ahead, self._chunk)]


class Decoding:
    """The data set, asked for lists of places."""

    def __init__(self, data: Dataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, places: Sequence[Place]) -> list[Numbered]:
        return [(position, self._data[index]) for position, index in places]


class Seeded(Decoding):
    """The same in a process of its own, whose generators are seeded for each sample; with its augmentation for the first use."""

    def __init__(self, data: Dataset, augment: Callable[[Any], Any] | None, seed: int) -> None:
        super().__init__(data)
        self._augment, self._seed = augment, seed

    def __getitem__(self, places: Sequence[Place]) -> list[Numbered]:
        return [(position, self._sample(position, index)) for position, index in places]

    def _sample(self, position: int, index: int) -> Any:
        seed_decoding(self._seed, position)
        sample = self._data[index]
        if self._augment is None:
            return sample
        seed_augmenting(self._seed, position, 0)
        return self._augment(sample)


class Augmenting:
    """The augmentation of samples whose positions go with them."""

    def __init__(self, augment: Callable[[Any], Any]) -> None:
        self._augment = augment

    def __call__(self, samples: Sequence[Numbered]) -> list[Numbered]:
        return [(position, self._augment(sample)) for position, sample in samples]


class Collating:
    """The task's collate, for samples whose positions go with them."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Sequence[Numbered]) -> Any:
        return self._collate([sample for _, sample in samples])
