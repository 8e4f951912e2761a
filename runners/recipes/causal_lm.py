"""A language model that learns to go on with a text: SmolLM2, or a decoder of given layers and width that begins with random weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...engine.errors import UsageError, nearest
from ..backbones import hub_model
from ..backbones.hub_decoder import HubDecoder
from ..backbones.pretrained import ids_of, text_of
from ..finetune.left_adapter import LeftAdapter
from ..finetune.petl import Adapted, Petl, adapt_decoder
from ..texts import TEXT_DATASETS, load
from ..train.batches import interruptible
from ..train.task import Task
from . import NO_BACKBONE

_BYTES = 256  #: the vocabulary of a model that begins with random weights
_LAYERS, _WIDTH, _HEAD = 4, 128, 64
_CHUNK = 1 << 16  #: characters tokenised between looks at the request to stop
_HELD_OUT = 0.1  #: of a file: its end
_TOKENS = 32  #: that follow a text, unless a request says how many


class Blocks:
    """A text in samples: ``context`` tokens and the one after them, (context + 1,); the next sample begins with that one."""

    def __init__(self, tokens: torch.Tensor, context: int) -> None:
        self.tokens, self.context = tokens, context

    def __len__(self) -> int:
        return max(0, len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self.context
        return self.tokens[begin : begin + self.context + 1].long()


def build(
    *,
    backbone: str,
    dtype: str,
    attention: str,
    petl: str,
    r: int,
    targets: str,
    adapter: str,
    layers: int,
    width: int,
    data: str,
    context: int,
    limit: int,
    lr: float,
    clip: float,
    batch_size: int,
    eval_limit: int,
    eval_every: int,
    checkpoint_every: int,
    seed: int,
) -> Task:
    asked = Petl(petl, r, targets, adapter)
    begun = _beginning(backbone, dtype, attention, layers, width, context, asked)
    ids, adapted = begun.ids, begun.adapted
    train, held_out = (Blocks(_tokens(text, ids), context) for text in _texts(data, limit))
    for blocks, what in ((train, "to train on"), (held_out, "held out")):
        if not len(blocks):
            raise UsageError(
                f"params.data: {data} is too short: {len(blocks.tokens)} tokens are {what}, and a sample takes params.context + 1, "
                f"{context + 1}; bring a longer text, or lower params.context"
            )

    leaves = None
    if adapted is not None:
        digest = hashlib.sha256(train.tokens.numpy().tobytes()).hexdigest()[:16]
        revision = adapted.directory.revision
        leaves = LeftAdapter(
            backbone=backbone, revision=revision, form=adapted.trains, digest=digest, labels="texts to go on with", adapted=adapted
        )

    return Task(
        own=(),  # the head is tied to the embedding
        model=begun.model,
        train=train,
        loss=lambda model, batch: _loss(model, batch, "mean"),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
        evaluate=lambda model: _judged(model, held_out, batch_size, eval_limit),
        batch_size=batch_size,
        iterations=100,
        eval_every=eval_every or None,
        checkpoint_every=checkpoint_every or None,
        clip_norm=clip or None,
        seed=seed,
        save_frozen=adapted is None,
        finish=None if leaves is None else leaves.write,
        leaves=leaves,
        prepare=lambda request: _beginning_of(request, ids, begun.context),
        answer=lambda model, requests: _continued(model, begun, requests),
    )


@dataclass(frozen=True, slots=True)
class Begun:
    model: HubDecoder
    ids: Callable[[str], Sequence[int]]  #: how it reads a text
    words: Callable[[Sequence[int]], str]  #: and writes one
    context: int  #: tokens that it sees at once
    adapted: Adapted | None = None  #: its tuned part; None: all of it


def _beginning(backbone: str, dtype: str, attention: str, layers: int, width: int, context: int, asked: Petl) -> Begun:
    if backbone == NO_BACKBONE:
        if asked.wanted:
            raise UsageError(f"params.petl: there is nothing to adapt with backbone: {NO_BACKBONE}; leave it out")
        hub_model.require_plain(backbone, dtype, attention)
        plain = HubDecoder(_random(layers or _LAYERS, width or _WIDTH, context), context)
        return Begun(plain, lambda text: list(text.encode()), lambda ids: bytes(ids).decode(errors="replace"), context)
    for name, value in (("layers", layers), ("width", width)):
        if value:
            raise UsageError(f"params.{name}: {backbone} has its own; leave it out, or write 'backbone: {NO_BACKBONE}'")
    found = hub_model.decoder(hub_model.taken(backbone, dtype, attention), "causal-lm")
    model, tokenizer = HubDecoder(found.model, found.context), found.tokenizer
    adapted = adapt_decoder(model, found.directory, asked) if asked.wanted else None
    if adapted is None:
        model.requires_grad_(True)
    if context > (most := model.shape.context - model.skipped):
        raise UsageError(f"params.context: {context} is more than {backbone} reads at once, {most} tokens; lower it")
    return Begun(model, lambda text: ids_of(tokenizer, text), lambda ids: text_of(tokenizer, ids), most, adapted)


def _random(layers: int, width: int, context: int) -> nn.Module:
    """A decoder of bytes, with heads of 64 numbers and inner layers four times as wide as the others, as in GPT (Radford et al. 2018)."""
    if width % _HEAD and (width > _HEAD or width % 2):
        raise UsageError(f"params.width: {width} must be a multiple of {_HEAD}, or even and less")
    heads = max(1, width // _HEAD)
    return hub_model.random_llama(
        vocab_size=_BYTES, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=context, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip


# ---- text ----


def _texts(data: str, limit: int) -> tuple[str, str]:
    """A text to train on and a held-out one. ``limit`` cuts a file as a whole, and each text of a set; 0: nothing is cut."""
    if data in TEXT_DATASETS:
        found = load(data)
        train, held_out = ("\n\n".join(text for text, _ in rows) for rows in (found.train, found.held_out))
        return train[: limit or None], held_out[: limit or None]
    path = Path(data).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        known = f"{nearest(data, TEXT_DATASETS)}; sets are {', '.join(TEXT_DATASETS)}"
        raise UsageError(f"params.data: there is neither a file {path.absolute()} nor a set of that name{known}") from None
    except OSError as error:
        raise UsageError(f"params.data: {path.absolute()} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"params.data: {path.name} is not text in UTF-8: {error.reason} at byte {error.start}") from None
    text = text[: limit or None]
    if not text.strip():
        raise UsageError(f"params.data: {path.absolute()} is empty; bring a text to learn from")
    end = len(text) - int(len(text) * _HELD_OUT)
    return text[:end], text[end:]


def _tokens(text: str, ids: Callable[[str], Sequence[int]]) -> torch.Tensor:
    return torch.tensor([token for part in interruptible(_parts(text)) for token in ids(part)], dtype=torch.int32)


def _parts(text: str) -> Iterator[str]:
    """Parts of about `_CHUNK` characters, each cut before a space, which no token crosses."""
    begin = 0
    while begin < len(text):
        end = text.find(" ", begin + _CHUNK)
        yield text[begin : end if end >= 0 else len(text)]
        begin = end if end >= 0 else len(text)


# ---- what is learned ----


def _loss(model: nn.Module, samples: torch.Tensor, reduction: str) -> torch.Tensor:
    return nn.functional.cross_entropy(model(samples[:, :-1]).flatten(0, 1).float(), samples[:, 1:].flatten(), reduction=reduction)


def _judged(model: nn.Module, held_out: Blocks, batch_size: int, limit: int) -> dict[str, float]:
    device = next(model.parameters()).device
    count = min(limit, len(held_out))
    total = 0.0
    for begin in interruptible(range(0, count, batch_size)):
        samples = torch.stack([held_out[index] for index in range(begin, min(begin + batch_size, count))]).to(device)
        total += float(_loss(model, samples, "sum"))
    mean = total / (count * held_out.context)
    return {"eval_loss": mean, "perplexity": math.exp(min(mean, 700.0))}


# ---- what is asked ----


def _beginning_of(request: Any, ids: Callable[[str], Sequence[int]], context: int) -> tuple[list[int], int]:
    """The tokens of a request, a text or ``{"text": …, "tokens": …}``, and how many are to follow."""
    asked = request if isinstance(request, dict) else {"text": request}
    text, tokens = asked.get("text"), asked.get("tokens", _TOKENS)
    if not isinstance(text, str) or not text or not isinstance(tokens, int) or asked.keys() - {"text", "tokens"}:
        raise UsageError('a request is a text, or {"text": "…", "tokens": how many are to follow}')
    if not 1 <= tokens < context:
        raise UsageError(f"tokens: {tokens} is not between 1 and {context - 1}: the model sees {context} at once")
    return list(ids(text))[tokens - context :], tokens


def _continued(model: nn.Module, begun: Begun, requests: Sequence[tuple[list[int], int]]) -> list[str]:
    assert isinstance(model, HubDecoder)
    return [begun.words(model.continuation(ids, tokens)) for ids, tokens in requests]
