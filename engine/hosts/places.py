"""The place of a job's checkpoint: only runners that can read that place, or fetch the checkpoint, may start the job.

A place is a directory, known by the name in its file: runners that share a home, or a directory of `[runners] checkpoints`, report the
same name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ...policies.contract import Bools, Floats, Gpus, Need, Nodes, Strings
from .. import format as fmt

Columns = Mapping[str, np.ndarray[Any, Any]]
LIVE_STATES = ("up", "draining", "drained")  #: states of runners that need no remark


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoints of a job, or of the one with which it begins."""

    place: str
    own: bool = True
    size: float = float("nan")  #: bytes, NaN: not known
    handed_on: bool = False  #: the daemon has them
    not_sent: str | None = None  #: why the daemon could not get them


@dataclass(frozen=True, slots=True)
class Places:
    """The checkpoints that runners can read."""

    state_of: Mapping[str, str]  #: of every runner that ever was
    reads: Mapping[str, Collection[str]]  #: places whose checkpoints it reads
    leaves: Mapping[str, float]  #: time of its node's return (s since the epoch), if it has one
    fetches: Mapping[str, int | None]  #: most bytes of a checkpoint that it fetches from another place; None: its version cannot

    def where(self, place: str) -> list[str]:
        """Runners that have it, gone ones included."""
        return sorted(node for node, places in self.reads.items() if place in places)

    def present(self, place: str) -> bool:
        """Whether a present runner can send checkpoints from there."""
        return any(self.state_of[node] in LIVE_STATES and self.fetches[node] is not None for node in self.where(place))

    def lies(self, place: str, step: int | None) -> str:
        """Its place, in words, and the consequence for other hosts."""
        return f"{checkpoint(step)} lies on {self.hosts(place)}"

    def hosts(self, place: str) -> str:
        """Runners that have it, and their states."""
        nodes = [f"{node} ({self.state_of[node]})" if self.state_of[node] not in LIVE_STATES else node for node in self.where(place)]
        return ", ".join(nodes) or "a runner that is no longer known"

    def fetchers(self, saved: Saved, nodes: Strings) -> Bools:
        """The nodes that can fetch a checkpoint; none if no runner can send it."""
        if not saved.own or saved.not_sent or not (saved.handed_on or self.present(saved.place)):
            return np.zeros(len(nodes), dtype=bool)
        most = np.array([self.fetches.get(name) or 0 for name in nodes])
        return np.asarray((most > 0) & ~(most < saved.size))

    def stays(self, saved: Saved) -> str:
        """Why a checkpoint goes to no other host, in words that follow its place; empty: it could, or that is not known."""
        if saved.not_sent:
            return f", from where it cannot be fetched: {saved.not_sent}"
        most = max((bound for bound in self.fetches.values() if bound is not None), default=None)
        if saved.own and most is not None and saved.size > most:
            size, bound = saved.size / 2**20, most / 2**20
            return f", and is too large to be fetched ({size:.1f} MiB, runners.fetch_at_most is {bound:.1f} MiB)"
        return ""


def checkpoint(step: int | None) -> str:
    return "its checkpoint" + ("" if step is None else f" at step {step}")


def places_of(nodes: Iterable[Sequence[Any]]) -> Places:
    """Of the query ``policy/nodes``."""
    rows = [tuple(row) for row in nodes]
    fetches = {row[0]: None if row[3] is None or row[3] != row[3] else int(row[3]) for row in rows}
    leaves = {row[0]: float(row[4]) for row in rows if row[4] is not None and row[4] == row[4]}
    return Places({row[0]: row[1] for row in rows}, {row[0]: row[2].split("\n") for row in rows}, leaves, fetches)


@dataclass(frozen=True, slots=True)
class ClosedJobs:
    """Jobs of a view that may start on some nodes only."""

    need: Floats | None = None  #: see `Jobs.need`
    needs: list[Need] = field(default_factory=list)
    #: rows with too few GPUs, and their checkpoint; None: they have none, and could not be started
    nowhere: dict[int, Saved | None] = field(default_factory=dict)


def closed(
    jobs: Columns,
    memory: Floats,
    saved: Mapping[int, Saved],
    gpus: Gpus,
    nodes: Nodes,
    places: Places,
    free: Bools,
    lasts: Mapping[int, float] = MappingProxyType({}),
    beside: Mapping[int, Bools] = MappingProxyType({}),
) -> ClosedJobs:
    """``saved``: checkpoints of rows, their own or those with which they begin; ``memory``: bytes per GPU of each row; ``free``: GPUs;
    ``lasts``: expected ends (s since the epoch) of rows that lose all work at a stop; ``beside``: the best nodes of rows.

    A job continues at its checkpoint's place while there is room, otherwise on any node that can fetch it. In the same way it starts beside
    jobs that make its batches (``share.input``), while there is room.
    """
    names: Strings = nodes.id
    held, wanted = jobs["lease_id"], jobs["gpus_min"]
    excluded = {row: set(json.loads(text)) for row, text in enumerate(jobs["excluded"]) if text}
    found, index, need = ClosedJobs(), dict[tuple[float, bytes], int](), None
    there = np.bincount(gpus.node, minlength=len(names))

    def room(row: int, allowed: Bools) -> bool:
        fits = free & gpus.usable & ((gpus.memory <= 0) | (gpus.memory >= memory[row])) & allowed[gpus.node]
        return bool(np.count_nonzero(fits) >= wanted[row])

    wanted_places = {one.place for one in saved.values()}
    reads = {place: np.array([place in places.reads.get(name, ()) for name in names], dtype=bool) for place in wanted_places}
    leaves = np.array([places.leaves.get(name, np.inf) for name in names])
    for row in sorted(saved.keys() | excluded.keys() | lasts.keys() | beside.keys()):
        allowed = np.ones(len(names), dtype=bool)
        if row in excluded:
            allowed &= ~np.isin(names, list(excluded[row]))
        if row in lasts:
            allowed &= leaves >= lasts[row]
        if row in saved:
            near = allowed & reads[saved[row].place]
            stays = held[row] or room(row, near)
            allowed = near if stays else near | (allowed & places.fetchers(saved[row], names))
        if row in beside and room(row, allowed & beside[row]):
            allowed &= beside[row]
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
    return ClosedJobs(need, found.needs, found.nowhere)


def reason(job: int, saved: Saved | None, step: int | None, excluded: str | None, places: Places) -> tuple[str, str]:
    """Code and words of why a job can start on no present node."""
    if saved is not None and not saved.own:
        lacked = f"; could not be started on {lacks(excluded)}" if excluded else ""
        return "place", f"the weights with which it begins lie on {places.hosts(saved.place)}, and go to no other host{lacked}"
    if saved is not None:
        lies = f"{places.lies(saved.place, step)}{places.stays(saved)}"
        lies += f"; could not be started on {lacks(excluded)}" if excluded else ""
        return "place", f"{lies}; 'stoker move {job} --restart' gives it up and begins anew elsewhere"
    return "excluded", f"could not be started on {lacks(excluded)}"


def too_short(names: Iterable[str], takes: float, places: Places, now: float) -> tuple[str, str]:
    """Code and words of why a job that loses all work at a stop may not begin on some nodes; empty: it may on all."""
    soon = {node: at for node in names if (at := places.leaves.get(node, np.inf)) < now + takes and places.state_of[node] == "up"}
    if not soon:
        return "", ""
    leaving = ", ".join(f"{node}, which leaves {fmt.relative(at, now)}" for node, at in sorted(soon.items()))
    return "leaving", f"takes {fmt.duration(takes)}, saves nothing, and so is not begun on {leaving}"


def lacks(excluded: str | None) -> str:
    """Runners on which a job is not tried again, and its lacks there."""
    found: Mapping[str, str] = json.loads(excluded or "{}")
    return "; ".join(f"{node} ({why})" for node, why in sorted(found.items()))
