"""A task's loss, taken apart: what it calls the model with, and the loss of an answer that was computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...engine.errors import UsageError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Asked(BaseException):
    """The loss has called the model. No Exception, so that no loss catches it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.bound = args, kwargs


def _nowhere(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise UsageError("memory: the model is called in eval mode by the task's loss; write 'memory: {swap: off}'")


class LossCall:
    """Stands in for the model's forward until it is closed: tells with what it was called, gives an answer, or has it computed.

    ``evaluate``: what computes answers in eval mode.
    """

    def __init__(self, model: nn.Module, evaluate: Callable[[tuple[Any, ...], dict[str, Any]], Any] = _nowhere) -> None:
        self.model, self.evaluate = model, evaluate
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

    def inputs(self, loss: Callable[[], object]) -> Arguments:
        """What the loss calls the model with. UsageError where it does not call it."""
        self.asking = True
        try:
            loss()
        except _Asked as asked:
            return asked.bound
        finally:
            self.asking = False
        raise UsageError("memory: the task's loss(model, batch) does not call the model; write 'memory: {swap: off}'")

    def loss(self, loss: Callable[[], torch.Tensor], answer: Callable[[], Any]) -> torch.Tensor:
        """The loss of an answer."""
        self.given, self.used = answer, False
        try:
            return loss()
        finally:
            self.given = None
