"""Why jobs wait, in words that stay the same from tick to tick, so that there are no writes without changes."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ..contract import Floats, Ints, Jobs, Reason, View, Waiting
from ..placement.consolidated import Placement


class Why(IntEnum):
    NO_GPUS = 0
    IMPOSSIBLE = 1
    RESOURCES = 2
    BEHIND = 3


def waiting(jobs: Jobs, rows: Ints, why: Ints, placement: Placement, displaceable: str = "") -> list[Waiting]:
    """``rows`` in order of service, grouped by reason; ``displaceable`` names the jobs that they may displace, if any."""
    # The inputs of the sentence: behind others, the size of the gang does not matter.
    sized = why != Why.BEHIND
    n = jobs.gpus_min[rows] * sized
    memories, memory = np.unique(jobs.asks[rows] * sized, return_inverse=True)
    kinds = (why * (n.max(initial=0) + 1) + n) * len(memories) + memory
    _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    members = np.split(rows[np.argsort(kind, kind="stable")], np.cumsum(np.bincount(kind))[:-1])
    return [
        Waiting(_reason(Why(why[i]), int(n[i]), int(memories[memory[i]]), placement, displaceable), jobs.id[group])
        for i, group in zip(first.tolist(), members, strict=False)
    ]


def lacking(view: View, rows: Ints, placement: Placement, blocks: int | None = None) -> list[Waiting]:
    """The same for ``rows`` that were each tried and found no GPUs, now or ever. Rows behind ``blocks``, one of them, were not tried."""
    memories, which = np.unique(view.jobs.asks[rows], return_inverse=True)
    capacity = np.array([placement.capacity(memory=memory) for memory in memories.tolist()], dtype=np.int64)
    never = Why.IMPOSSIBLE if len(view.gpus) else Why.NO_GPUS
    why = np.where(view.jobs.gpus_min[rows] > capacity[which], never, Why.RESOURCES)
    if blocks is not None:
        behind = np.arange(len(rows)) > np.flatnonzero(rows == blocks)[0]
        why[behind & (why == Why.RESOURCES)] = Why.BEHIND
    return waiting(view.jobs, rows, why, placement)


def why_unserved(queue: Ints, impossible: Ints, never: Why, claim: Floats, blocking: bool) -> Ints:
    """Why each row of ``queue`` (all waiting jobs, in order of service) waits, as if each had been tried."""
    why = np.full(len(queue), Why.RESOURCES, dtype=np.int64)
    hopeless = np.isin(queue, impossible)
    why[hopeless] = never
    if blocking:
        possible = np.flatnonzero(~hopeless)
        claims = claim[queue[possible]]
        why[possible[1:][claims[1:] == claims[:-1]]] = Why.BEHIND
    return why


def _reason(why: Why, n: int, memory: int, placement: Placement, displaceable: str) -> Reason:
    least, names = placement.asked(memory)
    size = f" of {size_words(least)}" if least else ""
    need = f"needs {n} GPU{'s' if n > 1 else ''}{size}{_place(names)}"
    match why:
        case Why.NO_GPUS:
            return Reason("no-gpus", f"{need}; no runner offers any to this pool")
        case Why.IMPOSSIBLE:
            less = "; 'memory: {cap: SIZE}', or a smaller cap, trains in less" if least and placement.capacity() >= n else ""
            return Reason("impossible", f"{need}; the pool has only {placement.capacity(memory=memory)}, so it can never start here{less}")
        case Why.RESOURCES:
            nodes = placement.nodes_needed(n, memory=memory)
            where = "" if n == 1 else " on one node" if nodes == 1 else f" on {nodes} nodes"
            return Reason("resources", f"{need}{where}; {_lacking(n, memory, placement, displaceable)}")
        case Why.BEHIND:
            return Reason("behind", "waits its turn: a job before it waits for GPUs")


def size_and_place(placement: Placement, memory: float) -> str:
    least, names = placement.asked(memory)
    return f"{size_words(least)} of a GPU{_place(names)}"


def _place(names: list[str] | None) -> str:
    either = "" if names is None else " or ".join(names) if len(names) < 4 else f"one of {len(names)} nodes"
    return f" on {either}, the only place for it" if either else ""


def size_words(memory: int) -> str:
    return f"{memory / 2**30:.3g} GiB" if memory >= 1 << 30 else f"{memory / 2**20:.3g} MiB"


def _lacking(n: int, memory: int, placement: Placement, displaceable: str) -> str:
    """The obstacle for a gang that the pool could hold."""
    if not placement.could_fit(n, memory=memory):
        usable, capacity = placement.usable(memory=memory), placement.capacity(memory=memory)
        pool = f"{usable} of the pool's {capacity} GPU{'s' if capacity > 1 else ''} may be given now"
        return f"{pool}, the others are drained, silent or dirty: 'stoker status' shows them"
    return f"too few are free, and {displaceable} cannot give way now" if displaceable else "too few are free"
