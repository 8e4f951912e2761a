"""Fields of messages that do not exist, and those that were meant."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from .errors import nearest

_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)


def with_meant(message: str, kind: Any) -> str:
    """msgspec's word on a message of this kind; of a field that does not exist, with the nearest one that does."""
    unknown = _UNKNOWN.search(message)
    return message if unknown is None else message + nearest(unknown[1][:100], _names(kind))


@functools.cache
def _names(kind: Any) -> frozenset[str]:
    """Names of all fields of a struct and of the structs within it."""
    return frozenset(_fields(msgspec.inspect.type_info(kind)))


def _fields(info: Any) -> set[str]:
    names: set[str] = set()
    if isinstance(info, msgspec.inspect.StructType):
        names = {field.encode_name for field in info.fields}
        parts = [field.type for field in info.fields]
    else:
        inner = [getattr(info, name, ()) for name in ("types", "item_types", "item_type", "key_type", "value_type")]
        parts = [part for each in inner for part in (each if isinstance(each, tuple) else (each,))]
    return names.union(*map(_fields, parts))
