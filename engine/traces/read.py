"""Reading a trace from a file of any known format."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .. import format as fmt
from .formats.family import Family
from .formats.known_formats import choose
from .formats.rows import FIRST_DATE, LAST_DATE, LATEST_SECOND, LONGEST_JOB, Context, DroppedRow, Progress, Tally, TraceSource, shown
from .formats.tables import read_durations, read_throughputs
from .formats.titan_tables import FineTuning, find_tables
from .trace import Trace, TraceJob
from .trace_check import FILE_ENDINGS, check_name, wrong

YEAR = 365.2425 * 86_400.0
GPU_TYPE = "v100"  #: the reference GPU of Gavel's evaluation in its tables of throughputs


def read(
    path: Path,
    format: str | None = None,
    *,
    name: str | None = None,
    strict: bool = False,
    cpu_jobs: bool = False,
    throughputs: Path | None = None,
    gpu_type: str = GPU_TYPE,
    durations: Path | None = None,
    join: Path | None = None,
    tally: Tally | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a trace; ``format`` None: recognise it by the first line.

    The jobs are in the order of submission. Dates count from the first submission (``starts_at`` is its time, UTC if the
    file names no zone); numbers keep the zero of their source. ``strict``: the first row that would be dropped is an error.
    ``cpu_jobs``: jobs without a GPU are kept as jobs with one. ``throughputs`` (for ``gpu_type``), ``durations``, ``join``: tables
    that complete some formats; those of Titan's author (for ``gpu_type``) are read if they are beside the file.
    ``tally``, if given, gets the first line of every reason; ``progress`` is called with bytes.

    Raises ValueError, in one line with file and line, for unreadable content; OSError for a file that cannot be opened.
    """
    if not path.is_file():
        raise ValueError(f"{path}: is not a file" if path.exists() else f"{path}: there is no such file")
    source = TraceSource(path, progress)
    family = choose(source, format)
    tables = {"throughputs": throughputs, "durations": durations, "join": join}
    _refuse_options(family, tables)
    tally = tally or Tally(str(path))
    tally.path, tally.strict = str(path), strict
    context = Context(
        tally,
        cpu_jobs,
        None if throughputs is None else read_throughputs(throughputs, gpu_type),
        None if durations is None else read_durations(durations),
        join,
    )
    if family.name == "titan" and durations is None and (folder := find_tables(path)) is not None:
        context.fine_tuning = FineTuning(folder, gpu_type)
    jobs = _collect(family.jobs(source, context), context)
    if not jobs:
        raise ValueError(f"{path}: no job is left of it: {_reasons(tally) or 'it has no rows'}")
    starts_at = _set_zero(jobs) if context.dated else context.starts_at
    return Trace(
        name=check_name(name or context.name or default_name(path)),
        format=family.name,
        source=str(path),
        sha256=_digest(path),
        jobs=jobs,
        starts_at=starts_at,
        dropped=tally.dropped,
        repaired=tally.repaired,
        recipe=context.recipe or _completed_with(tables, gpu_type),
    )


def default_name(path: Path) -> str:
    """The file's name without suffixes, in characters that a trace's name may have."""
    stem = path.name
    while stem.endswith(FILE_ENDINGS):
        stem = stem[: stem.rindex(".")]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:100] or "trace"


def _reasons(tally: Tally) -> str:
    """Why rows were dropped: each reason with its first row."""
    return "; ".join(
        f"{count:,} {reason} (first: {tally.first[reason]})" if reason in tally.first else f"{count:,} {reason}"
        for reason, count in tally.dropped.items()
    )


def _completed_with(tables: dict[str, Path | None], gpu_type: str) -> dict[str, Any] | None:
    """The tables on which the jobs depend too, so that the same file with another table is another trace; None without tables."""
    given = {option: {"file": path.name, "sha256": _digest(path)} for option, path in tables.items() if path is not None}
    if "throughputs" in given:
        given["throughputs"]["gpu_type"] = gpu_type
    return given or None


def _refuse_options(family: Family, given: dict[str, Path | None]) -> None:
    for option, path in given.items():
        if path is None:
            continue
        if option not in family.options:
            raise ValueError(f"--{option}: means nothing to format {family.name}, which tells this by itself")
        if not path.is_file():
            raise ValueError(f"--{option}: {path}: is not a file" if path.exists() else f"--{option}: {path}: there is no such file")


def _collect(found: Iterable[tuple[int, TraceJob]], context: Context) -> list[TraceJob]:
    """Jobs that can be simulated, in the order of submission."""
    kept: list[TraceJob] = []
    keys: set[str] = set()
    latest = float("-inf")
    for line, job in found:
        try:
            _check(job, keys, dated=bool(context.dated))
        except DroppedRow as drop:
            context.tally.drop(line, drop.reason, drop.detail)
            continue
        if job.submitted < latest:
            context.tally.repair(line, "out of order, sorted", f"job {shown(job.key)}: submitted before a job ahead of it")
        else:
            latest = job.submitted
        context.tally.keep()
        keys.add(job.key)
        kept.append(job)
    kept.sort(key=lambda job: job.submitted)
    return kept


def _check(job: TraceJob, keys: set[str], *, dated: bool) -> None:
    if job.key in keys:
        raise DroppedRow("duplicate id", f"job {shown(job.key)}: is there already")
    if not 0 < job.duration <= LONGEST_JOB:
        reason = "zero duration" if job.duration == 0 else "negative duration" if job.duration < 0 else "duration beyond 30 years"
        raise DroppedRow(reason, f"job {shown(job.key)}: duration is {fmt.duration(job.duration)}")
    if dated and not FIRST_DATE <= job.submitted < LAST_DATE:
        year = math.floor(1970 + job.submitted / YEAR)
        raise DroppedRow("submission before 2000 or after 2100", f"job {shown(job.key)}: submitted in the year {year}")
    if not 0 <= job.submitted <= LATEST_SECOND:
        raise DroppedRow("submission out of range", f"job {shown(job.key)}: submitted at {fmt.number(job.submitted)} s")
    if what := wrong(job):
        raise DroppedRow(what, f"job {shown(job.key)}: {what}")


def _set_zero(jobs: list[TraceJob]) -> float:
    """Let times count from the first submission; returns the time of that."""
    start = jobs[0].submitted
    for job in jobs:
        job.submitted -= start
    return start


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
