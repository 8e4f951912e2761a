"""How the batches of one rank come: each as it is wanted, from a stream where it was left, or from a buffer that uses samples again.

The plain feed draws from the global random generators, as a data set is free to. The others decode each sample under generators
seeded by its position, so that it is the same whenever and wherever it is decoded, and once more after a resume; and they collate
each batch under generators seeded by its first sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from . import rng
from .awaited import read_sample
from .batches import Dataset, Loader, Order, Positions
from .loaders.reuse.buffer import ReuseBuffer

State = dict[str, Any]  #: numbers, texts, and lists and dicts of these: what a checkpoint may hold


class Part(NamedTuple):
    """This rank's part of a batch."""

    samples: int
    data: Any  #: collated
    fresh: int  #: samples of it that are used for the first time
    first: Any = None  #: those alone, collated, if they were asked for and there are any


class Feed(Protocol):
    """Batches of one rank, one after the other."""

    def fetch(self, *, first: bool = False) -> Part:
        """The next, with its first uses apart if asked for. Raises Interrupted when the job is asked to stop: then only close it."""
        ...

    def used(self) -> None:
        """The batch that was fetched has been trained on."""
        ...

    def state(self) -> State:
        """Where it stands, before a batch that was fetched and not used."""
        ...

    def close(self) -> None:
        """End its threads and processes."""
        ...


class Decoded(Protocol):
    """Decoded samples of a stream of positions, in its order."""

    def take(self) -> tuple[int, Any]: ...
    def again(self, position: int) -> Any: ...
    def close(self) -> None: ...


def seed_decoding(seed: int, position: int) -> None:
    """Make what is drawn while the sample at a position is decoded a function of both."""
    rng.seed_host(seed, position, 0)


def seed_augmenting(seed: int, position: int, use: int) -> None:
    """The same for its augmentation before its ``use``-th use (from 0)."""
    rng.seed_host(seed, position, use + 1)


def seed_collating(seed: int, position: int, use: int) -> None:
    """The same for the batch that begins with the ``use``-th use (from 0) of the sample at a position: no other does."""
    rng.seed_host(seed, position, use, -1)


@dataclass(frozen=True, slots=True)
class Source:
    """What is loaded: the data set of a task and the functions that make batches of it."""

    data: Dataset
    augment: Callable[[Any], Any] | None
    collate: Callable[[list[Any]], Any]
    seed: int

    def decode(self, position: int, index: int) -> Any:
        """The sample, the same bits each time: the caller keeps the training's draws apart."""
        seed_decoding(self.seed, position)
        return read_sample(self.data, index)

    def augmented(self, position: int, use: int, sample: Any) -> Any:
        """The sample as it is used for the ``use``-th time (from 0), in the same way."""
        if self.augment is None:
            return sample
        seed_augmenting(self.seed, position, use)
        return self.augment(sample)

    def collated(self, samples: list[Any], position: int, use: int = 0) -> Any:
        """The batch that begins with this use of the sample at a position, in the same way."""
        seed_collating(self.seed, position, use)
        return self.collate(samples)


class PlainFeed:
    """Each batch is decoded when it is wanted, with the global generators as they are: a function of the step and of these."""

    def __init__(self, source: Source, order: Order, rank: int, ranks: int, step: int) -> None:
        self._source, self._order, self._rank, self._ranks = source, order, rank, ranks
        self._step = step
        self._loader = Loader(self._load)

    def fetch(self, *, first: bool = False) -> Part:
        part: Part = self._loader.fetch()
        self._step += 1
        return part

    def used(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def close(self) -> None:
        self._loader.close()

    def _load(self) -> Part:
        indices = self._order.batch(self._step, self._rank, self._ranks)
        samples = [read_sample(self._source.data, index) for index in indices]
        if self._source.augment is not None:
            samples = [self._source.augment(sample) for sample in samples]
        return Part(len(indices), self._source.collate(samples), len(indices))


class Direct:
    """Samples that are decoded when they are taken; ``augment``: and augmented for their first use."""

    def __init__(self, source: Source, positions: Positions, *, augment: bool) -> None:
        self._source, self._positions, self._augment = source, positions, augment

    def take(self) -> tuple[int, Any]:
        # Taken only when it is there: what fails is owed still.
        position = self._positions.at(self._positions.taken)
        sample = self.again(position)
        self._positions.take()
        return position, sample

    def again(self, position: int) -> Any:
        sample = self._source.decode(position, self._positions.order.index(position))
        return self._source.augmented(position, 0, sample) if self._augment else sample

    def close(self) -> None:
        pass


class StreamFeed:
    """Batches of a stream of positions, each sample decoded when it is wanted and used once: the stage without reuse."""

    def __init__(self, source: Source, positions: Positions) -> None:
        self._source, self._positions = source, positions
        self._decoded = Direct(source, positions, augment=True)
        self._before = positions.state()
        self._loader = Loader(self._load)

    def fetch(self, *, first: bool = False) -> Part:
        self._before = self._positions.state()
        part: Part = self._loader.fetch()
        return part

    def used(self) -> None:
        self._before = self._positions.state()

    def state(self) -> State:
        return {"positions": self._before}

    def close(self) -> None:
        self._loader.close()

    def _load(self) -> Part:
        count = self._positions.share
        with rng.host_preserved():
            taken = [self._decoded.take() for _ in range(count)]
            return Part(count, self._source.collated([sample for _, sample in taken], taken[0][0]), count)


class _Mark(NamedTuple):
    """Where a `ReuseFeed` stood before a batch."""

    taken: int  #: positions
    calls: int  #: of the buffer
    resumed: Mapping[str, Any] | None  #: the state that the buffer was still to go on from


class ReuseFeed:
    """Batches from a buffer of decoded samples, each of which is used several times (004 ch. 4.4.2).

    ``augment``: anew at each use. ``state``: of the buffer that it goes on from; its samples are decoded again with the first batch.
    """

    def __init__(
        self,
        source: Source,
        positions: Positions,
        decoded: Decoded,
        buffer: ReuseBuffer,
        *,
        augment: bool,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._source, self._positions, self._decoded, self._buffer = source, positions, decoded, buffer
        self._augment = augment
        self._resumed = state
        self._before: _Mark | None = None  #: of a batch that was fetched and not used
        self._first = False
        self._loader = Loader(self._load)

    def fetch(self, *, first: bool = False) -> Part:
        # What is needed to tell the state, not the state: that takes as long as the buffer is large.
        self._before, self._first = _Mark(self._positions.taken, self._buffer.calls, self._resumed), first
        part: Part = self._loader.fetch()
        return part

    def used(self) -> None:
        self._before = None

    def state(self) -> State:
        if (before := self._before) is None:
            return self._now()
        buffer = before.resumed if before.resumed is not None else self._buffer.state_before(before.calls)
        return {"positions": self._positions.state() | {"taken": before.taken}, "buffer": buffer}

    def close(self) -> None:
        self._decoded.close()
        self._loader.close()

    def rest(self) -> Positions:
        """The stream of the stage without reuse: first what was taken and never used. Nothing changes here."""
        now = self._now()["buffer"]
        held = [*zip(now["positions"], now["left"], strict=True), *((position, left) for position, left, _ in now["parked"])]
        return self._positions.with_first(sorted(position for position, left in held if left == self._buffer.repeat))

    def _load(self) -> Part:
        with rng.host_preserved():
            if self._resumed is not None:
                self._buffer.load_state_dict(self._resumed)
                self._resumed = None
            drawn = self._buffer.next()
            used = [self._as_used(position, sample, use) for position, sample, use in drawn]
            fresh = [(position, sample) for sample, (position, _, use) in zip(used, drawn, strict=True) if use == 0]
            first = self._source.collated([sample for _, sample in fresh], fresh[0][0]) if self._first and fresh else None
            return Part(len(drawn), self._source.collated(used, drawn[0].position, drawn[0].use), len(fresh), first)

    def _as_used(self, position: int, sample: Any, use: int) -> Any:
        return self._source.augmented(position, use, sample) if self._augment else sample

    def _now(self) -> State:
        buffer = self._resumed if self._resumed is not None else self._buffer.state_dict()
        return {"positions": self._positions.state(), "buffer": buffer}
