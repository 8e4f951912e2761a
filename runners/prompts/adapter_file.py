"""A tuned prompt as files: in peft's format (PromptTuningConfig), with a file for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...engine.errors import Conflict, NotFound
from ..backbones.pretrained import Llm
from ..packages import imported
from .labelled_samples import CUE, Samples
from .soft_prompt import nearest_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def write_adapter(folder: Path, llm: Llm, vectors: torch.Tensor, samples: Samples, started: Mapping[str, Any]) -> str:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and ``prompt.json``. Returns the prompt's nearest tokens as text."""
    folder.mkdir(parents=True, exist_ok=True)
    shape, near = llm.model.shape, nearest_text(llm, vectors)
    config = {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "base_model_name_or_path": llm.origin, "revision": None,
        "inference_mode": True, "num_virtual_tokens": len(vectors), "token_dim": shape.hidden, "num_transformer_submodules": 1,
        "num_attention_heads": shape.heads, "num_layers": shape.layers, "prompt_tuning_init": "RANDOM", "prompt_tuning_init_text": None,
        "tokenizer_name_or_path": None,
    }  # fmt: skip
    about = {
        "llm": llm.key, "tokenizer": llm.tokens, "nearest_tokens": near, "input": "{prompt}{text}" + CUE,
        "answers": dict(zip(samples.classes, (f" {word}" for word in samples.words), strict=True)), "started_from": dict(started),
    }  # fmt: skip
    weights = {"prompt_embeddings": vectors.detach().cpu().contiguous()}
    _replace(folder / "adapter_model.safetensors", imported("safetensors.torch", "llm").save(weights, metadata={"format": "pt"}))
    _replace(folder / "adapter_config.json", json.dumps(config, indent=2).encode())
    _replace(folder / "prompt.json", json.dumps(about, indent=2, ensure_ascii=False).encode())
    return near


def read_adapter(folder: Path, llm: Llm) -> NDArray[np.float32]:
    """The vectors (tokens, hidden) in a folder of `write_adapter`. StokerError: they are not there, or belong to another LLM."""
    try:
        about = json.loads((folder / "prompt.json").read_bytes())
        vectors = imported("safetensors.numpy", "llm").load_file(folder / "adapter_model.safetensors")["prompt_embeddings"]
    except (OSError, ValueError, KeyError, imported("safetensors", "llm").SafetensorError) as error:
        raise NotFound(f"{folder}: has no tuned prompt that can be read: {error}") from None
    if (about.get("llm"), about.get("tokenizer")) != (llm.key, llm.tokens):
        raise Conflict(
            f"{folder}: the prompt is of {about.get('llm')} ({about.get('tokenizer')}), and the LLM here is {llm.key} ({llm.tokens}); "
            "they are never mixed: tune it again on this one"
        )
    found: NDArray[np.float32] = vectors
    return found


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)
