"""Tables that complete a trace without durations: throughputs of job types (Gavel), or durations of jobs or models."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from ..trace import TraceJob
from .lookups import DurationTable, Throughputs
from .rows import Context, DroppedRow, Row, Tally, TraceSource, csv_rows, header, shown
from .titan_tables import CURVES, SPEEDS

T = TypeVar("T")
LARGEST_TABLE = 1 << 28  #: bytes unpacked
DURATION_KEYS = ("key", "model", "num_gpus", "batch_size")  #: columns by which a duration can be looked up


def steps_per_second(row: Row, model: str, gpus: int) -> float:
    """The throughput of a job type; ValueError without a table."""
    table = row.context.throughputs
    if table is None:
        raise ValueError(
            f"{row.context.tally.path}: this format has steps and no durations: "
            "import it with 'stoker trace import FILE --throughputs TABLE' (simulation_throughputs.json)"
        )
    rate = table.rates.get((model, gpus), 0.0)
    if rate <= 0:
        raise DroppedRow(
            "no throughput for its job type and GPUs", f"{table.path.name} has none for {model!r} on {gpus} GPUs of {table.worker}"
        )
    return rate


def duration_of(job: TraceJob, row: Row) -> float:
    """The duration of a job; ValueError without a table."""
    table = row.context.durations
    if table is None:
        raise ValueError(
            f"{row.context.tally.path}: this format has no durations: import it with 'stoker trace import FILE --durations TABLE', "
            "a CSV with the columns model,num_gpus,duration (or key,duration), in seconds"
            + (f"; or lay {CURVES[0]} and {SPEEDS}/ of Titan's author beside it" if "target_metric" in row.values else "")
        )
    asked = {"key": job.key, "model": job.model or "", "num_gpus": str(job.gpus_min), "batch_size": str(job.batch_size or 0)}
    seconds = table.seconds.get(tuple(asked[column] for column in table.columns))
    if seconds is None:
        words = ", ".join(f"{column} {shown(asked[column])}" for column in table.columns)
        raise DroppedRow("no duration in the table", f"{table.path.name} has none for {words}")
    return seconds


def read_durations(path: Path) -> DurationTable:
    """Read a CSV with ``duration`` and some of `DURATION_KEYS`; ValueError names an unreadable line."""
    source = TraceSource(path)
    names = header(source.head().split(","))
    columns = tuple(name for name in DURATION_KEYS if name in names)
    if "duration" not in names or not set(columns) & {"key", "model"}:
        raise ValueError(f"{path}: --durations needs the columns duration and key or model; it has {', '.join(names)}")
    seconds: dict[tuple[str, ...], float] = {}
    for row in csv_rows(source, Context(Tally(str(path), strict=True))):
        found = _strictly(row, lambda row: (tuple(_plain(row, column) for column in columns), row.number("duration")))
        seconds[found[0]] = found[1]
    return DurationTable(path, columns, seconds)


def _plain(row: Row, column: str) -> str:
    return row.key(column) if column in ("key", "model") else str(round(row.number(column)))


def _strictly(row: Row, read: Callable[[Row], T]) -> T:
    """Read a row of such a table, in which a wrong row is an error and not dropped."""
    try:
        return read(row)
    except DroppedRow as drop:
        raise ValueError(f"{row.context.tally.path}:{row.line}: {drop.detail}") from None


def read_throughputs(path: Path, worker: str) -> Throughputs:
    """Read Gavel's table, as JSON or flattened to CSV, for jobs alone on GPUs of type ``worker``."""
    head = TraceSource(path).head().lstrip()
    rates = _json_rates(path) if head.startswith("{") else _csv_rates(path)
    of_worker = {(model, gpus): rate for (kind, model, gpus), rate in rates.items() if kind == worker}
    if not of_worker:
        kinds = ", ".join(sorted({kind for kind, _, _ in rates})) or "none"
        raise ValueError(f"{path}: --gpu-type: there is no {worker!r} in this table of throughputs; it has {kinds}")
    return Throughputs(path, worker, of_worker)


Rates = dict[tuple[str, str, int], float]


def _json_rates(path: Path) -> Rates:
    """{worker: {"('job type', GPUs)": {"null": steps/s alone, "(other job)": [...]}}}"""
    try:
        tables = msgspec.json.decode(TraceSource(path).bytes(LARGEST_TABLE), type=dict[str, dict[str, dict[str, msgspec.Raw]]])
        rates: Rates = {}
        for worker, jobs in tables.items():
            for name, rows in jobs.items():
                model, gpus = ast.literal_eval(name)
                if "null" in rows:
                    rates[worker, str(model), int(gpus)] = msgspec.json.decode(rows["null"], type=float)
    except (msgspec.DecodeError, ValueError, SyntaxError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is not a table of throughputs as Gavel has them ({error})") from None
    return rates


def _csv_rates(path: Path) -> Rates:
    """worker_type,model,scale_factor,coloc_model,coloc_scale_factor,steps_per_s,…"""
    source = TraceSource(path)
    lacking = {"worker_type", "model", "scale_factor", "steps_per_s"} - set(header(source.head().split(",")))
    if lacking:
        raise ValueError(f"{path}: --throughputs needs the columns {', '.join(sorted(lacking))}")
    rates: Rates = {}
    for row in csv_rows(source, Context(Tally(str(path), strict=True))):
        if row.text("coloc_model") is None:
            key = _strictly(row, lambda row: (row.key("worker_type"), row.key("model"), round(row.number("scale_factor"))))
            rates[key] = _strictly(row, lambda row: row.number("steps_per_s"))
    return rates
