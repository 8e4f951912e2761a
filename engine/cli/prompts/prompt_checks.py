"""Checks of work on prompts before it becomes a job, as far as this host knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....runners import recipes
from ...errors import NotFound, StokerError, UsageError, nearest
from ...home import Home
from ...spec.hints import missing

RECIPE = "prompt-tune"


def require_llm(name: str) -> tuple[str, str]:
    """The LLM to load, and the name of its banks. It must exist, and this Python, which the job has too, must be able to load it."""
    if name not in recipes.LLMS and (path := recipes.directory(name)) is not None:
        if wrong := recipes.unusable(path, texts=True):
            raise UsageError(f"--llm: {wrong}")
        return path, recipes.short_name(path)
    if name not in recipes.LLMS:
        raise NotFound(f"--llm: there is no LLM {name!r}{nearest(name, recipes.LLMS)}; there are {', '.join(recipes.LLMS)}")
    if absent := [module for module in recipes.find(RECIPE).needs if missing(module, ()) is not None]:
        raise StokerError(f"{name} needs {' and '.join(absent)}, which this Python lacks: pip install '.[llm]' in Stoker's source tree")
    return name, name


def require_bank(home: Home, llm: str) -> None:
    if not any(home.prompts.glob(f"{llm}@*/*/bank.npz")):
        raise NotFound(f"there is no bank of {llm} yet: 'stoker prompt bank build --llm {llm} --from FILE.jsonl' makes one")


def require_samples(data: str, folder: str = "", text: str = "text", label: str = "label", held_out: str = "") -> bool:
    """Check that a file, with a path relative to a folder, can be tuned on; False: it is a packaged set, fetched at its first use."""
    from ....runners.prompts.labelled_files import ColumnNames, read_labelled
    from ....runners.texts import TEXT_DATASETS

    if data in TEXT_DATASETS:
        return False
    read_labelled(data, folder, ColumnNames(text, label), held_out)
    return True


def require_tuning(home: Home, params: Mapping[str, Any], backbone: str | None, workdir: str) -> None:
    """Check the start of a tuning job."""
    asked = recipes.find(RECIPE).resolve(params, backbone)
    _, called = require_llm(asked["backbone"])
    if asked["init"] == "bank":
        require_bank(home, called)
    require_samples(asked["data"], workdir, asked["text_column"], asked["label_column"], asked["held_out"])
