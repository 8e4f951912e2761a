"""Feeds whose samples are decoded in stages beside the training (003): the stages of `loaders.pipeline`, sized while they run.

Workers are threads or processes. A process seeds its own generators by the position of each sample. Threads share the global
generators with the training, so nothing that draws from them may run in one: a data set that does is refused, and an augmentation
or a collate that does is done when the batch is wanted. Stages pass on lists of samples, as a way through a queue costs as much as
parsing a line.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from ...engine.errors import UsageError
from ...engine.spec.model import PipelineOptions
from ..loaders.autotuned import autotuned
from ..loaders.pipeline import Pipeline
from ..loaders.stages import Draw, Map, Prefetch, Source, Stage
from ..loaders.workers import ipc
from ..share.shared_input import SharedInput
from ..worker import script
from . import rng
from .awaited import augment_sample, collate_samples, read_sample
from .batch_feeds import Direct, Drawn, OnceFeed, Part, SampleSource
from .batches import Positions

log = logging.getLogger(__name__)

_LOOKS = 16  #: samples that are tested for random draws, spread over the data; a data set of which few samples draw may pass
_LOOKING = 2.0  #: seconds after which the test ends

Place = tuple[int, int]  #: a position and the index of its sample
Numbered = tuple[int, Any]  #: a position and its sample


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """How the loading of a task is divided into stages."""

    source: SampleSource
    options: PipelineOptions
    each_use: bool  #: the task's samples are reused and augmented behind the buffer
    augments: bool  #: augmentation is done in the stages; else, if at all, when the batch is wanted
    collates: bool  #: the same of batches
    shared: SharedInput | None = None  #: whole batches of other jobs

    @property
    def unfinished(self) -> bool:
        """Whether samples leave the stages without their augmentation."""
        return self.source.augment is not None and not self.augments

    @property
    def follows_a_buffer(self) -> bool:
        """Whether anything is left to do in stages behind a buffer of decoded samples."""
        return (self.each_use and self.augments) or (self.collates and not self._collates_apart)

    @property
    def _collates_apart(self) -> bool:
        """A collate of the task's may draw: in processes, which are seeded, it is done together with the stage before."""
        return self.options.processes and self.source.collate is not default_collate

    @classmethod
    def of(
        cls, source: SampleSource, options: PipelineOptions, part: int, *, each_use: bool, shared: SharedInput | None = None
    ) -> LoadingPlan:
        """The plan for a task, by a look at some of its samples.

        Raises UsageError when it cannot be loaded like this.
        """
        if options.processes:
            _check_can_be_sent(source)
        # Nothing is decoded here for processes: a data set may open files at its first sample, and could not be sent to them then.
        seen = Draws() if options.processes else Draws.of(source, part)
        if seen.decoding:
            raise UsageError(
                "pipeline: the task's train[index] draws from the global random generators, which threads would share with the training; "
                "write 'pipeline: {processes: true}', or move what is random to Task.augment"
            )
        why = "the task has no augment" if source.augment is None else ""
        if seen.augmenting:
            why = "it draws from the global random generators, which threads would share with the training"
            log.info("augment is done when a batch is wanted, not in a stage: %s; 'processes: true' allows it", why)
        if why or (options.processes and not each_use):
            _check_no_workers(options, "augment", why or "in processes it is done with the decoding")
        if seen.augmenting:
            _check_no_workers(options, "batch", "augment draws from the global random generators")
        if seen.collating:
            _check_no_workers(options, "batch", "collate draws from the global random generators")
        for stage in ("augment", "batch") if shared is not None else ():
            _check_no_workers(options, stage, "where the input is shared it is done with the decoding")
        augments = not why
        collates = (augments or source.augment is None) and not seen.collating
        if options.processes and source.collate is not default_collate:
            _check_no_workers(options, "batch", "in processes a collate of the task's is done with the decoding")
            collates = collates and _can_be_sent(source.collate)
        return cls(source, options, each_use, augments=augments, collates=collates, shared=shared)

    def samples(self, positions: Positions, chunk: int) -> Running:
        """Lists of ``chunk`` samples with their positions, from where the stream stands: for a buffer."""
        return self._run(self._decoding(PlaceChunks(positions, chunk), augmented=self.augments and not self.each_use, apart=True), chunk)

    def batches(self, positions: Positions) -> Running:
        """The rank's parts of batches: collated, or lists of samples with their positions."""
        part = positions.part
        if self.shared is not None:
            return self._run([self._sharing(self.shared, PlaceChunks(positions, part))], part)
        stages = self._decoding(PlaceChunks(positions, part), augmented=self.augments)
        if self.collates:
            stages.append(Map(Collating(self._collating()), name="batch", workers=self._workers("batch"), along=True))
        return self._run(stages, part)

    def _sharing(self, shared: SharedInput, places: PlaceChunks) -> Stage:
        """All that the stages do with a batch, in one, as it is done once for all jobs."""
        processes = self.options.processes
        decoding = dataclasses.replace(self._sent() if processes else self._still(), data=self.source.data)
        if not self.augments and not processes:
            decoding = dataclasses.replace(decoding, augment=None)
        collating = Collating(self._collating()) if self.collates else None
        work = Sharing(decoding, shared, self.source.order.batch_size, collating)
        return Source(work, sampler=places, name="decode", workers=self._workers("decode"), processes=processes or None)

    def redrawn(self, positions: Positions, chunk: int, draw: Draw, again: Sequence[int]) -> Running:
        """Batches that ``draw`` makes of such lists, as parts or as drawn. ``again``: positions whose samples come first."""
        processes, augments = self.options.processes, self.each_use and self.augments
        stages = self._decoding(PlaceChunks(positions, chunk, again), augmented=self.augments and not self.each_use, apart=True)
        stages.append(draw)
        if augments:
            work = Redrawing(self._sent() if processes else self._still())
            stages.append(Map(work, name="augment", workers=self._workers("augment"), processes=processes or None))
        if self.collates and (augments or not self._collates_apart):
            stages.append(Map(CollatingDrawn(self._collating()), name="batch", workers=self._workers("batch"), along=augments))
        return self._run(stages, positions.part)

    def finished(self, samples: Sequence[Numbered]) -> Any:
        """The batch of samples that left the stages as a list, where they do not collate."""
        if self.unfinished:
            samples = Augmenting(self.source)(samples)
        return Collating(self.source)(samples)

    def _decoding(self, places: PlaceChunks, *, augmented: bool, apart: bool = False) -> list[Stage]:
        """Lists of decoded samples. ``augmented``: for their first use; ``apart``: for a buffer."""
        workers = self._workers("decode")
        if self.options.processes:  # in one stage: each more costs a way between processes
            sent = dataclasses.replace(self._sent(), data=self.source.data)
            if not augmented:
                sent = dataclasses.replace(sent, augment=None)
            return [Source(Decoding(sent), sampler=places, name="decode", workers=workers, processes=True, apart=apart)]
        decoding = dataclasses.replace(self._still(), data=self.source.data, augment=None)
        stages: list[Stage] = [Source(Decoding(decoding), sampler=places, name="decode", workers=workers, apart=apart)]
        if augmented:
            stages.append(Map(Augmenting(self._still()), name="augment", workers=self._workers("augment"), along=True, apart=apart))
        return stages

    def _still(self) -> SampleSource:
        """For threads, which must not seed; without the data, which one stage alone reads."""
        return dataclasses.replace(self.source, data=(), seeds=False)

    def _sent(self) -> SampleSource:
        """For processes; without the data, and without a collate, which may not be fit to be sent."""
        return dataclasses.replace(self.source, data=(), collate=default_collate)

    def _collating(self) -> SampleSource:
        """For stages that make batches: a collate that may draw does not run beside the training."""
        return dataclasses.replace(self._sent(), collate=self.source.collate) if self._collates_apart else self._still()

    def _workers(self, stage: str) -> int:
        return self.options.workers.get(stage, 1)

    def _run(self, stages: Sequence[Stage], samples: int) -> Running:
        return Running(Pipeline([*stages, Prefetch()], name="loading", samples_per_item=samples), self.options)


class Draws(NamedTuple):
    """The parts of a task that draw from the global random generators."""

    decoding: bool = False
    augmenting: bool = False
    collating: bool = False

    @classmethod
    def of(cls, source: SampleSource, part: int) -> Draws:
        """Found on some samples and a batch of them; the generators are left as they were."""
        seen: dict[int, Any] = {}  #: samples, by their index
        augmenting = False
        until, count, augment = time.monotonic() + _LOOKING, len(source.data), source.augment
        for index in random.Random(0).sample(range(count), min(_LOOKS, count)):
            if rng.draws(partial(_look, seen, index, partial(read_sample, source.data, index))):
                return cls(decoding=True)
            if augment is not None:
                augmenting = rng.draws(partial(_look, seen, index, partial(augment_sample, augment, seen[index], index))) or augmenting
            if time.monotonic() > until or script.should_stop():
                break
        if source.collate is default_collate:
            return cls(augmenting=augmenting)
        indices, batch = zip(*itertools.islice(itertools.cycle(seen.items()), part), strict=True)
        return cls(augmenting=augmenting, collating=rng.draws(partial(collate_samples, source.collate, list(batch), indices)))


def _look(seen: dict[int, Any], index: int, make: Callable[[], Any]) -> None:
    seen[index] = make()


def _check_no_workers(options: PipelineOptions, stage: str, why: str) -> None:
    if stage in options.workers:
        raise UsageError(f"pipeline.workers.{stage}: there is no such stage: {why}; leave it out")


def _check_can_be_sent(source: SampleSource) -> None:
    """Checks the objects of all stages that the job may ever have: the switch from reuse brings others."""
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
        ipc.dumps(collate)
    except Exception as error:
        log.info("collate is done when a batch is wanted, not in the processes: it cannot be sent to them (%s)", error)
        return False
    return True


class Piped:
    """Decoded samples of a stream, from the stages; ``augment``: and augmented for their first use."""

    def __init__(self, plan: LoadingPlan, positions: Positions, chunk: int, *, augment: bool) -> None:
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


class PipelineFeed(OnceFeed):
    """Batches from the stages."""

    def __init__(self, plan: LoadingPlan, positions: Positions) -> None:
        super().__init__(positions)
        self._plan = plan
        self._running = plan.batches(positions)

    def close(self) -> None:
        self._running.close()
        super().close()

    def _load(self) -> Part:
        count = self._positions.part
        data = self._running.next()
        if not self._plan.collates:
            with rng.host_preserved():
                data = self._plan.finished(data)
        self._positions.taken += count
        return Part(count, data, count)


class Running:
    """A pipeline that is tuned, and its one pass."""

    def __init__(self, pipeline: Pipeline, options: PipelineOptions) -> None:
        self._tuned = autotuned(pipeline, controller=options.controller, interval=options.interval, memory=options.memory)
        self._items: Iterator[Any] | None = None

    def next(self) -> Any:
        if self._items is None:
            self._items = iter(self._tuned)
        return next(self._items)

    def close(self) -> None:
        self._tuned.close()


class PlaceChunks:
    """The places to decode, lazily and without end: lists of ``chunk``. ``again``: positions that come before the stream's."""

    def __init__(self, positions: Positions, chunk: int, again: Sequence[int] = ()) -> None:
        self._positions, self._chunk, self._again = positions, chunk, again

    def __iter__(self) -> Iterator[list[Place]]:
        order, ahead = self._positions.order, itertools.chain(self._again, self._positions.ahead())
        while True:
            yield [(position, order.index(position)) for position in itertools.islice(ahead, self._chunk)]


# ---- the work of a stage: in threads with a source that does not seed, in processes with one that does ----


class Decoding:
    """The data set, asked for lists of places; with its augmentation for the first use, where the source has one."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source.data)

    def __getitem__(self, places: Sequence[Place]) -> Any:
        return [(position, self._source.augmented(position, 0, self._source.decode(position, index))) for position, index in places]


class Sharing(Decoding):
    """Whole batches: of other jobs, or made here."""

    def __init__(self, source: SampleSource, shared: SharedInput, batch_size: int, collating: Collating | None) -> None:
        super().__init__(source)
        self._shared, self._batch_size, self._collating = shared, batch_size, collating

    def __getitem__(self, places: Sequence[Place]) -> Any:
        return self._shared.batch(places[0][0] // self._batch_size, partial(self._made, places))

    def _made(self, places: Sequence[Place]) -> Any:
        samples = super().__getitem__(places)
        return samples if self._collating is None else self._collating(samples)


class Augmenting:
    """The augmentation of samples for their first use; their positions go with them."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def __call__(self, samples: Sequence[Numbered]) -> list[Numbered]:
        return [(position, self._source.augmented(position, 0, sample)) for position, sample in samples]


class Collating:
    """The collate of such samples."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def __call__(self, samples: Sequence[Numbered]) -> Any:
        return self._source.collated([sample for _, sample in samples], [position for position, _ in samples])


class Redrawing:
    """The augmentation of a batch that was drawn from the buffer."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source

    def __call__(self, drawn: Drawn) -> Drawn | Part:
        return drawn.augmented(self._source)


class CollatingDrawn(Redrawing):
    """Its collate."""

    def __call__(self, drawn: Drawn) -> Part:
        return drawn.collated(self._source)
