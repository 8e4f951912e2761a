"""Merges that last from one plan to the next: a decision to merge two jobs holds until one of them has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..contract import Memory, Phase, Reason, View
from .merge_columns import SPATIAL, TEMPORAL

MEMORY_KEY = "merges"  #: of the policy's memory


@dataclass(frozen=True, slots=True)
class Merges:
    """By job (id)."""

    pairs: Mapping[int, tuple[int, str]] = field(default_factory=dict)  #: the first of a pair, to the waiting second, and the mode
    begins: Mapping[int, int] = field(default_factory=dict)  #: untrained jobs, to the source of their weights
    joined: Mapping[int, int] = field(default_factory=dict)  #: jobs that train, or have trained, together, to their partner's profile
    follows: Mapping[int, int] = field(default_factory=dict)  #: jobs whose pair's first has just ended, to that one: its GPUs are theirs

    def seconds(self) -> dict[int, int]:
        """The second of each pair, to the first."""
        return {second: first for first, (second, _) in self.pairs.items()}


def to_json(merges: Merges) -> dict[str, Any]:
    return {
        "pairs": [[first, second, mode] for first, (second, mode) in merges.pairs.items()],
        "begins": [list(one) for one in merges.begins.items()],
        "joined": [list(one) for one in merges.joined.items()],
    }


def of_memory(memory: Memory) -> Merges:
    kept = (memory or {}).get(MEMORY_KEY)
    if kept is None:
        return Merges()
    return Merges({first: (second, mode) for first, second, mode in kept["pairs"]}, dict(kept["begins"]), dict(kept["joined"]))


def current(merges: Merges, view: View) -> Merges:
    """The merges that still hold, as jobs have ended since, or were cancelled."""
    jobs = view.jobs
    phase = dict(zip(jobs.id.tolist(), jobs.phase.tolist(), strict=True))
    pairs: dict[int, tuple[int, str]] = {}
    begins = {job: source for job, source in merges.begins.items() if phase.get(job) == Phase.PENDING}
    follows: dict[int, int] = {}
    for first, (second, mode) in merges.pairs.items():
        if phase.get(second) != Phase.PENDING:
            continue  # it has ended, or was cancelled, or trains by itself
        if first in phase:
            pairs[first] = second, mode
        elif first in view.left:  # else it left no weights, and the other is on its own
            begins[second] = follows[second] = first
    return Merges(pairs, begins, {job: other for job, other in merges.joined.items() if job in phase}, follows)


def broken(merges: Merges, idle: set[int]) -> Merges:
    """Without the pairs whose first has not begun (``idle``): a new decision on these loses nothing."""
    pairs = {first: pair for first, pair in merges.pairs.items() if first not in idle}
    gone = {job for first, (second, mode) in merges.pairs.items() if first in idle and mode == SPATIAL for job in (first, second)}
    return Merges(pairs, merges.begins, {job: other for job, other in merges.joined.items() if job not in gone}, merges.follows)


def why(mode: str, first: int) -> Reason:
    """Why the second of a pair waits."""
    if mode == TEMPORAL:
        return Reason("merged", f"begins with the weights of job {first} once that has ended, as it then needs fewer iterations")
    return Reason("merged", f"trains together with job {first}, on its GPUs")
