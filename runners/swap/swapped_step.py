"""Training under a cap of device memory: the model's parts are swapped in and out, weights and optimizer stay on the host (004 ch. 3.3).

It is the plain step with the same batches to the bit, on a CPU. The task's loss runs as it stands: the model's forward is replaced, so
that the call tells what the model is to compute, and later gets what the parts have computed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ...engine.errors import UsageError
from ...engine.spec.model import Memory
from ..device.cuda import CudaDevice
from ..device.device import CapExceeded, Device, Times
from ..device.metered import MeteredDevice
from ..train import rng
from ..train.step import PlainStep, Step, checked, drawn, mean, optimizer_of, scaled
from ..train.task import Task
from ..worker import script
from ..worker.ranks import Ranks
from .chain import Chain, Values, size_of, tensors, versions
from .host_memory import give_back_large_blocks
from .loss_call import LossCall
from .model_graph import arguments, trace
from .swap_executor import MicroBatch, SwapExecutor
from .tried_cuts import cuts_for, cuts_of_answers

log = logging.getLogger(__name__)


def step_of(memory: Memory, task: Task, ranks: Ranks) -> Step:
    """What a batch does to the weights of a job with this block."""
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


class _Parts:
    """A chain in one mode, and how it is cut for the largest inputs so far: with larger ones it is cut anew."""

    def __init__(self, model: nn.Module, whole: Sequence[str]) -> None:
        self.whole = whole
        self.chain = Chain(model, trace(model, whole))
        self.called = False
        self.executor: SwapExecutor | None = None
        self.cuts: tuple[int, ...] = ()
        self.largest: dict[Any, tuple[int, ...]] = {}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        """The inputs of the model. By the first ones it is traced again where it is called, or has become, otherwise than as it was."""
        model, first, self.called = self.chain.model, not self.called, True
        given = arguments(model, args, kwargs)[1]
        if first and (given != self.chain.given or not self.chain.unchanged()):
            self.chain = Chain(model, trace(model, self.whole, given))
        self.chain.require_unchanged()
        return self.chain.bind(args, kwargs)

    def ready(self, values: Sequence[Values], device: Device, cut: Callable[[], tuple[int, ...]]) -> SwapExecutor:
        grown = False
        for key, shape in ((node, tuple(leaf.shape)) for each in values for node, value in each.items() for leaf in tensors(value)):
            before = self.largest.get(key, ())
            if len(before) != len(shape) or any(new > old for new, old in zip(shape, before, strict=True)):
                grown = True
                self.largest[key] = shape if len(before) != len(shape) else tuple(map(max, shape, before))
        if self.executor is None or grown:
            cuts = cut()
            if self.executor is None or cuts != self.cuts:
                self.cuts = cuts
                self.executor = SwapExecutor(self.chain, cuts, device)
        return self.executor


class _Batches:
    """The micro-batches of one step, on the device: what the loss gives to the model, and the loss of its answers."""

    def __init__(self, step: SwappedStep, placed: list[Any], weight: float) -> None:
        self.step, self.placed, self.scale = step, placed, weight / len(placed)
        self.losses: list[torch.Tensor] = []
        self.starts, self.after = _starts(len(placed))  #: the generators before each of them, and after the step
        self.micro = [self._begun(c) for c in range(len(placed))]

    def _begun(self, c: int) -> MicroBatch:
        """Before the first part."""
        step, inputs = self.step, []
        rng.set_state(self.starts[c])
        step.device.launch(lambda: inputs.append(step.call.inputs(self.placed[c])))
        args, kwargs = inputs[0]
        return MicroBatch(step.training.bind(args, kwargs), rng.get_state())

    def loss(self, c: int, answer: Any) -> torch.Tensor:
        """After the last part, for its backward."""
        step, between = self.step, rng.get_state()
        rng.set_state(self.starts[c])  # what the loss draws before it calls the model was drawn from here
        loss = checked(step.call.loss(self.placed[c], lambda: _going_on(between, answer)))
        if len(self.placed) == 1:
            self.after = rng.get_state()
        self.losses.append(loss.detach())
        return scaled(loss, self.scale)


class SwappedStep:
    """A step of C micro-batches by parts; the optimizer's step of a part runs while the parts before it are still computed.

    That is where nothing needs all gradients at once: not with clipping, nor with an optimizer that looks at all weights together.
    """

    def __init__(self, task: Task, memory: Memory, device: Device) -> None:
        assert memory.cap is not None
        self.task, self.device, self.accumulate, self.cap = task, device, memory.batches, memory.cap
        self.least = 2 if memory.swap == "force" else 1
        self.values: dict[str, float] = {}
        self.logged: SwapExecutor | None = None
        self.evaluated_here = False  #: on the host, as a batch did not fit under the cap

    def place(self, model: nn.Module) -> nn.Module:
        self.model, mode = model, model.training
        model.train()
        self.training = _Parts(model, self.task.whole)
        model.eval()
        self.evaluating = _Parts(model, self.task.whole) if self.task.evaluate is not None else None
        model.train(mode)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = self.device.pinned(tensor.data)
        self.optimizer = optimizer_of(self.task, model, fused=True)
        self.overlapped = self.task.clip_norm is None and _apart(self.optimizer)
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for name, parameter in model.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise UsageError(f"memory: {name} has a hook on its gradient, which parts would not call; write 'memory: {{swap: off}}'")
        # In the parts copies are computed with: only the loss itself can reach these.
        self.hooks = [parameter.register_post_accumulate_grad_hook(_reached) for parameter in self.trained]  # type: ignore[no-untyped-call]
        self.call = LossCall(model, self.task.loss, self._evaluate)
        give_back_large_blocks()
        return model

    def close(self) -> None:
        self.call.close()
        for hook in self.hooks:
            hook.remove()

    # ---- one step ----

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        self.device.reset_peak()
        self._require_room(size_of(list(batches), self.device.rounded))
        with self.device.step() as times:
            batch_of = _Batches(self, [self._put(batch) for batch in batches], weight)
            executor = self.training.ready([each.values for each in batch_of.micro], self.device, lambda: self._cuts(batch_of))
            self._tell_parts(executor)
            executor.run(batch_of.micro, batch_of.loss, self._arrived if self.overlapped else lambda part: None)
            if not self.overlapped:
                self.device.on_host(self._optimize)
            executor.stepped()
            rng.set_state(batch_of.after)
        self._tell(times)
        loss = mean(batch_of.losses)
        if not math.isfinite(found := loss.item()):
            raise UsageError(f"memory: the loss of a step is {found}; no checkpoint has it: lower the learning rate, or set Task.clip_norm")
        return loss

    def _require_room(self, size: int) -> None:
        if size > self.cap:
            raise UsageError(
                f"memory.cap: the batches of a step alone take {-(-size // 1024)}KiB with accumulate: {self.accumulate}, and the cap is "
                f"{self.cap} bytes; raise it, or lower the batch size or accumulate"
            )

    def _cuts(self, batches: _Batches) -> tuple[int, ...]:
        """Found with the largest micro-batch as all of them."""
        largest = max(range(len(batches.placed)), key=lambda c: _elements(batches.placed[c]))
        values = batches.micro[largest].values

        def tail(c: int, answer: Any) -> torch.Tensor:
            if c == 0:
                batches.losses.clear()  # of the trial before: they are on the device
            return batches.loss(largest, answer)

        used = self.training.cuts if self.training.executor is not None else None
        cuts = cuts_for(self.training.chain, self.cap, len(batches.micro), lambda: dict(values), tail, self.device, self.least, used, _log)
        batches.losses.clear()
        return cuts

    def _put(self, batch: Any) -> Any:
        return tree_map(lambda leaf: self.device.put(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)

    def _optimize(self) -> None:
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip_norm)
        self._move()

    def _move(self) -> None:
        """The optimizer's step. Beside a GPU with all cores of the job: of what is done element by element, threads change no bit."""
        threads = torch.get_num_threads()
        if not self.device.emulated and _apart(self.optimizer):
            torch.set_num_threads(max(threads, int(script.given_cores() or 1)))
        try:
            self.optimizer.step()
        finally:
            torch.set_num_threads(threads)

    def _arrived(self, part: int) -> None:
        """The gradients of a part are on the host: step what has all of its own, which the parts before it do not use."""
        executor = self.training.executor
        assert executor is not None
        parameters = self.training.chain.parameters
        earlier = {id(parameters[name]) for names in executor.names[:part] for name in names if name in parameters}
        waiting = [(each, each.grad) for each in self.trained if id(each) in earlier and each.grad is not None]
        for each, _ in waiting:
            each.grad = None
        if any(each.grad is not None for each in self.trained):
            self.device.on_host(self._move)
        for each in self.trained:
            each.grad = None
        for each, gradient in waiting:
            each.grad = gradient

    # ---- evaluation ----

    def _evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's answer, computed in parts too, or else on the host, which has all weights; a training is not to end by it."""
        parts = self.evaluating
        if parts is None:
            raise UsageError("memory: the model is called in eval mode, but the task has no evaluate(); write 'memory: {swap: off}'")
        if torch.is_grad_enabled():
            raise UsageError("memory: the model is called in eval mode with gradients; call it under torch.no_grad()")

        if self.evaluated_here:
            return type(self.model).forward(self.model, *args, **kwargs)
        try:
            with torch.inference_mode(False), torch.no_grad():  # whatever the task has chosen: its tensors would count no changes
                return self._answer(parts, args, kwargs)
        except (UsageError, CapExceeded) as error:
            # Only its text: with the error a record would hold what is on the device.
            log.warning("%s; evaluations are computed on the host from here on", str(error))
            self.evaluated_here = True
            return type(self.model).forward(self.model, *args, **kwargs)

    def _answer(self, parts: _Parts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = parts.bind(self._put(args), self._put(kwargs))
        before = versions(values)
        executor = parts.ready([values], self.device, lambda: cuts_of_answers(parts.chain, self.cap, lambda: dict(values), self.device))
        if versions(values) != before:  # by trials of a model that changes its input in place
            values = parts.bind(self._put(args), self._put(kwargs))
        try:
            answer = executor.answer(values)
        except CapExceeded:
            executor.abandon()
            raise
        return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, answer)

    # ---- what is told ----

    def _tell_parts(self, executor: SwapExecutor) -> None:
        """In the log, when it has been cut anew."""
        if self.logged is not executor:
            self.logged = executor
            where = "emulated on the CPU" if self.device.emulated else "on the GPU"
            log.info("swapping %d parts of the model under a cap of %s bytes, %s", len(executor.parts), f"{self.cap:,}", where)

    def _tell(self, times: Times) -> None:
        self.values = {
            "swap_peak": float(self.device.memory()[1]),
            "swap_stall": times.stalled,
            "swap_in": float(times.bytes_in),
            "swap_out": float(times.bytes_out),
        }


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


def _going_on(generators: Any, answer: Any) -> Any:
    rng.set_state(generators)
    return answer


def _elements(batch: Any) -> int:
    return sum(leaf.numel() for leaf in tensors(batch))


def _apart(optimizer: Optimizer) -> bool:
    """Whether it moves each weight by its own gradient alone, and nobody listens to its steps."""
    known = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)
    return known and not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def _reached(_: torch.Tensor) -> None:
    raise UsageError("memory: the task's loss uses the model's parameters besides calling it; write 'memory: {swap: off}'")
