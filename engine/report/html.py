"""Pages that need nothing else, and what they are made of. Every text is escaped here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ..format import MISSING, clean

MANY = 8  #: columns; tables that have more are blocks on narrow screens

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5d6673; --paper: #fff; --card: #f5f6f8; --line: #dfe2e7;
        --good: #00694d; --bad: #a93f00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a0a8b4; --paper: #16181c; --card: #22252b; --line: #383d46; --good: #4fc9a4; --bad: #ff9a5c; }
  figure img { filter: brightness(.9); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 80rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p, figcaption { color: var(--soft); margin: .25rem 0 .75rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1.25rem 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; break-inside: avoid; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
dd small { display: block; font-size: .75rem; font-weight: 400; color: var(--soft); }
figure { margin: 0; break-inside: avoid; }
.wide { overflow-x: auto; border-radius: .5rem; }
figure img { display: block; width: 100%; min-width: 40rem; background: #fff; border-radius: .5rem; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-top: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 5rem; }
th { color: var(--soft); font-weight: 600; border-top: 0; vertical-align: bottom; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; min-width: 0; }
.many th, .many td { padding: .3rem .35rem; }
tr.note td { border-top: 0; padding-top: 0; color: var(--soft); }
@media screen and (max-width: 72rem) {  /* a table of many columns: a row becomes a block of names and values */
  .many, .many tbody { display: block; } .many tr:first-child { display: none; }
  .many tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); padding: .4rem 0;
             border-top: 1px solid var(--line); }
  .many tr.note { display: block; border-top: 0; padding-top: 0; }
  .many td, .many td.n { border: 0; padding: .1rem .3rem; text-align: left; white-space: normal; min-width: 0; }
  .many td.none { display: none; }
  .many td::before { content: attr(data-name); display: block; font-size: .75rem; color: var(--soft); }
}
.good { color: var(--good); } .bad { color: var(--bad); }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; --good: #000; --bad: #000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  dl div { border: 1px solid var(--line); }
  .wide { overflow: visible; } figure img { min-width: 0; filter: none; } table { font-size: 6.5pt; }
  th, td, .many th, .many td { padding: .15rem .25rem; min-width: 0; }
}
"""


def document(title: str, span: str, body: str) -> str:
    """A whole page: its heading, a line below it, and the body, which is HTML."""
    return (
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(span)}</p>\n{body}</body>\n</html>\n"
    )


def tile(name: str, value: str, more: str = "") -> str:
    """A number that stands out, with what it is and a remark; tiles stand in a <dl>."""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{f'<small>{escape(more)}</small>' if more else ''}</dd></div>\n"


def figure(heading: str, caption: str, image: bytes | None, nothing: str) -> str:
    """A PNG under its heading, or a sentence why there is none."""
    if image is None:
        return f"<h2>{escape(heading)}</h2>\n<p>{escape(nothing)}</p>\n"
    data = base64.b64encode(image).decode()
    return (
        f"<h2>{escape(heading)}</h2>\n<figure><div class=wide tabindex=0>"
        f'<img src="data:image/png;base64,{data}" alt="{escape(heading)}"></div>\n<figcaption>{escape(caption)}</figcaption></figure>\n'
    )


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    kind: str = ""  #: class of its style: n (a number, which is not broken), good, bad


def table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    return cells(heading, columns, (([Cell(text, "n" if place else "") for place, text in enumerate(row)], "") for row in rows))


def cells(heading: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[Cell], str]], lead: str = "") -> str:
    """A table of any cells, each row with a note that stands below it over the whole width."""
    made = [(row, note) for row, note in rows]
    numeric = [all(row[place].kind == "n" for row, _ in made) for place in range(len(columns))]
    head = "".join(f"<th{' class=n' if right else ''}>{escape(name)}" for name, right in zip(columns, numeric, strict=True))
    body = "".join(_row(columns, row) + _note(len(columns), note) for row, note in made)
    many = " class=many" if len(columns) > MANY else ""
    lead = f"<p>{escape(lead)}</p>\n" if lead else ""
    return f"<h2>{escape(heading)}</h2>\n{lead}<div class=wide tabindex=0><table{many}>\n<tr>{head}\n{body}</table></div>\n"


def _row(columns: Sequence[str], row: Sequence[Cell]) -> str:
    return "<tr>" + "".join(_cell(name, cell) for name, cell in zip(columns, row, strict=True)) + "\n"


def _cell(column: str, cell: Cell) -> str:
    kinds = " ".join(filter(None, (cell.kind, "none" if cell.text == MISSING else "")))
    style = f' class="{kinds}"' if kinds else ""
    return f'<td{style} data-name="{escape(column)}">{escape(clean(cell.text))}'


def _note(columns: int, note: str) -> str:
    return f"<tr class=note><td colspan={columns}>{escape(clean(note))}\n" if note else ""
