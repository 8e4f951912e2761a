"""Disk space of the jobs' directories on this host: checkpoints, logs, and all other files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from ..engine.protocol import MOST_JOB_FILES, JobFiles

UNIT = 1 << 20  #: sizes are reported in whole MiB, so that not each new line of a log is a change
MOST_ENTRIES = 10_000  #: counted of a job, so that no job can keep the agent from its work


def kept_files(home: Path) -> list[JobFiles]:
    """All jobs of this home that keep a MiB or more, by number; if there are too many to report, those that keep most."""
    found = []
    for folder in _folders(home / "jobs"):
        if folder.name.isdecimal() and len(folder.name) < 16 and (size := _size(folder.path) // UNIT * UNIT):
            found.append(JobFiles(job=int(folder.name), bytes=size))
    found = sorted(found, key=lambda one: -one.bytes)[:MOST_JOB_FILES]
    return sorted(found, key=lambda one: one.job)


def _folders(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # a job may change or remove its files at any time
        return []


def _size(folder: str) -> int:
    """Bytes on the disk below a directory, of `MOST_ENTRIES` at most; links are not followed, a file of two names counts twice."""
    total, seen, left = 0, 0, [folder]
    while left and seen < MOST_ENTRIES:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in itertools.islice(entries, MOST_ENTRIES - seen):
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total
