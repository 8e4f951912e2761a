"""A CUDA device: three streams, pinned memory, and a limit of the allocator's own. Tried on an H100 (docs/memory.md).

All memory belongs to the computing stream. A load waits for the work in that stream when its memory is allocated, so earlier uses of the
memory are done. A tensor being copied out is kept until the computing stream has waited for the copy. So no `record_stream` is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from .device import CapExceeded, Device, Event, Pair, StepSeconds, bytes_of

T = TypeVar("T")

_BLOCK = 512  #: bytes of the allocator's unit
_PAGE_WASTE = 64 << 20  #: bytes lost in its pages of 20 MiB, parts of which libraries keep for good


@dataclass(frozen=True, slots=True)
class _Copied:
    """The end of a copy; and the computing stream's place, with the value of `_given`, when the copy was queued."""

    end: torch.cuda.Event
    asked: torch.cuda.Event
    given: int


class _Step:
    """The timed spans of the computing stream in which it waited and computed."""

    def __init__(self) -> None:
        self.times = StepSeconds()
        self.waits: list[tuple[Any, Any]] = []
        self.launches: list[tuple[Any, Any]] = []


class CudaDevice:
    """The current CUDA device, of which at most ``cap`` bytes are used. The context of CUDA comes on top."""

    name = "cuda"
    emulated = False

    def __init__(self, cap: int, device: torch.device) -> None:
        self.cap, self.device = cap, device
        if not any(name in os.environ for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")):
            # Blocks of exactly the wanted size: otherwise each large one may be 1 MiB larger, and the free bytes between them are lost.
            _set_allocator("expandable_segments:True")
        self._allow(cap)
        self._compute = torch.cuda.current_stream(device)
        self._load, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._given = 0  #: operations given to the computing stream
        self._step = _Step()

    def _allow(self, size: int) -> None:
        """Allow so many bytes in use. The allocator may take more, lost between used blocks; a trial counts the used bytes alone."""
        size += size // 16 + _PAGE_WASTE
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), self.device)

    @contextmanager
    def lifted(self) -> Iterator[Device]:
        """Itself, with half of the free memory: other processes may use the GPU too."""
        free, _ = torch.cuda.mem_get_info(self.device)
        self._allow(max(self.cap, torch.cuda.memory_reserved(self.device) + free // 2))
        try:
            yield self
        finally:
            torch.cuda.empty_cache()
            self._allow(self.cap)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._allocated(lambda: tensor.detach().to(self.device, copy=True))

    def rounded(self, size: int) -> int:
        return -(-size // _BLOCK) * _BLOCK

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._allocated(lambda: torch.empty_like(tensor, device=self.device, requires_grad=False))

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=True)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def drop(self, tensor: torch.Tensor) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def copy_in(self, pairs: Sequence[Pair]) -> Event:
        self._step.times.bytes_in += bytes_of(pairs)
        return self._copy(self._load, pairs)

    def copy_out(self, pairs: Sequence[Pair]) -> Event:
        self._step.times.bytes_out += bytes_of(pairs)
        return self._copy(self._out, pairs)

    @torch.no_grad()
    def _copy(self, stream: Any, pairs: Sequence[Pair]) -> Event:
        asked = _recorded(self._compute)
        stream.wait_event(asked)
        with torch.cuda.stream(stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            return _Copied(_recorded(stream), asked, self._given)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _Copied)
        # If nothing was computed since the copy was queued, the stream has waited since then, before the host came to ask.
        before = event.asked if event.given == self._given else _recorded(self._compute)
        self._compute.wait_event(event.end)
        self._step.waits.append((before, _recorded(self._compute)))
        self._given += 1

    def finish(self, event: Event) -> None:
        assert isinstance(event, _Copied)
        event.end.synchronize()

    def launch(self, work: Callable[[], T]) -> T:
        before = _recorded(self._compute)
        done = self._allocated(work)
        self._step.launches.append((before, _recorded(self._compute)))
        self._given += 1
        return done

    def on_host(self, work: Callable[[], T]) -> tuple[T, Event]:
        done, now = work(), _recorded(self._compute)
        return done, _Copied(now, now, self._given)

    @contextmanager
    def step(self) -> Iterator[StepSeconds]:
        around, self._step = self._step, _Step()
        step, begun = self._step, time.perf_counter()
        try:
            yield step.times
            torch.cuda.synchronize(self.device)
        finally:
            self._step = around
        step.times.seconds = time.perf_counter() - begun
        step.times.stalled = _seconds(step.waits)
        step.times.computing = _seconds(step.launches)

    def _allocated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise CapExceeded(f"out of device memory under a cap of {self.cap:,} bytes: {str(error).splitlines()[0]}") from error


def _set_allocator(settings: str) -> None:
    known = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # by its older name before torch 2.9
    (known or torch.cuda.memory._set_allocator_settings)(settings)


def _recorded(stream: Any) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _seconds(spans: Sequence[tuple[Any, Any]]) -> float:
    return float(sum(before.elapsed_time(after) for before, after in spans)) / 1000
