"""The assignments of every runner, in memory with a version, so that a long poll needs no query."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from ...policies.contract import precedence
from ..hosts.places import Places, places_of
from ..protocol import AdapterOffer, Assignment, Assignments, Fetch, Partner, Replica, ReplicaGroup, SendCheckpoint
from ..spec.model import JobSpec
from ..store.store import Store

RENDEZVOUS_BASE = 29500  #: first of the ports that a gang's first node tries first
GRACE = 30.0  #: seconds, for specs that give none


class Board:
    """Written after commits that touch leases (any thread), read by polls (the event loop)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._base = time.time_ns() // 1_000_000  # so that no version of an earlier daemon is repeated with other contents
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self.stale = False  #: the last refresh failed
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._answers: dict[str, Assignments] = {}
        self._ordered: dict[int, str] = {}  # leases to stop, with reasons that could not be stored yet
        self._sources: dict[int, _Source] = {}  # the same for the sources of their weights
        self._terms: dict[int, dict[str, Any]] = {}  # lease to its job's fields in assignments: read once, when it is new

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def detach(self) -> None:
        """The loop is about to be closed: later commits wake no polls."""
        with self._lock:
            self._loop = None

    def order(self, leases: Mapping[int, str]) -> None:
        """Tell the runners to stop these leases, each for its reason, before that is stored."""
        with self._lock:
            self._ordered |= leases
        self.refresh()

    def refresh(self) -> None:
        """Read the runners and the live leases; wake the polls of runners whose assignments have changed."""
        with self._lock:
            self.stale = True
            wanted, elsewhere = self._read()
            kept: dict[str, list[str]] = defaultdict(list)
            for node, backbone in self._store.rows("policy/kept_backbones"):
                kept[node].append(backbone)
            changed = []
            nodes = self._store.rows("policy/leaving")
            send: dict[str, list[SendCheckpoint]] = defaultdict(list)
            if elsewhere or any(handed_back for *_, handed_back in nodes):  # planning that query takes as long as all others
                for node, job, after, checkpoints, at_most in self._store.rows("policy/wanted_checkpoints"):
                    send[node].append(SendCheckpoint(job=job, after=after, checkpoints=checkpoints, at_most=at_most))
            for node, leaving, draining, _ in nodes:
                shutdown = "stop" if leaving else None
                warm = [] if draining else kept[node]
                now = Assignments(
                    version=0, leases=wanted.get(node, []), shutdown=shutdown, draining=draining, warm=warm, send=send[node]
                )  # fmt: skip
                before = self._answers.get(node)
                if before is None or msgspec.structs.replace(before, version=0) != now:
                    version = (before.version if before else self._base) + 1
                    self._answers[node] = msgspec.structs.replace(now, version=version)
                    changed.append(node)
            self.stale = False
            if self._loop is not None and changed:
                self._loop.call_soon_threadsafe(self._wake, changed)

    def _read(self) -> tuple[dict[str, list[Assignment]], bool]:
        """The assignments by node, and whether some of them need a checkpoint that lies elsewhere."""
        leases: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self._store.objects("policy/assignments"):
            leases[row["lease"]].append(row)
        self._ordered = {lease: reason for lease, reason in self._ordered.items() if lease in leases}
        for lease, reason in self._ordered.items():
            for row in leases[lease]:
                row["stop"] = row["stop"] if row["stop"] == "cancelled" else reason
        self._terms = {lease: terms for lease, terms in self._terms.items() if lease in leases}
        self._sources = {lease: source for lease, source in self._sources.items() if lease in leases}
        fresh = sorted(leases.keys() - self._terms.keys())
        begins: dict[int, dict[str, Any]] = {}
        rows = self._store.rows("policy/lease_specs", fresh) if fresh else []
        led = [lease for lease, *_, source, _, joint in rows if source is not None or joint is not None]
        sources: dict[int, list[Any]] = {lease: found for lease, *found in self._store.rows("policy/lease_sources", led)} if led else {}
        for lease, text, owner, snapshot, memory, source, offered, joint in rows:
            place, run_dir, trained_as, partner = sources.get(lease, [None] * 4)
            spec = _given(text)
            if trained_as is not None and spec.get("recipe") is not None:
                spec = _built_alike(spec, json.loads(trained_as))
            shared = (spec.get("share") or {}).get("input")
            self._terms[lease] = {
                "spec": spec, "snapshot": snapshot, "gpu_memory": memory, "grace": spec.get("grace", GRACE),
                "input": shared and f"{owner}/{shared}", "joint": None if joint is None else Partner(job=joint, spec=_given(partner)),
            }  # fmt: skip
            self._sources[lease] = _Source(source, place, _checkpoints(run_dir))
            begins |= {lease: json.loads(offered)} if offered else {}
        self._offer(begins)
        grouped = [lease for lease, held in leases.items() if self._terms[lease]["spec"].get("replicas") and not held[0]["profile"]]
        groups = _groups(self._store.objects("policy/replica_groups", grouped)) if grouped else {}
        wanted: dict[str, list[Assignment]] = defaultdict(list)
        elsewhere = [held[0]["job"] for held in leases.values() if any(map(_is_elsewhere, held))]
        fetched = self._fetched(elsewhere)
        for lease, held in leases.items():
            given = fetched.get(held[0]["job"]), groups.get(lease)
            for node, part in _parts(held, self._terms[lease], self._sources[lease], *given):
                wanted[node].append(part)
        return wanted, bool(elsewhere)

    def _offer(self, begins: Mapping[int, Mapping[str, Any]]) -> None:
        """Adapters with which leases may begin, with their places."""
        jobs = sorted({offer["job"] for one in begins.values() for offer in one["offers"]})
        places = (
            {job: _Source(job, place, _checkpoints(run_dir)) for job, place, run_dir in self._store.rows("policy/adapter_places", jobs)}
            if jobs
            else {}
        )
        for lease, one in begins.items():
            offers = [(places[offer["job"]], offer) for offer in one["offers"] if offer["job"] in places]
            self._sources[lease] = replace(self._sources[lease], offers=offers)
            self._terms[lease]["curve"] = [tuple(point) for point in one["curve"]]

    def _fetched(self, jobs: Sequence[int]) -> dict[int, Fetch]:
        """The checkpoints elsewhere with which jobs begin."""
        if not jobs:
            return {}
        places = places_of(self._store.rows("policy/nodes"))
        return {
            job: Fetch(
                lies=places.lies(place, step), size=size, digest=bundle or "", refused="" if bundle else _refusal(places, place, not_sent)
            )
            for job, place, bundle, not_sent, step, size in self._store.rows("policy/fetched", jobs)
        }

    def _wake(self, nodes: list[str]) -> None:
        for node in nodes:
            for waiter in self._waiters[node]:
                waiter.set()

    def wake(self, node: str) -> None:
        """Answer the polls of a node now, as there is other news for it. On the loop only."""
        self._wake([node])

    async def poll(self, node: str, version: int, wait: float) -> Assignments:
        """The assignments of a node as soon as their version differs from ``version`` or it is woken, at most ``wait`` s later."""
        waiter = asyncio.Event()
        self._waiters[node].add(waiter)
        try:
            answer = self._answers.get(node)
            if (answer is None or answer.version == version) and not self._closing:
                try:
                    await asyncio.wait_for(waiter.wait(), wait)
                except TimeoutError:
                    pass
            return self._answers.get(node) or Assignments(version=self._base, leases=[])
        finally:
            self._waiters[node].discard(waiter)

    def close(self) -> None:
        """Answer every poll at once from now on: the daemon is stopping."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._wake(list(self._waiters)))


def _given(spec: str) -> dict[str, Any]:
    """A spec without fields that have their default: a runner of an earlier version would refuse one that it does not know."""
    try:
        whole: dict[str, Any] = _told(msgspec.json.decode(spec, type=JobSpec))
    except msgspec.ValidationError:  # an earlier version allowed it: the runner judges it
        whole = json.loads(spec)
    return whole


def _told(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_told(one) for one in value]
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {field.encode_name: (getattr(value, field.name), field) for field in msgspec.structs.fields(value)}
    return {name: _told(said) for name, (said, field) in fields.items() if field.required or said != _default(field)}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _built_alike(spec: dict[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for a recipe's server: those of the trained model, except the ones that the server sets itself."""
    params = {**trained.get("params", {}), **spec.get("params", {})}
    return {**spec, "params": params, "backbone": spec.get("backbone") or trained.get("backbone")}


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of a lease's initial weights."""

    job: int | None
    place: str | None  #: of its checkpoint; None: not known
    directory: str | None  #: of its checkpoints on its last host
    offers: Sequence[tuple[_Source, Mapping[str, Any]]] = ()  #: adapters with which it may begin instead


def _is_elsewhere(node: dict[str, Any]) -> bool:
    """Whether an unstarted part of a lease is on a node that cannot read the job's checkpoints."""
    read = (node["shared_place"], *node["home_places"])
    return node["place"] is not None and not node["profile"] and not node["begun"] and node["place"] not in read


def _refusal(places: Places, place: str, not_sent: str | None) -> str:
    """Why checkpoints will not come from their place; empty: they will."""
    return not_sent or ("" if places.present(place) else "no runner is there to send it")


@dataclass(frozen=True, slots=True)
class _Group:
    """The state of a group of replicas, and its number of hosts."""

    word: ReplicaGroup
    hosts: int
    taken: Mapping[int, int]  #: newest common step of each lease that has taken one

    def has_state_for(self, lease: int) -> bool:
        """Whether another replica trains, from which this lease is to copy the state, even in place of its own checkpoint."""
        index = next(one.index for one in self.word.members if one.lease == lease)
        saved = dict(zip(self.word.saved, self.word.saved_steps, strict=True)).get(index, 0)
        return any(other != lease and step >= saved for other, step in self.taken.items())


def _groups(rows: Sequence[dict[str, Any]]) -> dict[int, _Group]:
    """The group of each lease that is in one. ``rows``: of ``policy/replica_groups``."""
    found: dict[int, _Group] = {}
    for number, held in groupby(rows, key=lambda row: row["group"]):
        members = list(held)
        leases = [row["lease"] for row in members]
        taken = {row["lease"]: row["taken"] for row in members if row["taken"] is not None}
        word = ReplicaGroup(
            group=number,
            epoch=members[0]["epoch"],
            members=[Replica(lease=row["lease"], index=row["place"], address=_meeting(row) if row["port"] else "") for row in members],
            founder=min(leases),
            stepped=list(taken),
            done=members[0]["done"],
            saved=members[0]["saved"],
            saved_steps=members[0]["saved_steps"],
            first=members[0]["first"],
        )
        found |= dict.fromkeys(leases, _Group(word, len({(row["host"], row["boot_id"]) for row in members}), taken))
    return found


def _parts(
    held: Sequence[dict[str, Any]], terms: dict[str, Any], source: _Source, fetched: Fetch | None, group: _Group | None
) -> Iterator[tuple[str, Assignment]]:
    """The parts of one lease by node; ``held`` are its GPUs in the order of ranks. Parts that have exited are left out."""
    lease = held[0]
    nodes = list(dict.fromkeys(row["node"] for row in held))
    hosts = len({(row["host"], row["boot_id"]) for row in held})
    if group is not None:
        hosts = group.hosts
    copies = group is not None and group.has_state_for(lease["lease"])
    meeting = _meeting(lease) if len(nodes) > 1 or group is not None else ""
    for rank, node in enumerate(nodes):
        own = [row for row in held if row["node"] == node]
        if own[0]["exited"]:
            continue
        yield (
            node,
            Assignment(
                lease=lease["lease"],
                job=lease["job"],
                attempt=lease["attempt"],
                gpus=[row["gpu"] for row in own],
                world_size=lease["gpu_count"],
                node_rank=rank,
                nodes=len(nodes),
                rendezvous=meeting if lease["taken_up"] or not rank else "",
                hosts=hosts,
                checkpoints=_shared(own[0], lease["job"], lease["place"]),
                fetch=fetched if _is_elsewhere(own[0]) and not copies else None,
                begin_from=_begin_from(own[0], source),
                offers=[
                    AdapterOffer(directory=where, here=_is_read(own[0], of), **offer)
                    for of, offer in source.offers
                    if (where := _begin_from(own[0], of))
                ],
                resume=max(lease["attempt"] - 1, 0),
                profile=lease["profile"],
                share=lease["share"],
                priority=precedence(lease["kind"], lease["priority"]),
                stop=lease["stop"],
                replicas=None if group is None else group.word,
                kept_memory=lease["kept_memory"],
                **terms,
            ),
        )


def _shared(node: dict[str, Any], job: int, place: str | None) -> str | None:
    """The directory of a job's checkpoints on a node; None: its home, as there is no other place, or as they lay there before."""
    if node["shared_checkpoints"] is None or (place is not None and place in node["home_places"]):
        return None
    return f"{node['shared_checkpoints']}/{job}/checkpoints"


def _is_read(node: dict[str, Any], source: _Source) -> bool:
    """Whether a node reads the place of a checkpoint, as far as is known."""
    return source.place is None or source.place in (node["shared_place"], *node["home_places"])


def _begin_from(node: dict[str, Any], source: _Source) -> str | None:
    if source.job is None or source.place is None or source.place not in (node["shared_place"], *node["home_places"]):
        return source.directory
    return _shared(node, source.job, source.place) or f"{node['home']}/jobs/{source.job}/checkpoints"


def _checkpoints(run_dir: str | None) -> str | None:
    return run_dir and str(Path(run_dir).parent / "checkpoints")


def _meeting(first: dict[str, Any]) -> str:
    """The address where a gang's ranks meet, or a replica answers. The node chooses the port; until then it is the one to try first."""
    return f"{first['address']}:{first['port'] or RENDEZVOUS_BASE + first['lease'] % 1000}"
