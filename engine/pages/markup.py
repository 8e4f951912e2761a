"""HTML by construction: all text that is not `Safe` is escaped, so that no name, log line or value can be markup."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias

from ..format import harmless

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})  #: elements without an end


class Safe(str):
    """Markup, made by `h`; or by hand, where all of it is in the source code."""

    __slots__ = ()


#: The content of an element: text is escaped, None is empty.
Inside: TypeAlias = "str | int | float | Sequence[Inside] | None"


def h(tag: str, *inside: Inside, **attributes: str | int | float | bool | None) -> Safe:
    """An element. Attributes: ``class_`` is class, ``data_at`` is data-at; True gives a name without a value, None and False none."""
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    return Safe(f"<{tag}{written}>" if tag in VOID else f"<{tag}{written}>{join(*inside)}</{tag}>")


def join(*inside: Inside) -> Safe:
    """The pieces one after another."""
    return Safe("".join(_piece(piece) for piece in inside))


def _piece(piece: Inside) -> str:
    if isinstance(piece, Safe):
        return piece
    if piece is None:
        return ""
    if isinstance(piece, list | tuple):
        return "".join(_piece(one) for one in piece)
    return escape(harmless(str(piece)))


def _attribute(name: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(harmless(str(value)))}"'
