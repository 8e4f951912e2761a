"""Fine-tuning an encoder or a decoder on a text-classification set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...engine.errors import UsageError
from .. import texts
from ..backbones import hub_model
from ..backbones.hub_body import HubTexts
from ..finetune.kept_features import KeptFeatures
from ..finetune.left_adapter import LeftAdapter, digest_of, kind_of_labels
from ..finetune.petl import FULL, Adapted, Petl, adapt_body, take_head
from ..prompts.labelled_files import ColumnNames, read_labelled
from ..train.batches import interruptible
from ..train.task import Task

Sample = tuple[list[int], int]  #: token ids, label

_CHUNK = 256  #: texts tokenised between looks at the request to stop
_EVAL_BATCH = 32
KEPT = "kept"  #: of the param features
_WARM_UP = 0.1  #: of the steps


class Classifier(nn.Module):
    """A body that makes vectors of texts, and a linear head."""

    def __init__(self, encoder: HubTexts, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(encoder.hidden, classes)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.dropout(self.encoder(tokens, mask)))
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
    dataset: str,
    layers: str,
    features: str,
    lr: float,
    batch_size: int,
    max_tokens: int,
    limit: int,
    eval_limit: int,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    columns = ColumnNames(text_column, label_column)
    found = read_labelled(data, columns=columns, held_out=held_out, most=None) if data else texts.load(dataset)
    asked = Petl(petl, r, targets, adapter)
    encoder, tokenizer, adapted, revision = _beginning(backbone, dtype, attention, layers, max_tokens, asked)
    train = _tokenised(tokenizer, found.train[: limit or None])
    kept = _tokenised(tokenizer, found.held_out[:eval_limit])

    if features == KEPT:
        encoder.kept = _kept(encoder, layers, asked)
    model = Classifier(encoder, len(found.classes))
    if adapted is not None:
        take_head(model.head, found.classes, adapter)
    leaves = LeftAdapter(
        backbone=backbone, revision=revision, form=adapted.trains if adapted is not None else f"{FULL} {layers}",
        digest=digest_of(found.classes, found.train), labels=kind_of_labels(found.classes), adapted=adapted,
        classes=found.classes,
        unusable="nothing but a head was trained" if adapted is None and layers == "head" else None,
    )  # fmt: skip

    def prepare(text: Any) -> Sample:
        if not isinstance(text, str):
            raise UsageError(f"a request is a text, not {type(text).__name__}")
        return tokenizer.encode(text).ids or [0], 0

    return Task(
        model=model,
        train=train,
        loss=_loss,
        collate=collate,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
        scheduler=warm_up_then_decay,
        evaluate=lambda model: _accuracy(model, kept),
        batch_size=batch_size,
        iterations=100,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        clip_norm=1.0,
        seed=seed,
        save_frozen=False,
        finish=leaves.write,
        leaves=leaves,
        prepare=prepare,
        answer=lambda model, samples: _answers(model, samples, found.classes),
    )


def _beginning(
    backbone: str, dtype: str, attention: str, layers: str, max_tokens: int, asked: Petl
) -> tuple[HubTexts, Any, Adapted | None, str]:
    """The model, its tokenizer, its tuned part (None: all of it), and its revision."""
    found = hub_model.of_texts(hub_model.taken(backbone, dtype, attention), "text-classifier")
    if max_tokens > found.context:
        raise UsageError(f"params.max_tokens: {max_tokens} is more than {backbone} reads at once, {found.context} tokens; lower it")
    found.tokenizer.enable_truncation(max_tokens)
    texts = HubTexts(found, "head" if asked.wanted else layers)
    adapted = adapt_body(texts, found.directory, asked) if asked.wanted else None
    if adapted is not None and adapted.prompt + max_tokens > found.context:
        raise UsageError(f"params.r: {adapted.prompt} tokens and params.max_tokens are more than {backbone} reads at once, {found.context}")
    return texts, found.tokenizer, adapted, found.directory.revision


def _kept(encoder: HubTexts, layers: str, asked: Petl) -> KeptFeatures:
    """The store of the frozen part's features; UsageError where they cannot be kept."""
    if asked.wanted:
        raise UsageError("params.features: an adapter is trained in all layers, so nothing below it is frozen; leave features out")
    if layers == "all":
        raise UsageError("params.features: with layers: all nothing is frozen; leave features out, or train fewer layers")
    if layers == "last" and not encoder.keeps_below():
        raise UsageError(
            "params.features: below the last layer of this model they cannot be kept; leave features out, or give layers: head"
        )
    return KeptFeatures(Path(given) if (given := os.environ.get("STOKER_RUN_DIR")) else None)


def collate(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens padded to the longest of the batch, their mask, labels."""
    length = max(len(ids) for ids, _ in samples)
    tokens = torch.zeros(len(samples), length, dtype=torch.int64)
    mask = torch.zeros(len(samples), length, dtype=torch.bool)
    for row, (ids, _) in enumerate(samples):
        tokens[row, : len(ids)] = torch.tensor(ids)
        mask[row, : len(ids)] = True
    return tokens, mask, torch.tensor([label for _, label in samples])


def _tokenised(tokenizer: Any, rows: list[tuple[str, int]]) -> list[Sample]:
    samples: list[Sample] = []
    for start in interruptible(range(0, len(rows), _CHUNK)):
        chunk = rows[start : start + _CHUNK]
        encoded = tokenizer.encode_batch([text for text, _ in chunk])
        samples += [(encoding.ids or [0], label) for encoding, (_, label) in zip(encoded, chunk, strict=True)]
    return samples


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    tokens, mask, labels = batch
    return nn.functional.cross_entropy(model(tokens, mask), labels)


def _accuracy(model: nn.Module, held_out: list[Sample]) -> dict[str, float]:
    device = next(model.parameters()).device
    right, loss = 0, 0.0
    for samples in interruptible(_by_length(held_out)):
        tokens, mask, labels = (tensor.to(device) for tensor in collate(samples))
        logits = model(tokens, mask)
        right += int((logits.argmax(1) == labels).sum())
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(held_out), "eval_loss": loss / len(held_out)}


def _answers(model: nn.Module, samples: list[Sample], classes: Sequence[str]) -> list[dict[str, Any]]:
    device = next(model.parameters()).device
    tokens, mask, _ = collate(samples)
    return best_classes(model(tokens.to(device), mask.to(device)), classes)


def best_classes(logits: torch.Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """A classifier's answers: the likeliest class of each row of ``logits``, (requests, classes), and its probability."""
    best = logits.softmax(1).max(1)
    found = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [{"label": classes[number], "probability": probability} for probability, number in found]


def _by_length(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Batches of texts of like length, which need little padding."""
    ordered = sorted(samples, key=lambda sample: len(sample[0]))
    for start in range(0, len(ordered), _EVAL_BATCH):
        yield ordered[start : start + _EVAL_BATCH]


def warm_up_then_decay(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    warm_up = max(1, round(steps * _WARM_UP))

    def factor(step: int) -> float:
        return min((step + 1) / warm_up, max(0.0, (steps - step) / max(1, steps - warm_up)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
