"""Prompts that Python packages carry: read from what is installed, without running any of its code."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import NotFound, UsageError
from .stored_prompts import LONGEST_TEXT

SHORTEST, LONGEST = 15, 1000  #: characters of an instruction; packages hold shorter labels and longer few-shot examples too
_LITERAL = re.compile(r"""\{\{\s*(?:"([^"{}]*)"|'([^'{}]*)')\s*\}\}""")
_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class PromptText(NamedTuple):
    text: str
    source: str
    task: str | None


@dataclass(frozen=True, slots=True)
class Source:
    """A package with prompts, how it is installed without what it depends on, and how its files are read."""

    package: str
    module: str
    install: str
    read: Callable[[Path], Iterator[tuple[str, str]]]  #: folder of the module → texts with their tasks

    @property
    def folder(self) -> Path | None:
        """Where it is installed; None: it is not."""
        found = importlib.util.find_spec(self.module)
        places = list(found.submodule_search_locations or ()) if found is not None else []
        return Path(places[0]) if places else None


def packaged() -> Iterator[tuple[Source, list[PromptText] | None]]:
    """Each package with its distinct English instructions; None: it is not installed."""
    seen: set[str] = set()
    for source in SOURCES:
        folder = source.folder
        if folder is None:
            yield source, None
            continue
        found = []
        for text, task in source.read(folder):
            if (told := instruction(text)) is not None and told not in seen:
                seen.add(told)
                found.append(PromptText(told, source.package, task))
        yield source, found


def instruction(template: str) -> str | None:
    """The words of a template without its variables and code; None: too short, too long, or not in Latin letters."""
    text = " ".join(_CODE.sub(" ", _LITERAL.sub(lambda found: found[1] or found[2] or "", template)).split())
    if not SHORTEST <= len(text) <= LONGEST or sum(char.isascii() for char in text) < 0.95 * len(text):
        return None
    return text if sum(char.isalpha() for char in text) > 0.5 * len(text) and len(text.split()) >= 3 else None


def spread(prompts: Iterable[PromptText], most: int) -> list[PromptText]:
    """At most so many, of each task in turn: a task with hundreds of templates does not crowd out the others."""
    by_task: dict[tuple[str, str | None], list[PromptText]] = {}
    for prompt in prompts:
        by_task.setdefault((prompt.source, prompt.task), []).append(prompt)
    rounds = max(map(len, by_task.values()), default=0)
    return [texts[turn] for turn in range(rounds) for texts in by_task.values() if turn < len(texts)][:most]


def from_file(path: Path) -> list[PromptText]:
    """Prompts of a JSON-lines file: ``{"text": …, "task": …}`` a line, of which only text must be there. Errors name the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold what else ends a line
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
    text, task = given["text"].strip(), given.get("task")
    for name, value in (("text", text), ("task", str(task))):
        if re.search("[\ud800-\udfff]", value):
            raise UsageError(f"{path}:{number}: {name}: has half a character (\\ud800 to \\udfff, a lone surrogate); write the whole one")
    if not 0 < len(text) <= LONGEST_TEXT or "\0" in text:
        raise UsageError(f"{path}:{number}: text: must have 1 to {LONGEST_TEXT} characters and no NUL, not {len(text)}")
    if not (task is None or (isinstance(task, str) and len(task) <= 200 and "\0" not in task)):
        raise UsageError(f"{path}:{number}: task: must be a text of at most 200 characters")
    return PromptText(text, path.name.encode(errors="replace").decode()[:500], task)


def _promptsource(folder: Path) -> Iterator[tuple[str, str]]:
    """The question of each template (what follows ``|||`` is its answer), by data set."""
    for path in sorted((folder / "templates").rglob("templates.yaml")):
        told = _yaml(path).get("templates")
        for template in told.values() if isinstance(told, dict) else ():
            if isinstance(template, dict) and isinstance(template.get("jinja"), str):
                yield template["jinja"].split("|||")[0], path.parent.relative_to(folder / "templates").as_posix()


def _lm_eval(folder: Path) -> Iterator[tuple[str, str]]:
    """What a task says before and around its question; the first folder is the task."""
    for path in sorted((folder / "tasks").rglob("*.y*ml")):
        told = None
        for field in ("doc_to_text", "description"):
            if field.encode() in path.read_bytes():
                told = told or _yaml(path)
                if isinstance(told.get(field), str):
                    yield told[field], path.relative_to(folder / "tasks").parts[0]


def _evals(folder: Path) -> Iterator[tuple[str, str]]:
    """The system prompt of the first sample of each set."""
    for path in sorted((folder / "registry" / "data").rglob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            line = file.readline()
        try:
            messages = json.loads(line).get("input")
        except (ValueError, AttributeError):
            continue
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict) and first.get("role") == "system" and isinstance(first.get("content"), str):
            yield first["content"], path.parent.name


def _yaml(path: Path) -> Mapping[str, Any]:
    """A file whose tags name code of the package: they are read as what they hold."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    def untagged(loader: Any, _: str, node: Any) -> Any:
        return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None

    Loader.add_multi_constructor("!", untagged)
    try:
        found = yaml.load(path.read_bytes(), Loader)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


SOURCES = (
    Source(
        "promptsource", "promptsource", "pip install --no-deps --ignore-requires-python promptsource==0.2.3", _promptsource
    ),
    Source("lm-eval", "lm_eval", "pip install --no-deps lm-eval==0.4.13", _lm_eval),
    Source("evals", "evals", "pip install --no-deps evals==3.0.1.post1  # 750 MB", _evals),
)  # fmt: skip
