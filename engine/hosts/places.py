"""The place of a job: its checkpoint lies in one, and only runners that can read that place may start it.

A place is a directory, by the name that stands in it: runners that share a home, or a directory of `[runners] checkpoints`, tell the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...policies.contract import Floats, Gpus, Need, Nodes, Strings

Columns = Mapping[str, np.ndarray[Any, Any]]
THERE = ("up", "draining", "drained")  #: states of runners of which nothing more is to be said


@dataclass(frozen=True, slots=True)
class Places:
    """What runners can read."""

    state_of: Mapping[str, str]  #: of every runner that ever was
    reads: Mapping[str, Collection[str]]  #: places whose checkpoints it reads

    def where(self, place: str) -> list[str]:
        """Runners that have it, those that have gone too."""
        return sorted(node for node, places in self.reads.items() if place in places)

    def lies(self, place: str, step: int | None) -> str:
        """Where it is, in words, and what that means to other hosts."""
        nodes = [f"{node} ({self.state_of[node]})" if self.state_of[node] not in THERE else node for node in self.where(place)]
        saved_at = "" if step is None else f" at step {step}"
        return f"its checkpoint{saved_at} lies on {', '.join(nodes) or 'a runner that is not known any more'}"


def places_of(nodes: Iterable[Sequence[Any]]) -> Places:
    """Of the query ``policy/nodes``."""
    rows = [tuple(row) for row in nodes]
    return Places({node: state for node, state, _ in rows}, {node: told.split("\n") for node, _, told in rows})


@dataclass(frozen=True, slots=True)
class Closed:
    """Jobs of a view that may start on some nodes only."""

    need: Floats | None = None  #: see `Jobs.need`
    needs: list[Need] = field(default_factory=list)
    #: rows for whom there are too few GPUs, and the place of their checkpoint; None: they have none, and could not be started
    nowhere: dict[int, str | None] = field(default_factory=dict)


def closed(jobs: Columns, memory: Floats, saved: Mapping[int, str], gpus: Gpus, nodes: Nodes, places: Places) -> Closed:
    """``saved``: places of checkpoints of rows, their own or those with which they begin; ``memory``: of each row, bytes a GPU."""
    names: Strings = nodes.id
    held, wanted = jobs["lease_id"], jobs["gpus_min"]
    excluded = {row: set(json.loads(text)) for row, text in enumerate(jobs["excluded"]) if text}
    found, index, need = Closed(), dict[tuple[float, bytes], int](), None
    there = np.bincount(gpus.node, minlength=len(names))
    wanted_places = set(saved.values())
    reads = {place: np.array([place in places.reads.get(name, ()) for name in names], dtype=bool) for place in wanted_places}
    for row in sorted(saved.keys() | excluded.keys()):
        allowed = np.ones(len(names), dtype=bool)
        if row in saved:
            allowed &= reads[saved[row]]
        if row in excluded:
            allowed &= ~np.isin(names, list(excluded[row]))
        if allowed.all():
            continue
        if not held[row] and there[allowed].sum() < min(wanted[row], there.sum()):
            found.nowhere[row] = saved.get(row)
        key = float(memory[row]), allowed.tobytes()
        if key not in index:
            found.needs.append(Need(key[0], allowed))
            index[key] = len(found.needs)
        need = memory.copy() if need is None else need
        need[row] = -index[key]
    return Closed(need, found.needs, found.nowhere)


def reason(job: int, place: str | None, step: int | None, excluded: str | None, places: Places) -> tuple[str, str]:
    """Code and words of why a job can start on no node that is there."""
    if place is not None:
        return "place", f"{places.lies(place, step)}; 'stoker move {job} --restart' gives it up and begins anew elsewhere"
    return "excluded", f"could not be started on {lacks(excluded)}"


def lacks(excluded: str | None) -> str:
    """Runners on which a job is not tried again, and what it lacked there."""
    found: Mapping[str, str] = json.loads(excluded or "{}")
    return "; ".join(f"{node} ({why})" for node, why in sorted(found.items()))
