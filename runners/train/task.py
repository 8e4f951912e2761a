"""A task: the part of a training that a recipe or an entrypoint gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import default_collate

from ...engine.errors import UsageError
from ...engine.spec.model import Stop
from .batches import Dataset, Order


def _no_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    raise UsageError("the task has no loss, so it can serve (kind: infer), and not be trained")


def _adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


class Leaves(Protocol):
    """The result of a fine-tuning with which others of its backbone may begin: `finetune.left_adapter`."""

    @property
    def digest(self) -> str: ...  # of the training samples

    @property
    def labels(self) -> str: ...  # their kind

    def told(self, model: nn.Module, task: Task, checkpoints: Path, /) -> dict[str, Any]: ...  # for the daemon

    def write_half(self, folder: Path, /) -> None: ...  # the same, beside the weights of a half of a training together

    #: the result of another job; ``whole``: with the weights of its own head
    def read(self, task: Task, checkpoints: Path, /, *, whole: bool = False) -> tuple[dict[str, torch.Tensor], Mapping[str, Any]]: ...


@dataclass(kw_only=True)
class Task:
    """A training, as a recipe returns it, or the function that a job's ``entrypoint`` names."""

    model: nn.Module
    train: Dataset = ()
    """Map-style: has a length, and an item by index. It reads and decodes; random changes of a sample belong into `augment`.

    With ``pipeline`` and without ``processes``, several threads ask for items at once: shared things, such as an open file, need a lock.
    """
    augment: Callable[[Any], Any] | None = None
    """augment(train[index]): done after decoding, and done anew at each use of a decoded sample where samples are reused.

    It draws from the global random generators of torch, NumPy and Python, and returns a new sample: the decoded one is kept.
    """
    loss: Callable[[nn.Module, Any], torch.Tensor] = _no_loss
    """loss(model, batch): the mean over the batch. Calls the model itself, not its methods: it may be wrapped."""
    batch_size: int = 16
    """Samples of a step over all ranks, so that a job trains alike on any number of GPUs."""
    collate: Callable[[list[Any]], Any] = default_collate
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _adamw
    """optimizer(parameters that require gradients)."""
    scheduler: Callable[[Optimizer, int], LRScheduler] | None = None
    """scheduler(optimizer, steps in all), stepped after each step."""
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    """Metrics on held-out data. Runs on rank 0, without gradients, in eval mode; loops in it should be `interruptible`."""
    iterations: int | None = None
    """Steps in all, unless the job says ``stop: {iterations}``."""
    epochs: int | None = None
    """The same in passes over the data."""
    eval_every: int | None = None
    """Steps between evaluations; there is always one at the end."""
    checkpoint_every: int | None = 100
    """Steps between checkpoints; there is always one at the end and when the job is stopped."""
    clip_norm: float | None = None
    """Largest norm of the gradient."""
    seed: int = 0
    order: Order | None = None
    """Which samples a step takes, where that is not a permutation of all in each epoch."""
    save_frozen: bool = True
    """False: parameters without gradients are left out of checkpoints, as they are the same whenever the task is built."""

    units: Sequence[str] = ()
    """Names of modules at whose calls the model may be cut into parts, where a part of it is swapped (docs/memory.md). By default its
    repeated blocks, and the modules beside them. No unit lies within another one."""
    own: Sequence[str] = ("head",)
    """Names of modules and parameters that stay as built if the task begins with other weights (the job's ``weights``)."""
    whole: Sequence[str] = ()
    """Names of modules that stay whole where the model is cut into parts, though they are large or hold blocks."""
    finish: Callable[[nn.Module, Path], None] | None = None
    """finish(model, directory of the checkpoints): on rank 0 after the training, to write further results; may be called again."""

    leaves: Leaves | None = None
    """A result with which other jobs may begin; its `write` is to be the `finish`."""

    prepare: Callable[[Any], Any] | None = None
    """prepare(request): turns a client's request into the form that `answer` gets, such as tokens. It runs on a thread of its own, ahead
    of the turn, so it calls no model. An error in it is that request's answer."""
    answer: Callable[[nn.Module, list[Any]], Sequence[Any]] | None = None
    """answer(model, requests): for ``kind: infer``, an answer in JSON's types to each request of a batch, in order. Without gradients, in
    eval mode; loops in it should be `interruptible`. If it raises, each request is computed alone, so each has its answer or error."""

    def steps(self, stop: Stop, accumulate: int = 1) -> int:
        """Steps in all, of ``accumulate`` batches each."""
        if stop.iterations is not None:
            return stop.iterations
        if self.iterations is not None:
            return self.iterations
        if self.epochs is not None:
            return self.epochs * (len(self.train) // self.batch_size) // accumulate
        raise UsageError("stop.iterations: the job does not say how many steps to train; add 'stop: {iterations: N}'")

    def owns(self, name: str) -> bool:
        """Whether a parameter stays as built if the training begins with other weights."""
        return any(name == own or name.startswith(f"{own}.") for own in self.own)

    def fitting(self, given: Mapping[str, torch.Tensor], where: Path, *, whole: bool = False) -> dict[str, torch.Tensor]:
        """Those of another training's weights that the model takes, by name and shape; UsageError if they are of another model.

        ``whole``: also the task's own, and only frozen parameters may be missing, as the model is to be used as it is.
        """
        now = {name: value for name, value in self.model.state_dict().items() if isinstance(value, torch.Tensor)}
        taken = {name: value for name, value in given.items() if whole or not self.owns(name)}
        # A task that leaves out frozen parameters has them as built; those of the other training may differ.
        frozen = {name for name, parameter in self.model.named_parameters() if not parameter.requires_grad}
        built = set() if self.save_frozen else frozen if whole else now.keys()
        missing = [name for name in now if name not in given and name not in built and (whole or not self.owns(name))]
        wrong = [f"it lacks {name}" for name in missing]
        wrong += [f"this one has no {name}" for name in taken if name not in now]
        wrong += [
            f"{name} is {_shape(value)}, here {_shape(now[name])}"
            for name, value in taken.items()
            if name in now and value.shape != now[name].shape
        ]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            remedy = "give the params that it was trained with" if whole else "see 'own' in docs/writing-a-job.md"
            raise UsageError(f"weights: {where} is of another model: {', '.join(wrong[:3])}{more}; {remedy}")
        if not taken:
            raise UsageError(f"weights: {where} holds only this task's own weights ({', '.join(self.own)})")
        return taken

    def check(self, ranks: int) -> None:
        """Refuse what cannot be trained, in words."""
        if not len(self.train):
            raise UsageError("the task's training data is empty")
        if not ranks <= self.batch_size <= len(self.train):
            bounds = f"{ranks} (the number of ranks) and {len(self.train)} (the samples there are)"
            raise UsageError(f"batch_size: {self.batch_size} must be between {bounds}")
        if isinstance(self.own, str):
            raise UsageError(f"the task's own is the text {self.own!r}; give a list of names, such as [{self.own!r}]")
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise UsageError("the task's model has no parameter that requires gradients: there is nothing to train")


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
