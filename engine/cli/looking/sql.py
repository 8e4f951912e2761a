"""Questions to the database: `stoker sql` and `stoker schema`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ... import format as fmt
from ...errors import LimitExceeded, NotFound, UsageError, nearest
from ..command import App, Command, examples, pass_app
from ..numbers import FiniteRange
from ..output import Answer, Column, Row, clear_screen, json_option, note, print_table, section, write, write_json

TABLE_ROWS = 1000  #: of a table, unless --limit is given; output for programs is not cut
ALL_ROWS = 1_000_000  #: the most in an answer of the daemon (docs/sql.md)
EXTRA_WAIT = 30.0  #: seconds granted to the daemon beyond the query's own time limit


def _statement(query: str | None, file: str | None) -> str:
    """The query from the argument, the file, or the pipe."""
    if query is not None and file is not None:
        raise UsageError("give the query or -f FILE, not both")
    if query is None or query == "-":
        if file is None and sys.stdin.isatty():
            raise UsageError('no query: stoker sql "SELECT …", stoker sql -f FILE, or pipe one in')
        try:
            query = (sys.stdin.buffer.read() if file in (None, "-") else Path(file).read_bytes()).decode()
        except OSError as error:
            raise NotFound(f"--file: {file}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"the query is not UTF-8 text: {error}") from None
    if not query.strip():
        raise UsageError("the query is empty")
    return query


@click.command(cls=Command)
@click.argument("query", required=False)
@click.option("-f", "--file", type=click.Path(), metavar="FILE", help="Read the query from a file.")
@click.option("-o", "--output", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True, help="Format.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json: a list of objects.")
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), help="Write to a file in place of the terminal.")
@click.option("--watch", type=FiniteRange(min=0.1), metavar="SECONDS", help="Ask again every so often, until Ctrl-C.")
@click.option("--limit", type=click.IntRange(min=1), help=f"Rows at most (default: {TABLE_ROWS} for a table, else all).")
@click.option("--timeout", type=FiniteRange(min=0.01), help="Seconds that the query may take (default: the daemon's).")
@pass_app
@examples(
    'stoker sql "SELECT name, state FROM jobs_now"',
    'stoker sql --watch 2 "SELECT * FROM gpus_now"',
    "stoker sql -f query.sql -o csv > out.csv",
    'stoker sql -o parquet --to events.parquet "SELECT * FROM events"',
    'echo "FROM queue" | stoker sql',
)
def sql(
    app: App, query: str | None, file: str | None, output: str, as_json: bool, to: Path | None, watch: float | None, limit: int | None,
    timeout: float | None,
) -> None:  # fmt: skip
    """Query the database: one reading statement, in DuckDB's SQL.

    'stoker schema' describes the tables and views; times in them are UTC.
    """
    output = "json" if as_json else output
    body = {"query": _statement(query, file), "limit": limit, "timeout": timeout}
    if output == "parquet" and to is None and sys.stdout.isatty():
        raise UsageError("parquet is binary: name a file with --to, or redirect the output")
    if watch is None:
        _once(app, body, output, to)
    elif output != "table" or to is not None:
        raise UsageError("--watch shows tables: leave out -o, --json and --to")
    else:
        _watch(app, body, watch)


def _post(app: App, body: dict[str, Any], format: str) -> tuple[bytes, bool]:
    """The answer, and whether it has all rows."""
    timeout = (body["timeout"] or 60.0) + EXTRA_WAIT
    return app.client.post_raw_whole("/v1/sql", json.dumps({**body, "format": format}).encode(), timeout=timeout)


def _once(app: App, body: dict[str, Any], output: str, to: Path | None) -> None:
    rows = body["limit"] or (TABLE_ROWS if output == "table" else ALL_ROWS)
    content, whole = _post(app, {**body, "limit": rows}, output if output in ("csv", "parquet") else "json")
    if not whole and output != "table" and body["limit"] is None:  # a program must not take a part for the whole
        raise LimitExceeded(f"query: the answer has more than {rows} rows; select fewer, or take the first with --limit {rows}")
    if output in ("csv", "parquet"):
        _deliver(content, to)
        if not whole:
            note(f"only the first {rows} rows, as --limit says")
        return
    answer = json.loads(content)
    if output == "table" and to is None:
        _show(answer)
    elif output == "table":
        raise UsageError("--to needs a format: -o csv, json or parquet")
    elif to is None:
        write_json(_objects(answer))
    else:
        _deliver(json.dumps(_objects(answer), indent=2, ensure_ascii=False).encode() + b"\n", to)
    if answer["truncated"]:
        note(f"only the first {len(answer['rows'])} rows; --limit asks for more")


def _deliver(content: bytes, to: Path | None) -> None:
    if to is None and sys.stdout.isatty():
        write(content.decode(errors="replace"))
    elif to is None:
        sys.stdout.flush()
        try:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            write("")
    else:
        try:
            to.write_bytes(content)
        except OSError as error:
            raise UsageError(f"--to: cannot write {to}: {error.strerror}") from None
        note(f"wrote {to}, {fmt.size(len(content))}")


def _objects(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows as objects; a repeated column name is numbered, so that no value is lost."""
    names: list[str] = []
    for name in answer["columns"]:
        unique, count = name, 2
        while unique in names:
            unique, count = f"{name}_{count}", count + 1
        names.append(unique)
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def _show(answer: dict[str, Any]) -> None:
    rows = [{str(i): value for i, value in enumerate(row)} for row in answer["rows"]]
    columns = [
        Column(name, _cell(str(i)), right=_numeric(kind), flexible=not _numeric(kind))
        for i, (name, kind) in enumerate(zip(answer["columns"], answer["types"], strict=True))
    ]
    print_table(rows, columns, f"{'  '.join(answer['columns'])}\n(no rows)")


def _cell(key: str) -> Callable[[Row], str]:
    return lambda row: value_text(row[key])


def value_text(value: Any) -> str:
    """A value in a table; measured numbers are rounded, programs get them whole by -o json."""
    match value:
        case None:
            return "NULL"
        case bool() | list() | dict():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return f"{value:.3f}".rstrip("0").removesuffix(".") if abs(value) >= 1 else f"{value:.4g}"
    return str(value)


def _numeric(kind: str) -> bool:
    return kind.startswith(("DECIMAL", "FLOAT", "DOUBLE", "NUMBER")) or kind.endswith("INT") or kind in ("INTEGER", "UINTEGER")


def _watch(app: App, body: dict[str, Any], seconds: float) -> None:
    """Refresh in place on a terminal; one table after the other in a pipe."""
    body = {**body, "limit": body["limit"] or TABLE_ROWS}
    while True:
        answer = json.loads(_post(app, body, "json")[0])
        stamp = f"every {fmt.duration(seconds)}, {fmt.clock(time.time())}: {len(answer['rows'])} rows in {fmt.duration(answer['seconds'])}"
        clear_screen()
        write(stamp + "\n")
        _show(answer)
        time.sleep(seconds)


@click.command(cls=Command)
@click.argument("name", required=False)
@json_option
@pass_app
@examples("stoker schema", "stoker schema jobs_now", "stoker schema --json")
def schema(app: App, name: str | None) -> Answer:
    """Describe the tables and views, or one of them, column by column."""
    tables = app.client.get("/v1/schema")["tables"]
    if name is not None:
        known = {table["name"]: table for table in tables}
        if name not in known:
            raise NotFound(f"no table or view {name!r}{nearest(name, known)}; 'stoker schema' lists them")
        tables = [known[name]]

    def show() -> None:
        for kind, title in (("view", "Views"), ("table", "Tables")):
            listed = [table for table in tables if table["kind"] == kind]
            if name is None and listed:
                section(title)
                print_table(listed, [Column("NAME", "name"), Column("MEANING", "comment", flexible=True)], "")
            for table in listed:
                section(f"{table['name']}: {table['comment'] or kind}")
                columns = [Column("COLUMN", "name"), Column("TYPE", "type"), Column("MEANING", "comment", flexible=True)]
                print_table(table["columns"], columns, "no columns")

    return Answer(tables, show)
