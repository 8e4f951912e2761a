"""A micro-batch: the task's loss and its backward, in a thread of its own that waits at the calls of units.

Exactly one thread runs at a time. It goes on while the units that it calls are in the part on the device, and waits at the first call of
another part. So all micro-batches go through a part before the next part is loaded, and the model's forward runs as it stands.
"""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import overrides
from torch.utils import _python_dispatch

from ...engine.errors import UsageError
from ..train import rng
from ..train.step import scaled
from .interception import Called, here

IN_PLACE = ("memory: what a gradient or another part needs is changed in place; write that operation so that it makes a new tensor, "
            "as x = x + 1 does for x += 1, or with inplace=False")  # fmt: skip


class _Abandoned(BaseException):
    """Ends a thread that nobody waits for any more. It is no Exception, so that a task's loss does not catch it."""


class MicroBatch:
    """``work``: computes the loss, which is scaled; ``generators``: random states from which it begins; ``inputs``: bytes of its batch."""

    def __init__(self, work: Callable[[], torch.Tensor], generators: Any, inputs: int = 0, scale: float = 1.0) -> None:
        self.work: Callable[[], torch.Tensor] | None = work
        self.generators, self.inputs, self.scale = generators, inputs, scale
        self.called: Called | None = None  #: answers in place of units
        self.gone_back: Callable[[int], None] = lambda part: None  #: called with the part after each call of a unit that has gone back
        self.loss: torch.Tensor | None = None
        self.told: torch.Tensor | None = None  #: the loss before it was scaled, as metrics have it
        self.part: int | None = None  #: the part in which it may compute
        self.wanted: tuple[int, bool] | None = None  #: the part for which it waits, and whether to go back through it
        self.last: int | None = None  #: the part in which it turns back
        self.halt: int | None = None  #: going back, it waits once before a call at a place below this one
        self.back = False  #: the loss is there, and gradients come back
        self.visit = 0  #: how often it has waited
        self.place = 0  #: of the next call, if calls come in the order in which they were seen
        self.lowest: int | None = None  #: the first part that has a call through which gradients come back
        self.error: BaseException | None = None
        self.ended = False
        self._go, self._told = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    # ---- in the thread that gives the turn ----

    def until(self, part: int) -> None:
        """Compute until another part is wanted, or to the end. An error in its thread is raised here."""
        self.part, self.wanted = part, None
        outer = rng.get_state()
        if self._thread is None:
            self._thread = self._made()
            self._thread.start()
        self._go.release()
        self._told.acquire()
        rng.set_state(outer)
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback has this frame

    def abandon(self) -> None:
        if self._thread is not None and not self.ended:
            self.part = None
            self._go.release()
            self._thread.join()
        self._end()

    def _end(self) -> None:
        """Let go of all that refers back to it, so that its tensors are freed with it."""
        self.called, self.work, self.ended = None, None, True
        self.gone_back = lambda part: None

    def _made(self) -> threading.Thread:
        context, states = contextvars.copy_context(), _ThreadStates()

        def run() -> None:
            self._go.acquire()
            try:
                if self.part is not None:
                    with states:
                        rng.set_state(self.generators)
                        here.called = self.called
                        self._compute()
            except _Abandoned:
                pass
            except RuntimeError as error:
                self.error = _refused(error)
            except BaseException as error:
                self.error = error
            finally:
                here.called = None
                self._end()
                self._told.release()

        return threading.Thread(target=lambda: context.run(run), name="micro-batch", daemon=True)

    # ---- in its own thread ----

    def _compute(self) -> None:
        assert self.work is not None
        loss = self.work()
        self.told, loss = loss.detach(), scaled(loss, self.scale)
        if self.last is not None:
            self.pause(self.last)
        self.loss, self.back = loss.detach(), True
        self.computed()
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        self.generators = rng.get_state()

    def computing(self) -> None:
        """Called before a part, or some of it, is computed again."""

    def computed(self) -> None:
        """Called when a part, or the rest of the loss, has been computed with its graph, before gradients go through it."""

    def pause(self, part: int, back: bool = False) -> None:
        """Wait until the part is on the device and it is this one's turn."""
        if self._thread is not threading.current_thread():
            raise UsageError(
                "memory: the loss of one batch uses what another one has left, outside of the model; write 'memory: {swap: off}'"
            )
        if part != self.part:
            self.visit += 1
            self._wait(part, back)

    def rest(self, place: int) -> None:
        """Wait once in the middle of its part."""
        if self.halt is not None and place < self.halt and self.part is not None:
            self.halt = None
            self._wait(self.part, True)

    def _wait(self, part: int, back: bool) -> None:
        self.wanted, self.generators = (part, back), rng.get_state()
        self._told.release()
        self._go.acquire()
        if self.part is None:
            raise _Abandoned
        rng.set_state(self.generators)


def _refused(error: RuntimeError) -> Exception:
    """One line for an error of autograd's about changes in place; any other error as it is."""
    said = " ".join(str(error).partition(". ")[0].split())
    return UsageError(f"{IN_PLACE} ({said})") if re.search("in-?place", said) else error


class _ThreadStates:
    """torch's state of a thread (gradients, autocast, modes, stream): copied where this is made, put in force where it is entered."""

    def __init__(self) -> None:
        self.threads = torch.get_num_threads()
        self.gradients = torch.is_grad_enabled()
        self.autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        self.dispatch = _python_dispatch._get_current_dispatch_mode_stack()
        self.functions = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self.stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        self.stack = ExitStack()
        # MKL has a number of threads for each thread, which torch sets only at some operations; a product's sums depend on it.
        torch.set_num_threads(self.threads)
        if self.stream is not None:
            self.stack.enter_context(torch.cuda.stream(self.stream))
        for mode in self.functions:
            overrides._push_mode(mode)  # type: ignore[no-untyped-call]
            self.stack.callback(overrides._pop_mode)
        for mode in self.dispatch:
            _python_dispatch._push_mode(mode)
            self.stack.callback(_python_dispatch._pop_mode)
        for kind, dtype in self.autocast:
            self.stack.enter_context(torch.autocast(kind, dtype=dtype))
        self.stack.enter_context(torch.set_grad_enabled(self.gradients))
        # On a GPU too backward runs in this thread: else one thread, which waits, would serve all micro-batches.
        self.stack.enter_context(torch.autograd.set_multithreading_enabled(False))

    def __exit__(self, *error: object) -> None:
        self.stack.close()
