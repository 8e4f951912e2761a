"""A shuffle buffer that counts references: each decoded sample is used exactly r times, and never twice in one batch (004 ch. 4.4.2).

The choice of a batch of B samples, with r uses a sample, and its reasons:

* *About B/r samples of a batch are first uses, the others were used before.* Then the decoder has the same work in every
  step, and the loss on first uses (the one that does not mislead) rests on the same number of samples in every step.
* *Used samples rest.* With N used samples in the buffer, the mean number of batches between two uses of one sample is
  N / (B - B/r) whatever the rule is (Little's law); only the spread and the mixing are ours to choose. A uniform draw makes
  the gap geometric: many uses in successive batches. First in, first out makes it constant, but keeps those together that
  were together before. Here a used sample rests for half of the mean gap, and batches are drawn uniformly from the rested
  half: no short gaps, and batches of mixed ages.
* *A sample is decoded in the batch that uses it first*, so that all of the buffer serves the gaps. Where the source is not
  in a random order (``shuffle_first``), 1/r of the buffer holds samples not yet used, and first uses are drawn from them.
* *The remaining uses can always be drained.* A stream ends with U uses left in the buffer. They fill ceil(U / B) batches, all but
  the last one full, if and only if no sample has more uses left than there are batches left, and those with as many fit in
  the last one (Gale-Ryser, for equal columns and a short one). Before the end is known, enough is decoded that U >= r B after
  each batch, from which this follows; after it, samples that have to be taken are taken first. A buffer of three batches or more
  has the room for it; a smaller one may end with several short batches. Each sample has its r uses in any case.

Memory is bounded in samples and in bytes at every moment: a sample is decoded only while the largest one seen so far would
fit. One that turns out larger is put aside undecoded and decoded again when there is room.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

from ....engine.errors import UsageError
from ..readings.sizes import nbytes
from .pools import OpenBatch, Pool, Slot

MOST_USES = 1_000  #: of a sample: each number of uses left has a pool of its own

_T = TypeVar("_T")


class Decoded(Protocol):
    """The source of samples: the positions of one rank's stream, each decoded when it is taken."""

    def take(self) -> tuple[int, Any]:
        """The next position and its sample. Raises StopIteration at the end of a finite stream, and from then on."""

    def again(self, position: int) -> Any:
        """The sample of a position that was taken before, decoded once more."""


class Use(NamedTuple):
    """One sample of a batch."""

    position: int
    sample: Any
    use: int  #: how often it was used before: 0 is the first use


class _Counts(TypedDict):
    """The counters of a buffer."""

    batches: int
    taken: int
    first_uses: int
    uses: int
    dropped: int
    carry: float
    largest: int
    ended: bool
    random: tuple[Any, ...]


class BufferState(_Counts):
    """The return of `ReuseBuffer.state_dict`: numbers, lists of numbers and strings, no samples."""

    repeat: int
    positions: list[int]
    left: list[int]  #: uses that each of them has left
    last: list[int]  #: the batch of its last use, 0 for none
    rested: list[bool]
    parked: list[tuple[int, int, int]]  #: position, uses left, bytes (0: not known) of those that wait undecoded for room


class _Parked(NamedTuple):
    position: int
    left: int
    size: int


class _Call:
    """The changes of one call of `next`."""

    __slots__ = ("changes", "counts", "handed", "number", "unparked")

    def __init__(self, number: int, counts: _Counts, pools: Sequence[Pool]) -> None:
        self.number, self.counts = number, counts  #: before it
        self.changes = [pool.noted() for pool in pools]
        self.unparked: list[_Parked | None] = []  #: taken out at the front, or put there (None)
        self.handed: list[tuple[Slot, int]] = []  #: and the batches of their use before


class ReuseBuffer:
    """Batches in which each position of ``decoded`` occurs exactly ``repeat`` times, at most once a batch.

    ``capacity_samples`` and ``capacity_bytes`` bound the held samples between and within calls of `next`, without those handed out.
    ``room``, if given, is called before a sample is decoded, and may wait; its argument is the bytes that samples handed out for the
    last time may still hold, so that all stays within ``capacity_bytes``. ``identity`` tells which positions are the same sample of
    the data (in two passes over it): they do not meet in a batch either, unless the buffer holds too few different ones. ``repeat=1``
    is the stream itself, nothing is held. ``measure`` gives the bytes of a sample. While one thread calls `next`, even if a decoding
    never returns, another may call `state_before`; nothing else is thread-safe.

    Raises UsageError for settings that cannot work, and from `next` when the memory is below one batch of such samples; it never
    does where ``capacity_bytes`` is at least ``batch_size`` times the largest sample.
    """

    def __init__(
        self,
        decoded: Decoded,
        *,
        batch_size: int,
        repeat: int,
        capacity_samples: int,
        capacity_bytes: int,
        seed: int = 0,
        identity: Callable[[int], Hashable] | None = None,
        shuffle_first: bool = False,
        drop_last: bool = False,
        measure: Callable[[Any], int] = nbytes,
        room: Callable[[int], None] | None = None,
    ) -> None:
        _check(batch_size, repeat, capacity_samples, capacity_bytes)
        self._decoded, self._identity, self._measure, self._room = decoded, identity, measure, room
        self.batch_size, self.repeat, self.drop_last = batch_size, repeat, drop_last
        self.capacity_samples, self.capacity_bytes = capacity_samples, capacity_bytes
        self._reserve = min(capacity_samples // repeat, capacity_samples - batch_size) if shuffle_first and repeat > 1 else 0
        self._random = random.Random(seed)
        self.taken = 0  #: positions taken from the stream
        self.first_uses = 0
        self.uses = 0
        self.dropped = 0  #: uses left out by ``drop_last``
        self.held_bytes = 0
        self.left_bytes = 0  #: of all that was handed out for the last time
        self._batches = 0
        self._carry = 0.0  #: the part of a first use that is still owed
        self._ended = False
        self._largest = 0
        self._live = 0
        self._uses_left = 0
        self._pools = [Pool() for _ in range(repeat + 1)]  #: by uses left
        self._parked: deque[_Parked] = deque()
        self.calls = 0  #: of `next`, unfinished ones included
        self._lock = threading.Lock()  #: of what `state_before` reads; not held while a sample is decoded
        self._noted: deque[_Call] = deque()  #: that `state_before` can take back, the newest last

    def __len__(self) -> int:
        """Samples held."""
        return self._live

    @property
    def positions(self) -> list[int]:
        """The positions that have uses left, those parked included."""
        return [slot.position for slot in self._slots()] + [parked.position for parked in self._parked]

    def unused(self, count: int) -> list[tuple[int, Any]]:
        """Up to ``count`` samples held that were never used, lowest positions first; nothing changes."""
        fresh = sorted(self._pools[self.repeat].ready, key=lambda slot: slot.position)
        return [(slot.position, slot.sample) for slot in fresh[:count]]

    def __iter__(self) -> Iterator[list[Use]]:
        return self

    def __next__(self) -> list[Use]:
        return self.next()

    def next(self, since: int | None = None) -> list[Use]:
        """The next batch. Raises StopIteration when a finite stream has been used up.

        An error of ``decoded`` comes through, and the batch can be asked for again: nothing is counted before all of it is there.
        ``since``: the least ``call`` for which `state_before` must still answer; None: the number so far.
        """
        with self._lock:
            return self._next(self.calls if since is None else since)

    def _next(self, since: int) -> list[Use]:
        self._note(since)
        if self.repeat == 1:
            return self._plain()
        self._wake()
        first = self._stock()
        batch = self._drain() if self._ended and not self._parked else self._mix(first)
        if len(batch) < self.batch_size and self.drop_last:
            self._drop(batch)
        if not batch:
            raise StopIteration
        self._random.shuffle(batch)
        return self._hand_out(batch)

    def _plain(self) -> list[Use]:
        batch: list[Use] = []
        try:
            while len(batch) < self.batch_size and (decoded := self._decode()):
                batch.append(Use(*decoded[:2], 0))
        except Exception:
            for use in reversed(batch):  # in case the batch is asked for again
                self._park(_Parked(use.position, 1, 0))
            raise
        if not batch or (self.drop_last and len(batch) < self.batch_size):
            self.dropped += len(batch)
            raise StopIteration
        self._batches += 1
        self.first_uses += len(batch)
        self.uses += len(batch)
        return batch

    # --- what comes in ---

    def _wake(self) -> None:
        per_batch = self.batch_size - self.batch_size / self.repeat
        used = self._live - len(self._pools[self.repeat])
        rest = int(used / per_batch / 2)  # half of the mean gap
        for pool in self._pools:
            pool.wake(self._batches + 1 - rest)

    def _stock(self) -> int:
        """Decode the samples that the next batch needs. Returns its number of first uses; draws nothing yet."""
        fresh = self._pools[self.repeat]
        while self._parked and self._admit():
            pass
        first, carry = self._first_uses_due()
        undrainable = (self.repeat + 1) * self.batch_size - self._uses_left
        enough = max(first + self._reserve, len(fresh) + math.ceil(undrainable / self.repeat))
        while len(fresh) < enough and self._admit():
            pass
        while self._live < self.batch_size and self._more():
            self._admit(must=True)
        self._carry = carry
        return min(first, len(fresh))

    def _more(self) -> bool:
        return bool(self._parked) or not self._ended

    def _first_uses_due(self) -> tuple[int, float]:
        """About B/r, more while the buffer has room, fewer while it is too full for them; and the carry."""
        size, even = self.batch_size, self.batch_size / self.repeat
        used = self._live - len(self._pools[self.repeat])
        by_bytes = self.capacity_bytes * self._live // self.held_bytes if self.held_bytes else self.capacity_samples
        capacity = max(size, min(self.capacity_samples, by_bytes) - self._reserve)
        room = capacity - used
        due = even + (room - even) * size / capacity + self._carry
        rested = sum(len(pool.ready) for pool in self._pools[1 : self.repeat])
        first = max(math.floor(due), min(size - rested, room), size - used)
        return max(0, min(first, size)), min(1.0, max(0.0, due - first))

    def _admit(self, *, must: bool = False) -> bool:
        """Decode one more sample, if there is room for it. ``must``: the batch cannot be made without it."""
        if not self._more() or self._live >= self.capacity_samples:
            return False
        parked = self._parked[0] if self._parked else None
        expected = (parked.size if parked else 0) or self._largest
        if not must and self.held_bytes + expected > self.capacity_bytes:
            return False
        if self._room is not None:
            self._unlocked(self._room, self.capacity_bytes - self.held_bytes - expected)
        if (decoded := self._decode()) is None:
            return False
        position, sample, left = decoded
        size = self._measure(sample)
        self._largest = max(self._largest, size)
        if self.held_bytes + size <= self.capacity_bytes:
            self._hold(position, sample, left, size)
            return True
        self._park(_Parked(position, left, size))
        if must:
            raise UsageError(
                f"reuse.memory: {self.capacity_bytes} bytes hold {self._live} of the {self.batch_size} samples of a batch; "
                f"give at least {self.batch_size * self._largest} (a sample here has {self._largest})"
            )
        return False

    def _decode(self) -> tuple[int, Any, int] | None:
        """Position, sample and uses left of the next sample; None at the end of the stream."""
        if self._parked:
            parked = self._parked[0]
            sample = self._unlocked(self._decoded.again, parked.position)
            self._noted[-1].unparked.append(self._parked.popleft())
            return parked.position, sample, parked.left
        if self._ended:
            return None
        try:
            position, sample = self._unlocked(self._decoded.take)
        except StopIteration:
            self._ended = True
            return None
        self.taken += 1
        return position, sample, self.repeat

    def _unlocked(self, decode: Callable[..., _T], *given: int) -> _T:
        self._lock.release()
        try:
            return decode(*given)
        finally:
            self._lock.acquire()

    def _park(self, parked: _Parked) -> None:
        self._parked.appendleft(parked)
        self._noted[-1].unparked.append(None)

    def _hold(self, position: int, sample: Any, left: int, size: int, last: int = 0, *, rested: bool = True) -> None:
        slot = Slot(position, sample, left, last, size, self._identity(position) if self._identity else position)
        pool = self._pools[left]
        (pool.add if rested else pool.lay)(slot)
        self._live += 1
        self._uses_left += left
        self.held_bytes += size

    # --- what goes out ---

    def _mix(self, first: int) -> list[Slot]:
        """``first`` first uses, filled up with used samples that have rested."""
        fresh, used = self._pools[self.repeat : self.repeat + 1], self._pools[1 : self.repeat]
        draw = OpenBatch(self._random, self.batch_size, by_identity=self._identity is not None)
        draw.at_random(fresh, first)
        draw.at_random(used, self.batch_size)
        draw.longest_at_rest(used)
        draw.at_random(fresh, self.batch_size)
        return self._completed(draw)

    def _drain(self) -> list[Slot]:
        """First the samples without which the remaining uses would not fit into the remaining batches; then any that have rested."""
        batches = math.ceil(self._uses_left / self.batch_size)
        draw = OpenBatch(self._random, self.batch_size, by_identity=self._identity is not None)
        for left in range(self.repeat, max(1, batches - 1) - 1, -1):
            draw.at_random(self._pools[left : left + 1], self.batch_size)
            draw.longest_at_rest(self._pools[left : left + 1])
        draw.at_random(self._pools, self.batch_size)
        draw.longest_at_rest(self._pools)
        return self._completed(draw)

    def _completed(self, draw: OpenBatch) -> list[Slot]:
        """With too few different samples held, the same sample of two passes may meet; otherwise the stream would stand still."""
        for slot in draw.clashed:
            if len(draw.batch) < self.batch_size:
                draw.batch.append(slot)
            else:
                self._pools[slot.left].add(slot)
        return draw.batch

    def _drop(self, batch: list[Slot]) -> None:
        self.dropped += self._uses_left
        batch.clear()
        self._clear()

    def _hand_out(self, batch: list[Slot]) -> list[Use]:
        self._batches += 1
        out = [Use(slot.position, slot.sample, self.repeat - slot.left) for slot in batch]
        for slot in batch:
            self.first_uses += slot.left == self.repeat
            self._noted[-1].handed.append((slot, slot.last))
            slot.left -= 1
            slot.last = self._batches
            if slot.left:
                self._pools[slot.left].lay(slot)
            else:
                self._live -= 1
                self.held_bytes -= slot.size
                self.left_bytes += slot.size
                slot.sample = None  # the notes of a call hold the slot
        self.uses += len(batch)
        self._uses_left -= len(batch)
        return out

    # --- the end of reuse, and the state ---

    def leave(self) -> list[int]:
        """Give up reuse: the positions that were taken and never used, in order. The buffer is empty then."""
        left = [slot.position for slot in self._pools[self.repeat].ready]
        left += [parked.position for parked in self._parked if parked.left == self.repeat]
        self._clear()
        return sorted(left)

    def _clear(self) -> None:
        self._pools = [Pool() for _ in range(self.repeat + 1)]
        self._parked.clear()
        self._live = self._uses_left = self.held_bytes = 0
        self._noted.clear()

    def _note(self, since: int) -> None:
        """A batch is begun: note what it changes from here on."""
        while self._noted and self._noted[0].number < since:
            self._noted.popleft()
        self._noted.append(_Call(self.calls, self._counts(), self._pools))
        self.calls += 1

    def _counts(self) -> _Counts:
        return _Counts(
            batches=self._batches,
            taken=self.taken,
            first_uses=self.first_uses,
            uses=self.uses,
            dropped=self.dropped,
            carry=self._carry,
            largest=self._largest,
            ended=self._ended,
            random=self._random.getstate(),
        )

    def _slots(self) -> Iterator[Slot]:
        for pool in self._pools:
            yield from pool.ready
            yield from pool.resting

    def state_dict(self) -> BufferState:
        """The state for `load_state_dict`; O(samples held). It lacks the stream's own place; ``taken`` tells how far it was read."""
        with self._lock:
            return self._state(self._counts(), self._pools, self._parked, {})

    def state_before(self, call: int) -> BufferState:
        """The state after ``call`` calls of `next`, without later ones, of which one may be at work in another thread.

        `next` gets the earliest such call as ``since``. The cost of this for a call does not depend on the number of held samples.
        """
        with self._lock:
            later = [made for made in self._noted if made.number >= call]
            if not later:
                return self._state(self._counts(), self._pools, self._parked, {})
            pools, parked, last = [pool.copy() for pool in self._pools], self._parked.copy(), dict[int, int]()
            for made in reversed(later):
                for pool, changes in zip(pools, made.changes, strict=True):
                    for take_back in reversed(changes):
                        take_back(pool)
                for taken_out in reversed(made.unparked):
                    if taken_out is None:
                        parked.popleft()
                    else:
                        parked.appendleft(taken_out)
                last.update((id(slot), before) for slot, before in made.handed)
            return self._state(later[0].counts, pools, parked, last)

    def _state(self, counts: _Counts, pools: Sequence[Pool], parked: Sequence[_Parked], last: Mapping[int, int]) -> BufferState:
        """``last``: last uses by the id of slots whose own value does not match these pools."""
        held = [(slot, left, rested) for left, pool in enumerate(pools) for slot, rested in pool.listed()]
        return BufferState(
            repeat=self.repeat,
            **counts,
            positions=[slot.position for slot, _, _ in held],
            left=[left for _, left, _ in held],
            last=[last.get(id(slot), slot.last) for slot, _, _ in held],
            rested=[rested for _, _, rested in held],
            parked=[(one.position, one.left, one.size) for one in parked],
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: its samples are decoded again. Samples that no longer fit (a smaller buffer) wait undecoded for room."""
        if state["repeat"] != self.repeat:
            raise UsageError(f"reuse.repeat: the checkpoint was made with {state['repeat']}, not {self.repeat}; keep that value")
        self._clear()
        self._batches, self._carry, self._ended = int(state["batches"]), float(state["carry"]), bool(state["ended"])
        self.taken, self.first_uses, self.uses = int(state["taken"]), int(state["first_uses"]), int(state["uses"])
        self._random.setstate(as_tuple(state["random"]))
        self._largest, self.dropped = int(state["largest"]), int(state["dropped"])
        for position, left, last, rested in zip(state["positions"], state["left"], state["last"], state["rested"], strict=True):
            if self._parked or self._live >= self.capacity_samples:
                self._parked.append(_Parked(position, left, 0))
                continue
            sample = self._decoded.again(position)
            size = self._measure(sample)
            if self.held_bytes + size > self.capacity_bytes:
                self._parked.append(_Parked(position, left, size))
            else:
                self._hold(position, sample, left, size, last, rested=rested)
        self._parked.extend(_Parked(*parked) for parked in state["parked"])


def as_tuple(state: Sequence[Any]) -> tuple[Any, ...]:
    """A state of random.Random, which may have gone through JSON."""
    version, internal, gauss = state
    return version, tuple(internal), gauss


def _check(batch_size: int, repeat: int, capacity_samples: int, capacity_bytes: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch_size: {batch_size} samples make no batch; give at least 1")
    if not 1 <= repeat <= MOST_USES:
        raise UsageError(f"reuse.repeat: {repeat} uses of a sample are not possible; give 1 (no reuse) to {MOST_USES}")
    if repeat > 1 and capacity_samples < batch_size:
        raise UsageError(
            f"reuse.shuffle_buffer: {capacity_samples} samples hold less than one batch; "
            f"give at least {batch_size} samples, better {3 * batch_size}"
        )
    if repeat > 1 and capacity_bytes < 1:
        raise UsageError(f"reuse.memory: {capacity_bytes} bytes hold no sample; give the bytes of at least one batch")
