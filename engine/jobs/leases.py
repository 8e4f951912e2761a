"""Leases: granted by a plan, asked to stop, ended with a verdict for their job."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..adapters.stored_adapters import Beginning, choose
from ..estimation.speeds import mix
from ..spec.model import SERVES, JobSpec, Stop
from ..store.transaction import Transaction
from .begin_from import apart, held_back
from .moves import Move, move
from .outcomes import SERVED_WELL, YIELDING, End, judge
from .states import FINAL, State

#: outcomes of a lease that was not started because its host lacked something
HOST_LACKS = ("start-failed", "lost")
EXCLUSIVE = "exclusive"  #: of `leases.share`, as in the policies' contract
#: kinds of sharing, as there, and the reason why a lease shares its GPUs from now on
REASONS = {"packed": "another job is packed on its GPUs", "switched": "another job takes turns with it on its GPUs"}


@dataclass(frozen=True, slots=True)
class Grant:
    """A job gets GPUs: (gpu, node) pairs in rank order; ``expires``: the end of the right, None: never.

    ``profile``: only to measure its speed; that is no attempt of the job's, and does not count as its run. ``lasts``: least seconds of the
    right from the grant, which comes after the decision. ``share``: its kind of sharing, with ``memory``: bytes that it needs of each
    GPU, 0: not known. ``begin_from``: a job with whose weights this one begins, from now on, while it has none of its own; None: by its
    submitter or an earlier grant. ``joint``: a waiting job with which it trains first, unless one waits for that already.
    """

    job: int
    gpus: tuple[tuple[str, str], ...]
    expires: float | None
    profile: bool = False
    lasts: float = 0.0
    share: str = EXCLUSIVE
    memory: int = 0
    begin_from: int | None = None
    joint: int | None = None


def grant(tx: Transaction, grants: Sequence[Grant], policy: str, decision: int) -> list[int]:
    """Give leases to pending jobs; the caller has checked that jobs and GPUs are free. Answers with their numbers."""
    before = {job: facts for job, *facts in tx.execute("job_attempts", [g.job for g in grants])} if grants else {}
    chosen = choose(tx, {given.job: given.begin_from for given in grants if before[given.job][2] and not given.profile})
    alone = [given.job for given in grants if len(given.gpus) == 1 and not given.profile]
    partners = dict(tx.execute("next_partners", alone)) if alone else {}
    named = {given.job: given.joint for given in grants if given.joint is not None and given.job in alone and given.job not in partners}
    partners |= held_back(tx, named, f"policy:{policy}")
    leases, held, workers, moves = [], [], [], []
    for given in grants:
        lease = tx.number("leases")
        attempts, source, _ = before[given.job]
        attempt = attempts + (not given.profile)
        if given.job in chosen:
            source = None  # the policy's choice is the first of its offers
        elif source is None:
            source = given.begin_from
        options = _options(given.share, given.memory, source, chosen.get(given.job), partners.get(given.job))
        expires = None if given.expires is None else max(given.expires, tx.now + given.lasts)
        leases.append({"id": lease, "job_id": given.job, "attempt": attempt, "gpu_count": len(given.gpus), "state": "granted",
                       "granted_at": tx.now, "expires_at": expires, "profile": given.profile, "policy": policy,
                       "decision_id": decision, "share": given.share, "options": options})  # fmt: skip
        held += [{"lease_id": lease, "gpu_id": gpu, "node_id": node} for gpu, node in given.gpus]
        nodes = dict.fromkeys(node for _, node in given.gpus)
        workers += [{"lease_id": lease, "node_id": node, "state": "granted"} for node in nodes]
        reason = f"{len(given.gpus)} GPU{'s' * (len(given.gpus) > 1)} on {', '.join(nodes)}"
        reason += "" if given.share == EXCLUSIVE else f", {given.share}"
        changes = {"lease_id": lease, "attempts": attempt, "not_before": None, "begin_from": source}
        to = State.PROFILING if given.profile else State.ASSIGNED
        moves.append(Move(given.job, to, reason, f"policy:{policy}", lease, changes))
    tx.insert("leases", leases)
    tx.insert("lease_gpus", held)
    tx.insert("workers", workers)
    move(tx, moves)
    tx.touch("leases")
    return [lease["id"] for lease in leases]


def _options(share: str, memory: int, begin_from: int | None, begins: Beginning | None = None, joint: int | None = None) -> str | None:
    options = {"memory": memory if share != EXCLUSIVE else 0, "begin_from": begin_from, "begins": begins.to_json() if begins else {}}
    options["joint"] = joint
    return json.dumps({name: value for name, value in options.items() if value}) if any(options.values()) else None


def _shared_options(how: Join, lease: Mapping[str, Any]) -> str | None:
    begins = json.loads(lease["begins"]) if lease["begins"] else {}
    return _options(how.share, how.memory, lease["begin_from"], Beginning(**begins), lease["joint"])


@dataclass(frozen=True, slots=True)
class Join:
    """A live lease's sharing of its GPUs from now on."""

    share: str
    memory: int  #: bytes that it needs of each, 0: not known


def join(tx: Transaction, joined: Mapping[int, Join], actor: str) -> None:
    """Live leases share their GPUs with others from now on, or in another way than before."""
    live = tx.objects("live_leases", list(joined)) if joined else []
    found = [(lease, joined[lease["id"]]) for lease in live if lease["share"] != joined[lease["id"]].share]
    for lease, how in found:
        tx.event("lease.share", actor, job=lease["job_id"], lease=lease["id"], after=how.share, reason=REASONS[how.share])
    tx.update("leases", ["id"], [
        {"id": lease["id"], "share": how.share, "options": _shared_options(how, lease)}
        for lease, how in found])  # fmt: skip
    if found:
        tx.touch("leases")


@dataclass(frozen=True, slots=True)
class LeaseStop:
    """A lease is to end. ``reason`` is a word of `leases.stop_reason`."""

    lease: int
    reason: str
    actor: str
    for_job: int | None = None


def stop(tx: Transaction, stops: Sequence[LeaseStop]) -> None:
    """Ask live leases to stop. Those already stopping keep their reason, but a cancellation overrides it, as it decides the job's end.

    This also holds for a lease that no runner has taken up yet: its runner may be starting it at this moment, so only
    the runner's own word ends it.
    """
    if not stops:
        return
    live = {row["id"]: row for row in tx.objects("live_leases", [s.lease for s in stops])}
    updates, moves = [], []
    for wanted in stops:
        lease = live.get(wanted.lease)
        if lease is None or (lease["stop_reason"] is not None and wanted.reason != "cancelled"):
            continue
        first = lease["stop_reason"] is None
        updates.append({"id": wanted.lease, "state": "stopping", "stop_reason": wanted.reason, "stop_for": wanted.for_job,
                        "stop_at": tx.now if first else lease["stop_at"]})  # fmt: skip
        lease["stop_reason"] = wanted.reason
        tx.event("lease.stop", wanted.actor, job=lease["job_id"], lease=wanted.lease, reason=wanted.reason)
        if first:
            words = YIELDING.get(wanted.reason, wanted.reason)
            moves.append(Move(lease["job_id"], State.SUSPENDING, words, wanted.actor, wanted.lease))
    tx.update("leases", ["id"], updates)
    move(tx, moves)
    tx.touch("leases")


def end(tx: Transaction, ends: Mapping[int, End]) -> None:
    """End leases whose workers are all gone, and decide on the job of each."""
    if not ends:
        return
    moves, leases, alone, again, replicas = [], [], [], [], []
    parted: dict[int, tuple[int, str]] = {}
    ending = tx.objects("ending_leases", list(ends))
    moments = {lease["id"]: _moment(ends[lease["id"]], lease, tx.now) for lease in ending}
    divided = _divided(tx, {lease["id"]: moments[lease["id"]] for lease in ending if lease["share"] != EXCLUSIVE})
    lacking = [lease["job_id"] for lease in ending if ends[lease["id"]].outcome in HOST_LACKS and lease["excluded"]]
    elsewhere = {job for job, room in (tx.execute("room_elsewhere", lacking) if lacking else ()) if room}
    short = [lease["job_id"] for lease in ending if ends[lease["id"]].outcome != "completed"]
    losses = dict(tx.execute("losses_in_a_row", short)) if short else {}
    profiled = [lease["job_id"] for lease in ending if lease["profile"]]
    measured = {job for (job,) in tx.execute("measured_alike", profiled)} if profiled else set()
    for lease in ending:
        how = ends[lease["id"]]
        moment = moments[lease["id"]]
        lacked = (
            how.outcome in HOST_LACKS
            and lease["started_at"] is None
            and not json.loads(lease["excluded"] or "{}").keys().isdisjoint(how.nodes)
        )
        spec = msgspec.json.decode(lease["spec"], type=JobSpec)
        trained = lease["started_at"] is not None and not lease["profile"]
        ran = max(0.0, moment - lease["started_at"]) if trained else 0.0
        serves = spec.kind == SERVES
        verdict = judge(
            how, spec.retries, failures=lease["failures"], cancelled=lease["cancel_requested"], held=lease["held"],
            losses=0 if serves and ran > SERVED_WELL else losses.get(lease["job_id"], 0),
            profile=lease["profile"], measured=lease["job_id"] in measured,
            finished=_finished(spec, lease), shared=lease["share"] != EXCLUSIVE, ours=spec.command is None, serves=serves,
            elsewhere=lacked and lease["job_id"] in elsewhere, replica=spec.replicas is not None, joint=lease["joint"] is not None,
        )  # fmt: skip
        changes = {
            "run_time": lease["run_time"] + ran,
            "attained": lease["attained"] + divided.get(lease["id"], ran * lease["gpu_count"]),
            "preemptions": lease["preemptions"] + verdict.preempted,
            "failures": lease["failures"] + verdict.failed,
            "unmeasured": lease["unmeasured"] + verdict.unmeasured,
            "exit_code": how.exit_code,
            "not_before": tx.now + verdict.delay if verdict.delay else None,
            "outcome": verdict.outcome if verdict.state in FINAL else None,
        }
        if verdict.state in FINAL:
            changes["finished_at"] = moment
        elif lacked and lease["job_id"] not in elsewhere:
            again.append({"id": lease["job_id"], "excluded": None})  # no other host is left: its retries are on any
        if spec.replicas is not None:
            replicas.append(lease["job_id"])
        reason = _reached(spec, lease) if verdict.state is State.COMPLETED else verdict.reason
        moves.append(Move(lease["job_id"], verdict.state, reason, "daemon", lease["id"], changes))
        if verdict.apart:
            parted[lease["joint"]] = lease["job_id"], verdict.reason
        if verdict.alone:
            alone.append({"id": lease["job_id"], "share": EXCLUSIVE})
            tx.event("job.share", "daemon", job=lease["job_id"], lease=lease["id"], after=EXCLUSIVE, reason=verdict.reason)
        leases.append({"id": lease["id"], "state": "ended", "ended_at": moment, "outcome": verdict.outcome,
                       "message": reason, "exit_code": how.exit_code})  # fmt: skip
    tx.update("leases", ["id"], leases)
    tx.update("jobs", ["id"], alone + again)
    move(tx, moves)
    apart(tx, parted)
    _end_groups(tx, replicas)
    _learn(tx, [m.job for m in moves if m.to is State.COMPLETED])
    tx.touch("leases")


def _end_groups(tx: Transaction, tasks: Sequence[int]) -> None:
    """Complete waiting tasks of replica groups that have finished, as no step is left for them."""
    rest = tx.execute("replica_rest", list(tasks)) if tasks else []
    changes = {"outcome": "completed"}
    move(tx, [Move(job, State.COMPLETED, "its group of replicas has finished all steps", "daemon", changes=changes) for (job,) in rest])


def _moment(how: End, lease: Mapping[str, Any], now: float) -> float:
    """The end of a lease: that of its last worker, which may have been reported much later."""
    began = lease["started_at"] or lease["granted_at"]
    return now if how.at is None else min(max(how.at, began), now)


def _divided(tx: Transaction, ended: Mapping[int, float]) -> dict[int, float]:
    """GPU-seconds of leases that shared their GPUs, each up to its end."""
    service: dict[int, float] = {}
    for moment in set(ended.values()):
        service.update(tx.execute("divided_service", [lease for lease, at in ended.items() if at == moment], moment))
    return service


def exclude(tx: Transaction, lacking: Mapping[int, Mapping[str, str]]) -> None:
    """Do not try jobs again on nodes that lacked something; ``lacking``: the lack of each node."""
    rows = tx.execute("excluded_of", list(lacking)) if lacking else []
    tx.update("jobs", ["id"], [
        {"id": job, "excluded": json.dumps({**json.loads(known or "{}"), **lacking[job]})} for job, known in rows])  # fmt: skip


def _finished(spec: JobSpec, lease: Mapping[str, Any]) -> bool:
    """Whether the lease's own reports say that all work is done.

    Some scripts count steps from 0, others from 1, so the last but one is enough.
    """
    if not lease["reported"]:
        return False
    return _met(spec.stop, lease["metric"]) or (lease["total_steps"] is not None and lease["step"] >= lease["total_steps"] - 1)


def _met(stop: Stop, value: float | None) -> bool:
    if stop.metric is None or stop.target is None or value is None:
        return False
    return value >= stop.target if stop.mode == "max" else value <= stop.target


def _reached(spec: JobSpec, lease: Mapping[str, Any]) -> str:
    """A completed job's result under its stopping rule."""
    stop, value, step = spec.stop, lease["metric"], lease["step"]
    if stop.metric is None or stop.target is None or value is None:
        return "completed"
    if _met(stop, value):
        return f"{stop.metric} {value:.4g} reached {stop.target:.4g} at step {step}"
    return f"completed at step {step}, {stop.metric} {value:.4g} short of {stop.target:.4g}"


def _learn(tx: Transaction, jobs: Sequence[int]) -> None:
    """Fold completed jobs' measurements into the profiles from which later jobs of the model are estimated."""
    measured: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in tx.objects("measured", list(jobs)) if jobs else ():
        measured[row["model"], row["gpu_name"], row["gpu_count"]].append(row)
    rows = []
    for (model, gpu, count), found in measured.items():
        profile = {key: found[0][f"old_{key}"] for key in ("seconds_per_step", "duration", "peak_memory", "samples")}
        for row in found:
            weight = 1 / min((profile["samples"] or 0) + 1, 5)  # a plain mean at first, then a moving one
            for key in ("seconds_per_step", "duration"):
                profile[key] = mix(profile[key], row[key], weight)
            profile["peak_memory"] = max(profile["peak_memory"] or 0, row["peak_memory"] or 0) or None
            profile["samples"] = (profile["samples"] or 0) + 1
        rows.append({"model": model, "gpu_name": gpu, "gpu_count": count, **profile, "updated_at": tx.now})
    tx.upsert("profiles", ["model", "gpu_name", "gpu_count"], rows)
