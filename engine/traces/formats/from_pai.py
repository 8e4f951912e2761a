"""Alibaba PAI 2020 (Weng et al., NSDI'22): the published task and job tables without headers, and its simulator's table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..trace import TraceJob
from .family import Family, Jobs, each_row
from .rows import Context, DroppedRow, Row, Tally, TraceSource, csv_rows, header, shown

TASK = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type")
JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
STATES = frozenset({"terminated", "failed", "running", "waiting", "interrupted"})


@dataclass(slots=True)
class _Job:
    """A job, put together from its tasks."""

    row: Row  #: the row of its first task, to which values of the others are added
    tasks: int = 0
    gpus: float = 0.0
    began: float | None = None
    ended: float | None = None
    running: bool = False  #: a task has no end
    states: tuple[str, ...] = ()


def looks_like(fields: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a first line, which is no header, belongs to this table."""
    return len(fields) == len(columns) and fields[3].strip().lower() in STATES


def _tasks(source: TraceSource, context: Context) -> Jobs:
    submissions = _submissions(context)
    gathered = _gather(_rows(source, context, TASK), context)
    for name in list(gathered):
        job = gathered.pop(name)  # so that a million of them are not in memory twice
        try:
            yield job.row.line, _finish(name, job, submissions, context)
        except DroppedRow as drop:
            context.tally.drop(job.row.line, drop.reason, drop.detail)


def _rows(source: TraceSource, context: Context, columns: Sequence[str]) -> Iterator[Row]:
    with_header = header(source.head().split(","))[: len(columns)] == list(columns)
    return csv_rows(source, context, columns, skip=int(with_header))


def _gather(rows: Iterator[Row], context: Context) -> dict[str, _Job]:
    """Jobs from their tasks; an unreadable task is dropped, and its job too if it was the only one."""
    jobs: dict[str, _Job] = {}
    for row in rows:
        try:
            name = row.key("job_name")
            gpus = _gpus(row)
            began, ended = _moment(row, "start_time"), _moment(row, "end_time")
        except DroppedRow as drop:
            context.tally.drop(row.line, drop.reason, drop.detail)
            continue
        context.tally.keep()
        job = jobs.setdefault(name, _Job(row))
        job.tasks += 1
        if job.tasks > 1:
            job.row.values.update({sys.intern(f"{column}.{job.tasks}"): value for column, value in row.values.items()})
        job.gpus += gpus
        if (state := row.text("status") or "") not in job.states:
            job.states += (state,)
        if began is not None:
            job.began = began if job.began is None else min(job.began, began)
            job.running = job.running or ended is None
        if ended is not None:
            job.ended = ended if job.ended is None else max(job.ended, ended)
    return jobs


def _gpus(row: Row) -> float:
    """GPUs of a task. plan_gpu is per cent of one GPU for each instance, and empty if the task needs none, whatever its instances."""
    percent = 0.0 if row.text("plan_gpu") is None else row.number("plan_gpu")
    if not percent:
        return 0.0
    instances = row.number("inst_num")
    if percent < 0 or instances < 0:
        raise DroppedRow("GPUs out of range", f"plan_gpu: {percent:g} for each of {instances:g} instances")
    return percent / 100 * instances


def _moment(row: Row, column: str) -> float | None:
    """A time; None if unknown: the field is empty, or 0, which the publisher's notebook (analysis/utils.py) treats in the same way."""
    return (None if row.text(column) is None else row.number(column)) or None


def _finish(name: str, job: _Job, submissions: dict[str, Row], context: Context) -> TraceJob:
    if job.began is None:
        raise DroppedRow("never started", f"job {shown(name)}: none of its tasks started")
    if job.running or job.ended is None:
        raise DroppedRow("no end", f"job {shown(name)}: a task has no end")
    if job.ended < job.began:
        raise DroppedRow("end before start", f"job {shown(name)}: ends at {job.ended:g}, before it starts at {job.began:g}")
    of_job = submissions.get(name)
    submitted = job.began
    if of_job is None or (told := _moment(of_job, "start_time")) is None:
        job.row.repair("submission taken from the start of its first task", f"job {shown(name)}")
    else:
        submitted = told
    if submitted > job.began:
        job.row.repair("submission after its start, set to the start", f"job {shown(name)}: {submitted:g}")
        submitted = job.began
    context.dated = False
    raw = job.row.values
    if of_job is not None:
        raw.update({f"job.{column}": value for column, value in of_job.values.items()})
    return TraceJob(
        key=name,
        submitted=submitted,
        duration=job.ended - job.began,
        gpus_min=job.row.whole_gpus(round(job.gpus, 9), "plan_gpu"),
        user_name=None if of_job is None else of_job.text("user"),
        status=(None if of_job is None else of_job.text("status")) or ",".join(sorted(filter(None, job.states))) or None,
        raw=raw,
    )


def _submissions(context: Context) -> dict[str, Row]:
    """Rows of the job table, which has the submissions and users, by job."""
    if context.join is None:
        return {}
    source = TraceSource(context.join)
    fields = source.head().rstrip("\r\n").split(",")
    if not looks_like(fields, JOB) and header(fields) != list(JOB):
        raise ValueError(f"{context.join}: is not pai_job_table: its columns are {', '.join(JOB)}")
    tally, found = Tally(str(context.join), context.tally.strict), dict[str, Row]()
    for row in _rows(source, Context(tally), JOB):
        name = row.text("job_name")
        if name is None:
            tally.drop(row.line, "no id", "job_name: is empty")
        elif name in found:
            tally.drop(row.line, "duplicate id", f"job {shown(name)}: is there already")
        else:
            found[name] = row
    context.tally.add(tally, ", in the table of --join")
    return found


def _job_table(source: TraceSource, _: Context) -> Jobs:
    raise ValueError(f"{source.path}: pai_job_table tells no GPUs: import pai_task_table, with --join {source.path.name}")


def _simulated(row: Row) -> TraceJob:
    """Read a job. num_gpu is the GPUs of one instance, a fraction if it shares one: a job starts when num_inst times that is idle.

    For PAI's simulator (utils.py) empty fields mean 0 GPUs and 1 instance.
    """
    instances = row.optional("num_inst")
    return TraceJob(
        key=row.key("job_id"),
        submitted=row.moment("submit_time"),
        duration=row.number("duration"),
        gpus_min=row.whole_gpus(round((row.optional("num_gpu") or 0.0) * (1.0 if instances is None else instances), 9), "num_gpu"),
        user_name=row.text("user"),
        pool=row.text("gpu_type"),
        raw=row.values,
    )


HEADLESS = (
    Family("pai", "Alibaba PAI 2020 as published: pai_task_table", TASK, _tasks, ("join",)),
    Family("pai-jobs", "Alibaba PAI 2020: pai_job_table, to be joined", JOB, _job_table, has_jobs=False),
)
FAMILIES = (
    *HEADLESS,
    Family(
        "pai-sim",
        "Alibaba PAI 2020 as its simulator has it",
        ("job_id", "num_gpu", "num_cpu", "num_inst", "submit_time", "duration"),
        each_row(_simulated),
    ),
)
