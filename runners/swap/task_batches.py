"""Makes micro-batches of a task: of a whole batch on a device, or of few samples on the host for the comparison."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..device.device import Device
from ..train import rng
from ..train.step import checked
from ..train.task import Task
from .comparison import PlainFails, compared
from .micro_batch import MicroBatch
from .model_profile import size_of
from .model_units import Finder, Units

log = logging.getLogger(__name__)

_FEW_SAMPLES = 2


def begun(task: Task, batch: Any, generators: Any, device: Device, scale: float = 1.0) -> MicroBatch:
    """A micro-batch whose batch is copied from the host to the device."""
    placed = tree_map(lambda leaf: device.put(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)
    return MicroBatch(lambda: checked(task.loss(task.model, placed)), generators, size_of(placed, device.rounded), scale)


def compared_task(task: Task, finder: Finder, batches: Sequence[Any], on_host: bool) -> Units:
    """The model's units, compared with the model itself on the host, with few samples of two batches where it takes them.

    ``on_host``: the training computes on the host too, so that an error there is an error of the job. Else the model may need a GPU; then
    it is not compared.
    """
    for few in (True, False):
        begin = [partial(_on_host, task, batches[number % len(batches)], number, few) for number in range(2)]
        try:
            return compared(task.model, finder, begin)
        except PlainFails as error:
            if not few and on_host:
                assert error.__cause__ is not None
                raise error.__cause__ from None
            why = error.__cause__
    log.warning("swapping: on the host the model fails (%s), so that its parts are not compared with the model itself", why)
    return Units(task.model, finder.units())


def _on_host(task: Task, batch: Any, number: int, few: bool) -> MicroBatch:
    """``few``: of the first samples only, where samples can be told apart; ``number``: the seed of its random numbers."""
    given = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, batch)
    if few and _has_samples(batch):
        given = tree_map(lambda leaf: leaf[:_FEW_SAMPLES], given)
    rng.seed_all(number)
    return MicroBatch(lambda: checked(task.loss(task.model, given)), rng.get_state())


def _has_samples(batch: Any) -> bool:
    """Whether the batch has only tensors, all with the same first dimension."""
    leaves = tree_leaves(batch)
    return all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1
