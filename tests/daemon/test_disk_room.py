"""A disk that runs low is told before commits are refused: in the status, by an event, and by a hook."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from stoker.engine import disk_room
from stoker.engine.cli.listing import _disk
from stoker.engine.config import Hook
from stoker.engine.disk_room import DiskWatch, Room, room
from stoker.engine.home import Home
from stoker.engine.hooks import Hooks
from stoker.engine.jobs.notes import Note, note
from stoker.engine.store.store import Store
from waiting import until

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "total", "low"),
    [(10 * GIB, 500 * GIB, False), (GIB, 500 * GIB, False), (GIB - 1, 500 * GIB, True), (GIB // 10, GIB, False), (GIB // 21, GIB, True)],
)
def test_less_than_a_gibibyte_is_low_and_of_a_small_disk_less_than_a_twentieth(free: int, total: int, low: bool) -> None:
    assert Room(free, total).low is low
    assert ("before commits are refused" in _disk({"free": free, "total": total, "low": low})) is low


def test_that_of_a_home_is_the_one_of_its_disk(home: Home) -> None:
    assert room(home.path).total == shutil.disk_usage(home.path).total > 0


def test_it_is_told_once_while_it_can_still_be_stored(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    hooks = Hooks(store, [Hook(("disk-low",), f'echo "$STOKER_EVENT: $STOKER_REASON" >> {heard}', 10.0)])
    store.listen(hooks.committed)
    watch = DiskWatch(tmp_path, lambda kind, words: store.write(note, Note(kind, "daemon", words)))
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
