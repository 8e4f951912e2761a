"""One daemon with a runner of two slots for the tests of the client and of the commands over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e import DaemonProcess, RunnerProcess, daemon_apart
from stoker import client
from stoker.engine.cli.main import run

Stoker = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def live(template: Path) -> Iterator[DaemonProcess]:
    with daemon_apart(template) as daemon:
        runner = RunnerProcess(daemon.home)
        try:
            runner.start(daemon.client())
            yield daemon
        finally:
            runner.end()


@pytest.fixture
def stoker(live: DaemonProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stoker:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["--home", str(live.home.path), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def connected(live: DaemonProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A directory to submit from, where `stoker.client` finds the daemon as people's does: by STOKER_HOME."""
    monkeypatch.setenv("STOKER_HOME", str(live.home.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    client._default.close()
