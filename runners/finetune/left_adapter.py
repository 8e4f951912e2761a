"""Writes a fine-tuning's adapter, with which others of its backbone may begin, and reads that of another job.

With few parameters (`petl`) that is the adapter beside the checkpoints; if the model itself was trained, it is the newest checkpoint. In
both cases ``adapter/stoker.json`` has its revision, its form, and its task. Adapters of other revisions or forms are never mixed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...engine.errors import Conflict, NotFound, StokerError
from ..train.checkpoint import Checkpoints, weights_of
from ..train.task import Task
from ..worker.ranks import Ranks
from . import petl
from .petl import ABOUT, ADAPTER, Adapted

_MOST_LABEL_CHARACTERS = 200  #: characters of a kind of labels


@dataclass(frozen=True, kw_only=True)
class LeftAdapter:
    """The description of a task's adapter, see `protocol.LeftAdapter`."""

    backbone: str
    revision: str
    form: str  #: the kind of trained parameters, with their size and places
    digest: str
    labels: str
    adapted: Adapted | None = None  #: None: the backbone itself is trained
    classes: Sequence[str] = ()  #: of a classifier, whose ``head`` is written too
    unusable: str | None = None  #: why no job can begin with it

    @property
    def about(self) -> dict[str, Any]:
        known = {"trains": self.form, "digest": self.digest, "labels": self.labels}
        return known | ({"classes": list(self.classes)} if self.classes else {})

    def write(self, model: nn.Module, checkpoints: Path) -> None:
        """Of a `Task.finish`."""
        if self.adapted is not None:
            petl.write_adapter(self.adapted, checkpoints, self.about, model.get_submodule("head") if self.classes else None)
        else:
            petl.write_about(checkpoints / ADAPTER, {"backbone": self.backbone, "revision": self.revision, "petl": petl.FULL} | self.about)

    def write_half(self, folder: Path) -> None:
        """Describe the half that a common training leaves for this task in a checkpoint there, whatever the form."""
        petl.write_about(folder / ADAPTER, {"backbone": self.backbone, "revision": self.revision, "petl": petl.FULL} | self.about)

    def told(self, model: nn.Module, task: Task, checkpoints: Path) -> dict[str, Any]:
        """For the daemon, once it is written."""
        finite = all(bool(torch.isfinite(value).all()) for value in _trained(task).values())
        wrong = self.unusable or (None if finite else "its weights are not finite")
        steps = Checkpoints(checkpoints).steps()
        read = [checkpoints / ADAPTER, *([Checkpoints(checkpoints).path_of(steps[-1])] if self.adapted is None and steps else [])]
        size = sum(path.stat().st_size for folder in read if folder.is_dir() for path in folder.iterdir())
        known = {"backbone": self.backbone, "revision": self.revision, "petl": self.form, "digest": self.digest, "labels": self.labels}
        return known | {"bytes": size} | ({"unusable": wrong} if wrong else {})

    def read(self, task: Task, checkpoints: Path, *, whole: bool = False) -> tuple[dict[str, torch.Tensor], Mapping[str, Any]]:
        """Another job's adapter, by names of this model, and its description. StokerError: it is lost, or of another model.

        ``whole``: it is the half of a common training, with the head.
        """
        folder = checkpoints / ADAPTER
        about = _about(folder)
        for field, mine in (("revision", self.revision), ("trains", self.form)):
            if about.get(field) != mine:
                what = f"is of another {'revision of the backbone' if field == 'revision' else 'form'}"
                raise Conflict(f"its adapter {what} ({about.get(field)}, here {mine}), and they are never mixed")
        expected = _trained(task, own=whole)
        try:
            in_file = self.adapted is not None and not whole
            found = self._tensors(task, folder, about) if in_file else self._of_checkpoint(task, checkpoints)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise NotFound(f"its adapter is damaged: {' '.join(str(error).split())[:200]}") from None
        if wrong := [name for name, value in expected.items() if name not in found or found[name].shape != value.shape]:
            raise Conflict(f"its adapter is of another model: {wrong[0]} and {len(wrong) - 1} more do not fit")
        if not all(bool(torch.isfinite(value).all()) for value in found.values()):
            raise Conflict("its adapter holds numbers that are not finite")
        return {name: found[name] for name in expected}, about

    def _tensors(self, task: Task, folder: Path, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        assert self.adapted is not None
        content = (folder / petl.WEIGHTS).read_bytes()
        if hashlib.sha256(content).hexdigest() != about.get("sha256"):
            raise ValueError(f"the checksum of {petl.WEIGHTS} does not match")
        names = self.adapted.names(task.model)
        return {names[key]: value for key, value in petl.tensors_of(content).items() if key in names}

    @staticmethod
    def _of_checkpoint(task: Task, checkpoints: Path) -> dict[str, torch.Tensor]:
        try:
            return weights_of(checkpoints, Ranks(0, 1, torch.device("cpu")))[0]
        except StokerError as error:
            raise ValueError(str(error).removeprefix("weights: ")) from None


def kind_of_labels(classes: Sequence[str]) -> str:
    """Equal if classes have the same names."""
    names = ", ".join(sorted(name.strip().lower() for name in classes))
    return names if len(names) <= _MOST_LABEL_CHARACTERS else f"{len(classes)} classes ({hashlib.sha256(names.encode()).hexdigest()[:12]})"


def digest_of(classes: Sequence[str], samples: Sequence[tuple[str, int]]) -> str:
    """A digest of training samples, whatever their order."""
    rows = sorted(f"{classes[label]}\0{text}" for text, label in samples)
    return hashlib.sha256("\0\0".join(rows).encode()).hexdigest()[:16]


def _trained(task: Task, *, own: bool = False) -> dict[str, torch.Tensor]:
    """The weights that the task trains, without its own, unless these are asked for too."""
    return {name: value for name, value in task.model.named_parameters() if value.requires_grad and (own or not task.owns(name))}


def _about(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / ABOUT).read_bytes())
    except FileNotFoundError:
        raise NotFound("its adapter is no longer there") from None
    except (OSError, ValueError) as error:
        raise NotFound(f"its adapter is damaged: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict):
        raise NotFound(f"its adapter is damaged: {ABOUT} is no mapping")
    return found
