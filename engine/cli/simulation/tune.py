"""`stoker tune`: the search for a policy's configuration on the coming workload."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ....policies.autosched.objectives import OBJECTIVES
from ... import format as fmt
from ...errors import NotFound, StokerError, UsageError
from ..command import App, Command, examples, pass_app
from ..output import Answer, Column, Row, json_option, note, print_facts, print_table, section, write
from ..running.policy import PolicyName
from .sim_options import DURATION
from .simulating import ON_RAY, on_ray, parse_nodes

if TYPE_CHECKING:
    from ....policies.autosched.search import Trial
    from ...autosched.search_process import SearchRequest

POLL = 0.3  #: seconds between looks at the daemon's search
_INSTEAD = "tune it when jobs wait, let it tune itself (stoker policy set POLICY --auto), or tune for a trace (stoker tune --trace FILE)"


@click.command(cls=Command)
@click.argument("pool", default="default", metavar="[POOL|history]")
@click.option("--objective", type=click.Choice(OBJECTIVES), default="jct", show_default=True,
              help="What is to be small: mean or 99th percentile of completion time, deadlines missed, unfairness, GPU-hours.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what is best, and change nothing.")
@click.option(
    "--trials", type=click.IntRange(2, 1000), default=40, show_default=True, help="Configurations to try, rejected ones included."
)
@click.option("--only", multiple=True, metavar="KEY", help="Tune this key only; may be repeated.")
@click.option("--range", "ranges", multiple=True, metavar="KEY=LOW:HIGH", help="A narrower range of a key.")
@click.option("--learn", is_flag=True, help="With --trace: predict the durations of jobs first, learnt from what came before.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the search.")
@click.option("--trace", metavar="TRACE", help="Tune for a moment of a trace in place of a pool.")
@click.option("-n", "--nodes", metavar="NODESxGPUS", help="With --trace: the cluster.")
@click.option(
    "-p", "--policy", type=PolicyName(), metavar="NAME[,KEY=VALUE]...", help="With --trace: the policy, and what is in force of it."
)
@click.option("--at", type=DURATION, metavar="DURATION", help="With --trace: the moment, since its start (default: half of it).")
@ON_RAY[0]
@ON_RAY[1]
@json_option
@pass_app
@examples(
    "stoker tune default --objective jct --dry-run",
    "stoker tune --trace week.csv -n 4x8 -p tiresias",
    "stoker tune --trace week.csv -n 4x8 -p tiresias,queues=2 --only threshold_1 --at 2d --json",
    "stoker tune --trace week.csv -n 4x8 -p tiresias --on ray",
    "stoker tune history",
)
def tune(app: App, pool: str, **given: Any) -> Answer:
    """Search for the configuration of a pool's policy that fits what is coming, and put it in force.

    Trials are simulated from the pool's present state, with the arrivals that its history lets expect. 'stoker tune history'
    lists what was tuned. On a trace nothing is put in force.
    """
    if pool == "history":
        return _history(app)
    only, ranges = tuple(given["only"]), _ranges(given["ranges"])
    if given["trace"] is not None:
        return _trace(app, given, only, ranges)
    for option in ("nodes", "policy", "at", "learn", "on", "ray_address"):
        if given[option]:
            raise UsageError(f"--{option.replace('_', '-')}: goes with --trace; a pool has its own")
    body = {"pool": pool, "objective": given["objective"], "dry_run": given["dry_run"], "trials": given["trials"], "only": only,
            "ranges": ranges, "seed": given["seed"]}  # fmt: skip
    answer = app.client.post("/v1/tune", body)
    while answer["state"] == "searching":
        time.sleep(POLL)
        answer = app.client.get("/v1/tune", pool=pool, search=answer["search"])
    if answer["state"] == "failed" and answer.get("idle"):
        words = f"pool {pool}: {answer['why']}; {_INSTEAD}"
        if not given["dry_run"]:
            raise StokerError(words)
        return Answer(answer, lambda: write(words + "\n"))
    if answer["state"] == "failed":
        raise StokerError(answer["why"])
    return Answer(answer, lambda: _show(answer), done="" if given["dry_run"] else f"pool {pool} was tuned: 'stoker tune history' tells how")


def _ranges(texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    ranges = {}
    for text in texts:
        key, _, both = text.partition("=")
        low, _, high = both.partition(":")
        try:
            ranges[key] = (float(low), float(high))
        except ValueError:
            key = ""
        if not key:
            raise UsageError(f"--range: {text!r} is not KEY=LOW:HIGH")
        if not all(map(math.isfinite, ranges[key])):
            raise UsageError(f"--range: {text!r}: LOW and HIGH are to be finite")
    return ranges


def _trace(app: App, given: Mapping[str, Any], only: tuple[str, ...], ranges: Mapping[str, tuple[float, float]]) -> Answer:
    from ....policies.own import prints_aside
    from ...autosched.search_process import SearchFailed, find_apart
    from ...autosched.summary import summary_of

    if given["nodes"] is None or given["policy"] is None:
        raise UsageError("--trace: needs the cluster and the policy too, such as -n 4x8 -p tiresias")
    head = on_ray(given)
    with prints_aside():
        request, words = _request(app, given, only, ranges)
    request = dataclasses.replace(request, ray=head)
    note(words)
    started = time.monotonic()
    try:
        found = find_apart(request, _told(given["trials"]))
    except SearchFailed as error:
        raise StokerError(str(error)) from None
    value = {**summary_of(found, request), "simulated": True, "trace": given["trace"], "at": request.situation.view.now, "applied": False,
             "arrivals": words, "wall_seconds": time.monotonic() - started}  # fmt: skip
    return Answer(value, lambda: _show(value))


def _request(
    app: App, given: Mapping[str, Any], only: tuple[str, ...], ranges: Mapping[str, tuple[float, float]]
) -> tuple[SearchRequest, str]:
    """The moment of the trace, and the words on what is expected then."""
    from ....policies.registry import NoSuchPolicy
    from ...autosched.moment_of_trace import DailyPredictor, situation_of, stand_at
    from ...autosched.search_process import SearchRequest
    from ...sim.run_options import Options
    from ...sim.simulation_error import SimulationError
    from ...sim.study import choose
    from ...traces.models import measured, profiles
    from ..tracing.trace_source import load_trace, workload_of

    cluster = parse_nodes(given["nodes"])
    trace = load_trace(given["trace"], lambda: app.client)
    workload = workload_of(trace, (*measured(trace.jobs), *profiles()))
    if not len(workload):
        raise UsageError(f"{trace.name} has no jobs")
    try:
        choice = choose([given["policy"]], [])[0]
    except NoSuchPolicy as error:
        raise NotFound(f"--policy: {error}") from None
    except ValueError as error:
        raise UsageError(f"--policy: {error}") from None
    if choice.auto:
        raise UsageError("--policy: auto is for 'stoker simulate'; here the search is made once, so leave it out")
    at = given["at"] if given["at"] is not None else 0.5 * float(workload.submitted[-1])
    try:
        simulation = stand_at(workload, cluster, choice.policy, choice.config, Options(), at)
    except SimulationError as error:
        raise StokerError(str(error)) from None
    pools = {job.key: job.pool or "" for job in trace.jobs}
    vcs = [pools.get(key, "") for key in workload.key]
    situation, words = situation_of(simulation, choice.policy, Options(), DailyPredictor() if given["learn"] else None, vcs)
    try:
        asked = given["objective"], given["trials"]
        return SearchRequest.of(situation, choice.config, *asked, only=only, ranges=ranges, seed=given["seed"]), words
    except ValueError as error:
        raise UsageError(str(error)) from None


def _told(trials: int) -> Any:
    """Says on a terminal how far it is."""
    import sys

    def told(number: int, trial: Trial) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{number + 1} of {trials} configurations\x1b[K" + ("\r\x1b[K" if number + 1 == trials else ""))
            sys.stderr.flush()

    return told


def _show(answer: Row) -> None:
    if answer.get("simulated"):
        section(f"Simulated: {answer['policy']} on {answer['trace']}, {fmt.duration(answer['at'])} after its start")
    else:
        section(f"Pool {answer['pool']}: {answer['policy']}")
    print_table(answer["keys"], [
        Column("KEY", "key"),
        Column("IN FORCE", lambda row: json.dumps(row["before"])),
        Column("BEST FOUND", lambda row: json.dumps(row["after"]) if row["before"] != row["after"] else "same"),
        Column("", "remark", rank=1),
    ], "nothing to tune")  # fmt: skip
    write("\n")
    print_facts(_facts(answer))
    if answer["failures"]:
        section("Trials that came to no end")
        print_table(answer["failures"], [Column("WHY", "why", flexible=True), Column("TRIALS", "trials")], "")


def _facts(answer: Row) -> list[tuple[str, str]]:
    counted = f"{answer['simulated_trials']} simulated, {answer['rejected']} rejected by the causal model, {answer['known']} known already"
    told = f"{answer['trials']} of {answer['asked_trials']} trials: {counted}, {answer['failed']} failed"
    return [
        (
            "predicted gain",
            f"{answer['gain']:.3f} × ({answer['objective']} {answer['objective_before']:.6g} → {answer['objective_after']:.6g})"
            + ("; with these jobs all that was simulated comes to the same" if answer["alike"] else ""),
        ),
        ("from", "; ".join(words for words in (f"{answer['jobs']} jobs at hand", answer["arrivals"], answer["durations"]) if words)),
        ("searched", told + (f"; {answer['stopped']}" if answer["stopped"] else "")),
        ("causal model", answer["model"]),
        ("seconds", f"{answer['seconds']:.1f}"),
        ("put in force", "yes" if answer["applied"] else "no"),
    ]


def _history(app: App) -> Answer:
    rows = app.client.get("/v1/tunings")["tunings"]

    def show() -> None:
        now = time.time()
        print_table(rows, [
            Column("WHEN", lambda row: fmt.relative(row["ts"], now)),
            Column("POOL", "pool"),
            Column("POLICY", "policy"),
            Column("OBJECTIVE", "objective"),
            Column("CHANGED", _changed, flexible=True),
            Column("PREDICTED", lambda row: _times(row["predicted_gain"])),
            Column("MEASURED", lambda row: _times(row["measured_gain"])),
            Column("WHAT", "outcome"),
            Column("WHY", "why", flexible=True, rank=1),
        ], "nothing was tuned yet")  # fmt: skip

    return Answer({"tunings": rows}, show)


def _times(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:.3f} ×"


def _changed(row: Row) -> str:
    before, after = row["before"], row["after"]
    return " ".join(f"{key}={json.dumps(after[key])}" for key in after if before.get(key) != after[key]) or "nothing"
