"""Labelled texts of a packaged set or a file, and what they must have to be tuned on. No torch: the command line looks at them too."""

from __future__ import annotations

import csv
import json
import string
from collections.abc import Iterator
from pathlib import Path

from ...engine.errors import UsageError, nearest
from ..recipes import TEXT_DATASETS
from ..recipes.texts import Labelled, Texts, load, split


def read_labelled(data: str, folder: str = "") -> Texts:
    """A packaged set, or a file, whose path may count from a folder. UsageError says in one line why nothing can be tuned on it."""
    texts = load(data) if data in TEXT_DATASETS else _read_file(data, folder)
    _require_classes(data, texts)
    return texts


def _read_file(data: str, folder: str) -> Texts:
    path = Path(folder, Path(data).expanduser())
    readers = {".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in readers:
        known = ", ".join(TEXT_DATASETS)
        raise UsageError(
            f"params.data: there is no set {data!r}{nearest(data, TEXT_DATASETS)}; there are {known}; or give FILE.csv or FILE.jsonl"
        )
    try:
        return split(readers[path.suffix](path))
    except OSError as error:
        raise UsageError(f"params.data: {path.absolute()} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"params.data: {path.name} is not {path.suffix[1:].upper()} in UTF-8: {error}") from None


def _csv(path: Path) -> Iterator[Labelled]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        for column in ("text", "label"):
            if column not in (rows.fieldnames or ()):
                there = ", ".join(rows.fieldnames or ()) or "nothing"
                raise UsageError(f"params.data: {path.name} has no column {column!r}; its first line names {there}")
        for row in rows:
            yield _labelled(path, rows.line_num, row["text"], row["label"])


def _jsonl(path: Path) -> Iterator[Labelled]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise UsageError(f"params.data: {path.name}, line {number} is not JSON") from None
            row = row if isinstance(row, dict) else {}
            yield _labelled(path, number, row.get("text"), row.get("label"))


def _labelled(path: Path, line: int, text: object, label: object) -> Labelled:
    for name, value in (("text", text), ("label", label)):
        if value is None or isinstance(value, dict | list) or not str(value).strip():
            raise UsageError(f'params.data: {path.name}, line {line} has no {name}; each sample is {{"text": …, "label": …}}')
    return str(text), str(label).strip()


def _require_classes(data: str, texts: Texts) -> None:
    if not texts.train:
        raise UsageError(f"params.data: {data} has no samples, or one; there must be some of each label")
    if len(texts.classes) < 2:
        raise UsageError(f"params.data: all samples of {data} have the label {texts.classes[0]!r}; a tuning needs two labels or more")
    if len(texts.classes) > len(string.ascii_uppercase):
        raise UsageError(f"params.data: {data} has {len(texts.classes)} labels; {len(string.ascii_uppercase)} can be told apart at most")
    for rows, what in ((texts.train, "to tune on"), (texts.held_out, "held out")):
        there = {label for _, label in rows}
        if lacking := [name for label, name in enumerate(texts.classes) if label not in there]:
            raise UsageError(
                f"params.data: {data} has too few samples of {lacking[0]!r}: none is left {what}; bring ten or more of each label"
            )
