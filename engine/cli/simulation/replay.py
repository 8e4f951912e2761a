"""`stoker replay`: other policies on this daemon's own history."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import click

from ... import format as fmt
from ...errors import Conflict, UsageError
from ..command import App, Command, examples, pass_app
from ..looking.report import since_option
from ..output import Answer, json_option, note
from .simulating import answer, make_study, parse_nodes, study_options

HISTORY_TIMEOUT = 120.0  #: seconds
_LEFT_OUT = {  #: remarks, by the counts of `History`
    "not_ended": "left out: {jobs} not ended yet",
    "never_ran": "left out: {jobs} ended without running",
    "servers": "left out: {jobs} that served a model, whose GPUs the simulated policies find free",
    "held_before": "left out: {jobs} of before --since that still held GPUs, which the simulated policies find free",
}


@click.command(cls=Command)
@click.option("--since", default="7d", show_default=True, metavar="WHEN", help="Jobs that were ready after it: a duration back, or a time.")
@click.option("--pool", default="default", show_default=True, help="Pool whose history it is.")
@click.option("-n", "--nodes", metavar="NODESxGPUS", help="Another cluster than the pool's, such as 2x8.")
@study_options(until=False)  # the real history has no cut
@json_option
@pass_app
@examples(
    "stoker replay --since 7d --policy srtf",
    "stoker replay --since 2026-01-31T18:00 --policy fifo --policy srtf --nodes 2x8 --out report",
)
def replay(app: App, since: str, pool: str, nodes: str | None, **given: Any) -> Answer:
    """Simulate other policies on the jobs that ran here.

    The ended jobs are simulated, each as long as it ran; the real outcome stands beside the policies.
    """
    from ...sim.results.history import History
    from ...sim.results.record import recorded

    now = time.time()
    begin = since_option(since, now)
    if begin is not None and begin > now:
        raise UsageError(f"--since: {since} lies in the future; give a time that has passed, or a duration back")
    history = History.of(app.client_within(HISTORY_TIMEOUT).get("/v1/simulations/history", pool=pool, since=begin))
    if not history.jobs:
        raise Conflict(f"no job of pool {pool!r} was ready after --since {since}, ran and has ended; go further back")
    if not nodes and not history.nodes:
        raise Conflict(f"pool {pool!r} has no GPUs now; name a cluster with --nodes")
    study = make_study(history.workload(), parse_nodes(nodes) if nodes else history.cluster(), given, history.source())
    pool_now = dataclasses.replace(study, cluster=history.cluster()) if history.nodes else study
    notes = [words.format(jobs=fmt.counted(count, "job")) for name, words in _LEFT_OUT.items() if (count := history.left_out[name])]
    for words in notes:
        note(words)
    return answer(app, study, given, notes, before=recorded(pool_now, history.outcome(study.cluster)))
