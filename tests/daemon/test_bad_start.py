"""Daemons that cannot start, and a disk that is full: one clear line, the right exit code, nothing lost."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from e2e import DaemonProcess, Jobs, command, refused, until
from small_disk import Quota, SmallDisk
from stoker.engine.errors import StoreError, UsageError
from stoker.engine.home import Home
from stoker.engine.store.store import Store

# -- Daemons that cannot start ----------------------------------------------------------------------------------------------


def test_a_corrupt_database_is_named_and_left_as_it_is(home: Home) -> None:
    Store.open(home.database).close()
    good = home.database.read_bytes()
    for bad in (b"\0" * 4096 + good[4096:], good[:5000], good[: len(good) // 2], b"no database at all\n" * 300):
        home.database.write_bytes(bad)
        with pytest.raises(StoreError, match=f"{home.database}: .* backups folder"):
            Store.open(home.database)
        assert home.database.read_bytes() == bad
    said = refused(home)
    assert said.code == 8 and str(home.database) in said.line and "backups" in said.line
    assert home.database.read_bytes() == bad


def test_a_newer_database_is_refused_and_left_as_it_is(home: Home) -> None:
    import duckdb

    Store.open(home.database).close()
    with duckdb.connect(str(home.database)) as con:
        con.execute("INSERT INTO migrations VALUES (9000, 'from_the_future', 'x', now()::TIMESTAMP)")
    said = refused(home)
    assert said.code == 8 and "upgrade stoker" in said.line
    assert "newer than this program (it has migration 9000_from_the_future" in said.line
    with duckdb.connect(str(home.database)) as con:
        assert con.execute("SELECT max(number) FROM migrations").fetchall() == [(9000,)]


def test_a_second_daemon_is_refused(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    first = start_daemon()
    said = refused(home)
    assert said.code == 4 and f"a daemon is already running here (pid {first.pid})" in said.line
    with tempfile.TemporaryDirectory(prefix="stoker-") as other:  # another home, the same file
        Home(Path(other)).database.symlink_to(home.database)
        said = refused(Home(Path(other)))
        assert said.code == 8 and "held by another process" in said.line
    with closing(first.client()) as client:
        assert Jobs(client).submit("it-goes-on", "true") == 1


def test_a_socket_in_use_is_not_taken_away(home: Home) -> None:
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(str(home.socket))
        holder.listen()
        said = refused(home)
        assert said.code == 4 and "something answers on this socket" in said.line
        assert home.socket.exists()
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        said = refused(home, "--tcp", address)
        assert said.code == 4 and f"--tcp {address}: Address already in use" in said.line


def test_an_address_of_another_host_is_refused_before_a_database_is_made(home: Home) -> None:
    said = refused(home, "--tcp", "192.0.2.1:7465")
    assert said.code == 2 and "--tcp 192.0.2.1:7465: " in said.line and not home.database.exists()


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", ":99", "127.0.0.1:port", "127.0.0.1:70000"])
@pytest.mark.sampled(2)
def test_addresses_that_are_none(home: Home, address: str) -> None:
    said = refused(home, "--tcp", address)
    assert said.code == 2 and "--tcp" in said.line and "HOST:PORT" in said.line


@pytest.mark.slow
def test_a_home_that_cannot_be(home: Home) -> None:
    (home.path / "file").write_text("")
    for path, code, words in (
        (home.path / "file", 2, "is not a directory"),
        (home.path / "file" / "below", 2, "cannot be made"),
        (home.path / ("long" * 30), 2, "too long for a Unix socket"),
    ):
        said = refused(Home(path))
        assert said.code == code and words in said.line, said


CONFIGS = {
    "an unknown section": ("[polcy]\n", "unknown field `polcy` (did you mean 'policy'?)"),
    "an unknown key": ("[guards]\nmin_runtime = 5\n", "(did you mean 'min_run_time'?)"),
    "a wrong type": ('[guards]\nmax_preemptions = "ten"\n', "got `str` - at `$.guards.max_preemptions`"),
    "a negative time": ("[guards]\ncooldown = -1\n", ">= 0.0 - at `$.guards.cooldown`"),
    "not a number": ("[policy]\ninterval = nan\n", "$.policy.interval"),
    "for ever": ("[retention]\nevents = inf\n", "$.retention.events"),
    "no policy": ('[policy]\nname = "prioritty"\n', "no policy is named 'prioritty'; did you mean 'priority'?"),
    "no size": ('[limits]\nmemory = "lots"\n', "a size such as 2GiB - at `$.limits.memory`"),
    "no cron": ('[backup]\ncron = "every night"\n', "backup.cron: must be five fields"),
    "no event": ('[[hooks]]\non = ["finished"]\ncommand = "true"\n', "hooks.on: 'finished' is not one of"),
    "no command": ('[[hooks]]\non = ["failed"]\n', "missing required field `command`"),
    "no TOML": ("= [\n", "line 1"),
    "no text": ("\udc81\udcff", "utf-8"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configurations(home: Home, case: str) -> None:
    """In this process: what the daemon does with the error is tested above, and each start takes a second."""
    from stoker.engine.config import load

    text, words = CONFIGS[case]
    home.config.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as error:
        load(home)
    assert str(error.value).startswith(str(home.config)) and words in str(error.value) and "\n" not in str(error.value)


def test_a_bad_configuration_stops_the_daemon_before_it_touches_anything(home: Home) -> None:
    home.config.write_text("[polcy]\n")
    said = refused(home)
    assert said.code == 2 and "config.toml" in said.line
    assert not home.database.exists()


@pytest.mark.slow
def test_a_policy_whose_module_has_gone_does_not_keep_the_daemon_from_starting(
    home: Home, start_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    (tmp_path / "foreign.py").write_text("from stoker.policies.fifo import Fifo as Mine\n")
    daemon = start_daemon(env={"PYTHONPATH": str(tmp_path)})
    with closing(daemon.client()) as client:
        client.post("/v1/policy", {"policy": "foreign:Mine", "interval": 0.05})
        assert Jobs(client).submit("kept", "true")
    assert daemon.stop() == 0
    daemon = start_daemon()
    with closing(daemon.client()) as client:
        jobs = Jobs(client)
        query = "SELECT outcome FROM decisions WHERE error LIKE '%cannot import ''foreign''%put it on PYTHONPATH%'"
        assert until(lambda: jobs.sql(query)) == [("error",)]
        client.post("/v1/policy", {"policy": "fifo"})
        until(lambda: jobs.waits("kept") == "no-gpus")
    assert daemon.stop() == 0


# -- A full disk -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk(home: Home, disk: SmallDisk | Quota, tmp_path: Path) -> None:
    """Writes are refused in words, reads go on; with space again so do writes, and nothing that was acknowledged is lost."""
    daemon = DaemonProcess(home)
    daemon.log = tmp_path / "daemon.log"
    client = daemon.start()
    jobs = Jobs(client)
    size = "x" * 20_000
    acknowledged = {jobs.submit(f"before-{n}", "echo", size) for n in range(3)}
    until(lambda: jobs.waits("before-2") == "no-gpus")
    jobs.sql("SELECT 1")  # the copy that SQL is asked of has been made
    disk.fill(daemon.pid, leaving=10_000)
    for number in range(5):
        with pytest.raises(StoreError, match="nothing that was acknowledged is lost") as full:
            jobs.submit(f"refused-{number}", "echo", size)
        assert "\n" not in str(full.value)
    said = command(home, "submit", "--name", "refused", "--", "echo", size)
    assert (said.code == 8 and "free some space" in said.line) or "raise the limit" in said.line
    assert {row[0] for row in jobs.sql("SELECT id FROM jobs")} == acknowledged
    assert daemon.process is not None and daemon.process.poll() is None
    disk.free(daemon.pid)
    acknowledged.add(jobs.submit("after", "echo", size))
    assert until(lambda: jobs.waits("after")) == "no-gpus", "what could not be written while it was full is written now"
    assert {row[0] for row in jobs.sql("SELECT id FROM jobs")} == acknowledged
    # A stop while it is full loses nothing either, nor does a start that cannot be.
    disk.fill(daemon.pid, leaving=10_000)
    client.close()
    assert daemon.stop() == 0
    if isinstance(disk, SmallDisk):
        (home.path / "reserve").unlink()  # with it the daemon would start
        disk.fill(0)  # the copy that SQL was asked of went with the daemon
        said = refused(home)
        assert said.code == 8 and "the disk is full" in said.line
    disk_free = disk.ballast.unlink if isinstance(disk, SmallDisk) else lambda: None
    disk_free()
    client = daemon.start()
    assert {row[0] for row in Jobs(client).sql("SELECT id FROM jobs")} == acknowledged
    client.close()
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.said()
