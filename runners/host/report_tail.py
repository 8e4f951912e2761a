"""Reads the reports of ranks, beginning at the offset that the daemon has acknowledged.

Offsets move only when the daemon has acknowledged: after a lost answer, or a crash of the agent, the same records are sent
again with the same ``seq``, and the daemon takes each once. Nothing is lost if any process dies.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...engine.protocol import LARGEST_FIGURE, LONGEST_NAME, MOST_VALUES, Record
from ..lease.rundir import RunDir
from ..worker.script import is_text

log = logging.getLogger("stoker.runner")

_CHUNK = 1 << 20  #: bytes read of one file for one report
_REPORTS = re.compile(r"reports-([0-9]{1,9})\.jsonl")
_decoder = msgspec.json.Decoder(Record)


@dataclass(slots=True)
class Acked:
    """Contents of acked.json: how much of a lease's reports the daemon has."""

    run: RunDir
    states: set[str] = field(default_factory=set)
    offsets: dict[int, int] = field(default_factory=dict)  #: bytes of each rank's reports
    closed: bool = False  #: nothing more of this lease will be sent
    told: dict[int, int] = field(
        default_factory=dict
    )  #: bytes of each rank up to which the job's log names omitted lines; kept in memory only

    @classmethod
    def load(cls, run: RunDir) -> Acked:
        try:
            content = run.read("acked.json") or {}
            offsets = {int(rank): int(offset) for rank, offset in content.get("offsets", {}).items()}
            return cls(run, set(content.get("states", ())), offsets, bool(content.get("closed")))
        except (ValueError, TypeError, AttributeError):  # cut short by a crash of the machine: all is sent again, which is harmless
            return cls(run)

    def save(self) -> None:
        """Up to five times a second, so without fsync: after a crash of the machine some reports are sent again."""
        content = {"states": sorted(self.states), "offsets": self.offsets, "closed": self.closed}
        try:
            self.run.replace("acked.json", content)
        except OSError as error:
            log.warning("cannot write %s: %s; it will be sent again after a restart", self.run.path / "acked.json", error)


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Records of one rank, and the offset up to which its file was read."""

    rank: int
    records: list[Record]
    offset: int
    more: bool  #: the file has more
    left_out: str = ""  #: words for the job's log about omitted lines behind ``told``


def ranks(run: RunDir) -> list[int]:
    """Ranks that have reported."""
    return sorted(sizes(run))


def sizes(run: RunDir) -> dict[int, int]:
    """Bytes that each rank has reported."""
    found = {}
    for path in run.path.glob("reports-*.jsonl"):
        if (match := _REPORTS.fullmatch(path.name)) is not None and path.is_file():
            found[int(match[1])] = path.stat().st_size
    return found


def read(run: RunDir, rank: int, offset: int, told: int = 0) -> ReadRecords:
    """Whole lines from ``offset`` on. A line without its end is incomplete: it is still being written, or its writer died.

    ``told``: bytes whose omitted lines the log has named already.
    """
    path = run.reports(rank)
    with path.open("rb") as file:
        file.seek(offset)
        chunk = file.read(_CHUNK)
    end = chunk.rfind(b"\n") + 1
    if end == 0 and len(chunk) == _CHUNK:
        log.error("%s: a line of more than %d bytes at %d is skipped", path, _CHUNK, offset)
        words = f"a line of {path.name} has more than {_CHUNK} bytes and is left out" if offset + _CHUNK > told else ""
        return ReadRecords(rank, [], offset + _CHUNK, more=True, left_out=words)
    records, refused, position = [], [], offset
    for line in chunk[:end].splitlines(keepends=True):
        position += len(line)
        found = _parse(line)
        if isinstance(found, Record):
            records.append(found)
        elif position > told:
            refused.append(found)
    if refused:
        log.warning("%s: %d lines are not reports and are skipped, the first: %s", path, len(refused), refused[0])
    return ReadRecords(rank, records, offset + end, more=len(chunk) == _CHUNK, left_out=_in_words(path, refused))


def _in_words(path: Path, refused: list[str]) -> str:
    if not refused:
        return ""
    lines = "1 line" if len(refused) == 1 else f"{len(refused)} lines"
    first = "" if len(refused) == 1 else ", the first"
    return f"{lines} of {path.name} {'is' if len(refused) == 1 else 'are'} no report and left out{first}: {refused[0]}"


def _parse(line: bytes) -> Record | str:
    """A report, or why the line is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        record = msgspec.convert(_bounded(json.loads(line)), Record)
        msgspec.json.encode(record)  # half a surrogate pair, as from a file name that is not UTF-8, cannot be encoded
        return record
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        return str(error)


def _bounded(content: Any) -> Any:
    """A record without values that JSON cannot hold: a diverged loss is NaN or infinite. The step stays.

    Values with too long names are left out as well, and values beyond the number that a record may have.
    """
    if isinstance(content, dict) and isinstance(content.get("values"), dict):
        kept = ((name, value) for name, value in content["values"].items() if value is not None and not _refused(name, value))
        content["values"] = dict(itertools.islice(kept, MOST_VALUES))
    return content


def _refused(name: str, value: Any) -> bool:
    return (
        not 0 < len(name) <= LONGEST_NAME
        or (not name.isascii() and not is_text(name))
        or (isinstance(value, float) and not abs(value) <= LARGEST_FIGURE)
    )
