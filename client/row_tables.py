"""Tables of rows for a notebook and a terminal, and as a frame of pandas or polars if one of these is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, overload

MOST_SHOWN = 50  #: rows that are shown
WIDEST_CELL = 60  #: characters shown of a cell


class Table(Sequence[dict[str, Any]]):
    """Rows with names: ``table[0]`` is a row, ``table["name"]`` a column; ``frame()`` for pandas or polars."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], truncated: bool = False) -> None:
        self.columns = _different(columns)
        self._rows = rows
        self.truncated = truncated  #: the answer was cut, as there were more rows

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> Table:
        names = list(columns if columns is not None else rows[0] if rows else ())
        return cls(names, [[row.get(name) for name in names] for row in rows])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, slice):
            return Table(self.columns, self._rows[key])
        if isinstance(key, int):
            return dict(zip(self.columns, self._rows[key], strict=True))
        if key not in self.columns:
            raise KeyError(f"no column {key!r}; columns: {', '.join(self.columns)}")
        place = self.columns.index(key)
        return [row[place] for row in self._rows]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def frame(self) -> Any:
        """A DataFrame of pandas, or else of polars, if installed; otherwise the table itself."""
        from importlib import import_module

        columns = {name: self[name] for name in self.columns}
        for library in ("pandas", "polars"):
            try:
                return import_module(library).DataFrame(columns)
            except ImportError:  # not installed, or not usable
                continue
        return self

    def __repr__(self) -> str:
        cells = [self.columns, *([_text(value) for value in row] for row in self._rows[:MOST_SHOWN])]
        widths = [max((len(line[place]) for line in cells), default=0) for place in range(len(self.columns))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
        return "\n".join([*lines, *self._rest()])

    def _repr_html_(self) -> str:
        import html

        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(_text(v))}</td>' for v in row)}</tr>" for row in self._rows[:MOST_SHOWN])
        rest = "".join(f"<p>{html.escape(line)}</p>" for line in self._rest())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _rest(self) -> list[str]:
        if not self._rows:
            return ["(no rows)"]
        more = len(self._rows) - MOST_SHOWN
        told = [f"and {more} more rows"] if more > 0 else []
        return told + (["there were more: the answer was cut at its limit"] if self.truncated else [])


def _different(names: Sequence[str]) -> list[str]:
    """The names; a repeated one is numbered, so that no value is lost."""
    found: list[str] = []
    for name in names:
        unique, count = name, 2
        while unique in found:
            unique, count = f"{name}_{count}", count + 1
        found.append(unique)
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= WIDEST_CELL else f"{text[: WIDEST_CELL - 1]}…"


def moment(seconds: float | None) -> datetime | None:
    """A time of the daemon as a date in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
