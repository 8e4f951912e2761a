"""Asks a worker for the plan of a swapped training: by a short job if a daemon answers, else by a child process on this machine's CPU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....client.following import follow, where_to_look
from ...errors import StokerError, Unreachable, UsageError
from ...jobs.states import FINAL
from ..command import App
from ..jobref import job_path
from ..output import note

if TYPE_CHECKING:
    from ...spec.model import JobSpec

RECIPE, MARK = "swap-plan", "stoker-swap-plan "  #: the internal recipe, and the prefix of the line with its plan (runners/swap/planning.py)

Post = Callable[..., dict[str, Any]]  #: submits jobs (`submit.post_jobs`)


def planned(app: App, job: JobSpec, cap: int, accumulate: int, here: bool, post: Post) -> dict[str, Any]:
    """The plan of a job under ``cap`` bytes; ``accumulate`` 0: choose the batches; ``here``: in a child process in any case."""
    asked = _request(job, cap, accumulate)
    return _by_child(asked, job) if here or not _daemon_answers(app) else _by_job(app, asked, post)


def with_batches_chosen(app: App, jobs: list[JobSpec], here: bool, post: Post) -> list[JobSpec]:
    """The jobs with a number in place of ``memory: {accumulate: auto}``, chosen once for all with equal work."""
    import msgspec

    found: dict[tuple[str, int | None], int] = {}
    chosen = []
    for job in jobs:
        memory = job.memory
        if memory is None or memory.accumulate != "auto":
            chosen.append(job)
            continue
        assert memory.cap is not None  # as the reading of the job has checked
        alike = job.pool, job.signature
        if alike not in found:
            note(f"{job.name}: memory.accumulate: auto; measuring how many batches hide the loading")
            found[alike] = planned(app, job, memory.cap, 0, here, post)["accumulate"]
        note(f"{job.name}: memory.accumulate: {found[alike]}")
        chosen.append(msgspec.structs.replace(job, memory=msgspec.structs.replace(memory, accumulate=found[alike])))
    return chosen


def _request(job: JobSpec, cap: int, accumulate: int) -> JobSpec:
    import msgspec

    from ...spec.model import JobSpec
    from ...spec.names import clean

    params = {"job": msgspec.to_builtins(job), "cap": cap, "accumulate": accumulate or None}
    return JobSpec(
        name=clean(f"plan-of-{job.name}"), pool=job.pool, user=job.user, recipe=RECIPE, params=params,
        env=job.env, env_file=job.env_file, workdir=job.workdir, timeout=1800.0,
    )  # fmt: skip


def _daemon_answers(app: App) -> bool:
    try:
        app.client.get("/v1/status")
    except Unreachable:
        if app.client.url:
            raise
        note("no daemon answers: measuring here, on the CPU")
        return False
    return True


# ---- without a daemon ----


def _by_child(asked: JobSpec, job: JobSpec) -> dict[str, Any]:
    """The plan, by a worker started as by a runner, with one thread and no GPU."""
    import msgspec

    with tempfile.TemporaryDirectory(prefix="stoker-plan-") as folder:
        assignment = {"lease": 0, "job": 0, "attempt": 1, "spec": msgspec.to_builtins(asked), "gpus": [], "world_size": 1}
        (Path(folder) / "assignment.json").write_bytes(msgspec.json.encode(assignment))
        ours = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        env = {**ours, **job.env, "STOKER_RUN_DIR": folder, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-P", "-m", "stoker.runners.worker.worker"]
        with subprocess.Popen(argv, cwd=job.workdir, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None and child.stderr is not None
                found, _ = _plan_among(child.stdout)
                said = child.stderr.read()
                code = child.wait()
            except BaseException:
                child.terminate()
                raise
    if found is None or code:
        raise _failed(said, code)
    return found


def _plan_among(lines: Iterable[str]) -> tuple[dict[str, Any] | None, str]:
    """The plan in a worker's output, and its complaint; other lines are shown as progress."""
    found, said = None, ""
    for line in lines:
        if line.startswith(MARK):
            found = json.loads(line.removeprefix(MARK))
        elif line.startswith("stoker: "):
            said = line
        elif line.strip():
            note(line.strip())
    return found, said


def _failed(said: str, code: int) -> StokerError:
    """The worker's complaint, its last line, with the exit code of its kind."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), f"the worker ended with exit code {code} and said nothing")
    kind: Callable[[str], StokerError] = UsageError if code == UsageError.exit_code else StokerError
    return kind(last.removeprefix("stoker: "))


# ---- with a daemon ----


def _by_job(app: App, asked: JobSpec, post: Post) -> dict[str, Any]:
    """The plan, by a job in the pool."""
    number = post(app, [asked], dry_run=False, with_snapshot=False)["jobs"][0]["id"]
    note(f"job {number} measures the model; --here would do it on this machine's CPU")
    try:
        found, said = _plan_among(_lines(written.text for written in follow(app.client, str(number))))
        row = app.client.get(job_path(str(number)))["job"]
    except KeyboardInterrupt:
        with contextlib.suppress(StokerError):
            app.client.post(job_path(str(number), "cancel"))
        raise
    if found is None or row["state"] != "completed":
        why = row["state_reason"] if row["state"] in FINAL else ""
        raise _failed(said or f"job {number} made no plan: {why or row['state']}{where_to_look(row)}", row["exit_code"] or 1)
    return found


def _lines(texts: Iterator[str]) -> Iterator[str]:
    left = ""
    for text in texts:
        *whole, left = (left + text).split("\n")
        yield from whole
    if left:
        yield left
