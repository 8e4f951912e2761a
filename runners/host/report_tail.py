"""Reading the reports of ranks from where the daemon has acknowledged them.

Offsets move only when the daemon has acknowledged: after a lost answer, or a crash of the agent, the same records are sent
again with the same ``seq``, and the daemon takes each once. Nothing is skipped, whoever dies.
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

from ...engine.protocol import LARGEST, LONGEST_NAME, MOST_VALUES, Record
from ..lease.rundir import RunDir
from ..worker.script import is_text

log = logging.getLogger("stoker.runner")

_CHUNK = 1 << 20  #: bytes read of one file for one report
_REPORTS = re.compile(r"reports-([0-9]{1,9})\.jsonl")
_decoder = msgspec.json.Decoder(Record)


@dataclass(slots=True)
class Acked:
    """Contents of acked.json: what the daemon has taken of a lease."""

    run: RunDir
    states: set[str] = field(default_factory=set)
    offsets: dict[int, int] = field(default_factory=dict)  #: bytes of each rank's reports
    closed: bool = False  #: nothing of this lease will be sent any more
    told: dict[int, int] = field(
        default_factory=dict
    )  #: bytes of each rank up to which the job's log says what was left out; in memory alone

    @classmethod
    def load(cls, run: RunDir) -> Acked:
        try:
            content = run.read("acked.json") or {}
            offsets = {int(rank): int(offset) for rank, offset in content.get("offsets", {}).items()}
            return cls(run, set(content.get("states", ())), offsets, bool(content.get("closed")))
        except (ValueError, TypeError, AttributeError):  # cut short by a crash of the machine: all is sent again, which does no harm
            return cls(run)

    def save(self) -> None:
        """Five times a second: what a crash of the machine loses is only sent again."""
        content = {"states": sorted(self.states), "offsets": self.offsets, "closed": self.closed}
        try:
            self.run.replace("acked.json", content)
        except OSError as error:
            log.warning("cannot write %s: %s; it will be sent again after a restart", self.run.path / "acked.json", error)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one rank, and where its file has been read up to."""

    rank: int
    records: list[Record]
    offset: int
    more: bool  #: the file goes on
    left_out: str = ""  #: of lines behind ``told`` that are no reports, in words for the job's log


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


def read(run: RunDir, rank: int, offset: int, told: int = 0) -> Batch:
    """Whole lines from ``offset`` on. A line without its end is still being written, or never will be.

    ``told``: bytes of which it has been said already what was left out.
    """
    path = run.reports(rank)
    with path.open("rb") as file:
        file.seek(offset)
        chunk = file.read(_CHUNK)
    end = chunk.rfind(b"\n") + 1
    if end == 0 and len(chunk) == _CHUNK:
        log.error("%s: a line of more than %d bytes at %d is skipped", path, _CHUNK, offset)
        words = f"a line of {path.name} has more than {_CHUNK} bytes and is left out" if offset + _CHUNK > told else ""
        return Batch(rank, [], offset + _CHUNK, more=True, left_out=words)
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
    return Batch(rank, records, offset + end, more=len(chunk) == _CHUNK, left_out=_in_words(path, refused))


def _in_words(path: Path, refused: list[str]) -> str:
    if not refused:
        return ""
    lines = "1 line" if len(refused) == 1 else f"{len(refused)} lines"
    first = "" if len(refused) == 1 else ", the first"
    return f"{lines} of {path.name} {'is' if len(refused) == 1 else 'are'} no report and left out{first}: {refused[0]}"


def _parse(line: bytes) -> Record | str:
    """A report, or why it is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        record = msgspec.convert(_bounded(json.loads(line)), Record)
        msgspec.json.encode(record)  # half a surrogate pair, as in a file's name that is not UTF-8, cannot be passed on
        return record
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        return str(error)


def _bounded(content: Any) -> Any:
    """A loss that diverged is NaN or infinite, which JSON cannot say: such a value is left out, the step stays.

    So are values whose names are too long, and those beyond the number that one record may have.
    """
    if isinstance(content, dict) and isinstance(content.get("values"), dict):
        kept = ((name, value) for name, value in content["values"].items() if value is not None and not _refused(name, value))
        content["values"] = dict(itertools.islice(kept, MOST_VALUES))
    return content


def _refused(name: str, value: Any) -> bool:
    return (
        not 0 < len(name) <= LONGEST_NAME
        or (not name.isascii() and not is_text(name))
        or (isinstance(value, float) and not abs(value) <= LARGEST)
    )
