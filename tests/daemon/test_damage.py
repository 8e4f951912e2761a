"""A database or log that was cut, emptied, removed, swapped or flipped: all that was acknowledged is there, or a start says what is not.

Each case is done to what a real daemon left behind when it was killed. DuckDB itself takes most of them for a database that has seen less.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e import DaemonProcess, Jobs, command, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.errors import StoreError
from stoker.engine.home import Home
from stoker.engine.store.acknowledged import Acknowledged, open_checked
from stoker.engine.store.store import Store, connect
from waiting import until

NAMES = ("stoker.duckdb", "stoker.duckdb.wal", "stoker.acknowledged")
DATABASE, WAL, SIDE = NAMES
Files = dict[str, bytes]


@dataclass(frozen=True)
class Killed:
    """What a daemon left behind at kill -9, and what it had answered."""

    files: Files
    jobs: set[int]  #: acknowledged
    former: Files  #: of an earlier kill: before the database's last checkpoint
    midway: Files  #: since that checkpoint
    backup: bytes


def read(home: Home) -> Files:
    return {name: (home.path / name).read_bytes() for name in NAMES if (home.path / name).exists()}


def put(folder: Path, files: Files) -> Path:
    """Write the files into a folder; the database's path."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / DATABASE


def jobs_of(files: Files) -> set[int]:
    """The jobs that are in the database and its log."""
    with tempfile.TemporaryDirectory() as folder, closing(connect(put(Path(folder), files))) as con:
        return {row[0] for row in con.execute("SELECT id FROM jobs").fetchall()}


def _stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def killed_after_a_submission(daemon: DaemonProcess, home: Home, jobs: set[int], submit: Callable[[], int]) -> Files:
    """What kill -9 leaves when the log ends with a job that was acknowledged; adds to ``jobs`` what it has submitted for it.

    The daemon commits of its own accord, too: from a log that ends with such a commit the end may go, and no job is lost.
    """
    assert daemon.process is not None
    pid = daemon.process.pid

    def stopped() -> Files | None:
        jobs.add(submit())
        os.kill(pid, signal.SIGSTOP)
        until(lambda: all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()), pause=0.001)
        files = read(home)
        if jobs_of({**files, WAL: files[WAL][:-1]}) < jobs:
            return files
        os.kill(pid, signal.SIGCONT)
        return None

    files: Files = until(stopped)
    daemon.kill()
    return files


@pytest.fixture(scope="module")
def killed(template: Path) -> Iterator[Killed]:
    folder = Path(tempfile.mkdtemp(prefix="stoker-"))
    home = Home(folder)
    shutil.copyfile(template, home.database)
    daemon = DaemonProcess(home)
    text = "x" * 3000
    try:
        with closing(daemon.start()) as client:
            jobs = {Jobs(client).submit(f"first-{n}", "echo", text) for n in range(3)}
            daemon.kill()
        former = read(home)
        with closing(daemon.start()) as client:
            jobs |= {Jobs(client).submit(f"second-{n}", "echo", text) for n in range(3)}
            backup = Path(client.post("/v1/backup", {})["path"]).read_bytes()
            jobs |= {Jobs(client).submit(f"third-{n}", "echo", text) for n in range(3)}
            midway = read(home)
            jobs |= {Jobs(client).submit(f"fourth-{n}", "echo", text) for n in range(2)}
            files = killed_after_a_submission(daemon, home, jobs, lambda: Jobs(client).submit("last", "echo", text))
        assert set(files) == set(midway) == set(NAMES) and len(files[WAL]) > len(midway[WAL]) > 9 * 3000
        yield Killed(files, jobs, former, midway, backup)
    finally:
        daemon.end()
        shutil.rmtree(folder)


def flipped(content: bytes, at: float) -> bytes:
    """One byte is another one; ``at``: where, as a share of the whole."""
    place = int(at * len(content))
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


def nonsense(length: int) -> bytes:
    """The same each time."""
    return random.Random(length).randbytes(length)


def but(name: str, change: Callable[[bytes], bytes]) -> Callable[[Killed], Files]:
    """The files, one of them changed."""
    return lambda killed: {**killed.files, name: change(killed.files[name])}


def without(*names: str) -> Callable[[Killed], Files]:
    return lambda killed: {name: content for name, content in killed.files.items() if name not in names}


#: What was done to the files; all of it can be accepted as lost.
LOSSES: dict[str, Callable[[Killed], Files]] = {
    "the log emptied": but(WAL, lambda log: b""),
    "the log cut in half": but(WAL, lambda log: log[: len(log) // 2]),
    "the log's last bytes cut off": but(WAL, lambda log: log[:-3]),
    "the log removed": without(WAL),
    "a byte of the log's head flipped": but(WAL, lambda log: flipped(log, 0.0)),
    "a byte near the log's head flipped": but(WAL, lambda log: flipped(log, 0.01)),
    "a byte in the log's middle flipped": but(WAL, lambda log: flipped(log, 0.5)),
    "a byte near the log's end flipped": but(WAL, lambda log: flipped(log, 0.999)),
    "a page of the log zeroed": but(WAL, lambda log: log[:8192] + bytes(4096) + log[12288:]),
    "the log's end zeroed": but(WAL, lambda log: log[:-5000] + bytes(5000)),
    "the log overwritten": but(WAL, lambda log: nonsense(len(log))),
    "the log of an earlier moment": lambda k: {**k.files, WAL: k.midway[WAL]},
    "the log from before the last checkpoint": lambda k: {**k.files, WAL: k.former[WAL]},
    "the database from before the last checkpoint": lambda k: {**k.files, DATABASE: k.former[DATABASE]},
    "an older database with its log": lambda k: {**k.former, SIDE: k.files[SIDE]},
    "an older database without its log": lambda k: {DATABASE: k.former[DATABASE], SIDE: k.files[SIDE]},
    "a backup without a log": lambda k: {DATABASE: k.backup, SIDE: k.files[SIDE]},
    "a backup with the log that was there": lambda k: {**k.files, DATABASE: k.backup},
    "the database emptied": but(DATABASE, lambda database: b""),
    "the database emptied, the log removed": lambda k: {DATABASE: b"", SIDE: k.files[SIDE]},
    "the database removed, the log left": without(DATABASE),
    "the database and its log removed": without(DATABASE, WAL),
    "the database removed, and the count": without(DATABASE, SIDE),
}
#: Of these the property of any place in the log, and those that are much the same, tell by day.
BY_NIGHT = {
    "the log cut in half", "a byte near the log's head flipped", "a byte near the log's end flipped", "a page of the log zeroed",
    "the log's end zeroed", "the log of an earlier moment", "an older database without its log", "the database emptied, the log removed",
    "the database and its log removed",
}  # fmt: skip
#: What no log makes up for: there is nothing to go on with but a backup.
WRECKS: dict[str, Callable[[Killed], Files]] = {
    "the database cut in half": but(DATABASE, lambda database: database[: len(database) // 2]),
    "the database's first page zeroed": but(DATABASE, lambda database: bytes(4096) + database[4096:]),
    "a byte of the first header flipped": but(DATABASE, lambda database: flipped(database, 10 / len(database))),
    "a byte of a data block flipped": but(DATABASE, lambda database: flipped(database, (12288 + 5000) / len(database))),
    "the database overwritten with text": but(DATABASE, lambda database: b"no database at all\n" * 1000),
}
#: What costs nothing.
HARMLESS: dict[str, Callable[[Killed], Files]] = {
    "nothing": without(),
    "bytes behind the log's end": but(WAL, lambda log: log + nonsense(500)),
    "the count removed": without(SIDE),
    "the count emptied": but(SIDE, lambda count: b""),
    "the count overwritten": but(SIDE, lambda count: nonsense(len(count))),
    "half of the count zeroed": but(SIDE, lambda count: bytes(4096) + count[4096:]),
    "the count of an earlier moment": lambda k: {**k.files, SIDE: k.midway[SIDE]},
}


def numbers(store: Store) -> set[int]:
    with store.read() as con:
        return {row[0] for row in con.execute("SELECT id FROM jobs").fetchall()}


@pytest.mark.xdist_group("damage")
@pytest.mark.slow
@pytest.mark.parametrize("damage", [pytest.param(name, marks=pytest.mark.nightly) if name in BY_NIGHT else name for name in LOSSES])
@pytest.mark.sampled(3)
def test_a_loss_is_told_and_nothing_is_touched_until_it_is_accepted(killed: Killed, damage: str, tmp_path: Path) -> None:
    files = LOSSES[damage](killed)
    path = put(tmp_path, files)
    with pytest.raises(StoreError) as error:
        Store.open(path)
    words = str(error.value)
    assert "stoker up --accept-loss" in words and "\n" not in words
    untouched = {name: content for name, content in files.items() if content}
    assert untouched.items() <= read(Home(tmp_path)).items(), "what may still be put back or saved is as it was"
    store = Store.open(path, accept_loss=True)
    left = numbers(store)
    assert (left < killed.jobs and store.lost and store.lost in words) or "its log, the .wal file" in words
    if SIDE in files:
        put(tmp_path / "former", {SIDE: files[SIDE]})
        known, now = Acknowledged(tmp_path / "former" / DATABASE).read(), store._catalog.mark()
        assert known is not None and now.number > known.number, "the number of a lost commit is not given again"
        assert all(now.used[table] >= number for table, number in known.used.items()), "nor is one of a lost job, lease, event …"
        assert store._catalog.number("jobs") > max(killed.jobs)
    store.close()
    again = Store.open(path)
    assert again.lost is None and numbers(again) == left, "what was accepted is not asked for again"
    again.close()


@pytest.mark.xdist_group("damage")
@pytest.mark.parametrize("damage", WRECKS)
@pytest.mark.sampled(2)
def test_a_database_that_is_damaged_is_refused_whatever_is_accepted(killed: Killed, damage: str, tmp_path: Path) -> None:
    files = WRECKS[damage](killed)
    path = put(tmp_path, files)
    for accept in (False, True):
        with pytest.raises(StoreError, match=r"restore the newest (file of the backups folder|backup)") as error:
            Store.open(path, accept_loss=accept)
        assert "\n" not in str(error.value)
        assert read(Home(tmp_path)) == files


@pytest.mark.xdist_group("damage")
@pytest.mark.parametrize("damage", HARMLESS)
@pytest.mark.sampled(3)
def test_what_costs_no_commit_keeps_nobody_from_starting(
    killed: Killed, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(put(tmp_path, HARMLESS[damage](killed)))
    assert numbers(store) == killed.jobs and store.lost is None
    store.close()
    assert ("is not known" in caplog.text) == (damage in ("the count removed", "the count emptied", "the count overwritten"))
    caplog.clear()
    (tmp_path / DATABASE).write_bytes(killed.former[DATABASE])
    with pytest.raises(StoreError, match="not in it"):  # it counts again
        Store.open(tmp_path / DATABASE)


@pytest.mark.xdist_group("damage")
@settings(max_examples=60)
@given(where=st.floats(0, 1, exclude_max=True), length=st.integers(0, 5000), how=st.sampled_from(["cut", "flip", "zero"]))
def test_wherever_the_log_is_damaged(killed: Killed, where: float, length: int, how: str) -> None:
    log = killed.files[WAL]
    place = int(where * len(log))
    changed = {
        "cut": log[:place],
        "flip": flipped(log, where),
        "zero": (log[:place] + bytes(length) + log[place + length :])[: len(log)],
    }[how]
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder), {**killed.files, WAL: changed})
        try:
            con, lost = open_checked(path, lambda: connect(path), Acknowledged(path).read(), accept=False)
        except StoreError as error:
            assert "stoker up --accept-loss" in str(error)
        else:
            assert lost is None
            assert {row[0] for row in con.execute("SELECT id FROM jobs").fetchall()} == killed.jobs
            con.close()


@pytest.mark.xdist_group("damage")
@settings(max_examples=25)
@given(where=st.floats(0, 1, exclude_max=True), length=st.integers(1, 5000))
def test_wherever_the_database_is_damaged(killed: Killed, where: float, length: int) -> None:
    """Blocks that nothing is in are read by nobody."""
    database = killed.files[DATABASE]
    place = int(where * len(database))
    garbage = bytes(byte ^ 0x55 for byte in database[place : place + length])
    files = {**killed.files, DATABASE: database[:place] + garbage + database[place + length :]}
    with tempfile.TemporaryDirectory() as folder:
        try:
            store = Store.open(put(Path(folder), files))
        except StoreError as error:
            assert "restore the newest" in str(error) and read(Home(Path(folder))) == files
        else:
            assert numbers(store) == killed.jobs
            store.close()


@pytest.mark.xdist_group("damage")
def test_what_is_missing_is_said_with_its_number_and_time(killed: Killed, tmp_path: Path) -> None:
    path = put(tmp_path, {**killed.files, WAL: killed.midway[WAL]})
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    with pytest.raises(StoreError) as error:
        Store.open(path)
    found = re.search(rf"stoker\.duckdb: (\d+) commits, acknowledged from {moment} to {moment} UTC, are not in it", str(error.value))
    assert found and int(found[1]) >= 3
    Store.open(put(tmp_path, {**killed.files, DATABASE: killed.former[DATABASE]}), accept_loss=True).close()
    assert len(list(tmp_path.glob("stoker.duckdb.wal.lost-*"))) == 1, "a log that was of no use is kept"


@pytest.mark.xdist_group("damage")
def test_another_database_is_not_taken_for_ours(killed: Killed, template: Path, tmp_path: Path) -> None:
    shutil.copyfile(template, tmp_path / "other.duckdb")
    with closing(connect(tmp_path / "other.duckdb")) as con:
        con.execute("UPDATE migrations SET applied = applied + INTERVAL 1 DAY")
    path = put(tmp_path, {DATABASE: (tmp_path / "other.duckdb").read_bytes(), SIDE: killed.files[SIDE]})
    with pytest.raises(StoreError, match=r"this is another database, made at .*, than the one whose \d+ commits were acknowledged"):
        Store.open(path)
    store = Store.open(path, accept_loss=True)
    assert store._catalog.number("jobs") > max(killed.jobs)
    store.close()
    Store.open(path).close()


@pytest.mark.slow
@pytest.mark.nightly  # the daemon refuses: above; what up makes of that: test_cli_up.py
def test_up_refuses_with_code_8_and_goes_on_when_the_loss_is_accepted(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_daemon()
    with closing(daemon.client()) as client:
        Jobs(client).submit("kept", "true")
    assert daemon.stop() == 0
    daemon.start()
    with closing(daemon.client()) as client:
        lost = Jobs(client).submit("lost", "true")
    daemon.kill()
    (home.path / WAL).unlink()
    said = refused(home)
    assert said.code == 8 and re.search(r"stoker\.duckdb: \d+ commits?, acknowledged from .* --accept-loss'$", said.line)
    up = command(home, "up", "--no-runner")
    assert up.code == 8 and said.line in up.err
    try:
        detached = command(home, "up", "--detach", "--no-runner", "--accept-loss")
        assert detached.code == 0, detached.err
        with closing(daemon.client()) as client:
            jobs = Jobs(client)
            assert jobs.sql("SELECT name FROM jobs") == [("kept",)]
            ((reason,),) = jobs.sql("SELECT reason FROM events WHERE kind = 'loss.accepted'")
            assert str(reason) in said.line
            assert jobs.submit("new", "true") > lost
    finally:
        command(home, "down")
    daemon.start()
    assert daemon.stop() == 0


@pytest.mark.slow
def test_a_restored_backup_says_what_it_lacks_and_gives_no_number_twice(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_daemon()
    with closing(daemon.client()) as client:
        Jobs(client).submit("in-it", "true")
        backup = client.post("/v1/backup", {})["path"]
        later = [Jobs(client).submit(f"later-{n}", "true") for n in range(3)]
        ((last,),) = Jobs(client).sql("SELECT max(seq) FROM events")
    assert daemon.stop() == 0
    shutil.copyfile(backup, home.database)  # as docs/operations.md says
    assert re.search(r"\d+ commits, acknowledged from .* are not in it: .* older copy", refused(home).line)
    assert "--accept-loss" not in daemon.command
    daemon.command.append("--accept-loss")
    with closing(daemon.start()) as client:
        jobs = Jobs(client)
        assert jobs.submit("new", "true") > max(later)
        ((first,),) = jobs.sql("SELECT min(seq) FROM events WHERE kind = 'loss.accepted'")
        assert first > last
    assert daemon.stop() == 0
    daemon.command.remove("--accept-loss")
    daemon.start()
    assert daemon.stop() == 0


WRITER = """
import sys
from pathlib import Path
from stoker.engine.store.store import Store
from stoker.engine.jobs.notes import Note, note
store = Store.open(Path(sys.argv[1]))
while True:
    store.write(note, Note("test", "test", "x" * 100))
    print(store.commits, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_is_no_false_alarm(database: Path) -> None:
    total = 0
    for acknowledged in (1, 7, 30, 80):
        argv = [sys.executable, "-c", WRITER, str(database)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            while int(writer.stdout.readline()) < acknowledged:
                pass
            writer.kill()
            said = int((writer.stdout.read().split() or [acknowledged])[-1])
        store = Store.open(database)
        with store.read() as con:
            ((there,),) = con.execute("SELECT count(*) FROM events WHERE kind = 'test'").fetchall()
        store.close()
        assert total + said <= there <= total + said + 1
        total = there
