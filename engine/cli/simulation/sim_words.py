"""Words on a study besides its figures: the same on the terminal and on the page of its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .... import __version__
from ... import format as fmt
from ..output import Row
from .sim_options import DURATION, SETTINGS

if TYPE_CHECKING:
    from ...sim.results.record import Recorded
    from ...sim.study import Study


def remarks(study: Study, rows: Sequence[Row], runs: Sequence[Recorded]) -> Iterator[str]:
    """Sentences on the number of simulated jobs, on each policy's unfinished ones, and on tuning; ``rows`` are those of the table."""
    import numpy as np

    from ...sim.results.record import jobs_of

    counted = [run.row for run in runs] or [jobs_of(study)]
    jobs, large, late = (max(row[name] for row in counted) for name in ("jobs", "dropped", "not_submitted"))
    yield fmt.counted(jobs, "job") + "".join(
        f"; {count} {words} are left out"
        for count, words in ((large, "larger than the cluster"), (late, "submitted at --until or later"))
        if count
    )
    speeds = [row for row, profile in enumerate(study.workload.profiles) if profile.throughput is not None]
    if profiled := int(np.isin(study.workload.profile, speeds).sum()):
        yield f"{profiled} jobs are of models whose speed on other GPUs than they ask for is known"
    if study.workload.asked is not None:
        yield from _gangs(study)
    for row in rows:
        if row["finished"] < row["jobs"]:
            yield _ends(row)
    for run in runs:
        if run.outcome.tuned is not None:
            yield f"{run.outcome.run}: {_tuned(run.outcome.tuned)}"


def _gangs(study: Study) -> Iterator[str]:
    """Policies that give jobs exactly their requested GPUs, though they could run on other numbers too."""
    from ....policies.registry import load

    names = dict.fromkeys(run.choice.policy for run in study.runs)
    elastic = [name for name in names if getattr(load(name), "elastic", False)]
    rigid = [name for name in names if name not in elastic]
    if rigid:
        yield f"{', '.join(rigid)}: each job has the GPUs that it asks for"
    if elastic:
        yield f"{', '.join(elastic)}: each job has any number of GPUs that it can use"


def searches_ahead(study: Study) -> Iterator[str]:
    """The expected number of searches in the runs that tune themselves."""
    from ....policies.autosched.search import TRIALS
    from ...autosched.simulated_tuning import PERIOD

    last = min(study.until, float(study.workload.submitted.max()))
    for run in study.runs:
        if run.choice.auto:
            every = fmt.duration(PERIOD)
            count = int(last // PERIOD) + 1
            ahead = f"about {count:,} search{'es' * (count > 1)} of {TRIALS} trials each come, one every {every} while jobs are submitted"
            yield f"{run}: {ahead}, and more upon bursts and until the last one has ended"


def _tuned(did: Mapping[str, int]) -> str:
    from ...autosched.situation import MIN_HISTORY_JOBS

    if not did["searches"]:
        return f"it never searched: it waits for a history of {MIN_HISTORY_JOBS} jobs, and for one at hand"
    back = f", {did['taken_back']} of these changes had harmed and were taken back" if did["taken_back"] else ""
    return f"it tuned itself: {did['searches']} searches, {did['applied']} of them changed what was in force{back}"


def _ends(row: Row) -> str:
    finished, rejected, undecided = (_count(row[name]) for name in ("finished", "rejected", "undecided"))
    still = _count(row["jobs"] - row["finished"] - row["rejected"])
    mean = "on average " if row["seeds"] > 1 else ""
    ahead = f", {undecided} of these before their last deadline: neither kept nor violated" if row["undecided"] else ""
    jobs = "job" if finished == "1" else "jobs"
    return f"{row['label']}: {mean}{finished} {jobs} finished, {rejected} rejected, {still} not ended{ahead}"


def _count(mean: float) -> str:
    """A number of jobs, which may be a fraction over several seeds."""
    return f"{mean:.1f}".removesuffix(".0") if mean >= 0.1 or not mean else f"{mean:.1g}"


def about(study: Study, name: str, made: float) -> Iterator[str]:
    """The inputs of a study, so that it can be repeated: its trace, options and configurations; ``made``: its time."""
    yield f"Study {name}, by Stoker {__version__}, made {fmt.clock(made)}."
    digest = f", SHA-256 {study.source.sha256[:12]}…" if study.source.sha256 else ""
    yield f"Trace {study.workload.name}{digest}; nodes {study.cluster}."
    given = ", ".join(_settings(study)) or "nothing costs time, no guards hold, estimates are exact, and no run is cut off"
    yield f"Options: {given}; speeds of known models are {'used' if study.workload.profiles else 'not used'}."
    seeds = sorted({run.seed for run in study.runs})
    if seeds:
        yield f"Seeds {seeds[0]} to {seeds[-1]}." if len(seeds) > 1 else f"Seed {seeds[0]}."
    for label, keys in _configurations(study):
        yield f"Configuration of {label}: {keys}; all other keys have their defaults."


def _settings(study: Study) -> Iterator[str]:
    """Options that differ from the default, in the form to give them again."""
    from ...sim.run_options import Options

    defaults = Options()
    for setting in SETTINGS:
        value, default = (
            getattr(getattr(options, setting.part) if setting.part else options, setting.field) for options in (study.options, defaults)
        )
        if value != default:
            yield f"{setting.flag} {_plain(value)}{'s' if setting.type is DURATION else ''}"


def _plain(value: Any) -> str:
    """Neither rounded to minutes, as people read it, nor with powers of ten."""
    return f"{round(value, 6):.15g}" if isinstance(value, float) else str(value)


def _configurations(study: Study) -> Iterator[tuple[str, str]]:
    """The keys of each choice that differ from their defaults, since ``--config`` sets some that no label shows."""
    from ....policies import registry

    for choice in {run.choice.label: run.choice for run in study.runs}.values():
        defaults = {field.name: field.default for field in dataclasses.fields(registry.load(choice.policy).Config)}
        if other := ", ".join(f"{key}={_plain(value)}" for key, value in choice.config.items() if value != defaults[key]):
            yield choice.label, other
