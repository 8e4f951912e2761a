"""Fine-tuning of few parameters (PETL), by peft and in files of its format: LoRA, rescaled activations, prompts.

A frozen body gets small modules that are trained in its place. At its end a job leaves them in a directory of some hundred kilobytes, from
which `PeftModel.from_pretrained` makes the same model, and with which another job may begin.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ...engine.errors import Conflict, NotFound, UsageError
from ..backbones.hub_directory import HubDirectory
from ..backbones.hub_model import library
from ..packages import imported
from ..train.checkpoint import CheckpointError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from ..backbones.hub_body import HubBody
    from ..backbones.hub_decoder import HubDecoder

ADAPTER = "adapter"  #: directory of the trained modules, beside the checkpoints
FULL = "full"  #: no PETL
ABOUT, HEAD = "stoker.json", "head.safetensors"  #: beside peft's files: its description, and the task's own head
WEIGHTS = "adapter_model.safetensors"  #: of peft
_FORMS = {"lora": "LORA", "adapter": "IA3", "prompt": "PROMPT_TUNING"}
_AUTO = "auto"
_PROMPT = "prompt_embeddings"  #: name of a prompt in a file of peft's
#: Models' names for the projections of attention that LoRA changes by default (Hu et al. 2022: queries and values).
_QUERIES_AND_VALUES = (
    ("q_proj", "v_proj"), ("query", "value"), ("q_lin", "v_lin"), ("query_proj", "value_proj"), ("q", "v"), ("c_attn",),
    ("query_key_value",), ("qkv_proj",), ("qkv",), ("Wqkv",),
)  # fmt: skip

Task = Literal["CAUSAL_LM", "FEATURE_EXTRACTION"]


@dataclass(frozen=True, slots=True)
class Petl:
    """A job's choice of it."""

    form: str = FULL  #: one of full, lora, adapter, prompt
    r: int = 8  #: rank of LoRA, tokens of a prompt
    targets: str = _AUTO  #: names of modules, separated by commas
    begins: str = ""  #: directory of an adapter to begin with

    @property
    def wanted(self) -> bool:
        return self.form != FULL or bool(self.begins)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model with its small modules."""

    model: Any  #: peft's
    form: str
    prompt: int  #: tokens that stand before the input
    directory: HubDirectory
    begun: str  #: directory of the adapter with which it began

    def write(self, folder: Path, about: Mapping[str, Any], head: nn.Module | None = None) -> None:
        """Into a directory, each file at once."""
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self.model.save_pretrained(folder, save_embedding_layers=False)
        if head is not None:
            weights = {name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
            _replace(folder / HEAD, imported("safetensors.torch", "llm").save(weights, metadata={"format": "pt"}))
        known = {"backbone": self.directory.name, "revision": self.directory.revision, "petl": self.form, "began_with": self.begun or None}
        digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
        write_about(folder, {**known, "sha256": digest, **about})

    @property
    def trains(self) -> str:
        """The form with its size and places; two are equal if one's adapter fits the other's model."""
        config = self.model.peft_config["default"]
        places = ", ".join(sorted(config.target_modules or ())) if self.form != "prompt" else ""
        size = {"lora": f" of rank {getattr(config, 'r', 0)}", "prompt": f" of {self.prompt} tokens"}.get(self.form, "")
        return f"{self.form}{size}{f' on {places}' if places else ''}"

    def names(self, model: nn.Module) -> dict[str, str]:
        """Names of tensors in a model around this one, by their names in peft's files."""
        place = {value.data_ptr(): name for name, value in model.named_parameters() if value.requires_grad}
        if self.form == "prompt":
            return {_PROMPT: next(name for name, value in model.named_parameters() if value.requires_grad and "prompt_encoder" in name)}
        with _quiet():
            written = library("peft").get_peft_model_state_dict(self.model, save_embedding_layers=False)
        return {key: place[value.data_ptr()] for key, value in written.items() if value.data_ptr() in place}


def adapt(model: nn.Module, directory: HubDirectory, asked: Petl, task: Task | None) -> Adapted:
    """Freeze the model and put the small modules in. UsageError, NotFound, Conflict: it is impossible, in one line."""
    peft = library("peft")
    config, state = (
        _read(peft, Path(asked.begins).expanduser(), directory, asked) if asked.begins else (_config(peft, model, asked, task), None)
    )
    if config.task_type not in (task, None):
        raise Conflict(
            f"params.adapter: {asked.begins} is of a model for {config.task_type}, and this is one for {task or 'pictures'}; never mixed"
        )
    try:
        with _quiet():
            made = peft.get_peft_model(model, config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        field = "params.adapter" if asked.begins else "params.targets"
        raise UsageError(f"{field}: {directory.name} cannot be tuned so: {' '.join(str(error).split())[:300]}") from None
    if state is not None:
        _take(peft, made, state, asked.begins)
    form = next(name for name, kind in _FORMS.items() if kind == config.peft_type)
    return Adapted(made, form, config.num_virtual_tokens if form == "prompt" else 0, directory, asked.begins)


def adapt_body(body: HubBody, directory: HubDirectory, asked: Petl) -> Adapted:
    """A classifier's body, in which only the small modules are trained, without dropout."""
    found = adapt(body.body, directory, asked, "FEATURE_EXTRACTION" if body.reads_texts else None)
    body.put(found.model, found.prompt)
    return found


def adapt_decoder(decoder: HubDecoder, directory: HubDirectory, asked: Petl) -> Adapted:
    found = adapt(decoder.model, directory, asked, "CAUSAL_LM")
    decoder.put(found.model, found.prompt)
    return found


def read_head(folder: str) -> tuple[dict[str, torch.Tensor], list[str]] | None:
    """Head and classes of an adapter that Stoker wrote; None: it has none."""
    path = Path(folder).expanduser()
    if not (path / HEAD).exists():
        return None
    classes = _about(path).get("classes")
    return imported("safetensors.torch", "llm").load_file(path / HEAD), classes if isinstance(classes, list) else []


def take_head(head: nn.Module, classes: Sequence[str], adapter: str) -> None:
    """Take over the head of the adapter with which a classifier begins, if it has the same classes; else it keeps its own."""
    if adapter and (found := read_head(adapter)) is not None and found[1] == list(classes):
        head.load_state_dict(found[0])


def write_adapter(adapted: Adapted, checkpoints: Path, about: Mapping[str, Any], head: nn.Module | None) -> None:
    """The adapter beside the checkpoints, and the head of a classifier."""
    try:
        adapted.write(checkpoints / ADAPTER, about, head)
    except (OSError, imported("safetensors", "llm").SafetensorError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(
            f"cannot write the adapter to {checkpoints / ADAPTER}: {why}; free some space there; all steps are in a checkpoint"
        ) from None
    log.info("the adapter is in %s, for peft", checkpoints / ADAPTER)


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the description of a job's adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / ABOUT, json.dumps(about, indent=2, ensure_ascii=False).encode())


def tensors_of(content: bytes) -> dict[str, torch.Tensor]:
    """Of a file of safetensors. ValueError: it is none."""
    try:
        found: dict[str, torch.Tensor] = imported("safetensors.torch", "llm").load(content)
    except imported("safetensors", "llm").SafetensorError as error:
        raise ValueError(str(error)) from None
    return found


def _config(peft: Any, model: nn.Module, asked: Petl, task: Task | None) -> Any:
    if asked.form == "prompt":
        if asked.targets != _AUTO:
            raise UsageError("params.targets: a prompt changes no modules; leave it out, or give petl: lora or adapter")
        embeddings = getattr(model, "get_input_embeddings", lambda: None)()
        if not isinstance(embeddings, nn.Embedding):
            raise UsageError("params.petl: a prompt is for models that read texts; give lora or adapter")
        return peft.PromptTuningConfig(task_type=task, num_virtual_tokens=asked.r, prompt_tuning_init="SAMPLE_VOCAB")
    targets = _targets(model, asked.targets)
    if asked.form == "adapter":
        return peft.IA3Config(task_type=task, target_modules=targets, feedforward_modules=[])
    return peft.LoraConfig(task_type=task, r=asked.r, lora_alpha=2 * asked.r, lora_dropout=0.0, target_modules=targets)


def _targets(model: nn.Module, said: str) -> list[str]:
    """Names of modules, as peft looks for them: the last part of a name, or more of it."""
    able = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding)
            or type(module).__name__ == "Conv1D"]  # fmt: skip
    last = {name.rpartition(".")[2] for name in able}
    if said == _AUTO:
        known = next((list(names) for names in _QUERIES_AND_VALUES if last.issuperset(names)), None)
        found = known or sorted(_linear(model))
        if not found:
            raise UsageError("params.targets: this model has none of the layers that are tuned by default; name some")
        return found
    names = [name.strip() for name in said.split(",") if name.strip()]
    lacking = [name for name in names if not any(each == name or each.endswith(f".{name}") for each in able)]
    if lacking or not names:
        there = ", ".join(sorted(last)[:20])
        raise UsageError(f"params.targets: no layer is called {(lacking or [said])[0]!r}; there are {there}")
    return names


def _linear(model: nn.Module) -> set[str]:
    """Linear layers within the model's blocks: those whose names occur more than once."""
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return {name for name in names if names.count(name) > 1 and not name.isdigit()}


def _read(peft: Any, folder: Path, directory: HubDirectory, asked: Petl) -> tuple[Any, dict[str, torch.Tensor]]:
    """Config and weights of an adapter, Stoker's or another's."""
    try:
        config = peft.PeftConfig.from_pretrained(str(folder)) if (folder / "adapter_config.json").exists() else None
        weights = imported("safetensors.torch", "llm").load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, TypeError, KeyError, imported("safetensors", "llm").SafetensorError) as error:
        raise NotFound(f"params.adapter: {folder} has no adapter that can be read: {' '.join(str(error).split())[:200]}") from None
    if config is None:
        raise NotFound(f"params.adapter: {folder} has no adapter_config.json; give a directory written by peft or Stoker")
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind not in _FORMS.values():
        raise UsageError(f"params.adapter: {folder} is of the kind {kind}; Stoker tunes {', '.join(_FORMS.values())}")
    if asked.form != FULL and _FORMS[asked.form] != kind:
        raise Conflict(f"params.petl: {asked.form} is another form than that of {folder}, {kind}; leave petl out, or the adapter")
    about = _about(folder)
    if about and about.get("revision") != directory.revision:
        raise Conflict(
            f"params.adapter: {folder} is of {about.get('backbone')} ({about.get('revision')}), and the backbone here is "
            f"{directory.name} ({directory.revision}); they are never mixed"
        )
    config.inference_mode = False
    if not isinstance(getattr(config, "init_lora_weights", True), bool):
        raise UsageError(
            f"params.adapter: {folder} changes the backbone's own weights ({config.init_lora_weights}); convert it to plain LoRA"
        )
    if kind == "LORA":
        config.lora_dropout = 0.0  # a body is tuned without
    if kind == "PROMPT_TUNING":
        config.prompt_tuning_init, config.tokenizer_name_or_path = "RANDOM", None  # it is replaced below
    return config, weights


def _take(peft: Any, made: Any, state: dict[str, torch.Tensor], folder: str) -> None:
    try:
        with _quiet():
            told = peft.set_peft_model_state_dict(made, state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise Conflict(f"params.adapter: {folder} does not fit the backbone: {' '.join(str(error).split())[:300]}") from None
    if _PROMPT in state:  # peft has loaded it, or raised
        return
    trained = {name for name, each in made.named_parameters() if each.requires_grad}
    unexpected = [name for name in told.unexpected_keys if ".pooler." not in name]  # a body here has none
    unfit = [*unexpected, *sorted(trained & set(told.missing_keys))]
    if unfit:
        raise Conflict(
            f"params.adapter: {folder} does not fit the backbone: {len(unfit)} of its weights have no counterpart, {unfit[0]} first"
        )


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / ABOUT).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _quiet() -> Any:
    """Without warnings: peft uses names of transformers that are deprecated."""
    return warnings.catch_warnings(action="ignore")


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)
