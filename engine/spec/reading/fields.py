"""Readers of single fields: from a node of the tree to a typed value, or one clear error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ...errors import Gathered, nearest
from . import units
from .tree import Node, shown

T = TypeVar("T")
Reader: TypeAlias = Callable[[Node, str], T]  #: of a node and the field's name for errors

_FLAGS = {"yes": True, "on": True, "no": False, "off": False}


def text(node: Node, field: str) -> str:
    if not isinstance(node.value, str):
        raise node.wrong(field, "text" if isinstance(node.value, (list, dict)) else "text; put it in quotes")
    return node.value


def word(node: Node, field: str) -> str:
    """A scalar as written, for environments, labels and argument lists."""
    if isinstance(node.value, (list, dict)) or node.value is None:
        raise node.wrong(field, 'one value; write "" for an empty text' if node.value is None else "one value")
    return node.text


def whole(node: Node, field: str) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.wrong(field, "a whole number")
    return node.value


def number(node: Node, field: str) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise node.wrong(field, "a number")
    try:
        return float(node.value)
    except OverflowError:
        raise node.wrong(field, "a number of ordinary size") from None


def flag(node: Node, field: str) -> bool:
    value = _FLAGS.get(node.text.lower()) if isinstance(node.value, str) else node.value
    if not isinstance(value, bool):
        raise node.wrong(field, "true or false")
    return value


def duration(node: Node, field: str) -> float:
    return _measure(node, field, units.duration, units.DURATION_FORMS)


def size(node: Node, field: str) -> int:
    if isinstance(node.value, float):
        raise node.wrong(field, units.SIZE_FORMS)
    return _measure(node, field, units.size, units.SIZE_FORMS)


def moment(now: float) -> Reader[float]:
    return lambda node, field: _measure(node, field, lambda value: units.moment(value, now), units.MOMENT_FORMS)


def _measure(node: Node, field: str, read: Callable[[Any], T], forms: str) -> T:
    if isinstance(node.value, bool) or not isinstance(node.value, (str, int, float)):
        raise node.wrong(field, forms)
    if isinstance(node.value, str) and len(node.value) > 60:
        raise node.wrong(field, forms)
    try:
        return read(node.value)
    except ValueError as error:
        raise node.mark.error(field, str(error)) from None


def choice(options: Collection[str], refused_later: Collection[str] = ()) -> Reader[Any]:
    """One of the options; those refused later have their own message there."""

    def read(node: Node, field: str) -> str:
        value = text(node, field)
        if value not in options and value not in refused_later:
            raise node.mark.error(field, f"must be one of {', '.join(options)}, not {shown(value)}{nearest(value, options)}")
        return value

    return read


def items(node: Node, field: str, wanted: str) -> list[Node]:
    if not isinstance(node.value, list):
        raise node.wrong(field, wanted)
    return node.value


def entries(node: Node, field: str, wanted: str = "a mapping") -> dict[str, Node]:
    """Fields of a mapping whose names are the user's own."""
    if not isinstance(node.value, dict):
        raise node.wrong(field, wanted)
    return node.value


def words(node: Node, field: str) -> dict[str, str]:
    return mapped(entries(node, field, "a mapping of names to values"), field, word)


def mapped(found: Mapping[str, Node], field: str, read: Reader[T]) -> dict[str, T]:
    """Each field of a mapping, read by ``read``."""
    errors, values = Gathered(), {}
    for key, item in found.items():
        with errors.part():
            values[key] = read(item, f"{field}.{key}")
    errors.tell()
    return values


def listed(nodes: Sequence[Node], field: str, read: Reader[T]) -> list[T]:
    """Each item of a list, read by ``read``; ``field`` holds a ``{}`` for its number, or is the name of all."""
    errors, values = Gathered(), []
    for index, item in enumerate(nodes):
        with errors.part():
            values.append(read(item, field.format(index)))
    errors.tell()
    return values


#: removed fields, and their replacements
GONE = {"share.priority": "is no longer a field: the job's own priority counts; write 'priority' beside 'share'"}


def known(node: Node, field: str, names: Collection[str], wanted: str, errors: Gathered | None = None) -> dict[str, Node]:
    """Fields of a mapping whose names are ours; empty ones count as not given. Unknown ones are noted in ``errors``, if given."""
    found, wrong = entries(node, field, wanted), Gathered() if errors is None else errors
    for key, item in found.items():
        if key not in names:
            path = f"{field}.{key}" if field else key
            wrong.add(item.mark.error(path, GONE.get(path) or f"unknown field{nearest(key, names) or f'; known: {_few(names)}'}"))
    if errors is None:
        wrong.tell()
    return {key: item for key, item in found.items() if item.value is not None and key in names}


def _few(names: Collection[str]) -> str:
    listed = list(names)
    return ", ".join(listed) if len(listed) <= 8 else "see docs/job-spec.md"


def struct(node: Node, field: str, readers: Mapping[str, Reader[Any]], wanted: str) -> dict[str, Any]:
    """A mapping of ours, each field read by its reader."""
    errors, values = Gathered(), {}
    for key, item in known(node, field, readers, wanted, errors).items():
        with errors.part():
            values[key] = readers[key](item, f"{field}.{key}")
    errors.tell()
    return values
