"""What is wrong with a work on prompts as far as this host can tell, before any job is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runners import recipes
from ..errors import NotFound, StokerError, nearest
from ..home import Home
from ..spec.hints import missing

RECIPE = "prompt-tune"


def require_llm(name: str) -> None:
    """That there is such an LLM, and that this Python, which the job has too, can load one."""
    if name not in recipes.LLMS:
        raise NotFound(f"--llm: there is no LLM {name!r}{nearest(name, recipes.LLMS)}; there are {', '.join(recipes.LLMS)}")
    if absent := [module for module in recipes.find(RECIPE).needs if missing(module, ()) is not None]:
        raise StokerError(f"{name} needs {' and '.join(absent)}, which this Python has not: pip install '.[llm]' in Stoker's source tree")


def require_bank(home: Home, llm: str) -> None:
    if not any(home.prompts.glob(f"{llm}@*/*/bank.npz")):
        raise NotFound(f"there is no bank of {llm} yet: 'stoker prompt bank build --llm {llm}' makes one")


def require_samples(data: str, folder: str = "") -> bool:
    """That a file, whose path may count from a folder, can be tuned on; False: it is a packaged set, fetched by who needs it first."""
    from ...runners.prompts.labelled_files import read_labelled

    if data in recipes.TEXT_DATASETS:
        return False
    read_labelled(data, folder)
    return True


def require_tuning(home: Home, params: Mapping[str, Any], backbone: str | None, workdir: str) -> None:
    """What a tuning job would begin with."""
    asked = recipes.find(RECIPE).resolve(params, backbone)
    require_llm(asked["backbone"])
    if asked["init"] == "bank":
        require_bank(home, asked["backbone"])
    require_samples(asked["data"], workdir)
