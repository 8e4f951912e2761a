"""A daemon that is killed in the middle: of a submission, of `wait`, of `logs(follow=True)`. Nothing is submitted or read twice."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from stoker import client
from stoker.client import following
from stoker.engine.home import Home
from waiting import patient

pytestmark = pytest.mark.xdist_group("client-away")


def whole_message(connection: socket.socket) -> bytes:
    """A request or an answer with all of its body."""
    read = b""
    while (found := re.search(rb"content-length: (\d+)", read, re.IGNORECASE)) is None or b"\r\n\r\n" not in read:
        read += connection.recv(1 << 16)
    while len(read) < read.index(b"\r\n\r\n") + 4 + int(found[1]):
        read += connection.recv(1 << 16)
    return read


def lossy(home: Home, lost: int) -> tuple[Path, threading.Thread]:
    """Home with a socket that hands requests on to a daemon, and loses the first ``lost`` answers."""
    there = home.path / "elsewhere"
    there.mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(there / "stoker.sock"))
    server.listen()

    def serve() -> None:
        with server:
            for number in range(lost + 1):
                connection, _ = server.accept()
                with connection, socket.socket(socket.AF_UNIX) as daemon:
                    daemon.connect(str(home.socket))
                    daemon.sendall(whole_message(connection))
                    answer = whole_message(daemon)
                    if number == lost:
                        connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return there, thread


def test_a_submission_whose_answer_is_lost_is_sent_again_and_taken_once(start_daemon, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    start_daemon()
    monkeypatch.setattr(following, "POLL", 0.05)
    there, thread = lossy(home, lost=2)
    with client.Client(home=there) as away:
        job = away.submit(command="true", hold=True, name="lost")
    thread.join(10)
    with client.Client(home=home.path) as direct:
        assert [one.id for one in direct.jobs(name="lost")] == job.ids and job.existing


def test_who_waits_and_follows_does_so_over_a_restart(start_daemon, start_runner, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL", 0.1)
    daemon = start_daemon()
    start_runner()
    with client.Client(home=home.path) as connected:
        flag = home.path / "go"
        job = connected.submit(
            command=f"for n in 1 2 3; do echo line $n; done; while [ ! -e {flag} ]; do sleep 0.05; done; echo end", name="talks"
        )
        lines = job.logs(follow=True)
        assert [next(lines) for _ in range(3)] == ["line 1", "line 2", "line 3"]
        daemon.kill()
        starting = threading.Timer(0.5, daemon.start)
        starting.start()
        flag.touch()
        assert list(lines) == ["end"] and job.wait(60).state == "completed"
        starting.join()


def test_a_timeout_holds_for_a_daemon_that_is_away_too(start_daemon, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL", 0.05)
    daemon = start_daemon()
    with client.Client(home=home.path) as connected, connected.apart() as requests:
        job = connected.submit(command="true", hold=True)
        began = time.monotonic()
        for wait in (job.wait, lambda timeout: list(following.until_ended(requests, [job.id], timeout))):
            killing = threading.Timer(0.3, daemon.kill)
            killing.start()
            with pytest.raises(client.Unreachable):
                wait(timeout=1.5)
            killing.join()
            daemon.start()
        assert time.monotonic() - began < patient(30)


def test_a_daemon_that_stays_away_is_one_exception(start_daemon, home: Home) -> None:
    daemon = start_daemon()
    with client.Client(home=home.path, patience=0.2) as connected:
        job = connected.submit(command="true", hold=True)
        daemon.kill()
        with pytest.raises(client.Unreachable, match="where 'stoker up' runs, wait some seconds for the next one, else start it with"):
            job.wait()
        with pytest.raises(client.Unreachable, match="start it with"):
            connected.submit(command="true")
        assert repr(job).startswith(f"<job {job.id} true: no daemon answers") and json.dumps(job.ids)
