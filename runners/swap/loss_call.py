"""A task's loss, taken apart: what it calls the model with, and the loss of an answer that was computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...engine.errors import UsageError
from .chain import versions

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Asked(BaseException):
    """The loss has called the model. No Exception, so that no loss catches it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.bound = args, kwargs


def _nowhere(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise UsageError("memory: the model is called in eval mode by the task's loss; write 'memory: {swap: off}'")


class LossCall:
    """Stands in for the model's forward until it is closed: tells with what it was called, gives an answer, or has it computed.

    ``task_loss``: of a model and a batch; ``evaluate``: what computes answers in eval mode.
    """

    def __init__(
        self,
        model: nn.Module,
        task_loss: Callable[[nn.Module, Any], torch.Tensor],
        evaluate: Callable[[tuple[Any, ...], dict[str, Any]], Any] = _nowhere,
    ) -> None:
        self.model, self.task_loss, self.evaluate = model, task_loss, evaluate
        self.asking = False
        self.given: Callable[[], Any] | None = None
        self.used = False
        if "forward" in vars(model):
            raise UsageError(
                "memory: the model's forward is set on the model itself; write it in its class, or write 'memory: {swap: off}'"
            )
        model.forward = self

    def close(self) -> None:
        vars(self.model).pop("forward", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.asking:
            if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
                raise UsageError("memory: the task's loss calls the model under torch.autocast, which its parts are not computed under; "
                                 "write 'memory: {swap: off}'")  # fmt: skip
            raise _Asked(args, kwargs)
        if self.given is not None:
            if self.used:
                raise UsageError("memory: the task's loss(model, batch) calls the model more than once; write 'memory: {swap: off}'")
            self.used = True
            return self.given()
        if not self.model.training:
            return self.evaluate(args, kwargs)
        raise UsageError("memory: the model is called in training mode, but not by the task's loss; write 'memory: {swap: off}'")

    def inputs(self, batch: Any) -> Arguments:
        """What the loss of a batch calls the model with. UsageError where it does not call it."""
        self.asking, before = True, versions(batch)
        try:
            self.task_loss(self.model, batch)
        except _Asked as asked:
            _require_same(batch, before)
            return asked.bound
        finally:
            self.asking = False
        raise UsageError("memory: the task's loss(model, batch) does not call the model; write 'memory: {swap: off}'")

    def loss(self, batch: Any, answer: Callable[[], Any]) -> torch.Tensor:
        """The loss of a batch with this answer of the model."""
        self.given, self.used, before = answer, False, versions(batch)
        try:
            loss = self.task_loss(self.model, batch)
        finally:
            self.given = None
        _require_same(batch, before)
        return loss


def _require_same(batch: Any, before: Sequence[int]) -> None:
    """The loss is called twice with a batch, and more often while cuts are tried."""
    if versions(batch) != before:
        raise UsageError("memory: the task's loss, or its model, changes the batch in place, but is called more than once with it; "
                         "change a copy, as x.clone() makes it, or write 'memory: {swap: off}'") from None  # fmt: skip
