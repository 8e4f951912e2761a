"""Hook commands: run on events, never in the way of anything; what fails is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .config import Hook
from .states import FINAL
from .store.store import Committed, Store
from .workflow.settings import Note, note

_KINDS = {"job.deadline-at-risk": "deadline-at-risk", "task.error": "task-error", "task.stuck": "task-error"}


def event_name(event: Mapping[str, Any]) -> str | None:
    """The name under which hooks know an event, None: none of theirs."""
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

    def committed(self, commit: Committed) -> None:
        for event in commit.events:
            name = event_name(event)
            for hook in self._hooks if name else ():
                if name in hook.on:
                    self._pool.submit(self._run, hook, name, event)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

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
        try:
            _, said = child.communicate(content, timeout=hook.timeout)
            if child.returncode == 0:
                return
            words = f"exit code {child.returncode}: {said.decode(errors='replace').strip()[-300:]}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with all that it has started
            child.communicate()
            words = f"did not end within {hook.timeout:.0f} s and was killed"
        self._store.write(note, Note("hook.failed", "daemon", f"{hook.command}: {words}", job=job))
