"""Recipes: training jobs that come with Stoker. This registry imports nothing heavy, so that a submission can be checked against it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import Gathered, UsageError, nearest
from ..backbones import hub_directory
from ..texts import TEXT_DATASETS

if TYPE_CHECKING:
    from ...engine.spec.model import Kind
    from ..train.task import Task


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a recipe: its type is that of its default."""

    default: bool | int | float | str
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    prefix: str = ""  #: values that begin with it are choices too
    directories: bool = False  #: a model's directory is a choice too, and a name in Hugging Face's cache

    def check(self, name: str, value: Any) -> Any:
        """The value in the parameter's type, or UsageError that names the parameter."""
        wanted = type(self.default)
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise UsageError(f"params.{name}: {value!r} is not {_A[wanted]}")
        self._check_bounds(name, value)
        return value

    def _check_bounds(self, name: str, value: Any) -> None:
        if self.directories and value not in self.choices and hub_directory.is_named(value):
            return
        if self.choices and value not in self.choices and not (self.prefix and value.startswith(self.prefix)):
            others = [f"'{self.prefix} …'"] * bool(self.prefix) + [_DIRECTORY] * self.directories
            known = ", ".join([*self.choices, *others])
            raise UsageError(f"params.{name}: {value!r} is not one of {known}{nearest(value, self.choices)}")
        if self.low is not None and value < self.low:
            raise UsageError(f"params.{name}: {value!r} is too small; the least is {self.low:g}")
        if self.high is not None and value > self.high:
            raise UsageError(f"params.{name}: {value!r} is too large; the most is {self.high:g}")


_DIRECTORY = "OWNER/NAME of Hugging Face's, the path of a model's directory"
_A = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    doc: str
    target: str  #: module:function below this package, called with all params by keyword; returns a Task
    params: Mapping[str, Param] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  #: modules of the extras "recipes" and "llm"
    texts: bool = True  #: its backbone reads texts, by a tokenizer
    kind: Kind = "train"  #: of its jobs, unless a job states another
    answers: bool = False  #: its jobs may be of kind infer
    samples: tuple[str, ...] = ()  #: parameters that bound its samples and nothing else: a server is built with one of each

    def resolve(self, given: Mapping[str, Any], backbone: str | None = None) -> dict[str, Any]:
        """All parameters: those given, checked, and the defaults of the others. The job's ``backbone`` is a parameter of some recipes."""
        errors = Gathered()
        if backbone is not None and "backbone" in self.params:
            given = {"backbone": backbone, **given}
        found = {name: param.default for name, param in self.params.items()}
        for name, value in given.items():
            with errors.part():
                if name not in self.params:
                    raise UsageError(f"params.{name}: recipe {self.name} has no such parameter{nearest(name, self.params)}")
                found[name] = self.params[name].check(name, value)
        errors.tell()
        return found

    def load(self) -> Callable[..., Task]:
        module, _, function = self.target.partition(":")
        loaded: Callable[..., Task] = getattr(importlib.import_module(f".{module}", __name__), function)
        return loaded

    @property
    def backbones(self) -> tuple[str, ...]:
        """Names of pre-trained models that it can start from; the first is the default."""
        param = self.params.get("backbone")
        if param is None or not param.choices:
            return ()
        return tuple(name for name in dict.fromkeys((str(param.default), *param.choices)) if name not in ("", NO_BACKBONE))

    @property
    def leaves(self) -> bool:
        """Whether its jobs leave an adapter with which others may begin."""
        return "petl" in self.params

    @property
    def takes_directories(self) -> bool:
        param = self.params.get("backbone")
        return param is not None and param.directories

    def unusable(self, given: Mapping[str, Any], backbone: str | None = None) -> str | None:
        """The problem with the backbone's files on this host, without the field's name; None: no problem, or it is no directory."""
        asked = self.resolve(given, backbone)
        name = asked.get("backbone")
        if not isinstance(name, str) or not self.takes_directories or name in self.params["backbone"].choices:
            return None
        return unusable(name, texts=self.texts)

    def backbone(self, spec: Mapping[str, Any]) -> str | None:
        """The pre-trained model that a job starts from, by its spec; None: none that a process can hold."""
        said = (spec.get("params") or {}).get("backbone") or spec.get("backbone")
        if self.takes_directories and isinstance(said, str) and said not in self.params["backbone"].choices:
            return said if hub_directory.is_named(said) and not said.startswith((".", "~")) else None
        return said if said in self.backbones else next(iter(self.backbones), None) if said is None else None


def find(name: str) -> Recipe:
    if name not in RECIPES:
        raise UsageError(f"recipe: there is no {name!r}{nearest(name, RECIPES)}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def starting_from(backbone: str) -> str | None:
    """`ANY` where it is a backbone; None: no recipe's jobs start from it."""
    named = any(backbone in recipe.backbones for recipe in RECIPES.values())
    return ANY if named or hub_directory.is_named(backbone) else None


def directory(backbone: str) -> str | None:
    """A model's directory by its absolute path, or its name in Hugging Face's cache; None: it is neither."""
    if os.path.isdir(backbone) or backbone.startswith(("/", "./", "../", "~")):  # noqa: PTH112 - of any name
        return os.path.abspath(Path(backbone).expanduser())  # noqa: PTH100 - without following links, as in a job
    return backbone if hub_directory.is_named(backbone) else None


short_name = hub_directory.short_name


def unusable(backbone: str, *, texts: bool = False) -> str | None:
    """The problem with a model's files on this host, without a field's name; None: no problem, or they need not be here."""
    if not hub_directory.is_here(backbone):
        return None
    try:
        hub_directory.find(backbone).check(texts=texts)
    except UsageError as error:
        return str(error).removeprefix("backbone: ")
    return None


ANY = "any"  #: in place of the recipe of a fork server that holds a backbone: it forks the jobs of every recipe that takes it


LLMS = ("smollm2-135m", "tiny")

NO_BACKBONE = "none"  #: a choice of recipes that can begin with random weights

_AS_LOADED = {
    "dtype": Param("float32", "of the backbone's weights", choices=("float32", "bfloat16", "float16")),
    "attention": Param(
        "auto", "its implementation in the backbone; auto: the library's choice", choices=("auto", "sdpa", "eager", "flash_attention_2")
    ),
}
_PETL = {
    "petl": Param(
        "full", "few parameters, in peft's format, trained in place of the model's own: docs/backbones.md",
        choices=("full", "lora", "adapter", "prompt"),
    ),
    "r": Param(8, "rank of lora, tokens of prompt", low=1, high=1024),
    "targets": Param("auto", "layers that lora or adapter change, by name, separated by commas; auto: queries and values"),
    "adapter": Param("", "directory of a peft adapter to begin with"),
}  # fmt: skip
_COLUMNS = {
    "text_column": Param("text", "name of the texts in a file"),
    "label_column": Param("label", "name of the labels there"),
    "held_out": Param("", "a file of held-out samples; '': a fifth of each class of the data"),
}
_TEXT_LIBRARIES = ("safetensors", "tokenizers", "transformers")


def _paced(steps: int) -> dict[str, Param]:
    """Parameters of every recipe."""
    return {
        "eval_every": Param(steps, "steps between evaluations; 0: at the end only", low=0),
        "checkpoint_every": Param(steps, "steps between checkpoints; 0: at the end only", low=0),
        "seed": Param(0, "of the data order, initial weights and dropout", low=0, high=2**31),
    }


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "text-classifier",
            "Fine-tunes a pre-trained encoder or decoder (unless told: MiniLM, 6 layers, 22.7 M parameters) on a text-classification set.",
            "text:build",
            {
                "backbone": Param("minilm", "pre-trained model to begin with", choices=("minilm",), directories=True),
                **_AS_LOADED,
                **_PETL,
                "data": Param("", f"{', '.join(TEXT_DATASETS)}, or FILE.csv, .jsonl or .parquet; '': dataset"),
                **_COLUMNS,
                "dataset": Param("trec", "the data, unless 'data' is given", choices=TEXT_DATASETS),
                "layers": Param("last", "what is trained: the new head, the last layer too, or all", choices=("head", "last", "all")),
                "features": Param(
                    "computed",
                    "outputs of the frozen layers: computed in each step, or once for each text and kept",
                    choices=("computed", "kept"),
                ),
                "lr": Param(1e-3, "peak learning rate; about 5e-5 when all layers are trained", low=0.0, high=1.0),
                "batch_size": Param(16, "samples of a step", low=1),
                "max_tokens": Param(32, "longer texts are cut", low=4, high=512),
                "limit": Param(0, "training samples used; 0: all", low=0),
                "eval_limit": Param(200, "held-out samples on which the accuracy is measured", low=1),
                **_paced(25),
            },
            _TEXT_LIBRARIES,
            answers=True,
            samples=("limit", "eval_limit"),
        ),
        Recipe(
            "image-classifier",
            "Fine-tunes a model of pictures that you have, a ViT or a ConvNet of transformers', on pictures of your own.",
            "image:build",
            {
                "backbone": Param("", "pre-trained model to begin with", choices=("",), directories=True),
                **_AS_LOADED,
                **_PETL,
                "data": Param("", "a folder with a folder of pictures for each class, or FILE.csv, FILE.jsonl or FILE.parquet"),
                **_COLUMNS,
                "text_column": Param("file", "name of the column with the pictures' paths, relative to the file's folder"),
                "layers": Param("last", "what is trained: the new head, the last layer too, or all", choices=("head", "last", "all")),
                "lr": Param(1e-3, "peak learning rate; about 5e-5 when all layers are trained", low=0.0, high=1.0),
                "batch_size": Param(16, "samples of a step", low=1),
                "eval_limit": Param(200, "held-out samples on which the accuracy is measured", low=1),
                **_paced(25),
            },
            ("safetensors", "transformers", "PIL"),
            texts=False,
            answers=True,
        ),
        Recipe(
            "digits-cnn",
            "Trains a small convolutional network on 5,000 MNIST digits.",
            "digits:build",
            {
                "lr": Param(2e-3, "peak learning rate", low=0.0, high=1.0),
                "batch_size": Param(64, "samples of a step", low=1),
                "channels": Param(16, "of the first convolution", low=1, high=1024),
                **_paced(50),
            },
            answers=True,
        ),
        Recipe(
            "jpeg-cnn",
            "Trains a small convolutional network on 5,000 MNIST digits, decoded from JPEG files, turned, shifted and partly erased.",
            "jpeg:build",
            {
                "lr": Param(0.05, "peak learning rate of SGD with momentum", low=0.0, high=10.0),
                "weight_decay": Param(5e-4, "of SGD", low=0.0, high=1.0),
                "batch_size": Param(64, "samples of a step", low=1),
                "channels": Param(8, "of the first convolution", low=1, high=1024),
                "augment": Param(True, "whether images are turned, shifted and partly erased"),
                "epochs": Param(10, "passes' worth of steps, unless the job says 'stop'", low=1),
                "side": Param(128, "pixels of an image in its file; they set the cost of decoding", low=28, high=1024),
                **_paced(62),
            },
            ("PIL",),
        ),
        Recipe(
            "dlrm",
            "Trains a recommendation model (embedding tables, 26 categories, 13 counts) on made-up clicks, parsed as they are read.",
            "dlrm:build",
            {
                "rows": Param(50_000, "clicks to train on, made once and kept in the cache directory", low=1_000, high=10_000_000),
                "buckets": Param(2_000, "rows of each embedding table, into which values are hashed", low=2, high=10_000_000),
                "dim": Param(16, "of the embeddings", low=1, high=1024),
                "lr": Param(0.02, "learning rate of Adagrad", low=0.0, high=10.0),
                "batch_size": Param(256, "samples of a step", low=1),
                "epochs": Param(2, "passes' worth of steps, unless the job says 'stop'", low=1),
                **_paced(100),
            },
        ),
        Recipe(
            "prompt-tune",
            "Tunes a soft prompt of a frozen language model on a text-classification set; writes it in peft's format.",
            "prompt_tune:build",
            {
                "backbone": Param(
                    "smollm2-135m", "language model; tiny has random weights, to try and to test", choices=LLMS, directories=True
                ),
                **_AS_LOADED,
                "data": Param("sms-spam", f"{', '.join(TEXT_DATASETS)}, or FILE.csv, FILE.jsonl or FILE.parquet"),
                **_COLUMNS,
                "init": Param(
                    "vocabulary",
                    "start of the prompt: the best of the bank, numbers, words of the vocabulary, or 'text: …'",
                    choices=("bank", "random", "vocabulary"),
                    prefix="text:",
                ),
                "tokens": Param(12, "length of the prompt", low=1, high=512),
                "lr": Param(5e-3, "learning rate", low=0.0, high=10.0),
                "batch_size": Param(4, "samples of a step", low=1),
                "max_tokens": Param(32, "longer texts are cut", low=1),
                "balance": Param(True, "whether as many samples of each class are used"),
                "score_samples": Param(16, "samples on which a prompt of the bank is scored", low=1, high=1024),
                "eval_limit": Param(60, "held-out samples on which the accuracy is measured", low=1),
                **_paced(10),
            },
            _TEXT_LIBRARIES,
            kind="prompt",
        ),
        Recipe(
            "causal-lm",
            "Trains a language model to go on with a text: SmolLM2, or a decoder of given layers and width with random weights.",
            "causal_lm:build",
            {
                "backbone": Param(
                    "smollm2-135m",
                    "language model to begin with (tiny: random weights, to try and to test), or none, which reads bytes",
                    choices=(*LLMS, NO_BACKBONE),
                    directories=True,
                ),
                **_AS_LOADED,
                **_PETL,
                "layers": Param(0, "with backbone: none; 0: 4", low=0, high=1024),
                "width": Param(0, "with backbone: none, a multiple of 64; 0: 128", low=0, high=65_536),
                "data": Param("bbc", f"{', '.join(TEXT_DATASETS)}, or a file with text"),
                "context": Param(128, "tokens of a sample", low=1),
                "limit": Param(0, "characters that are read of the text; 0: all", low=0),
                "lr": Param(1e-4, "learning rate; about 1e-3 with backbone: none", low=0.0, high=10.0),
                "clip": Param(1.0, "largest norm of the gradient; 0: none, so that swapped parts are stepped one by one", low=0.0),
                "batch_size": Param(2, "samples of a batch", low=1),
                "eval_limit": Param(32, "held-out samples on which loss and perplexity are measured", low=1),
                **_paced(50),
            },
            _TEXT_LIBRARIES,
            answers=True,
        ),
        Recipe(
            "toy",
            "Fits a small network to a made-up function. Needs no data; its pace can be set, to try schedulers and to test.",
            "toy:build",
            {
                "samples": Param(512, "size of the data set", low=1),
                "width": Param(16, "hidden units", low=1),
                "batch_size": Param(8, "samples of a step", low=1),
                "lr": Param(1e-2, "learning rate", low=0.0, high=1.0),
                "step_ms": Param(0.0, "pause in each step", low=0.0),
                "load_ms": Param(0.0, "pause in the loader before each batch", low=0.0),
                "eval_ms": Param(0.0, "pause in each evaluation", low=0.0),
                "build_ms": Param(0.0, "pause before training begins", low=0.0),
                **_paced(50),
            },
            answers=True,
        ),
    )
}
