"""The stages of a pipeline's description. They hold no state of a pass; `feeds.py` and `threads.py` run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

from ...engine.errors import UsageError
from .collate import default_collate

MIB = 1 << 20
MOST_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str

    @property
    def workers_to_begin_with(self) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class Working(Stage):
    """A stage that may have many workers.

    Attributes:
        workers: to begin with.
        processes: workers are processes, for functions that hold the interpreter's lock; the function is pickled. None: threads at
            first, and processes if a tuner finds these faster and the function can be sent to them. It is then called here and there,
            so state that it keeps in itself or in this process is lost. False keeps it in threads.
        limit: seconds for one item; longer is an error that names the stage. None: no limit.
        along: if the workers of the stage before are processes, they do this stage's work too, right after their own, so that an item
            is sent once; its own workers then only pass it on. None: true for a Batch whose ``processes`` is None, false for a Map, as
            one that waits may need more workers than the stage before. A function that cannot be sent runs here, with a warning.
        apart: parts of an item may outlive it, such as samples of a list in a buffer: each part that comes from a process is copied
            into memory of its own. False: an item is one mapping, kept until its last part is dropped.
    """

    workers: int = 1
    processes: bool | None = None
    limit: float | None = None
    along: bool | None = None
    apart: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"stage {self.name!r}: workers={self.workers}: give 1 to {MOST_WORKERS}")
        if self.limit is not None and self.limit <= 0:
            raise UsageError(f"stage {self.name!r}: limit={self.limit}: give seconds above 0, or None for no limit")

    @property
    def workers_to_begin_with(self) -> int:
        return self.workers


@dataclass(frozen=True)
class Source(Working):
    """The source of the samples.

    Args:
        data: a data set with ``__getitem__`` and ``__len__``, read by any number of workers; any other iterable, or a function
            that returns one for each pass, read by one worker.
        sampler: indices of the data set in the order to read, iterated anew in each pass; None: 0, 1, 2 ….
        in_processes: the data for workers that are processes, in place of ``data``, for example one that also collates.
        along: True: the processes of the next Map (shuffles may stand between) get indices, some dozens at once, and read the samples.
            Each then has a copy of the data set, with its own generators, counters, caches and globals. None, False: this stage reads.
    """

    data: Any
    name: str = field(default="read", kw_only=True)
    sampler: Iterable[Any] | None = field(default=None, kw_only=True)
    in_processes: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.indexed:
            if not callable(self.data) and not isinstance(self.data, Iterable):
                raise UsageError(f"stage {self.name!r}: {type(self.data).__name__} can be neither indexed, nor iterated, nor called")
            for option, given in (
                ("sampler", self.sampler is not None),
                ("workers", self.workers > 1),
                ("processes", bool(self.processes)),
                ("along", bool(self.along)),
            ):
                if given:
                    raise UsageError(
                        f"stage {self.name!r}: {option} needs a data set with __getitem__ and __len__; this one is only iterated"
                    )

    @property
    def indexed(self) -> bool:
        """Whether samples can be read by index, and so in parallel."""
        kind = type(self.data)
        return hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not isinstance(self.data, Mapping)

    def indices(self) -> Iterable[Any]:
        return range(len(self.data)) if self.sampler is None else self.sampler

    def begin(self) -> Iterator[Any]:
        """Indices or items of a pass. Called by the consumer's thread, as a sampler may draw from global generators."""
        if self.indexed:
            return iter(self.indices())
        return iter(self.data() if callable(self.data) else self.data)

    def length(self) -> int | None:
        """Samples of a pass; None: the source does not know."""
        counted = self.indices() if self.indexed else self.data
        return len(counted) if isinstance(counted, Sized) else None


@dataclass(frozen=True)
class Map(Working):
    """A function of one item: the paper's UDF. It runs in several workers at once: keep no state in it."""

    function: Callable[[Any], Any]
    name: str = field(default="map", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise UsageError(f"stage {self.name!r}: {self.function!r} cannot be called")


@dataclass(frozen=True)
class Shuffle(Stage):
    """Each item leaves from a random place of a buffer. The order follows from ``seed``, the pass and the order that comes in."""

    buffer: int
    name: str = field(default="shuffle", kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise UsageError(f"stage {self.name!r}: buffer={self.buffer}: give 1 or more items")


@dataclass(frozen=True)
class Draw(Stage):
    """Each item is made by ``draw(take)`` of as many as it takes: ``take()`` gives the next, and raises StopIteration at the end.

    One worker calls it, in order; it raises StopIteration after its last item. It may keep state for one pass; ``held`` gives the
    bytes of that, with those that its items share, which do not count again in the queue behind it.
    """

    draw: Callable[[Callable[[], Any]], Any]
    held: Callable[[], int]
    name: str = field(default="draw", kw_only=True)


@dataclass(frozen=True)
class Batch(Working):
    """``size`` successive items become one, by ``collate`` of their list."""

    size: int
    name: str = field(default="batch", kw_only=True)
    collate: Callable[[list[Any]], Any] = field(default=default_collate, kw_only=True)
    drop_last: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise UsageError(f"stage {self.name!r}: size={self.size}: give 1 or more items")


@dataclass(frozen=True)
class Prefetch(Stage):
    """Room for finished items. It has no workers: its MiB bound the queue behind the stage before it."""

    mib: int = 64
    name: str = field(default="prefetch", kw_only=True)
    most: int = field(default=1 << 20, kw_only=True)  #: MiB that a tuner may set

    def __post_init__(self) -> None:
        if not 1 <= self.mib <= self.most:
            raise UsageError(f"stage {self.name!r}: mib={self.mib}: give 1 to {self.most}")
