"""The state directory of one Stoker: where the database, the socket, logs and backups are."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self, overload

from .errors import UsageError

ENV_HOME = "STOKER_HOME"
ENV_KEPT = "STOKER_KEPT"  #: in the environment of what `up` starts: the lock file that it is to hold
ENV_IMPORTING = "STOKER_IMPORTING"  #: number of the job whose worker is importing its script: nothing may be submitted meanwhile


class _Place:
    """The path of this name in a home."""

    def __init__(self, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, home: None, _: object) -> Self: ...
    @overload
    def __get__(self, home: Home, _: object) -> Path: ...
    def __get__(self, home: Home | None, _: object) -> Self | Path:
        return self if home is None else home.path / self._name


@dataclass(frozen=True, slots=True)
class Home:
    """``$STOKER_HOME``, by default ``$XDG_STATE_HOME/stoker`` or ``~/.local/state/stoker``."""

    path: Path

    database = _Place("stoker.duckdb")
    socket = _Place("stoker.sock")
    config = _Place("config.toml")
    logs = _Place("logs")
    backups = _Place("backups")
    daemon_lock = _Place("daemon.lock")  #: held by the daemon as long as it lives; begins with its pid
    tls = _Place("tls")  #: the authority that this home trusts over TLS (ca.pem), and its daemon's certificate
    archive = _Place("archive")  #: Parquet files of exported events and metrics
    scratch = _Place("scratch")  #: where the database makes files that are sent on, such as Parquet answers
    snapshots = _Place("snapshots")  #: copied trees of `submit --snapshot`
    prompts = _Place("prompts")  #: files of prompt banks, and of the work on them that is under way

    def __post_init__(self) -> None:
        if "\n" in str(self.path) or "\r" in str(self.path):
            raise UsageError(f"{str(self.path)!r}: a home cannot have a line break in its name; choose another with --home or {ENV_HOME}")

    @classmethod
    def default(cls) -> Home:
        if given := os.environ.get(ENV_HOME):
            return cls(Path(given).expanduser().absolute())
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls(Path(state) / "stoker")

    def create(self) -> Home:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except FileExistsError:
            raise UsageError(f"{self.path}: is not a directory; choose another home with --home or {ENV_HOME}") from None
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be made ({error.strerror}); choose another home with --home or {ENV_HOME}") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UsageError(f"{self.path}: cannot be written (not yours, or read-only); choose another home with --home or {ENV_HOME}")
        return self

    def bank(self, llm: str, revision: str, tokenizer: str) -> Path:
        """File of a prompt bank that the daemon writes and workers read."""
        return self.prompts / f"{llm}@{revision}" / tokenizer / "bank.npz"

    def runner_lock(self, node: str) -> Path:
        """The lock file that the agent of a runner holds as long as it lives; it contains the agent's pid."""
        return self.path / "runners" / f"{node}.lock"

    def is_locked_by(self, node: str, pid: int) -> bool:
        """Whether the agent with this pid held the runner's lock last: then this is the runner's home, on whichever host."""
        try:
            return self.runner_lock(node).read_text().strip() == str(pid)
        except (OSError, ValueError):
            return False

    def used_numbers(self) -> tuple[int, int]:
        """The largest job and the largest lease that have a directory here: ``jobs/JOB/run-LEASE``, perhaps with ``.RANK``."""
        found = [
            re.search(r"/jobs/(\d+)(?:/run-(\d+))?", str(path)) for path in (*self.path.glob("jobs/*"), *self.path.glob("jobs/*/run-*"))
        ]
        matches = [match for match in found if match]
        return max((int(m[1]) for m in matches), default=0), max((int(m[2]) for m in matches if m[2]), default=0)
