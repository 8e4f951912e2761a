"""Stoker's own table, which `stoker trace export` writes: a trace can be kept, edited and read again without loss.

The first line is a comment with the data of the whole trace; then come a header with the columns of `trace_jobs`, and a row for each job.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec

from ..trace import DEMANDS, Trace, TraceJob
from .family import Family, Jobs
from .rows import BIG, LONGEST_LINE, SMALL, Context, DroppedRow, Numbered, Row, Splitter, TraceSource, csv_rows, shown

MARK = "# stoker trace "
COLUMNS = tuple(field.name for field in msgspec.structs.fields(TraceJob))
NEEDED = ("key", "submitted", "duration", "gpus_min")
STOPS, SCALES = ("iterations", "performance"), ("small", "medium", "large")


class _About(msgspec.Struct):
    """The data in the first line; format, source and digest are taken from the file that is read."""

    name: str | None = None
    starts_at: float | None = None
    dropped: dict[str, int] = {}
    repaired: dict[str, int] = {}
    recipe: dict[str, Any] | None = None


def write(trace: Trace, file: IO[str]) -> None:
    """Write the trace; ``file`` must be opened with ``newline=""``."""
    about = _About(trace.name, trace.starts_at, trace.dropped, trace.repaired, trace.recipe)
    file.write(f"{MARK}{msgspec.json.encode(about).decode()}\r\n")
    writer = csv.writer(file, lineterminator="\r\n")  # with only "\n" it would not quote a "\r" in a name
    writer.writerow(COLUMNS)
    writer.writerows(_fields(trace.jobs))


def _fields(jobs: Iterable[TraceJob]) -> Iterator[list[str]]:
    """The fields of jobs. None is an empty field; tuples are numbers with blanks between them; ``repr`` keeps a float exactly."""
    for job in jobs:
        yield [_field(getattr(job, column)) for column in COLUMNS]


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else repr(value)


def _jobs(source: TraceSource, context: Context) -> Jobs:
    head = source.head()
    has_about = head.startswith(MARK)
    if has_about:
        _read_about(source, head, context)
    context.dated = False
    for row in csv_rows(source, context, skip=int(has_about), joined=_joined):
        lacking = [column for column in NEEDED if column not in row.values]
        if lacking:
            raise ValueError(f"{source.path}: has no column {', '.join(lacking)}")
        try:
            yield row.line, _job(row)
        except DroppedRow as drop:
            context.tally.drop(row.line, drop.reason, drop.detail)


def _joined(lines: Numbered, columns: int) -> Numbered:
    """Lines, with those of one row joined: a name may contain a line break, and is quoted then."""
    ahead: deque[tuple[int, str]] = deque()
    both = _first(ahead, lines)
    for number, text in both:
        if not _opens(text):
            yield number, text
            continue
        taken: list[tuple[int, str]] = []
        whole = _whole(text, taken, both, columns)
        if whole is None:
            ahead.extendleft(reversed(taken))
        yield number, whole or text


def _first(ahead: deque[tuple[int, str]], lines: Numbered) -> Numbered:
    while (one := ahead.popleft() if ahead else next(lines, None)) is not None:
        yield one


def _opens(text: str) -> bool:
    """Whether a quote is left open; quotes within a quoted field are doubled."""
    return text.count('"') % 2 == 1


def _whole(text: str, taken: list[tuple[int, str]], lines: Numbered, columns: int) -> str | None:
    """The line, joined with the next ones up to the closing quote; None if that is no row.

    A stray quote may find its counterpart hundreds of rows later, and the text between is no name: this is assumed if two of the lines
    have the separators of a row. ``taken`` gets the lines that were read for this.
    """
    parts, length, rows = [text], len(text), int(_has_all(text, columns))
    for number, more in lines:
        taken.append((number, more))
        parts.append(more)
        length += len(more)
        rows += _has_all(more, columns)
        if rows > 1 or length > LONGEST_LINE:
            return None
        if _opens(more):
            whole = "".join(parts)
            return None if Splitter().split(whole) is None else whole
    return None


def _has_all(text: str, columns: int) -> bool:
    return text.count(",") >= columns - 1


def _read_about(source: TraceSource, head: str, context: Context) -> None:
    try:
        about = msgspec.json.decode(head[len(MARK) :], type=_About)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{source.path}:1: what follows {MARK.strip()!r} is not as 'stoker trace export' writes it ({error})") from None
    context.name, context.starts_at, context.recipe = about.name, about.starts_at, about.recipe
    context.tally.dropped.update(about.dropped)
    context.tally.repaired.update(about.repaired)


def _job(row: Row) -> TraceJob:
    gpus = row.gpus("gpus_min")
    deadlines, rewards = _numbers(row, "deadlines"), _numbers(row, "rewards")
    if len(deadlines) != len(rewards):
        raise DroppedRow("deadlines and rewards differ in number", f"deadlines has {len(deadlines)}, rewards {len(rewards)}")
    if not row.values["key"]:
        raise DroppedRow("no id", "key: is empty")
    return TraceJob(
        key=row.values["key"],
        submitted=row.number("submitted"),
        duration=row.number("duration"),
        gpus_min=gpus,
        gpus_max=_integer(row, "gpus_max") or 0,
        user_name=_word(row, "user_name"),
        pool=_word(row, "pool"),
        model=_word(row, "model"),
        batch_size=_spared(row, "batch_size", 0, BIG),
        iterations=row.optional("iterations"),
        status=_word(row, "status"),
        priority=_spared(row, "priority", -SMALL, SMALL) or 0,
        estimate=row.optional("estimate"),
        demand=_one_of(row, "demand", tuple(DEMANDS)) or "best-effort",
        deadlines=deadlines,
        rewards=rewards,
        stop=_one_of(row, "stop", STOPS),
        scale=_one_of(row, "scale", SCALES),
        raw=_raw(row),
    )


def _word(row: Row, column: str) -> str | None:
    """The text as it is: a user may be called None."""
    return row.values.get(column) or None


def _one_of(row: Row, column: str, known: tuple[str, ...]) -> str | None:
    word = _word(row, column)
    if word is not None and word not in known:
        raise DroppedRow(f"unknown {column}", f"{column}: {shown(word)} is not one of {', '.join(known)}")
    return word


def _integer(row: Row, column: str) -> int | None:
    word = _word(row, column)
    if word is None:
        return None
    try:
        return int(word)
    except ValueError:
        raise DroppedRow(f"{column} is not a whole number", f"{column}: {shown(word)} is not a whole number") from None


def _spared(row: Row, column: str, least: int, most: int) -> int | None:
    """An optional whole number: a wrong one is left out and counted as repaired."""
    try:
        number = _integer(row, column)
    except DroppedRow as drop:
        row.repair(f"{drop.reason}, left out", drop.detail)
        return None
    if number is not None and not least <= number <= most:
        row.repair(f"{column} is out of range, left out", f"{column}: {shown(str(number))} is not between {least} and {most}")
        return None
    return number


def _numbers(row: Row, column: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in row.values.get(column, "").split())
    except ValueError:
        raise DroppedRow(f"{column} is not a list of numbers", f"{column}: {shown(row.values[column])} is not like 60.0 90.0") from None


def _raw(row: Row) -> dict[str, str] | None:
    text = _word(row, "raw")
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise DroppedRow("raw is not a JSON object of texts", f"raw: {shown(text)} is not a JSON object of texts") from None


FAMILIES = (Family("stoker", "what 'stoker trace export' writes", NEEDED, _jobs),)
