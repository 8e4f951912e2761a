"""The file that a command would run, checked before the job is submitted."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ...errors import nearest
from ..model import JobSpec
from .params import SHELL
from .tree import shown

_INTERPRETER = re.compile(r"(python[0-9.]*|bash|sh|dash|zsh)")
_WITH_VALUE = frozenset({"-X", "-W"})  #: python's options that take the next argument
_NO_SCRIPT = frozenset({"-c", "-m", "-s"})  #: code, a module, or standard input in place of a script
_SHELL_SYNTAX = frozenset("|&;<>()$`*?[]{}~#=!\n\\")


def simple_words(text: str) -> tuple[str, ...]:
    """Words of a shell command, () when it is more than a plain program with arguments."""
    if _SHELL_SYNTAX & set(text):
        return ()
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return ()


def script_of(command: Sequence[str]) -> str | None:
    """``script.py`` of ``python -u script.py``; the program itself when that is a path; else None."""
    program = command[0]
    if not _INTERPRETER.fullmatch(Path(program).name):
        return program if "/" in program else None
    rest = iter(command[1:])
    for argument in rest:
        if argument in _NO_SCRIPT or (argument.startswith("-") and not argument.startswith("--") and argument[-1:] in "cm"):
            return None
        if argument in _WITH_VALUE:
            next(rest, None)
        elif not argument.startswith("-"):
            return argument
    return None


def missing(spec: JobSpec) -> str | None:
    """The problem with the script of a command job; None: none, or not known."""
    command = spec.command or ()
    if command[:2] == SHELL and len(command) == 3:
        command = simple_words(command[2])
    script = script_of(command) if command else None
    if not script:
        return None
    path = Path(spec.workdir, script)
    try:
        if not path.exists():
            return f"no file {shown(script)} in {spec.workdir}{neighbour(path)}; correct the path, or set workdir"
        if path.is_dir() and script == command[0]:
            return f"{shown(script)} is a directory, not a program"
        if script == command[0] and not os.access(path, os.X_OK):
            return f"{shown(script)} is not executable; run 'chmod +x {script}', or start it by its interpreter"
    except (OSError, ValueError):
        return f"{shown(script)} cannot be a file's name"
    return None


def neighbour(path: Path) -> str:
    """The nearest name in the directory of a path that does not exist."""
    try:
        return nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    except (OSError, ValueError):
        return ""
