"""A task's loss, taken apart: the inputs that it calls the model with, and the loss of an answer that was computed elsewhere."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ...engine.errors import UsageError
from ..train.step import checked
from ..train.task import Task
from .chain import Chain, Values


class _Asked(BaseException):
    """The loss has called the model. No Exception, so that no loss catches it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.bound = args, kwargs


def inputs_of(task: Task, chain: Chain, batch: Any) -> Values:
    """What the loss of a batch gives to the model. UsageError where it does not call it."""

    def ask(*args: Any, **kwargs: Any) -> NoReturn:
        raise _Asked(args, kwargs)

    try:
        task.loss(ask, batch)  # type: ignore[arg-type]
    except _Asked as asked:
        return chain.bind(*asked.bound)
    raise UsageError("memory: the task's loss(model, batch) does not call the model; write 'memory: {swap: off}'")


def loss_of(task: Task, answer: Any, batch: Any) -> torch.Tensor:
    """The loss of a batch for which the model has given this answer."""
    left = [answer]

    def give(*args: Any, **kwargs: Any) -> Any:
        if not left:
            raise UsageError("memory: the task's loss(model, batch) calls the model more than once; write 'memory: {swap: off}'")
        return left.pop()

    return checked(task.loss(give, batch))  # type: ignore[arg-type]
