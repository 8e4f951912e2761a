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
from .. import format as fmt

Columns = Mapping[str, np.ndarray[Any, Any]]
SENDS = ("up", "draining", "drained")  #: states of runners that can be asked for a checkpoint


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint."""

    place: str
    bytes: float  #: NaN: not known


@dataclass(frozen=True, slots=True)
class Places:
    """What runners can read; ``fetched``: bytes up to which a checkpoint is fetched from another place."""

    state_of: Mapping[str, str]  #: of every runner that ever was
    reads: Mapping[str, Collection[str]]  #: places whose checkpoints it reads
    fetched: int = 0

    def where(self, saved: Saved) -> list[str]:
        """Runners that have it, those that have gone too."""
        return sorted(node for node, places in self.reads.items() if saved.place in places)

    def is_fetched(self, saved: Saved) -> bool:
        """Whether other hosts can have it: somebody sends it, and it is not too large."""
        return self.fetched > 0 and saved.bytes <= self.fetched and any(self.state_of[node] in SENDS for node in self.where(saved))

    def lies(self, saved: Saved, step: int | None) -> str:
        """Where it is, in words, and what that means to other hosts."""
        nodes = [f"{node} ({self.state_of[node]})" if self.state_of[node] not in SENDS else node for node in self.where(saved)]
        saved_at = "" if step is None else f" at step {step}"
        words = f"its checkpoint{saved_at} lies on {', '.join(nodes) or 'a runner that is not known any more'}"
        if self.is_fetched(saved):
            return f"{words}, and other hosts fetch it ({fmt.size(int(saved.bytes))})"
        if saved.bytes > self.fetched > 0:
            return f"{words}, and {fmt.size(int(saved.bytes))} are more than other hosts fetch ({fmt.size(self.fetched)})"
        return words


def places_of(nodes: Iterable[Sequence[Any]], fetched: int) -> Places:
    """Of the query ``policy/nodes``."""
    rows = [tuple(row) for row in nodes]
    return Places({node: state for node, state, _ in rows}, {node: told.split("\n") for node, _, told in rows}, fetched)


@dataclass(frozen=True, slots=True)
class Closed:
    """Jobs of a view that may start on some nodes only."""

    need: Floats | None = None  #: see `Jobs.need`
    needs: list[Need] = field(default_factory=list)
    nowhere: dict[int, Saved | None] = field(default_factory=dict)  #: rows for whom there are too few GPUs; None: all are excluded


def closed(jobs: Columns, memory: Floats, saved: Mapping[int, Saved], gpus: Gpus, nodes: Nodes, places: Places) -> Closed:
    """``saved``: of rows with a checkpoint, their own or that with which they begin; ``memory``: of each row, bytes a GPU."""
    names: Strings = nodes.id
    held, wanted = jobs["lease_id"], jobs["gpus_min"]
    excluded = {row: set(json.loads(text)) for row, text in enumerate(jobs["excluded"]) if text}
    found, index, need = Closed(), dict[tuple[float, bytes], int](), None
    there = np.bincount(gpus.node, minlength=len(names))
    wanted_places = {one.place for one in saved.values()}
    reads = {place: np.array([place in places.reads.get(name, ()) for name in names], dtype=bool) for place in wanted_places}
    for row in sorted(saved.keys() | excluded.keys()):
        allowed = np.ones(len(names), dtype=bool)
        if row in saved and not places.is_fetched(saved[row]):
            allowed &= reads[saved[row].place]
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


def reason(job: int, saved: Saved | None, step: int | None, excluded: str | None, places: Places) -> tuple[str, str]:
    """Code and words of why a job can start on no node that is there."""
    if saved is not None:
        return "place", f"{places.lies(saved, step)}; 'stoker move {job} --restart' gives it up and begins anew elsewhere"
    return "excluded", f"could not be started on {lacks(excluded)}"


def lacks(excluded: str | None) -> str:
    """Runners on which a job is not tried again, and what it lacked there."""
    found: Mapping[str, str] = json.loads(excluded or "{}")
    return "; ".join(f"{node} ({why})" for node, why in sorted(found.items()))
