"""Why a job waits, runs or ended, from the tables: `stoker explain`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ...policies.contract import SWITCHED
from .. import format as fmt
from ..adapters.stored_adapters import JOINT
from ..hosts.places import Saved, checkpoint, lacks, places_of, too_short
from ..jobs.leases import EXCLUSIVE
from ..jobs.moves import WAITING
from ..jobs.states import FINAL, State
from ..json_rows import first, objects
from ..scheduling.held_back import HeldBack
from ..spec.model import SERVES
from ..store.store import Store
from .deadline_watch import verdict
from .in_the_way import InTheWay

#: Reasons of jobs that only wait for their turn.
_IN_LINE = ("resources", "behind", "next-cycle", "round", "planned", "turn", "starting")


def explain(
    store: Store,
    job: int,
    deadlines_first: Callable[[str], bool] = lambda pool: False,
    held_back: Callable[[str, int], HeldBack | None] = lambda pool, job: None,
    in_the_way: Callable[[str, int, str], InTheWay] = lambda pool, job, code: InTheWay(),
) -> dict[str, Any]:
    """The answer of `GET /v1/jobs/REF/explain`; see docs/api.md.

    ``deadlines_first``: whether the policy of a pool serves jobs with deadlines before those without.
    ``held_back``: the guard for which a job of a pool waits. ``in_the_way``: its other obstacles.
    """
    (row,) = objects(store, "api/job", job)
    # It may have ended, or wait again, since the line above.
    waiting = first(store, "api/waiting", job) if row["state"] in WAITING else None
    held = held_back(row["pool"], job) if row["state"] == State.PENDING and waiting and waiting["code"] in (*_IN_LINE, "deferred") else None
    kept = in_the_way(row["pool"], job, waiting["code"]) if row["state"] == State.PENDING and waiting else InTheWay()
    ahead = None if kept.before is None else _ahead(store, kept)
    decisions = [_decision(job, decision) for decision in objects(store, "api/job_decisions", job)]
    partners = objects(store, "api/shared_with", job)
    blockers = objects(store, "api/blockers", row["pool"]) if row["state"] == State.PENDING else []
    return {
        "job": {"id": job, "name": row["name"], "state": row["state"]},
        "summary": _summary(row, waiting)
        + _never_joined(store, row, waiting)
        + _place(store, row, waiting)
        + _fetching(store, row)
        + _guard(waiting, held)
        + (f"; {ahead['words']}" if ahead else "")
        + _unpacked(store, kept)
        + (_partners(partners) or _alone(store, row))
        + _leaving(store, row, waiting)
        + _bank(store, row)
        + _begins(store, row)
        + _start(store, row)
        + (_serving(store, job) if row["kind"] == SERVES else "")
        + _input(store, job)
        + _replicas(store, row)
        + (_deadlines_ahead(store, row, waiting) if deadlines_first(row["pool"]) else ""),
        "waiting": waiting,
        "guard": None if held is None else {"reason": held.text, "until": held.until if math.isfinite(held.until) else None},
        "before": None if ahead is None else {name: ahead[name] for name in ("id", "name", "gpus", "remedy")},
        "decisions": decisions,
        "blockers": blockers,
        "deadline": _deadline(store, row),
        "expected": first(store, "api/expected", job),
        "shared_with": partners,
        "silent": objects(store, "api/silent", job),
    }


def _summary(row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    state = row["state"]
    if state in (State.PENDING, State.SUBMITTED):
        why = waiting["reason"] if waiting else row["state_reason"] or "the policy has not looked at it yet"
        place = f" (place {waiting['position']} in the queue)" if waiting and waiting["position"] else ""
        return f"{why}{place}" if why.startswith("waits") else f"waits: {why}{place}"
    if state in FINAL:
        return f"{state}: {row['state_reason']}" if row["state_reason"] != state else str(state)
    return f"{state}{':' * (state == State.SUSPENDING)} {row['state_reason']}, attempt {row['attempts']}"


def _never_joined(store: Store, row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    if waiting is None or waiting["code"] != "no-gpus" or any(store.rows("api/ever_joined", row["pool"])):
        return ""
    return f"; no runner has joined pool {row['pool']} yet"


def _place(store: Store, row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    """For a waiting job: the place of its checkpoint, unless all runners read it, and runners on which it could not be started."""
    if (
        row["lease_id"] is not None
        or row["state"] in FINAL
        or (waiting is not None and waiting["code"] in ("place", "excluded", "leaving", "group"))
    ):
        return ""
    lacked = f"; not tried again on {lacks(row['excluded'])}" if row["excluded"] else ""
    job = row["id"] if row["place"] else row["begin_from"]
    if job == row["id"] and store.rows("policy/copying_replicas", [job]):
        job = None
    found = store.rows("policy/places_of_jobs", [job]) if job is not None else []
    places = places_of(store.rows("policy/nodes"))
    if not found or all(found[0][1] in places.reads[node] for node, state in places.state_of.items() if state not in ("stopped", "gone")):
        return lacked
    steps = dict(store.rows("policy/saved_steps", [job]))
    words = places.lies(found[0][1], steps.get(job))
    if job != row["id"]:
        return f"; it begins with job {job}: {words}{lacked}"
    size = math.nan if row["saved_bytes"] is None else row["saved_bytes"]
    return f"; {words}{places.stays(Saved(found[0][1], size=size, not_sent=row['not_sent']))}{lacked}"


def _fetching(store: Store, row: dict[str, Any]) -> str:
    """For a job that has not begun: the checkpoint that it fetches."""
    if row["state"] not in (State.ASSIGNED, State.STARTING) or row["place"] is None:
        return ""
    places = places_of(store.rows("policy/nodes"))
    if all(row["place"] in places.reads[node] for (node,) in store.rows("api/nodes_of_lease", row["lease_id"])):
        return ""
    step = dict(store.rows("policy/saved_steps", [row["id"]])).get(row["id"])
    return f"; fetches {checkpoint(step)} from {places.hosts(row['place'])}{' by the daemon, which has it' if row['bundle'] else ''}"


def _leaving(store: Store, row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    """The runners that matter to a job and hand their nodes back, with the times, unless it waits for just that."""
    if waiting is not None and waiting["code"] == "leaving":
        return ""
    found = [] if row["state"] in FINAL else store.rows("api/leaving", row["id"])
    if found and row["lease_id"] is None and store.rows("policy/saves_nothing", [row["id"]]):
        ((takes,),) = store.rows("api/duration_of", row["id"])
        places = places_of(store.rows("policy/nodes"))
        words = "" if takes is None else too_short([node for node, _ in found], takes, places, time.time())[1]
        if words:
            return f"; {words}"
    return "".join(f"; {node} leaves {fmt.relative(at, time.time())}" for node, at in found)


def _begins(store: Store, row: dict[str, Any]) -> str:
    """For a job that may begin with another's adapter, or trains together with another: that job."""
    one = first(store, "api/beginning", row["id"])
    if one is None and row["begins"] in (None, JOINT):  # its reason tells it already
        return ""
    if one is None:
        named = row["begin_after"]
        which = "the one that promises most when it starts" if named is None else f"that of job {named}"
        return f"; begins with an adapter of the bank: {which}"
    if one["state"] == JOINT:
        return f"; {one['why']}"
    if one["source"] is None:
        return f"; begins from its backbone: {one['why']}"
    planned = "was to begin" if row["state"] in FINAL else "begins"
    words = {"planned": planned, "undone": "had begun"}.get(one["state"], "began")
    return f"; {words} with the adapter of job {one['source']} ({one['source_data']}): {one['why']}"


def _start(store: Store, row: dict[str, Any]) -> str:
    """For a started job: whether its worker was forked, and why not."""
    found = store.rows("api/last_start", row["id"])
    if not found:
        return ""
    ((warm, because),) = found
    return f"; {STARTED[warm]}" + (f": {because}" if because else "")


def _replicas(store: Store, row: dict[str, Any]) -> str:
    """For a replica: the state of its group, and its own wait."""
    found = first(store, "api/replicas", row["id"])
    if found is None:
        return ""
    waits = row["state"] == State.RUNNING and not found["members"]
    return f"; replicas: {fmt.replicas(found)}" + ("; this one waits for others: 'stoker logs' tells for whom" if waits else "")


def _input(store: Store, job: int) -> str:
    row = first(store, "api/shared_input", job)
    return f"; shares its input {fmt.shared_input(row)}" if row is not None else ""


def _serving(store: Store, job: int) -> str:
    row = first(store, "api/serving", job)
    return f"; {fmt.serving(row)}" if row is not None else ""


STARTED = {True: "started warm", False: "started cold"}


def _guard(waiting: dict[str, Any] | None, held: HeldBack | None) -> str:
    """The guard, and the victim, unless the reason names them."""
    return f"; {held.text}" if held is not None and waiting is not None and held.text not in waiting["reason"] else ""


def _ahead(store: Store, kept: InTheWay) -> dict[str, Any]:
    """The job before it, and the setting that would let it pass."""
    assert kept.before is not None
    (row,) = objects(store, "api/job", kept.before.job)
    words = f"{row['name']} ({fmt.counted(row['gpus_min'], 'GPU')}) is before it"
    if kept.remedy is not None:
        words += f"; '{kept.remedy}' would let it pass"
    return {"id": row["id"], "name": row["name"], "gpus": row["gpus_min"], "remedy": kept.remedy, "words": words}


def _unpacked(store: Store, kept: InTheWay) -> str:
    if kept.unpacked is None:
        return ""
    rows = [objects(store, "api/job", job)[0] for job in kept.unpacked.jobs]
    words = kept.unpacked.words.replace("{jobs}", " and ".join(row["name"] for row in rows))
    never = kept.unpacked.unknown and any(row["signature"] is None for row in rows)
    return f"; not packed: {words}{' (of commands and servers it never is: nobody times their steps)' if never else ''}"


def _partners(partners: list[dict[str, Any]]) -> str:
    if not partners:
        return ""
    names, own = ", ".join(f"job {one['job']} ({one['name']})" for one in partners), partners[0]
    if own["share"] != SWITCHED:
        return f"; shares its GPUs with {names}"
    turn = f" and {TURNS[own['turn']]}" if own["turn"] else ""
    waited = f"; it has waited {fmt.duration(own['waited_for_turns'])} for turns" if (own["waited_for_turns"] or 0) >= 1 else ""
    return f"; takes turns with {names}{turn}{waited}"


#: The last observed state of a job that takes turns.
TURNS = {"has": "has the turn", "waits": "is paused until its turn comes", "behind": "has what these leave of the slot (by the kernel)"}


def _bank(store: Store, row: dict[str, Any]) -> str:
    """For a prompt tuning: whether it began with a prompt of the bank, and why not (002 ch. 4.4.3.4)."""
    use = first(store, "api/bank_use", row["id"])
    if use is None:
        return ""
    if use["used"]:
        return f"; the prompt bank was used: {fmt.counted(use['scores'], 'score')} in {fmt.duration(use['seconds'])}"
    return f"; the prompt bank was not used: {use['why_not']}"


def _alone(store: Store, row: dict[str, Any]) -> str:
    """Why a job shares GPUs with no other, unless the policy decided that."""
    if row["share"] is None or row["state"] in FINAL:
        return ""
    ((gpus, memory, shared),) = store.rows("api/room_to_share", row["pool"])
    if row["share"] == EXCLUSIVE:
        where = f"on the {'GPU' if shared == 1 else f'{shared} GPUs'} that others share"
        return f"; joins nobody {where} (share: exclusive)" if shared and row["lease_id"] is None else ""
    if 0 < gpus < row["gpus_min"]:
        return f"; shares with nobody, as gangs over several nodes do not, and no node of the pool has {row['gpus_min']} GPUs"
    if 0 < memory <= row["gpu_memory"]:
        need, total = fmt.size(row["gpu_memory"]), fmt.size(memory)
        return f"; shares with nobody, as it takes {need} of a GPU and the largest of the pool has {total}"
    return ""


def _deadlines_ahead(store: Store, row: dict[str, Any], waiting: dict[str, Any] | None) -> str:
    """For a waiting job without a deadline: the jobs that go first because they have deadlines."""
    if waiting is None or row["demand"] != "best-effort" or waiting["code"] not in _IN_LINE:
        return ""
    ((before, holding),) = store.rows("api/deadlines_ahead", row["id"])
    does = ((before, "wait", " before it"), (holding, "hold", " GPUs"))
    counts = [f"{count} {verb}{'s' * (count == 1)}{what}" for count, verb, what in does if count]
    return f"; jobs with deadlines go first: {' and '.join(counts)}" if counts else ""


def _decision(job: int, row: dict[str, Any]) -> dict[str, Any]:
    """A decision's effect on this job."""
    plan = row.pop("plan")
    what, why = "waits", plan["deferred"].get(str(job), "")
    for start in plan["starts"]:
        if start["job"] == job:
            what, why = f"starts on {', '.join(start['gpus'])}", f"lease {start['lease']}"
    for stop in plan["stops"]:
        if stop["lease"] in row["leases"]:
            what, why = f"stops ({stop['reason']})", f"for job {stop['for']}" if stop["for"] else ""
    return {"ts": row["ts"], "policy": row["policy"], "code": row["code"], "outcome": row["outcome"], "what": what, "why": why}


def _deadline(store: Store, row: dict[str, Any]) -> dict[str, Any] | None:
    """The state of its last deadline by the view `outlook`, as in `ps`, `top`, the queue and the alarms, or its outcome."""
    at = row["deadline"]
    if at is None:
        return None
    if row["finished_at"] is not None:
        met = row["state"] == State.COMPLETED and row["finished_at"] <= at
        risk = "met" if met else "missed"
        return {"at": at, "estimate": row["finished_at"], "risk": risk, "verdict": risk, "given_up": False}
    outlook = first(store, "api/outlook", row["id"])
    if outlook is None:  # has ended since it was looked at
        return _deadline(store, objects(store, "api/job", row["id"])[0])
    return {
        "at": at,
        "estimate": outlook["est_end"],
        "risk": outlook["deadline_risk"],
        "verdict": verdict(outlook, at),
        "given_up": outlook["given_up"],
    }
