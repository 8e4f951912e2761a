"""A device for swapping: memory that is counted and capped, copies in and out on streams of their own, and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

from ...engine.errors import StokerError

T = TypeVar("T")

Pair = tuple[torch.Tensor, torch.Tensor]  #: source and target of a copy


def bytes_of(pairs: Sequence[Pair]) -> int:
    return sum(source.numel() * source.element_size() for source, _ in pairs)


class CapExceeded(StokerError):
    """More device memory was wanted than the cap allows."""


class Event(Protocol):
    """A point in a stream: all earlier work of the stream is done when it is reached."""


class Device(Protocol):
    """One device with three streams, to compute, load and copy out (004 ch. 3.4 has two: there a swap-out delays computing)."""

    name: str
    emulated: bool  #: its times are those of a modelled link, not of hardware
    cap: int  #: bytes
    device: torch.device  #: of its tensors

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a small host tensor on the device, for the computing stream; waits for it."""

    def rounded(self, size: int) -> int:
        """Bytes that its allocator takes for a tensor of so many. Bytes lost between blocks do not count towards the cap."""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor, in the order of the computing stream. Raises CapExceeded."""

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the host for a tensor to be copied out."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host's tensor in memory from which copies run beside all other work."""

    def lifted(self) -> AbstractContextManager[Device]:
        """A device like this one without its cap, to measure on: emulated memory is unlimited, that of hardware is the real one."""

    def drop(self, tensor: torch.Tensor) -> None:
        """Its content is not needed any more; the memory is free once nothing refers to it."""

    def copy_in(self, pairs: Sequence[Pair]) -> Event:
        """Copy from the host, after all work given to the computing stream so far."""

    def copy_out(self, pairs: Sequence[Pair]) -> Event:
        """Copy to the host, after all work given to the computing stream so far."""

    def launch(self, work: Callable[[], T]) -> T:
        """Compute: give operations to the computing stream."""

    def wait(self, event: Event) -> None:
        """Later work of the computing stream waits for the event."""

    def finish(self, event: Event) -> None:
        """The host waits for the event."""

    def on_host(self, work: Callable[[], T]) -> tuple[T, Event]:
        """Work of the host, timed beside the streams; the event is its end."""

    def step(self) -> AbstractContextManager[StepSeconds]:
        """One step of a training, or a measured part of one: its times are known when it has ended."""

    def memory(self) -> tuple[int, int]:
        """Bytes in use now, and the most since the last `reset_peak`."""

    def reset_peak(self) -> None: ...


class StepSeconds:
    """Seconds of one step: in all, computing, waiting for copies (exposed); and the bytes moved."""

    def __init__(self) -> None:
        self.seconds = self.computing = self.stalled = 0.0
        self.bytes_in = self.bytes_out = 0
