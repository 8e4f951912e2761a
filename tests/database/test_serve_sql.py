"""`serve-sql` without its extension: one clear message, and nothing left open."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from stoker.engine.adhoc.quack import open_copy, serve
from stoker.engine.errors import NotFound, UsageError


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    path = tmp_path / "copy.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE jobs AS SELECT 1 AS id")
    return path


def test_missing_extension_says_what_to_install(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where DuckDB looks for extensions: there are none
    with pytest.raises(UsageError, match="INSTALL quack") as caught:
        open_copy(copy)
    assert "\n" not in str(caught.value)
    duckdb.connect(str(copy)).close()  # not held open


def test_missing_copy_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.duckdb: no such file"):
        open_copy(tmp_path / "nothing.duckdb")


def test_a_token_is_required() -> None:
    with duckdb.connect() as con, pytest.raises(UsageError, match="token"):
        serve(con, "quack:localhost:9494", "")
