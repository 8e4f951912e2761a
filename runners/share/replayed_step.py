"""Steps of a training whose memory does not fit beside the other jobs of its GPU: `share: {memory: replay}`.

SwitchFlow (004 ch. 2.3.3) keeps the intermediate data of one model at a time. So if a job of higher priority wants the GPU, a step is
given up, and done again from its beginning, with the same batches, draws and buffers. The second try is not given up: otherwise a step
longer than the pauses of other jobs would never end.
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..train import rng
from ..train.step import PlainStep
from ..worker import script
from .yielding import Dropped, Yielding

log = logging.getLogger(__name__)

_STATM, _PAGE = Path("/proc/self/statm"), 4096


class ReplayedStep:
    """A plain step, as `Step`. Between its turns only weights, buffers and the optimizer's state are on the GPU."""

    def __init__(self, step: PlainStep) -> None:
        self.inner, self.accumulate, self.values = step, step.accumulate, step.values
        self.replayed, self._steps = 0, 0
        self._sharing: Yielding | None = None

    def place(self, model: nn.Module) -> nn.Module:
        placed = self.inner.place(model)
        self.optimizer = self.inner.optimizer
        return placed

    def share_by(self, sharing: Yielding) -> None:
        self._sharing = sharing
        sharing.free_by(self._free)

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        sharing = self._sharing
        if sharing is None or not sharing.takes_turns:
            return self._alone(batches, weight)
        begin = _Beginning(self.inner.model, batches, self.inner.ranks.device)
        try:
            return self._computed(sharing, batches, weight, dropped=True)
        except Dropped:
            pass  # it frees the step's intermediate data
        # Autograd keeps the unfinished work of an interrupted backward pass until its next one (PyTorch 2.13).
        torch.zeros((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
        gc.collect(1)
        begin.restore()
        sharing.pause()
        self.replayed += 1
        return self._computed(sharing, begin.batches, weight, dropped=False)

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        self.inner.reduce(parameters)

    def close(self) -> None:
        if self.replayed:
            log.info("gave up %d steps for others on its GPU, and did them again", self.replayed)
        self.inner.close()

    def _computed(self, sharing: Yielding, batches: Sequence[Any], weight: float, *, dropped: bool) -> torch.Tensor:
        with sharing.step(dropped=dropped):
            self.inner.model.train()
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.inner.gradients(batches, weight).detach()
        with sharing.step(dropped=False):  # an update cannot be repeated, and an optimizer may look at other weights too
            self.inner.move()
        return loss

    def _alone(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        loss = self.inner.update(batches, weight)
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:  # now and then
            self.optimizer.zero_grad(set_to_none=True)
            tell_kept(self.inner.ranks.device)
        return loss

    def _free(self) -> None:
        """Free the GPU's memory, except weights, buffers and the optimizer's state."""
        self.optimizer.zero_grad(set_to_none=True)
        free(self.inner.ranks.device)


def free(device: torch.device) -> None:
    """Free unused memory of the device, and report the memory in use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    tell_kept(device)


def tell_kept(device: torch.device) -> None:
    # On a slot, memory is measured as that of the process.
    script.keeps(torch.cuda.memory_allocated(device) if device.type == "cuda" else int(_STATM.read_text().split()[1]) * _PAGE)


class _Beginning:
    """The state that a step changes before its update, to restore it; weights and the optimizer's state are not among it."""

    def __init__(self, model: nn.Module, batches: Sequence[Any], device: torch.device) -> None:
        self.batches = copy.deepcopy(batches) if device.type == "cpu" else batches  # on a GPU a step computes on copies
        self._generators = rng.get_state()
        self._buffers = [
            (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
        ]

    def restore(self) -> None:
        rng.set_state(self._generators)
        with torch.no_grad():
            for owner, name, buffer, value in self._buffers:
                owner[name] = None if buffer is None or value is None else buffer.copy_(value)
