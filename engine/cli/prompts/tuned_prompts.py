"""Prompts tuned by jobs: their place on this host, and their way into the bank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Conflict, NotFound, StokerError, UsageError
from ...home import Home
from ...jobs.states import FINAL
from ..command import App
from ..jobref import job_path
from .prompt_checks import require_llm
from .prompt_work import answers, put


def tuned_folder(home: Home, job: int) -> Path:
    """The folder of a job's tuned prompt on this host (`runners.prompts.adapter_file`)."""
    return home.path / "jobs" / str(job) / "checkpoints" / "prompt"


def what_was_tuned(folder: Path) -> dict[str, Any] | None:
    """The description of the tuned prompt in a folder; None: there is none."""
    try:
        about: dict[str, Any] = json.loads((folder / "prompt.json").read_bytes())
    except (OSError, ValueError):
        return None
    return about


@dataclass(frozen=True, slots=True)
class _Tuned:
    job: int
    text: str
    task: str | None
    llm: str
    folder: Path


def store_tuned(app: App, jobs: Sequence[str], task: str | None, here: bool) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Add the tuned prompts of these jobs, with their vectors, to the bank of their LLM; returns the bank, the added and the replaced.

    ``task``: their task; None: the data of each job.
    """
    found = [_find(app, job, task) for job in dict.fromkeys(jobs)]
    if other := next((one for one in found if one.llm != found[0].llm), None):
        raise UsageError(f"--job: job {found[0].job} tuned for {found[0].llm} and job {other.job} for {other.llm}: add them apart")
    llm, _ = require_llm(found[0].llm)
    request = {"work": "tuned", "llm": llm, "folders": [str(one.folder) for one in found]}
    told: dict[str, Any] = {"added": 0, "replaced": []}
    which: Mapping[str, str] | None = None
    rows = iter(found)
    with answers(app, request, job=not here) as given:
        for answer in given:
            if "bank" in answer:
                which = answer["bank"]
                continue
            row = next(rows)
            put(app, which, [{"text": row.text, "source": f"job {row.job}", "task": row.task, **answer}], told)
    if which is None:
        raise StokerError("the work on the bank has ended without an answer; see the log of its job")
    return which, told


def _find(app: App, job: str, task: str | None) -> _Tuned:
    from ...prompts.stored_prompts import LONGEST_TEXT

    row = app.client.get(job_path(job))["job"]
    folder = tuned_folder(app.home, row["id"])
    about = what_was_tuned(folder)
    if about is None:
        if row["state"] not in FINAL:
            raise Conflict(f"--job: job {row['id']} is {row['state']}; it leaves its tuned prompt when it has ended")
        raise NotFound(f"--job: job {row['id']} ({row['state']}) has left no tuned prompt on this host, in {folder}")
    ending = f" [tuned by job {row['id']}]"  # two tunings may have the same nearest tokens, and a bank has a text once
    params = row["spec"].get("params", {})
    data, backbone = params.get("data"), params.get("backbone") or row["spec"].get("backbone") or ""
    named = task if task is not None else data and Path(data).name[:200]
    text = about["nearest_tokens"].replace("\0", "")[: LONGEST_TEXT - len(ending)] + ending
    llm = backbone if "/" in backbone else about["llm"].partition("@")[0]  # of a directory that is the last part alone
    return _Tuned(row["id"], text, named, llm, folder)
