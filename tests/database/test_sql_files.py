"""Every statement below sql/ is parsed by sqlglot and qualified against the migrated schema, and bound by DuckDB itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pytest
import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema
from stoker.engine.store import migrate
from stoker.engine.store.sqlfiles import ROOT, names, sql, view_files

pytestmark = pytest.mark.xdist_group("sql-files")

ROOMS = ("api", "pages", "policy", "report", "store")
#: Text of each query and view, by name.
TEXTS = {
    **{f"{room}/{name}": sql(f"{room}/{name}") for room in ROOMS for name in names(room)},
    **{
        f"{folder}/{path.stem}": path.read_text()
        for folder in ("cookbook", "views")
        for path in sorted((ROOT / "sql" / folder).glob("*.sql"))
    },
}
SHORT = 12  #: lines of a query that stands in the file of its room


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    migrate.apply(con, migrate.available())
    for file in view_files():
        con.execute(file.read_text())
    yield con
    con.close()


@pytest.fixture(scope="module")
def schema(con: duckdb.DuckDBPyConnection) -> MappingSchema:
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in con.execute("SELECT table_name, column_name, data_type FROM duckdb_columns()").fetchall():
        tables.setdefault(table, {})[column] = kind
    for (table,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall():
        tables[table]["rowid"] = "BIGINT"
    return MappingSchema(tables, dialect="duckdb")


def check(text: str, schema: MappingSchema) -> None:
    """Raise SqlglotError when a statement of ``text`` cannot be parsed, or names a table or column that is not there."""
    for statement in sqlglot.parse(text, dialect="duckdb"):
        if statement is None or isinstance(statement, exp.Comment | exp.Semicolon):
            continue
        for query in _queries(statement, schema):
            _check_tables(query, schema)
            qualify(query, schema=schema, dialect="duckdb", validate_qualify_columns=True)


def _queries(statement: exp.Expression, schema: MappingSchema) -> Iterator[exp.Query]:
    """The statement as queries that name the same tables and columns."""
    if isinstance(statement, exp.Query):
        yield statement.copy()
    elif isinstance(statement, exp.Create) and isinstance(statement.expression, exp.Query):
        yield statement.expression.copy()
    elif isinstance(statement, exp.Insert):
        yield from _inserted(statement, schema)
    elif isinstance(statement, exp.Update | exp.Delete):
        yield _touched(statement)
    else:
        raise SqlglotError(f"{type(statement).__name__} statements have no place in sql/")


def _inserted(insert: exp.Insert, schema: MappingSchema) -> Iterator[exp.Query]:
    target = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    columns = [column.name for column in insert.this.expressions] if isinstance(insert.this, exp.Schema) else []
    yield exp.select(*(exp.column(column) for column in columns or ["*"])).from_(target.copy())
    if isinstance(insert.expression, exp.Query):
        source = insert.expression.copy()
        if insert.args.get("with_"):
            source.set("with_", insert.args["with_"].copy())
        yield source
    if conflict := insert.args.get("conflict"):
        known = schema.column_names(target)
        for assignment in conflict.find_all(exp.EQ):
            for column in assignment.find_all(exp.Column):
                if column.name not in known:
                    raise OptimizeError(f"Unknown column: {column.name}")


def _touched(change: exp.Update | exp.Delete) -> exp.Select:
    parts = [part.copy() for part in change.expressions] if isinstance(change, exp.Update) else []
    query = exp.select(*(exp.alias_(part, f"c{n}") for n, part in enumerate(parts or [exp.Literal.number(1)]))).from_(change.this.copy())
    sources = change.args.get("from_") or change.args.get("using") or []
    for source in [sources.this] if isinstance(sources, exp.From) else sources:
        query = query.join(source.copy(), join_type="cross")
    if where := change.args.get("where"):
        query = query.where(where.this.copy())
    if change.args.get("with_"):
        query.set("with_", change.args["with_"].copy())
    return query


def _check_tables(query: exp.Expression, schema: MappingSchema) -> None:
    own = {cte.alias for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        known = not isinstance(table.this, exp.Identifier) or table.name in own or schema.column_names(table)
        if not known and not table.name.startswith("duckdb_"):
            raise OptimizeError(f"Unknown table: {table.name}")


def bind(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """Let DuckDB resolve every name of the statements, without running them."""
    for statement in con.extract_statements(text):
        if statement.type in (duckdb.StatementType.CREATE, duckdb.StatementType.ALTER):
            continue  # the view files have been executed by the fixture; COMMENT is an ALTER to DuckDB
        con.execute(f"PREPARE checked AS {statement.query.strip().rstrip(';')}")
        con.execute("DEALLOCATE checked")


def refused(errors: type[Exception] | tuple[type[Exception], ...], look: Callable[..., None], *given: Any) -> str:
    """What ``look`` says is wrong; empty: nothing."""
    try:
        look(*given)
    except errors as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_queries_name_only_what_is_there(con: duckdb.DuckDBPyConnection, schema: MappingSchema) -> None:
    assert len(TEXTS) > 300
    said = {name: refused(SqlglotError, check, text, schema) or refused(duckdb.Error, bind, con, text) for name, text in TEXTS.items()}
    assert [(name, words) for name, words in said.items() if words] == []


def test_queries_begin_with_a_sentence_that_says_what_they_are_for() -> None:
    first = {name: text.split("\n", maxsplit=1)[0] for name, text in TEXTS.items()}
    assert [(name, line) for name, line in first.items() if not line.startswith("-- ") or len(line) <= 15] == []


def test_each_query_stands_where_it_is_looked_for() -> None:
    files = {path.relative_to(ROOT / "sql") for path in (ROOT / "sql").rglob("*.sql")}
    assert {path.parts[0].removesuffix(".sql") for path in files} == {*ROOMS, "cookbook", "views"}
    for room in ROOMS:
        short = [name for name in names(room) if not (ROOT / "sql" / room / f"{name}.sql").exists()]
        assert len(short) + len(list((ROOT / "sql" / room).glob("*.sql"))) == len(names(room)) == len(set(names(room)))
        assert short == sorted(short)
        assert all(len(sql(f"{room}/{name}").splitlines()) <= SHORT for name in short)
        assert all(len(sql(f"{room}/{name}").splitlines()) > SHORT for name in names(room) if name not in short)


WRONG = [
    "SELECT nme FROM jobs",
    "SELECT j.name FROM jobs j WHERE j.stat = 'running'",
    "SELECT name FROM job",
    "SELECT x.name FROM jobs j",
    "SELECT etta FROM jobs_now",
    "WITH a AS (SELECT id FROM jobs) SELECT name FROM a",
    "SELECT 1 FROM jobs j JOIN leases l ON l.jobid = j.id",
    "SELECT id FROM jobs WHERE id IN (SELECT job FROM leases)",
    "UPDATE jobs SET stat = 'running' WHERE id = $1",
    "UPDATE jobs SET state = $2 WHERE number = $1",
    "UPDATE jobs SET state = b.stat FROM (SELECT state FROM leases) b WHERE jobs.id = 1",
    "DELETE FROM waiting WHERE job = $1",
    "DELETE FROM wait WHERE job_id = $1",
    "INSERT INTO waiting (job_id, kode) SELECT 1, 'x'",
    "INSERT INTO waiting (job_id, code) SELECT number, 'x' FROM jobs",
    "CREATE OR REPLACE VIEW v AS SELECT stat FROM jobs",
    "SELECT 1; SELECT nme FROM jobs",
]


def test_wrong_names_are_found_by_sqlglot(schema: MappingSchema) -> None:
    assert [text for text in WRONG if not refused(SqlglotError, check, text, schema)] == []


def test_wrong_names_are_found_by_duckdb(con: duckdb.DuckDBPyConnection) -> None:
    kinds = (duckdb.BinderException, duckdb.CatalogException)
    found = [text for text in WRONG if not text.startswith("CREATE")]
    assert [text for text in found if not refused(kinds, bind, con, text)] == []
