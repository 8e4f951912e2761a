"""Checks that a Plan is possible. A bad plan changes nothing; its error is recorded with the decision."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ...policies.contract import KINDS, SWITCHED, Allocation, Group, Ints, Memory, Phase, Plan, View, Waiting
from .rowof import RowOf

LARGEST_MEMORY = 1 << 20  #: characters of JSON that a policy may keep from one decision to the next


class PlanError(ValueError):
    """The policy's plan is impossible; the message names the job and the mistake."""


#: from jobs, and the job with whose weights each is to begin or with which it is to train, to the reasons why some cannot
Objections = Callable[[Mapping[int, int]], Mapping[int, str]]


def check(plan: Plan, view: View, *, reasons: bool = True, objections: Objections | None = None, apart: Objections | None = None) -> Plan:
    """The plan in plain numbers, or PlanError where it does not fit ``view``. Without ``reasons`` the reasons are left out.

    ``objections``: finds jobs that cannot begin with the weights of others, of which the view need not know; None: there are none.
    ``apart``: finds jobs that cannot train together.

    A running job may keep its GPUs, even those that have gone out of use. Every new allocation must be a whole gang on
    usable GPUs that no other job of the plan has, unless a group of the plan shares them. Use the answer, not the policy's
    own plan: that may hold NumPy's numbers, which the store cannot bind, and iterators, which can be read only once.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"plan() answered with a {type(plan).__name__}, not a Plan")
    row_of = RowOf(view.jobs.id)
    if not isinstance(plan.allocations, Mapping):
        raise PlanError(f"allocations: a {type(plan.allocations).__name__} is not a mapping of job to Allocation")
    allocations = {
        job: _allocation(job, allocation, row_of, view)
        for job, allocation in zip(_ids("allocations", plan.allocations), plan.allocations.values(), strict=True)
    }
    fresh: set[int] = set()
    for job, allocation in allocations.items():
        row = row_of[job]
        if view.jobs.phase[row] == Phase.PENDING or set(allocation.gpus) != set(view.jobs.allocation(row).tolist()):
            fresh.add(job)
            _check_gang(job, row, allocation, view)
    plain = Plan(
        allocations,
        waiting=tuple(Waiting(waiting.reason, _ids("waiting", waiting.jobs)) for waiting in plan.waiting) if reasons else (),
        groups=tuple(Group(group.kind, tuple(_ids("groups", group.jobs))) for group in plan.groups),
        status=str(plan.status),
        gap=None if plan.gap is None else float(plan.gap),
        order=_ids("order", plan.order) if reasons else (),
        preempt=frozenset(_ids("preempt", plan.preempt)),
        wake_at=None if plan.wake_at is None else float(plan.wake_at),
        rejected=_ids("rejected", plan.rejected) if plan.rejected else (),
        memory=plan.memory if plan.memory is view.memory else _memory(plan.memory),
        warm=None if plan.warm is None else _pools(plan.warm, view),
    )
    if plain.preempt or plain.rejected:
        _check_preempt(plain, row_of, view)
    if plain.allocations or plain.groups:
        _check_sharing(plain, fresh, row_of, view)
    _check_joint(plain, row_of, view)
    if plain.waiting or plain.order:
        _check_waiting(plain, view)
    _check_rest(plain)
    wanted = {job: one.begin_from for job, one in allocations.items() if one.begin_from is not None}
    for job, words in (objections(wanted) if objections is not None and wanted else {}).items():
        raise PlanError(f"job {job}: is to begin with the weights of job {wanted[job]}: {words}")
    wanted = {job: one.joint for job, one in allocations.items() if one.joint is not None}
    for job, words in (apart(wanted) if apart is not None and wanted else {}).items():
        raise PlanError(f"job {job}: is to train together with job {wanted[job]}: {words}")
    return plain


def check_enacted(plan: Plan) -> Plan:
    """The same plan, or PlanError where it uses a feature that only the simulator has: nothing is dropped silently."""
    for job, allocation in plan.allocations.items():
        if allocation.batch_size is not None:
            raise PlanError(f"job {job}: is to train with a batch of {allocation.batch_size}; the daemon does not change batch sizes")
    return plan


def _pools(given: Any, view: View) -> Mapping[str, list[int]]:
    """Backbones and the GPUs of their pools; each GPU is in one pool at most."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise PlanError("warm: is not a mapping of backbones to rows of GPUs; None leaves all pools as they are")
    pool_of: dict[int, str] = {}
    for name, gpus in given.items():
        for gpu in _gpus(f"warm: {name}", gpus, view):
            if gpu in pool_of:
                raise PlanError(f"warm: GPU {view.gpus.id[gpu]} is in the pools of {pool_of[gpu]} and {name}; it can be in one")
            pool_of[gpu] = name
    return {name: sorted(gpu for gpu, of in pool_of.items() if of == name) for name in given}


def _memory(given: Any) -> Memory:
    """The memory after a round trip through JSON, so that a policy sees the same whether or not it was read from the tables."""
    if given is not None and not isinstance(given, Mapping):
        raise PlanError(f"memory: a {type(given).__name__} is not an object of JSON; give a dict, or None")
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"memory: cannot be kept as JSON: {error}") from None
    if len(text) > LARGEST_MEMORY:
        raise PlanError(f"memory: {len(text)} characters of JSON, {LARGEST_MEMORY} are the most")
    kept: Memory = json.loads(text)
    return kept


def _allocation(job: int, allocation: Allocation, row_of: RowOf, view: View) -> Allocation:
    row = row_of.get(job)
    if row is None:
        raise PlanError(f"job {job}: is allocated, but is not in the view")
    if view.jobs.phase[row] == Phase.STOPPING:
        raise PlanError(f"job {job}: is allocated, but is stopping; leave it out until it has stopped")
    if not isinstance(allocation, Allocation):
        raise PlanError(f"job {job}: a {type(allocation).__name__} is not an Allocation")
    return Allocation(
        _gpus(job, allocation.gpus, view),
        _lease_end(job, allocation.lease_end, view.now),
        _batch_size(job, allocation.batch_size),
        bool(allocation.profile),
        _other_job(job, allocation.begin_from, "begin with the weights of"),
        _other_job(job, allocation.joint, "train together with"),
    )


def _batch_size(job: int, size: int | None) -> int | None:
    if size is None:
        return None
    try:
        whole = operator.index(size)
    except TypeError:
        whole = 0
    if whole < 1:
        raise PlanError(f"job {job}: is to train with a batch of {size!r}; it must be a whole number from 1 on, None is its own")
    return whole


def _other_job(job: int, other: int | None, what: str) -> int | None:
    try:
        return None if other is None else operator.index(other)
    except TypeError:
        raise PlanError(f"job {job}: is to {what} {other!r}, which is not the id of a job") from None


def _check_joint(plan: Plan, row_of: RowOf, view: View) -> None:
    """A job that trains in another one's process waits meanwhile, and takes part in one such training only."""
    partners: set[int] = set()
    for job, allocation in plan.allocations.items():
        partner = allocation.joint
        if partner is None:
            continue
        row = row_of.get(partner)
        if row is None or view.jobs.phase[row] != Phase.PENDING or partner in plan.allocations or partner == job or partner in partners:
            raise PlanError(f"job {job}: is to train together with job {partner}, which must wait and have no part in another lease")
        partners.add(partner)


def _lease_end(job: int, end: float | None, now: float) -> float | None:
    if end is not None and not (math.isfinite(end) and end > now):
        raise PlanError(f"job {job}: its lease ends at {end}, which is not a time after now ({now}); None is no end")
    return None if end is None else float(end)


def _gpus(job: int | str, given: Iterable[int], view: View) -> tuple[int, ...]:
    who = f"job {job}" if isinstance(job, int) else job
    try:
        gpus = tuple(operator.index(gpu) for gpu in given)
    except TypeError:
        raise PlanError(f"{who}: {given!r} are not rows of the view's GPUs") from None
    count = len(view.gpus)
    for gpu in gpus:
        if not 0 <= gpu < count:
            raise PlanError(f"{who}: has GPU row {gpu}, the view has rows 0 to {len(view.gpus) - 1}")
    if len(set(gpus)) != len(gpus):
        raise PlanError(f"{who}: has a GPU twice in {gpus}")
    return gpus


def _check_profile(job: int, row: int, allocation: Allocation, view: View) -> None:
    """A profiling run has the GPUs that it needs, on a lease that ends."""
    wanted = 0 if view.jobs.profile_gpus is None else int(view.jobs.profile_gpus[row])
    if len(allocation.gpus) != wanted or not 0 < wanted < int(view.jobs.gpus_min[row]):
        run = f"one on {wanted}" if 0 < wanted < int(view.jobs.gpus_min[row]) else "none on fewer than its gang"
        raise PlanError(f"job {job}: has a profiling run on {len(allocation.gpus)} GPUs, it needs {run}")
    if allocation.lease_end is None:
        raise PlanError(f"job {job}: its profiling run has no end")


def _check_gang(job: int, row: int, allocation: Allocation, view: View) -> None:
    gpus, low, high = allocation.gpus, int(view.jobs.gpus_min[row]), int(view.jobs.gpus_max[row])
    if allocation.profile:
        _check_profile(job, row, allocation, view)
    elif not low <= len(gpus) <= high:
        wants = f"{low}" if low == high else f"{low} to {high}"
        raise PlanError(f"job {job}: has {len(gpus)} GPUs, it takes {wants}")
    if not view.gpus.usable[list(gpus)].all():
        held = set(view.jobs.allocation(row).tolist())
        for gpu in gpus:
            if not view.gpus.usable[gpu] and gpu not in held:
                raise PlanError(f"job {job}: has GPU {view.gpus.id[gpu]}, which is not usable now")
    memory = float(view.jobs.gpu_memory[row])
    for gpu in gpus if memory > 0 else ():
        if 0 < view.gpus.memory[gpu] < memory:
            raise PlanError(f"job {job}: needs {memory:.0f} bytes on each GPU, {view.gpus.id[gpu]} has {view.gpus.memory[gpu]:.0f}")


def _partners(plan: Plan, row_of: RowOf, view: View) -> Mapping[int, set[int]]:
    """The jobs with which each job of a group shares."""
    partners: dict[int, set[int]] = {}
    kinds: dict[int, str] = {}
    for group in plan.groups:
        if group.kind not in KINDS:
            raise PlanError(f"groups: kind {group.kind!r} is not known; {' and '.join(map(repr, KINDS))} are")
        for job in group.jobs:
            if job not in plan.allocations:
                raise PlanError(f"job {job}: is in a group ({group.kind}), but is not allocated")
            if kinds.setdefault(job, group.kind) != group.kind:
                raise PlanError(f"job {job}: is in groups of two kinds, {kinds[job]} and {group.kind}")
            gpus = plan.allocations[job].gpus
            said = "" if view.jobs.share is None else str(view.jobs.share[row_of[job]])
            if said not in ("", group.kind):
                raise PlanError(f"job {job}: is in a group ({group.kind}), but its submitter says share: {said}")
            if group.kind == SWITCHED and not said:  # not every job can take turns
                raise PlanError(f"job {job}: is in a group ({group.kind}), but its submitter does not say share: {group.kind}")
            if len(gpus) < view.jobs.gpus_min[row_of[job]]:
                raise PlanError(f"job {job}: is in a group ({group.kind}), but is in a profiling run, which is never shared")
            if len(set(view.gpus.node[list(gpus)].tolist())) > 1:
                raise PlanError(f"job {job}: is in a group ({group.kind}), but its GPUs are on several nodes; those are never shared")
            if group.kind == SWITCHED and len(gpus) != 1:
                raise PlanError(f"job {job}: is in a group ({group.kind}) on {len(gpus)} GPUs; it would wait for the turns of several")
            partners.setdefault(job, set()).update(group.jobs)
    return partners


def _check_sharing(plan: Plan, fresh: set[int], row_of: RowOf, view: View) -> None:
    partners = _partners(plan, row_of, view)
    users: dict[int, list[int]] = {}
    _enter_stayers(plan, view, users)
    for job, allocation in plan.allocations.items():
        for gpu in allocation.gpus:
            for other in users.setdefault(gpu, []):
                # Jobs that share already may go on doing so: a policy must be able to take over from one that packs.
                if other not in partners.get(job, ()) and (job in fresh or other in fresh):
                    raise PlanError(f"job {job}: has GPU {view.gpus.id[gpu]}, which job {other} has too")
            users[gpu].append(job)


def holders(plan: Plan, view: View) -> list[tuple[int, int]]:
    """(row of the holder, GPU) for each GPU that the plan allocates and a job holds now. Most plans allocate free GPUs only."""
    jobs = view.jobs
    if view.free is not None and view.free.has(gpu for allocation in plan.allocations.values() for gpu in allocation.gpus):
        return []
    wanted = np.zeros(len(view.gpus), dtype=bool)
    for allocation in plan.allocations.values():
        wanted[list(allocation.gpus)] = True
    hit = wanted[jobs.alloc_gpus].nonzero()[0]
    rows = jobs.alloc_start.searchsorted(hit, side="right") - 1
    return list(zip(rows.tolist(), jobs.alloc_gpus[hit].tolist(), strict=True))


def _enter_stayers(plan: Plan, view: View, users: dict[int, list[int]]) -> None:
    """Add jobs that keep GPUs which the plan also gives to others. Only these are looked up: most of the pool does not change."""
    for row, gpu in holders(plan, view):
        job = int(view.jobs.id[row])
        gone = view.jobs.phase[row] == Phase.STOPPING or job in plan.allocations or job in plan.preempt
        if not gone:
            users.setdefault(gpu, []).append(job)


def _check_preempt(plan: Plan, row_of: RowOf, view: View) -> None:
    for job in plan.preempt:
        row = row_of.get(job)
        if row is None or view.jobs.phase[row] != Phase.ACTIVE:
            raise PlanError(f"job {job}: is to be preempted, but holds no GPUs that could be taken")
        if job in plan.allocations:
            raise PlanError(f"job {job}: is both allocated and to be preempted")
    for job in plan.rejected:
        row = row_of.get(job)
        if row is None or view.jobs.phase[row] != Phase.PENDING or job in plan.allocations:
            raise PlanError(f"job {job}: is rejected, but does not wait")


def _check_waiting(plan: Plan, view: View) -> None:
    known = set(view.jobs.id.tolist())
    stay = set(view.jobs.id[view.jobs.phase == Phase.ACTIVE].tolist()) - set(plan.preempt)
    seen: set[int] = set()
    for waiting in plan.waiting:
        words = (waiting.reason.code, waiting.reason.text)
        if not all(isinstance(word, str) and word for word in words):
            raise PlanError("waiting: a reason needs a code and a text")
        for job in waiting.jobs:
            if job not in known:
                raise PlanError(f"job {job}: is waiting, but is not in the view")
            if job in plan.allocations:
                raise PlanError(f"job {job}: is both allocated and waiting")
            if job in stay:
                raise PlanError(f"job {job}: is waiting, but keeps its GPUs: it is not to be preempted")
            if job in seen:
                raise PlanError(f"job {job}: is waiting twice")
            seen.add(job)
    order = set(plan.order)
    if order and (len(order) != len(plan.order) or order != seen):
        odd = min(order ^ seen, default=None)
        raise PlanError("order: names a job twice" if odd is None else f"order: job {odd} is not in both order and waiting")


def _check_rest(plan: Plan) -> None:
    if plan.gap is not None and not math.isfinite(plan.gap):
        raise PlanError(f"gap: {plan.gap} is not finite; None is unknown")
    if plan.wake_at is not None and math.isnan(plan.wake_at):
        raise PlanError("wake_at: is not a time; None is the next event")


def _ids(where: str, jobs: Iterable[int] | Ints) -> list[int]:
    listed: list[Any] = jobs.tolist() if isinstance(jobs, np.ndarray) else list(jobs)
    try:
        return [operator.index(job) for job in listed]
    except TypeError:
        odd = next(job for job in listed if not hasattr(job, "__index__"))
        raise PlanError(f"{where}: {odd!r} is not the id of a job") from None
