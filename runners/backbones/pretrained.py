"""Language models by name, with their tokenizers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...engine.errors import NotFound, nearest
from . import hub_directory, hub_model, packaged
from .hub_decoder import HubDecoder

_NAMED = (packaged.SMOLLM2, packaged.TINY)


@dataclass(frozen=True, slots=True)
class Llm:
    """A language model that is frozen and in evaluation mode."""

    name: str
    revision: str
    tokens: str  #: digest of its tokenizer
    origin: str  #: its authors' name
    model: HubDecoder
    tokenizer: Any  #: of the library tokenizers

    @property
    def key(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.embed_tokens.weight.device
        return found

    def ids(self, text: str) -> list[int]:
        """Tokens of a text; none is added."""
        return ids_of(self.tokenizer, text)

    def text(self, ids: Sequence[int]) -> str:
        return text_of(self.tokenizer, ids)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """`Llm.ids` with the tokenizer alone, which can be sent to a process that only reads samples."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """`Llm.text` with the tokenizer alone."""
    found: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return found


@functools.cache
def load_llm(name: str) -> Llm:
    """The language model of that name, shared by all callers in one process; see `read_llm`."""
    return read_llm(name)


def read_llm(name: str) -> Llm:
    """The language model of that name, for the caller alone.

    NotFound: there is none; Unreachable, StokerError: its package or a library cannot be fetched.
    """
    if name not in _NAMED and not hub_directory.is_named(name):
        raise NotFound(f"backbone: there is no LLM {name!r}{nearest(name, _NAMED)}; there are {', '.join(_NAMED)}")
    return llm_of(hub_model.hold(name))


def llm_of(found: hub_model.HubModel) -> Llm:
    """A model, frozen. Its name is the last part of its own; revision and tokenizer tell it from others of that name."""
    directory = found.directory
    decoder = HubDecoder(hub_model.decoder(found, "a language model").model, found.context)
    decoder.requires_grad_(False).eval()
    origin = packaged.ORIGINS.get(directory.name, directory.name)
    return Llm(hub_directory.short_name(directory.name), directory.revision, directory.tokens, origin, decoder, found.tokenizer)


def placed(llm: Llm) -> Llm:
    """On the GPU that the runner has given to this process, if any."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") and torch.cuda.is_available():
        llm.model.to(torch.device("cuda", torch.cuda.current_device()))
    return llm
