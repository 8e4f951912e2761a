"""`stoker swap`: the plan of a training in less memory than the model needs, before it is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import format as fmt
from ...errors import UsageError
from ..command import App, Group, examples, pass_app
from ..numbers import Size
from ..output import Answer, Column, Row, json_option, print_facts, print_table, section, write
from .plan_by_worker import planned
from .swap_drawing import draw

if TYPE_CHECKING:
    from ...spec.model import JobSpec


class Accumulate(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
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
    """Plan the training of FILE under a cap of device memory: parts, resident ones, a time line, time and peak memory of a step.

    A short job measures the model piece by piece on a GPU; without a daemon a child process does so on the CPU, where copies are
    emulated. Nothing is trained.
    """
    job = _job(app, file)
    cap, accumulate = _memory(job, cap, accumulate)
    from .submit import post_jobs

    answer = planned(app, job, cap, accumulate, here, post_jobs)
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
    """Cap and batches of a step (0: to be chosen), from the options or else from the job."""
    block = getattr(job, "memory", None)
    if cap is None:
        cap = getattr(block, "cap", None)
    if cap is None:
        raise UsageError("memory.cap: the job has none; say how much device memory it may use, such as --cap 600MiB")
    if accumulate is None:
        given = getattr(block, "accumulate", 1)
        accumulate = given if isinstance(given, int) else 0
    return cap, accumulate


# ---- output ----


def _show(plan: dict[str, Any]) -> None:
    from ...spec.reading import units

    emulated = " (emulated)" if plan["emulated"] else ""
    count, ideal = plan["accumulate"], plan["ideal"]
    print_facts([
        ("job", plan["name"]),
        ("device", plan["device"]),
        ("step", f"{fmt.counted(count, 'batch').replace('batchs', 'batches')}, {_seconds(plan['seconds'])}{emulated}"),
        ("ideal", f"{_seconds(ideal)}, all loading hidden: the step takes {plan['seconds'] / ideal if ideal else 1.0:.2f} times that"),
        ("peak", f"{fmt.size(plan['peak'])} of {fmt.size(plan['cap'])}; in one part it would be {fmt.size(plan['whole'])}"),
        ("stays", plan["stays"]),
        ("write", f"memory: {{cap: {units.format_size(plan['cap'])}, accumulate: {count}}}"),
    ])  # fmt: skip
    section(f"{fmt.counted(len(plan['parts']), 'part')}, times of one batch")
    rows = [{"number": number, **part} for number, part in enumerate(plan["parts"], start=1)]
    print_table(rows, _COLUMNS, "no parts")
    section(f"Time line of a step, {_seconds(plan['seconds'])}{emulated}")
    write(draw(plan["timeline"], plan["seconds"]))


def _seconds(value: float) -> str:
    """With three digits, in a suitable unit."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _time(key: str) -> Callable[[Row], str]:
    return lambda row: _seconds(row[key])


def _bytes(key: str) -> Callable[[Row], str]:
    return lambda row: fmt.size(row[key])


_COLUMNS = [
    Column("PART", "number", right=True),
    Column("FROM", "first", flexible=True),
    Column("CALLS", lambda row: str(row["stop"] - row["start"]), right=True, rank=3),
    Column("WEIGHTS", _bytes("weights"), right=True),
    Column("GRADIENTS", _bytes("gradients"), right=True, rank=1),
    Column("KEPT", _bytes("kept"), right=True, rank=2),
    Column("LOAD", _time("load"), right=True),
    Column("FORWARD", _time("forward"), right=True),
    Column("BACKWARD", _time("backward"), right=True),
    Column("OUT", _time("out"), right=True, rank=1),
]
