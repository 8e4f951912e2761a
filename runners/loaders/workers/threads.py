"""The workers of one stage during one pass: the wanted number of threads, which do the work themselves or drive a process each.

Growing starts threads; if there are too many, a worker leaves after it has passed on its item. A worker thread is a daemon, so that
a function that never returns delays neither close() nor the interpreter's exit.

Moving the work from threads to processes, or back, grows one kind and shrinks the other: for each worker that is ready, one of the other
kind leaves. Items have their numbers from the feed, so their order does not depend on the worker.

A worker whose process is quick takes its next item before the last one is done, if there is one that no other worker waits for. It does
that also before it leaves. It takes none while the queue behind it is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

from ....engine.errors import StokerError
from ..feeds import Dealing, Feed
from ..readings.meters import Meter, Spent, Stopwatch, Totals, WorkPhase
from ..readings.sizes import QUEUED_ITEM_BYTES, nbytes
from .chains import Carried, Chain, ChainCall, Done, Group, Step, Unread
from .channel import SKIP, Channel, Item
from .faults import At, Drained, Leave, Misplaced, StageError, Stopped, Unreplaced, located, words

log = logging.getLogger("stoker.loaders")


class Outcome(NamedTuple):
    """The outcome of an item."""

    payload: Any
    items: int  #: number processed
    spent: Spent
    elsewhere: float = 0.0  #: seconds of its CPU time outside this thread, or, below 0, of this thread's for other work
    read: Step | None = None  #: the measured step of reading, if its workers also read

    @classmethod
    def of(cls, result: Any, steps: tuple[Step, ...], *, reads: bool = False, elsewhere: bool = True) -> Outcome:
        """For the worker's own stage; later stages find their steps in the payload. ``reads``: the first is the source's."""
        read = steps[0] if reads else None
        own, *others = steps[1:] if reads else steps
        away = own.spent.cpu if elsewhere else -read.spent.cpu if read else 0.0
        payload = Done(result, tuple(others)) if others else result
        return cls(payload, own.items, own.spent, away, read if read and read.items else None)


_NOTHING = Outcome(None, 1, Spent(0.0, 0.0))


class Hand(Protocol):
    """Does the work of one worker, in its thread."""

    def call(self, item: Item, following: Callable[[], Item | None]) -> Outcome:
        """Process this item. ``following`` takes the item of the next call, if there is one already."""

    def at(self, item: Item) -> At | None:
        """Its place in the item, if known; any thread may ask during `call`."""

    def let_go(self, *, drained: bool) -> None:
        """The worker leaves; ``drained``: because no work is left, not because it is one too many."""


class ChainHand:
    """Does the work of a process's call in the worker's own thread."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._stopwatch = chain, Stopwatch()
        self._where: tuple[int, int, float] | None = None  #: place in the chain, item of the call, and start time

    def call(self, item: Item, following: Callable[[], Item | None]) -> Outcome:
        try:
            found = self._chain.run(ChainCall.of(item), watch=self._stopwatch, at=self._note)
        except Exception as error:
            at = self.at(item)
            raise error if at is None else Misplaced(error, at) from None
        finally:
            self._where = None
        return Outcome.of(*found, reads=self._chain.reads, elsewhere=False)

    def _note(self, place: int, index: int) -> None:
        self._where = place, index, time.perf_counter()

    def at(self, item: Item) -> At | None:
        if (where := self._where) is None:
            return None
        place, index, since = where
        return At(self._chain.names[place], self._chain.positions(item, place, index), place, since)

    def let_go(self, *, drained: bool) -> None:
        self._stopwatch.close()


class ThreadHand:
    """Calls the function in the worker's own thread. ``unread``: also reads items that the source has left unread."""

    def __init__(self, function: Callable[[Any], Any], unread: ChainHand | None = None) -> None:
        self._function, self._unread = function, unread
        self._stopwatch = Stopwatch()

    def call(self, item: Item, following: Callable[[], Item | None]) -> Outcome:
        if isinstance(item.payload, Unread):
            assert self._unread is not None
            return self._unread.call(item, following)
        result, spent = self._stopwatch.call(self._function, item.payload)
        return Outcome(result, 1, spent)

    def at(self, item: Item) -> At | None:
        """No better known than to the worker itself, for read items."""
        return None if self._unread is None else self._unread.at(item)

    def let_go(self, *, drained: bool) -> None:
        self._stopwatch.close()
        if self._unread is not None:
            self._unread.let_go(drained=drained)


@dataclass(slots=True, eq=False)
class _Worker:
    """Used by its own thread alone."""

    hand: Hand | None
    processes: bool
    meter: Meter = field(default_factory=Meter)
    ahead: deque[tuple[int, Item]] = field(default_factory=deque)  #: items taken to be processed next
    gone: bool = False  #: its process is gone, so it no longer counts


class Crew:
    """Workers of one stage in one pass.

    Args:
        hire: makes the hand of a worker, in its thread; its argument: whether a process does the work. None: items pass unchanged.
        groups: the same feed, if a process may take all items of a batch at once.
        waits_on: the channel from which `feed` takes, to wake workers that are to leave; None: it does not wait.
        failed: called by a worker with its error.
        limits: seconds for an item, of this stage and of those that join it; None: no limit.
        processes: whether the workers are processes to begin with.
        here: the work of a process's call, for a thread if the process is gone.
        stays: called with the reason if processes cannot be started or used, so that the work stays in threads; None: that is an error.
        read: called with the measured step of reading, if its workers also read.
    """

    def __init__(
        self,
        name: str,
        feed: Feed,
        waits_on: Channel | None,
        output: Channel,
        hire: Callable[[bool], Hand] | None,
        failed: Callable[[BaseException], None],
        *,
        groups: Dealing | None = None,
        limits: Sequence[float | None] = (None,),
        processes: bool = False,
        here: Chain | None = None,
        stays: Callable[..., None] | None = None,
        read: Callable[[Step], None] | None = None,
    ) -> None:
        self.name = name
        self.output = output
        self._feed, self._waits_on, self._hire, self._failed = feed, waits_on, hire, failed
        self._groups, self._limits, self._here, self._stays, self._read = groups, limits, here, stays, read
        self._place = 0 if here is None else here.own  #: of the stage among those with limits
        self._turn = threading.Lock()  #: of taking, so that items get their numbers in the order of the feed
        self._taken = 0
        self._position = 0  #: of the next item among those of the feed
        self._lock = threading.Lock()  #: of what follows
        self.wanted = 0  #: workers: those of `resize`, less those that could not be started
        self.processes = processes  #: the kind that is wanted: whether workers are processes, or are becoming so
        self._started = 0
        self._alive = {False: 0, True: 0}  #: number of threads and of processes
        self._moved = 0  #: workers of the other kind at the time of the change
        self._at_work = 0  #: items taken and not yet put
        self._drained = False
        self._threads: set[threading.Thread] = set()  #: that may have an item or a part of the feed
        self._leaving: set[threading.Thread] = set()  #: that are at their last lines
        self._meters: dict[bool, set[Meter]] = {False: set(), True: set()}  #: of ready workers, by kind
        self._gone = Totals()  #: of workers that have left

    def resize(self, workers: int) -> None:
        """Have so many from now on; surplus workers leave after their current item."""
        with self._lock:
            self.wanted = workers
            self._fill()
        self._wake()

    def move(self, workers: int, *, processes: bool) -> None:
        """Have so many of this kind from now on; the others leave as these become ready."""
        with self._lock:
            if processes != self.processes:
                self._moved = self._alive[not processes]
            self.wanted, self.processes = workers, processes
            self._fill()
        self._wake()

    @property
    def starting(self) -> int:
        """Wanted workers that are not ready yet: a process takes time to start."""
        with self._lock:
            return 0 if self._drained else max(0, self.wanted - len(self._meters[self.processes]))

    def totals(self, now: float) -> Totals:
        with self._lock:
            return sum((meter.read(now) for meter in self._there()), self._gone)

    def threads_at_work(self) -> list[int]:
        """The kernel's numbers of this process's threads that are in the function now."""
        with self._lock:
            return [meter.thread for meter in self._meters[False] if meter.phase is WorkPhase.WORKING]

    def credit(self, read: Step) -> None:
        """Count work that another stage's workers did for it."""
        with self._lock:
            self._gone += Totals(read.items, read.spent.cpu, read.spent.wait, QUEUED_ITEM_BYTES * read.items, elsewhere=read.spent.cpu)

    def kept(self) -> tuple[int, int]:
        """Items and bytes that the feed holds, such as a shuffle's buffer."""
        return self._feed.kept

    def check_limit(self, now: float) -> None:
        """Fail if a worker has been at one item for longer than the limit."""
        if not any(self._limits):
            return
        with self._lock:
            found = [at for meter in self._there() if (at := meter.working_on()) is not None]
        for at in found:
            limit = self._limits[at.place]
            if limit is not None and now - at.since > limit:
                self._failed(StageError(at.stage, at.positions, f"its function has not returned within the limit of {limit:g} s"))

    @property
    def at_work(self) -> bool:
        """Somebody has an item in hand."""
        with self._lock:
            return self._at_work > 0

    def join(self, until: float) -> bool:
        """Whether all workers have ended by ``until`` (time.monotonic)."""
        with self._lock:
            threads = [thread for thread in self._threads | self._leaving if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def let_go(self) -> None:
        """Drop the feed's content, once the pass has been stopped and no worker is active; the last to leave does it."""
        with self._lock:
            if self.output.stopped and not self._threads:
                self._feed.let_go()

    def _fill(self) -> None:
        """Start the missing workers of the wanted kind. With the lock."""
        while self._alive[self.processes] < self.wanted and not self._drained and not self.output.stopped:
            if not self._start(processes=self.processes):
                return

    def _there(self) -> Iterator[Meter]:
        """Of both kinds. With the lock."""
        return chain.from_iterable(self._meters.values())

    def _wake(self) -> None:
        """Make workers that wait for input check whether to leave."""
        if self._waits_on is not None:
            self._waits_on.wake()

    def _start(self, *, processes: bool) -> bool:
        thread = threading.Thread(target=self._work, args=(processes,), name=f"{self.name}-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            there = sum(self._alive.values())
            if there == 0:
                raise StokerError(f"stage {self.name!r}: cannot start a thread ({error}): the limit of threads is reached") from error
            log.warning("stage %r: cannot start a thread (%s); it goes on with %d", self.name, error, there)
            self.wanted = max(1, self._alive[processes])
            return False
        self._threads.add(thread)
        self._leaving = {left for left in self._leaving if left.is_alive()}
        self._started += 1
        self._alive[processes] += 1
        return True

    def _work(self, processes: bool) -> None:
        worker: _Worker | None = None
        try:
            worker = _Worker(self._hired(processes), processes)  # measured from now on, as its process is ready
            self._welcome(worker)
            while True:
                try:
                    taken = [worker.ahead.popleft() if worker.ahead else self._take(worker)]
                except Leave:
                    if worker.gone or self._may_leave(processes):
                        return
                else:
                    self._pass_on(*taken.pop(), worker)  # not held while the worker waits for the next
        except (Drained, Leave, Stopped):
            pass
        except BaseException as error:  # the consumer gets any error
            self._failed(error)
        finally:
            if worker is not None and worker.hand is not None:
                worker.hand.let_go(drained=self._drained)
            self._end(worker)

    def _hired(self, processes: bool) -> Hand | None:
        """Leave: no hand, but there are other workers; a failed growth must not end a training."""
        if self._hire is None:
            return None
        try:
            return self._hire(processes)
        except StokerError as error:
            if not self._done_without(error, processes):
                raise
            raise Leave from error

    def _done_without(self, error: StokerError, processes: bool, meter: Meter | None = None) -> bool:
        """Whether the stage goes on without the calling worker, which has no process; ``meter``: its own, if it had one."""
        with self._lock:
            if meter is not None:
                self._meters[True].discard(meter)
                self._meters[False].add(meter)  # from now on its thread does the work
            back = self._stays is not None and processes and not self._meters[True]
            others = sum(self._alive.values()) - 1
            if not others and not back:
                return False
            self._alive[processes] -= 1
            if back:
                self.processes, self._moved = False, 0  # starting workers take no item: they are about to be killed
                self._fill()
            elif processes == self.processes:
                self.wanted = min(self.wanted, max(1, self._alive[processes]))
        if self._stays is not None and back:
            self._stays(str(error))
            log.warning("%s; the stage stays in threads", error)
        else:
            log.warning("%s; the stage goes on with %d", error, others)
        return True

    def _welcome(self, worker: _Worker) -> None:
        """From now on it counts as ready."""
        with self._lock:
            self._meters[worker.processes].add(worker.meter)
            moving = self._alive[not worker.processes] > 0
        if moving:
            self._wake()  # for each that comes another goes

    def _take(self, worker: _Worker) -> tuple[int, Item]:
        if worker.gone:
            raise Leave
        with self._turn:
            if self._too_many(worker.processes):
                raise Leave
            return self._numbered(worker.processes, lambda: self._too_many(worker.processes))

    def _take_ahead(self, worker: _Worker) -> Item | None:
        """Its next item, if there is one with work to do, and no other worker waits for it. Not from the source, which may be slow."""
        if worker.ahead or self._waits_on is None or self.output.full or not self._turn.acquire(blocking=False):
            return None
        try:
            if self._too_many(worker.processes):
                return None
            worker.ahead.append(self._numbered(worker.processes, lambda: True))
        except (Drained, Leave):
            return None
        finally:
            self._turn.release()
        item = worker.ahead[0][1]
        return item if _to_be_done(item) else None

    def _numbered(self, processes: bool, leave: Callable[[], bool]) -> tuple[int, Item]:
        """The feed's next item, numbered. With the turn."""
        try:
            take = self._feed.take if self._groups is None or not processes else self._groups.take_batch
            item = take(leave)
        except BaseException as error:
            raise self._ends_with(error, (self._position,)) from None
        number, self._taken = self._taken, self._taken + 1
        self._position += len(item.payload.items) if isinstance(item.payload, Group | Carried) else 1
        with self._lock:
            self._at_work += 1
        return number, item

    def _pass_on(self, number: int, item: Item, worker: _Worker) -> None:
        hand, meter, done = worker.hand, worker.meter, _NOTHING
        try:
            if isinstance(item.payload, Done):
                done = Outcome.of(*item.payload, elsewhere=True)
                item = item._replace(payload=done.payload)
            elif isinstance(item.payload, Carried):
                done = Outcome(item.payload, 0 if hand is not None else len(item.payload.items), Spent(0.0, 0.0))
            elif hand is not None and _to_be_done(item):
                done = self._have_done(item, worker, hand)
                item = Item(item.positions, done.payload, QUEUED_ITEM_BYTES + nbytes(done.payload))
            meter.enter(WorkPhase.BLOCKED)
            self.output.put(number, item)
            meter.enter(WorkPhase.STARVED)
            meter.finished(item.size if done.items else 0, done.spent.wait, done.elsewhere, done.items)
        except BaseException as error:
            raise self._ends_with(error, item.positions) from None
        finally:
            with self._lock:
                self._at_work -= 1

    def _at(self, hand: Hand, item: Item) -> At:
        return hand.at(item) or At(self.name, item.positions, self._place)

    def _have_done(self, item: Item, worker: _Worker, hand: Hand) -> Outcome:
        worker.meter.at = partial(self._at, hand, item)
        worker.meter.enter(WorkPhase.WORKING)
        following = partial(self._take_ahead, worker)
        try:
            done = hand.call(item, following)
        except Unreplaced as error:
            done = self._in_thread(error, worker).call(item, following)
        except Misplaced as error:
            if not error.unsent:
                raise
            done = self._back_in_thread(error, worker, hand).call(item, following)
        worker.meter.at = None
        if done.read is not None and self._read is not None:
            self._read(done.read)
        return done

    def _in_thread(self, error: Unreplaced, worker: _Worker) -> Hand:
        """A hand for the last items of a worker whose process is gone for good, if threads may do the work."""
        if self._here is None or self._stays is None or not self._done_without(error, True, worker.meter):
            raise error
        worker.gone, worker.hand = True, ChainHand(self._here)
        return worker.hand

    def _back_in_thread(self, error: Misplaced, worker: _Worker, hand: Hand) -> Hand:
        """A hand for the last items of a worker whose items or results cannot be sent: all go back to threads, if they may."""
        if self._here is None or self._stays is None:
            raise error
        with self._lock:
            self._meters[True].discard(worker.meter)
            self._meters[False].add(worker.meter)
            self._alive[True] -= 1
            first, self.processes, self._moved = self.processes, False, 0  # the others leave when they have put their items away
            self._fill()
        if first:
            self._stays(str(error.error), at_once=False)  # the others may be at work
            log.warning("stage %r, %s: %s; the stage stays in threads", error.at.stage, words(error.at.positions), error.error)
        hand.let_go(drained=False)
        worker.gone, worker.hand = True, ChainHand(self._here)
        return worker.hand

    def _ends_with(self, error: BaseException, positions: tuple[int, ...]) -> BaseException:
        """The exception for a worker's end: ``error`` unless it is a fault, which stops the pass."""
        if isinstance(error, Drained):
            self._drained = True
        if isinstance(error, Drained | Leave | Stopped):
            return error
        self._failed(located(error, self.name, positions))
        return Stopped()

    def _too_many(self, processes: bool) -> bool:
        """Whether there are too many of this kind. Workers of the unwanted kind leave as the others become ready."""
        wanted = self.processes
        if processes == wanted:
            return self._alive[processes] > self.wanted
        missing = max(0, self.wanted - min(len(self._meters[wanted]), self._alive[wanted]))
        return self._alive[processes] * self.wanted > self._moved * missing

    def _may_leave(self, processes: bool) -> bool:
        """Whether the calling worker is one too many; then it no longer counts."""
        with self._lock:
            if not self._too_many(processes):
                return False
            self._alive[processes] -= 1
            return True

    def _end(self, worker: _Worker | None) -> None:
        with self._lock:
            if worker is not None:
                for kind in self._meters.values():
                    kind.discard(worker.meter)
                self._gone += worker.meter.read(time.perf_counter())
                self._at_work -= len(worker.ahead)
            self._threads.discard(threading.current_thread())
            self._leaving.add(threading.current_thread())
            over = self._drained and self._at_work == 0
        if over:
            self.output.close()
        self.let_go()


def _to_be_done(item: Item) -> bool:
    """By a hand: it is no other's."""
    return item.payload is not SKIP and not isinstance(item.payload, Done | Carried)
