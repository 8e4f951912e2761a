"""YAML text as a tree of nodes that know their line; also trees made of command-line options.

Built from the parser's events, not by `yaml.load`: that keeps lines, refuses repeated keys, and bounds what a
hostile file may cost. Plain scalars follow the YAML 1.2 core schema: ``1e-3`` is a number, ``yes`` and ``12:30`` are text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from ...errors import Gathered, UsageError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 200_000  #: aliases count with their content, so they cannot multiply without end

Scalar: TypeAlias = bool | int | float | str | None

NULLS = re.compile(r"~|null|Null|NULL|")
BOOLS = re.compile(r"true|True|TRUE|false|False|FALSE")
INTS = re.compile(r"[-+]?[0-9]{1,4000}|0o[0-7]{1,4000}|0x[0-9a-fA-F]{1,4000}")
FLOATS = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_MERGE = "<<"  #: a key of YAML 1.1, which takes over the fields of another mapping
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a value: a line of a file, or (without a line) an option such as ``--gpus``."""

    source: str
    line: int | None = None

    def error(self, field: str, problem: str) -> UsageError:
        """``file.yaml:12: stop.iterations: …`` or ``--iterations: …``; always one line, whatever the input held."""
        if self.line is None:
            where = [self.source or field]
        else:
            where = [f"{self.source}:{self.line}", field] if field else [f"{self.source}:{self.line}"]
        error = UsageError(one_line(": ".join([*(part for part in where if part), problem])))
        error.line = self.line or 0
        return error


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place. A mapping's value has the mark of its key, where a person looks for it."""

    value: Scalar | list[Node] | dict[str, Node]
    mark: Mark
    text: str = ""  #: a scalar as it was written: ``1.10`` as text is not ``1.1``
    size: int = 1  #: nodes in it

    def wrong(self, field: str, wanted: str) -> UsageError:
        return self.mark.error(field, f"must be {wanted}, not {self.shown()}")

    def shown(self) -> str:
        if isinstance(self.value, list):
            return "a list"
        if isinstance(self.value, dict):
            return "a mapping"
        return shown(self.value) if isinstance(self.value, str) else self.text or "empty"

    def plain(self) -> Any:
        """As Python values without marks."""
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value


def one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)


def shown(value: object) -> str:
    """A value for an error message: quoted and short."""
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def scalar(text: str, mark: Mark) -> Node:
    """A node of a plain (unquoted) scalar."""
    return Node(resolve(text), mark, text)


def resolve(text: str) -> Scalar:
    if NULLS.fullmatch(text):
        return None
    if BOOLS.fullmatch(text):
        return text.lower() == "true"
    if INTS.fullmatch(text):
        # Not int(text, 0): that refuses 007, which YAML 1.2 reads as 7.
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if FLOATS.fullmatch(text):
        return float(text.replace(".", "", 1) if text.lower().endswith(("inf", "nan")) else text)
    return text


def parse(text: str, source: str, errors: Gathered | None = None) -> list[Node]:
    """The documents of a YAML text; a UsageError with the line when there is anything wrong with it.

    With ``errors``, mistakes that leave the rest readable are noted there: repeated keys (the first counts) and merge keys (none counts).
    """
    _check_text(text, source)
    wrong = Gathered() if errors is None else errors
    documents = _parse(text, source, wrong)
    if errors is None:
        wrong.tell()
    return documents


def _parse(text: str, source: str, errors: Gathered) -> list[Node]:
    try:
        return list(_Builder(text, source, errors).documents())
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.problem, error.context) if part)
        raise Mark(source, at.line + 1 if at else 1).error("", f"not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Mark(source, line).error("", "not valid YAML: a control character; save the file as plain UTF-8 text") from None
    except yaml.YAMLError as error:
        raise Mark(source, 1).error("", f"not valid YAML: {error}") from None


def of_value(value: Any, field: str = "", depth: int = 0) -> Node:
    """The node of a value from JSON; its errors name the field alone."""
    mark = Mark("")
    if depth > MAX_DEPTH:
        raise mark.error(field, f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        if "\0" in value or re.search("[\ud800-\udfff]", value):
            raise mark.error(field, "a NUL or a lone surrogate in a text; remove the escape")
        return Node(value, mark, value)
    if isinstance(value, dict):
        entries = {str(key): of_value(item, f"{field}.{key}" if field else str(key), depth + 1) for key, item in value.items()}
        return Node(entries, mark, size=1 + sum(item.size for item in entries.values()))
    if isinstance(value, list):
        items = [of_value(item, f"{field}[{index}]", depth + 1) for index, item in enumerate(value)]
        return Node(items, mark, size=1 + sum(item.size for item in items))
    return Node(value, mark, "" if value is None else str(value).lower() if isinstance(value, bool) else repr(value))


def decode(data: bytes, source: str) -> str:
    """Text of a file's bytes, which must be UTF-8."""
    if len(data) > MAX_BYTES:
        raise UsageError(one_line(f"{source}: larger than {MAX_BYTES >> 20} MiB; a job file is small, is this the right file?"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Mark(source, line).error("", "not UTF-8 text; save the file as UTF-8") from None


def _check_text(text: str, source: str) -> None:
    if len(text) > MAX_BYTES:
        raise UsageError(one_line(f"{source}: larger than {MAX_BYTES >> 20} MiB; a job file is small, is this the right file?"))
    for bad in ("\0", *(match[0] for match in [re.search("[\ud800-\udfff]", text)] if match)):
        if (position := text.find(bad)) >= 0:
            line = text.count("\n", 0, position) + 1
            raise Mark(source, line).error("", "not valid YAML: a control character; save the file as plain UTF-8 text")


class _Builder:
    """Nodes from the parser's events."""

    def __init__(self, text: str, source: str, errors: Gathered) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
        self._source, self._errors = source, errors
        self._anchors: dict[str, Node] = {}
        self._nodes = 0

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._node(next(self._events), 0)

    def _mark(self, event: Any) -> Mark:
        return Mark(self._source, event.start_mark.line + 1)

    def _node(self, event: Any, depth: int) -> Node:
        mark = self._mark(event)
        if depth > MAX_DEPTH:
            raise mark.error("", f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._counted(self._alias(event, mark))
        if event.tag is not None:
            raise mark.error("", f"tags such as {shown(event.tag)} are not supported; remove it, or quote the value to make it text")
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(mark, depth)
        else:
            node = self._mapping(mark, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _counted(self, node: Node) -> Node:
        self._nodes += node.size
        if self._nodes > MAX_NODES:
            raise node.mark.error("", f"more than {MAX_NODES} values; split the file, or use an array")
        return node

    def _alias(self, event: Any, mark: Mark) -> Node:
        if event.anchor not in self._anchors:
            raise mark.error("", f"alias *{event.anchor} names no value that is complete before it")
        return dataclasses.replace(self._anchors[event.anchor], mark=mark)

    def _scalar(self, event: Any, mark: Mark) -> Node:
        text: str = event.value
        if "\0" in text or re.search("[\ud800-\udfff]", text):
            raise mark.error("", "a NUL or a lone surrogate in a text; remove the escape")
        return self._counted(scalar(text, mark) if event.implicit[0] else Node(text, mark, text))

    def _sequence(self, mark: Mark, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        self._nodes += 1
        return Node(items, mark, size=1 + sum(item.size for item in items))

    def _mapping(self, mark: Mark, depth: int) -> Node:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            at = self._mark(event)
            value = dataclasses.replace(self._node(next(self._events), depth + 1), mark=at)
            if key == _MERGE and event.implicit[0]:
                self._errors.add(at.error(key, "merge keys are not supported; put common fields under 'defaults:' beside 'jobs:'"))
            elif key in entries:
                self._errors.add(at.error(key, f"given twice; the first is at line {entries[key].mark.line}"))
            else:
                entries[key] = value
        self._nodes += 1
        return Node(entries, mark, size=1 + sum(item.size for item in entries.values()))

    def _key(self, event: Any) -> str:
        mark = self._mark(event)
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or not event.value:
            raise mark.error("", "a field's name must be plain text")
        return str(self._scalar(event, mark).text)
