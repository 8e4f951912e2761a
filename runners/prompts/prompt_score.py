"""How well a prompt serves a task without tuning: equation 4.1 of 002."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ..backbones.pretrained import Llm
from ..train.batches import interruptible
from .labelled_samples import Sample, batch_of
from .soft_prompt import of_prompt

if TYPE_CHECKING:
    from .lookup import Prompt


def score(llm: Llm, prompts: Sequence[Prompt], samples: Sequence[Sample], answers: Sequence[int], length: int) -> list[float]:
    """Mean loss of the LLM on the samples, behind each prompt as a tuning would begin with it. Smaller is better.

    The samples are the same for all prompts, and all prompts have ``length`` tokens.
    """
    tokens, last, labels = (part.to(llm.device) for part in batch_of(samples))
    words, found = torch.tensor(answers, device=llm.device), []
    with torch.no_grad():
        for prompt in interruptible(prompts):
            logits = llm.model.answer_of_many(of_prompt(llm, prompt, length), tokens, last, words)
            found.append(float(functional.cross_entropy(logits, labels)))
    return found
