"""`stoker simulate`: policies on a trace, on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ... import format as fmt
from ...errors import UsageError
from ..command import App, Command, examples, pass_app
from ..output import Answer, json_option, note
from .simulating import answer, make_study, parse_nodes, study_options

if TYPE_CHECKING:
    from ...sim.study import WorkloadSource
    from ...sim.workload import Workload


@click.command(cls=Command)
@click.argument("trace", metavar="TRACE")
@click.option("-n", "--nodes", required=True, metavar="NODESxGPUS", help="The cluster: 100x8, or 4x8,2x4 for nodes of two kinds.")
@click.option("--no-profiles", is_flag=True, help="Known models, too, train as fast on any GPUs; elastic policies gain nothing then.")
@study_options(until=True)
@json_option
@pass_app
@examples(
    "stoker simulate philly.csv --policy fifo --policy srtf --nodes 300x8",
    "stoker simulate week.csv --policy srtf --policy srtf,hysteresis=1 --nodes 4x8,2x4 --costs thesis --out report",
    "stoker simulate week -p srtf -n 4x8 --config srtf.unknown=600 --estimate-error 0.2 --seeds 3 --json",
)
def simulate(app: App, trace: str, nodes: str, no_profiles: bool, **given: Any) -> Answer:
    """Simulate policies on a trace: a file, or a trace that was imported.

    The policies are those that run live, on a virtual clock. Costs and guards are off and estimates exact unless asked for.
    """
    cluster = parse_nodes(nodes)
    workload, source, notes = _workload(app, trace, profiled=not no_profiles)
    return answer(app, make_study(workload, cluster, given, source), given, notes)


def _workload(app: App, trace: str, *, profiled: bool) -> tuple[Workload, WorkloadSource, list[str]]:
    """The jobs, their source, and remarks on those left out."""
    from ...sim.study import WorkloadSource
    from ...traces.models import measured, profiles
    from ..tracing.trace_source import find_trace, workload_of

    found, number = find_trace(trace, lambda: app.client)
    if not profiled and (found.recipe or {}).get("fine_tuning"):
        raise UsageError(f"--no-profiles: {found.name} tells its jobs' work by how fast they train, so that is needed; leave it out")
    notes = []
    if found.dropped and found.recipe is None:  # what synth did not draw is no flaw of a file
        notes = [f"left out of {found.name}: " + ", ".join(f"{count:,} {fmt.clean(reason)}" for reason, count in found.dropped.items())]
    for words in notes:
        note(words)
    return workload_of(found, (*measured(found.jobs), *profiles()) if profiled else ()), WorkloadSource(found.sha256, number), notes
