"""Parameters of command jobs: as environment variables, and in place of ``{name}`` in the tasks of an array."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

SHELL = ("/bin/sh", "-c")  #: runs a command that is given as one text


def variable(name: str) -> str:
    """The variable in which the runner hands a parameter to a command, such as STOKER_PARAM_LR."""
    return "STOKER_PARAM_" + re.sub(r"\W", "_", name).upper()


def substitute(text: str, values: Mapping[str, Any], *, quote: bool = False) -> str:
    """``text`` with ``{name}`` replaced for the names given, and only for them: ``${name}`` and other braces stay.

    Values other than text become JSON.
    """
    if not values:
        return text
    known = re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, values)) + r")\}")

    def replacement(match: re.Match[str]) -> str:
        given = values[match[1]]
        value = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return shlex.quote(value) if quote else value

    return known.sub(replacement, text)


def substitute_command(command: tuple[str, ...], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Each argument with its placeholders filled; in a shell's text they are quoted, so that a value stays one word."""
    if len(command) == 3 and command[:2] == SHELL:
        return (*SHELL, substitute(command[2], values, quote=True))
    return tuple(substitute(argument, values) for argument in command)
