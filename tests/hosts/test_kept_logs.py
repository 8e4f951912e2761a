"""The ends of logs that the daemon keeps of other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from afar import Daemon
from stoker.engine.errors import LimitExceeded, NotFound
from stoker.engine.fleet.kept_logs import MOST_KEPT_BYTES, KeptLogs
from stoker.engine.home import Home
from stoker.engine.logfile import Place, read_log
from stoker.engine.protocol import LastLog
from stoker.engine.spec.model import JobSpec
from stoker.runners.host.sent_logs import LogSender
from stoker.runners.lease.rundir import RunDir


@pytest.fixture
def there(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "far", 1, 1)
    directory.path.mkdir(parents=True)
    return directory


def end_of(directory: RunDir, daemon: Daemon) -> LastLog:
    return LogSender(None, directory.home, "h2", daemon.sessions["h2"])._end(directory)  # type: ignore[arg-type]


@pytest.fixture
def kept(daemon: Daemon, tmp_path: Path) -> KeptLogs:
    daemon.join("h2")
    daemon.grant(daemon.submit(JobSpec(name="a", command=["true"])), "h2")
    return KeptLogs(Home(tmp_path / "daemon"), daemon.store)


@pytest.mark.parametrize("former", [0, 40_000], ids=["one file", "rotated"])
@pytest.mark.parametrize("lines", [3, 30_000])
def test_a_reader_who_began_on_the_host_goes_on_where_he_was(
    daemon: Daemon, kept: KeptLogs, there: RunDir, former: int, lines: int
) -> None:
    if former:
        there.log.with_name("output.log.1").write_text("".join(f"before {i:060}\n" for i in range(former)))
    there.log.write_text("".join(f"line {i:060}\n" for i in range(lines)))
    begun = read_log(there.log, None, 2)
    with there.log.open("a") as log:
        log.write("its last words: äöü\n")
    sent = end_of(there, daemon)
    assert len(sent.data) <= MOST_KEPT_BYTES and not sent.data.startswith(b"\n")
    kept.take(sent)
    kept.take(sent)  # again, after a lost answer
    read = kept.read(1, 1, 0, begun.place, None)
    assert read is not None and read.text == "its last words: äöü\n"
    nothing = kept.read(1, 1, 0, read.place, None)
    assert nothing is not None and (nothing.text, nothing.place) == ("", read.place)
    last = kept.read(1, 1, 0, None, 2)
    assert last is not None and last.text == f"line {lines - 1:060}\nits last words: äöü\n"
    assert kept.read(1, 2, 0, None, None) is None and kept.read(1, 1, 1, Place("", 0), None) is None


def test_what_a_runner_has_no_business_with_is_refused(daemon: Daemon, kept: KeptLogs, there: RunDir) -> None:
    sent = LastLog(node="h2", session=daemon.sessions["h2"], job=1, lease=1, data=b"x")
    for wrong in ({"node": "h3"}, {"lease": 2}, {"job": 2}):
        with pytest.raises(NotFound, match="had no part on runner"):
            kept.take(LastLog(**{"node": "h2", "session": 1, "job": 1, "lease": 1, "data": b"x"} | wrong))
    with pytest.raises(LimitExceeded):
        kept.take(LastLog(node="h2", session=1, job=1, lease=1, data=b"x" * (MOST_KEPT_BYTES + 1)))
    assert not (kept.home.path / "kept-logs").exists()
    there.log.symlink_to("/etc/passwd")  # a job owns its directory
    assert end_of(there, daemon).data == b"" and sent.data == b"x"
