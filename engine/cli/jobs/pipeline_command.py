"""`stoker pipeline`: the sizes of a job's data pipeline, and its tuner's actions with their reasons."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ... import format as fmt
from ...errors import UsageError
from ...jobs.states import FINAL, State
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path, one_job
from ..output import Answer, Column, json_option, print_facts, print_table, section, write

_NEARLY = 0.95  #: of the training's demand, as in view pipelines_now
_POINTS = 2000  #: steps of a plotted history


@click.command(cls=Command)
@click.argument("job", type=JOB)
@click.option("--rank", type=click.IntRange(min=0), help="Rank whose pipeline is shown (default: the lowest that has one).")
@click.option("--name", help="Which of its pipelines, where a process has several (default: the first).")
@click.option("--steps", type=click.IntRange(0, 1000), default=10, show_default=True, help="Decisions to show, the newest.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw its whole history.")
@json_option
@pass_app
@examples(
    "stoker pipeline dlrm",
    "stoker pipeline 17 --rank 1 --steps 50",
    "stoker pipeline 17 --plot pipeline.png",
    "stoker pipeline 17 --json",
)
def pipeline(app: App, job: str, rank: int | None, name: str | None, steps: int, plot: Path | None) -> Answer:
    """Show a job's data pipeline: its stages, the limiting one, and its tuner's actions with their reasons.

    For jobs with a 'pipeline:' block, and scripts that wrap their loader by stoker.loaders.autotuned; also after their end.
    The plot has throughput, workers of each stage, memory and reward over time, with marks at changes and refusals.
    """
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"--plot: {plot} must end in .png")
    job = one_job(app.client, job)
    answer = app.client.get(job_path(job, "pipeline"), rank=rank, name=name, decisions=steps, points=_POINTS if plot else 0)
    if plot is not None:
        _draw(answer["history"], plot)
        answer["plot"] = str(plot)

    def print_it() -> None:
        now = time.time()
        what, shown = answer["job"], answer["shown"]
        here = next(one for one in answer["pipelines"] if (one["rank"], one["pipeline"]) == (shown["rank"], shown["pipeline"]))
        write(f"job {what['id']}  {fmt.clean(what['name'])}, {what['state']}\n")
        print_facts([(name, fmt.clean(value)) for name, value in _facts(answer, here, now)], indent=2)
        section("Stages")
        print_table(here["stages"], _stage_columns(here["bottleneck"]), "")
        if len(answer["pipelines"]) > 1:
            section("Pipelines")
            print_table(answer["pipelines"], _PIPELINES, "")
        if answer["decisions"]:
            section("What was decided")
            print_table(answer["decisions"][::-1], _DECISIONS, "")

    return Answer(answer, print_it)


def _draw(history: list[dict[str, Any]], path: Path) -> None:
    from ...report.pipeline_plot import write as write_plot

    try:
        write_plot(history, path)
    except OSError as error:
        raise UsageError(f"--plot: cannot write {path}: {error.strerror}") from None


def _facts(answer: Mapping[str, Any], here: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    several = len(answer["pipelines"]) > 1
    ended = State(answer["job"]["state"]) in FINAL
    yield "pipeline", f"{here['pipeline']} of rank {here['rank']}, of {len(answer['pipelines'])}" if several else fmt.MISSING
    would = "would have taken" if ended else "would take"
    wanted = f" of {fmt.three_digits(here['demand'])} that the training {would}" if here["demand"] is not None else ""
    yield "delivered at its end" if ended else "delivers", f"{fmt.three_digits(here['throughput'])}{wanted} samples a second"
    yield "was limited by" if ended else "limited by", _limit(here)
    yield "cores", f"{here['cpu_used']:.2f} busy of {here['cpus']:g}"
    yield "memory", _memory(here)
    yield "reward", fmt.number(here["reward"])
    yield "controller", here["controller"]
    yield "why", here["why"] or fmt.MISSING
    yield "refused", _refused(here) or fmt.MISSING
    yield "told", fmt.moment(here["told_at"], now)
    yield "plot", answer.get("plot", fmt.MISSING)


def _memory(here: Mapping[str, Any]) -> str:
    """The memory in use, of the spec's limit if that is below the machine's."""
    limit, there = here["memory_limit"], here["memory_total"]
    if limit is None or limit >= there:
        return f"{fmt.size(here['memory_used'])} of {fmt.size(there)}"
    return f"{fmt.size(here['memory_used'])} of {fmt.size(limit)} (pipeline.memory; there are {fmt.size(there)})"


def _refused(row: Mapping[str, Any]) -> str:
    """The guard's words, without the first of them, which is the heading."""
    return (row["refused"] or "").removeprefix("refused ")


def _limit(here: Mapping[str, Any]) -> str:
    if here["bottleneck"] is not None:
        return f"stage {here['bottleneck']}"
    if here["throughput"] <= 0:
        return "not known: nothing was delivered"
    if here["demand"] is None:
        return fmt.MISSING
    return "the training" if here["throughput"] >= _NEARLY * here["demand"] else "not known: no stage was at work"


def _seconds(key: str) -> Any:
    return lambda row: fmt.MISSING if row[key] is None else f"{1000 * row[key]:.3g}"


def _share(key: str) -> Any:
    return lambda row: fmt.percent(row[key])


def _stage_columns(bottleneck: str | None) -> list[Column]:
    return [
        Column("STAGE", "stage", flexible=True, style=lambda row: "yellow" if row["stage"] == bottleneck else ""),
        Column("WORKERS", "workers", right=True),
        Column("SIZE", lambda row: f"{row['value']} MiB" if row["unit"] == "MiB" else "", right=True, rank=1),
        Column("MS/ITEM", _seconds("latency"), right=True),
        Column("ITEMS/S", lambda row: fmt.three_digits(row["items"]), right=True),
        Column("BUSY", _share("busy"), right=True),
        Column("NO INPUT", _share("starved"), right=True, rank=2),
        Column("NO ROOM", _share("blocked"), right=True, rank=3),
        Column("QUEUE", "queue", right=True),
        Column("HOLDS", lambda row: fmt.size(row["queue_bytes"]), right=True, rank=4),
    ]


_PIPELINES = [
    Column("RANK", "rank", right=True),
    Column("PIPELINE", "pipeline", flexible=True),
    Column("SAMPLES/S", lambda row: fmt.three_digits(row["throughput"]), right=True),
    Column("WANTED", lambda row: fmt.MISSING if row["demand"] is None else fmt.three_digits(row["demand"]), right=True),
    Column("LIMITED BY", _limit, flexible=True),
    Column("CORES", lambda row: f"{row['cpu_used']:.2f} of {row['cpus']:g}", rank=2),
    Column("MEMORY", lambda row: fmt.size(row["memory_used"]), right=True, rank=1),
]


def _changes(row: Mapping[str, Any]) -> str:
    """`udf +2 → 6`, and the wanted value if that was refused."""
    said = []
    for change in row["changes"] or ():
        unit = " MiB" if change["unit"] == "MiB" else ""
        text = f"{change['stage']} {change['action']:+d} → {change['value']}{unit}"
        said.append(text if change["wanted"] == change["value"] else f"{text} (wanted {change['wanted']}{unit})")
    return ", ".join(said)


_DECISIONS = [
    Column("WHEN", lambda row: fmt.clock(row["ts"])),
    Column("CHANGE", _changes, flexible=True, least=20),
    Column("SAMPLES/S", lambda row: fmt.three_digits(row["throughput"]), right=True, rank=1),
    Column("REWARD", lambda row: fmt.number(row["reward"], 3), right=True, rank=2),
    Column("WHY", lambda row: row["why"] or "", flexible=True),
    Column("REFUSED", _refused, flexible=True, rank=3),
]
