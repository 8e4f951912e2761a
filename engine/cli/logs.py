"""What a job has written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..errors import StokerError
from .command import App, Command, examples, pass_app
from .jobref import JOB, job_path, one_job
from .output import note, write_raw

if TYPE_CHECKING:
    from ..client import Client

LONG_POLL = 20.0  #: seconds a request waits for more


def follow(client: Client, ref: str, lease: int | None = None, lines: int | None = None, node: str | None = None) -> Iterator[str]:
    """A job's log from its last ``lines`` or 64 KiB on, as it grows, until the job (or the given lease) has ended.

    One lease is read to its end before a later one is begun, so that nothing between them is lost.
    """
    reading, last, file, offset = lease, lease, None, None
    while True:
        place = {"lines": lines} if offset is None else {"file": file, "offset": offset}
        answer = client.get(job_path(ref, "logs"), timeout=LONG_POLL + 30, lease=reading, wait=LONG_POLL, node=node, **place)
        found = answer["lease"]
        if reading is None and last is not None and found != last:
            reading = last = found
            file, offset = None, 0
            continue
        file, offset = (answer["file"], answer["offset"]) if found is not None else (None, None)
        if answer["text"]:
            reading = last = found
            yield answer["text"]
        elif answer["done"]:
            if lease is not None or reading is None:
                return
            reading = None


def print_log(client: Client, ref: str, lease: int | None = None, lines: int | None = None, node: str | None = None) -> None:
    for text in follow(client, ref, lease, lines, node):
        write_raw(text)


def _written_before(client: Client, ref: str, newest: int | None, node: str | None) -> int | None:
    """The lease before the newest one that has a log, if that has anything in it."""
    leases = [row["id"] for row in client.get(job_path(ref))["leases"]] if newest is not None else []
    for lease in sorted((lease for lease in leases if lease < (newest or 0)), reverse=True):
        try:
            if client.get(job_path(ref, "logs"), lease=lease, lines=1, node=node)["text"]:
                return int(lease)
        except StokerError:  # it has no log, or none any more
            continue
    return None


def _last(client: Client, ref: str, lease: int | None, lines: int | None, node: str | None) -> Iterator[str]:
    """The end of a log: the last 64 KiB, or so many lines as they were when it was asked."""
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


@click.command(cls=Command)
@click.argument("job", type=JOB)
@click.option("--follow", "-f", "following", is_flag=True, help="Go on printing until the job has ended.")
@click.option("--lease", type=int, help="Of that lease (attempt) in place of the newest; 'stoker show' lists them.")
@click.option("--lines", "-n", type=click.IntRange(min=0), help="Only the last N lines, in place of the last 64 KiB.")
@click.option("--node", metavar="RUNNER", help="Of the part of a gang there (default: that of its first node).")
@pass_app
@examples(
    "stoker logs 17",
    "stoker logs -f bert-lr",
    "stoker logs 17 --lease 4",
    "stoker logs 17 -n 20",
    "stoker logs -f -n 0 17",
    "stoker logs 17 --node gpu2",
)
def logs(app: App, job: str, following: bool, lease: int | None, lines: int | None, node: str | None) -> None:
    """Print the output of a job: the last 64 KiB of its newest lease, or its last lines.

    The log of a job on another host is fetched through the runner there. Once that is gone, the newest 1 MiB of each lease is left.
    """
    job = one_job(app.client, job)
    if following:
        print_log(app.client, job, lease, lines, node)
        return
    for text in _last(app.client, job, lease, lines, node):
        write_raw(text)
