"""Functions that only one thread may call, for many callers: one thread reads a data set with an open file, for all workers.

It is the same thread in every pass, and for every pipeline that reads through the same owner of the file, such as the halves of a split,
as an opened file may belong to its thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ....engine.errors import UsageError
from ..handles import Handle, handle, may_change

log = logging.getLogger("stoker.loaders")

_Call = tuple["Future[Any]", Callable[[Any], Any], Any]

_known: dict[int, Alone] = {}  #: by the id of the owner, which they keep alive
_knowing = threading.RLock()  #: garbage collection of a pipeline may release one at any moment


class Alone:
    """A thread that makes calls, one after another, until it is no longer needed."""

    def __init__(self, name: str) -> None:
        self._users = 0
        self._owners: list[Any] = []
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    def call(self, function: Callable[[Any], Any], item: Any) -> Any:
        answer: Future[Any] = Future()
        self._calls.put((answer, function, item))
        return answer.result()

    def let_go(self) -> None:
        """One less needs it."""
        with _knowing:
            self._users -= 1
            if self._users <= 0:
                for owner in self._owners:
                    del _known[id(owner)]
                self._owners.clear()
                self._calls.put(None)

    @classmethod
    def using(cls, owner: Any, opened: Alone | None, name: str) -> Alone:
        """The thread for all parts of this object; ``opened``: this one, unless another was first."""
        with _knowing:
            if (alone := _known.get(id(owner))) is None:
                alone = _known[id(owner)] = opened or cls(name)
                alone._owners.append(owner)
            alone._users += 1
            return alone


def known(owner: Any) -> bool:
    """Whether there is a thread for the parts of this object."""
    with _knowing:
        return id(owner) in _known


def _serve(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        answer, function, item = call
        try:
            answer.set_result(function(item))
        except BaseException as error:  # raised in the caller
            answer.set_exception(error)
        del call, answer, function, item  # not held while it waits


class Guarded:
    """A stage's function for its worker threads; one thread makes all calls as soon as it holds a handle that threads cannot share.

    It is inspected now, and again after its first, second, fourth, eighth … call. Many data sets open their file at the first sample, so
    the first call that reads is made before all others, alone.

    Args:
        subject: the object with the state: the data set, or the function itself.
        name: of it, in messages.
        reads: its calls read samples of a data set.

    Raises UsageError if it holds a handle that belongs to a thread that is not ours.
    """

    def __init__(self, stage: str, function: Callable[[Any], Any], subject: Any, name: str, *, reads: bool) -> None:
        self._stage, self._function, self._subject, self._name = stage, function, subject, name
        self._lock, self._calls = threading.Lock(), 0
        self._settled = not may_change(subject)  #: it will open no more files
        self._handle: Handle | None = None
        self._alone: Alone | None = None
        if (foreign := self._look(None)) is not None:
            raise UsageError(
                f"stage {stage!r}: {foreign.path} is {foreign.what}, and the loader's threads are others;"
                " open it with check_same_thread=False, or at the first sample, or for each"
            )
        self._gate, self._first_alone = threading.Lock(), reads and not self._settled and self._handle is None

    @property
    def alone(self) -> bool:
        """Whether one thread makes all calls."""
        return self._handle is not None

    def __call__(self, item: Any) -> Any:
        if self._first_alone:
            with self._gate:
                if self._first_alone:
                    return self._try(item)
        if self._handle is not None:
            return self._joined().call(self._function, item)
        result = self._function(item)
        if not self._settled:
            self._calls += 1
            if self._calls & (self._calls - 1) == 0:
                self._look(None)
        return result

    def close(self) -> None:
        """No call comes before the next pass."""
        with self._lock:
            alone, self._alone = self._alone, None
        if alone is not None:
            alone.let_go()

    def _try(self, item: Any) -> Any:
        """The first call, by a thread that makes all others too if this one opens a handle that threads cannot share."""
        alone = Alone(f"{self._stage}-alone")
        try:
            return alone.call(self._function, item)
        finally:
            self._look(alone)
            self._first_alone = False
            if self._alone is not alone:
                alone.let_go()

    def _joined(self) -> Alone:
        if (alone := self._alone) is not None:
            return alone
        with self._lock:
            if self._alone is None:
                assert self._handle is not None
                self._alone = Alone.using(self._handle.owner, None, f"{self._stage}-alone")
            return self._alone

    def _look(self, opened: Alone | None) -> Handle | None:
        """A handle that belongs to a thread that is not ours, which is an error. ``opened``: the thread that may have opened it."""
        if self._handle is not None or (found := handle(self._subject, self._name)) is None:
            return None
        if found.bound and opened is None and not known(found.owner):
            return found
        if opened is not None:
            self._alone = Alone.using(found.owner, opened, f"{self._stage}-alone")
        self._handle = found
        log.warning(
            "stage %r: %s is %s, which threads cannot share, so one thread alone reads: open it for each sample, keep a lock beside it"
            " and take that for each, or give processes=True where it can be pickled",
            self._stage,
            found.path,
            found.what,
        )
        return None
