"""Reading for every format: lines of limited length from a plain or gzipped file, rows with typed columns, and the tally of odd rows."""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime
import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from .lookups import DurationTable, Throughputs
from .titan_tables import FineTuning

LONGEST_LINE = 1 << 20  #: characters; a longer line is no table
LONGEST_JOB = 1e9  #: seconds, 30 years; the longest public job ran for two months
LATEST_SECOND = 1e11  #: seconds, 3000 years: a larger number is in milliseconds, or nonsense
MOST_GPUS = 1_000_000
LARGEST_COUNT = 10**15  #: of iterations and batch sizes; a float is exact up to here
SMALL, BIG = 2**31 - 1, 2**63 - 1  #: largest values of INTEGER and BIGINT columns
NOTHING = frozenset({"", "none", "null", "nan", "nat", "n/a"})  #: texts for no value in the sources
LONGEST_NOTHING = 4

#: Byte order marks of texts that are not UTF-8; the one of UTF-32 begins with the one of UTF-16.
BYTE_ORDER = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
GZIP, ZIP, TAR, TAR_MARK_AT = b"\x1f\x8b", b"PK\x03\x04", b"ustar", 257  #: how files begin, and where a tar archive says that it is one

EPOCH = datetime.datetime.fromisoformat("1970-01-01")  #: UTC, like all dates without a zone
#: Seconds. A date outside this range is a slip: one in the year 1 would make a trace of 2000 years.
FIRST_DATE = (datetime.datetime.fromisoformat("2000-01-01") - EPOCH).total_seconds()
LAST_DATE = (datetime.datetime.fromisoformat("2101-01-01") - EPOCH).total_seconds()

Progress = Callable[[int, int], None]  #: called with bytes read and bytes in all
Numbered = Iterator[tuple[int, str]]  #: lines with their numbers, from 1


class DroppedRow(Exception):
    """A row cannot be a job: the reason under which it is counted, and the wrong text."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail or reason


@dataclass
class Tally:
    """Rows that were dropped or repaired, counted by reason, with the first line of each."""

    path: str
    strict: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)  #: reason to "line 17: the wrong text"
    _pending: list[tuple[int, str, str]] = field(default_factory=list)  #: repairs of a row that may still be dropped

    def drop(self, line: int, reason: str, detail: str = "") -> None:
        if self.strict:
            raise ValueError(f"{self.path}:{line}: {detail or reason}")
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first.setdefault(reason, f"line {line}: {detail or reason}")
        self._pending.clear()

    def repair(self, line: int, reason: str, detail: str = "") -> None:
        """Note a repair, which is counted once the row is kept."""
        self._pending.append((line, reason, detail))

    def add(self, other: Tally, where: str) -> None:
        """Add the drops of another file, under their reasons followed by ``where``."""
        for reason, count in other.dropped.items():
            self.dropped[reason + where] = count
            self.first.setdefault(reason + where, other.first[reason])

    def keep(self) -> None:
        """Count the repairs of the row, as it is a job."""
        for line, reason, detail in self._pending:
            self.repaired[reason] = self.repaired.get(reason, 0) + 1
            self.first.setdefault(reason, f"line {line}: {detail or reason}")
        self._pending.clear()


@dataclass
class Context:
    """Settings for the reading of one file, and its findings."""

    tally: Tally
    cpu_jobs: bool = False
    throughputs: Throughputs | None = None
    durations: DurationTable | None = None
    join: Path | None = None
    fine_tuning: FineTuning | None = None
    dated: bool | None = None  #: submissions are dates (True) or seconds (False); None: none has been read yet
    starts_at: float | None = None  #: start of the trace, if the format has it
    recipe: dict[str, object] | None = None
    name: str | None = None


class Repeated:
    """Shares one string among equal values of a column: a million rows have a handful of models, but would hold a million strings."""

    MOST = 256  #: different values of a column that are remembered

    def __init__(self) -> None:
        self._seen: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def shared(self, values: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Values by column, with shared strings."""
        known, most = self._seen, self.MOST
        return {
            column: seen.setdefault(value, value) if len(seen := known[column]) < most else seen.get(value, value)
            for column, value in values
        }


class Row(msgspec.Struct, gc=False):  # it is in no reference cycle
    """One row; its columns are converted on request, and a wrong value drops or repairs the row."""

    line: int
    values: dict[str, str]
    context: Context
    index: int = 0  #: position in the file, from 0: the id of jobs that have none

    def text(self, column: str) -> str | None:
        value = self.values.get(column, "").strip()
        return None if len(value) <= LONGEST_NOTHING and value.lower() in NOTHING else value

    def key(self, column: str) -> str:
        value = self.text(column)
        if value is None:
            raise DroppedRow("no id", f"{column}: is empty")
        return value

    def number(self, column: str) -> float:
        value = self.values.get(column, "").strip()
        number = finite(value)
        if number is None:
            if self.text(column) is None:
                raise DroppedRow(f"no {column}", f"{column}: is empty")
            raise DroppedRow(f"{column} is not a number", f"{column}: {shown(value)} is not a number")
        return number

    def optional(self, column: str, most: int = LARGEST_COUNT) -> float | None:
        """An optional column: a value that is no number from 0 to ``most`` is left out and counted as repaired."""
        if self.text(column) is None:
            return None
        try:
            number = self.number(column)
        except DroppedRow as drop:
            self.repair(f"{drop.reason}, left out", drop.detail)
            return None
        if not 0 <= number <= most:
            self.repair(f"{column} is out of range, left out", f"{column}: {number:g} is not between 0 and {most:g}")
            return None
        return number

    def count(self, column: str, most: int = LARGEST_COUNT) -> int | None:
        number = self.optional(column, most)
        return None if number is None else round(number)

    def gpus(self, column: str) -> int:
        return self.whole_gpus(self.number(column), column)

    def whole_gpus(self, number: float, column: str) -> int:
        """Whole GPUs, as in the simulator. A job without GPUs is a CPU job."""
        if not 0 <= number <= MOST_GPUS:
            raise DroppedRow("GPUs out of range", f"{column}: {number:g} is not between 0 and {MOST_GPUS}")
        if number == 0:
            if not self.context.cpu_jobs:
                raise DroppedRow("CPU job (0 GPUs)", f"{column}: is 0, a CPU job")
            self.repair("CPU job taken for one GPU", f"{column}: is 0")
            return 1
        whole = math.ceil(number)
        if whole != number:
            self.repair("fraction of a GPU rounded up", f"{column}: {number:g}")
        return whole

    def moment(self, column: str) -> float:
        """A submission in seconds: a date (UTC without a zone; s since the epoch) or a number; all rows of a file must agree."""
        dated, at = parse_moment(column, self.text(column))
        if self.context.dated is None:
            self.context.dated = dated
        elif self.context.dated is not dated:
            kind = "a date" if self.context.dated else "a number"
            raise DroppedRow(f"{column} is not {kind}", f"{column}: {shown(self.values[column])} is not {kind}, as in the rows before")
        return at

    def span(self, start: str, end: str) -> float:
        """Seconds between two moments of a job."""
        if self.text(start) is None:
            raise DroppedRow("never started", f"{start}: is empty")
        if self.text(end) is None:
            raise DroppedRow("no end", f"{end}: is empty")
        began, ended = parse_moment(start, self.text(start))[1], parse_moment(end, self.text(end))[1]
        if ended < began:
            raise DroppedRow("end before start", f"{end}: {shown(self.values[end])} is before {start}, {shown(self.values[start])}")
        return ended - began

    def repair(self, reason: str, detail: str = "") -> None:
        self.context.tally.repair(self.line, reason, detail)


def finite(value: str) -> float | None:
    """The text as a finite number, None if it is none; 1_000, which Python accepts, is none."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in value else None


def parse_moment(column: str, value: str | None) -> tuple[bool, float]:
    """Whether it is a date, and its seconds."""
    if value is None:
        raise DroppedRow(f"no {column}", f"{column}: is empty")
    if "-" in value[1:] and "e-" not in value.lower():
        try:
            date = datetime.datetime.fromisoformat(value)
            return True, date.timestamp() if date.tzinfo else (date - EPOCH).total_seconds()
        except (ValueError, OverflowError):
            pass
    elif (number := finite(value)) is not None:
        return False, number
    raise DroppedRow(f"{column} is neither a date nor a number", f"{column}: {shown(value)} is neither a date nor a number")


def shown(value: str) -> str:
    """A wrong text, shortened to fit into a line."""
    return repr(value if len(value) <= 40 else value[:37] + "...")


class TraceSource:
    """A file, plain or gzipped whatever its name, read as lines of text up to `LONGEST_LINE`."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.progress = progress
        self.size = path.stat().st_size
        self.escaped: set[int] = set()  #: numbers of the lines with bytes that are not UTF-8

    def bytes(self, most: int) -> bytes:
        """The whole file unpacked; ValueError if that is more than ``most`` bytes."""
        with open(self.path, "rb") as raw, _gzip_errors(self.path):
            found = _unpacked(raw, self.path).read(most + 1)
        if len(found) > most:
            raise ValueError(f"{self.path}: is larger than {most >> 20} MiB unpacked; cut it into parts")
        return found

    def lines(self) -> Iterator[str]:
        """Lines with their line ends, without a byte order mark; ValueError for damaged gzip data and endless lines.

        Bytes that are not UTF-8 become ``\\xNN``, so that ids which differ in one of them stay different.
        """
        with open(self.path, "rb") as raw, _gzip_errors(self.path):
            text = io.TextIOWrapper(_unpacked(raw, self.path), encoding="utf-8-sig", errors="surrogateescape", newline="")
            for number, line in enumerate(iter(lambda: text.readline(LONGEST_LINE), ""), 1):
                if len(line) >= LONGEST_LINE:
                    raise ValueError(f"{self.path}:{number}: the line is longer than {LONGEST_LINE >> 20} MiB: this is no table")
                if self.progress is not None and number % 2000 == 0:
                    self.progress(raw.tell(), self.size)
                yield line if line.isascii() else self._escaped(number, line)

    def _escaped(self, number: int, line: str) -> str:
        try:
            line.encode()
        except UnicodeEncodeError:
            self.escaped.add(number)
            return line.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return line

    def head(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.lines() if line.strip()), "")

    def numbered(self) -> Numbered:
        return enumerate(self.lines(), 1)


@contextlib.contextmanager
def _gzip_errors(path: Path) -> Iterator[None]:
    """Damaged gzip data as an error for people."""
    try:
        yield
    except EOFError:
        raise ValueError(f"{path}: the gzip data is cut off; copy the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: the gzip data is damaged ({error}); copy the file again") from None


def _unpacked(raw: io.BufferedReader, path: Path) -> io.BufferedReader[Any]:
    """The stream, unpacked if it begins like gzip; ValueError for an archive, as which Philly, Helios and PAI are published."""
    stream: io.BufferedReader[Any] = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw))) if raw.peek(2)[:2] == GZIP else raw
    head = stream.peek(TAR_MARK_AT + len(TAR))
    if head.startswith(ZIP) or head[TAR_MARK_AT:].startswith(TAR):
        raise ValueError(f"{path}: is an archive: unpack it, and give the file in it that lists the jobs")
    if encoding := _other_encoding(head):
        raise ValueError(f"{path}: is {encoding} text: write it in UTF-8, such as with 'iconv -f {encoding} -t UTF-8'")
    return stream


def _other_encoding(head: bytes) -> str | None:
    """The encoding of a text that is not UTF-8, by its first bytes: a mark, or every second byte 0, as in UTF-16 of Latin letters."""
    if (marked := next((name for mark, name in BYTE_ORDER.items() if head.startswith(mark)), None)) is not None:
        return marked
    even, odd = any(head[:16:2]), any(head[1:16:2])
    return "UTF-16LE" if even and not odd and len(head) > 1 else "UTF-16BE" if odd and not even else None


def csv_rows(
    source: TraceSource,
    context: Context,
    columns: Sequence[str] | None = None,
    delimiter: str = ",",
    skip: int = 0,
    joined: Callable[[Numbered, int], Numbered] | None = None,
) -> Iterator[Row]:
    """The rows of a table as `Row`; ``columns`` if the file has no header, ``skip`` lines at its start that are no rows.

    Every line is a row: no published format has a field with a line break, so an open quote spoils only its own line. For a format that
    may have such fields (`stoker`), ``joined`` joins several lines into one; it gets the number of columns. Rows with another number of
    fields are dropped.
    """
    lines, split = source.numbered(), Splitter(delimiter).split
    for _ in range(skip):
        next(filter(_is_no_blank, lines), None)
    if columns is None:
        columns = header(split(next(filter(_is_no_blank, lines), (0, ""))[1]) or [])
        _refuse_doubles(source, columns)
    repeated, expected = Repeated(), len(columns)
    index = 0
    for line, text in lines if joined is None else joined(lines, expected):
        fields = split(text)
        if source.escaped and line in source.escaped:
            source.escaped.discard(line)
            context.tally.repair(line, "bytes that are not UTF-8, written as \\xNN", f"the row is {shown(text.strip())}")
        if fields is not None and len(fields) == expected:
            values = repeated.shared(zip(columns, fields))  # noqa: B905 - they are as many, and zip takes half as long if it need not ask
            yield Row(line, values, context, index)
        elif fields == []:
            continue
        else:
            there = (
                "is not CSV: a quote is not closed, or text follows it" if fields is None else f"has {len(fields)} fields, not {expected}"
            )
            context.tally.drop(line, "wrong number of fields", f"the row {there}")
        index += 1


def _is_no_blank(numbered: tuple[int, str]) -> bool:
    return not numbered[1].isspace()


class Splitter:
    """Splits lines, each of which is a row, into fields. It has one CSV reader for all, as making one takes half as long as using it."""

    def __init__(self, delimiter: str = ",") -> None:
        self._delimiter = delimiter
        self._given: list[str] = []
        self._reader = csv.reader(iter(self._given.pop, None), delimiter=delimiter, strict=True)

    def split(self, line: str) -> list[str] | None:
        """The fields of a line; [] for a blank line, None if it is not CSV."""
        if '"' not in line:  # this is enough then, and takes half as long
            bare = line.rstrip("\r\n")
            return bare.split(self._delimiter) if bare else []
        self._given.append(line)
        try:
            return next(self._reader)
        except (csv.Error, IndexError):  # IndexError: a quote is open, so the reader wants another line
            return None


def _refuse_doubles(source: TraceSource, columns: Sequence[str]) -> None:
    """Raise ValueError for two columns of one name, as it is unclear which one to read. Nameless columns are ignored."""
    seen: set[str] = set()
    for name in filter(None, columns):
        if name in seen:
            raise ValueError(f"{source.path}: the column {shown(name)} is there twice: take one out, or give it another name")
        seen.add(name)


def header(fields: Sequence[str]) -> list[str]:
    """Column names in the form that formats use."""
    return [name.strip().lower() for name in fields]
