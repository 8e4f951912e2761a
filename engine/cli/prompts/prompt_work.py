"""Work that needs the LLM, for the command line, which imports no torch: by a short job, or by a child process if no runner can take it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from ...errors import StokerError, Unreachable
from ...jobs.states import FINAL
from ..command import App
from ..jobref import job_path
from ..output import note

WORKER = [sys.executable, "-m", "stoker.runners.prompts.bank_work"]  #: and the folder of the work
POLL = 0.2  #: seconds between looks at the answers
WORK_KEPT_SECONDS = 7 * 86_400.0  #: seconds after which a work's folder counts as abandoned
SLOW_POLL = 1.0  #: and at the state of the job


class _Work(Protocol):
    def ended(self) -> StokerError | bool:
        """False while it runs, True after a good end, else the error."""

    def leave(self, done: bool) -> None:
        """Let it end by itself if it is done, else end it."""


@contextlib.contextmanager
def answers(app: App, request: Mapping[str, Any], *, job: bool) -> Iterator[Iterator[Mapping[str, Any]]]:
    """Start the work; yields its answers as they come. Leaving the block ends it.

    ``request``: see `runners.prompts.bank_work`. ``job``: whether it may be one: a daemon answers, and no option forbids it.
    """
    folder = app.home.create().prompts / "work" / uuid.uuid4().hex
    _remove_left(folder.parent)
    folder.mkdir(parents=True, mode=0o700)
    as_job = job and _has_runner(app)
    parent = None if as_job else os.getpid()
    (folder / "request.json").write_text(json.dumps({**request, "home": str(app.home.path), "parent": parent}))
    argv = [*WORKER, str(folder)]
    work: _Work | None = None
    done = threading.Event()
    try:
        work = _Job(app, argv, str(request["llm"])) if as_job else _Child(argv)
        yield _follow(folder / "answer.jsonl", work.ended, done)
    finally:
        if work is not None:
            work.leave(done.is_set())
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(works: Path) -> None:
    """Folders of commands that were killed."""
    for folder in works.glob("*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - WORK_KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _follow(path: Path, ended: Callable[[], StokerError | bool], done: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Lines of the file until the one that says it is done, which is noted. An error is raised after the answers before it."""
    place = 0
    while True:
        over = ended()
        if path.exists():
            with path.open("rb") as file:
                file.seek(place)
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            place += len(whole)
            for line in whole.splitlines():
                answer = json.loads(line)
                if answer.get("done"):
                    done.set()
                    return
                yield answer
        if isinstance(over, StokerError):
            raise over
        if over:
            raise StokerError("the work on the bank has ended without an answer; stored prompts are kept: start the command again")
        time.sleep(POLL)


def _has_runner(app: App) -> bool:
    """Whether a runner of this home is up and has GPUs: it sees the same files."""
    if app.client.url:
        return False
    runners = app.client.get("/v1/runners")["runners"]
    return any(row["state"] == "up" and row["gpus"] and app.home.is_locked_by(row["id"], row["pid"]) for row in runners)


class _Child:
    """A process of this command, on the CPU."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def ended(self) -> StokerError | bool:
        code = self._process.poll()
        if not code:
            return code == 0
        said = [line for line in (self._process.stderr.read() if self._process.stderr else "").splitlines() if line.strip()]
        killed = "the process was killed, as where the host has no memory left; start the command again"
        silent = killed if code == -signal.SIGKILL else f"the process has ended with {code}"
        error = StokerError((said[-1] if said else silent).removeprefix("stoker: "))
        error.exit_code = code if 0 < code < 128 else 1  # type: ignore[misc]
        return error

    def leave(self, done: bool) -> None:
        if not done:
            self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate()


class _Job:
    """A job of one GPU, with the environment of the command."""

    def __init__(self, app: App, argv: Sequence[str], llm: str) -> None:
        self._client = app.client
        called = re.sub(r"[^A-Za-z0-9._-]+", "-", llm.rpartition("/")[2])  # the last part of a path
        job = {
            "name": f"prompt-bank-{called}"[:100],
            "kind": "prompt",
            "command": list(argv),
            "backbone": llm,
            "workdir": str(app.home.path),
        }
        told = app.client.post("/v1/jobs", {"jobs": [job], "provenance": {"argv": sys.argv, "cwd": str(Path.cwd())}})
        self.id = told["jobs"][0]["id"]
        self._state: Mapping[str, Any] = {"state": "submitted"}
        self._looked = 0.0
        note(f"job {self.id} computes it on a runner; 'stoker explain {self.id}' says why it waits")

    def ended(self) -> StokerError | bool:
        if self._state["state"] not in FINAL and time.monotonic() > self._looked + SLOW_POLL:
            self._state = self._client.get(job_path(str(self.id)))["job"]
            self._looked = time.monotonic()
        if self._state["state"] not in FINAL:
            return False
        if self._state["state"] == "completed":
            return True
        from ....client.following import where_to_look

        reason = str(self._state["state_reason"] or self._state["state"]).removeprefix("stoker: ")
        error = StokerError(f"{reason} (job {self.id}{where_to_look(self._state)})")
        if isinstance(code := self._state.get("exit_code"), int) and 0 < code < 128:
            error.exit_code = code  # type: ignore[misc]
        return error

    def leave(self, done: bool) -> None:
        if not done and not self.ended():
            with contextlib.suppress(StokerError):
                self._client.post(f"{job_path(str(self.id))}/cancel", {})


def put(app: App, bank: Mapping[str, str] | None, prompts: Sequence[Mapping[str, Any]], told: dict[str, Any]) -> None:
    """Store prompts in a bank. ``told``: the number added so far, and the replaced ones."""
    stored = app.client.post("/v1/prompts", {"bank": bank, "prompts": prompts})
    told["added"] += stored["added"]
    told["replaced"] += stored["replaced"]


here_option = click.option("--here", is_flag=True, help="Compute in a process of this command, on the CPU, also where a runner could.")


def has_daemon(app: App) -> bool:
    """Whether one answers."""
    try:
        app.client.get("/v1/status")
        return True
    except Unreachable:
        return False
