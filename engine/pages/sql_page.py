"""SQL: a query in the address, which can be shared; its answer as a table, a plot and files; the schema beside it."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from starlette.responses import Response

from .. import format as fmt
from ..adhoc.desk import Question
from ..api.answers import Encoded
from ..api.thread_pools import Kind
from ..errors import StokerError, UsageError
from ..store.schema_text import schema
from ..store.sqlfiles import names, sql
from .components import Cell, empty, grid, lasted
from .markup import Safe, h, join
from .visit import Visit, at, page

MOST_SHOWN = 500  #: rows of the table
MOST_EXPORTED = 100_000  #: rows of a file at most
MOST_DRAWN = 6  #: columns in a plot
FORMATS = {"csv": "text/csv", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
LONGEST_SHOWN_VALUE = 300  #: characters shown of a value


async def show(visit: Visit) -> Response:
    text = visit.asked("q")
    body = await _answered(visit, text) if text else _examples()
    tables = await visit.daemon.snapshots.ask(Kind.READ, "schema", lambda: _schema(visit), topics=())
    rows = max(min(text.count("\n") + 1, 20), 4)
    form = h(
        "form",
        h(
            "label",
            "One reading statement, in DuckDB's SQL; times are UTC",
            h("textarea", text, name="q", rows=rows, spellcheck="false", id="q"),
        ),
        h("p", h("button", "Ask", class_="main"), " ", h("span", "Ctrl+Enter asks too", class_="soft"), class_="actions"),
        action="sql",
    )
    beside = h("aside", h("h2", "Schema"), [_table(table) for table in tables], aria_label="Schema", tabindex=0)
    return page(visit, "SQL", h("h1", "SQL"), h("div", h("div", form, body), beside, class_="beside"))


async def _ask(visit: Visit, text: str, form: str, rows: int) -> Any:
    await visit.body()
    question = Question(text, form, rows, visit.daemon.config.limits.query_seconds)
    return await visit.unless_gone(visit.daemon.desk.ask(visit.who.user, question))


async def _answered(visit: Visit, text: str) -> Safe:
    try:
        answer = msgspec.json.decode((await _ask(visit, text, "json", MOST_SHOWN)).body)
    except StokerError as error:
        return join([h("p", line, class_="bad", role="alert") for line in error.lines])
    rows, columns = answer["rows"], answer["columns"]
    links = [h("a", form, href=f"sql/export?{urllib.parse.urlencode({'q': text, 'format': form})}", class_="button") for form in FORMATS]
    cut = f"The first {MOST_SHOWN} rows" if answer["truncated"] else fmt.counted(len(rows), "row")
    words = h(
        "p",
        f"{cut} in ",
        lasted(answer["seconds"]),
        f". The address of this page is the question: share it, or export up to {MOST_EXPORTED:,} rows:",
    )
    said = join(words, h("p", links, class_="actions"))
    if not columns:
        return said
    drawn = _plot(columns, rows)
    plot = h("div", class_="plots", data_plot=json.dumps(drawn)) if drawn else None
    made = (([_value(value) for value in row], "") for row in rows)
    table = grid("Answer", columns, made) if rows else empty("No row fits.")
    return join(h("h2", "Answer"), said, plot, h("div", table, class_="raw"))


def _value(value: Any) -> Cell:
    if value is None:
        return Cell(h("span", "NULL", class_="soft"))
    if isinstance(value, bool | list | dict):
        return Cell(_short(json.dumps(value, ensure_ascii=False)))
    if isinstance(value, float):
        return Cell(h("span", fmt.number(value, 6), title=repr(value)), "n")
    if isinstance(value, int):
        return Cell(str(value), "n")
    return Cell(_short(value)) if _moment(value) is None else Cell(value.replace("T", " "), "n")


def _short(text: str) -> Safe | str:
    return text if len(text) <= LONGEST_SHOWN_VALUE else h("span", text[:LONGEST_SHOWN_VALUE] + "…", title=text[:4000])


def _plot(columns: list[str], rows: list[list[Any]]) -> dict[str, Any] | None:
    """A plot with the first column along x, if it is a number or a time, and the other numeric columns along y."""
    if len(rows) < 2:
        return None
    moments = [_moment(row[0]) for row in rows]
    timed = all(moment is not None for moment in moments)
    xs: list[Any] = moments if timed else [row[0] for row in rows]
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in xs):
        return None
    numeric = [place for place in range(1, len(columns)) if all(_is_number(row[place]) for row in rows)]
    order = sorted(range(len(rows)), key=lambda row: xs[row])
    series = [
        {"name": columns[place], "x": [xs[row] for row in order], "y": [rows[row][place] for row in order]}
        for place in numeric[:MOST_DRAWN]
    ]
    return {"title": f"by {columns[0]}", "time": timed, "series": series} if series else None


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _moment(value: Any) -> float | None:
    if not isinstance(value, str) or len(value) < 10:
        return None
    try:
        return datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _schema(visit: Visit) -> list[dict[str, Any]]:
    with visit.daemon.store.read() as con:
        return schema(con)


def _table(table: Mapping[str, Any]) -> Safe:
    columns = [
        h("li", h("code", column["name"]), " ", h("small", column["type"].lower(), class_="soft"), title=column["comment"])
        for column in table["columns"]
    ]
    start = f"sql?{urllib.parse.urlencode({'q': 'SELECT * FROM ' + table['name'] + ' LIMIT 100'})}"
    inside = [h("p", table["comment"] or "", " ", h("a", "look", href=start)), h("ul", columns)]
    return h("details", h("summary", table["name"]), inside, class_="small")


@cache
def _cookbook() -> list[tuple[str, str]]:
    """Useful queries: the title and the text of each."""
    texts = [sql(f"cookbook/{name}") for name in names("cookbook")]
    return [(text.partition("\n")[0].removeprefix("--").strip(), text) for text in texts]


def _examples() -> Safe:
    links = [h("li", h("a", about, href=f"sql?{urllib.parse.urlencode({'q': text})}")) for about, text in _cookbook()]
    return join(h("h2", "Questions to begin with"), h("ul", links))


async def export(visit: Visit) -> Response:
    form = visit.asked("format") or "csv"
    if form not in FORMATS:
        raise UsageError(f"format: {form[:20]!r} is not one of {', '.join(FORMATS)}")
    answer = await _ask(visit, visit.asked("q"), form, MOST_EXPORTED)
    headers = {"Content-Disposition": f'attachment; filename="answer.{form}"', "X-Stoker-Truncated": str(answer.truncated).lower()}
    return Encoded(answer.body, FORMATS[form], headers, visit.daemon.desk.hold(len(answer.body)))


PAGES = [at("/sql", "read", show), at("/sql/export", "read", export)]
