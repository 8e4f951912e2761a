"""A training's part in the turns of its GPU: it has the turn while it computes, and pauses in place for a higher priority.

A pause is a wait at any point of the step: nothing is dropped and nothing replayed, so the weights are those of a run without pauses, to
the bit. It checks before each module's forward and after each gradient of a trained weight. The hook on modules is torch's global one, as
hooks of single modules keep torch from its fast paths, which changes bits; hooks on backward passes raise if activations are changed in
place.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ..lease.rundir import ENV_LEASE, ENV_RUN_DIR
from ..train import batches
from ..worker import script
from .told_turns import ToldTurns
from .turn import Turn

log = logging.getLogger(__name__)

#: Whether this thread computes a training. Threads that compute its micro-batches inherit it; those that load do not.
_computes: ContextVar[bool] = ContextVar("computes", default=False)


class Dropped(BaseException):
    """A step is given up. Not an Exception, as a model may catch those and go on."""


class Yielding:
    """A training computes within ``with``. The agent's file `TURN` in its run directory says whether it takes turns."""

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        run_dir = os.environ.get(ENV_RUN_DIR)
        self._told = ToldTurns(Path(run_dir), int(os.environ.get(ENV_LEASE, "0")), leaving=script.should_stop) if run_dir else None
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._device = device
        self._turn: Turn | None = None
        self._hooks: list[Any] = []
        self._armed = False  #: it computes
        self._free: Callable[[], None] | None = None  #: frees memory before another job has the turn
        self._in_step: bool | None = None  #: of one that frees memory: whether it drops its step for others; None: no step
        self.pauses, self.paused = 0, 0.0  #: number, and seconds
        script.yield_by(self._look)

    def __enter__(self) -> None:
        self._follow()
        if self._turn is not None:
            self._turn.take()
            self._armed = True
            _computes.set(True)

    def __exit__(self, *error: object) -> None:
        self._armed = False
        if self._turn is not None:
            self._let_go()
            self._turn.give()

    def free_by(self, free: Callable[[], None]) -> None:
        """Drop steps for others instead of pausing, so between turns only the memory that ``free`` keeps is on the GPU."""
        self._free = free

    @property
    def takes_turns(self) -> bool:
        return self._turn is not None

    @property
    def may_go_on(self) -> bool:
        """Between two pieces of work: whether no job of higher or equal priority waits, and the agent's file is unchanged."""
        if self._told is not None and self._told.has_news():
            return False
        return self._turn is None or not self._turn.wanted(by_equals=True)

    @contextmanager
    def step(self, *, dropped: bool) -> Iterator[None]:
        """A step of a training that frees memory. ``dropped``: it ends with `Dropped` for a higher priority; else it is not interrupted."""
        self._in_step = dropped
        try:
            yield
        finally:
            self._in_step = None

    def pause(self) -> None:
        """Give way, and return with the turn."""
        if self._turn is None:
            return
        began = time.perf_counter()
        self._let_go()
        self._turn.pause()
        self.pauses += 1
        self.paused += time.perf_counter() - began

    def close(self) -> None:
        if self.pauses:
            log.info("paused %d times for others on its GPU, %.1f s in all", self.pauses, self.paused)
        self._unhook()
        if self._told is not None:
            self._told.close()

    def _follow(self) -> None:
        """Follow the agent's file."""
        if self._told is None:
            return
        self._told.follow()
        if self._turn is self._told.turn:
            return
        self._unhook()
        self._turn = self._told.turn
        if self._turn is not None:
            self._hooks = [register_module_forward_pre_hook(self._before_module)]
            self._hooks += [parameter.register_post_accumulate_grad_hook(self._look) for parameter in self._trained]  # type: ignore[no-untyped-call]
            batches.between = self._look_between

    def _before_module(self, module: nn.Module, inputs: Any) -> None:
        if self._armed and _computes.get():  # modules in threads that load are not the model's
            self._look()

    def _look(self, *_: Any) -> None:
        """Within a step: a pause here keeps its results so far."""
        if self._is_wanted() and (self._free is None or self._in_step):
            self._give_way()

    def _look_between(self) -> None:
        """Between two items of a loop, also of one that loads."""
        if _computes.get() and self._is_wanted() and self._in_step is not False:
            self._give_way()

    def _is_wanted(self) -> bool:
        return self._armed and self._turn is not None and self._turn.wanted()

    def _give_way(self) -> None:
        if self._in_step:
            raise Dropped
        self.pause()

    def _let_go(self) -> None:
        self._settle()
        if self._free is not None:
            self._free()

    def _settle(self) -> None:
        """Wait until launched work is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        batches.between = None
