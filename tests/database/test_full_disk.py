"""A disk that a job fills: the job can be stopped, durably, and what is not stored is said not to be."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from small_disk import Quota, SmallDisk
from stoker.engine.disk_room import Room, room
from stoker.engine.errors import NoRoom, StoreError
from stoker.engine.home import Home
from stoker.engine.jobs.notes import Note, note
from stoker.engine.store import store as store_module
from stoker.engine.store.disk_watch import DiskWatch
from stoker.engine.store.reserve import Reserve
from stoker.engine.store.store import Store

#: Fills its disk to the last byte, and again whatever is freed.
FILLS = """
import os, pathlib, sys, time
file = os.open(pathlib.Path(sys.argv[1], "filling"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    try:
        os.write(file, bytes(16384))
    except OSError:
        time.sleep(0.0005)
"""


@pytest.mark.slow
def test_the_job_that_fills_the_disk_is_cancelled(home: Home, disk: SmallDisk | Quota, start_runner: Callable[..., RunnerProcess]) -> None:
    """All that stops work or makes room goes through while the job takes each byte that is freed, and outlives the daemon."""
    if isinstance(disk, Quota):
        pytest.skip("needs a disk that can be filled: a mount")
    daemon = DaemonProcess(home)
    try:
        jobs = Jobs(daemon.start())
        start_runner(slots=1)
        waits, goes = jobs.submit("waits", "true", hold=True), jobs.submit("goes", "true", hold=True)
        until((home.path / "reserve").exists)
        filler = jobs.python("filler", FILLS.replace("sys.argv[1]", repr(str(home.path))))
        until(lambda: os.statvfs(home.path).f_bavail == 0)
        until(lambda: jobs.client.get("/v1/status")["disk"]["low"])
        with pytest.raises(StoreError, match="the disk is full"):
            for number in range(9):  # what was given up for the event of it is soon used up
                jobs.submit(f"refused-{number}", "echo", "x" * 100_000)
        for words in (["policy", "set", "priority"], ["priority", "5", str(waits)], ["release", str(goes)], ["cancel", str(waits)],
                      ["hold", str(goes)], ["drain", "here"]):  # fmt: skip
            said = command(home, *words)
            assert said.code == 0, (words, said)
        disk_now = jobs.client.get("/v1/status")["disk"]
        assert "the disk is full" in disk_now["refused"] and disk_now["largest"][0]["path"] == "filling"
        assert command(home, "cancel", str(filler)).code == 0
        daemon.kill()  # what was acknowledged is on the disk
        jobs = Jobs(daemon.start())
        assert jobs.ended(filler)["state"] == "cancelled" and jobs.state(waits) == "cancelled"
        assert jobs.client.get("/v1/policy")["pools"][0]["policy"] == "priority"
        (home.path / "filling").unlink()
        assert jobs.submit("after", "true")
        reasons = [event["reason"] for kind in ("disk.low", "disk.full") for event in jobs.events(kind)]
        assert any("filling" in reason for reason in reasons), reasons
    finally:
        daemon.end()


def test_the_log_is_not_folded_in_while_the_disk_is_full(disk: SmallDisk | Quota, home: Home) -> None:
    """A checkpoint that finds no room costs the connection, and the daemon its life; it comes once there is room."""
    if isinstance(disk, Quota):
        pytest.skip("needs a disk that can be filled: a mount")
    store = Store.open(home.database, reserve=Reserve(home.path), config={"checkpoint_threshold": "128KB"})
    watch = DiskWatch(home.path, store, Reserve(home.path), lambda kind, words: None)
    watch.look()
    disk.fill(0)
    watch.look()
    words = Note("test", "t", "x" * 20_000)
    with pytest.raises(NoRoom, match="the disk is full"):
        for _ in range(9):
            store.write(note, words)
    for _ in range(15):
        store.write(note, words, urgent=True)
    log = home.database.with_name("stoker.duckdb.wal")
    assert log.stat().st_size > 300_000 and store.failed is None and store.refused
    disk.free(0)
    watch.look()
    for _ in range(9):
        store.write(note, words)
    assert store.refused is None and (not log.exists() or log.stat().st_size < 128_000), "as before"
    store.close()


def test_a_job_fills_the_disk_while_the_database_is_opened(disk: SmallDisk | Quota, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(disk, Quota):
        pytest.skip("needs a disk that can be filled: a mount")
    reserve = Reserve(home.path)
    Store.open(home.database, reserve=reserve).close()
    reserve.make()
    disk.fill(0)
    seen = [Room(1 << 30, 1 << 30)]
    monkeypatch.setattr(store_module, "room", lambda path: seen.pop() if seen else room(path))
    store = Store.open(home.database, reserve=reserve)
    store.write(note, Note("test", "t", "x"), urgent=True)
    assert not seen and store.failed is None
    store.close()


@pytest.mark.slow
def test_a_runner_stops_what_no_room_is_left_to_store(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    """Where files may not grow the reserve is of no use: the runner is told all the same, and the answer says that it is not stored."""
    daemon = start_daemon()
    jobs, limit = Jobs(daemon.client()), Quota(home.path)
    start_runner(slots=2)
    stopped, kept = jobs.shell("stopped", "exec sleep 600"), jobs.shell("kept", "exec sleep 600")
    until(lambda: (jobs.state(stopped), jobs.state(kept)) == ("running", "running"))
    supervisor = jobs.run_dir(stopped)
    limit.fill(daemon.pid)
    said = command(home, "cancel", str(stopped))
    assert said.code == 8 and "not stored yet, but its runner is told to stop it: the database may not grow" in said.line
    assert command(home, "hold", str(kept)).code == 8
    assert command(home, "priority", "5", str(kept)).code == 8
    until((supervisor / "exit.json").exists)
    assert jobs.state(stopped) == "running", "what is not stored is not said to be so"
    limit.free(daemon.pid)
    assert jobs.ended(stopped)["state"] == "cancelled", "not failed, as a script that dies of a signal would be"
    until(lambda: jobs.state(kept) == "submitted" and jobs.show(kept)["held"])
