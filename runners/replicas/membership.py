"""The members of a replica group's next step, the member whose weights lagging ones copy, and whether the group may go on at all.

torchft's lighthouse lists the members that are present. It keeps a group together within one lighthouse; each member runs one, so that
none is a single point of failure. `decide` keeps two groups from training side by side: given the same members, all decide alike.

- A step needs more than half of the members that took the last one, or half of them if another one has ended, by the daemon's newest
  word. If more have ended, all living members are needed: an absent one, even a newer one, may have gone on with those.
- A sum that has failed here may have succeeded elsewhere. So enough of its members must be here that the others cannot go on.
- If no member that took a step is here, the daemon's word begins the group: with the oldest living lease, more than half of the living
  ones, and at first at least as many as the job wants. It does not begin while a living member that has taken a step is absent, nor anew
  while there is a checkpoint that none of these has. The daemon learns of steps late; so if the oldest one is not the first of all, or
  a sum of it has failed, others may have begun without it, and all living members are needed.
- If only a few are left, and were away, their state is old: then the newest checkpoint of a task counts, as far as the daemon knows.
- A member that says that it leaves takes no further step, so it counts as ended before the daemon says so.
- A member with another state than the farthest one copies that state, even if it has an older checkpoint itself.
- If too few are present they wait, and say for which ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from ...engine.protocol import ReplicaGroup
from .sample_ledger import MemberShare, Ranges, shares

SUMS = "sums"  #: the fact that says how a member sums; early versions do not send it
RULES = 2  #: raised with each change of what members tell each other, how they meet, or what `decide` makes of it


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a member to the others before each step."""

    group: int
    lease: int
    index: int  #: of its task within the group
    address: str  #: host:port where it answers (`member_server`)
    step: int  #: the last step that it has done
    history: str = ""  #: digest of the members of each step up to this one, equal only for equal states; empty: no step
    took_part: bool = False  #: it has taken a step with others since its start; else its state is as built, or from a checkpoint
    last: tuple[int, ...] = ()  #: leases that took its last step
    done: Ranges = ()  #: positions of the next step that it has computed, see `sample_ledger`
    tries: int = 0  #: all-reduces that have failed
    #: for each all-reduce of its next step that has failed here, but may have succeeded elsewhere, the leases in it
    doubts: tuple[tuple[int, ...], ...] = ()
    seconds: float | None = None  #: computing time of its newest step, None: not known
    store: str = ""  #: host:port of its store, where the processes of a group meet
    own: str = ""  #: its own lighthouse
    leaving: bool = False  #: it takes no further step: the others need not wait for it
    unreached: tuple[int, ...] = ()  #: leases that do not answer it
    reached: bool = False  #: its evaluation has met the target
    facts: dict[str, str] = {}  #: facts that must be the same for all members: model, data, …
    word: ReplicaGroup | None = None  #: the daemon's newest word, as far as it knows

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


_MEMBER = msgspec.json.Decoder(Member)  # made here, as msgspec crashes when several threads are the first to decode a type


def decoded(text: str) -> Member:
    return _MEMBER.decode(text)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that follows from the present members, the same for all of them."""

    verdict: Literal["go", "wait", "leave"]  #: leave: this member must not be in the group, and ``why`` gives the remedy
    why: str = ""
    members: tuple[Member, ...] = ()  #: the members of the step, in the order of their indexes
    source: Member | None = None  #: the member that has the group's state
    shares: dict[int, MemberShare] = {}  #: by lease; members that copy the state have none
    reached: bool = False
    left: bool = False  #: some former members need not be waited for any more
    aside: bool = False  #: the others go on without this member
    useless: bool = False  #: no present member has the group's checkpoint, and no task with it has a GPU

    def lags(self, lease: int) -> bool:
        return self.verdict == "go" and lease not in self.shares

    @property
    def leases(self) -> tuple[int, ...]:
        return tuple(member.lease for member in self.members)


def decide(me: Member, present: Sequence[Member], batch: int, least: int) -> Decision:
    """The next action of ``me``, given all present members with itself. ``batch``: samples of a step; ``least``: members at first."""
    word = newest([one.word for one in present])
    if (twin := next((one for one in present if one.index == me.index and one.lease > me.lease), None)) is not None:
        return Decision(verdict="leave", why=f"task {me.index} runs again as lease {twin.lease}; this one, lease {me.lease}, is an old one")
    leaving = frozenset(one.lease for one in present if one.leaving)
    stay = [one for one in _without_twins(present) if one.lease not in leaving]
    source = farthest(stay)
    if (wrong := other_facts(me, source)) is not None:
        return Decision(verdict="leave", why=wrong)
    alike = sorted((one for one in stay if other_facts(one, source) is None), key=lambda one: one.index)
    left = len(alike) < len(present)
    members = reaching(alike)
    leader = farthest(members)
    equals = [one for one in members if (one.took_part, one.step) == (True, leader.step)]
    leading = [one for one in equals if leads(members, one, word, leaving)]
    source = leading[0] if leading else max(members, key=lambda one: (one.step, one.took_part, -one.index))
    if not leading and (why := objection(members, leader, source, word, least, leaving)) is not None:
        useless = _useless(members, source, word)
        return Decision(verdict="wait", why=why, members=members, source=source, left=left, useless=useless)
    if all(one.lease != me.lease for one in members):
        cut = ", ".join(f"task {one.index}" for one in alike if _cut(me, one))
        why = f"it and {cut} do not reach each other; the others go on until they do: check the network"
        return Decision(verdict="wait", why=why, aside=True)
    able = [one for one in members if same_state(one, source)]
    found = shares(batch, [one.done for one in able])
    return Decision(
        verdict="go",
        members=members,
        source=source,
        shares={one.lease: share for one, share in zip(able, found, strict=True)},
        reached=any(one.reached for one in able),
        left=left,
    )


def newest(words: Sequence[ReplicaGroup | None]) -> ReplicaGroup | None:
    """The newest of the daemon's words."""
    return max((word for word in words if word is not None), key=lambda word: word.epoch, default=None)


def farthest(present: Sequence[Member]) -> Member:
    """The member whose state counts: one that trained with others goes before one with a checkpoint; then the farthest, then the first."""
    return max(present, key=lambda one: (one.took_part, one.step, -one.index))


def reaching(members: Sequence[Member]) -> tuple[Member, ...]:
    """The largest group of members that all reach each other; of several such groups the one with the first member."""
    best: list[Member] = []
    for first in members:
        group = [first]
        for one in members:
            if one is not first and not any(_cut(one, other) for other in group):
                group.append(one)
        best = max(best, group, key=len)
    return tuple(sorted(best, key=lambda one: one.index))


def _cut(one: Member, other: Member) -> bool:
    return other.lease in one.unreached or one.lease in other.unreached


def same_state(one: Member, source: Member) -> bool:
    return one.lease == source.lease or (one.step == source.step and one.history == source.history != "")


def leads(members: Sequence[Member], leader: Member, word: ReplicaGroup | None, leaving: Collection[int] = ()) -> bool:
    """Whether so many members of the leader's last step are here that the others cannot go on without them.

    ``leaving``: leases that announced that they take no further step.
    """
    living = _living(leader.last, word, leaving)
    there = _behind(members, leader).intersection(living)
    enough = 2 * len(there) > len(leader.last) - (len(leader.last) > len(living))
    return enough and not _in_doubt(members, leader, word, leaving)


def _behind(members: Sequence[Member], leader: Member) -> set[int]:
    """Leases whose last step is the leader's last."""
    return {one.lease for one in members if one.step < leader.step or same_state(one, leader)}


def _in_doubt(members: Sequence[Member], leader: Member, word: ReplicaGroup | None, leaving: Collection[int]) -> set[int]:
    """Leases of a sum that failed for one of these, if so many may have taken the step that they, or their living ones, can go on."""
    behind, found = _behind(members, leader), set[int]()
    for tried in {tried for one in members for tried in one.doubts}:
        others = set(tried) - behind
        if 2 * len(others) > len(tried) or 2 * len(_living(others, word, leaving)) >= len(tried):
            found |= others
    return found


def _living(leases: Collection[int], word: ReplicaGroup | None, leaving: Collection[int]) -> list[int]:
    """Those of the leases that may take a further step."""
    known = leases if word is None else {one.lease for one in word.members}
    return [lease for lease in leases if lease in known and lease not in leaving]


def objection(
    members: Sequence[Member], leader: Member, source: Member, word: ReplicaGroup | None, least: int, leaving: Collection[int] = ()
) -> str | None:
    """Why these members, too few of those of the last step, may not go on from the state of ``source``; None: they may."""
    if word is None:
        return "waiting for the daemon to name the members"
    here = {one.lease for one in members}
    living = [one.lease for one in word.members]
    away = [lease for lease in living if lease not in here]
    doubt = _in_doubt(members, leader, word, leaving)
    if leader.took_part:
        # Ended members may have taken a further step with absent ones. So none may be absent.
        if away:
            return f"{_too_few(here, leader, word, doubt)}; waiting for {_names(word, away)} or for the daemon's word that it has ended"
        return _newer_state(members, source, word)
    if stepped := [lease for lease in word.stepped if lease not in here]:
        return f"the group trains already: waiting for {_names(word, stepped)} to answer"
    if (why := _newer_state(members, source, word)) is not None:
        return why
    if word.founder not in here:
        return f"waiting for {named(word, word.founder)}, with which the group begins"
    if not source.history and len(here) < least:
        return f"{len(here)} of at least {least} members {'is' if len(here) == 1 else 'are'} here (replicas.min)"
    if away and (doubt or word.founder != word.first):
        return f"others may have begun with one that has ended: waiting for {_names(word, away)} or for the daemon's word that it has ended"
    if 2 * len(here.intersection(living)) <= len(living):
        return f"{len(here)} of {len(living)} members are here, and it takes more than half to begin"
    return None


def _too_few(here: Collection[int], leader: Member, word: ReplicaGroup, doubt: Collection[int]) -> str:
    there = len([lease for lease in leader.last if lease in here])
    if doubt and 2 * there > len(leader.last):
        return f"step {leader.step + 1} may have been taken by {_names(word, sorted(doubt))}, with which a sum has failed here"
    is_here = "is here" if there == 1 else "are here"
    return f"{there} of the {len(leader.last)} that took step {leader.step} {is_here}, and it takes more than half"


def _newer_state(members: Sequence[Member], source: Member, word: ReplicaGroup) -> str | None:
    """The checkpoint that is newer than all states here, in words; None: there is none."""
    if not (tasks := _with_newer(members, source, word)):
        return None
    saved = ", ".join(f"task {index}" for index in tasks)
    state = "nobody here has a checkpoint of the group, which began before" if not source.history else (
        f"the newest state here is of step {source.step}, and {saved} has saved a later one"
    )  # fmt: skip
    return f"{state}: waiting for {saved}, or until its checkpoint is given up"


def _with_newer(members: Sequence[Member], source: Member, word: ReplicaGroup) -> list[int]:
    """Absent tasks with the newest checkpoint, if that is newer than the state of ``source``."""
    if not source.history:
        return word.saved
    here = {one.index for one in members}
    coming = {one.index for one in word.members}
    stale = any(one.took_part for one in members)  # else the daemon started these because it could start no task with a newer checkpoint
    saved = [each for each in zip(word.saved_steps, word.saved, strict=False) if each[1] not in here and (stale or each[1] in coming)]
    newest = max((step for step, _ in saved), default=0)
    return [index for step, index in saved if step == newest > source.step]


def _useless(members: Sequence[Member], source: Member, word: ReplicaGroup | None) -> bool:
    """Whether these members only keep GPUs from the tasks that have the group's checkpoint."""
    if word is None or set(word.stepped) - {one.lease for one in members}:
        return False
    tasks = _with_newer(members, source, word)
    return bool(tasks) and ({one.index for one in members} | {one.index for one in word.members}).isdisjoint(tasks)


def _names(word: ReplicaGroup, leases: Collection[int]) -> str:
    return ", ".join(named(word, lease) for lease in leases)


def named(word: ReplicaGroup | None, lease: int | None) -> str:
    found = next((one for one in word.members if one.lease == lease), None) if word is not None else None
    return f"task {found.index}" if found is not None else f"lease {lease}"


def _without_twins(present: Sequence[Member]) -> list[Member]:
    """The members; of two with the same index only the one with the newer lease."""
    return [one for one in present if not any(other.index == one.index and other.lease > one.lease for other in present)]


def other_facts(me: Member, source: Member) -> str | None:
    """The differences between the trainings of two members, in words; None: there are none.

    A fact that only one of them sends comes from another version of Stoker and does not count; but all must sum in the same way.
    """
    here, there = ({SUMS: "another way"} | one.facts for one in (me, source))
    wrong = {name: f"{name} {value} here, {there[name]} there" for name, value in here.items() if value != there.get(name, value)}
    if not wrong:
        return None
    remedy = "bring the runners to one version of Stoker" if SUMS in wrong else "give all the same, or submit a new job"
    return f"replicas: this member trains something else than task {source.index}: {'; '.join(wrong.values())}; {remedy}"


def after(history: str, step: int, leases: Sequence[int]) -> str:
    """The history after these leases have taken the step."""
    return hashlib.sha256(json.dumps([history, step, sorted(leases)]).encode()).hexdigest()[:16]
