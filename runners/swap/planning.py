"""The internal recipe of `stoker swap plan`: profiles a task's model on the device at hand, and plans a swapped step.

It trains nothing. The plan is one line of the job's output, which the command reads.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from ...engine.errors import UsageError
from ...engine.spec.model import JobSpec
from ..device.cuda import CudaDevice
from ..device.device import Device
from ..device.metered import MeteredDevice
from ..train import rng
from ..train.batch_feeds import SampleSource
from ..train.batches import Order
from ..train.task import Task
from .interception import Interception
from .model_profile import measure
from .model_units import Finder
from .partition import MeasuredChain
from .swap_executor import Varies
from .swap_plan import plan_step
from .task_batches import begun, compared_task

MARK = "stoker-swap-plan "  #: begins the line with the plan


def run(spec: JobSpec, task: Task, cap: int, accumulate: int | None, device: torch.device) -> None:
    """Profile and plan; ``accumulate`` None: choose it. UsageError: the model cannot be cut, or nothing fits into the cap."""
    on = whole_device(device)
    measured = measured_task(task, on)
    plan = plan_step(measured, cap, accumulate)
    answer = {
        "name": spec.name,
        "model": spec.model,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "emulated on the CPU",
        "emulated": on.emulated,
        "pieces": len(measured.pieces),
    }
    _say(MARK + json.dumps(answer | asdict(plan)))


def measured_task(task: Task, device: Device) -> MeasuredChain:
    """Profile the task's model with its first batch."""
    task.check(1)
    task.model.train()
    batch = first_batch(task)
    units = compared_task(task, Finder(task.model, task.units, task.whole), [batch], device.emulated)
    interception = Interception(units)
    try:
        for varied in (units.varied, True):
            units.varied = varied
            with suppress(Varies):
                return measure(units, lambda where: begun(task, batch, rng.get_state(), where), device, _say)
        raise UsageError("memory: the calls of the model's modules change their order while it is measured; write 'memory: {swap: off}'")
    finally:
        interception.close()


def first_batch(task: Task) -> Any:
    """The first batch that the training would make."""
    order = Order(len(task.train), task.batch_size, task.seed)
    source = SampleSource(task.train, task.augment, task.collate, task.seed, order)
    samples = [source.augmented(place, 0, source.decode(place, order.index(place))) for place in range(task.batch_size)]
    return source.collated(samples, range(task.batch_size))


def whole_device(device: torch.device) -> Device:
    """All of the GPU; without one, an emulated device."""
    if device.type == "cuda":
        return CudaDevice(torch.cuda.get_device_properties(device).total_memory, device)
    return MeteredDevice(1 << 60)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
