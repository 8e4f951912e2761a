"""Steps of a model in parts, made by hand: its units, cuts between their calls, and micro-batches."""

from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.comparison import compared
from stoker.runners.swap.interception import Interception
from stoker.runners.swap.micro_batch import MicroBatch
from stoker.runners.swap.model_units import Finder
from stoker.runners.swap.swap_executor import SwapExecutor
from stoker.runners.train import rng


def units_of(model, loss, batches, named=()):
    """As a training finds them with these batches on the host; ``loss(model, batch)``."""
    model.train()
    begin = [lambda batch=batch: MicroBatch(lambda: loss(model, batch), rng.get_state()) for batch in batches]
    units = compared(model, Finder(model, named), begin)
    Interception(units)
    return units


def executor_of(units, parts, device=None):
    """In so many parts of like many calls."""
    legal = units.cuts()
    cuts = sorted({legal[(part * (len(legal) + 1)) // parts - 1] for part in range(1, parts)})
    assert len(cuts) == parts - 1
    return SwapExecutor(units, cuts, device or MeteredDevice(1 << 40))


def micro_batch(executor, loss, batch):
    """With the generators as they are; its batch is on the device."""
    there, model = executor.device.put(batch), executor.units.model
    return MicroBatch(lambda: loss(model, there), rng.get_state())
