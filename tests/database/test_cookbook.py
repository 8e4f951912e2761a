"""The SQL cookbook: every query passes the guard and gives rows on a populated database, and docs/sql.md shows them as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from stoker.engine.adhoc.query import AnswerLimits, readable, run_query
from stoker.engine.store import migrate
from stoker.engine.store.sqlfiles import ROOT, view_files

pytestmark = pytest.mark.xdist_group("cookbook")

COOKBOOK = sorted((ROOT / "sql" / "cookbook").glob("*.sql"))
DOCUMENT = ROOT / "docs" / "sql.md"
SECTION = re.compile(r"(<!-- cookbook -->\n).*(<!-- /cookbook -->)", re.DOTALL)


def render() -> str:
    """The cookbook section of docs/sql.md."""
    parts = []
    for path in COOKBOOK:
        question, query = path.read_text().split("\n", maxsplit=1)
        parts.append(f"**{question.removeprefix('-- ')}** (`sql/cookbook/{path.name}`)\n\n```sql\n{query.rstrip()}\n```\n")
    return "\n".join(parts)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    migrate.apply(con, migrate.available())
    for file in view_files():
        con.execute(file.read_text())
    con.execute("SET VARIABLE jobs = 200")
    con.execute((Path(__file__).parents[1] / "populate.sql").read_text())
    yield con
    con.close()


def test_there_are_twenty_queries_with_a_sentence_each() -> None:
    assert len(COOKBOOK) >= 20
    for path in COOKBOOK:
        assert re.match(r"-- [A-Z].+[.?]\n(SELECT|WITH|FROM)\b", path.read_text()), path.name


#: Nothing to find in a healthy picture; they are run all the same.
MAY_BE_EMPTY = {"fragmentation"}


@pytest.mark.parametrize("path", COOKBOOK, ids=lambda path: path.stem)
def test_query_runs_under_the_guard(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    result = run_query(con.cursor(), path.read_text(), AnswerLimits(), readable(con))
    assert not result.truncated
    assert result.rows or path.stem[3:] in MAY_BE_EMPTY
    assert len(set(result.columns)) == len(result.columns)


def test_synchronisation_that_was_not_measured_is_not_taken_for_nothing(con: duckdb.DuckDBPyConnection) -> None:
    """Of one GPU nothing is left out; of more, on one node and over several, only what was measured is told."""
    query = (ROOT / "sql" / "cookbook" / "30_step_time_by_gpus.sql").read_text()
    cursor = con.cursor()
    cursor.execute("BEGIN")
    cursor.execute("DELETE FROM speeds")
    for number, (within, across) in enumerate([(None, None), (0.1, None), (None, 0.2), (0.3, 0.2)]):
        values = [number, f"m{number}", within, across]
        cursor.execute("INSERT INTO speeds VALUES ($1, 'A100', $2, 1, 1.0, $3, $4, NULL, 3, now(), NULL)", values)
    found = {(row[0], row[3]): row[4:] for row in cursor.execute(query).fetchall()}
    cursor.execute("ROLLBACK")
    assert [found[f"m{number}", 1] for number in range(4)] == [(1.0, None)] * 4
    at_two = [found[f"m{number}", 2] for number in range(4)]
    assert at_two == [(None, None), (pytest.approx(0.6), None), (None, pytest.approx(0.7)), (pytest.approx(0.8), pytest.approx(0.8))]


def test_a_file_that_bears_the_name_of_another_trace_is_not_joined_to_its_jobs(con: duckdb.DuckDBPyConnection) -> None:
    """Run 1 is of the imported trace 'week', run 2 of a file of that name: what is told of jobs must not mix them."""
    waits, gains = (
        (ROOT / "sql" / "cookbook" / name).read_text() for name in ("27_simulated_wait_percentiles.sql", "26_who_gains_by_a_policy.sql")
    )
    cursor = con.cursor()
    cursor.execute("BEGIN")
    assert [row[0] for row in cursor.execute(waits).fetchall()] == [1, 2] and cursor.execute(gains).fetchall()
    cursor.execute("UPDATE sim_runs SET trace_id = NULL, trace_sha256 = 'def' WHERE id = 2")
    assert [row[0] for row in cursor.execute(waits).fetchall()] == [1, 2] and not cursor.execute(gains).fetchall()
    cursor.execute("ROLLBACK")


@pytest.mark.parametrize(
    "change", ["options = '{\"until\": 5}'", "version = '0.2'", "nodes = '2x4'", "trace_sha256 = 'def'", "config = '{\"backfill\": true}'"]
)
def test_different_experiments_are_not_averaged(con: duckdb.DuckDBPyConnection, change: str) -> None:
    """Of runs 1 and 2 the average JCT is 100 and 200 s. What is not a seed of the same experiment has a row of its own."""
    query = (ROOT / "sql" / "cookbook" / "25_policies_side_by_side.sql").read_text()
    cursor = con.cursor()

    def found() -> list[tuple[int, float]]:
        answer = cursor.execute(query)
        place = [column[0] for column in answer.description or ()]
        return sorted((row[place.index("seeds")], row[place.index("jct")]) for row in answer.fetchall())

    cursor.execute("BEGIN")
    cursor.execute("UPDATE sim_runs SET policy = 'fifo', seed = id")
    assert found() == [(2, 150.0)]
    cursor.execute(f"UPDATE sim_runs SET {change} WHERE id = 2")
    assert found() == [(1, 100.0), (1, 200.0)]
    cursor.execute("ROLLBACK")


def test_a_run_that_was_stored_twice_is_no_second_seed(con: duckdb.DuckDBPyConnection) -> None:
    query = (ROOT / "sql" / "cookbook" / "25_policies_side_by_side.sql").read_text()
    cursor = con.cursor()
    cursor.execute("BEGIN")
    cursor.execute("UPDATE sim_runs SET policy = 'fifo'")
    answer = cursor.execute(f"SELECT seeds, jct FROM ({query})").fetchall()
    cursor.execute("ROLLBACK")
    assert answer == [(1, 200.0)], "the one that was stored last"


def test_two_runs_say_whether_only_their_policies_differ(con: duckdb.DuckDBPyConnection) -> None:
    query = (ROOT / "sql" / "cookbook" / "26_who_gains_by_a_policy.sql").read_text()
    cursor = con.cursor()
    cursor.execute("BEGIN")
    told = [cursor.execute(f"SELECT DISTINCT first, second, only_policies_differ FROM ({query})").fetchall()]
    cursor.execute("UPDATE sim_runs SET options = '{\"until\": 5}' WHERE id = 2")
    told += [cursor.execute(f"SELECT DISTINCT first, second, only_policies_differ FROM ({query})").fetchall()]
    cursor.execute("ROLLBACK")
    assert told == [[("srtf", "fifo", True)], [("srtf", "fifo", False)]]


def test_document_shows_the_queries_as_they_are() -> None:
    section = SECTION.search(DOCUMENT.read_text())
    assert section
    assert section[0] == f"{section[1]}{render()}{section[2]}", "docs/sql.md is not up to date: run python tests/database/test_cookbook.py"


if __name__ == "__main__":
    DOCUMENT.write_text(SECTION.sub(lambda match: f"{match[1]}{render()}{match[2]}", DOCUMENT.read_text()))
