"""A deep learning recommendation model (Naumov et al. 2019) on a log of clicks whose lines are parsed as they are read."""

from __future__ import annotations

import torch
from torch import nn

from ..train.batches import interruptible
from ..train.task import Task
from .clicks import CATEGORIES, DENSE, Clicks, load

_HELD_OUT = 2_000
_EVAL_BATCH = 500

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def build(
    *, rows: int, buckets: int, dim: int, lr: float, batch_size: int, epochs: int, eval_every: int, checkpoint_every: int, seed: int
) -> Task:
    train, held_out = load(rows, _HELD_OUT, buckets)
    judged = Judged(held_out)
    return Task(
        model=Dlrm(buckets, dim),
        train=train,
        loss=_loss,
        optimizer=lambda parameters: torch.optim.Adagrad(parameters, lr=lr),
        evaluate=judged.metrics,
        batch_size=batch_size,
        epochs=epochs,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        seed=seed,
    )


class Dlrm(nn.Module):
    """Embeddings of the categories and of the counts, their pairwise products, and a network on top: a logit a row."""

    def __init__(self, buckets: int, dim: int) -> None:
        super().__init__()
        tables = [nn.Embedding(buckets, dim) for _ in range(CATEGORIES)]
        for table in tables:
            nn.init.normal_(table.weight, std=0.05)
        self.tables = nn.ModuleList(tables)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + CATEGORIES * (CATEGORIES + 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(CATEGORIES + 1, CATEGORIES + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(table(categories[:, number]) for number, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        pairs: torch.Tensor = self.pairs  # type: ignore[assignment]
        logits: torch.Tensor = self.top(torch.cat([bottom, products[:, pairs[0], pairs[1]]], dim=1)).squeeze(1)
        return logits


def _loss(model: nn.Module, batch: Rows) -> torch.Tensor:
    dense, categories, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, categories), labels)


class Judged:
    """Rows that are not trained on, parsed once."""

    def __init__(self, rows: Clicks) -> None:
        self._rows = rows
        self._parsed: Rows | None = None

    def metrics(self, model: nn.Module) -> dict[str, float]:
        if self._parsed is None:
            columns = zip(*(self._rows[index] for index in interruptible(range(len(self._rows)))), strict=True)
            dense, categories, labels = (torch.stack(column) for column in columns)
            self._parsed = dense, categories, labels
        device = next(model.parameters()).device
        dense, categories, labels = (column.to(device) for column in self._parsed)
        parts = interruptible(zip(torch.split(dense, _EVAL_BATCH), torch.split(categories, _EVAL_BATCH), strict=True))
        logits = torch.cat([model(counts, values) for counts, values in parts])
        return {"auc": _auc(logits, labels), "eval_loss": float(nn.functional.binary_cross_entropy_with_logits(logits, labels))}


def _auc(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The probability that a clicked row is ranked above one not clicked (Mann-Whitney; ties count as they are sorted)."""
    ranks = torch.empty_like(logits)
    ranks[logits.argsort()] = torch.arange(1, len(logits) + 1, dtype=logits.dtype, device=logits.device)
    clicks = labels > 0
    positive, negative = int(clicks.sum()), int((~clicks).sum())
    return float((ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * negative)) if positive and negative else 0.5
