"""A device emulated on the CPU: it computes for real, under a cap, and its copies take the time of a link.

Streams are in-order queues on a virtual clock: a copy takes a latency for each tensor and its bytes over the bandwidth (004 fig. 3-8:
loading time is linear in size). A copy is made as late as its events allow, so that work that does not wait for it computes with NaN:
a race shows in every run, not in some. All its figures are *emulated*.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from .device import CapExceeded, Device, Event, Pair, StepSeconds, bytes_of
from .memory_ledger import MemoryLedger

T = TypeVar("T")

BANDWIDTH = 12e9  #: bytes a second: PCIe 3.0 x16, as the thesis's hosts (004 ch. 3.5.1), in practice
LATENCY = 20e-6  #: seconds for each tensor


@dataclass(slots=True)
class _Queue:
    """An in-order stream: the time when it is free, and the copies still to be made."""

    free: float = 0.0
    pending: deque[tuple[int, Sequence[Pair]]] = field(default_factory=deque)
    given: int = 0

    def drain(self, number: int) -> None:
        while self.pending and self.pending[0][0] <= number:
            for source, target in self.pending.popleft()[1]:
                target.copy_(source)


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    queue: _Queue | None = None
    number: int = 0


class MeteredDevice:
    """See above; ``clock``: gives the seconds of computing; ``page``: bytes of an allocation's unit."""

    name = "metered"
    emulated = True
    device = torch.device("cpu")

    def __init__(
        self,
        cap: int,
        *,
        bandwidth: float = BANDWIDTH,
        latency: float = LATENCY,
        clock: Callable[[], float] = time.perf_counter,
        page: int = 1,
    ) -> None:
        self.cap, self.bandwidth, self.latency, self.clock, self.page = cap, bandwidth, latency, clock, page
        self.ledger = MemoryLedger(self._check, self.rounded)
        self._exceeded = ""  #: words of the newest launch's error; not the error itself, whose traceback would hold tensors
        self._times = StepSeconds()
        self._now = 0.0  #: of the computing stream
        self._host = 0.0
        self._load, self._out = _Queue(), _Queue()

    def seconds(self, tensors: int, size: int) -> float:
        """The time of a copy of so many tensors and bytes."""
        return self.latency * tensors + size / self.bandwidth

    # ---- memory ----

    def rounded(self, size: int) -> int:
        return -(-size // self.page) * self.page

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.ledger, torch.no_grad():
            return tensor.clone()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.ledger:
            made = torch.empty_like(tensor, requires_grad=False)
        _poison(made)
        return made

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, requires_grad=False)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    @contextmanager
    def lifted(self) -> Iterator[Device]:
        yield MeteredDevice(1 << 60, bandwidth=self.bandwidth, latency=self.latency, clock=self.clock, page=self.page)

    def drop(self, tensor: torch.Tensor) -> None:
        _poison(tensor)

    def memory(self) -> tuple[int, int]:
        return self.ledger.now, self.ledger.peak

    def reset_peak(self) -> None:
        self.ledger.peak = self.ledger.now

    def _check(self, size: int) -> None:
        if size > self.cap:
            self._exceeded = f"out of device memory (emulated): {size:,} bytes are in use, the cap is {self.cap:,}"
            raise CapExceeded(self._exceeded)

    # ---- copies ----

    def copy_in(self, pairs: Sequence[Pair]) -> Event:
        event = self._enqueue(self._load, pairs)
        self._times.bytes_in += bytes_of(pairs)
        return event

    def copy_out(self, pairs: Sequence[Pair]) -> Event:
        event = self._enqueue(self._out, pairs)
        self._times.bytes_out += bytes_of(pairs)
        return event

    def _enqueue(self, queue: _Queue, pairs: Sequence[Pair]) -> _Event:
        begin = max(queue.free, self._now)
        queue.free = begin + self.seconds(len(pairs), bytes_of(pairs))
        queue.given += 1
        queue.pending.append((queue.given, list(pairs)))
        return _Event(queue.free, queue, queue.given)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self._times.stalled += max(0.0, event.at - self._now)
        self._now = max(self._now, event.at)
        self._done(event)

    def finish(self, event: Event) -> None:
        assert isinstance(event, _Event)
        self._host = max(self._host, event.at)
        self._done(event)

    @torch.no_grad()
    def _done(self, event: _Event) -> None:
        if event.queue is not None:
            event.queue.drain(event.number)

    # ---- work ----

    def launch(self, work: Callable[[], T]) -> T:
        begun = self.clock()
        self._exceeded = ""
        try:
            with self.ledger:
                done = work()
        finally:
            if self._exceeded:  # even if the work caught the error, as TorchScript does
                raise CapExceeded(self._exceeded)
        took = self.clock() - begun
        self._now += took
        self._times.computing += took
        return done

    def on_host(self, work: Callable[[], T]) -> tuple[T, Event]:
        begun = self.clock()
        done = work()
        self._host += self.clock() - begun
        return done, _Event(self._host)

    @contextmanager
    def step(self) -> Iterator[StepSeconds]:
        around, self._times = self._times, StepSeconds()
        times, begun = self._times, self._now
        self._host = begun
        try:
            yield times
        finally:
            self._times = around
        # Copies under way are part of the step: the next one begins with the newest weights.
        self._now = max(self._now, self._host, self._out.free)
        times.seconds = self._now - begun


@torch.no_grad()
def _poison(tensor: torch.Tensor) -> None:
    """Fill memory that was evicted, or has not been loaded, with NaN where possible, so that any use shows."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
