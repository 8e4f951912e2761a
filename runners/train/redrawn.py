"""Reuse inside a pipeline: a buffer draws ahead of the training, and stages behind it augment and collate its draws.

The buffer chooses as it does without a pipeline: batches under way only make it wait. So a training continues with the same samples
after a stop. The state before a batch is the buffer's before it drew that batch, however far it has drawn since.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..loaders.reuse.buffer import ReuseBuffer
from ..loaders.stages import Draw
from ..loaders.workers.faults import Stopped
from . import rng
from .batch_feeds import Decoded, Drawn, Judged, Part, ReuseFeed
from .batches import Positions
from .piped import LoadingPlan, Numbered


class StagedReuse(ReuseFeed):
    """Batches from the stages.

    ``chunk``: samples that are decoded at a time. ``make``: makes the buffer, from a source of samples and a function that makes room.
    """

    def __init__(
        self,
        plan: LoadingPlan,
        positions: Positions,
        chunk: int,
        make: Callable[[Decoded, Callable[[int], None]], ReuseBuffer],
        judged: Judged,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._plan, self._under_way = plan, UnderWay()
        self._decoded, self._resumed = InTurn(), state
        super().__init__(positions, make(self._decoded, self._under_way.wait), judged, state)
        again = [] if state is None else [*state["positions"], *(position for position, _, _ in state["parked"])]
        draw = Draw(self._draw, self._held, name="reuse")
        self._running = plan.redrawn(positions, chunk, draw, again)

    def close(self) -> None:
        self._under_way.end()
        self._running.close()
        super().close()

    def _draw(self, take: Callable[[], list[Numbered]]) -> Drawn:
        """The next batch, in the thread of its stage."""
        buffer, self._decoded.more = self._buffer, take
        if self._resumed is not None:
            buffer.load_state_dict(self._resumed)
            self._resumed = None
        number, left = buffer.calls, buffer.left_bytes
        uses = buffer.next(self._used)
        self._under_way.add(buffer.left_bytes - left)
        return Drawn(uses, self._judged(number))

    def _held(self) -> int:
        return self._buffer.held_bytes + self._under_way.bytes

    def _load(self) -> Part:
        found = self._running.next()
        self._under_way.arrived()
        if isinstance(found, Part):
            return found
        with rng.host_preserved():
            part: Part = found.collated(self._plan.source)
        return part


class InTurn:
    """Decoded samples of a stream in its order. It begins with those that a buffer's state names: only these are decoded again."""

    def __init__(self) -> None:
        self.more: Callable[[], list[Numbered]] = list
        self._ready: Iterator[Numbered] = iter(())
        self._last: Numbered = (-1, None)  #: the buffer may have had no room for it

    def take(self) -> Numbered:
        found = next(self._ready, None)
        if found is None:
            self._ready = iter(self.more())
            found = next(self._ready)
        self._last = found
        return found

    def again(self, position: int) -> Any:
        found = self._last if self._last[0] == position else self.take()
        assert found[0] == position
        return found[1]

    def close(self) -> None:
        """The stages are closed by their owner."""


class UnderWay:
    """Bytes of samples that have left the buffer for good in batches that have not reached the training."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[int] = deque()
        self._ended = False
        self.bytes = 0

    def add(self, left: int) -> None:
        """Of one more batch."""
        with self._changed:
            self._batches.append(left)
            self.bytes += left

    def arrived(self) -> None:
        """The oldest batch is there."""
        with self._changed:
            self.bytes -= self._batches.popleft()
            self._changed.notify_all()

    def wait(self, room: int) -> None:
        """Wait until they are no more than ``room``, or none. `end` ends the wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.bytes <= max(0, room))
            if self._ended:
                raise Stopped

    def end(self) -> None:
        """End all waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
