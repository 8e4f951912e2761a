"""The report of a simulation study: runs as curves, their figures as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import format as fmt
from .sim_table import columns_for, row_of

if TYPE_CHECKING:
    from ...report.sim_plots import Comparison, RunCurve
    from ...sim.results.record import Average, Recorded
    from ...sim.study import Study

_PANELS = (  # column of sim_runs, its title, whether it is a time, whether it is a share
    ("jct_avg", "average JCT", True, False),
    ("jct_p99", "p99 JCT", True, False),
    ("wait_avg", "average queueing delay", True, False),
    ("makespan", "makespan", True, False),
    ("utilisation", "utilisation", False, True),
    ("fair_share", "jobs with rho of at most 1", False, True),
    ("slo_violations", "SLO violation rate", False, True),
    ("r_slo", "weighted SLO violation rate", False, False),
    ("preemptions", "preemptions", False, False),
)


def write_report(
    out: Path, study: Study, runs: Sequence[Recorded], averages: Sequence[Average], *, about: Sequence[str], wrong: Sequence[str]
) -> Path:
    """Figures and a page into ``out``; curves are of the first completed seed of each policy. The path of the page.

    ``about`` and ``wrong`` are sentences about the study, and about its failures.
    """
    from ...report.sim_page import Words, write
    from ...sim.results.history import AS_IT_WAS

    seeds = max(average.seeds for average in averages)
    over = f", mean ± standard deviation over {seeds} seeds, curves of the first" if seeds > 1 else ""
    jobs = max(run.row["jobs"] for run in runs)
    lead = f"Simulated, not measured: {fmt.counted(jobs, 'job')} on {study.cluster} ({fmt.counted(study.cluster.total, 'GPU')}){over}."
    if runs[0].outcome.run.choice.label == AS_IT_WAS:
        lead += f" {AS_IT_WAS.capitalize()}: measured."
    rows = [row_of(average) for average in averages]
    columns = columns_for(rows)
    words = Words(
        title=f"Simulated: {study.workload.name}",
        lead=lead,
        about=about,
        wrong=wrong,
        header=[column.header for column in columns],
        rows=[[column.text(row) for column in columns] for row in rows],
    )
    return write(comparison(study, runs, averages), out, words)


def comparison(study: Study, runs: Sequence[Recorded], averages: Sequence[Average]) -> Comparison:
    """The data of the figures."""
    from ...report.sim_plots import Comparison, Panel
    from ...sim.results.figures import extent

    first: dict[str, Recorded] = {}
    for run in runs:
        if run.outcome.result is not None:
            first.setdefault(run.outcome.run.choice.label, run)
    results = [run.outcome.result for run in first.values() if run.outcome.result]
    spans = [span for result in results if (span := extent(study.workload, result.fates, study.until))]
    begin, end = min((span[0] for span in spans), default=0.0), max((span[1] for span in spans), default=1.0)
    panels = [
        Panel(title, [one.mean[name] for one in averages], [one.spread.get(name) for one in averages], is_time, is_share)
        for name, title, is_time, is_share in _PANELS
    ]
    return Comparison(
        curves=[_curve(study, run) for run in first.values()],
        labels=[average.choice.label for average in averages],
        panels=panels,
        gpus=study.cluster.total,
        begin=begin,
        end=max(end, begin + 1.0),
    )


def _curve(study: Study, run: Recorded) -> RunCurve:
    from ...report.sim_plots import RunCurve
    from ...sim.cluster import Cluster
    from ...sim.results import figures

    result: Any = run.outcome.result
    done = figures.finished(result.fates)
    return RunCurve(
        label=run.outcome.run.choice.label,
        gpus=Cluster.parse(run.row["nodes"]).total,
        jct=figures.jct_of(study.workload, result.fates)[done],
        wait=figures.wait_of(study.workload, result.fates)[done],
        moments=result.usage.ts,
        busy=result.usage.busy.astype(float),
        waiting=result.usage.waiting.astype(float),
        stays=result.bars,
    )
