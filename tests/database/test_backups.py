"""Backups that go elsewhere, and what is left of those that were not finished."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest
from stoker.engine.errors import StoreError, UsageError
from stoker.engine.home import Home
from stoker.engine.store.maintenance import backup, clear_unfinished
from stoker.engine.store.store import Store


def test_a_backup_that_cannot_be_written_to_its_end_leaves_no_file_under_its_name(
    store: Store, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another file system the copy used to grow under the final name itself."""

    def half(source: BinaryIO, target: BinaryIO) -> None:
        assert not (tmp_path / "copy.duckdb").exists()
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", half)
    with pytest.raises(StoreError, match=r"cannot write .*copy\.duckdb: No space left"):
        backup(store, home, tmp_path / "copy.duckdb")
    assert list(tmp_path.iterdir()) == list(home.backups.iterdir()) == []


def test_a_backup_that_reads_back_otherwise_is_refused(store: Store, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "copyfileobj", lambda source, target: target.write(bytes(len(source.read()))))
    with pytest.raises(StoreError, match="does not read back the same"):
        backup(store, home, tmp_path / "copy.duckdb")
    assert list(tmp_path.iterdir()) == list(home.backups.iterdir()) == []


def test_a_link_that_somebody_put_in_its_way_is_not_followed(store: Store, home: Home, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    (tmp_path / f".copy.duckdb.{os.getpid()}.tmp").symlink_to(theirs)
    with pytest.raises(StoreError, match=r"cannot write .*copy\.duckdb: File exists"):
        backup(store, home, tmp_path / "copy.duckdb")
    assert theirs.read_text() == "precious" and list(home.backups.iterdir()) == []


def test_a_backup_is_for_its_owner_only(store: Store, home: Home, tmp_path: Path) -> None:
    made = backup(store, home, tmp_path / "copy.duckdb")
    assert (tmp_path / "copy.duckdb").stat().st_mode & 0o777 == 0o600
    assert made["bytes"] == (tmp_path / "copy.duckdb").stat().st_size


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_copied(
    store: Store, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere but on a file system that is read-only
    with pytest.raises(UsageError, match="cannot be written by the daemon"):
        backup(store, home, tmp_path / "copy.duckdb")
    assert list(home.backups.iterdir()) == []


def test_a_home_that_cannot_be_written_is_named_with_the_remedy(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=r"cannot be written .*; choose another home"):
        home.create()


def test_what_a_killed_daemon_had_begun_to_write_is_cleared_and_nothing_else(home: Home) -> None:
    begun = [
        home.backups / ".stoker-20260101T000000000000Z.duckdb.17.tmp",
        home.backups / ".stoker-20260101T000000000000Z.duckdb.17.tmp.wal",
        home.backups / ".stoker.duckdb.compact",
        home.backups / "..stoker.duckdb.compact.17.tmp",
        home.archive / ".events-to-9.parquet.tmp",
        home.scratch / "sql-17-1" / "copy.duckdb",
    ]
    kept = [home.backups / "stoker-20260101T000000000000Z.duckdb", home.backups / "of-mine.tmp", home.archive / "events-to-9.parquet"]
    for path in (*begun, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    clear_unfinished(home)
    assert [path for path in begun if path.exists()] == [] and all(path.exists() for path in kept)
