"""Soft-prompt tuning on a frozen LLM (Lester et al., EMNLP 2021), from a prompt of the bank or another start."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ..backbones import hub_model
from ..backbones.pretrained import Llm, llm_of, placed
from ..lease.rundir import ENV_RUN_DIR
from ..prompts.adapter_file import write_adapter
from ..prompts.initial_prompt import Beginning, InitialPrompt, home_of_job
from ..prompts.labelled_files import ColumnNames
from ..prompts.labelled_samples import Sample, Samples, batch_of, load_samples
from ..prompts.soft_prompt import SoftPrompt, loss
from ..train.batches import interruptible
from ..train.task import Task
from ..worker import script

log = logging.getLogger(__name__)

ADAPTER = "prompt"  #: directory of the tuned prompt, beside the checkpoints
_EVAL_BATCH = 16


def build(
    *,
    backbone: str,
    dtype: str,
    attention: str,
    data: str,
    text_column: str,
    label_column: str,
    held_out: str,
    init: str,
    tokens: int,
    lr: float,
    batch_size: int,
    max_tokens: int,
    balance: bool,
    score_samples: int,
    eval_limit: int,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    llm = placed(llm_of(hub_model.taken(backbone, dtype, attention)))  # the lookup computes too
    samples = load_samples(llm, data, max_tokens=max_tokens, prompt_tokens=tokens, balance=balance,
                           columns=ColumnNames(text_column, label_column), held_out=held_out)  # fmt: skip
    beginning = Beginning(llm, samples, tokens, score_samples, seed, _deadline(), home_of_job())
    start = beginning.start(init, script.checkpoint_dir() if init == "bank" else Path())
    kept = samples.held_out[:eval_limit]

    return Task(
        model=SoftPrompt(llm, start.vectors, samples.answers),
        train=samples.train,
        loss=loss,
        collate=batch_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0),
        evaluate=functools.partial(_accuracy, held_out=kept),
        batch_size=batch_size,
        iterations=100,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        seed=seed,
        save_frozen=False,
        finish=functools.partial(_write, llm=llm, samples=samples, start=start),
    )


def _deadline() -> float | None:
    """Of this worker's job, seconds since the epoch."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if not run_dir:
        return None
    tiers = json.loads((Path(run_dir) / "assignment.json").read_bytes())["spec"].get("demand", {}).get("tiers", [])
    return float(tiers[-1]["deadline"]) if tiers else None


def _accuracy(model: nn.Module, held_out: Sequence[Sample]) -> dict[str, float]:
    """Accuracy of the likeliest label words, and the mean loss, on the held-out samples; texts of like length are batched together."""
    device = next(model.parameters()).device
    ordered = sorted(held_out, key=lambda sample: len(sample[0]))
    right, total = 0, 0.0
    for begin in interruptible(range(0, len(ordered), _EVAL_BATCH)):
        tokens, last, labels = (part.to(device) for part in batch_of(ordered[begin : begin + _EVAL_BATCH]))
        logits = model(tokens, last)
        right += int((logits.argmax(1) == labels).sum())
        total += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(held_out), "eval_loss": total / len(held_out)}


def _write(model: nn.Module, folder: Path, *, llm: Llm, samples: Samples, start: InitialPrompt) -> None:
    assert isinstance(model, SoftPrompt)
    near = write_adapter(folder / ADAPTER, llm, model.prompt, samples, start.how)
    if samples.train.cut:
        log.info("%d of the %d training texts were cut (max_tokens)", samples.train.cut, samples.train.read)
    log.info("the tuned prompt is in %s, for peft; its nearest tokens: %s", folder / ADAPTER, json.dumps(near, ensure_ascii=False))
