"""A soft prompt: vectors before an LLM's input, which are all that is trained (Lester et al., EMNLP 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from ..backbones.pretrained import Llm
from .labelled_samples import Batch

if TYPE_CHECKING:
    from .lookup import Prompt


class SoftPrompt(nn.Module):
    """The prompt and its frozen LLM, as a model whose classes are the label words."""

    answers: torch.Tensor

    def __init__(self, llm: Llm, vectors: torch.Tensor, answers: Sequence[int]) -> None:
        super().__init__()
        self.prompt = nn.Parameter(vectors.detach().clone())
        self.llm = llm.model
        self.llm.found  # noqa: B018 - looks at the model as it is now: later it may be in parts, or in training
        self.register_buffer("answers", torch.tensor(answers), persistent=False)

    def forward(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Logits (batch, label words) of the token after ``tokens[last]``."""
        return self.llm.answer(self.prompt, tokens, last, self.answers)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the label words. Only one token is predicted, so the lengths of text and prompt do not matter."""
    tokens, last, labels = batch
    return functional.cross_entropy(model(tokens, last), labels)


def of_text(llm: Llm, text: str, tokens: int) -> torch.Tensor:
    """Vectors (tokens, hidden) of a text: its embeddings, repeated where the text is shorter, cut where it is longer."""
    ids = llm.ids(text)
    if not ids:
        raise ValueError("an empty text has no tokens")
    return _embedded(llm, (ids * (tokens // len(ids) + 1))[:tokens])


def of_prompt(llm: Llm, prompt: Prompt, tokens: int) -> torch.Tensor:
    """Vectors (tokens, hidden) of a prompt of the bank. A tuned one is repeated or cut as a text is."""
    if isinstance(prompt, str):
        return of_text(llm, prompt, tokens)
    vectors = torch.as_tensor(prompt, device=llm.device)
    return vectors.repeat(tokens // len(vectors) + 1, 1)[:tokens]


def of_vocabulary(llm: Llm, tokens: int, seed: int) -> torch.Tensor:
    """Vectors of tokens that are drawn from the vocabulary."""
    drawn = torch.randint(llm.model.shape.vocabulary, (tokens,), generator=torch.Generator().manual_seed(seed))
    return _embedded(llm, drawn.tolist())


def of_numbers(llm: Llm, tokens: int, seed: int) -> torch.Tensor:
    """Vectors of normally distributed numbers, spread as the LLM's embeddings are."""
    drawn = torch.randn(tokens, llm.model.shape.hidden, generator=torch.Generator().manual_seed(seed))
    weight = llm.model.embed_tokens.weight
    return drawn.to(weight.device) * weight.std()


def _embedded(llm: Llm, ids: Sequence[int]) -> torch.Tensor:
    found: torch.Tensor = llm.model.embed_tokens(torch.tensor(ids, device=llm.device))
    return found.detach()


def nearest_text(llm: Llm, vectors: torch.Tensor) -> str:
    """The tokens whose embeddings are nearest to the vectors by cosine, as a text that people can read."""
    unit = functional.normalize(vectors.detach().to(llm.device), dim=-1)
    near = (unit @ functional.normalize(llm.model.embed_tokens.weight, dim=-1).T).argmax(-1)
    return llm.text(near.tolist())
