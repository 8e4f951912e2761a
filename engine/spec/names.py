"""The name of a job that was submitted without one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from .reading.params import SHELL
from .reading.scripts import script_of, simple_words


def default_name(values: Mapping[str, Any]) -> str:
    """The recipe, the function, the script or the program; '' when none of these makes a name."""
    if recipe := values.get("recipe"):
        return clean(recipe)
    if entrypoint := values.get("entrypoint"):
        return clean(entrypoint.partition(":")[0].rpartition(".")[2])
    command: tuple[str, ...] = values.get("command") or ()
    if command[:2] == SHELL:
        command = simple_words(command[2])
    if not command:
        return ""
    return clean(PurePath(script_of(command) or command[0]).stem)


def clean(text: str) -> str:
    """``text`` as a name, without characters that a name must not hold."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:100].strip("-._")
    return "" if name.isdecimal() else name
