"""The samples of a step: a seeded order that can be resumed at any step, and a loader that can be left."""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from ..worker import script
from . import awaited

log = logging.getLogger(__name__)

_OVERDUE = 2.0  #: seconds of waiting after which a request to stop logs a line about the missing batch
_POLL = 0.1  #: seconds between looks at the request to stop, while a batch is awaited

T = TypeVar("T")


class Dataset(Protocol):
    """A map-style dataset, as torch.utils.data has them."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Interrupted(Exception):
    """Stoker has asked the job to stop, during work that need not be finished."""


#: called between items by a training that shares its GPU, see `runners.share.yielding`
between: Callable[[], None] | None = None


def interruptible(items: Iterable[T]) -> Iterator[T]:
    """The items, until the job is asked to stop: then Interrupted. For loops in the set-up and in `Task.evaluate`."""
    for item in items:
        if script.should_stop():
            raise Interrupted
        if between is not None:
            between()
        yield item


class Order:
    """The global batches of all epochs: one permutation per epoch, from (seed, epoch) alone; an incomplete last batch is left out.

    The order depends on the step alone, so only the step has to be restored; it is the same for any number of ranks. A *position*
    numbers the samples of all batches in this order: step × batch size + place in the batch.
    """

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.steps_per_epoch = samples // batch_size
        self._permutation = functools.lru_cache(maxsize=2)(self._permute)  # of two: a reused sample may be of the epoch before

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> list[int]:
        """Indices of the samples of a rank in step ``step`` (from 0)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = self._permutation(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        return batch[rank::ranks].tolist()

    def part(self, rank: int, ranks: int) -> int:
        """How many samples of each batch belong to a rank."""
        return len(range(rank, self.batch_size, ranks))

    def index(self, position: int) -> int:
        """Index of the sample at a position."""
        epoch, place = divmod(position, self.steps_per_epoch * self.batch_size)
        return int(self._permutation(epoch)[place])

    def __reduce__(self) -> tuple[type[Order], tuple[int, int, int]]:
        return Order, (self.samples, self.batch_size, self.seed)  # worker processes need a permutation for an error only

    def _permute(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.samples, generator=generator)


class Positions:
    """The endless stream of one rank's positions: first those ``owed``, then its part of each batch from ``base`` on.

    ``taken`` of them are done with. Owed positions are those that another number of ranks, or a buffer, has left over.
    """

    def __init__(self, order: Order, rank: int, ranks: int, *, base: int = 0, owed: Sequence[int] = (), taken: int = 0) -> None:
        self.order, self.rank, self.ranks = order, rank, ranks
        self.base, self.owed, self.taken = base, list(owed), taken
        self.part = order.part(rank, ranks)

    def at(self, number: int) -> int:
        """The position that is taken as ``number``-th (from 0)."""
        if number < len(self.owed):
            return self.owed[number]
        step, place = divmod(number - len(self.owed), self.part)
        return (self.base + step) * self.order.batch_size + self.rank + place * self.ranks

    def ahead(self) -> Iterator[int]:
        """All that are not taken yet, without taking them."""
        return map(self.at, itertools.count(self.taken))

    def take(self) -> int:
        self.taken += 1
        return self.at(self.taken - 1)

    def copy(self) -> Positions:
        return Positions(self.order, self.rank, self.ranks, **self.state())

    def state(self) -> dict[str, Any]:
        return {"base": self.base, "owed": list(self.owed), "taken": self.taken}

    def with_first(self, positions: Sequence[int]) -> Positions:
        """The stream from here on, after these positions, which were taken and not used."""
        left = self.owed[self.taken :]
        done = max(0, self.taken - len(self.owed))
        # Begin at the next whole batch, and owe the rest of this one's part.
        base, place = self.base + done // self.part, done % self.part
        if place:
            left += [base * self.order.batch_size + self.rank + later * self.ranks for later in range(place, self.part)]
            base += 1
        return Positions(self.order, self.rank, self.ranks, base=base, owed=[*positions, *left])

    @classmethod
    def deal(cls, order: Order, states: Sequence[dict[str, Any]], ranks: int) -> list[Positions]:
        """The streams of another number of ranks. Owed, and dealt in turn: positions below the farthest old rank that were not taken."""
        old = [cls(order, rank, len(states), **state).with_first(()) for rank, state in enumerate(states)]
        base = max(stream.base for stream in old)
        owed: set[int] = set()
        for stream in old:
            whole = (base - stream.base) * stream.part
            owed.update(map(stream.at, range(len(stream.owed) + whole)))
        ordered = sorted(owed)
        return [cls(order, rank, ranks, base=base, owed=ordered[rank::ranks]) for rank in range(ranks)]


class Loader:
    """Loads in a thread, strictly one batch at a time, while the main thread waits and watches for the request to stop.

    Nothing is loaded ahead: a dataset may draw from the global random generators, and then the order of all draws, and
    so the training, is the same in every run.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._loaded: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._busy = False
        # A daemon: a load that never returns must not keep the process from leaving.
        self._thread = threading.Thread(target=self._serve, name="loader", daemon=True)
        self._thread.start()

    def fetch(self) -> Any:
        """The next return of ``load``. Raises Interrupted if the job is asked to stop meanwhile; the loader must not be used after that."""
        self._wanted.put(True)
        self._busy = True
        asked = time.monotonic()
        while True:
            try:
                batch = self._loaded.get(timeout=_POLL)
            except queue.Empty:
                if script.should_stop():
                    if (waited := time.monotonic() - asked) >= _OVERDUE:  # perhaps it hangs, and that is why
                        log.info("%s", awaited.told(waited))
                    raise Interrupted from None
                continue
            self._busy = False
            if isinstance(batch, BaseException):
                raise batch
            return batch

    def close(self) -> None:
        """End the thread; if it is loading, which may take for ever, it ends after that."""
        self._wanted.put(False)
        if not self._busy:
            self._thread.join()

    def _serve(self) -> None:
        while self._wanted.get():
            try:
                self._loaded.put(self._load())
            except BaseException as error:
                self._loaded.put(error)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all tensors in it on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
