"""Blocks of a job that are read and checked by their type alone: every field of JobSpec whose type is a `Block`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from ...errors import UsageError
from ..model import Block, Duration, JobSpec, Size
from . import fields
from .fields import Reader
from .tree import Node
from .units import SIZE_FORMS


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a value, without None: those of ``A | B | None``."""
    return tuple(arm for arm in (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)) if arm is not NoneType)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


#: the blocks by name
BLOCKS: dict[str, type[Block]] = {
    field.name: kind
    for field in msgspec.structs.fields(JobSpec)
    for kind in _kinds(field.type)
    if isinstance(kind, type) and issubclass(kind, Block)
}


# ---- reading ----


def struct(kind: type[msgspec.Struct], node: Node, field: str) -> Any:
    """A value of ``kind``; Several has a problem for each wrong field, at its line."""
    found = msgspec.structs.fields(kind)
    readers: Mapping[str, Reader[Any]] = {each.name: partial(_value, each.type) for each in found}
    values = fields.struct(node, field, readers, f"a mapping of {', '.join(readers)}")
    for each in found:
        if each.required and each.name not in values:
            raise node.mark.error(field, f"{each.name} is missing")
    return kind(**values)


#: types with a notation of their own, such as 2GiB
_UNITS: dict[Any, Reader[Any]] = {Size: fields.size, Duration: fields.duration, bool: fields.flag}


def _value(kind: Any, node: Node, field: str) -> Any:
    value = _plain(kind, node, field)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if (either := _number_or_words(kind)) and text.startswith(("Invalid enum value", "Expected `int | str`")):
            raise node.wrong(field, either) from None
        raise _at(text, node, field) from None


def _number_or_words(kind: Any) -> str | None:
    """The values of ``int | Literal["auto"]``, in words."""
    words = _words(kind)
    return " or ".join([_WORDS["int"], *words]) if words and len(_kinds(kind)) > 1 else None


def _plain(kind: Any, node: Node, field: str) -> Any:
    """As `msgspec.convert` takes it: units are read, and so are structs."""
    kinds = _kinds(kind)
    if len(kinds) == 1:
        if kinds[0] in _UNITS:
            return _UNITS[kinds[0]](node, field)
        if get_origin(kinds[0]) is Literal:
            return fields.choice(get_args(kinds[0]))(node, field)
        if _is_struct(kinds[0]):
            return struct(kinds[0], node, field)
    words = _words(kind)
    if Size in kinds and words and node.plain() not in words:
        try:
            return fields.size(node, field)
        except UsageError:
            raise node.wrong(field, f"{SIZE_FORMS}, or {' or '.join(words)}") from None
    return node.plain()


def _words(kind: Any) -> list[str]:
    return [word for arm in _kinds(kind) if get_origin(arm) is Literal for word in get_args(arm)]


_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list", "object": "a mapping"}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `.*`| (.*))?")


def _at(text: str, node: Node, field: str) -> UsageError:
    """msgspec's error, such as ``Expected `int`, got `str` - at `$.a[0]``, at the line that its path leads to."""
    problem, _, path = text.partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path.removesuffix("`").partition("[...]")[0]):
        inside: Any = node.value
        node = inside[name or int(index)]
        field += f".{name}" if name else f"[{index}]"
    expected = _EXPECTED.fullmatch(problem)
    if expected is None:
        return node.mark.error(field, problem)
    wanted = " or ".join(_WORDS.get(word, word) for word in expected[1].split(" | ") if word != "null")
    return node.wrong(field, f"{wanted} {expected[2]}" if expected[2] else wanted)


# ---- rules ----


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Field and problem."""
    for name in BLOCKS:
        block: Block | None = getattr(spec, name)
        for field, problem in () if block is None else block.problems(spec):
            yield f"{name}.{field}" if field else name, problem
