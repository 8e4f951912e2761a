"""A CUDA device: three streams, pinned memory, and the allocator's own cap. Written with care and untried: no GPU was at hand.

All memory belongs to the computing stream. A load waits for what computes when its memory is allocated, so whatever used that memory
before is done; what is carried out is kept until the computing stream has waited for the copy. So no `record_stream` is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from .device import CapExceeded, Event, Pair, Times

T = TypeVar("T")


class CudaDevice:
    """The current CUDA device, of which no more than ``cap`` bytes are used."""

    name = "cuda"
    emulated = False

    def __init__(self, cap: int, device: torch.device) -> None:
        self.cap, self.device = cap, device
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), device)
        self._compute = torch.cuda.current_stream(device)
        self._load, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._times = Times()
        self._waits: list[tuple[Any, Any]] = []

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._allocated(lambda: tensor.to(self.device))

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._allocated(lambda: torch.empty_like(tensor, device=self.device, requires_grad=False))

    def drop(self, tensor: torch.Tensor) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def copy_in(self, pairs: Sequence[Pair], after: Sequence[Event] = ()) -> Event:
        for event in after:  # of the host: it is over when the event is there
            self.finish(event)
        self._times.bytes_in += _bytes(pairs)
        return self._copy(self._load, pairs)

    def copy_out(self, pairs: Sequence[Pair]) -> Event:
        self._times.bytes_out += _bytes(pairs)
        return self._copy(self._out, pairs)

    @torch.no_grad()
    def _copy(self, stream: Any, pairs: Sequence[Pair]) -> Event:
        stream.wait_stream(self._compute)
        with torch.cuda.stream(stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            return _recorded(stream)

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        before = _recorded(self._compute)
        self._compute.wait_event(event)
        self._waits.append((before, _recorded(self._compute)))

    def finish(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        event.synchronize()

    def launch(self, work: Callable[[], T]) -> T:
        return self._allocated(work)

    def on_host(self, work: Callable[[], T]) -> tuple[T, Event]:
        return work(), _recorded(self._compute)

    @contextmanager
    def step(self) -> Iterator[Times]:
        self._times = times = Times()
        self._waits = []
        begun = time.perf_counter()
        yield times
        torch.cuda.synchronize(self.device)
        times.seconds = time.perf_counter() - begun
        times.stalled = sum(before.elapsed_time(after) for before, after in self._waits) / 1000
        times.computing = times.seconds - times.stalled

    def _allocated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise CapExceeded(f"out of device memory under a cap of {self.cap:,} bytes: {str(error).splitlines()[0]}") from error


def _recorded(stream: Any) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _bytes(pairs: Sequence[Pair]) -> int:
    return sum(source.numel() * source.element_size() for source, _ in pairs)
