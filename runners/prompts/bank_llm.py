"""The LLM of `bank_work`: features of prompts for the bank, scores of prompts for a lookup."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..backbones.pretrained import Llm, load_llm, placed
from . import activations, prompt_score
from .adapter_file import read_adapter
from .labelled_samples import load_samples

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .lookup import Prompt

PROMPT_TOKENS, TEXT_TOKENS = 12, 32  #: of a prompt and of a text: the defaults of the recipe prompt-tune


class BankLlm:
    def __init__(self, llm: Llm) -> None:
        self.llm, self.name, self.revision, self.tokenizer = llm, llm.name, llm.revision, llm.tokens

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Activations, a row a text."""
        return activations.features(self.llm, texts)

    def tuned(self, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Activations (hidden) and vectors (tokens, hidden) of the tuned prompt in a folder."""
        vectors = read_adapter(folder, self.llm)
        return activations.features(self.llm, [vectors])[0], vectors

    def scorer(self, data: str, samples: int, seed: int) -> Callable[[Sequence[Prompt]], Sequence[float]]:
        """The score of equation 4.1 of prompts, on the same samples each time."""
        found = load_samples(self.llm, data, max_tokens=TEXT_TOKENS, prompt_tokens=PROMPT_TOKENS)
        common = found.common(samples, seed)
        return functools.partial(prompt_score.score, self.llm, samples=common, answers=found.answers, length=PROMPT_TOKENS)


def load(name: str) -> BankLlm:
    """The LLM of that name. It computes with one thread, as in a job."""
    import torch

    torch.set_num_threads(1)
    return BankLlm(placed(load_llm(name)))
