"""What must hold after a crash test, looked at from the outside: the database file, the files of the runs, the jobs' own diary."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
from chaos_load import Accepted, Ledger
from e2e import is_server
from stoker.engine.home import Home
from stoker.engine.jobs.states import FINAL, State, legal
from stoker.runners.host.report_tail import Acked, ranks
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import ENV_TAG, RunDir

#: how jobs of each kind end, unless they are cancelled; those that wait for others are judged by these
EXPECTED = defaultdict(lambda: State.COMPLETED, {"doomed": State.FAILED, "slow": State.FAILED})
#: tables with a primary key
KEYS = {"jobs": ("id",), "leases": ("id",), "workers": ("lease_id", "node_id"), "report_marks": ("lease_id", "rank"), "events": ("seq",),
        "progress": ("job_id",), "provenance": ("job_id",), "decisions": ("id",), "nodes": ("id",), "gpus": ("id",)}  # fmt: skip


def examine(home: Home, diary: Path, ledger: Ledger) -> list[str]:
    """Everything that is wrong, in words. No daemon may have the database open."""
    lines = [json.loads(line) for line in diary.read_text().splitlines()] if diary.exists() else []
    with duckdb.connect(str(home.database), read_only=True) as con:
        found = Found(con, home, lines, ledger)
        return [f"{check.__name__.replace('_', ' ')}: {words}" for check in CHECKS for words in check(found)]


class Found:
    """What was found, read once."""

    def __init__(self, con: duckdb.DuckDBPyConnection, home: Home, diary: list[dict[str, Any]], ledger: Ledger) -> None:
        self.con, self.home, self.diary, self.ledger = con, home, diary, ledger
        self.runs = RunDir.find(home.path)
        self.states = {job: State(state) for job, state in self.rows("SELECT id, state FROM jobs")}
        self.events: dict[int, list[tuple[str | None, str]]] = defaultdict(list)
        for job, before, after in self.rows("SELECT job_id, before, after FROM events WHERE kind = 'job.state' ORDER BY seq"):
            self.events[job].append((before, after))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.con.execute(query).fetchall()


def every_acknowledged_submission_is_there_once(found: Found) -> Iterator[str]:
    there = defaultdict(list)
    for job, key in found.rows("SELECT id, idempotency_key FROM jobs"):
        there[key].append(job)
    for key, accepted in found.ledger.accepted.items():
        if there[key] != [accepted.job]:
            yield f"{key} was acknowledged as job {accepted.job}; the table has {there[key]}"
    for key in there.keys() - found.ledger.accepted.keys():
        if there[key]:
            yield f"{key}: jobs {there[key]} that were never acknowledged, although the client insists until they are"
    yield from (f"one key, two answers: {words}" for words in found.ledger.changed)


def every_job_ends_once(found: Found) -> Iterator[str]:
    for job, state in found.states.items():
        finals = [after for _, after in found.events[job] if after in FINAL]
        if finals != [state]:
            yield f"job {job} is {state}; its final events are {finals}"


def every_job_ends_as_it_should(found: Found) -> Iterator[str]:
    """Only what was wrong with a job itself, or a person, may keep it from completing: never that something was killed."""
    reasons = dict(found.rows("SELECT id, state_reason FROM jobs"))
    for accepted in sorted(found.ledger.accepted.values(), key=lambda one: one.job):
        state = found.states.get(accepted.job)
        allowed = _allowed(accepted, found.states)
        if state is not None and state not in allowed:
            yield f"job {accepted.job} ({accepted.kind}) is {state}, not {' or '.join(sorted(allowed))}: {reasons[accepted.job]}"


def _allowed(accepted: Accepted, states: dict[int, State]) -> set[State]:
    unmet = any(mode == "ok" and states[job] is not State.COMPLETED for job, mode in accepted.needs)
    usual = State.CANCELLED if unmet else EXPECTED[accepted.kind]
    return {usual, State.CANCELLED} if accepted.cancelled else {usual}


def every_history_is_legal(found: Found) -> Iterator[str]:
    for job, state in found.states.items():
        chain = found.events[job]
        if not chain or chain[0] != (None, State.SUBMITTED):
            yield f"job {job} begins with {chain[:1]}"
            continue
        for (_, before), (claimed, after) in pairwise(chain):
            if claimed != before or not legal(State(before), State(after)):
                yield f"job {job} goes from {before} (said to be {claimed}) to {after}"
        if chain[-1][1] != state:
            yield f"job {job} is {state}, its last event says {chain[-1][1]}"


def nothing_ran_twice_at_once(found: Found) -> Iterator[str]:
    """By the jobs' own word: kernel locks that were held already, and times that overlap."""
    for line in found.diary:
        if line["what"] == "clash":
            yield f"lease {line['lease']} of job {line['job']} (pid {line['pid']}) began while another process held {line['lock']}"
    spans = [*_diary_spans(found), *_training_spans(found)]
    for of, key in (("job", lambda span: [span["job"]]), ("slot", lambda span: span["gpus"])):
        yield from _overlaps(of, spans, key)
    for lease, node_rank, count in _begins(found):
        if count > 1:
            yield f"lease {lease} (node {node_rank}) was begun {count} times"


def _begins(found: Found) -> Iterator[tuple[int, int, int]]:
    for (lease, node_rank), count in Counter((x["lease"], x["node_rank"]) for x in found.diary if x["what"] == "begin").items():
        yield lease, node_rank, count


def _diary_spans(found: Found) -> Iterator[dict[str, Any]]:
    """From the first to the last line that each process wrote."""
    spans: dict[tuple[int, int, int], dict[str, Any]] = {}
    for line in found.diary:
        key = (line["lease"], line["node_rank"], line["pid"])
        span = spans.setdefault(key, {**line, "first": line["wall"]})
        span["last"] = line["wall"]
    yield from spans.values()


def _training_spans(found: Found) -> Iterator[dict[str, Any]]:
    """From the first to the last report of each lease that a recipe ran."""
    for run in found.runs:
        assignment = run.read("assignment.json") or {}
        if assignment.get("spec", {}).get("recipe") and (records := read_reports(run, 0)):
            yield {**assignment, "first": records[0]["ts"], "last": records[-1]["ts"]}


def _overlaps(of: str, spans: Iterable[dict[str, Any]], keys: Callable[[dict[str, Any]], list[Any]]) -> Iterator[str]:
    by_key = defaultdict(list)
    for span in spans:
        for key in keys(span):
            by_key[key].append(span)
    for key, all_of in by_key.items():
        ordered = sorted(all_of, key=lambda span: span["first"])
        for one, next_one in pairwise(ordered):
            if next_one["first"] < one["last"] and (of != "job" or one["lease"] != next_one["lease"]):
                early = one["last"] - next_one["first"]
                yield f"{of} {key}: lease {next_one['lease']} began {early:.3f} s before lease {one['lease']} ended"


def read_reports(run: RunDir, rank: int, upto: int | None = None) -> list[dict[str, Any]]:
    """Whole lines of a rank's reports, up to a number of bytes; what a garbler wrote is none."""
    try:
        content = run.reports(rank).read_bytes()[:upto]
    except FileNotFoundError:
        return []
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def every_acknowledged_metric_is_there_once(found: Found) -> Iterator[str]:
    stored = Counter(found.rows("SELECT lease_id, rank, seq, step, name, value FROM metrics"))
    yield from (f"{row} is stored {count} times" for row, count in stored.items() if count > 1)
    written: set[tuple[Any, ...]] = set()
    for run in found.runs:
        acked = Acked.load(run)
        for rank, offset in acked.offsets.items():
            known = {*_values(run, rank, offset)}
            written |= known
            if lost := known - stored.keys():
                yield f"lease {run.lease}, rank {rank}: {len(lost)} acknowledged values are not in the table, such as {min(lost)}"
        for rank in ranks(run):
            if acked.closed and len(read_reports(run, rank)) != len(read_reports(run, rank, acked.offsets.get(rank, 0))):
                yield f"lease {run.lease}, rank {rank}: closed before all its reports were acknowledged"
    if made_up := stored.keys() - written:
        yield f"{len(made_up)} stored values that no worker has written, such as {min(made_up)}"


def _values(run: RunDir, rank: int, offset: int) -> Iterator[tuple[Any, ...]]:
    for record in read_reports(run, rank, offset):
        for name, value in record.get("values", {}).items():
            if name.isascii():  # the load has no others but those of garblers, which cannot be stored
                yield run.lease, rank, record["seq"], record["step"], name, float(value)


def every_lease_has_ended(found: Found) -> Iterator[str]:
    for lease, job, state in found.rows("SELECT id, job_id, state FROM leases WHERE state <> 'ended'"):
        yield f"lease {lease} of job {job} is {state}"
    for job, lease in found.rows("SELECT id, lease_id FROM jobs WHERE lease_id IS NOT NULL"):
        yield f"job {job} holds lease {lease}"
    for lease, node in found.rows("SELECT lease_id, node_id FROM workers WHERE state <> 'exited'"):
        yield f"the worker of lease {lease} on {node} has not exited"
    for run in found.runs:
        if (run.path / "assignment.json").exists() and not Acked.load(run).closed:
            yield f"the runner has not told all of lease {run.lease}"
    double = """SELECT g.gpu_id, a.id, b.id FROM leases a JOIN lease_gpus g ON g.lease_id = a.id JOIN lease_gpus h USING (gpu_id)
                JOIN leases b ON b.id = h.lease_id WHERE a.id < b.id AND b.granted_at < a.ended_at"""
    for gpu, first, second in found.rows(double):
        yield f"GPU {gpu} was granted to lease {second} before lease {first} had ended"


def nothing_began_before_what_it_needs_had_ended(found: Found) -> Iterator[str]:
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for line in found.diary:
        job, wall = line["job"], line["wall"]
        begins[job], ends[job] = min(wall, begins.get(job, wall)), max(wall, ends.get(job, wall))
    for accepted in found.ledger.accepted.values():
        for needed, _ in accepted.needs:
            if accepted.job in begins and begins[accepted.job] < ends.get(needed, 0.0):
                yield f"job {accepted.job} began before job {needed} had ended"


def nothing_is_left_running(found: Found) -> Iterator[str]:
    entry = f"{ENV_TAG}={found.home.path}:".encode()
    for pid in processes.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        ours = any(variable.startswith(entry) for variable in environment.split(b"\0")) or str(found.home.path).encode() in command
        if ours and (known := processes.stat(pid)) is not None and not known.dead:
            yield f"pid {pid}: {command.replace(bytes(1), b' ').decode()}"
    servers = found.rows("SELECT pid, node_id FROM fork_servers WHERE pid IS NOT NULL")
    yield from (f"fork server {pid} of runner {node}" for pid, node in servers if is_server(pid))


def nothing_is_lost_from_an_index(found: Found) -> Iterator[str]:
    yield from lost_keys(found.con)


def lost_keys(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Rows that a scan finds and a lookup by their key does not."""
    wrong = []
    for table, columns in KEYS.items():
        where = " AND ".join(f"{column} = ?" for column in columns)
        for key in con.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall():
            count = len(con.execute(f"SELECT 1 FROM {table} WHERE {where}", list(key)).fetchall())
            if count != 1:
                wrong.append(f"{table} {key}: a lookup finds it {count} times")
    return wrong


#: What was said next begins within the line: a full disk has cut it, and may have cut what it says of the disk.
CUT = re.compile(r" (ERROR|CRITICAL) .*(stoker: error: |\d{4}-\d\d-\d\dT)")


def no_process_complained(found: Found) -> Iterator[str]:
    """A daemon or an agent that is killed says nothing; one that raises says so in its log."""
    for path in sorted(found.home.path.glob("*.log")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "the disk is full" in line or "the database may not grow" in line or CUT.search(line):
                continue
            if line.startswith("Traceback") or " ERROR " in line or " CRITICAL " in line:
                yield f"{path.name}:{number + 1}: {line} … {' | '.join(lines[number + 1 : number + 3])}"


def ends_of_leases(home: Home) -> dict[int, float]:
    """When leases ended, s since the epoch."""
    with duckdb.connect(str(home.database), read_only=True) as con:
        return dict(con.execute("SELECT id, epoch(ended_at) FROM leases WHERE ended_at IS NOT NULL").fetchall())


CHECKS: tuple[Callable[[Found], Iterator[str]], ...] = (
    every_acknowledged_submission_is_there_once,
    every_job_ends_once,
    every_job_ends_as_it_should,
    every_history_is_legal,
    nothing_ran_twice_at_once,
    every_acknowledged_metric_is_there_once,
    every_lease_has_ended,
    nothing_began_before_what_it_needs_had_ended,
    nothing_is_left_running,
    nothing_is_lost_from_an_index,
    no_process_complained,
)
