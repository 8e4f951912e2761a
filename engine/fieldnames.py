"""Suggestions for misspelt fields of messages."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from .errors import nearest

_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)


def with_meant(message: str, kind: Any) -> str:
    """An error message of msgspec for this type; of an unknown field, with the nearest known one."""
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
