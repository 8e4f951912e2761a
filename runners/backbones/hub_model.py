"""Models of `hub_directory`, loaded by transformers: mapped from their files, without threads, without drawing from a generator."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psutil
import torch
from torch import nn

from ...engine.errors import StokerError, UsageError
from .. import packages
from ..packages import imported
from ..warm import held
from .hub_directory import TIMM, HubDirectory, find

log = logging.getLogger(__name__)

#: With these, loading leaves no thread behind, as fork servers need, and fetches nothing.
_QUIET = {
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}  # fmt: skip
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_DECODER, _ENCODER, _PICTURES = "a decoder", "an encoder", "a model of pictures"


def library(name: str) -> Any:
    """transformers or peft, as a job and a fork server import it."""
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    imported("tqdm", "llm").tqdm.monitor_interval = 0  # its monitor is a thread
    return imported(name, "llm")


@dataclass
class HubModel:
    """A loaded model: a decoder with its head, or the body of another one. In evaluation mode."""

    directory: HubDirectory
    model: Any
    kind: str

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def tokenizer(self) -> Any:
        """Of the library tokenizers, for the caller alone."""
        return _tokenizer(self.directory)

    @property
    def config(self) -> Any:
        """The config of the part that reads texts, if there are several."""
        return self.model.config.get_text_config()

    @property
    def body(self) -> Any:
        """Without the head."""
        return self.model.base_model if self.kind == _DECODER else self.model

    @property
    def context(self) -> int:
        """Tokens that it reads at once."""
        known = (getattr(self.config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"))
        found = next((value for value in known if isinstance(value, int) and value > 0), 1 << 20)
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                # RoBERTa and its relatives count positions from the padding's on.
                return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        return found

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Its blocks in order: the longest list of modules of one class."""
        kinds = nn.Sequential if self.model.config.model_type == TIMM else nn.ModuleList
        lists = [each for each in self.body.modules() if isinstance(each, kinds) and len({type(one) for one in each}) == 1]
        return max((list(each) for each in lists), key=len, default=[])

    @property
    def bidirectional(self) -> bool:
        return self.kind == _ENCODER

    def attend_by(self, attention: str) -> None:
        """Set the implementation of attention; auto: transformers' choice."""
        if attention != "auto":
            try:
                self.model.set_attn_implementation(attention)
            except (ValueError, ImportError) as error:
                raise UsageError(f"params.attention: {self.name} cannot use {attention!r}: {' '.join(str(error).split())[:200]}") from None


def load(name: str, dtype: str = "float32") -> HubModel:
    """The model of a path or name, for the caller alone. UsageError, StokerError: it cannot be loaded, in one line."""
    directory = find(name)
    directory.check(texts=False)
    transformers = library("transformers")
    config = _of_transformers(directory, lambda: transformers.AutoConfig.from_pretrained(directory.path, local_files_only=True))
    kind = _kind(transformers, directory, config)
    _require_memory(directory, dtype)
    with torch.random.fork_rng(devices=()):
        model, told = _of_transformers(directory, lambda: _read(transformers, directory, config, kind, dtype))
    for weight, given, expected in sorted(told["mismatched_keys"], key=str):
        raise directory.error(f"has weights whose shape differs from its config: {weight} is {list(given)}, and should be {list(expected)}")
    if missing := sorted(told["missing_keys"]):
        raise directory.error(f"lacks the weights {missing[0]}, and {len(missing) - 1} more: it would begin with random ones")
    if kind == _DECODER and (unused := sorted(told["unexpected_keys"])):
        log.warning("of the weights of %s %d have no place in the model of its config, such as %s", name, len(unused), unused[0])
    model.config.use_cache = False  # a training has no use for it
    return HubModel(directory, model.eval(), kind)


def hold(name: str) -> HubModel:
    """`load` for a fork server: with its tokenizer, if it has one."""
    found = load(name)
    packages.given_out.update(found.directory.read)
    if (found.directory.path / "tokenizer.json").exists():
        found.tokenizer  # noqa: B018 - reads it
    return found


def hold_for_forks(name: str) -> HubModel:
    """The same, with further modules that jobs import, if they are installed."""
    if importlib.util.find_spec("peft") is not None:
        library("peft")
    return hold(name)


def taken(name: str, dtype: str, attention: str) -> HubModel:
    """The model with which the process was forked, else loaded; by a job's parameters. A dtype other than the fork server's is loaded."""
    found = held.take(name, hold) if dtype == "float32" else load(name, dtype)
    found.attend_by(attention)
    return found


def random_llama(**config: Any) -> nn.Module:
    """A Llama whose weights are drawn from the job's generator, as transformers draws them."""
    transformers = library("transformers")
    made: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **config))
    return made


def require_plain(backbone: str, dtype: str, attention: str) -> None:
    """UsageError if a model of random weights gets options of a loaded one."""
    for name, value, plain in (("dtype", dtype, "float32"), ("attention", attention, "auto")):
        if value != plain:
            raise UsageError(f"params.{name}: is for a backbone that is loaded, not for backbone: {backbone}; leave it out")


def require(found: HubModel, *kinds: str, recipe: str) -> HubModel:
    if found.kind not in kinds:
        raise UsageError(f"backbone: {found.name} is {found.kind} ({found.model.config.model_type}); {recipe} takes {' or '.join(kinds)}")
    return found


def decoder(found: HubModel, recipe: str) -> HubModel:
    return require(found, _DECODER, recipe=recipe)


def of_texts(found: HubModel, recipe: str) -> HubModel:
    return require(found, _ENCODER, _DECODER, recipe=recipe)


def of_pictures(found: HubModel, recipe: str) -> HubModel:
    return require(found, _PICTURES, recipe=recipe)


def _kind(transformers: Any, directory: HubDirectory, config: Any) -> str:
    auto, kind = transformers.models.auto.modeling_auto, config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise directory.error(f"is an encoder with a decoder ({kind}); Stoker's recipes take one or the other")
    # A model of masked words is in the table of decoders too, as it can be made one.
    tables = (
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, _ENCODER),
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, _DECODER),
        (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, _PICTURES),
        (auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, _ENCODER),
    )
    for table, found in tables:
        if kind in table:
            return found
    raise directory.error(f"is a model of type {kind!r}, which is neither an encoder nor a decoder of texts nor one of pictures")


def _read(transformers: Any, directory: HubDirectory, config: Any, kind: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    given: dict[str, Any] = {
        "config": config, "dtype": getattr(torch, dtype), "local_files_only": True, "use_safetensors": True, "output_loading_info": True,
        "trust_remote_code": False, "ignore_mismatched_sizes": True,
    }  # fmt: skip
    found: tuple[Any, dict[str, Any]]
    if kind == _DECODER:
        found = transformers.AutoModelForCausalLM.from_pretrained(directory.path, **given)
        return found
    made = transformers.AutoModel._model_mapping[type(config)]
    made = made[0] if isinstance(made, tuple) else made
    if "add_pooling_layer" in inspect.signature(made.__init__).parameters:
        given["add_pooling_layer"] = False  # it is for the model's pre-training task
    del given["trust_remote_code"]  # of the Auto classes alone
    found = made.from_pretrained(directory.path, **given)
    return found


def _of_transformers(directory: HubDirectory, read: Callable[[], Any]) -> Any:
    """The result of ``read``; a fault in a model's files may raise any kind of error."""
    try:
        return read()
    except (MemoryError, StokerError):
        raise
    except RuntimeError as error:
        if any(words in str(error) for words in ("out of memory", "not enough memory", "can't allocate")):
            raise
        raise directory.error(f"cannot be loaded: {_short(error)}") from None
    except Exception as error:
        raise directory.error(f"cannot be loaded: {_short(error)}") from None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _require_memory(directory: HubDirectory, dtype: str) -> None:
    """Weights of another width than the file's are copied; the others are mapped, and take memory as they are used."""
    need, free = directory.numbers * _BYTES[dtype], psutil.virtual_memory().available
    if need > free:
        raise StokerError(
            f"backbone: {directory.path} takes {need / 2**30:.1f} GiB in {dtype}, and the host has {free / 2**30:.1f} GiB of memory left; "
            "end something there, or give params.dtype: bfloat16"
        )


def _tokenizer(directory: HubDirectory) -> Any:
    directory.check(texts=True)
    tokenizers = imported("tokenizers", "llm")
    try:
        found = tokenizers.Tokenizer.from_file(str(directory.path / "tokenizer.json"))
    except Exception as error:  # the library has no class of its own for it
        raise directory.error(f"has a tokenizer.json that cannot be read: {_short(error)}") from None
    found.no_padding()
    found.no_truncation()
    return found
