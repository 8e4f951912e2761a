"""The sources of one rank's batches: loaded on demand, from a resumed stream, or from a buffer that uses samples again.

The plain feed draws from the global random generators, as a data set may. The others seed the generators by a sample's position
before they decode it: it is the same whenever and wherever it is decoded, also after a resume. They seed by a batch's first sample
before they collate it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..loaders.reuse.buffer import ReuseBuffer, Use
from ..share.shared_input import SharedInput
from . import rng
from .awaited import augment_sample, collate_samples, read_sample
from .batches import Dataset, Loader, Order, Positions

State = dict[str, Any]  #: numbers, texts, and lists and dicts of these, as a checkpoint may hold


class Part(NamedTuple):
    """This rank's part of a batch."""

    samples: int
    data: Any  #: collated
    fresh: int  #: how many of its samples are used for the first time
    first: Any = None  #: those alone, collated, if they are to be judged and there are any


class Feed(Protocol):
    """Batches of one rank, one after the other."""

    def fetch(self) -> Part:
        """The next. Raises Interrupted when the job is asked to stop: then only close it."""

    def used(self) -> None:
        """The batch that was fetched has been trained on."""

    def state(self) -> State:
        """Its place in the data; a batch that was fetched and not used is still to come."""

    def close(self) -> None:
        """End its threads and processes."""


class Decoded(Protocol):
    """Decoded samples of a stream of positions, in its order."""

    def take(self) -> tuple[int, Any]: ...
    def again(self, position: int) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The data set of a task, and the functions that make batches of it.

    Their draws are a function of the seed, the position of the sample (the first one of a batch) and the number of its use, from 0.
    """

    data: Dataset
    augment: Callable[[Any], Any] | None
    collate: Callable[[list[Any]], Any]
    seed: int
    order: Order
    seeds: bool = True  #: False: no part of it draws, so threads that share the generators with the training may do it

    def decode(self, position: int, index: int) -> Any:
        """The sample, the same bits each time; the caller restores the generators for the training."""
        if self.seeds:
            rng.seed_host(self.seed, position, 0)
        return read_sample(self.data, index)

    def augmented(self, position: int, use: int, sample: Any) -> Any:
        """The sample as it is used for the ``use``-th time (from 0), in the same way."""
        if self.augment is None:
            return sample
        if self.seeds:
            rng.seed_host(self.seed, position, use + 1)
        return augment_sample(self.augment, sample, self.order.index(position))

    def collated(self, samples: list[Any], positions: Sequence[int], use: int = 0) -> Any:
        """The batch of the samples at these positions, in the same way; ``use``: the number of its first sample's use."""
        if self.seeds:
            rng.seed_host(self.seed, positions[0], use, -1)
        return collate_samples(self.collate, samples, map(self.order.index, positions))


class Drawn(NamedTuple):
    """A batch as it was drawn from the buffer."""

    uses: Sequence[Use]
    judged: bool  #: its first uses are wanted apart

    def augmented(self, source: SampleSource) -> Drawn:
        """With each sample as it is used."""
        return self._replace(uses=[use._replace(sample=source.augmented(use.position, use.use, use.sample)) for use in self.uses])

    def collated(self, source: SampleSource) -> Part:
        fresh = [use for use in self.uses if use.use == 0]
        first = _collated(source, fresh) if self.judged and fresh else None
        return Part(len(self.uses), _collated(source, self.uses), len(fresh), first)


def _collated(source: SampleSource, uses: Sequence[Use]) -> Any:
    return source.collated([use.sample for use in uses], [use.position for use in uses], uses[0].use)


class LoadedFeed(ABC):
    """Batches made in a thread of their own, so that a wait for one can be interrupted."""

    def __init__(self) -> None:
        self._loader = Loader(self._load)

    def fetch(self) -> Part:
        part: Part = self._loader.fetch()
        return part

    def close(self) -> None:
        self._loader.close()

    @abstractmethod
    def _load(self) -> Part:
        """The next batch, in that thread."""


class PlainFeed(LoadedFeed):
    """Each batch is decoded when it is wanted, with the global generators as they are: a function of the step and of these."""

    def __init__(self, source: SampleSource, order: Order, rank: int, ranks: int, step: int) -> None:
        super().__init__()
        self._source, self._order, self._rank, self._ranks = source, order, rank, ranks
        self._step = step

    def fetch(self) -> Part:
        part = super().fetch()
        self._step += 1
        return part

    def used(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def _load(self) -> Part:
        indices = self._order.batch(self._step, self._rank, self._ranks)
        samples = [read_sample(self._source.data, index) for index in indices]
        if self._source.augment is not None:
            samples = [augment_sample(self._source.augment, sample, index) for sample, index in zip(samples, indices, strict=True)]
        return Part(len(indices), collate_samples(self._source.collate, samples, indices), len(indices))


class Direct:
    """Samples that are decoded when they are taken; ``augment``: and augmented for their first use."""

    def __init__(self, source: SampleSource, positions: Positions, *, augment: bool) -> None:
        self._source, self._positions, self._augment = source, positions, augment

    def take(self) -> tuple[int, Any]:
        # Taken only when it is there: a sample that fails is still owed.
        position = self._positions.at(self._positions.taken)
        sample = self.again(position)
        self._positions.take()
        return position, sample

    def again(self, position: int) -> Any:
        sample = self._source.decode(position, self._positions.order.index(position))
        return self._source.augmented(position, 0, sample) if self._augment else sample

    def close(self) -> None:
        pass


class OnceFeed(LoadedFeed):
    """Batches of a stream of positions, each sample used once. `_load` takes the positions of its batch."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self._positions = positions
        self._taken = positions.taken  #: with the batches that were used

    def used(self) -> None:
        self._taken = self._positions.taken

    def state(self) -> State:
        return {"positions": self._positions.state() | {"taken": self._taken}}


class StreamFeed(OnceFeed):
    """Each sample is decoded when it is wanted: the stage without reuse."""

    def __init__(self, source: SampleSource, positions: Positions) -> None:
        super().__init__(positions)
        self._source = source
        self._decoded = Direct(source, positions, augment=True)

    def _load(self) -> Part:
        count = self._positions.part
        with rng.host_preserved():
            taken = [self._decoded.take() for _ in range(count)]
            positions, samples = zip(*taken, strict=True)
            return Part(count, self._source.collated(list(samples), positions), count)


class SharedFeed(StreamFeed):
    """The same batches, of which other jobs make some."""

    def __init__(self, source: SampleSource, positions: Positions, shared: SharedInput) -> None:
        super().__init__(source, positions)
        self._shared = shared

    def _load(self) -> Part:
        count, taken = self._positions.part, self._positions.taken
        places = [self._positions.at(taken + place) for place in range(count)]
        data = self._shared.batch(places[0] // self._source.order.batch_size, lambda: self._made(places))
        self._positions.taken += count
        return Part(count, data, count)

    def _made(self, places: Sequence[int]) -> Any:
        with rng.host_preserved():
            return self._source.collated([self._decoded.again(place) for place in places], places)


Judged = Callable[[int], bool]  #: whether the first uses of a batch are wanted apart; batches are counted from a feed's first


class ReuseFeed(LoadedFeed):
    """Batches from a buffer of decoded samples, each of which is used several times (004 ch. 4.4.2).

    ``state``: of the buffer to continue; its samples are decoded again with the first batch.
    """

    def __init__(self, positions: Positions, buffer: ReuseBuffer, judged: Judged, state: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._positions, self._buffer, self._judged = positions, buffer, judged
        self._begun: State = {"positions": positions.state(), "buffer": buffer.state_dict() if state is None else state}
        self._used = 0  #: batches

    def used(self) -> None:
        self._used += 1

    def state(self) -> State:
        if not self._used:
            return self._begun
        positions, buffer = self._begun["positions"], self._buffer.state_before(self._used)
        taken = positions["taken"] + buffer["taken"] - self._begun["buffer"]["taken"]
        return {"positions": positions | {"taken": taken}, "buffer": buffer}

    def rest(self) -> Positions:
        """The stream of the stage without reuse: first the samples that were taken and never used. Nothing changes here."""
        now = self.state()
        buffer, order = now["buffer"], self._positions
        held = [*zip(buffer["positions"], buffer["left"], strict=True), *((position, left) for position, left, _ in buffer["parked"])]
        stream = Positions(order.order, order.rank, order.ranks, **now["positions"])
        return stream.with_first(sorted(position for position, left in held if left == self._buffer.repeat))


class DirectReuse(ReuseFeed):
    """Samples are augmented and collated when a batch is wanted. ``augment``: anew at each use."""

    def __init__(
        self,
        source: SampleSource,
        positions: Positions,
        decoded: Decoded,
        buffer: ReuseBuffer,
        judged: Judged,
        *,
        augment: bool,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(positions, buffer, judged, state)
        self._source, self._decoded, self._augment = source, decoded, augment
        self._resumed = state
        self._fetched = 0  #: batches

    def close(self) -> None:
        self._decoded.close()
        super().close()

    def _load(self) -> Part:
        with rng.host_preserved():
            if self._resumed is not None:
                self._buffer.load_state_dict(self._resumed)
                self._resumed = None
            drawn = Drawn(self._buffer.next(self._used), self._judged(self._fetched))
            part = (drawn.augmented(self._source) if self._augment else drawn).collated(self._source)
        self._fetched += 1
        return part
