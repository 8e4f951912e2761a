"""Endpoints about jobs: submit, list, show, explain, read logs, and change them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from ...errors import Conflict, NoRoom, NotFound, StokerError, Unauthorized, UsageError, nearest
from ...fleet.remote_logs import LogSource, source_of
from ...forecast.explain import explain as explain_job
from ...forecast.in_the_way import BEHIND, RESOURCES, InTheWay, in_the_way
from ...jobs.control import Control, control
from ...jobs.moves import WAITING
from ...jobs.owners import require_own
from ...jobs.pipeline_history import describe
from ...jobs.schedule_rows import NewSchedule, add_schedule
from ...jobs.states import FINAL, State
from ...jobs.submission import SubmitRequest, check, on_trial, pools_of, submit
from ...json_rows import first, objects
from ...logfile import LogPart, Place, read_log, read_timed
from ...logfile import since as place_since
from ...protocol import BundleKept, SnapshotPiece
from ...spec.check import MAX_PRIORITY, require_all, require_provenance, require_time
from ...spec.expand import with_deadlines
from ...spec.model import SERVES, JobSpec, Submission
from ...spec.reading.secrets import redact
from ...spec.reading.tree import shown
from ...store.store import Store
from ..answers import Encoded
from ..call import Call, Endpoint, endpoint
from ..thread_pools import Kind
from .selection import as_json, known_states, labels_of, like
from .written_jobs import Submitted, submission_of

if TYPE_CHECKING:
    from ...services import Services

MOST_FORETOLD = 4  #: jobs of a dry run whose deadlines are looked at
MOST_TASKS = 20  #: tasks of an array that are shown one by one
USUAL_LISTING = 1000  #: jobs of a listing that does not ask for more
MOST_METRICS = 20_000  #: values of one answer; a record has fewer
JOBS_CHECKED_AT_ONCE = 100  #: a larger submission is checked on the threads of uploads
MAX_LOG_WAIT = 25.0  #: seconds
LARGEST_SNAPSHOT = 128 << 20  #: bytes of a tar: its files have half of that at most
LOOK, LOOK_AFAR = 0.2, 1.0  #: seconds between looks at a log, here and through another host's runner
_BEGINNING = 2  #: how well a word fits of which a name only begins, in `api/resolve`


@dataclass(frozen=True, slots=True)
class Named:
    """The job that a word names, or the array, by its first task."""

    job: int
    array: bool


def resolve(store: Store, word: str, user: str = "") -> Named:
    """The job of this number or name, the newest array of this name, or one of these by the unambiguous beginning of its name.

    Of several jobs of a name those of ``user`` come first.
    """
    found = store.rows("api/resolve", word, user)
    if not found:
        names = [row[0] for row in store.rows("api/recent_names")]
        near = nearest(word, names) if not word.isdigit() else ""
        raise NotFound(f"there is no job {shown(word)}{near}; 'stoker ps --all' shows them")
    best = min(row[2] for row in found)
    candidates = [row for row in found if row[2] == best]
    if best == _BEGINNING and len({row[1] for row in candidates}) > 1:
        some = ", ".join(f"{row[1]} ({row[0]})" for row in candidates[:5])
        raise UsageError(f"{word!r} is the beginning of several names: {some}; give more of the name, or the number")
    return Named(int(candidates[0][0]), bool(candidates[0][3]))


async def named_job(call: Call, kind: Kind = Kind.READ) -> Named:
    return await call.run(kind, resolve, call.daemon.store, call.path("ref"), call.who.user)


async def _resolve(call: Call) -> int:
    return (await named_job(call)).job


async def submit_jobs(call: Call) -> dict[str, Any]:
    asked = await call.message(Submitted)
    if asked.provenance is not None:
        require_provenance(asked.provenance)
    written = asked.spec is not None
    parts = await call.run(Kind.UPLOAD, submission_of, asked) if written else submission_of(asked)
    for part in parts:  # all are checked before any is stored
        await _judge(call, part)
    if not asked.dry_run:  # a recurring job that is refused leaves nothing behind, and one that is there is not added again
        parts.sort(key=lambda part: part.jobs[0].cron is None)
    answers = [await _submit(call, part) for part in parts]
    if len(answers) == 1:
        return answers[0]
    schedules = [answer["schedule"] for answer in answers if answer["schedule"] is not None]
    jobs = [job for answer in answers for job in answer["jobs"]]
    return {"jobs": jobs, "schedule": schedules[0] if schedules else None, "schedules": schedules, "dry_run": asked.dry_run}


async def _judge(call: Call, submission: Submission) -> None:
    if not submission.jobs:
        raise UsageError("jobs: there is none in this submission")
    await call.run(Kind.CONTROL if len(submission.jobs) <= JOBS_CHECKED_AT_ONCE else Kind.UPLOAD, require_all, submission.jobs)
    if stranger := next((job for job in submission.jobs if job.user and call.only not in (None, job.user)), None):
        raise Unauthorized(f"{stranger.name}: user: this token acts for {call.only}, not for {stranger.user}: leave it out")
    if submission.jobs[0].cron:
        require_time(submission.jobs[0], time.time())


async def _submit(call: Call, submission: Submission) -> dict[str, Any]:
    if submission.dry_run:
        answer, left = await call.run(Kind.REPORT, _dry_run, call, submission)
        await _foretell(call, left, answer["jobs"])
        return answer
    store = call.daemon.store
    if cron := submission.jobs[0].cron:
        spec = msgspec.json.encode(submission).decode()
        new = NewSchedule(submission.jobs[0].name, cron, spec, call.who.user)
        schedule = await asyncio.wrap_future(store.submit(add_schedule, new))
        return {"jobs": [], "schedule": schedule, "dry_run": False}
    jobs = await asyncio.wrap_future(store.submit(submit, SubmitRequest(submission, call.who.user)))
    return {"jobs": jobs, "schedule": None, "dry_run": False}


def _dry_run(call: Call, submission: Submission) -> tuple[dict[str, Any], list[JobSpec]]:
    """The answer, and the specs with what they still wait for."""
    store = call.daemon.store
    there: dict[str, tuple[int, State]] = {}
    if submission.jobs[0].cron:  # what its jobs wait for is looked up whenever they are submitted
        check(submission.jobs, pools_of(store.rows("store/pool_sizes")), time.time())
        left = submission.jobs
    else:
        with store.trial() as tx:
            there, left = on_trial(tx, SubmitRequest(submission, call.who.user))
    jobs = []
    for spec, (start, why) in zip(left, call.daemon.scheduling.foresee(left), strict=True):
        job = {"id": None, "name": spec.name, "state": "submitted" if spec.hold or spec.waits_for else "pending", "existing": False,
               "reason": why, "est_start": start, "forecast": None}  # fmt: skip
        if known := there.get(spec.name):
            number, state = known
            job |= {
                "id": number,
                "state": state,
                "existing": True,
                "reason": f"is job {number}, of this idempotency_key",
                "est_start": None,
            }
        jobs.append(job)
    return {"jobs": jobs, "schedule": None, "dry_run": True}, left


async def _foretell(call: Call, specs: list[JobSpec], answers: list[dict[str, Any]]) -> None:
    """Add to the answers of the first jobs with deadlines whether these are expected to be met."""
    for row in with_deadlines(specs)[:MOST_FORETOLD]:
        if specs[row].cron is None and not answers[row]["existing"]:
            answers[row]["forecast"] = await call.daemon.admission.of_spec(specs, row)


async def list_jobs(call: Call) -> Encoded:
    states = known_states([state for state in (call.query("state") or "").split(",") if state])
    since, name = call.number("since"), like(call.query("name"))
    labels = as_json(labels_of(call.request.query_params.getlist("label")))
    everything = call.query("all") in ("1", "true") or (states is not None and since is None)
    arrays = call.query("arrays") in ("1", "true")
    limit, user, store = int(call.number("limit") or USUAL_LISTING), call.query("user"), call.daemon.store
    numbers = _numbers(call.query("id"))

    def read() -> dict[str, Any]:
        ended_after = time.time() - 3600.0 if since is None else since
        return {"jobs": objects(store, "api/jobs", everything, ended_after, user, states, not arrays, limit, name, labels, numbers)}

    kind = Kind.LISTING if limit <= USUAL_LISTING else Kind.READ
    question = ("jobs", everything, since, user, None if states is None else tuple(states), arrays, limit, name, labels, call.query("id"))
    return await call.snapshot(kind, question, read)


def _numbers(given: str | None) -> list[int] | None:
    """The numbers in a query such as ``id=1,2,3``."""
    if given is None:
        return None
    if not all(word.isdecimal() and len(word) < 19 for word in given.split(",")):
        raise UsageError(f"id: must be numbers of jobs with commas between them, not {shown(given)}")
    return [int(word) for word in given.split(",")]


async def metrics(call: Call) -> dict[str, Any]:
    """The metrics that a job has reported, from a place on."""
    job, store = await _resolve(call), call.daemon.store
    names = call.request.query_params.getlist("name") or None
    lease, _, seq = (call.query("after") or "0.0").partition(".")
    if not (lease.isdecimal() and seq.isdecimal() and max(len(lease), len(seq)) < 19):
        raise UsageError(f"after: must be the 'after' of an answer, such as 4.17, not {shown(call.query('after'))}")
    rows = await call.read(objects, store, "api/metrics", job, names, int(lease), int(seq), MOST_METRICS + 1)
    more = len(rows) > MOST_METRICS
    while more and rows and (rows[-1]["lease_id"], rows[-1]["seq"]) == (rows[MOST_METRICS]["lease_id"], rows[MOST_METRICS]["seq"]):
        rows.pop()  # a record is never cut
    after = f"{rows[-1]['lease_id']}.{rows[-1]['seq']}" if rows else f"{lease}.{seq}"
    return {"job": job, "rows": [list(row.values()) for row in rows], "after": after, "more": more}


async def show(call: Call) -> dict[str, Any]:
    named = await named_job(call)
    job = named.job

    def read() -> dict[str, Any]:
        store = call.daemon.store
        (row,) = objects(store, "api/job", job)
        row["spec"] = msgspec.to_builtins(redact(msgspec.convert(row["spec"], JobSpec)))
        return {
            "job": row,
            "tasks": _tasks(store, job) if named.array else None,
            "array": _array(store, job) if named.array else None,
            "tiers": objects(store, "api/tiers", job),
            "dependencies": objects(store, "api/dependencies", job),
            "provenance": first(store, "api/provenance", job),
            "progress": first(store, "api/progress", job),
            "serving": first(store, "api/serving", job) if row["kind"] == SERVES else None,
            "shared_input": first(store, "api/shared_input", job),
            "replicas": first(store, "api/replicas", job) if row["spec"].get("replicas") else None,
            "expected": first(store, "api/expected", job),
            "silent": objects(store, "api/silent", job),
            "leases": objects(store, "api/leases", job),
            "waiting": first(store, "api/waiting", job) if row["state"] in WAITING else None,
            "events": objects(store, "api/events", job),
        }

    return await call.read(read)


def _tasks(store: Store, job: int) -> list[int]:
    return [number for (number,) in store.rows("api/array_tasks", job)]


def _array(store: Store, job: int) -> dict[str, Any]:
    """A summary of the array that the job belongs to, and some of its tasks."""
    return {"groups": objects(store, "api/array_groups", job), "tasks": objects(store, "api/array_rows", job, MOST_TASKS)}


async def explain(call: Call) -> dict[str, Any]:
    named, store = await named_job(call), call.daemon.store
    scheduling = call.daemon.scheduling
    # The policy is asked about a job that a guard may hold back: that may take as long as a dry run.
    kept = partial(_in_the_way, call.daemon)
    answer = await call.run(
        Kind.REPORT,
        explain_job,
        store,
        named.job,
        scheduling.deadlines_first,
        scheduling.held_back,
        kept,
    )
    if not named.array:
        return {**answer, "tasks": None, "array": None}
    return {**answer, "tasks": await call.read(_tasks, store, named.job), "array": await call.read(_array, store, named.job)}


def _in_the_way(daemon: Services, pool: str, job: int, code: str) -> InTheWay:
    rules = daemon.scheduling.rules(pool)
    if rules is None or code not in (BEHIND, RESOURCES):
        return InTheWay()
    return in_the_way(job, code, rules, daemon.scheduling.look(pool).view, daemon.tuning.automatic().get(pool))


async def pipeline(call: Call) -> dict[str, Any]:
    job = await _resolve(call)
    rank, decisions, points = call.number("rank"), call.number("decisions"), call.number("points")
    return await call.read(
        describe,
        call.daemon.store,
        job,
        rank=None if rank is None else int(rank),
        name=call.query("name"),
        decisions=10 if decisions is None else int(decisions),
        points=int(points or 0),
    )


async def logs(call: Call) -> dict[str, Any]:
    job = await _resolve(call)
    given, offset, wait, lines = call.number("lease"), call.number("offset"), call.number("wait") or 0.0, call.number("lines")
    at = None if offset is None else Place(call.query("file") or "", int(offset))
    most = None if lines is None else int(lines)
    node, timed, since = call.query("node"), call.query("times") in ("1", "true"), call.number("since")
    end = time.monotonic() + min(wait, MAX_LOG_WAIT)
    times: list[float | None] | None = None
    while True:
        source, over = await call.read(log_source, call.daemon.store, job, None if given is None else int(given), node)
        here = source is None or await call.read(call.daemon.remote_logs.is_here, source)
        if source is None:
            piece = LogPart("", Place("", 0))
        elif not here and (timed or since is not None):
            lies = f"the log of job {job} lies on host {source.host}, and when its lines were written is known there alone"
            raise Conflict(f"{lies}; read it without --timestamps and --since")
        elif here:
            if at is None and since is not None:
                at = await call.read(_since, source, since)
            if timed:
                piece, times = await call.read(_read_timed, source, at, most, first=at is None and not wait)
            else:
                piece = await call.read(_read_here, source, at, most, first=at is None and not wait)
        else:
            piece = await _read_afar(call, source, at, most)
        done = over and not piece.text  # it was over before the log was read to its end, so nothing can follow
        if piece.text or done or time.monotonic() >= end or call.daemon.stopping:
            where = {"lease": None, "path": None, "host": None, "node": None} if source is None else whereabouts(source)
            told: dict[str, Any] = {
                "text": piece.text,
                "file": piece.place.file,
                "offset": piece.place.offset,
                "more": piece.more,
                "done": done,
            }
            return told | ({"times": times or []} if timed else {}) | where
        at = piece.place
        await asyncio.sleep(LOOK if here else LOOK_AFAR)


def _since(source: LogSource, moment: float) -> Place:
    if (found := place_since(source.path, moment)) is None:
        raise Conflict(f"when the lines of lease {source.lease} of job {source.job} were written is not known: leave out --since")
    return found


async def _read_afar(call: Call, source: LogSource, at: Place | None, lines: int | None) -> LogPart:
    """Some of a log of another host: through its runner, or, when that cannot answer, from the end of it that the daemon keeps."""
    try:
        return await call.daemon.remote_logs.fetch(source, at, lines)
    except (Conflict, NotFound):
        kept = await call.read(call.daemon.kept_logs.read, source.job, source.lease, source.node_rank, at, lines)
        if kept is None:
            raise
        return kept


def log_source(store: Store, job: int, lease: int | None, node: str | None) -> tuple[LogSource | None, bool]:
    """Where the log of the newest (or the given) lease lies, None: no lease has one yet; and whether it has ended.

    ``node``: the part of the log on this node; None: on the first.
    """
    everywhere = [row for row in objects(store, "api/log_dirs", job) if lease is None or row["lease"] == lease]
    rows = [row for row in everywhere if node is None or row["node"] == node]
    if node is not None and not rows:
        nodes = ", ".join(dict.fromkeys(row["node"] for row in everywhere)) or "no runner"
        raise NotFound(f"node: job {job} has written no log on runner {shown(node)}; it has on {nodes}")
    final = dict(store.rows("store/job_states", [job]))[job] in FINAL
    if not rows and lease is not None:
        raise NotFound(f"job {job} has no lease {lease} with a log; 'stoker show {job}' lists its leases")
    if not rows:
        return None, final
    return source_of(job, rows[0]), rows[0]["ended"] and (lease is not None or final)


def _read_here(source: LogSource, at: Place | None, lines: int | None, *, first: bool) -> LogPart:
    """Some of a log of this host; ``first``: the client does not follow it yet, so it must be there."""
    piece = read_log(source.path, at, lines)
    if first and not piece.text and not source.run_dir.is_dir():
        raise source.missing()
    return piece


def _read_timed(source: LogSource, at: Place | None, lines: int | None, *, first: bool) -> tuple[LogPart, list[float | None]]:
    found = read_timed(source.path, at, lines)
    if first and not found[0].text and not source.run_dir.is_dir():
        raise source.missing()
    return found


def whereabouts(source: LogSource) -> dict[str, Any]:
    return {"lease": source.lease, "path": str(source.path), "host": source.host, "node": source.node}


async def forecast(call: Call) -> dict[str, Any]:
    return await call.daemon.admission.of_job(await _resolve(call))


class Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    array: bool = False  #: the action is for all tasks of the job's array


class Moved(Action, frozen=True, kw_only=True, forbid_unknown_fields=True):
    restart: Literal[True]  #: the job begins anew, without its checkpoint


class Priority(Action, frozen=True, kw_only=True, forbid_unknown_fields=True):
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


Acting: TypeAlias = Literal["cancel", "hold", "release", "priority", "move"]


def _controller(action: Acting) -> Endpoint:
    async def act(call: Call) -> dict[str, Any]:
        kinds: dict[str, type[Action]] = {"priority": Priority, "move": Moved}
        return await change(call, action, await call.options(kinds.get(action, Action)))

    return act


async def change(call: Call, action: Acting, asked: Action) -> dict[str, Any]:
    """Act on a job, or on the tasks of an array, as a request asks."""
    named = await named_job(call, Kind.CONTROL)
    jobs = [named.job]
    if asked.array or named.array:
        jobs = [row[0] for row in await call.control(call.daemon.store.rows, "api/array_tasks", named.job)] or jobs
    priority = asked.priority if isinstance(asked, Priority) else 0
    return await controlled(call, Control(action, tuple(jobs), call.who.user, priority, call.only))


async def controlled(call: Call, request: Control) -> dict[str, Any]:
    """Act on the request. Where it cannot be stored, the jobs that it stops are stopped all the same."""
    if call.daemon.unstored:
        with contextlib.suppress(NoRoom):
            await call.control(call.daemon.unstored.look)
    try:
        return {"jobs": await asyncio.wrap_future(call.daemon.store.submit(control, request, urgent=True))}
    except NoRoom as refused:
        raise await call.control(_unstored, call.daemon, request, refused) from None


def _unstored(daemon: Services, request: Control, refused: NoRoom) -> StokerError:
    """The error of a request that can't be stored; the jobs that it stops are stopped all the same."""
    if request.action not in ("cancel", "hold"):
        return refused
    jobs = objects(daemon.store, "store/controlled_jobs", list(request.jobs))
    for job in jobs:
        require_own(f"job {job['id']} {job['name']}", job["owner"], request.only)
    reason = "cancelled" if request.action == "cancel" else "held"
    leases = {job["lease_id"]: reason for job in jobs if job["lease_id"] is not None}
    return daemon.unstored.take([(control, request)], leases, refused)


async def snapshot_piece(call: Call) -> BundleKept:
    message = await call.message(SnapshotPiece)
    return await call.upload(
        call.daemon.bundles.take, message.digest, message.offset, message.data, last=message.last, at_most=LARGEST_SNAPSHOT,
        what="--snapshot",
    )  # fmt: skip


ENDPOINTS = [
    endpoint("/v1/snapshots", "submit", snapshot_piece, ["POST"]),
    endpoint("/v1/jobs", "submit", submit_jobs, ["POST"]),
    endpoint("/v1/jobs", "read", list_jobs),
    endpoint("/v1/jobs/{ref}", "read", show),
    endpoint("/v1/jobs/{ref}/explain", "read", explain),
    endpoint("/v1/jobs/{ref}/forecast", "read", forecast),
    endpoint("/v1/jobs/{ref}/pipeline", "read", pipeline),
    endpoint("/v1/jobs/{ref}/metrics", "read", metrics),
    endpoint("/v1/jobs/{ref}/logs", "read", logs),
    endpoint("/v1/jobs/{ref}/cancel", "submit", _controller("cancel"), ["POST"]),
    endpoint("/v1/jobs/{ref}/hold", "submit", _controller("hold"), ["POST"]),
    endpoint("/v1/jobs/{ref}/release", "submit", _controller("release"), ["POST"]),
    endpoint("/v1/jobs/{ref}/move", "submit", _controller("move"), ["POST"]),
    endpoint("/v1/jobs/{ref}/priority", "submit", _controller("priority"), ["POST"]),
]
