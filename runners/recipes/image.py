"""Fine-tuning a model of pictures, a ViT or a ConvNet, on pictures of one's own."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...engine.errors import UsageError
from ..backbones import hub_model
from ..backbones.hub_body import HubPictures
from ..finetune.left_adapter import LeftAdapter, digest_of, kind_of_labels
from ..finetune.petl import FULL, Petl, adapt_body, take_head
from ..prompts.labelled_files import ColumnNames
from ..train.batches import interruptible
from ..train.task import Task
from . import pictures
from .text import best_classes, warm_up_then_decay

_EVAL_BATCH = 16
_SIDE = 224  #: pixels, where the model's files give no size
_MEAN, _SPREAD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


class PictureClassifier(nn.Module):
    """Pictures, uint8 (batch, channels, side, side), in; logits of their classes out."""

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self, body: HubPictures, classes: int, mean: Sequence[float], spread: Sequence[float]) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.hidden, classes)
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("spread", torch.tensor(spread)[:, None, None], persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body((images.float() / 255 - self.mean) / self.spread))
        return logits


def build(
    *,
    backbone: str,
    dtype: str,
    attention: str,
    petl: str,
    r: int,
    targets: str,
    adapter: str,
    data: str,
    text_column: str,
    label_column: str,
    held_out: str,
    layers: str,
    lr: float,
    batch_size: int,
    eval_limit: int,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    for name, value in (("backbone", backbone), ("data", data)):
        if not value:
            raise UsageError(f"params.{name}: is missing; see docs/backbones.md")
    folder, found = pictures.read(data, ColumnNames(text_column, label_column), held_out)
    hub = hub_model.of_pictures(hub_model.taken(backbone, dtype, attention), "image-classifier")
    asked = Petl(petl, r, targets, adapter)
    side, mean, spread = _seen(hub)
    body = HubPictures(hub, "head" if asked.wanted else layers, side)
    adapted = adapt_body(body, hub.directory, asked) if asked.wanted else None
    model = PictureClassifier(body, len(found.classes), mean, spread)
    take_head(model.head, found.classes, adapter)
    leaves = LeftAdapter(
        backbone=backbone, revision=hub.directory.revision, form=adapted.trains if adapted is not None else f"{FULL} {layers}",
        digest=digest_of(found.classes, found.train), labels=kind_of_labels(found.classes), adapted=adapted,
        classes=found.classes,
        unusable="nothing but a head was trained" if adapted is None and layers == "head" else None,
    )  # fmt: skip
    train, judged = (pictures.Pictures(folder, rows, side, len(mean)) for rows in (found.train, found.held_out[:eval_limit]))

    return Task(
        model=model,
        train=train,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
        scheduler=warm_up_then_decay,
        evaluate=lambda model: _accuracy(model, judged),
        batch_size=batch_size,
        iterations=100,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        clip_norm=1.0,
        seed=seed,
        save_frozen=False,
        finish=leaves.write,
        leaves=leaves,
        prepare=lambda request: _requested(request, side, train.mode),
        answer=lambda model, images: _answers(model, images, found.classes),
    )


def _seen(hub: hub_model.HubModel) -> tuple[int, Sequence[float], Sequence[float]]:
    """Pixels of a side, mean and spread of the channels, as the model was trained with them."""
    try:
        said: dict[str, Any] = json.loads((hub.directory.path / "preprocessor_config.json").read_bytes())
    except (OSError, ValueError):
        said = {}
    config = hub.model.config
    if timm := getattr(config, "pretrained_cfg", None):
        said = {"image_mean": timm.get("mean"), "image_std": timm.get("std"), "size": list(timm.get("input_size") or [None])[-1]}
    side = getattr(config, "image_size", None) or _side(said.get("crop_size")) or _side(said.get("size")) or _SIDE
    channels = int(getattr(config, "num_channels", 3))
    if not isinstance(side, int) or channels not in (1, 3):
        raise UsageError(f"backbone: {hub.name} reads pictures of {side} pixels and {channels} channels; recipes have squares of 1 or 3")
    mean, spread = said.get("image_mean") or _MEAN[:channels], said.get("image_std") or _SPREAD[:channels]
    if len(mean) != channels or len(spread) != channels:
        raise hub.directory.error(f"has a preprocessor_config.json whose image_mean and image_std are not of {channels} channels")
    return side, mean, spread


def _side(size: Any) -> int | None:
    """Pixels of a side, from a size as preprocessors write it: a number, or a mapping."""
    if isinstance(size, dict):
        return next((size[name] for name in ("height", "shortest_edge", "width") if isinstance(size.get(name), int)), None)
    return size if isinstance(size, int) else None


def _requested(request: Any, side: int, mode: str) -> torch.Tensor:
    """The picture of a request: the bytes of its file, in base64."""
    if not isinstance(request, str):
        raise UsageError(f"a request is the file of a picture in base64, not {type(request).__name__}")
    try:
        file = base64.b64decode(request, validate=True)
    except ValueError:
        raise UsageError("a request is the file of a picture in base64, as 'base64 -w0 FILE' prints it") from None
    return pictures.picture(io.BytesIO(file), side, mode, "the request")


def _answers(model: nn.Module, images: list[torch.Tensor], classes: Sequence[str]) -> list[dict[str, Any]]:
    return best_classes(model(torch.stack(images).to(next(model.parameters()).device)), classes)


def _accuracy(model: nn.Module, judged: pictures.Pictures) -> dict[str, float]:
    device = next(model.parameters()).device
    right, loss = 0, 0.0
    for begin in interruptible(range(0, len(judged), _EVAL_BATCH)):
        some = [judged[index] for index in range(begin, min(begin + _EVAL_BATCH, len(judged)))]
        images, labels = torch.stack([image for image, _ in some]).to(device), torch.tensor([label for _, label in some], device=device)
        logits = model(images)
        right += int((logits.argmax(1) == labels).sum())
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(judged), "eval_loss": loss / len(judged)}
