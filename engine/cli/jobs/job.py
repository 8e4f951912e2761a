"""One job: `stoker show` and `stoker explain`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from ... import format as fmt
from ...jobs.states import FINAL, State
from .. import job_columns
from ..command import App, Command, examples, pass_app
from ..job_columns import start
from ..jobref import JOB, job_path, note_task
from ..output import Answer, Column, json_option, note, print_facts, print_table, section, state_style, write
from .forecasting import beside, forecast_of

Row = dict[str, Any]


def _gpus(job: Row) -> str:
    low, high = job["gpus_min"], job["gpus_max"]
    each = f", {fmt.size(job['gpu_memory'])} each" if job["gpu_memory"] else ""
    return (str(low) if low == high else f"{low} to {high}") + each


def _deadline(job: Row, tiers: list[Row], now: float) -> str:
    if len(tiers) > 1:
        return "; ".join(f"{fmt.moment(tier['deadline'], now)} for {tier['reward']:g}" for tier in tiers)
    return fmt.moment(job["deadline"], now)


def _state(job: Row, now: float) -> str:
    text = f"{job['state']} since {fmt.moment(job['state_since'], now)}"
    return text + (f": {job['state_reason']}" if job["state_reason"] not in (None, job["state"]) else "")


def _what(spec: Row) -> str:
    if spec.get("command"):
        import shlex

        return shlex.join(spec["command"])
    return str(spec.get("recipe") or spec.get("entrypoint") or fmt.MISSING)


def _progress(progress: Row | None, stop: Mapping[str, Any]) -> str:
    if progress is None:
        return fmt.MISSING
    step, total = progress["step"], progress["total_steps"]
    # A share of its maximum would be no measure of its progress.
    share = f" of at most {total}" if stop.get("metric") else f" of {total} ({fmt.percent(step / total)})" if total else ""
    parts = [f"step {step}{share}"]
    parts += [f"{name} {fmt.number(progress[name])}" for name in ("loss", "metric") if progress[name] is not None]
    if progress["seconds_per_step"]:
        parts.append(f"{fmt.duration(progress['seconds_per_step'])} a step")
    if progress["checkpoint_step"] is not None:
        parts.append(f"checkpoint at {progress['checkpoint_step']}")
    return ", ".join(parts)


def _ended(job: Row, now: float) -> str:
    if job["finished_at"] is None:
        return fmt.MISSING
    code = f" (exit code {job['exit_code']})" if job["exit_code"] is not None else ""
    return f"{fmt.moment(job['finished_at'], now)}: {job['outcome']}{code}"


def _facts(answer: Row, now: float) -> list[tuple[str, str]]:
    job, spec, origin, waiting = answer["job"], answer["job"]["spec"], answer["provenance"] or {}, answer["waiting"]
    commit = origin.get("git_commit")
    array = f"task {job['array_index']} of array {job['array_id']}" if job["array_id"] is not None else fmt.MISSING
    return [
        ("state", _state(job, now) + (" (held)" if job["held"] and job["finished_at"] is None else "")),
        ("waits", f"{waiting['reason']}; starts {fmt.expected(waiting['est_start'], now)}" if waiting else fmt.MISSING),
        ("runs", f"{job['kind']}: {_what(spec)}"),
        ("params", json.dumps(spec["params"], ensure_ascii=False) if spec.get("params") else fmt.MISSING),
        ("weights", f"job:{job['begin_from']}" if job["begin_from"] is not None else spec.get("weights") or ""),
        ("progress", _progress(answer["progress"], spec.get("stop") or {}) if job["kind"] != "infer" else ""),
        ("serving", fmt.serving(answer["serving"]) if answer.get("serving") else ""),
        ("input", fmt.shared_input(answer["shared_input"]) if answer.get("shared_input") else ""),
        ("replicas", fmt.replicas(answer["replicas"]) if answer.get("replicas") else ""),
        ("silent", silence(answer["silent"], now)),
        ("expected", fmt.expectation(answer["expected"]) if answer.get("expected") else ""),
        ("GPUs", _gpus(job)),
        ("pool", job["pool"]),
        ("user", job["owner"]),
        ("priority", str(job["priority"])),
        ("demand", job["demand"]),
        ("deadline", _deadline(job, answer["tiers"], now)),
        ("array", array),
        ("labels", " ".join(f"{key}={value}" for key, value in job["labels"].items())),
        ("submitted", fmt.moment(job["submitted_at"], now)),
        ("started", fmt.moment(job["first_start_at"], now)),
        ("ended", _ended(job, now)),
        ("run time", f"{fmt.duration(job['run_time'])} in ended leases, {fmt.duration(job['attained'])} of GPU-time"),
        ("attempts", f"{job['attempts']}, {job['failures']} failed, {job['preemptions']} preempted"),
        ("stops", _rule(spec.get("stop") or {})),
        ("retries", str(spec["retries"]["limit"]) if spec.get("retries", {}).get("limit") else ""),
        ("timeout", fmt.duration(spec["timeout"]) if spec.get("timeout") else ""),
        ("estimate", fmt.duration(spec["estimate"]) if spec.get("estimate") else ""),
        ("workdir", spec.get("workdir", "")),
        ("env", " ".join(f"{key}={value}" for key, value in spec.get("env", {}).items())),
        ("env file", spec.get("env_file") or ""),
        ("git", f"{commit}{' with uncommitted changes' if origin.get('git_diff') else ''}" if commit else ""),
        ("snapshot", origin.get("snapshot") or ""),
    ]


def silence(rows: list[Row], now: float) -> str:
    """The silent runners among those that a job is on."""
    if not rows:
        return ""
    return fmt.silence([row["node"] for row in rows], min(row["last_seen"] for row in rows), rows[0]["reported_at"], now)


def _rule(stop: Mapping[str, Any]) -> str:
    """The stopping rule in words."""
    end = f"after {stop['iterations']} iterations" if stop.get("iterations") else ""
    if not stop.get("metric"):
        return end
    reached = f"when {stop['metric']} is {'at least' if stop.get('mode', 'max') == 'max' else 'at most'} {stop['target']:g}"
    return f"{reached}, or {end}" if end else reached


_NEEDS = [
    Column("NEEDS", "needs", right=True),
    Column("NAME", "name", flexible=True),
    Column("STATE", "state", style=state_style),
    Column("MODE", "mode"),
    Column("MET", "met"),
]


def _share(lease: Mapping[str, Any]) -> str:
    """Its kind of sharing, and the jobs on the same GPUs."""
    if lease["share"] == "exclusive":
        return ""
    return f"{lease['share']}, with {', '.join(map(str, lease['beside']))}" if lease["beside"] else str(lease["share"])


def _lease_columns(now: float) -> list[Column]:
    def lasted(row: Any) -> str:
        return fmt.duration((row["ended_at"] or now) - row["started_at"]) if row["started_at"] else fmt.MISSING

    return [
        Column("LEASE", "id", right=True),
        Column("STATE", lambda row: row["outcome"] or row["state"]),
        Column("GRANTED", lambda row: fmt.relative(row["granted_at"], now)),
        Column("LASTED", lasted, right=True),
        Column("ON", lambda row: ", ".join(sorted(filter(None, row["nodes"]))), flexible=True, rank=1),
        Column("GPUS", lambda row: ", ".join(gpu for gpu in row["gpus"] if gpu), flexible=True, rank=2),
        Column("SHARE", _share, rank=3),
        Column("START", start, rank=2),
        Column("POLICY", "policy", rank=1),
        Column("MESSAGE", lambda row: row["message"] or row["stop_reason"] or "", flexible=True),
    ]


_EVENT_COLUMNS = [
    Column("WHEN", lambda row: fmt.clock(row["ts"])),
    Column("EVENT", lambda row: f"{row['kind']} {row['after'] or ''}".rstrip()),
    Column("BY", "actor", rank=1),
    Column("WHY", lambda row: row["reason"] or "", flexible=True),
]


@click.command(cls=Command)
@click.argument("job", type=JOB)
@click.option("--events", type=click.IntRange(min=0, max=50), default=10, show_default=True, help="Events to show, the newest.")
@json_option
@pass_app
@examples("stoker show 17", "stoker show bert-lr --events 50", "stoker show 17 --json")
def show(app: App, job: str, events: int) -> Answer:
    """Show everything about a job: state, progress, leases, dependencies, events, and origin.

    Of an array: its tasks, and the first one.
    """
    answer = app.client.get(job_path(job))
    note_task(job, answer)

    def print_it() -> None:
        now = time.time()
        write(f"job {answer['job']['id']}  {fmt.clean(answer['job']['name'])}\n")
        print_facts([(name, fmt.clean(value)) for name, value in _facts(answer, now)], indent=2)
        _print_tasks(answer, now)
        if answer["dependencies"]:
            section("Dependencies")
            print_table(answer["dependencies"], _NEEDS, "")
        if answer["leases"]:
            section("Leases")
            print_table(answer["leases"], _lease_columns(now), "")
        if events and answer["events"]:
            section("Events")
            print_table(answer["events"][:events][::-1], _EVENT_COLUMNS, "")

    return Answer(answer, print_it)


def _counts(answer: Row) -> str:
    """The number of an array's tasks in each state."""
    states: dict[str, int] = {}
    for group in answer["array"]["groups"]:
        states[group["state"]] = states.get(group["state"], 0) + group["tasks"]
    name = str(answer["job"]["name"]).rpartition("[")[0]
    held = sum(group["gpus"] for group in answer["array"]["groups"])
    on = f", on {fmt.counted(held, 'GPU')}" if held else ""
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"array {fmt.clean(name)}: {fmt.counted(len(answer['tasks']), 'task')}: {told}{on}"


def _print_tasks(answer: Row, now: float) -> None:
    if not answer.get("array"):
        return
    section("Tasks")
    write(f"{_counts(answer)}\n")
    print_table(answer["array"]["tasks"], job_columns.tasks(now), "")
    if (left := len(answer["tasks"]) - len(answer["array"]["tasks"])) > 0:
        note(f"and {fmt.counted(left, 'task')} more; 'stoker ps --all --arrays' lists all")


def _decision_columns(now: float) -> list[Column]:
    return [
        Column("WHEN", lambda row: fmt.relative(row["ts"], now)),
        Column("POLICY", lambda row: f"{row['policy']} ({row['code']})" if row["code"] else row["policy"]),
        Column("OUTCOME", "outcome", rank=1),
        Column("WHAT", "what", flexible=True),
        Column("WHY", lambda row: row["why"] or "", flexible=True),
    ]


def _blocker_columns(now: float) -> list[Column]:
    return [
        Column("ID", "id", right=True),
        Column("NAME", "name", flexible=True),
        Column("GPUS", "gpus", right=True),
        Column("STATE", "state", style=state_style),
        Column("ENDS", lambda row: _frees(row, now)),
    ]


def _frees(row: Mapping[str, Any], now: float) -> str:
    """The time when its GPUs may become free: with the job, or with its lease if that ends first."""
    end, lease_end = row["est_end"], row["lease_end"]
    if lease_end is None or (end is not None and end <= lease_end):
        return fmt.expected(end, now)
    return f"lease ends {fmt.expected(lease_end, now)}"


def deadline_line(deadline: Row, state: str, now: float) -> str:
    """The state or the outcome of a job's deadline."""
    at, estimate, verdict = deadline["at"], deadline["estimate"], deadline["verdict"]
    when = f"deadline {fmt.moment(at, now)}"
    if state in FINAL:
        away = fmt.duration(abs(at - estimate))
        early = f"{verdict} {away} before" if verdict == "met" else f"{verdict}: it {_ENDED[state]} {away} before"
        return f"{when}: missed by {away}" if estimate > at else f"{when}: {early}"
    done = "" if estimate is None else f"it should be done {fmt.expected(estimate, now)}"
    if verdict == "missed":
        return f"{when}: missed" + (f"; {done}" if done else "")
    return f"{when}{', ' if done else ''}{done}: {verdict}"


_ENDED: dict[str, str] = {State.COMPLETED: "completed", State.FAILED: "failed", State.CANCELLED: "was cancelled"}


_KNOWN = ("safe", "at risk")  #: risks of a future deadline with a known expected end of its job


@click.command(cls=Command)
@click.argument("job", type=JOB)
@json_option
@pass_app
@examples("stoker explain 17", "stoker explain bert-lr --json")
def explain(app: App, job: str) -> Answer:
    """Explain why a job waits, or its state: the policy's decision with its reason, and the holders of the GPUs.

    For a job with a deadline also the probability of keeping it. For an array: the reasons of its tasks, and the first one.
    """
    answer = app.client.get(job_path(job, "explain"))
    note_task(job, answer)
    known = answer["deadline"] is not None and answer["deadline"]["risk"] in _KNOWN  # the same knowledge as in listings
    answer["forecast"] = forecast_of(app.client, answer["job"]["id"]) if known else None

    def print_it() -> None:
        now = time.time()
        what, waiting, deadline = answer["job"], answer["waiting"], answer["deadline"]
        if answer.get("array"):
            write(f"{_counts(answer)}\n")
            print_table(answer["array"]["groups"], job_columns.groups(), "")
            write("\n")
        write(f"job {what['id']} {fmt.clean(what['name'])} {fmt.clean(answer['summary'])}\n")
        if answer["silent"]:
            write(f"  {fmt.clean(silence(answer['silent'], now))}\n")
        if waiting and waiting["est_start"] is not None:
            write(f"  it should start {fmt.expected(waiting['est_start'], now)}\n")
        if deadline:
            write(f"  {deadline_line(deadline, what['state'], now)}\n")
        if answer["forecast"]:
            for line in beside(answer["forecast"], deadline["risk"], given_up=deadline["given_up"], now=now):
                write(f"  {line}\n")
        if answer.get("expected"):
            write(f"  expected {fmt.clean(fmt.expectation(answer['expected']))}\n")
        if answer["blockers"]:
            section("Who holds the GPUs")
            print_table(answer["blockers"], _blocker_columns(now), "")
        if answer["decisions"]:
            section("What was decided")
            print_table(answer["decisions"], _decision_columns(now), "")

    return Answer(answer, print_it)
