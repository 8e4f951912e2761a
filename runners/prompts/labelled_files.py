"""Labelled texts of a packaged set or a file, and what they must have to be tuned on. No torch: the command line looks at them too.

A file is read as it was meant, or refused with the line.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...engine.errors import UsageError, nearest
from ..recipes import TEXT_DATASETS
from ..recipes.texts import Labelled, Texts, load, split_by_class

log = logging.getLogger(__name__)

_HALF = re.compile("[\ud800-\udfff]")
_SHAPE = 'each sample is {"text": …, "label": …}'

_Read = tuple[int, object, object, str]  #: line that a sample begins in, its text, its label, or what is wrong with it


def read_labelled(data: str, folder: str = "") -> Texts:
    """A packaged set, or a file, whose path may count from a folder. UsageError says in one line why nothing can be tuned on it."""
    texts = load(data) if data in TEXT_DATASETS else _read_file(data, folder)
    _require_classes(data, texts)
    return texts


def _read_file(data: str, folder: str) -> Texts:
    path = Path(folder, Path(data).expanduser())
    if path.suffix.lower() not in (".csv", ".jsonl"):
        known = ", ".join(TEXT_DATASETS)
        raise UsageError(
            f"params.data: there is no set {data!r}{nearest(data, TEXT_DATASETS)}; there are {known}; or give FILE.csv or FILE.jsonl"
        )
    try:
        rows = samples_of(path)
    except OSError as error:
        raise UsageError(f"params.data: {path.absolute()} cannot be read: {error.strerror or error}") from None
    if again := len(rows) - len(set(rows)):
        log.info("%s has %d samples more than once; each counts once", path.name, again)
    return split_by_class(rows)


def samples_of(path: Path) -> list[Labelled]:
    """All samples, in order, without blanks around texts and labels. OSError: the file cannot be read.

    UsageError names the first line that cannot be used, and how many there are; or says which labels are at odds. A text that has two
    labels, and two ways to write one label, are somebody's mistakes: whatever was trained would be something else than was meant.
    """
    rows: list[Labelled] = []
    lines: list[int] = []
    faults: list[tuple[int, str]] = []
    for line, text, label, fault in (_csv if path.suffix.lower() == ".csv" else _jsonl)(path, _content(path)):
        if found := fault or _fault("text", text) or _fault("label", label):
            faults.append((line, found))
        else:
            whole = isinstance(label, float) and label.is_integer()  # to JSON, 1.0 is 1
            rows.append((str(text).strip(), str(int(label) if whole else label).strip()))  # type: ignore[call-overload]
            lines.append(line)
    if faults:
        line, fault = faults[0]
        more = f"; {len(faults)} lines cannot be used" if len(faults) > 1 else ""
        raise UsageError(f"params.data: {path.name}, line {line} {fault}{more}")
    _require_one_spelling(path, rows, lines)
    _require_one_label(path, rows, lines)
    return rows


def _content(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise UsageError(
            f"params.data: {path.name}, line {line} is not text in UTF-8 (byte 0x{byte:02x}); save the file as UTF-8"
        ) from None


def _csv(path: Path, content: str) -> Iterator[_Read]:
    rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] = []
    while True:
        line = rows.line_num + 1  # a cell in quotes may have many
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            raise UsageError(f"params.data: {path.name}, line {line} is not CSV: {error}") from None
        if not row:
            continue
        if not header:
            header = _header(path, row)
        elif any(cell.strip() for cell in row[len(header) :]):
            yield line, "", "", f"has {len(row)} cells, the first line {len(header)}; a text with a comma stands in quotes"
        else:
            named = dict(zip(header, row, strict=False))
            yield line, named.get("text"), named.get("label"), ""
    if not header:
        _header(path, [])


def _header(path: Path, row: list[str]) -> list[str]:
    names = [name.strip() for name in row]
    told = ", ".join(names) or "nothing"
    for column in ("text", "label"):
        if names.count(column) > 1:
            raise UsageError(f"params.data: {path.name} has two columns {column!r}; its first line names {told}")
        if column not in names:
            hint = "; cells are separated by commas" if len(names) == 1 and any(one in told for one in ";\t|") else ""
            raise UsageError(f"params.data: {path.name} has no column {column!r}; its first line names {told}{hint}")
    return names


def _jsonl(path: Path, content: str) -> Iterator[_Read]:
    for number, line in enumerate(io.StringIO(content, newline=None), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_mapping, parse_constant=float)
        except (ValueError, RecursionError):
            yield number, None, None, "is not JSON"
            continue
        row = row if isinstance(row, dict) else {}
        twice = next((f"has two values of {name!r}" for name in ("text", "label") if (name, True) in row), "")
        yield number, row.get("text"), row.get("label"), twice


def _mapping(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """Names that come twice are there as (name, True) too: JSON's own rule, that the last one holds, loses a label."""
    names = Counter(name for name, _ in pairs)
    return dict(pairs) | {(name, True): None for name, count in names.items() if count > 1}


def _fault(name: str, value: object) -> str:
    if isinstance(value, dict | list):
        return f"has no {name} but a list or a mapping; {_SHAPE}"
    if value is None or value != value or not str(value).strip():  # noqa: PLR0124 - NaN
        return f"has no {name}; {_SHAPE}"
    if "\0" in str(value):
        return f"has a NUL character in its {name}; is the file in UTF-8?"
    if _HALF.search(str(value)):
        return f"has half a character (\\ud800 to \\udfff, a lone surrogate) in its {name}; write the whole one"
    return ""


def _require_one_spelling(path: Path, rows: list[Labelled], lines: list[int]) -> None:
    counts = Counter(label for _, label in rows)
    first = {label: line for (_, label), line in zip(reversed(rows), reversed(lines), strict=True)}
    seen: dict[str, str] = {}
    for label in counts:
        other = seen.setdefault(" ".join(unicodedata.normalize("NFC", label).casefold().split()), label)
        if other != label:
            one, two = (f"{each!r} ({counts[each]} samples, the first in line {first[each]})" for each in (other, label))
            raise UsageError(f"params.data: {path.name}: the labels {one} and {two} differ by capitals or blanks only; write them alike")


def _require_one_label(path: Path, rows: list[Labelled], lines: list[int]) -> None:
    seen: dict[str, tuple[str, int]] = {}
    torn: dict[str, str] = {}
    for (text, label), line in zip(rows, lines, strict=True):
        other, before = seen.setdefault(text, (label, line))
        if other != label and text not in torn:
            torn[text] = f"line {line} has the label {label!r} for the text of line {before}, which has {other!r} there"
    if torn:
        texts = "1 text has" if len(torn) == 1 else f"{len(torn)} texts have"
        raise UsageError(f"params.data: {path.name}, {next(iter(torn.values()))}; {texts} two labels or more: keep one of each")


def _require_classes(data: str, texts: Texts) -> None:
    if not texts.classes:
        raise UsageError(f"params.data: {data} has no samples; there must be some of each label")
    if len(texts.classes) < 2:
        raise UsageError(f"params.data: all samples of {data} have the label {texts.classes[0]!r}; a tuning needs two labels or more")
    if len(texts.classes) > len(string.ascii_uppercase):
        raise UsageError(f"params.data: {data} has {len(texts.classes)} labels; {len(string.ascii_uppercase)} can be told apart at most")
    there = {label for _, label in texts.held_out} & {label for _, label in texts.train}
    if lacking := [name for label, name in enumerate(texts.classes) if label not in there]:
        raise UsageError(
            f"params.data: {data} has one sample of {lacking[0]!r}{f' and of {len(lacking) - 1} more labels' if lacking[1:] else ''}; "
            "bring two or more of each label: one is held out"
        )
