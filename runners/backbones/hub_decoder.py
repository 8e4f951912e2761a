"""A decoder of transformers', of any architecture, with one interface for recipes and prompts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..train.batches import interruptible


@dataclass(frozen=True, slots=True)
class DecoderShape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    context: int  #: tokens


@dataclass(frozen=True, slots=True)
class DecoderParts:
    head_is_last: bool  #: logits are the head's output for the last states; some models scale or bound them
    cache: str | None  #: the argument for keys and values of earlier tokens; None: the model has none


class HubDecoder(nn.Module):
    """Tokens in, logits of the next one out. Texts of a batch are padded on the right: no token sees what comes after it."""

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        self.model = model
        self.skipped = 0  #: places of a trained prompt before the first token
        config = model.config.get_text_config()
        vocabulary, hidden = self.embed_tokens.weight.shape
        self.shape = DecoderShape(vocabulary, hidden, config.num_hidden_layers, config.num_attention_heads, context)

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
        """The likeliest token after each. Keys and values of earlier tokens are kept, if the model keeps any."""
        device, cache = self.embed_tokens.weight.device, None if self.skipped else self.found.cache
        found: list[int] = []
        now, given = list(ids), dict[str, Any]()
        for _ in interruptible(range(tokens)):
            said = self.model(input_ids=torch.tensor([now], device=device), use_cache=cache is not None, logits_to_keep=1, **given)
            found.append(int(said.logits[0, -1].argmax()))
            if cache is None:
                now = [*ids, *found]
            else:
                now, given = found[-1:], {cache: getattr(said, cache)}
        return found

    def states(self, vectors: torch.Tensor) -> torch.Tensor:
        """Last hidden states (batch, length, hidden) of input vectors of that shape."""
        found: torch.Tensor = self.model.base_model(inputs_embeds=vectors, use_cache=False).last_hidden_state
        return found

    def answer(self, prompt: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Logits (batch, answers) of the token after ``tokens[last]``, after the prompt (tokens, hidden)."""
        vectors = self.embed_tokens(tokens)
        vectors = torch.cat([prompt.to(vectors.dtype).expand(len(tokens), -1, -1), vectors], 1)
        row, asked = torch.arange(len(last), device=last.device), last + len(prompt)
        if self.found.head_is_last:
            return self._words(self.states(vectors)[row, asked], answers)
        places = torch.unique(asked)  # the head, which may be the largest layer, computes those alone
        logits = self.model(inputs_embeds=vectors, use_cache=False, logits_to_keep=places).logits
        found: torch.Tensor = logits[row, torch.searchsorted(places, asked)][:, answers].float()
        return found

    def answer_of_many(self, prompt: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """The same without gradients; a model that keeps keys and values computes the prompt once for the whole batch."""
        cache = self.found.cache
        if cache is None or not self.found.head_is_last:
            return self.answer(prompt, tokens, last, answers)
        vectors = self.embed_tokens(tokens)
        kept = getattr(self.model.base_model(inputs_embeds=prompt.to(vectors.dtype)[None], use_cache=True), cache)
        kept.batch_repeat_interleave(len(tokens))
        states = self.model.base_model(inputs_embeds=vectors, use_cache=True, **{cache: kept}).last_hidden_state
        return self._words(states[torch.arange(len(last), device=last.device), last], answers)

    def _words(self, states: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        head = self.model.get_output_embeddings()
        return functional.linear(states, head.weight[answers], None if head.bias is None else head.bias[answers]).float()

    @cached_property
    def found(self) -> DecoderParts:
        """Found on one token, in evaluation mode, which draws nothing."""
        head, seen = self.model.get_output_embeddings(), list[torch.Tensor]()
        modes = {module: module.training for module in self.model.modules()}
        hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            with torch.no_grad():
                token = torch.zeros(1, 1, dtype=torch.int64, device=self.embed_tokens.weight.device)
                said = self.model.eval()(input_ids=token, use_cache=True)
                plain = type(head) is nn.Linear and torch.allclose(said.logits.float(), head(seen[0]).float(), rtol=1e-3, atol=1e-4)
        finally:
            hook.remove()
            for module, mode in modes.items():
                module.training = mode
        known = inspect.signature(self.model.base_model.forward).parameters
        name = next((name for name in ("cache", "past_key_values") if name in known), None)  # it was renamed in transformers 5
        return DecoderParts(plain, name if name and hasattr(getattr(said, name, None), "batch_repeat_interleave") else None)
