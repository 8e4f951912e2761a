"""Tiny models with random weights, as `save_pretrained` of transformers writes them, and what is trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from stoker.engine.spec.model import JobSpec, Memory, Stop
from stoker.runners.backbones.hub_model import library
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train import rng
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import worker
from stoker.runners.worker.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))
STEPS = 4
_TEXTS = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
_LLM = {**_TEXTS, "max_position_embeddings": 128, "num_key_value_heads": 2}
_PICTURES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16, "patch_size": 8,
}  # fmt: skip
#: name: class of the config, class of the model, what the config says
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _LLM),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**_LLM, "tie_word_embeddings": True}),
    "bert": ("BertConfig", "BertForMaskedLM", {**_TEXTS, "max_position_embeddings": 128}),
    "vit": ("ViTConfig", "ViTForImageClassification", _PICTURES),
    "resnet": ("ResNetConfig", "ResNetForImageClassification",
               {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}),
    "convnext": ("ConvNextConfig", "ConvNextForImageClassification", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
}  # fmt: skip


def save(name: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """One of `MODELS` in a directory."""
    transformers = library("transformers")
    config, model, said = MODELS[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        made = getattr(transformers, model)(getattr(transformers, config)(**{**said, **changes}))
    made.save_pretrained(folder)
    if "vocab_size" in said:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, more: int = 0) -> None:
    """Of bytes, and ``more`` tokens besides."""
    lib = library("tokenizers")
    letters = [*sorted(lib.pre_tokenizers.ByteLevel.alphabet()), *(f"more{number}" for number in range(more))]
    tokenizer = lib.Tokenizer(lib.models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_texts(folder: Path) -> dict[str, str]:
    """A text to go on with, and mails with labels."""
    (folder / "rhyme.txt").write_text("one two, buckle my shoe; three four, knock at the door.\n" * 20)
    rows = [json.dumps({"text": f"note {number} {'zz' if number % 2 else 'aa'}", "label": number % 2}) for number in range(40)]
    (folder / "mails.jsonl").write_text("\n".join(rows))
    return {"text": str(folder / "rhyme.txt"), "mails": str(folder / "mails.jsonl")}


def build(recipe: str, backbone: Path | str, **params: Any) -> Any:
    rng.seed_all(0)
    small = {"batch_size": 4, "eval_limit": 4, "eval_every": 0, "checkpoint_every": 0}
    return worker.build(JobSpec(name="job", recipe=recipe, backbone=str(backbone), params={**small, **params}))


def trainer(task: Any, folder: Path, steps: int = STEPS, memory: Memory | None = None) -> Trainer:
    return Trainer(task, Stop(iterations=steps), folder / "checkpoints", ALONE, work=step_of(memory, task, ALONE) if memory else None)


def weights(trained: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trained.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
