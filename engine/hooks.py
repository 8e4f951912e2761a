"""Hook commands: run on events, and nothing waits for them; failures are recorded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .config import Hook
from .jobs.notes import Note, note
from .jobs.states import FINAL
from .store.store import Committed, Store

RECORD_WITHIN = 0.3  #: seconds to record that a hook was killed
_KINDS = {
    "job.deadline-at-risk": "deadline-at-risk", "policy.error": "policy-error", "task.error": "task-error", "task.stuck": "task-error",
    "disk.low": "disk-low", "disk.full": "disk-low",
}  # fmt: skip


def event_name(event: Mapping[str, Any]) -> str | None:
    """The name of an event for hooks, None: hooks are not run on it."""
    if event["kind"] == "job.state" and event["after"] in FINAL:
        return str(event["after"])
    if event["kind"] == "node.state" and event["after"] == "suspect":
        return "runner-suspect"
    return _KINDS.get(event["kind"])


class Hooks:
    def __init__(self, store: Store, hooks: Sequence[Hook]) -> None:
        self._store = store
        self._hooks = hooks
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="hook")
        self._begun: dict[subprocess.Popen[bytes], None] = {}
        self._ending = False

    def committed(self, commit: Committed) -> None:
        for event in commit.events:
            name = event_name(event)
            for hook in self._hooks if name else ():
                if name in hook.on:
                    self._pool.submit(self._run, hook, name, event)

    def close(self, until: float | None = None) -> None:
        """Start no more hooks; those that run at ``until`` (monotonic time) are killed, which is recorded. None: wait for all."""
        self._pool.shutdown(wait=until is None, cancel_futures=True)
        if until is None:
            return
        while self._begun and time.monotonic() < until:
            time.sleep(0.01)
        self._ending = True
        for child in list(self._begun):
            _kill(child)
        while self._begun and time.monotonic() < until + RECORD_WITHIN:
            time.sleep(0.01)

    def _run(self, hook: Hook, name: str, event: Mapping[str, Any]) -> None:
        job = event["job_id"]
        names = self._store.rows("api/job_name", job) if job is not None else []
        facts = {
            "STOKER_EVENT": name,
            "STOKER_JOB_ID": "" if job is None else str(job),
            "STOKER_JOB_NAME": names[0][0] if names else "",
            "STOKER_REASON": event["reason"] or "",
        }
        content = json.dumps({**event, "event": name, "job_name": facts["STOKER_JOB_NAME"]}, default=str).encode()
        child = subprocess.Popen(
            hook.command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, **facts}, start_new_session=True,
        )  # fmt: skip
        self._begun[child] = None
        try:
            if words := self._failure(child, content, hook.timeout):
                self._store.write(note, Note("hook.failed", "daemon", f"{hook.command}: {words}", job=job))
        finally:
            del self._begun[child]

    def _failure(self, child: subprocess.Popen[bytes], content: bytes, timeout: float) -> str | None:
        """Wait for a hook to end; why it failed, None: it did not."""
        try:
            _, said = child.communicate(content, timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(child)
            child.wait()
            return f"did not end within {timeout:.0f} s and was killed"
        if child.returncode == -signal.SIGKILL and self._ending:
            return "was killed, for the daemon had to end"
        return f"exit code {child.returncode}: {said.decode(errors='replace').strip()[-300:]}" if child.returncode else None


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a hook with all processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
