"""Components of pages and reports: tables, tiles, times, bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import format as fmt
from .markup import Inside, Safe, h, join

ASSETS = Path(__file__).with_name("assets")
MANY_COLUMNS = 8  #: columns; tables that have more are blocks on narrow screens
COLOURS = 8  #: number of bar colours in the style
ROW, GAP = 26, 4  #: pixels, of a time line


def style() -> str:
    """The style of pages and reports."""
    return (ASSETS / "page.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Cell:
    text: Inside
    kind: str = ""  #: class of its style: n (a number, which is not broken), good, bad, wide

    @property
    def nothing(self) -> bool:
        return self.text in (fmt.MISSING, "", None)


def tile(name: str, value: Inside, more: Inside = "") -> Safe:
    """A large number with its name and a remark; tiles must be in a <dl>."""
    return h("div", h("dt", name), h("dd", value, h("small", more) if more else None))


def table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Safe:
    """A table whose first column is text, and the others numbers."""
    return cells(heading, columns, (([Cell(text, "n" if place else "") for place, text in enumerate(row)], "") for row in rows))


def cells(heading: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[Cell], str]], lead: str = "") -> Safe:
    """A table of any cells under its heading; each row has a note below it over the whole width."""
    return join(h("h2", heading), h("p", lead) if lead else None, grid(heading, columns, rows))


def grid(label: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[Cell], str]]) -> Safe:
    """The table alone. If it is wider than the screen it scrolls, by keys too; with many columns its rows become blocks there."""
    made = [(row, note) for row, note in rows]
    numeric = [all(row[place].kind == "n" for row, _ in made) for place in range(len(columns))]
    head = h("tr", [h("th", name, class_="n" if right else None, scope="col") for name, right in zip(columns, numeric, strict=True)])
    body = join(*(join(_row(columns, row), _note(len(columns), note)) for row, note in made))
    many = len(columns) > MANY_COLUMNS
    inner = h("table", h("thead", head), h("tbody", body), class_="many" if many else None)
    return h("div", inner, class_="wide", tabindex=0, role="region", aria_label=label)


def _row(columns: Sequence[str], row: Sequence[Cell]) -> Safe:
    return h("tr", [_cell(name, cell) for name, cell in zip(columns, row, strict=True)])


def _cell(column: str, cell: Cell) -> Safe:
    kinds = " ".join(filter(None, (cell.kind, "none" if cell.nothing else "")))
    text = fmt.clean(cell.text) if isinstance(cell.text, str) and not isinstance(cell.text, Safe) else cell.text
    return h("td", text, class_=kinds or None, data_name=column)


def _note(columns: int, note: str) -> Safe | None:
    return h("tr", h("td", fmt.clean(note), colspan=columns), class_="note") if note else None


def moment(at: float | None, form: str = "") -> Safe:
    """A time: exact in the element, and shown relative to now by the page's script; ``form``: starts or ends (a past one is soon)."""
    if at is None:
        return h("span", fmt.MISSING, class_="soft")
    return h("time", fmt.clock(at)[5:], datetime=fmt.local(at).isoformat(timespec="seconds"), data_at=round(at), data_form=form or None)


def since(at: float | None) -> Safe:
    """How long something has been going on."""
    return moment(at, "since")


def lasted(seconds: float | None) -> Safe:
    """A duration, exact on hover."""
    exact = None if seconds is None else f"{seconds:.3f} s"
    return h("span", fmt.duration(seconds), title=exact)


def bar(share: float | None, words: str) -> Safe:
    """A share as a bar, and in words."""
    if share is None:
        return h("span", words)
    return h("span", h("progress", max=100, value=round(100 * min(max(share, 0), 1)), aria_label=words), " ", words, class_="bar")


MARKS = {
    "running": "▶", "starting": "▷", "assigned": "▷", "profiling": "▷", "suspending": "⏸", "pending": "…", "submitted": "·", "held": "⏸",
    "completed": "✓", "failed": "✗", "cancelled": "⊘", "up": "●", "draining": "◐", "suspect": "◌", "free": "○", "busy": "●",
}  # fmt: skip


def state(name: str, *, held: bool = False) -> Safe:
    """A state: a mark, a word and a colour."""
    word = f"{name}, held" if held else name
    return h("span", h("span", MARKS.get("held" if held else name, "·"), aria_hidden="true"), " ", word, class_=f"state s-{name}")


def risk(name: str | None, at: float | None) -> Safe | None:
    """The risk of a deadline."""
    if at is None:
        return None
    kind = {"met": "good", "safe": "good", "at risk": "bad", "missed": "bad"}.get(name or "", "soft")
    return join(h("span", name or "", class_=kind), " ", moment(at))


def empty(sentence: str, command: str = "") -> Safe:
    """Why a part of the page is empty, and a command to fill it."""
    return h("p", sentence, join(" ", h("code", command)) if command else None, class_="empty")


@dataclass(frozen=True, slots=True)
class Stay:
    """A bar on a time line."""

    row: str
    begin: float
    end: float
    label: str
    hint: str
    colour: int
    href: str = ""


def time_line(label: str, rows: Sequence[str], stays: Iterable[Stay], begin: float, end: float, width: int = 1000) -> Safe:
    """Bars over time in rows: a picture that needs no script; the bars' hints tell the details."""
    place = {row: number for number, row in enumerate(rows)}
    span, height = max(end - begin, 1e-9), max(len(rows), 1) * ROW
    drawn = [_stay(stay, place[stay.row], begin, span, width) for stay in stays if stay.row in place]
    lines = [h("line", x1=0, x2=width, y1=y * ROW, y2=y * ROW) for y in range(len(rows) + 1)]
    picture = h(
        "svg", lines, drawn, viewBox=f"0 0 {width} {height}", width=width, height=height, role="group", aria_label=label, class_="line",
        preserveAspectRatio="none",
    )  # fmt: skip
    names = h("ul", [h("li", row) for row in rows], class_="rows")
    ends = h("p", moment(begin), h("span", "to", class_="soft"), moment(end), class_="ends")
    return h("figure", h("div", names, h("div", picture, class_="wide", tabindex=0, role="region", aria_label=label), class_="lanes"), ends)


def _stay(stay: Stay, row: int, begin: float, span: float, width: int) -> Safe:
    left = max((stay.begin - begin) / span, 0) * width
    long = max(min((stay.end - begin) / span, 1) * width - left, 2)
    box = h(
        "rect", x=round(left, 1), y=row * ROW + GAP / 2, width=round(long, 1), height=ROW - GAP, rx=3, class_=f"c{stay.colour % COLOURS}"
    )
    text = h("text", fmt.clean(stay.label), x=round(left + 5, 1), y=row * ROW + ROW * 0.68) if long > 7 * len(stay.label) + 10 else None
    group = h("g", h("title", fmt.clean(stay.hint)), box, text)
    return h("a", group, href=stay.href) if stay.href else group


def facts(pairs: Mapping[str, Inside]) -> Safe:
    """Names and values, one a line; unknown ones are left out."""
    return h("dl", [h("div", h("dt", name), h("dd", value)) for name, value in pairs.items() if value not in (None, "")], class_="facts")
