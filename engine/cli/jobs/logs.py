"""`stoker logs`: the output of a job."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ....client.following import PATIENCE, Written, follow, read
from ...errors import StokerError, UsageError
from ...logfile import colourless
from ..command import App, Command, examples, pass_app
from ..jobref import JOB, job_path, one_job
from ..looking.report import since_option
from ..output import note, write_raw

if TYPE_CHECKING:
    from ...client import Client

STAMP = "%Y-%m-%d %H:%M:%S"  #: before lines, with --timestamps


def print_log(client: Client, ref: str, lease: int | None = None, lines: int | None = None, node: str | None = None) -> None:
    for written in follow(client, ref, lease, lines, node, patience=PATIENCE):
        write_raw(written.text)


def _written_before(client: Client, ref: str, newest: int | None, node: str | None) -> int | None:
    """The lease before the newest one with a log, if that log is not empty."""
    leases = [row["id"] for row in client.get(job_path(ref))["leases"]] if newest is not None else []
    for lease in sorted((lease for lease in leases if lease < (newest or 0)), reverse=True):
        try:
            if client.get(job_path(ref, "logs"), lease=lease, lines=1, node=node)["text"]:
                return int(lease)
        except StokerError:  # it has no log, or no longer
            continue
    return None


def _last(client: Client, ref: str, lease: int | None, lines: int | None, node: str | None) -> Iterator[str]:
    """The end of a log: the last 64 KiB, or so many lines as of the request."""
    answer = client.get(job_path(ref, "logs"), lease=lease, lines=lines, node=node)
    if not answer["text"] and lines != 0:
        if lease is None and (before := _written_before(client, ref, answer["lease"], node)) is not None:
            note(f"the newest attempt of job {ref} has written nothing yet; this is lease {before}, the one before")
            yield from _last(client, ref, before, lines, node)
            return
        note(f"job {ref} has written nothing" + ("" if answer["done"] else " yet"))
    left = lines
    while text := answer["text"]:
        yield text if left is None else "".join(f"{line}\n" for line in text.split("\n")[:left])[: len(text)]
        if not answer["more"] or left is None or left <= text.count("\n"):
            return
        left -= text.count("\n")
        answer = client.get(job_path(ref, "logs"), lease=answer["lease"], node=node, file=answer["file"], offset=answer["offset"])


class Lines:
    """Joins pieces to whole lines, each with the time of its writing, and keeps the wanted ones."""

    def __init__(self, pattern: re.Pattern[str] | None, timestamps: bool) -> None:
        self._pattern, self._timestamps = pattern, timestamps
        self._begun = ""  #: of an unfinished line
        self._time: float | None = None

    def take(self, written: Written) -> Iterator[str]:
        lines = written.text.split("\n")
        times = [*written.times, *[None] * len(lines)]
        for index, line in enumerate(lines):
            if not (index == 0 and self._begun):
                self._time = times[index]
            self._begun += line
            if index < len(lines) - 1:
                yield from self.rest("\n")

    def rest(self, end: str = "") -> Iterator[str]:
        """The line that has begun."""
        line, self._begun = self._begun + end, ""
        if line and (self._pattern is None or self._pattern.search(colourless(line))):
            when = "" if self._time is None else datetime.fromtimestamp(self._time).astimezone().strftime(STAMP)
            yield f"{when or ' ' * 19}  {line}" if self._timestamps else line


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise UsageError(f"--grep: {grep!r} is not a regular expression: {error}") from None


@click.command(cls=Command)
@click.argument("job", type=JOB)
@click.option("--follow", "-f", "following", is_flag=True, help="Go on printing until the job has ended.")
@click.option("--lease", type=int, help="Of that lease (attempt) in place of the newest; 'stoker show' lists them.")
@click.option("--lines", "-n", type=click.IntRange(min=0), help="Only the last N lines, in place of the last 64 KiB.")
@click.option("--node", metavar="RUNNER", help="Of the part of a gang there (default: that of its first node).")
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found; of the whole log, unless -n or --since says less.")
@click.option("--since", metavar="WHEN", help="Only what was written since then: a duration (10m: ten minutes ago) or a time.")
@click.option("--timestamps", "-t", is_flag=True, help="Before each line the local time at which it was written, to a second or so.")
@pass_app
@examples(
    "stoker logs 17",
    "stoker logs -f bert-lr",
    "stoker logs 17 --lease 4",
    "stoker logs 17 -n 20",
    "stoker logs -f -n 0 17",
    "stoker logs 17 --node gpu2",
    "stoker logs 17 --grep 'loss|nan' --timestamps",
    "stoker logs -f 17 --since 10m",
)
def logs(
    app: App,
    job: str,
    following: bool,
    lease: int | None,
    lines: int | None,
    node: str | None,
    grep: str | None,
    since: str | None,
    timestamps: bool,
) -> None:
    """Print the output of a job: the last 64 KiB of its newest lease, or its last lines.

    The log of a job on another host is fetched through its runner. If that is gone, the newest 1 MiB of each lease remains.
    Runners keep the times of lines beside a log; those of another host are not fetched.
    """
    if since is not None and lines is not None:
        raise UsageError("--since and --lines: each says where to begin; give one of them")
    pattern, begin = _pattern(grep), since_option(since, time.time())
    job = one_job(app.client, job)
    if pattern is None and begin is None and not timestamps:
        if following:
            print_log(app.client, job, lease, lines, node)
            return
        for text in _last(app.client, job, lease, lines, node):
            write_raw(text)
        return
    whole = pattern is not None and begin is None and lines is None
    shown = Lines(pattern, timestamps)
    if following:
        found = follow(app.client, job, lease, lines, node, since=begin, times=timestamps, whole=whole, patience=PATIENCE)
    else:
        found = read(app.client, job, lease, lines, node, since=begin, times=timestamps, whole=whole)
    for written in found:
        for line in shown.take(written):
            write_raw(line)
    for line in shown.rest():
        write_raw(line)
