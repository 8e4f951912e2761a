"""HTML by construction: whatever is not `Safe` is escaped, so that no name, log line or value can be markup."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias

from ..format import harmless

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})  #: elements without an end


class Safe(str):
    """Markup, made by `h`; or by hand, where all of it stands in our source."""

    __slots__ = ()


#: What an element may hold: text is escaped, None is nothing.
Inside: TypeAlias = "str | int | float | Sequence[Inside] | None"


def h(tag: str, *inside: Inside, **attributes: str | int | float | bool | None) -> Safe:
    """An element. Attributes: ``class_`` is class and ``data_at`` data-at; True stands alone, None and False are left out."""
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    return Safe(f"<{tag}{written}>" if tag in VOID else f"<{tag}{written}>{join(*inside)}</{tag}>")


def join(*inside: Inside) -> Safe:
    """Pieces one behind the other."""
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
