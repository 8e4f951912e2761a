"""Features of prompts: the mean output of the LLM's last layer (002 ch. 4.4.3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..backbones.pretrained import Llm
from ..train.batches import interruptible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .lookup import Prompt

MOST_TOKENS = 128  #: tokens of a prompt that are read at most


def features(llm: Llm, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
    """Mean of the last hidden states over a prompt's tokens, n × hidden. One prompt at a time: its row depends on no other.

    A prompt is a text, or the vectors (tokens, hidden) of a tuned one.
    """
    rows = []
    with torch.no_grad():
        for prompt in interruptible(prompts):
            if isinstance(prompt, str):
                vectors = llm.model.embed_tokens(torch.tensor(llm.ids(prompt)[:MOST_TOKENS], device=llm.device))
            else:
                vectors = torch.as_tensor(prompt[:MOST_TOKENS], device=llm.device)
            rows.append(llm.model.states(vectors[None])[0].mean(0))
    found: NDArray[np.float32] = torch.stack(rows).cpu().numpy() if rows else torch.empty(0, llm.model.shape.hidden).numpy()
    return found
