"""The choice of a rank's feed: by the blocks ``reuse`` and ``pipeline`` of its job's spec, and by the state of an earlier run."""

from __future__ import annotations

import functools
import logging
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...engine.errors import UsageError
from ...engine.spec.model import PipelineOptions, Reuse
from ..loaders.reuse.buffer import ReuseBuffer
from ..loaders.reuse.dealing import deal
from ..share.input_groups import InputGroup
from ..share.shared_input import SharedInput, described, digest
from . import rng
from .batch_feeds import Decoded, Direct, DirectReuse, Feed, Judged, PlainFeed, ReuseFeed, SampleSource, SharedFeed, StreamFeed
from .batches import Order, Positions

if TYPE_CHECKING:
    from .piped import LoadingPlan


log = logging.getLogger(__name__)


class Loading:
    """Makes the feeds of one of ``ranks`` parts of each batch. ``group``: the jobs that share its input."""

    def __init__(
        self,
        source: SampleSource,
        order: Order,
        rank: int,
        ranks: int,
        reuse: Reuse | None,
        pipeline: PipelineOptions | None,
        group: InputGroup | None = None,
    ) -> None:
        self.source, self.order, self.rank, self.ranks = source, order, rank, ranks
        self.reuse, self.pipeline = reuse, pipeline
        self.group = group
        self.shared: SharedInput | None = None
        self.part = order.part(rank, ranks)
        if reuse is not None:
            wanted = reuse.shuffle_buffer
            self.capacity = math.ceil(reuse.shuffle_batches * self.part) if wanted is None else max(wanted, self.part)

    def from_step(self, step: int) -> Feed:
        """Without reuse: a function of the step."""
        if self.pipeline is None and self.group is None:
            return PlainFeed(self.source, self.order, self.rank, self.ranks, step)
        if self.group is not None:
            self.shared = SharedInput.join(self.group, self._description(), step)
        return self.once(Positions(self.order, self.rank, self.ranks, base=step))

    def once(self, positions: Positions) -> Feed:
        """Each sample of the stream used once."""
        if self.pipeline is None:
            return SharedFeed(self.source, positions, self.shared) if self.shared else StreamFeed(self.source, positions)
        from .piped import PipelineFeed

        return PipelineFeed(self._plan, positions)

    def reused(
        self, positions: Positions | None = None, buffer: Mapping[str, Any] | None = None, judged: Judged = lambda _: False
    ) -> ReuseFeed:
        """Each sample of the stream used several times. ``buffer``: the state of the one to continue."""
        reuse = self.reuse
        assert reuse is not None
        self._check_capacity(reuse, begun=buffer is not None)
        positions = positions or Positions(self.order, self.rank, self.ranks)
        each_use = reuse.augment == "each-use"
        decoded: Decoded = Direct(self.source, positions, augment=not each_use)
        if self.pipeline is not None:
            from .piped import Piped
            from .redrawn import StagedReuse

            # As many at a time as a batch has first uses, about.
            chunk = max(1, self.part // reuse.repeat)
            if self._plan.follows_a_buffer:
                return StagedReuse(self._plan, positions, chunk, functools.partial(self._buffer, reuse), judged, buffer)
            decoded = Piped(self._plan, positions, chunk, augment=not each_use)
        return DirectReuse(self.source, positions, decoded, self._buffer(reuse, decoded), judged, augment=each_use, state=buffer)

    def _buffer(self, reuse: Reuse, decoded: Decoded, room: Callable[[int], None] | None = None) -> ReuseBuffer:
        return ReuseBuffer(
            decoded,
            batch_size=self.part,
            repeat=reuse.repeat,
            capacity_samples=self.capacity,
            capacity_bytes=reuse.memory,
            seed=rng.mixed(self.source.seed, self.rank),
            identity=self.order.index,
            room=room,
        )

    def resumed(self, states: Sequence[Mapping[str, Any]], judged: Judged = lambda _: False) -> Feed:
        """The feed of a job that reuses samples, from the states of all ranks; another number of ranks divides those states."""
        positions = [state["positions"] for state in states]
        if len(states) == self.ranks:
            stream = Positions(self.order, self.rank, self.ranks, **positions[self.rank])
        else:
            stream = Positions.deal(self.order, positions, self.ranks)[self.rank]
        if "buffer" not in states[0]:
            return self.once(stream)
        buffers = [state["buffer"] for state in states]
        buffer = buffers[self.rank] if len(states) == self.ranks else deal(buffers, self.ranks)[self.rank]
        return self.reused(stream, buffer, judged)

    def _check_capacity(self, reuse: Reuse, *, begun: bool) -> None:
        """A buffer below this rank's part of a batch is an error at the training's start, later a log line: ranks may be fewer then."""
        part, wanted = self.part, reuse.shuffle_buffer
        if wanted is None or reuse.repeat == 1 or wanted >= part:
            return
        of = f"of {self.order.batch_size} on {self.ranks} ranks" if self.ranks > 1 else "of the task"
        problem = f"reuse.shuffle_buffer: {wanted} samples are less than the {part} that a rank uses of each batch {of}"
        if not begun:
            raise UsageError(f"{problem}; give at least {part}, better {3 * part}")
        if self.rank == 0:
            log.info("%s; the buffer holds %d", problem, part)

    @functools.cached_property
    def _plan(self) -> LoadingPlan:
        from .piped import LoadingPlan

        assert self.pipeline is not None
        each_use = self.reuse is not None and self.reuse.augment == "each-use"
        return LoadingPlan.of(self.source, self.pipeline, self.part, each_use=each_use, shared=self.shared)

    def _description(self) -> dict[str, Any]:
        """All that determines a batch, as far as it can be known."""
        source = self.source
        loaded = "one at a time" if self.pipeline is None else "in processes" if self.pipeline.processes else "in threads"
        return {
            "data": described(type(source.data)),
            "number of samples": len(source.data),
            "first sample": self._first_sample(),
            "augment": described(source.augment) if source.augment else "none",
            "collate": described(source.collate),
            "batch size": self.order.batch_size,
            "seed": source.seed,
            "part": f"{self.rank} of {self.ranks}",
            "loading": loaded,
            "torch": torch.__version__,
            "Python": platform.python_version(),
        }

    def _first_sample(self) -> str:
        """Its digest. Not for processes: a data set may open files at its first sample, and could not be sent to them then."""
        if self.pipeline is not None and self.pipeline.processes:
            return "?"
        with rng.host_preserved():
            return digest(self.source.decode(0, self.order.index(0)))

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
