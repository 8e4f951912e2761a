"""Feeds whose samples are decoded in stages beside the training (003): the stages of `loaders.pipeline`, sized while they run.

Workers are threads or processes. A process seeds its own generators by the position of each sample. Threads share the global
generators with the training, so nothing that draws from them may run in one: a data set that does is refused, and an augmentation
or a collate that does is done when the batch is wanted. What goes from stage to stage are lists of samples: a way through a queue
costs as much as parsing a line does.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from ..engine.errors import UsageError
from ..engine.spec.model import PipelineOptions
from . import rng, script
from .awaited import read_sample
from .batches import Dataset, Loader, Positions
from .feeds import Direct, Part, Source, State, seed_augmenting, seed_collating, seed_decoding
from .loaders import ipc
from .loaders.autotuned import autotuned
from .loaders.pipeline import Pipeline
from .loaders.stages import Map, Prefetch, Stage
from .loaders.stages import Source as Read

log = logging.getLogger(__name__)

_LOOKS = 16  #: samples that are looked at for random draws, spread over the data: where few of them draw, it is not seen
_LOOKING = 2.0  #: seconds after which it is enough

Place = tuple[int, int]  #: a position and the index of its sample
Numbered = tuple[int, Any]  #: a position and its sample


@dataclass(frozen=True, slots=True)
class Plan:
    """How the loading of a task is divided into stages."""

    source: Source
    options: PipelineOptions
    augments: bool  #: it is done in the stages; else, if at all, when the batch is wanted
    collates: bool  #: the same of batches

    @property
    def unfinished(self) -> bool:
        """Whether samples leave the stages that are still to be augmented."""
        return self.source.augment is not None and not self.augments

    @classmethod
    def of(cls, source: Source, options: PipelineOptions, share: int, *, each_use: bool) -> Plan:
        """The plan for a task, by a look at some of its samples. ``each_use``: samples are augmented behind the stages.

        Raises UsageError when it cannot be loaded like this.
        """
        why = "the task has no augment" if source.augment is None else "with reuse it is done at each use" if each_use else ""
        if options.processes:
            _check_can_be_sent(source)
        # Nothing is decoded here for processes: a data set may open files at its first sample, which cannot be sent to them then.
        seen = Draws() if options.processes else Draws.of(source, share)
        if seen.decoding:
            raise UsageError(
                "pipeline: the task's train[index] draws from the global random generators, which threads would share with the training; "
                "write 'pipeline: {processes: true}', or move what is random to Task.augment"
            )
        draws = seen.augmenting
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
        if "batch" in options.workers and seen.collating:
            raise UsageError(
                "pipeline.workers.batch: there is no such stage: collate draws from the global random generators; leave it out"
            )
        augments = not why
        collates = (augments or source.augment is None) and not seen.collating
        if options.processes and source.collate is not default_collate:
            if "batch" in options.workers:
                raise UsageError(
                    "pipeline.workers.batch: there is no such stage: in processes a collate of the task's is done with the decoding; "
                    "leave it out"
                )
            collates = collates and _can_be_sent(source.collate)
        return cls(source, options, augments=augments, collates=collates)

    def samples(self, positions: Positions, chunk: int) -> Running:
        """Lists of ``chunk`` samples with their positions, from where the stream stands."""
        return self._run(self._stages(positions, chunk), chunk)

    def batches(self, positions: Positions) -> Running:
        """The rank's parts of batches: collated, or lists of samples with their positions."""
        apart = self.options.processes and self.source.collate is not default_collate  # it may draw: in processes that are seeded
        stages = self._stages(positions, positions.share, self.source.collate if self.collates and apart else None)
        if self.collates and not apart:
            stages.append(Map(Collating(self.source.collate), name="batch", workers=self.options.workers.get("batch", 1)))
        return self._run(stages, positions.share)

    def finished(self, samples: Sequence[Numbered]) -> Any:
        """The batch of what has left the stages as a list, where they do not collate."""
        if self.unfinished:
            samples = [(position, self.source.augmented(position, 0, sample)) for position, sample in samples]
        return self.source.collated([sample for _, sample in samples], samples[0][0])

    def _stages(self, positions: Positions, chunk: int, collate: Callable[[list[Any]], Any] | None = None) -> list[Stage]:
        source, workers, augment = self.source, self.options.workers, self.source.augment if self.augments else None
        places, decoders = Places(positions, chunk), workers.get("decode", 1)
        if self.options.processes:  # in one stage: each more costs a way between processes
            decode = Seeded(source.data, augment, source.seed)
            if collate is not None:
                decode = SeededBatches(source.data, augment, source.seed, collate)
            return [Read(decode, sampler=places, name="decode", workers=decoders, processes=True)]
        stages: list[Stage] = [Read(Decoding(source.data), sampler=places, name="decode", workers=decoders)]
        if augment is not None:
            stages.append(Map(Augmenting(augment), name="augment", workers=workers.get("augment", 1)))
        return stages

    def _run(self, stages: Sequence[Stage], samples: int) -> Running:
        return Running(Pipeline([*stages, Prefetch()], name="loading", samples_per_item=samples), self.options)


class Draws(NamedTuple):
    """What of a task draws from the global random generators."""

    decoding: bool = False
    augmenting: bool = False
    collating: bool = False

    @classmethod
    def of(cls, source: Source, share: int) -> Draws:
        """By a look at some samples and at a batch of them; the generators are left as they were."""
        samples: list[Any] = []
        augmenting = False
        until, count, augment = time.monotonic() + _LOOKING, len(source.data), source.augment
        for index in random.Random(0).sample(range(count), min(_LOOKS, count)):
            if rng.draws(lambda index=index: samples.append(read_sample(source.data, index))):  # type: ignore[misc]
                return cls(decoding=True)
            if augment is not None:
                decoded = samples.pop()
                augmenting = rng.draws(lambda decoded=decoded: samples.append(augment(decoded))) or augmenting  # type: ignore[misc]
            if time.monotonic() > until or script.should_stop():
                break
        if source.collate is default_collate:
            return cls(augmenting=augmenting)
        batch = list(itertools.islice(itertools.cycle(samples), share))
        return cls(augmenting=augmenting, collating=rng.draws(lambda: source.collate(batch)))


def _check_can_be_sent(source: Source) -> None:
    """All that any stage of the job sends, whatever this one does: with reuse the augmentation is sent at the switch, hours later."""
    for name, part in (("train", source.data), ("augment", source.augment)):
        try:
            ipc.dumps(part)
        except Exception as error:
            what = "is, with all that it holds," if name == "train" else "is"
            raise UsageError(
                f"pipeline.processes: the task's {name} cannot be sent to worker processes ({' '.join(str(error).split())}); "
                f"see that it {what} of the top level of a module, or leave 'processes' out"
            ) from None


def _can_be_sent(collate: Callable[[list[Any]], Any]) -> bool:
    try:
        pickle.dumps(collate)
    except Exception as error:
        log.info("collate is done when a batch is wanted, not in the processes: it cannot be sent to them (%s)", error)
        return False
    return True


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
        if not self._plan.collates:
            with rng.host_preserved():
                data = self._plan.finished(data)
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
        return [(position, read_sample(self._data, index)) for position, index in places]


class Seeded(Decoding):
    """The same in a process of its own, whose generators are seeded for each sample; with its augmentation for the first use."""

    def __init__(self, data: Dataset, augment: Callable[[Any], Any] | None, seed: int) -> None:
        super().__init__(data)
        self._augment, self._seed = augment, seed

    def __getitem__(self, places: Sequence[Place]) -> list[Numbered]:
        return [(position, self._sample(position, index)) for position, index in places]

    def _sample(self, position: int, index: int) -> Any:
        seed_decoding(self._seed, position)
        sample = read_sample(self._data, index)
        if self._augment is None:
            return sample
        seed_augmenting(self._seed, position, 0)
        return self._augment(sample)


class SeededBatches(Seeded):
    """The same, collated as well: what draws there is seeded too."""

    def __init__(self, data: Dataset, augment: Callable[[Any], Any] | None, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        super().__init__(data, augment, seed)
        self._collate = collate

    def __getitem__(self, places: Sequence[Place]) -> Any:
        samples = [self._sample(position, index) for position, index in places]
        seed_collating(self._seed, places[0][0], 0)
        return self._collate(samples)


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
