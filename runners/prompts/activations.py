"""Features of prompts: what the LLM's last layer makes of a text (002 ch. 4.4.3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..backbones.pretrained import Llm
from ..train.batches import interruptible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LONGEST = 128  #: tokens of a prompt that are read


def features(llm: Llm, texts: Sequence[str]) -> NDArray[np.float32]:
    """Mean of the last hidden states over a text's tokens, n × hidden. One text at a time: its row depends on no other."""
    rows = []
    with torch.no_grad():
        for text in interruptible(texts):
            ids = torch.tensor(llm.ids(text)[:LONGEST], device=llm.device)
            states, _ = llm.model.states(llm.model.embed_tokens(ids)[None])
            rows.append(states[0].mean(0))
    found: NDArray[np.float32] = torch.stack(rows).cpu().numpy() if rows else torch.empty(0, llm.model.shape.hidden).numpy()
    return found
