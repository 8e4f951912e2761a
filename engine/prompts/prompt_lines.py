"""Prompts in a file, one line of JSON each, and the choice of those that a bank takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..errors import NotFound, UsageError
from .stored_prompts import LONGEST_TEXT


class PromptText(NamedTuple):
    text: str
    source: str
    task: str | None


def spread(prompts: Iterable[PromptText], most: int) -> list[PromptText]:
    """At most ``most`` prompts, from each task in turn: a task with hundreds of templates does not crowd out the others."""
    by_task: dict[tuple[str, str | None], list[PromptText]] = {}
    for prompt in prompts:
        by_task.setdefault((prompt.source, prompt.task), []).append(prompt)
    rounds = max(map(len, by_task.values()), default=0)
    return [texts[turn] for turn in range(rounds) for texts in by_task.values() if turn < len(texts)][:most]


def from_file(path: Path) -> list[PromptText]:
    """Prompts of a JSON-lines file: ``{"text": …, "task": …, "source": …}`` a line; only text is required. Errors name the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may contain other line separators
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    found = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f'{path}: holds no prompts; write one a line, such as {{"text": "Is this message spam?"}}')
    return list({prompt.text: prompt for prompt in found}.values())


def _line(path: Path, number: int, line: str) -> PromptText:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}:{number}: is not JSON: {error}") from None
    if not isinstance(given, dict) or not isinstance(given.get("text"), str):
        raise UsageError(f'{path}:{number}: text: must be there and a text, such as {{"text": "Is this message spam?"}}')
    text, task, source = given["text"].strip(), given.get("task"), given.get("source")
    for name, value in (("text", text), ("task", str(task)), ("source", str(source))):
        if re.search("[\ud800-\udfff]", value):
            raise UsageError(f"{path}:{number}: {name}: has half a character (\\ud800 to \\udfff, a lone surrogate); write the whole one")
    if not 0 < len(text) <= LONGEST_TEXT or "\0" in text:
        raise UsageError(f"{path}:{number}: text: must have 1 to {LONGEST_TEXT} characters and no NUL, not {len(text)}")
    for name, value, longest in (("task", task, 200), ("source", source, 500)):
        if not (value is None or (isinstance(value, str) and len(value) <= longest and "\0" not in value)):
            raise UsageError(f"{path}:{number}: {name}: must be a text of at most {longest} characters")
    return PromptText(text, source or path.name.encode(errors="replace").decode()[:500], task)
