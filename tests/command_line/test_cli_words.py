"""What commands say where it once was not true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stoker.engine.cli.command import App
from stoker.engine.cli.main import run


class Daemon:
    """Answers every request with the same."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def get(self, _path: str, **_query: Any) -> dict[str, Any]:
        return self.answer

    def post(self, _path: str, _body: dict[str, Any]) -> dict[str, Any]:
        return self.answer


def answering(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> None:
    monkeypatch.setattr(App, "client", Daemon(answer))


def test_a_drain_now_does_not_say_that_jobs_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch)
    assert run(["drain", "n1"]) == run(["drain", "n1", "--now"]) == 0
    calm, now = capsys.readouterr().out.splitlines()
    assert "go on to their end" in calm
    assert "queued again" in now and "go on" not in now


@pytest.mark.parametrize("done", [False, True])
def test_a_job_that_has_ended_has_not_written_nothing_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: bool
) -> None:
    answering(monkeypatch, text="", done=done, lease=1, leases=[])
    assert run(["logs", "17"]) == 0
    assert capsys.readouterr().err.strip().endswith("nothing" if done else "nothing yet")


def test_a_wrong_option_of_the_unit_is_explained_by_a_command_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "--no-such-option"]) == 2
    assert "see 'stoker up --help'" in capsys.readouterr().err


def test_a_directory_given_as_env_file_is_not_called_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["submit", "--env-file", str(tmp_path), "--", "true"]) == 2
    assert "is not a file" in capsys.readouterr().err
