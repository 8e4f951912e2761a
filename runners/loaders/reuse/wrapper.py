"""Data reuse for a script with a training loop of its own: `reuse(loader)` gives the loader's samples, each r times a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from ....engine.errors import UsageError
from ...train.rng import host_preserved, seed_host
from ..autotuned import Autotuned
from ..pipeline import Pipeline
from ..staged import InProcess, Read
from ..staged import Samples as FromIterable
from ..stages import Batch, Source
from ..worker_parts import Parts
from .buffer import Decoded, ReuseBuffer, Use
from .sources import Samples, Start, Transform

_DEFAULT_BATCHES = 3  #: of buffer (004 ch. 4.4.2)


class ReusingLoader:
    """An iterable of batches: one pass over the data each time, in stage 1 with every sample ``repeat`` times, from `switch` on once.

    Made by `reuse`. Each rank of a data-parallel training has one, over its part of the data.
    """

    def __init__(
        self,
        plain: DataLoader[Any],
        *,
        batch_size: int,
        repeat: int,
        shuffle_buffer: int,
        memory: int,
        transform: Transform | None,
        augment: Literal["each-use", "once"],
        seed: int | None,
    ) -> None:
        self._samples = Samples(plain, seed=seed, once=transform if augment == "once" else None)
        self._each_use = transform if augment == "each-use" else None
        self._collate: Callable[[list[Any]], Any] = default_collate if plain.collate_fn is None else plain.collate_fn
        self._pin = plain.pin_memory
        self._drop_last = plain.drop_last
        self._seed = seed
        self.batch_size, self.repeat, self.shuffle_buffer, self.memory = batch_size, repeat, shuffle_buffer, memory
        self.stage = 2 if repeat == 1 else 1
        self.steps = 0  #: batches given, in all passes
        self.epochs = 0  #: passes begun
        self.uses: list[int] = []  #: of the samples of the last batch: how often each was used before (0: its first use)
        self._fresh = 0
        self._epoch: int | None = None
        self._start: Start | None = None  #: of the present pass; None between passes
        self._resumed: Mapping[str, Any] | None = None
        self._rehearsed: tuple[int, int, int] | None = None  #: samples, pass, and its batches
        self._buffer = self._make_buffer()  # also checks the settings

    @property
    def fresh(self) -> int:
        """Samples used for the first time in their pass, in all passes: the number decoded."""
        return self._fresh + self._buffer.first_uses

    def __len__(self) -> int:
        """Batches of a pass in the present stage. Raises TypeError if the loader does not know.

        A buffer below three batches, or data below one, may end a pass with several short ones: then it is rehearsed without samples,
        in some microseconds for each use, once a pass. If `memory`, not `shuffle_buffer`, makes the buffer so small, there may be more
        batches.
        """
        samples = len(self._samples)
        if self.stage == 1 and min(samples, self.shuffle_buffer // _DEFAULT_BATCHES) < self.batch_size:
            key = samples, self.epochs + (self._start is None)
            if self._rehearsed is None or self._rehearsed[:2] != key:
                self._rehearsed = *key, sum(1 for _ in self._make_buffer(_Rehearsal(key[0]), key[1]))
            return self._rehearsed[2]
        uses = samples * (self.repeat if self.stage == 1 else 1)
        return uses // self.batch_size if self._drop_last else math.ceil(uses / self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """As for `torch.utils.data.DistributedSampler`: before a pass."""
        self._epoch = epoch
        self._samples.set_epoch(epoch)

    def switch(self) -> None:
        """Begin stage 2: no reuse from the next batch on, for good. A pass under way goes on with its unused samples."""
        if self.stage == 2:
            return
        self.stage = 2
        if self._start is None or self._resumed is not None:
            return
        for position, sample in self._buffer.unused(len(self._buffer)):
            self._samples.keep(position, sample)
        plain = self._make_buffer()
        never_used = self._buffer.leave()
        self._fresh += self._buffer.first_uses
        plain.load_state_dict(
            plain.state_dict() | {"taken": self._buffer.taken, "parked": [(position, 1, 0) for position in never_used]},
        )
        self._buffer = plain

    def __iter__(self) -> Iterator[Any]:
        if self._resumed is not None:
            self._take_up(self._resumed)
        else:
            self._begin()
        return self._batches(self._samples.running)

    def _begin(self) -> None:
        self.epochs += 1
        self._fresh += self._buffer.first_uses
        self._buffer = self._make_buffer()
        self._start = self._samples.begin(self.epochs)

    def _batches(self, running: object) -> Iterator[Any]:
        try:
            while True:
                if self._samples.running is not running:
                    raise RuntimeError("this pass was given up by close(), or when another one began")
                try:
                    batch = self._buffer.next()
                except StopIteration:
                    self._start = None
                    return
                self.steps += 1
                self.uses = [use.use for use in batch]
                yield self._finished(batch)
        finally:
            self._samples.end(running)

    def close(self) -> None:
        """End the current pass and its worker processes; leaving its loop does the same, except for persistent workers.

        `state_dict` still has its place, and another pass may begin.
        """
        self._samples.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _finished(self, batch: list[Use]) -> Any:
        with self._seeded():
            samples = [self._augmented(use) for use in batch]
        try:
            made = self._collate(samples)
        except Exception as error:
            error.add_note(f"collating the samples at positions {', '.join(str(use.position) for use in batch)} of a pass of the data")
            raise
        if self._pin:
            from torch.utils.data._utils.pin_memory import pin_memory

            made = pin_memory(made)  # type: ignore[no-untyped-call]
        return made

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """For the augmentation of a batch: its draws follow from the seed and the batch's number, as in a resumed run.

        Seeding for each use would cost more than many augmentations.
        """
        if self._each_use is None or self._seed is None:
            yield
            return
        with host_preserved():
            seed_host(self._seed, self.steps)
            yield

    def _augmented(self, use: Use) -> Any:
        if self._each_use is None:
            return use.sample
        try:
            return self._each_use(use.sample)
        except Exception as error:
            error.add_note(f"in the transform of the sample at position {use.position} of a pass of the data, its use {use.use + 1}")
            raise

    def _make_buffer(self, decoded: Decoded | None = None, epoch: int | None = None) -> ReuseBuffer:
        return ReuseBuffer(
            self._samples if decoded is None else decoded,
            batch_size=self.batch_size,
            repeat=self.repeat if self.stage == 1 else 1,
            capacity_samples=self.shuffle_buffer,
            capacity_bytes=self.memory,
            seed=(self._seed or 0) * 1_000_003 + (self.epochs if epoch is None else epoch),
            shuffle_first=not self._samples.shuffled,
            drop_last=self._drop_last,
        )

    def state_dict(self) -> dict[str, Any]:
        """Numbers, lists and tensors, as `torch.load(..., weights_only=True)` reads them; at any time, also within a pass."""
        if self._resumed is not None:
            return dict(self._resumed) | {"stage": self.stage}
        return {
            "stage": self.stage,
            "steps": self.steps,
            "epochs": self.epochs,
            "epoch": self._epoch,
            "fresh": self._fresh,
            "start": self._start,
            "buffer": dict(self._buffer.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass is the rest of the state's pass: the same batches as without the stop.

        Samples in the buffer are decoded again. A stream that cannot be indexed is read again from its beginning. Decoding and
        augmentation that draw random numbers repeat them only with a ``seed``.
        """
        if state["stage"] == 1 and self.repeat == 1:
            raise UsageError("reuse.repeat: the state was taken while data was reused; load it with the same repeat")
        self.stage, self.steps, self.epochs, self._fresh = (int(state[key]) for key in ("stage", "steps", "epochs", "fresh"))
        if state["epoch"] is not None:
            self.set_epoch(int(state["epoch"]))
        self._start = state["start"]
        self._buffer = self._make_buffer()
        self._resumed = state if self._start is not None else None
        if self._resumed is None:
            self._fresh += int(state["buffer"]["first_uses"])

    def _take_up(self, state: Mapping[str, Any]) -> None:
        buffer = state["buffer"]
        wanted = {*buffer["positions"], *(position for position, _, _ in buffer["parked"])}
        self._samples.resume(self.epochs, state["start"], buffer["taken"], wanted)
        self._resumed = None
        stage, self.stage = self.stage, 1 if buffer["repeat"] > 1 else 2
        self._buffer = self._make_buffer()
        self._buffer.load_state_dict(buffer)
        if stage == 2:
            self.switch()


class _Rehearsal:
    """A source of so many empty samples."""

    def __init__(self, samples: int) -> None:
        self._positions = iter(range(samples))

    def take(self) -> tuple[int, None]:
        return next(self._positions), None

    def again(self, position: int) -> None:
        return None


class _Plain(IterableDataset[Any]):
    """Any iterable of samples."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = samples
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self._samples)
        if iterator is self._samples and self._begun:
            raise UsageError("reuse: an iterator gives its samples once; for another pass give an iterable, such as a list or a data set")
        self._begun = True
        return iterator

    def __len__(self) -> int:
        return len(self._samples)  # type: ignore[arg-type]


def reuse(
    data: DataLoader[Any] | Dataset[Any] | Iterable[Any],
    repeat: int = 3,
    shuffle_buffer: int | None = None,
    *,
    batch_size: int | None = None,
    transform: Transform | None = None,
    augment: Literal["each-use", "once"] = "each-use",
    memory: int = 1 << 30,
    seed: int | None = None,
) -> ReusingLoader:
    """Batches in which each sample of ``data`` occurs ``repeat`` times a pass, at most once a batch (004 ch. 4).

    ``data``: a DataLoader, whose sampler, workers, collate and batch size stay; or a Dataset or any iterable of samples, such as a
    Pipeline without a Batch, with a ``batch_size``. ``shuffle_buffer``: decoded samples held, 3 batches unless given; ``memory``:
    their bytes at most.
    ``transform(sample)``: the augmentation, at each use, or once when the sample is decoded. ``seed`` makes a resumed run exact: it
    determines the order of a pass, with the pass; the draws of a sample's decoding, with the pass and the position; the draws of a
    batch's transforms, with the batch's number. None: all draw from the global generators, as in the plain loader. ``repeat=1`` gives
    the samples of the plain loader in its order. Raises UsageError for settings that cannot work.
    """
    wholes: dict[str, object] = {"repeat": repeat, "shuffle_buffer": shuffle_buffer, "batch_size": batch_size, "memory": memory}
    for name, value in wholes.items():
        optional = value is None and name in ("shuffle_buffer", "batch_size")
        if not optional and (isinstance(value, bool) or not isinstance(value, SupportsIndex)):
            raise UsageError(f"reuse.{name}: {value!r} is not a whole number{' of bytes' if name == 'memory' else ''}")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"reuse.batch_size: {batch_size} samples make no batch; give at least 1")
    if not isinstance(seed, SupportsIndex | None):
        raise UsageError(f"reuse.seed: {seed!r} is not a whole number; leave it out for the global random generators")
    if transform is not None and not callable(transform):
        raise UsageError(f"reuse.transform: {transform!r} cannot be called; give a function of a sample")
    if isinstance(data, Autotuned | Pipeline):
        _check_gives_samples(data)
    plain = data if isinstance(data, DataLoader) else _loader(data, batch_size)
    size = batch_size or plain.batch_size
    if size is None:
        raise UsageError("batch_size: this loader does not say the size of its batches; give reuse(..., batch_size=)")
    if augment not in ("each-use", "once"):
        raise UsageError(f"reuse.augment: {augment!r} is neither 'each-use' nor 'once'")
    return ReusingLoader(
        plain,
        batch_size=size,
        repeat=repeat,
        shuffle_buffer=_DEFAULT_BATCHES * size if shuffle_buffer is None else shuffle_buffer,
        memory=memory,
        transform=transform,
        augment=augment,
        seed=seed,
    )


def _check_gives_samples(data: Autotuned | Pipeline) -> None:
    pipeline = data.pipeline if isinstance(data, Autotuned) else data
    source = pipeline.stages[0]
    assert isinstance(source, Source)
    if any(isinstance(stage, Batch) for stage in pipeline.stages) or isinstance(source.data, Read | InProcess | FromIterable | Parts):
        raise UsageError(
            f"reuse: the {pipeline.name} gives batches, and reuse needs samples; build a pipeline without Batch, as "
            "Pipeline([Source(dataset), Map(decode), Prefetch()]), tuned or not, and give reuse(..., batch_size=)"
        )


def _loader(data: Dataset[Any] | Iterable[Any], batch_size: int | None) -> DataLoader[Any]:
    if batch_size is None:
        raise UsageError("batch_size: a data set or an iterable of samples needs one; give reuse(..., batch_size=)")
    indexed = isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
    if not indexed and not isinstance(data, Iterable):
        raise UsageError(f"reuse: {type(data).__name__} is neither a DataLoader nor a data set nor anything to iterate; give one of these")
    if isinstance(data, Autotuned | Pipeline) or not indexed:
        return DataLoader(_Plain(data), batch_size=batch_size)  # type: ignore[arg-type]
    return DataLoader(data, batch_size=batch_size)  # type: ignore[arg-type]
