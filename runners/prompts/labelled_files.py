"""Labelled samples of a packaged set or a file, and the checks that they can be trained on. No torch: the command line checks them too.

A file that cannot be read as its author meant it is refused, with the line.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import random
import re
import string
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import UsageError, nearest
from ..texts import SPLIT_SEED, TEXT_DATASETS, Labelled, Texts, load, split_by_class

log = logging.getLogger(__name__)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
KINDS = (".csv", ".jsonl", ".parquet")
MOST_LETTERS = len(string.ascii_uppercase)  #: classes that a language model can be asked about, one letter each

_Read = tuple[int, object, object, str]  #: line in which a sample begins, its text, its label, and its fault (empty: it has none)


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of a file's columns."""

    text: str = "text"
    label: str = "label"

    @property
    def both(self) -> tuple[str, str]:
        return self.text, self.label

    @property
    def shape(self) -> str:
        return f'each sample is {{"{self.text}": …, "{self.label}": …}}'


TEXT_AND_LABEL = ColumnNames()


def read_labelled(
    data: str, folder: str = "", columns: ColumnNames = TEXT_AND_LABEL, held_out: str = "", most: int | None = MOST_LETTERS
) -> Texts:
    """A packaged set, or a file, whose path may be relative to a folder. UsageError says in one line why it cannot be trained on.

    ``held_out``: a file of held-out samples; without it, a fifth of each class is held out. ``most``: the most labels that may be there.
    """
    if data in TEXT_DATASETS:
        if held_out:
            raise UsageError(f"params.held_out: {data} has samples of its own that are held out; leave it out")
        texts = load(data)
    else:
        rows = _read_file("data", data, folder, columns)
        texts = split_by_file(rows, _read_file("held_out", held_out, folder, columns), held_out) if held_out else split_by_class(rows)
    require_classes(data, texts, most, held_out)
    return texts


def split_by_file(rows: Sequence[Labelled], held_out: Sequence[Labelled], name: str) -> Texts:
    """Train on all rows, and hold out the samples of another file, which may have no class of their own."""
    classes = tuple(sorted({label for _, label in rows}))
    if unknown := sorted({label for _, label in held_out} - set(classes)):
        raise UsageError(f"params.held_out: {name} has the label {unknown[0]!r}, which no sample of params.data has")
    if both := len({text for text, _ in rows} & {text for text, _ in held_out}):
        log.warning("%d of the samples that are held out are trained on too", both)
    numbered = [[(text, classes.index(label)) for text, label in sorted(set(part))] for part in (rows, held_out)]
    for part in numbered:
        random.Random(SPLIT_SEED).shuffle(part)
    return Texts(classes, *numbered)


def _read_file(field: str, data: str, folder: str, columns: ColumnNames) -> list[Labelled]:
    path = Path(folder, Path(data).expanduser())
    if path.suffix.lower() not in KINDS:
        known = ", ".join(TEXT_DATASETS)
        others = f"there is no set {data!r}{nearest(data, TEXT_DATASETS)}; there are {known}; or " if field == "data" else ""
        raise UsageError(f"params.{field}: {others}give FILE.csv, FILE.jsonl or FILE.parquet")
    try:
        rows = samples_of(path, columns, field)
    except OSError as error:
        raise UsageError(f"params.{field}: {path.absolute()} cannot be read: {error.strerror or error}") from None
    if again := len(rows) - len(set(rows)):
        log.info("%s has %d samples more than once; each counts once", path.name, again)
    return rows


def samples_of(path: Path, columns: ColumnNames = TEXT_AND_LABEL, field: str = "data") -> list[Labelled]:
    """All samples, in order, without blanks around texts and labels. OSError: the file cannot be read.

    UsageError names the first line that cannot be used, and how many there are. A text with two labels, and two spellings of one label, are
    errors too: they are mistakes of the file's author, and the training would learn something else than was meant.
    """
    rows: list[Labelled] = []
    lines: list[int] = []
    faults: list[tuple[int, str]] = []
    if columns.text == columns.label:
        raise UsageError(f"params.label_column: {columns.label!r} is the column of the texts too; name another one")
    kind = path.suffix.lower()
    unit = "row" if kind == ".parquet" else "line"
    content = _of_parquet(field, path, columns) if kind == ".parquet" else _content(field, path)
    for line, text, label, fault in (_csv if kind == ".csv" else _jsonl)(field, path, content, columns):
        if found := fault or _fault(columns.text, text, columns) or _fault(columns.label, label, columns):
            faults.append((line, found))
        else:
            whole = isinstance(label, float) and label.is_integer()  # to JSON, 1.0 is 1
            rows.append((str(text).strip(), str(int(label) if whole else label).strip()))  # type: ignore[call-overload]
            lines.append(line)
    if faults:
        line, fault = faults[0]
        more = f"; {len(faults)} {unit}s cannot be used" if len(faults) > 1 else ""
        raise UsageError(f"params.{field}: {path.name}, {unit} {line} {fault}{more}")
    _require_one_spelling(f"params.{field}: {path.name}", rows, lines, unit)
    _require_one_label(f"params.{field}: {path.name}", rows, lines, unit)
    return rows


def _of_parquet(field: str, path: Path, columns: ColumnNames) -> str:
    """The two columns as lines of JSON. A program of the engine reads them, as only the engine has DuckDB."""
    path.stat()
    command = [sys.executable, "-P", "-m", "stoker.engine.adhoc.parquet_rows", str(path), *columns.both]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"cannot be read: its reader ended with {done.returncode}"]
        raise UsageError(f"params.{field}: {path.name} {said[-1]}")
    return done.stdout


def _content(field: str, path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise UsageError(
            f"params.{field}: {path.name}, line {line} is not text in UTF-8 (byte 0x{byte:02x}); save the file as UTF-8"
        ) from None


def _csv(field: str, path: Path, content: str, columns: ColumnNames) -> Iterator[_Read]:
    rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] = []
    while True:
        line = rows.line_num + 1  # a cell in quotes may have many
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            raise UsageError(f"params.{field}: {path.name}, line {line} is not CSV: {error}") from None
        if not row:
            continue
        if not header:
            header = _header(field, path, row, columns)
        elif any(cell.strip() for cell in row[len(header) :]):
            yield line, "", "", f"has {len(row)} cells, the first line {len(header)}; a text with a comma stands in quotes"
        else:
            named = dict(zip(header, row, strict=False))
            yield line, named.get(columns.text), named.get(columns.label), ""
    if not header:
        _header(field, path, [], columns)


def _header(field: str, path: Path, row: list[str], columns: ColumnNames) -> list[str]:
    names = [name.strip() for name in row]
    told = ", ".join(names) or "nothing"
    for column in columns.both:
        if names.count(column) > 1:
            raise UsageError(f"params.{field}: {path.name} has two columns {column!r}; its first line names {told}")
        if column not in names:
            hint = "; cells are separated by commas" if len(names) == 1 and any(one in told for one in ";\t|") else ""
            raise UsageError(f"params.{field}: {path.name} has no column {column!r}; its first line names {told}{hint}")
    return names


def _jsonl(field: str, path: Path, content: str, columns: ColumnNames) -> Iterator[_Read]:
    for number, line in enumerate(io.StringIO(content, newline=None), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_mapping, parse_constant=float)
        except (ValueError, RecursionError):
            yield number, None, None, "is not JSON"
            continue
        row = row if isinstance(row, dict) else {}
        twice = next((f"has two values of {name!r}" for name in columns.both if (name, True) in row), "")
        yield number, row.get(columns.text), row.get(columns.label), twice


def _mapping(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """A mapping with a key (name, True) for each name that comes twice. JSON keeps the last of the two, and would lose a label."""
    names = Counter(name for name, _ in pairs)
    return dict(pairs) | {(name, True): None for name, count in names.items() if count > 1}


def _fault(name: str, value: object, columns: ColumnNames) -> str:
    if isinstance(value, dict | list):
        return f"has no {name} but a list or a mapping; {columns.shape}"
    if value is None or value != value or not str(value).strip():  # noqa: PLR0124 - NaN
        return f"has no {name}; {columns.shape}"
    if "\0" in str(value):
        return f"has a NUL character in its {name}; is the file in UTF-8?"
    if _LONE_SURROGATE.search(str(value)):
        return f"has half a character (\\ud800 to \\udfff, a lone surrogate) in its {name}; write the whole one"
    return ""


def _require_one_spelling(where: str, rows: list[Labelled], lines: list[int], unit: str) -> None:
    counts = Counter(label for _, label in rows)
    first = {label: line for (_, label), line in zip(reversed(rows), reversed(lines), strict=True)}
    seen: dict[str, str] = {}
    for label in counts:
        other = seen.setdefault(" ".join(unicodedata.normalize("NFC", label).casefold().split()), label)
        if other != label:
            one, two = (f"{each!r} ({counts[each]} samples, the first in {unit} {first[each]})" for each in (other, label))
            raise UsageError(f"{where}: the labels {one} and {two} differ by capitals or blanks only; write them alike")


def _require_one_label(where: str, rows: list[Labelled], lines: list[int], unit: str) -> None:
    seen: dict[str, tuple[str, int]] = {}
    torn: dict[str, str] = {}
    for (text, label), line in zip(rows, lines, strict=True):
        other, before = seen.setdefault(text, (label, line))
        if other != label and text not in torn:
            torn[text] = f"{unit} {line} has the label {label!r} for the text of {unit} {before}, which has {other!r} there"
    if torn:
        texts = "1 text has" if len(torn) == 1 else f"{len(torn)} texts have"
        raise UsageError(f"{where}, {next(iter(torn.values()))}; {texts} two labels or more: keep one of each")


def require_classes(data: str, texts: Texts, most: int | None = None, held_out: str = "") -> None:
    if not texts.classes:
        raise UsageError(f"params.data: {data} has no samples; there must be some of each label")
    if len(texts.classes) < 2:
        raise UsageError(f"params.data: all samples of {data} have the label {texts.classes[0]!r}; a tuning needs two labels or more")
    if most is not None and len(texts.classes) > most:
        raise UsageError(f"params.data: {data} has {len(texts.classes)} labels; {most} can be told apart at most")
    if not texts.held_out:
        raise UsageError("params.held_out: has no samples; there must be some to measure the accuracy on")
    if held_out:  # people have chosen it
        return
    there = {label for _, label in texts.held_out} & {label for _, label in texts.train}
    if lacking := [name for label, name in enumerate(texts.classes) if label not in there]:
        raise UsageError(
            f"params.data: {data} has one sample of {lacking[0]!r}{f' and of {len(lacking) - 1} more labels' if lacking[1:] else ''}; "
            "bring two or more of each label: one is held out"
        )
