"""`stoker swap`: what training in less memory than the model needs would look like, before anything is trained."""

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

import click

from .. import format as fmt
from ..errors import StokerError, Unreachable, UsageError
from ..jobs.states import FINAL
from .command import App, Group, examples, pass_app
from .jobref import job_path
from .logs import follow
from .output import Answer, Column, Row, json_option, note, print_facts, print_table, section, write
from .swap_drawing import draw

if TYPE_CHECKING:
    from ..spec.model import JobSpec

    Whole = click.ParamType[int]
else:  # not generic before click 8.4
    Whole = click.ParamType

RECIPE, MARK = "swap-plan", "stoker-swap-plan "  #: the internal recipe, and what begins the line with its plan (runners/swap/planning.py)


class Size(Whole):
    """A size in bytes, as in a job's file."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from ..spec.reading import units

        try:
            count = units.size(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if count == 0:
            self.fail("a cap of 0 holds nothing; give one such as 600MiB", param, ctx)
        return count


class Accumulate(Whole):
    """A number of micro-batches, or auto."""

    name = "accumulate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return 0
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a whole number nor auto", param, ctx)
        count: int = click.IntRange(1, 4096).convert(value, param, ctx)
        return count


@click.group(cls=Group)
@examples("stoker swap plan job.yaml --cap 600MiB")
def swap() -> None:
    """Swapping: train a model that is larger than the device's memory, part by part."""


@swap.command("plan")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--cap", type=Size(), metavar="SIZE", help="Device memory that the training may use (default: memory.cap of the file).")
@click.option("--accumulate", type=Accumulate(), metavar="N|auto",
              help="Batches of a step; auto: the fewest that hide the loading (default: memory.accumulate of the file, or 1).")  # fmt: skip
@click.option("--here", is_flag=True, help="Measure in a child process on this machine's CPU, also where a daemon could run it.")
@json_option
@pass_app
@examples(
    "stoker swap plan job.yaml --cap 600MiB",
    "stoker swap plan job.yaml --cap 600MiB --accumulate auto",
    "stoker swap plan job.yaml --cap 600MiB --here --json",
)
def plan(app: App, file: Path, cap: int | None, accumulate: int | None, here: bool) -> Answer:
    """Plan the training of FILE under a cap of device memory: parts, what stays, a time line, time and peak memory of a step.

    The model is measured piece by piece, on a GPU by a short job; without a daemon by a child process on the CPU, where copies are
    emulated. Nothing is trained.
    """
    job = _job(app, file)
    cap, accumulate = _memory(job, cap, accumulate)
    asked = _request(job, cap, accumulate)
    answer = _by_child(asked, job) if here or not _daemon_answers(app) else _by_job(app, asked)
    return Answer(answer, lambda: _show(answer))


def _job(app: App, file: Path) -> JobSpec:
    from .submit import read_jobs

    jobs = read_jobs(app, [file], {}, ())
    if len(jobs) != 1:
        raise UsageError(f"{file}: describes {len(jobs)} jobs; a plan is of one")
    job: JobSpec = jobs[0]
    if job.command is not None:
        raise UsageError(f"{file}: a command's model is not known; a plan is for a recipe or an entrypoint")
    return job


def _memory(job: JobSpec, cap: int | None, accumulate: int | None) -> tuple[int, int]:
    """Cap and batches of a step (0: to be chosen), of the options or else of the job."""
    block = getattr(job, "memory", None)
    if cap is None:
        cap = getattr(block, "cap", None)
    if cap is None:
        raise UsageError("memory.cap: the job has none; say how much device memory it may use, such as --cap 600MiB")
    if accumulate is None:
        given = getattr(block, "accumulate", 1)
        accumulate = given if isinstance(given, int) else 0
    return cap, accumulate


def _request(job: JobSpec, cap: int, accumulate: int) -> JobSpec:
    import msgspec

    from ..spec.model import JobSpec
    from ..spec.names import clean

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
    """The plan, by a worker that is started for it as a runner would, with one thread and no GPU."""
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
    """The plan in a worker's output, and what it complained about; the other lines are told as progress."""
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
    """What the worker has complained about in its last line, with the exit code of its kind."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), f"the worker ended with exit code {code} and said nothing")
    kind: Callable[[str], StokerError] = UsageError if code == UsageError.exit_code else StokerError
    return kind(last.removeprefix("stoker: "))


# ---- with a daemon ----


def _by_job(app: App, asked: JobSpec) -> dict[str, Any]:
    """The plan, by a job on whatever the pool gives it."""
    from .submit import post_jobs

    number = post_jobs(app, [asked], dry_run=False, with_snapshot=False)["jobs"][0]["id"]
    note(f"job {number} measures the model; --here would do it on this machine's CPU")
    try:
        found, said = _plan_among(_lines(follow(app.client, str(number))))
        row = app.client.get(job_path(str(number)))["job"]
    except KeyboardInterrupt:
        with contextlib.suppress(StokerError):
            app.client.post(job_path(str(number), "cancel"))
        raise
    if found is None or row["state"] != "completed":
        why = row["state_reason"] if row["state"] in FINAL else ""
        raise _failed(said or f"job {number} made no plan: {why or row['state']}; see 'stoker logs {number}'", row["exit_code"] or 1)
    return found


def _lines(texts: Iterator[str]) -> Iterator[str]:
    left = ""
    for text in texts:
        *whole, left = (left + text).split("\n")
        yield from whole
    if left:
        yield left


# ---- what is shown ----


def _show(plan: dict[str, Any]) -> None:
    emulated = " (emulated)" if plan["emulated"] else ""
    count, ideal = plan["accumulate"], plan["ideal"]
    print_facts([
        ("job", plan["name"]),
        ("device", plan["device"]),
        ("step", f"{fmt.counted(count, 'batch').replace('batchs', 'batches')}, {_seconds(plan['seconds'])}{emulated}"),
        ("ideal", f"{_seconds(ideal)}, all loading hidden: the step takes {plan['seconds'] / ideal if ideal else 1.0:.2f} times that"),
        ("peak", f"{fmt.size(plan['peak'])} of {fmt.size(plan['cap'])}; in one part it would be {fmt.size(plan['whole'])}"),
        ("stays", plan["stays"]),
        ("write", f"memory: {{cap: {plan['cap']}, accumulate: {count}}}"),
    ])  # fmt: skip
    section(f"{fmt.counted(len(plan['parts']), 'part')}, times of one batch")
    rows = [{"number": number, **part} for number, part in enumerate(plan["parts"], start=1)]
    print_table(rows, _COLUMNS, "no parts")
    section(f"Time line of a step, {_seconds(plan['seconds'])}{emulated}")
    write(draw(plan["timeline"], plan["seconds"]))


def _seconds(value: float) -> str:
    """With three digits, in the unit that suits it."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _time(key: str) -> Callable[[Row], str]:
    return lambda row: _seconds(row[key])


def _bytes(key: str) -> Callable[[Row], str]:
    return lambda row: fmt.size(row[key])


_COLUMNS = [
    Column("PART", "number", right=True),
    Column("FROM", "first", flexible=True),
    Column("OPERATIONS", lambda row: str(row["stop"] - row["start"]), right=True, rank=3),
    Column("WEIGHTS", _bytes("weights"), right=True),
    Column("GRADIENTS", _bytes("gradients"), right=True, rank=1),
    Column("KEPT", _bytes("kept"), right=True, rank=2),
    Column("LOAD", _time("load"), right=True),
    Column("FORWARD", _time("forward"), right=True),
    Column("BACKWARD", _time("backward"), right=True),
    Column("OUT", _time("out"), right=True, rank=1),
]
