"""What DuckDB's SQL can ask, ad-hoc SQL answers: one statement for each thing that its documentation of SELECT shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from adhoc import Server, serving

pytestmark = pytest.mark.xdist_group("sql-dialect")

STATEMENTS = (Path(__file__).parents[1] / "dialect.sql").read_text().splitlines()  #: one a line

TABLES = """
CREATE TABLE jobs AS
SELECT 'job-' || i AS name, ['a', 'b'][1 + i % 2] AS pool, ['x', 'y', 'z'][1 + i % 3] AS kind, (1 + i % 4)::INT AS gpus,
    {'team': 't' || i} AS labels, ['one', 'two'] AS tags, TIMESTAMP '2024-01-01' + to_hours(i) AS started
FROM range(8) r(i);
CREATE TABLE leases AS
SELECT 'job-' || i AS job, (1 + i % 2)::INT AS gpus, TIMESTAMP '2024-01-01' + to_hours(i) AS since FROM range(4) r(i);
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("dialect")
    with duckdb.connect(str(folder / "s.duckdb")) as con:
        con.execute(TABLES)
    with serving(folder / "s.duckdb", folder / "sql") as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("sql", STATEMENTS)
@pytest.mark.sampled(3)
def test_it_is_answered(server: Server, sql: str) -> None:
    assert server.rows(sql) or "SAMPLE" in sql
