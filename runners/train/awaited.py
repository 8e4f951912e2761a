"""The cause of a batch that does not come: the samples that are being read, and the stacks of the threads that load."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from ..loaders.workers import channel
from ..loaders.workers.worker_processes import WorkerProcess

_MOST_STACKS = 8
_MOST_SAMPLES = 8
_LOOK_ON = ("stoker-tuner", "stoker-lock")  #: threads that load nothing


def read_sample(data: Any, index: int) -> Any:
    """``data[index]``. An error in it gets a note with the index; `told` finds a thread that hangs in it."""
    try:
        return data[index]
    except Exception as error:
        error.add_note(f"at train[{index}]")
        raise


def augment_sample(augment: Callable[[Any], Any], sample: Any, index: int) -> Any:
    """The same for a task's augmentation of that sample."""
    try:
        return augment(sample)
    except Exception as error:
        error.add_note(f"augmenting train[{index}]")
        raise


def collate_samples(collate: Callable[[list[Any]], Any], samples: list[Any], indices: Iterable[int]) -> Any:
    """The same for a task's collate of those samples."""
    try:
        return collate(samples)
    except Exception as error:
        listed = [*map(str, indices)]
        error.add_note(f"collating train[{', '.join(listed[:_MOST_SAMPLES])}{', …' if len(listed) > _MOST_SAMPLES else ''}]")
        raise


class _Stack(NamedTuple):
    thread: str
    at: str  #: the sample, in words; "" where it is not known
    frames: list[FrameType]  #: outermost first


def told(seconds: float) -> str:
    """One line that says which samples are awaited for so many seconds, and the stacks of the threads at work on them."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and thread.name not in _LOOK_ON]
    stacks = [_stack(thread) for thread in threads]
    # A thread that waits for an item, or for room, is not the cause.
    working = [stack for stack in stacks if not any(frame.f_code.co_filename == channel.__file__ for frame in stack.frames)] or stacks
    working.sort(key=lambda stack: not stack.at)
    where = "; ".join(f"{stack.thread} is {stack.at}" for stack in working[:_MOST_STACKS] if stack.at)
    lines = [f"the next batch has not come for {seconds:.0f} s: {where or 'no thread is at a sample of the data set'}"]
    for stack in working[:_MOST_STACKS]:
        lines.append(f"thread {stack.thread}, the innermost call last:")
        lines += [line.rstrip() for line in traceback.StackSummary.extract((frame, frame.f_lineno) for frame in stack.frames).format()]
    if len(working) > _MOST_STACKS:
        lines.append(f"and {len(working) - _MOST_STACKS} threads more")
    return "\n".join(lines)


def _stack(thread: threading.Thread) -> _Stack:
    frame = sys._current_frames().get(thread.ident or 0)
    frames = list(_outwards(frame))[::-1]
    return _Stack(thread.name, next((words for words in map(_sample, frames) if words), ""), frames)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _sample(frame: FrameType) -> str:
    """The sample that the call is at, in words, if it reads or augments one, here or in a worker process; else ""."""
    if frame.f_code is read_sample.__code__:
        return f"at train[{frame.f_locals['index']}]"
    if frame.f_code is augment_sample.__code__:
        return f"augmenting train[{frame.f_locals['index']}]"
    if frame.f_code is not WorkerProcess.call.__code__:
        return ""
    sent, process = frame.f_locals["call"].payloads[0], frame.f_locals["self"].pid
    indices = [place[1] for place in sent if isinstance(place, tuple) and len(place) == 2] if isinstance(sent, list) else []
    shown = ", ".join(map(str, indices[:_MOST_SAMPLES])) + (", …" if len(indices) > _MOST_SAMPLES else "")
    return f"waiting for worker process {process}, which is at one of train[{shown}]" if shown else f"waiting for worker process {process}"
