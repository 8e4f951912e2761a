"""A disk that runs low is told before commits are refused: in the status, by an event, and by a hook."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from stoker.engine import disk_room
from stoker.engine.cli.looking.listing import _disk
from stoker.engine.cli.running import checks
from stoker.engine.config import Hook
from stoker.engine.disk_room import Room, largest, room
from stoker.engine.home import Home
from stoker.engine.hooks import Hooks
from stoker.engine.jobs.notes import Note, note
from stoker.engine.store.disk_watch import DiskWatch
from stoker.engine.store.reserve import Reserve
from stoker.engine.store.store import Store
from waiting import until

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [(10 * GIB, 500 * GIB, "enough"), (10 * GIB - 1, 500 * GIB, "low"), (GIB // 10, GIB, "enough"), (GIB // 21, GIB, "low"),
     (200_000, GIB, "full"), (0, 10_000, "full")],
)  # fmt: skip
def test_one_threshold_holds_for_all(free: int, total: int, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A twentieth of the disk or 10 GiB, whichever is less, and no room for a commit: status and doctor say the same."""
    assert Room(free, total).state == state
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda path: SimpleNamespace(free=free, total=total))
    (finding,) = checks.disk(tmp_path)
    assert finding.status == {"enough": "ok", "low": "warn", "full": "fail"}[state]
    shown = _disk({"free": free, "total": total, "low": state != "enough"})
    assert ("before commits are refused" in shown) is (state != "enough")


def test_that_of_a_home_is_the_one_of_its_disk(home: Home) -> None:
    assert room(home.path).total == shutil.disk_usage(home.path).total > 0


def test_it_is_told_once_while_it_can_still_be_stored(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    hooks = Hooks(store, [Hook(("disk-low",), f'echo "$STOKER_EVENT: $STOKER_REASON" >> {heard}', 10.0)])
    store.listen(hooks.committed)
    checkpoint = tmp_path / "jobs" / "7" / "checkpoints" / "step"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(bytes(3 << 20))
    watch = DiskWatch(tmp_path, store, Reserve(tmp_path), lambda kind, words: store.write(note, Note(kind, "daemon", words)))
    for free in (20 * GIB, GIB // 2, GIB // 4, 20 * GIB, 20 * GIB, GIB // 2):
        monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free, total=100 * GIB))
        watch.look()
    until(lambda: heard.exists() and heard.read_text().count("\n") == 2)
    hooks.close()
    with store.read() as con:
        kinds = [kind for (kind,) in con.execute("SELECT kind FROM events WHERE kind LIKE 'disk.%' ORDER BY seq").fetchall()]
    assert kinds == ["disk.low", "disk.enough", "disk.low"]
    told = heard.read_text().splitlines()
    assert len(told) == 2 and told[0].startswith(f"disk-low: 512 MiB of 100 GiB are free on the disk of {tmp_path}; free some space")
    assert "; the most below it: job 7 3.0 MiB" in told[0]


def test_what_takes_the_most_is_named_by_job(home: Home) -> None:
    """Measured when it is asked, with what has several names counted once and without what links lead to."""
    sizes = {"jobs/3/checkpoints/a": 4, "jobs/3/run-5/output.log": 1, "jobs/12/checkpoints/b": 6, "backups/x": 2, "stoker.duckdb.wal": 3}
    for name, size in sizes.items():
        (home.path / name).parent.mkdir(parents=True, exist_ok=True)
        (home.path / name).write_bytes(bytes(size << 20))
    os.link(home.path / "jobs/12/checkpoints/b", home.path / "jobs/12/checkpoints/same")
    (home.path / "jobs/12/checkpoints/elsewhere").symlink_to(home.path / "jobs/3", target_is_directory=True)
    found = largest(home.path)
    assert [(taker.path, taker.bytes >> 20, taker.job) for taker in found] == [
        ("jobs/12", 6, 12), ("jobs/3", 5, 3), ("stoker.duckdb", 3, None)]  # fmt: skip
    (home.path / "jobs/12/checkpoints/same").unlink()
    (home.path / "jobs/12/checkpoints/b").unlink()
    assert largest(home.path)[0].path == "jobs/3"
    (finding,) = checks.disk(home.path)
    assert "the most below it: job 3 5.0 MiB, stoker.duckdb 3.0 MiB, backups 2.0 MiB" in finding.found


def test_the_reserve_is_given_up_in_steps_to_the_log_and_made_again(tmp_path: Path) -> None:
    reserve, log = Reserve(tmp_path), tmp_path / "stoker.duckdb.wal"
    log.write_bytes(b"x" * 1000)
    assert not reserve.give(log), "there is none yet"
    reserve.make()
    assert reserve.whole and reserve.size == reserve.wanted <= shutil.disk_usage(tmp_path).total // 16
    assert reserve.path.stat().st_blocks * 512 >= reserve.size, "real blocks"
    for step in (64, 128, 256):
        before = reserve.size
        assert reserve.give(log) and before - reserve.size == step << 10
    assert log.stat().st_size == 1000
    reserve.enough()
    before = reserve.size
    assert reserve.give(log) and before - reserve.size == 64 << 10, "a commit went through: the next one begins with little"
    reserve.make()
    assert reserve.whole
