"""Training under a cap of device memory: the model's parts are swapped in and out, weights and optimizer stay on the host (004 ch. 3.3).

On a CPU it computes the same as the plain step with the same batches, to the bit. The task's loss runs as it stands, in a thread for each
micro-batch, which waits where the model calls a unit of another part (`micro_batch`).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from ...engine.errors import UsageError
from ...engine.spec.model import Memory
from ..device.cuda import CudaDevice
from ..device.device import CapExceeded, Device, StepSeconds
from ..device.metered import MeteredDevice
from ..train import rng
from ..train.step import Arrived, PartialStep, PlainStep, drawn, mean, optimizer_of
from ..train.task import Task
from ..worker import script
from ..worker.ranks import Ranks
from .host_memory import give_back_large_blocks
from .interception import Interception, here
from .micro_batch import MicroBatch
from .model_profile import size_of
from .model_units import Finder, Units
from .module_state import back_after_error
from .swap_executor import SwapExecutor, Varies
from .task_batches import begun, compared_task
from .tried_cuts import DoesNotFit, cuts_for

log = logging.getLogger(__name__)


def step_of(memory: Memory, task: Task, ranks: Ranks) -> PartialStep:
    """The step of a job with this block ``memory``."""
    if memory.cap is None:
        return PlainStep(task, ranks, memory.batches, fused=True)
    return SwappedStep(task, memory, open_device(memory.cap, ranks.device))


def open_device(cap: int, device: torch.device) -> Device:
    """``cap`` bytes of a GPU; on a CPU the emulated device."""
    if device.type != "cuda":
        return MeteredDevice(cap)
    if cap > (there := torch.cuda.get_device_properties(device).total_memory):
        raise UsageError(f"memory.cap: {cap} bytes is more than the GPU has, {there} bytes; lower it")
    return CudaDevice(cap, device)


class SwappedStep:
    """A step of C micro-batches by parts; the optimizer's step of a part runs while the parts before it are still computed.

    It does not overlap where something needs all gradients at once: clipping, or an optimizer that looks at all weights together.
    """

    def __init__(self, task: Task, memory: Memory, device: Device) -> None:
        assert memory.cap is not None
        self.task, self.device, self.accumulate, self.cap = task, device, memory.batches, memory.cap
        self.together: int | None = memory.batches
        self.least = 2 if memory.swap == "force" else 1
        self.values: dict[str, float] = {}
        self.units: Units | None = None
        self.interception: Interception | None = None
        self.executor: SwapExecutor | None = None
        self.cuts: tuple[int, ...] = ()
        self.largest: dict[int, tuple[int, ...]] = {}  #: largest shapes of a batch's tensors so far; with larger ones the model is cut anew
        self.evaluated_here = False  #: on the host, as a batch did not fit under the cap

    def place(self, model: nn.Module) -> nn.Module:
        self.model = model
        self.finder = Finder(model, self.task.units, self.task.whole)
        self.finder.units()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = self.device.pinned(tensor.data)
        self.optimizer = optimizer_of(self.task, model, fused=True)
        self.overlapped = self.task.clip_norm is None and _apart(self.optimizer)
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for name, parameter in model.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise UsageError(f"memory: {name} has a hook on its gradient, which parts would not call; write 'memory: {{swap: off}}'")
        give_back_large_blocks()
        return model

    def reduce(self, parameters: Sequence[nn.Parameter]) -> None:
        pass  # where others compute a part, `share` tells of each gradient as it arrives

    def close(self) -> None:
        if self.interception is not None:
            self.interception.close()

    # ---- one step ----

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        starts, after = _starts(len(batches))
        micro = self._computed(batches, starts, [weight / len(batches)] * len(batches), self._arrived, self._end)
        rng.set_state(after if after is not None else micro[0].generators)
        return _finite(mean([batch.told for batch in micro if batch.told is not None]))

    def _computed(
        self, batches: Sequence[Any], starts: Sequence[Any], scales: Sequence[float], arrived: Arrived, end: Callable[[], None]
    ) -> list[MicroBatch]:
        """The micro-batches, gone through forward and back, and then ``end``."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        self._require_room(size_of(list(batches), self.device.rounded))
        self.moved = False
        made = self._step(batches, starts, scales, arrived, end)
        if made is None:  # random choices of the model may take more memory than in the steps before
            _log("the step does not fit; it is cut anew")
            self.largest, self.overlapped = {}, False
            made = self._step(batches, starts, scales, arrived, end, last=True)
        assert made is not None
        micro, times = made
        self._tell(times)
        return micro

    def _step(
        self, batches: Sequence[Any], starts: Sequence[Any], scales: Sequence[float], arrived: Arrived, end: Callable[[], None],
        last: bool = False,
    ) -> tuple[list[MicroBatch], StepSeconds] | None:  # fmt: skip
        """One step; None: it does not fit, and no weight has been moved."""
        executor = self._ready(batches, starts, scales[0])
        assert self.units is not None
        moving = [self.units.slots[name] for name in self.units.seen.moving]
        self.device.reset_peak()
        try:
            with back_after_error(moving, self.units.seen.changing), self.device.step() as times:
                each = zip(batches, starts, scales, strict=True)
                micro = [begun(self.task, batch, start, self.device, scale) for batch, start, scale in each]
                executor.run(micro, arrived)
                end()
        except (CapExceeded, Varies) as error:
            self.units.varied |= isinstance(error, Varies)
            if last or self.moved:
                raise
            self.optimizer.zero_grad(set_to_none=True)
            return None
        return micro, times

    def _require_room(self, size: int) -> None:
        if size > self.cap:
            raise UsageError(
                f"memory.cap: the batches of a step alone take {-(-size // 1024)}KiB with accumulate: {self.accumulate}, and the cap is "
                f"{self.cap} bytes; raise it, or lower the batch size or accumulate"
            )

    def _ready(self, batches: Sequence[Any], starts: Sequence[Any], scale: float) -> SwapExecutor:
        if self._grown(batches) or self.executor is None:
            used, before = (self.cuts, self.units) if self.executor is not None else (None, None)
            cuts = self._cut(batches, starts, scale, used)
            if self.executor is None or cuts != self.cuts or self.units is not before:
                assert self.units is not None
                self.cuts, self.executor = cuts, SwapExecutor(self.units, cuts, self.device)
                where = "emulated on the CPU" if self.device.emulated else "on the GPU"
                log.info("swapping %d parts of the model under a cap of %s bytes, %s", len(cuts) + 1, f"{self.cap:,}", where)
        return self.executor

    def _cut(self, batches: Sequence[Any], starts: Sequence[Any], scale: float, used: tuple[int, ...] | None) -> tuple[int, ...]:
        """Cuts with the units at hand if they suffice, else with smaller ones."""
        largest = max(batches, key=_elements)
        smallest: list[int] = []
        draws = itertools.cycle(starts)  # those of the step, as its memory may depend on them
        while True:
            units = self.units if self.units is not None else self._compared(batches)
            try:
                return cuts_for(
                    units, self.cap, self.accumulate,
                    lambda device: begun(self.task, largest, next(draws), device, scale),
                    self.device, self.least, used, _log,
                )  # fmt: skip
            except Varies:
                units.varied = True
                continue
            except DoesNotFit as error:
                smallest += [error.smallest] if error.smallest is not None else []
            if not self._smaller_units(units):
                raise self._does_not_fit(units, smallest)
            used = None

    def _smaller_units(self, units: Units) -> bool:
        """Whether there are other places to cut."""
        if not units.apart and len(units.cuts()) < len(units) - 1:
            units.apart = True
            _log("calls of one module may be in several parts, each of which loads it again")
            return True
        self.units = None
        return self.finder.open_largest()

    def _does_not_fit(self, units: Units, smallest: Sequence[int]) -> UsageError:
        if not smallest and self.least > 1:
            return UsageError("memory.swap: force: the model cannot be cut into parts; write swap: off")
        would = f"the smallest that would is {-(-min(smallest) // 1024)}KiB" if smallest else "ask for more of the GPU"
        shared = [name for name in units.slots if name in units.seen.shared]
        used = max(shared, key=lambda name: units.masters[name].numel(), default=None)
        if used is not None:
            would += (f"; {used} is used far apart under one name, so that all of it stays on the device: give it two, as "
                      "'head.weight = words.weight' does")  # fmt: skip
        cap = -(-self.cap // 1024)
        return UsageError(
            f"memory.cap: this model with accumulate: {self.accumulate} does not fit into {cap}KiB however it is cut; {would}"
        )

    def _compared(self, batches: Sequence[Any]) -> Units:
        """The model's units, after the comparison with the model itself on the host."""
        self.close()
        self.units = compared_task(self.task, self.finder, batches, self.device.emulated)
        self.interception = Interception(self.units, self._called)
        return self.units

    def _grown(self, batches: Sequence[Any]) -> bool:
        grown = False
        for batch in batches:
            for key, shape in enumerate(tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)):
                before = self.largest.get(key, ())
                if len(before) != len(shape) or any(new > old for new, old in zip(shape, before, strict=True)):
                    grown = True
                    self.largest[key] = shape if len(before) != len(shape) else tuple(map(max, shape, before))
        return grown

    def _end(self) -> None:
        """Move the weights that have not been moved yet."""
        assert self.executor is not None
        if not self.overlapped:
            self.device.on_host(self._optimize)
        elif not self.moved:
            self._move()
        self.executor.stepped()

    def _optimize(self) -> None:
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self._move()

    def _move(self) -> None:
        """The optimizer's step. Beside a GPU it uses all cores of the job: it works element by element, so that threads change no bit."""
        threads = torch.get_num_threads()
        if not self.device.emulated and _apart(self.optimizer):
            torch.set_num_threads(max(threads, int(script.given_cores() or 1)))
        try:
            self.optimizer.step()
        finally:
            torch.set_num_threads(threads)

    def _arrived(self, whole: Sequence[nn.Parameter]) -> None:
        """Step these parameters, whose gradients are complete, while the parts before them are computed."""
        if whole and self.overlapped:
            self.moved = True
            self.device.on_host(self._move)
            for each in whole:
                each.grad = None

    # ---- a step of which others compute a part ----

    def prepare(self, batch: Any) -> None:
        if self.executor is None:
            self.model.train()
            self._ready([batch], [rng.get_state()], 1.0)

    def share(self, batches: Iterable[Any], seeds: Sequence[int], scales: Sequence[float], arrived: Arrived) -> list[float]:
        starts = []
        for seed in seeds:
            rng.seed_all(seed)
            starts.append(rng.get_state())
        micro = self._computed(list(batches), starts, scales, arrived, lambda: None)
        rng.set_state(micro[-1].generators)
        return [float(_finite(batch.told)) for batch in micro if batch.told is not None]

    def move(self) -> None:
        self._optimize()
        if self.executor is not None:
            self.executor.stepped()

    # ---- evaluation ----

    def _called(self, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Called in place of the model. An evaluation is computed in parts too, or else on the host, which has all weights."""
        if getattr(here, "called", None) is not None or self.model.training or torch.is_grad_enabled() or self.evaluated_here:
            return native(*args, **kwargs)
        if self.executor is None:
            return native(*args, **kwargs)
        executor = self.executor
        try:
            with torch.inference_mode(False), torch.no_grad():  # whatever the task has chosen: its tensors would count no changes
                given = tree_map(lambda leaf: self.device.put(leaf) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
                answer = executor.answer(lambda: native(*given[0], **given[1]))
                return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, answer)
        except (UsageError, CapExceeded) as error:
            # Only its text: with the error a record would hold what is on the device.
            log.warning("%s; evaluations are computed on the host from here on", str(error))
            self.evaluated_here = True
        return native(*args, **kwargs)

    # ---- what is told ----

    def _tell(self, times: StepSeconds) -> None:
        self.values = {
            "swap_peak": float(self.device.memory()[1]),
            "swap_stall": times.stalled,
            "swap_in": float(times.bytes_in),
            "swap_out": float(times.bytes_out),
        }


def _finite(loss: torch.Tensor) -> torch.Tensor:
    if not math.isfinite(found := loss.item()):
        raise UsageError(f"memory: the loss of a step is {found}; no checkpoint has it: lower the learning rate, or set Task.clip_norm")
    return loss


def _log(line: str) -> None:
    log.info("swapping: %s", line)


def _starts(count: int) -> tuple[list[Any], Any]:
    """The generators before each micro-batch, and after all of them; of one alone they go on from its loss, as ever."""
    if count == 1:
        return [rng.get_state()], None
    base, starts = drawn(), []
    after = rng.get_state()
    for c in range(count):
        rng.seed_all(rng.mixed(base, c))
        starts.append(rng.get_state())
    return starts, after


def _elements(batch: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def _apart(optimizer: Optimizer) -> bool:
    """Whether the optimizer moves each weight by its own gradient alone, and has no hooks on its steps."""
    known = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)
    return known and not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
