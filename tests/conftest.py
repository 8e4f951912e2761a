"""Fixtures: a store on a real file, and a real daemon process with a home of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stoker.engine.client import Client
from stoker.engine.home import Home
from stoker.engine.store.store import Store


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of the person who runs it."""
    for name in list(os.environ):
        if name.startswith("STOKER_") and name != "STOKER_CACHE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty home with a path short enough for a Unix socket."""
    path = Path(tempfile.mkdtemp(prefix="stoker-"))
    yield Home(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    opened = Store.open(home.database, backups=home.backups)
    yield opened
    opened.close()


class DaemonProcess:
    """A daemon in a process of its own; `kill` is kill -9."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.home = home
        self.arguments = arguments
        self.log = home.path / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Client:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "stoker.engine.daemon", "--home", str(self.home.path), *self.arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        client = self.client()
        try:
            client.wait_until_up(30)
        except Exception:
            raise AssertionError(f"the daemon did not come up:\n{self.log.read_text()[-3000:]}") from None
        return client

    def client(self) -> Client:
        return Client(self.home, url="", token="")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@pytest.fixture
def start_daemon(home: Home) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons of the test's home; what is left of them is ended after the test."""
    started: list[DaemonProcess] = []

    def start(*arguments: str) -> DaemonProcess:
        daemon = DaemonProcess(home, *arguments)
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        if daemon.process is not None and daemon.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait()
