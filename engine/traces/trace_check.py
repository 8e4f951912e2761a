"""Rules for every trace from any source: those of the tables `traces` and `trace_jobs`, as ValueErrors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .formats.from_stoker import SCALES, STOPS
from .formats.rows import BIG, SMALL
from .trace import DEMANDS, TraceJob

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FILE_ENDINGS = (".csv", ".gz", ".json", ".trace")
LONGEST_SECONDS = 1e11  #: seconds: three thousand years
MOST_ITERATIONS = 1e15
_NO_SECONDS = "{}: must be a number of seconds from 0 to 1e11"


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        form = "up to 100 letters of A to Z, digits, '.', '_' and '-', a letter or digit first"
        raise ValueError(f"name: {name[:100]!r} is not made of {form}; give another with --name")
    if name.endswith(FILE_ENDINGS):
        raise ValueError(f"name: {name!r} would be taken for a file; give another with --name")
    return name


def check_jobs(jobs: Sequence[TraceJob], after: float = 0.0) -> float:
    """Check jobs that follow one submitted at ``after``; returns the submission of the last."""
    for job in jobs:
        if what := wrong(job):
            raise ValueError(f"job {job.key[:60]!r}: {what}")
        if job.submitted < after:
            raise ValueError(f"job {job.key[:60]!r}: submitted: {job.submitted:g} is before the job ahead of it; sort them")
        after = job.submitted
    return after


def wrong(job: TraceJob) -> str:
    """The mistake in a job, '' if there is none."""
    if not 0 <= job.submitted <= LONGEST_SECONDS:
        return _NO_SECONDS.format("submitted")
    if not 0 <= job.duration <= LONGEST_SECONDS:
        return _NO_SECONDS.format("duration")
    if not 1 <= job.gpus_min <= SMALL:
        return "gpus_min: must be at least 1"
    if not (job.gpus_max == 0 or job.gpus_min <= job.gpus_max <= SMALL):
        return "gpus_max: must be at least gpus_min, or 0"
    if abs(job.priority) > SMALL:
        return "priority: is out of range"
    if not (job.batch_size is None or 0 <= job.batch_size <= BIG):
        return "batch_size: is out of range"
    if not (job.iterations is None or 0 <= job.iterations <= MOST_ITERATIONS):
        return f"iterations: must be a number from 0 to {MOST_ITERATIONS:g}"
    if not (job.estimate is None or 0 <= job.estimate <= LONGEST_SECONDS):
        return _NO_SECONDS.format("estimate")
    return _wrong_words(job) or _wrong_deadlines(job)


def _wrong_words(job: TraceJob) -> str:
    if job.demand not in DEMANDS:
        return _not_one_of("demand", job.demand, DEMANDS)
    if job.stop is not None and job.stop not in STOPS:
        return _not_one_of("stop", job.stop, STOPS)
    if job.scale is not None and job.scale not in SCALES:
        return _not_one_of("scale", job.scale, SCALES)
    return ""


def _not_one_of(column: str, value: str, known: Iterable[str]) -> str:
    return f"{column}: {str(value)[:40]!r} is not one of {', '.join(known)}"


def _wrong_deadlines(job: TraceJob) -> str:
    if len(job.deadlines) != len(job.rewards):
        return "deadlines and rewards: differ in number"
    if (job.demand == "best-effort") != (not job.deadlines):
        return f"deadlines: a {job.demand} job has {len(job.deadlines)}"
    if not job.deadlines:
        return ""
    if not all(0 <= deadline <= LONGEST_SECONDS for deadline in job.deadlines) or list(job.deadlines) != sorted(job.deadlines):
        return f"deadlines: must be numbers of seconds from the submission, at most {LONGEST_SECONDS:g}, earliest first"
    if not all(0 <= reward <= 100 for reward in job.rewards):
        return "rewards: must be 0 to 100"
    return ""
