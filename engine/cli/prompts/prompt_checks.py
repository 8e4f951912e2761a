"""Checks of a work on prompts, as far as this host can tell, before any job is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....runners import recipes
from ...errors import NotFound, StokerError, UsageError, nearest
from ...home import Home
from ...spec.hints import missing

RECIPE = "prompt-tune"


def require_llm(name: str) -> tuple[str, str]:
    """What is loaded, and what its banks are called. There must be such an LLM, and this Python, which the job has too, must load one."""
    if name not in recipes.LLMS and (path := recipes.directory(name)) is not None:
        if wrong := recipes.unusable(path, texts=True):
            raise UsageError(f"--llm: {wrong}")
        return path, recipes.short_name(path)
    if name not in recipes.LLMS:
        raise NotFound(f"--llm: there is no LLM {name!r}{nearest(name, recipes.LLMS)}; there are {', '.join(recipes.LLMS)}")
    if absent := [module for module in recipes.find(RECIPE).needs if missing(module, ()) is not None]:
        raise StokerError(f"{name} needs {' and '.join(absent)}, which this Python has not: pip install '.[llm]' in Stoker's source tree")
    return name, name


def require_bank(home: Home, llm: str) -> None:
    if not any(home.prompts.glob(f"{llm}@*/*/bank.npz")):
        raise NotFound(f"there is no bank of {llm} yet: 'stoker prompt bank build --llm {llm} --from FILE.jsonl' makes one")


def require_samples(data: str, folder: str = "", text: str = "text", label: str = "label", held_out: str = "") -> bool:
    """That a file, whose path may count from a folder, can be tuned on; False: it is a packaged set, fetched by who needs it first."""
    from ....runners.prompts.labelled_files import Columns, read_labelled
    from ....runners.texts import TEXT_DATASETS

    if data in TEXT_DATASETS:
        return False
    read_labelled(data, folder, Columns(text, label), held_out)
    return True


def require_tuning(home: Home, params: Mapping[str, Any], backbone: str | None, workdir: str) -> None:
    """What a tuning job would begin with."""
    asked = recipes.find(RECIPE).resolve(params, backbone)
    _, called = require_llm(asked["backbone"])
    if asked["init"] == "bank":
        require_bank(home, called)
    require_samples(asked["data"], workdir, asked["text_column"], asked["label_column"], asked["held_out"])
