"""A decoder of `hub_model` as recipes and prompts ask for one: what `llama.Llama` answers, by any architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..train.batches import interruptible
from .hub_model import HubModel
from .hub_model import decoder as required


@dataclass(frozen=True, slots=True)
class DecoderShape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    context: int  #: tokens


class HubDecoder(nn.Module):
    """Tokens in, logits of the next one out. Texts of a batch are padded on the right: no token sees what comes after it."""

    def __init__(self, found: HubModel, recipe: str) -> None:
        super().__init__()
        required(found, recipe)
        self.model = found.model
        self.skipped = 0
        config = found.config
        vocabulary, hidden = self.embed_tokens.weight.shape
        self.shape = DecoderShape(vocabulary, hidden, config.num_hidden_layers, config.num_attention_heads, found.context)

    def put(self, adapted: nn.Module, prompt: int) -> None:
        """Compute with the model in which small modules are trained; ``prompt``: tokens that it puts before the text."""
        self.model, self.skipped = adapted, prompt

    @property
    def embed_tokens(self) -> nn.Embedding:
        found: nn.Embedding = self.model.get_input_embeddings()
        return found

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits[:, self.skipped :]

    def continuation(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The likeliest token after each. All is computed anew for each: how a cache is handed over differs among releases."""
        known = list(ids)
        for _ in interruptible(range(tokens)):
            given = torch.tensor([known], device=self.embed_tokens.weight.device)
            known.append(int(self.model(input_ids=given, use_cache=False, logits_to_keep=1).logits[0, -1].argmax()))
        return known[len(ids) :]

    def states(self, vectors: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Last hidden states (batch, length, hidden) of input vectors of that shape."""
        found: torch.Tensor = self.model.base_model(inputs_embeds=vectors, use_cache=False).last_hidden_state
        return found, None

    def answer(self, prompt: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Logits (batch, answers) of what follows ``tokens[last]`` after the prompt (tokens, hidden)."""
        vectors = self.embed_tokens(tokens)
        vectors = torch.cat([prompt.to(vectors.dtype).expand(len(tokens), -1, -1), vectors], 1)
        asked = last + len(prompt)
        places = torch.unique(asked)  # the head, which may be the largest layer, computes those alone
        logits = self.model(inputs_embeds=vectors, use_cache=False, logits_to_keep=places).logits
        row = torch.arange(len(last), device=last.device)
        found: torch.Tensor = logits[row, torch.searchsorted(places, asked)][:, answers].float()
        return found
