"""Options of a controller: frozen dataclasses whose fields carry their meaning and range, checked when one is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ....engine.errors import UsageError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def tunable(default: Any, doc: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A field with its meaning and range; its type is that of the default: bool, int, float, or a tuple of int."""
    return dataclasses.field(default=default, metadata={"doc": doc, "low": low, "high": high})


def make(kind: type[Options], values: Mapping[str, Any], owner: str) -> Options:
    """The options of ``owner``, from plain values; UsageError names the field, the mistake and the remedy."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise UsageError(
                f"{owner}: unknown option {key!r}{nearest(key, fields) or '; it takes ' + (', '.join(fields) or 'no options')}"
            )
    return kind(**{key: _checked(fields[key], value, owner) for key, value in values.items()})


def describe(kind: type[DataclassInstance]) -> list[dict[str, Any]]:
    """Name, default, range and meaning of each option."""
    return [{"name": field.name, "default": field.default, **field.metadata} for field in dataclasses.fields(kind)]


def _checked(field: dataclasses.Field[Any], value: Any, owner: str) -> Any:
    if isinstance(field.default, tuple):
        return tuple(_number(field, item, owner, whole=True) for item in _items(field, value, owner))
    if isinstance(field.default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{owner}: {field.name} is true or false, not {value!r}")
        return value
    return _number(field, value, owner, whole=isinstance(field.default, int))


def _items(field: dataclasses.Field[Any], value: Any, owner: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{owner}: {field.name} is a list of whole numbers, not {value!r}")
    return list(value)


def _number(field: dataclasses.Field[Any], value: Any, owner: str, *, whole: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and value != int(value)):
        raise UsageError(f"{owner}: {field.name} is {'a whole number' if whole else 'a number'}, not {value!r}")
    low, high = field.metadata["low"], field.metadata["high"]
    if math.isnan(value) or (low is not None and value < low) or (high is not None and value > high):
        raise UsageError(f"{owner}: {field.name} must be within {low} and {high}, not {value!r}")
    return int(value) if whole else float(value)
