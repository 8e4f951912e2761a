"""How a training takes part in the turns of its GPU: it has the turn while it computes, and pauses in place for a higher priority.

A pause is a wait, wherever the step is: nothing is dropped and nothing replayed, so the weights are those of a run that was never paused,
to the bit. It looks before each module's forward and after each gradient of what it trains. The hook on modules is torch's global one, as
hooks of single modules keep torch off its fast paths, which changes bits; those on backward passes raise where activations are changed in
place.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
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

#: Whether this computes a training. Threads that compute its micro-batches begin with what their maker has; those that load do not.
_computes: ContextVar[bool] = ContextVar("computes", default=False)


class Yielding:
    """``with`` it a training computes. The file `TURN` of its run directory, written by the agent, says whether there are turns to take."""

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        run_dir = os.environ.get(ENV_RUN_DIR)
        self._told = ToldTurns(Path(run_dir), int(os.environ.get(ENV_LEASE, "0")), leaving=script.should_stop) if run_dir else None
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._device = device
        self._turn: Turn | None = None
        self._hooks: list[Any] = []
        self._armed = False  #: it computes
        self.pauses, self.paused = 0, 0.0  #: how often, and seconds
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
            self._settle()
            self._turn.give()

    def close(self) -> None:
        if self.pauses:
            log.info("paused %d times for others on its GPU, %.1f s in all", self.pauses, self.paused)
        self._unhook()
        if self._told is not None:
            self._told.close()

    def _follow(self) -> None:
        """Do as the agent says now."""
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
            batches.between = self._look

    def _before_module(self, module: nn.Module, inputs: Any) -> None:
        if self._armed and _computes.get():  # modules of threads that load are none of the model's
            self._look()

    def _look(self, *_: Any) -> None:
        turn = self._turn
        if not self._armed or turn is None or not turn.wanted():
            return
        began = time.perf_counter()
        self._settle()
        turn.pause()
        self.pauses += 1
        self.paused += time.perf_counter() - began

    def _settle(self) -> None:
        """What has been launched computes still."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        batches.between = None
