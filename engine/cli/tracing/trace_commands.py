"""Workload traces: import, list, look at, export, drop; `describe` and `synth` have modules of their own."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click

from ... import format as fmt
from ...errors import StokerError, UsageError
from ..command import App, Command, Group, Lazy, examples, pass_app, unless_ended
from ..output import Answer, Column, json_option, note, print_facts, print_table, section, write, write_json, write_raw

if TYPE_CHECKING:
    from ...traces.formats.rows import Tally
    from ...traces.trace import Trace, TraceJob

LONG_GAP = 365 * 86_400.0  #: seconds; no trace pauses for a year
FILE = click.Path(path_type=Path)


class _TraceGroup(Group):
    """The commands of this module, and those that are imported when they are asked for."""

    lazy = {
        "describe": Lazy("trace_describe:describe", "Print and plot what a trace is like."),
        "synth": Lazy("trace_synth:synth", "Make a workload from a trace."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.lazy[cmd_name].target.split(":")
        return cast(click.Command, getattr(importlib.import_module(f".{module}", __package__), attribute))


@click.group(cls=_TraceGroup)
@examples("stoker trace import cluster_log.csv --name helios", "stoker trace list", "stoker trace export helios --to helios.csv.gz")
def trace() -> None:
    """Workload traces: files in public formats, kept by the daemon in one form, for 'stoker simulate'."""


class _Import(Command):
    """The help lists the formats, as the registry has them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from ...traces.formats.known_formats import FAMILIES, IMPORTED

        with formatter.section("Formats"):
            formatter.write_dl([(name, FAMILIES[name].title) for name in IMPORTED])
        super().format_epilog(ctx, formatter)


@trace.command("import", cls=_Import)
@click.argument("file", type=FILE)
@click.option("--format", "format_", metavar="NAME", help="Format of the file (default: what its first line shows).")
@click.option("--name", help="Name of the trace (default: the file's name).")
@click.option("--strict", is_flag=True, help="Stop at the first row that would be dropped.")
@click.option("--cpu-jobs", is_flag=True, help="Keep jobs without a GPU, as jobs of one.")
@click.option("--throughputs", type=FILE, help="Gavel's table of throughputs, for formats with steps and no durations.")
@click.option("--gpu-type", default="v100", show_default=True, help="Kind of GPU in that table, or in those of Titan's author.")
@click.option("--durations", type=FILE, help="CSV with model,num_gpus,duration or key,duration, for formats without durations.")
@click.option("--join", type=FILE, help="Second table of the trace: pai_job_table.csv for pai_task_table.csv.")
@click.option("--dry-run", is_flag=True, help="Read and count only; no daemon is needed.")
@json_option
@pass_app
@examples(
    "stoker trace import cluster_job_log --name philly",
    "stoker trace import philly.csv --strict",
    "stoker trace import pai_task_table.csv --join pai_job_table.csv --name pai",
    "stoker trace import small_test.trace --throughputs simulation_throughputs.json",
)
def import_(
    app: App,
    file: Path,
    format_: str | None,
    name: str | None,
    strict: bool,
    cpu_jobs: bool,
    throughputs: Path | None,
    gpu_type: str,
    durations: Path | None,
    join: Path | None,
    dry_run: bool,
) -> Answer:
    """Read a trace from a file of a public format, and keep it.

    Titan's files are read elastic, from one GPU on, where its author's tables (transfer_curves.csv.gz and fminfo/) lie beside them or one
    folder above. The file may be gzipped. Rows that cannot be jobs are dropped, and counted by reason. The same file under the same name is
    not stored twice.
    """
    from ...traces.formats.rows import Tally
    from .trace_send import progress_bar, send_trace
    from .trace_source import is_file, read_file

    if not dry_run and is_file(file):
        app.client.get("/v1/status")  # a missing daemon is reported before a minute's reading, not after it
    tally = Tally(str(file))
    with unless_ended("nothing was imported"), progress_bar(f"reading {file.name}") as progress:
        found = read_file(
            file, format=format_, name=name, strict=strict, cpu_jobs=cpu_jobs, throughputs=throughputs, gpu_type=gpu_type,
            durations=durations, join=join, tally=tally, progress=progress,
        )  # fmt: skip
    found.source = str(file.absolute())
    stored: dict[str, Any] = {"id": None, "existing": False}
    if not dry_run:
        with unless_ended("'stoker trace list' shows whether it was imported"), progress_bar(f"storing {found.name}") as progress:
            stored = send_trace(app.client, found, progress)
    answer = {
        "id": stored["id"], "name": found.name, "format": found.format, "source": found.source, "sha256": found.sha256,
        "starts_at": found.starts_at, "jobs": len(found.jobs), "dropped": found.dropped, "repaired": found.repaired, "first": tally.first,
        "existing": stored["existing"], "dry_run": dry_run,
    }  # fmt: skip
    told = "" if dry_run else f"trace {found.name} is stored"
    return Answer(answer, lambda: _show_import(found, tally, stored["existing"], dry_run), done=told)


def _show_import(found: Trace, tally: Tally, existing: bool, dry_run: bool) -> None:
    done = "would be imported" if dry_run else "there already, nothing was changed" if existing else "imported"
    write(f"{found.name}: {fmt.counted(len(found.jobs), 'job')} {done} (format {found.format})\n")
    if found.starts_at is not None:
        note(f"second 0 is {_date(found.starts_at)}; dates without a zone are taken for UTC")
    if (gap := max((_gap(*pair) for pair in pairwise(found.jobs)), default=(0.0, 0.0)))[0] > LONG_GAP:
        at = f"{fmt.duration(gap[1])} from second 0" if found.starts_at is None else _date(found.starts_at + gap[1])
        note(f"no job was submitted for {fmt.duration(gap[0])} after {at}: is a moment of submission wrong?")
    for what, counts in (("dropped", found.dropped), ("repaired", found.repaired)):
        for reason, count in counts.items():
            first = f"; first: {fmt.clean(tally.first[reason])}" if reason in tally.first else ""
            write(f"  {what} {count}: {fmt.clean(reason)}{first}\n")


def _gap(job: TraceJob, after: TraceJob) -> tuple[float, float]:
    """Seconds between two submissions, and their begin."""
    return after.submitted - job.submitted, job.submitted


def _date(seconds: float | None) -> str:
    """A moment of long ago, which `fmt.clock` would show without its year."""
    if seconds is None:
        return fmt.MISSING
    try:
        return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


_COLUMNS = [
    Column("NAME", "name", flexible=True),
    Column("JOBS", "jobs", right=True),
    Column("FORMAT", "format"),
    Column("STARTS", lambda row: _date(row["starts_at"]), rank=3),
    Column("DROPPED", lambda row: str(sum(row["dropped"].values())), right=True, rank=2),
    Column("ADDED", lambda row: fmt.clock(row["added_at"]), rank=1),
    Column("BY", "added_by", rank=4),
    Column("SOURCE", "source", flexible=True, rank=5),
]


@trace.command("list")
@json_option
@pass_app
@examples("stoker trace list", "stoker trace list --json")
def list_(app: App) -> Answer:
    """List the traces that the daemon has."""
    rows = app.client.get("/v1/traces")["traces"]
    return Answer(rows, lambda: print_table(rows, _COLUMNS, "no traces; bring one with 'stoker trace import FILE'"))


def _path(name: str) -> str:
    return f"/v1/traces/{quote(name, safe='')}"


@trace.command()
@click.argument("name")
@json_option
@pass_app
@examples("stoker trace show helios", "stoker trace show helios --json")
def show(app: App, name: str) -> Answer:
    """Show the origin and the contents of a trace.

    NAME is a trace that was imported; 'stoker trace describe' also takes files.
    """
    from .trace_source import check_stored

    answer = app.client.get(_path(check_stored(name)))
    return Answer(answer, lambda: _show(answer["trace"], answer["summary"]))


def _show(row: dict[str, Any], summary: dict[str, Any]) -> None:
    with_deadlines = f"{summary['strict']} strict, {summary['soft']} soft" if summary["strict"] or summary["soft"] else ""
    print_facts(
        [
            ("name", fmt.clean(row["name"])),
            ("format", row["format"]),
            ("source", fmt.clean(row["source"])),
            ("sha256", row["sha256"]),
            ("added", f"{fmt.clock(row['added_at'])} by {fmt.clean(row['added_by'])}"),
            ("second 0", _date(row["starts_at"])),
            ("jobs", f"{row['jobs']:,}"),
            ("submitted", f"over {fmt.duration(summary['last_submitted'] - summary['first_submitted'])}"),
            ("GPU-hours", f"{summary['gpu_hours']:,.1f}"),
            ("duration", f"{fmt.duration(summary['duration_p50'])} median, {fmt.duration(summary['duration_avg'])} average, "
                         f"{fmt.duration(summary['duration_max'])} longest"),
            ("largest job", fmt.counted(summary["gpus_most"], "GPU")),
            ("users", str(summary["users"] or "")),
            ("pools", str(summary["pools"] or "")),
            ("models", str(summary["models"] or "")),
            ("deadlines", with_deadlines),
        ]
    )  # fmt: skip
    if row["recipe"]:
        section("recipe")
        told = {key: _counted(value) if key == "fine_tuning" else _in_words(value) for key, value in row["recipe"].items()}
        print_facts([(key.replace("_", " "), fmt.clean(words)) for key, words in told.items()], indent=2)
    for what in ("dropped", "repaired"):
        if row[what]:
            section(what)
            print_facts([(str(count), fmt.clean(reason)) for reason, count in row[what].items()], indent=2)


def _counted(tables: dict[str, Any]) -> str:
    """The size of the tables of fine-tuning jobs, which are hundreds of numbers."""
    kinds, pairs = fmt.counted(len(tables["kinds"]), "kind"), f"{len(tables['temporal'])} temporal and {len(tables['spatial'])} spatial"
    return f"{kinds} of jobs, transfers between them: {pairs}"


def _in_words(value: Any) -> str:
    """A value of a recipe; a table as ``name value, name value``, without options that were not given."""
    if isinstance(value, dict):
        words = [(key.replace("_", " "), _in_words(inner), isinstance(inner, dict)) for key, inner in value.items()]
        return ", ".join(f"{key} ({text})" if nested else f"{key} {text}" for key, text, nested in words if text)
    if isinstance(value, list):
        return " ".join(map(_in_words, value))
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.{4 if abs(value) < 1000 else 10}g}" if isinstance(value, float) else str(value)


@trace.command()
@click.argument("name", nargs=-1, required=True)
@json_option
@pass_app
@examples("stoker trace drop helios", "stoker trace drop mix1 mix2")
def drop(app: App, name: tuple[str, ...]) -> Answer:
    """Remove traces; the figures of their simulations stay."""
    import json

    from .trace_source import check_stored

    done: list[dict[str, Any]] = []
    errors: list[StokerError] = []
    for one in name:
        try:
            done.append(json.loads(app.client.fetch("DELETE", _path(check_stored(one)))))
        except StokerError as error:
            errors.append(error)
    names = ", ".join(row["name"] for row in done)
    return Answer(done, lambda: write("".join(map(_dropped, done))), errors, done=f"dropped: {names}" if done else "")


def _dropped(row: dict[str, Any]) -> str:
    return f"{row['name']} is dropped with {fmt.counted(row['jobs'], 'job')}\n"


@trace.command()
@click.argument("trace", metavar="TRACE")
@click.option("--to", type=FILE, help="File or pipe to write, gzipped where its name ends in .gz (default: standard output).")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what was written with --to, else the trace itself in place of CSV.")
@pass_app
@examples("stoker trace export helios --to helios.csv.gz", "stoker trace export philly.csv")
@unless_ended("the trace was not written")
def export(app: App, trace: str, to: Path | None, force: bool, as_json: bool) -> None:
    """Write a trace as CSV, which 'import' reads back without loss.

    The CSV is of our own format. TRACE is the name of a trace that the daemon has, or a file of any known format.
    """
    from .trace_source import load_trace

    found = load_trace(trace, lambda: app.client)
    if to is not None:
        write_file(found, to, force)
        written = {"name": found.name, "file": str(to), "jobs": len(found.jobs)}
        write_json(written) if as_json else note(f"{fmt.counted(len(found.jobs), 'job')} written to {to}")
    elif as_json:
        import msgspec

        write_json(msgspec.to_builtins(found))
    else:
        _print_csv(found)


def _print_csv(found: Trace) -> None:
    import io

    from ...traces.formats.from_stoker import write as write_csv

    text = io.StringIO(newline="")
    write_csv(found, text)
    write_raw(text.getvalue())


def write_file(found: Trace, to: Path, force: bool) -> None:
    """Write the trace as the file ``to``, or as the target of a link of this name: whole or not at all, as a cut file would be read as
    a shorter trace. Into a pipe or a device it is written directly."""
    try:
        mode = _mode(to)
        if stat.S_ISDIR(mode):
            raise UsageError(f"--to: {to} is a folder: name a file in it")
        if (stat.S_ISREG(mode) or stat.S_ISBLK(mode)) and not force:  # not pipes and terminals, in which nothing is replaced
            raise UsageError(f"--to: {to} exists: name another file, or give --force")
        zipped = to.suffix == ".gz"
        if mode and not stat.S_ISREG(mode):
            _write_csv(found, to, zipped)
        else:
            _replace(found, to.resolve(), zipped)
    except OSError as error:
        raise UsageError(f"--to: {to}: cannot be written: {error.strerror or error}") from None


def _mode(path: Path) -> int:
    """The kind of the file, links followed; 0: there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _replace(found: Trace, to: Path, zipped: bool) -> None:
    temporary = to.with_name(f".{to.name}.{os.getpid()}.tmp")
    try:
        _write_csv(found, temporary, zipped)
        os.replace(temporary, to)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_csv(found: Trace, to: Path, zipped: bool) -> None:
    import gzip

    from ...traces.formats.from_stoker import write as write_csv

    with gzip.open(to, "wt", encoding="utf-8", newline="") if zipped else open(to, "w", encoding="utf-8", newline="") as file:
        write_csv(found, file)
