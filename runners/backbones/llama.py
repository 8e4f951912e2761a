"""A decoder of the Llama family (Touvron et al. 2023; grouped keys: Ainslie et al. 2023), with input and output embeddings tied.

Parameters have the names and the layout that they have in transformers, without its prefix ``model.``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

Past = Sequence[tuple[torch.Tensor, torch.Tensor]]  #: rotated keys and values of each layer: (1 or batch, key heads, length, width)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    inner: int  #: of the feed-forward layers
    context: int  #: tokens
    epsilon: float = 1e-5
    rope_base: float = 10_000.0


class Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.width = shape.hidden // shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * self.width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.key_heads * self.width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.key_heads * self.width, bias=False)
        self.o_proj = nn.Linear(shape.heads * self.width, shape.hidden, bias=False)

    def forward(
        self, states: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], past: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        batch, length = states.shape[0], states.shape[1]
        queries, keys, values = (
            project(states).view(batch, length, -1, self.width).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = rotated(queries, turn), rotated(keys, turn)
        now = keys, values
        mask = None
        if past is not None:
            keys, values = (torch.cat([before.expand(batch, -1, -1, -1), new], 2) for before, new in zip(past, now, strict=True))
            mask = torch.ones(length, keys.shape[2], dtype=torch.bool, device=states.device).tril(keys.shape[2] - length)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), now


class FeedForward(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return found


class Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = FeedForward(shape)

    def forward(
        self, states: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], past: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, now = self.self_attn(self.input_layernorm(states), turn, past)
        states = states + mixed
        return states + self.mlp(self.post_attention_layernorm(states)), now


class Llama(nn.Module):
    """Tokens in, logits of the next one out. Texts of a batch are padded on the right: no token sees what comes after it."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.epsilon)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, length, vocabulary) of tokens (batch, length)."""
        return functional.linear(self.states(self.embed_tokens(tokens))[0], self.embed_tokens.weight)

    def states(self, vectors: torch.Tensor, past: Past | None = None) -> tuple[torch.Tensor, Past]:
        """Last hidden states (batch, length, hidden) of input vectors of that shape, after ``past``; and their own keys and values."""
        begin = past[0][0].shape[2] if past is not None else 0
        turn = self._turn(begin, begin + vectors.shape[1], vectors.device)
        kept = []
        for number, layer in enumerate(self.layers):
            vectors, now = layer(vectors, turn, past[number] if past is not None else None)
            kept.append(now)
        return self.norm(vectors), kept

    def answer(self, prompt: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Logits (batch, answers) of what follows ``tokens[last]`` after the prompt (tokens, hidden), which is gone through once."""
        _, past = self.states(prompt[None])
        states, _ = self.states(self.embed_tokens(tokens), past)
        asked = states[torch.arange(len(last), device=last.device), last]
        return functional.linear(asked, self.embed_tokens.weight[answers])

    def _turn(self, begin: int, end: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of rotary positions (Su et al. 2021), (length, width of a head)."""
        width = self.shape.hidden // self.shape.heads
        pace = self.shape.rope_base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
        angles = torch.arange(begin, end, device=device, dtype=torch.float32)[:, None] * torch.cat([pace, pace])
        return angles.cos(), angles.sin()


def rotated(heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Queries or keys (batch, heads, length, width), turned by their positions; the two halves of a head make the pairs."""
    first, second = heads.chunk(2, dim=-1)
    return heads * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]
