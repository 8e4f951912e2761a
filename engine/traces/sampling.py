"""Choosing jobs of a trace: those of a window that fit, and from these a number of jobs or a load."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from ...policies.contract import Bools, Floats, Ints
from .. import format as fmt
from .formats.from_stoker import SCALES
from .formats.rows import EPOCH
from .trace import Trace, TraceJob

HOUR, DAY = 3600.0, 86_400.0
#: 002 ch. 3.5.1 prints "Small (0.5 GPU-hours), Medium (0.5-10 GPU-hours), and Large (10-64 GPU-hours)": read as (0, 0.5], (0.5, 10] and
#: (10, 64]. A longer job is large too, but is not drawn when jobs are drawn by scale.
SCALE_BOUNDS = (0.5 * HOUR, 10 * HOUR, 64 * HOUR)
MOST_JOBS = 2_000_000
_LEAST_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of jobs. Times are seconds from the source's start."""

    window: tuple[float, float] | None = None  #: submissions from the first time up to, but not at, the second; None: all
    min_duration: float = 1.0  #: jobs without duration have no service, no deadline and no speed
    max_duration: float | None = None
    max_gpus: int | None = None
    jobs: int | None = None  #: number of jobs; None: as many as ``load`` needs, or all
    load: float | None = None  #: GPU-time of the jobs divided by that of ``gpus`` in the time of arrivals
    gpus: int | None = None  #: GPUs of the cluster; jobs that ask for more are left out
    replace: bool = False  #: a job may be drawn more than once
    scales: tuple[float, float, float] | None = None  #: probabilities of small, medium and large (002 ch. 3.5.1); None: any jobs


@dataclass(frozen=True, slots=True)
class Chosen:
    jobs: list[TraceJob]  #: in the order of submission, times from the window's start
    start: float  #: start of the window, seconds from the source's start
    span: float  #: seconds in which jobs could arrive
    dropped: dict[str, int]


def scale_rows(service: Floats) -> Ints:
    """The row of `SCALES` for each job, by its service (GPU-seconds)."""
    return np.searchsorted(np.asarray(SCALE_BOUNDS[:2]), service, side="left").astype(np.int64)


def offered_load(service: Floats, gpus: int, span: float) -> float:
    """Arriving service (GPU-seconds) divided by the GPU-seconds of the cluster in ``span`` seconds."""
    return float(np.sum(service)) / (gpus * span)


def choose(source: Trace, choice: Choice, rng: np.random.Generator) -> Chosen:
    """Choose jobs of ``source``. Raises ValueError that names the wrong field and a remedy."""
    check(choice)
    submitted = np.array([job.submitted for job in source.jobs], dtype=np.float64)
    gpus = np.array([job.gpus_min for job in source.jobs], dtype=np.int64)
    duration = np.array([job.duration for job in source.jobs], dtype=np.float64)
    start, end = _window(source, submitted, choice)
    left_out = _left_out(choice, submitted, duration, gpus, start, end)
    keep = np.ones(len(submitted), dtype=bool)
    dropped = {}
    for reason, mask in left_out:
        if count := int((mask & keep).sum()):
            dropped[reason] = count
        keep &= ~mask
    candidates = np.flatnonzero(keep)
    if not len(candidates):
        listed = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise ValueError(f"no job of {source.name!r} is left to choose from: {listed or 'it has none'}")
    rows = candidates[_draw(duration[candidates] * gpus[candidates], end - start, choice, rng)]
    if lost := len(candidates) - len(np.unique(rows)):
        dropped["not sampled"] = lost
    return Chosen(_copies(source.jobs, rows, start, end, rng), start, end - start, dropped)


def check(choice: Choice) -> None:
    """Raise ValueError for a choice that no trace can fulfil."""
    if choice.jobs is not None and not 1 <= choice.jobs <= MOST_JOBS:
        raise ValueError(f"jobs: {choice.jobs} is outside 1 to {MOST_JOBS}")
    if choice.load is not None and not (choice.load > 0 and math.isfinite(choice.load)):
        raise ValueError(f"load: {choice.load:g} must be above 0, such as 0.9")
    if choice.jobs is not None and choice.load is not None:
        raise ValueError("jobs, load: give one of them; the other follows from it")
    if choice.load is not None and choice.gpus is None:
        raise ValueError("load: is of a cluster; give its nodes too, such as 100x8")
    if choice.gpus is not None and choice.gpus < 1:
        raise ValueError(f"nodes: {choice.gpus} GPUs are none")
    if choice.max_duration is not None and choice.max_duration < choice.min_duration:
        raise ValueError(f"max_duration: {fmt.duration(choice.max_duration)} is below min_duration, {fmt.duration(choice.min_duration)}")
    if not choice.min_duration > 0:
        raise ValueError(f"min_duration: {fmt.duration(choice.min_duration)} must be above 0")
    if choice.max_gpus is not None and choice.max_gpus < 1:
        raise ValueError(f"max_gpus: {choice.max_gpus} must be at least 1")
    _check_scales(choice)


def _check_scales(choice: Choice) -> None:
    if choice.scales is None:
        return
    if len(choice.scales) != len(SCALES) or not all(share >= 0 for share in choice.scales) or not math.isclose(sum(choice.scales), 1.0):
        raise ValueError(f"scales: {choice.scales} must be three probabilities that add to 1: small, medium, large")
    if choice.jobs is None and choice.load is None:
        raise ValueError("scales: say how many jobs to draw (jobs), or how much load")


def _window(source: Trace, submitted: Floats, choice: Choice) -> tuple[float, float]:
    """Start and end of the wanted window, cut to the trace."""
    first, last = (float(submitted[0]), float(submitted[-1])) if len(submitted) else (0.0, 0.0)
    if choice.window is None:
        return first, math.nextafter(last, math.inf)
    start, end = choice.window
    if not start < end:
        raise ValueError(f"window: {_days(start, end)} is empty: its end must come after its start")
    start = max(start, 0.0)  # a window of dates may begin before second 0, as at midnight before the first submission
    if not ((submitted >= start) & (submitted < end)).any():
        asked = f"no job of {source.name!r} was submitted in {_days(*choice.window)} from its start"
        raise ValueError(f"window: {asked}; its jobs came in {_days(first, last)}{_dates(source, first, last)}")
    return start, min(end, math.nextafter(last, math.inf))


def _days(start: float, end: float) -> str:
    return f"{fmt.number(start / DAY)} to {fmt.number(end / DAY)} days"


def _dates(source: Trace, first: float, last: float) -> str:
    """The same as dates, if the trace has them."""
    if source.starts_at is None:
        return ""
    try:
        begin, end = (EPOCH + datetime.timedelta(seconds=source.starts_at + moment) for moment in (first, last))
    except OverflowError:
        return ""
    return f", which is {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def _left_out(choice: Choice, submitted: Floats, duration: Floats, gpus: Ints, start: float, end: float) -> Iterator[tuple[str, Bools]]:
    """Reasons, and the jobs left out for each."""
    yield "outside the window", (submitted < start) | (submitted >= end)
    yield f"shorter than {fmt.duration(choice.min_duration)}", duration < choice.min_duration
    if choice.max_duration is not None:
        yield f"longer than {fmt.duration(choice.max_duration)}", duration > choice.max_duration
    if choice.max_gpus is not None:
        yield f"more than {fmt.counted(choice.max_gpus, 'GPU')}", gpus > choice.max_gpus
    if choice.gpus is not None:
        yield "larger than the cluster", gpus > choice.gpus
    if choice.scales is not None:
        yield "more than 64 GPU-hours", duration * gpus > SCALE_BOUNDS[-1]


def _draw(service: Floats, span: float, choice: Choice, rng: np.random.Generator) -> Ints:
    """Rows of the candidates, in the order in which they were drawn."""
    if choice.jobs is not None:
        return _first(choice.jobs, service, choice, rng)
    if choice.load is not None and choice.gpus is not None:
        if span < 1.0:
            raise ValueError("load: all jobs arrive in the same second, so there is no time to spread a load over; ask for jobs")
        return _worth(choice.load * choice.gpus * span, service, choice, rng, choice.load)
    return np.arange(len(service), dtype=np.int64)


def _first(count: int, service: Floats, choice: Choice, rng: np.random.Generator) -> Ints:
    if count > len(service) and not choice.replace:
        raise ValueError(f"jobs: {count} are asked for and there are {len(service)} to choose from; ask for fewer, or add replace")
    rows = _chunk(count, service, choice, rng)
    if len(rows) < count:
        raise ValueError(f"jobs: {_exhausted(service, choice)} after {len(rows)} of {count} jobs; ask for fewer, or add replace")
    return rows[:count]


def _worth(target: float, service: Floats, choice: Choice, rng: np.random.Generator, load: float) -> Ints:
    """As many draws as come nearest to ``target`` GPU-seconds. The draws do not depend on the jobs' sizes: leaving out jobs that
    exceed the target would make a workload without large jobs."""
    rows = _chunk(len(service), service, choice, rng)
    while choice.replace and service[rows].sum() < target:
        if len(rows) > MOST_JOBS:
            raise ValueError(f"load: {load:g} would take more than {MOST_JOBS} jobs; ask for less")
        rows = np.concatenate([rows, _chunk(max(len(rows), _LEAST_CHUNK), service, choice, rng)])
    worth = np.cumsum(service[rows])
    above = int(np.searchsorted(worth, target))
    total = float(worth[-1]) if len(worth) else 0.0
    if above == len(rows) and target - total > 0.01 * target:
        most = load * total / target
        why = f"{_exhausted(service, choice)} at a load of {most:.3g}"
        raise ValueError(f"load: {why}, {load:g} is asked for; ask for less, or add replace")
    below = max(above - 1, 0)
    nearer_above = above < len(rows) and worth[above] - target <= target - (worth[below] if above else 0.0)
    return rows[: (above if nearer_above else below) + 1]


def _chunk(count: int, service: Floats, choice: Choice, rng: np.random.Generator) -> Ints:
    """Up to ``count`` draws; fewer when a scale has run out of jobs."""
    if choice.scales is None:
        if choice.replace:
            return rng.integers(0, len(service), size=count, dtype=np.int64)
        return rng.permutation(len(service))[:count].astype(np.int64)
    scale = scale_rows(service)
    drawn = rng.choice(len(SCALES), size=count, p=choice.scales)
    rows = np.full(count, -1, dtype=np.int64)
    for row in range(len(SCALES)):
        members, places = np.flatnonzero(scale == row), np.flatnonzero(drawn == row)
        if choice.replace and len(members):
            rows[places] = rng.choice(members, size=len(places))
        else:
            some = rng.permutation(members)[: len(places)]
            rows[places[: len(some)]] = some
    lacking = np.flatnonzero(rows < 0)
    if len(lacking) and choice.replace:
        raise ValueError(f"scales: there is no {SCALES[drawn[lacking[0]]]} job to draw")
    return rows[: lacking[0]] if len(lacking) else rows


def _exhausted(service: Floats, choice: Choice) -> str:
    if choice.scales is None:
        return f"the {len(service)} jobs that there are are used up"
    have = np.bincount(scale_rows(service), minlength=len(SCALES))
    there = ", ".join(f"{count} {name}" for name, count in zip(SCALES, have.tolist(), strict=True))
    return f"the jobs of one scale are used up (there are {there})"


def _copies(jobs: Sequence[TraceJob], rows: Ints, start: float, end: float, rng: np.random.Generator) -> list[TraceJob]:
    """The drawn jobs. Further copies of a job are submitted at another time of the same hour: at the same time they would be a burst
    that the source does not have."""
    taken = {jobs[row].key for row in rows.tolist()}
    seen: dict[int, int] = {}
    made = []
    for row, place in zip(rows.tolist(), rng.random(len(rows)).tolist(), strict=True):
        job = jobs[row]
        key, moment = job.key, job.submitted
        seen[row] = copy = seen.get(row, 0) + 1
        if copy > 1:
            hour = start + math.floor((moment - start) / HOUR) * HOUR
            moment = min(hour + place * (min(hour + HOUR, end) - hour), math.nextafter(end, start))
            while (key := f"{job.key}#{copy}") in taken:
                copy += 1
            taken.add(key)
        made.append((moment, row, replace(job, key=key, submitted=moment - start, raw=None)))
    return [job for _, _, job in sorted(made, key=lambda one: one[:2])]
