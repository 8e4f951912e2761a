"""Members of the next step of a group of replicas, from whom those who lag copy the weights, and whether they may go on at all.

torchft's lighthouse tells who is there. That keeps a group whole within one lighthouse; each member runs one, so that none is a single
point of failure, and what keeps two groups from training side by side is `decide`: all who were told of the same members decide alike.

- A step is taken by more than half of those who took the last one, or by half of them where another one has ended, by the daemon's
  newest word. Where more have ended, all living ones are needed: one that is away may have gone on with those, also a newer one.
- Where none of them lives, or no step was ever taken, the daemon's word begins the group: with the oldest living lease, more than half
  of the living ones, and at first so many as the job wants at least. Not beside a living one that has taken a step and is not there,
  and not anew where there is a checkpoint that none of these has.
- One that says that it leaves takes no further step, so it counts as ended before the daemon says so.
- Whoever has another state than the farthest copies it, also from an older checkpoint of its own.
- Without enough of them they wait, and say for what.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from ...engine.protocol import ReplicaGroup
from .sample_ledger import Ranges, Share, shares

SUMS = "sums"  #: the fact that says how a member sums; it was not told at first


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a member tells the others before each step."""

    group: int
    lease: int
    index: int  #: of its task within the group
    address: str  #: host:port where it answers, see `peers`
    step: int  #: that it has done
    history: str = ""  #: digest of who took each step up to this one: equal only of equal states; empty: it has taken none
    took_part: bool = False  #: it has taken a step with others since it was started; else its state is as built, or of a checkpoint
    last: tuple[int, ...] = ()  #: leases that took its last step
    done: Ranges = ()  #: of the next step, see `sample_ledger`
    tries: int = 0  #: all-reduces that have failed
    seconds: float | None = None  #: that it computed for its newest step, None: not known
    store: str = ""  #: host:port of its store, over which the processes of a group meet
    own: str = ""  #: the lighthouse that it runs
    leaving: bool = False  #: it takes no further step: the others need not wait for it
    unreached: tuple[int, ...] = ()  #: leases that do not answer it
    reached: bool = False  #: its evaluation has met the target
    facts: dict[str, str] = {}  #: what has to be the same with all: model, data, …
    word: ReplicaGroup | None = None  #: the daemon's newest, as far as it knows

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def decoded(text: str) -> Member:
    return msgspec.json.decode(text, type=Member)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from who is there, the same for all of them."""

    verdict: Literal["go", "wait", "leave"]  #: leave: it must not be there, and ``why`` tells the remedy
    why: str = ""
    members: tuple[Member, ...] = ()  #: who take the step, in the order of their indexes
    source: Member | None = None  #: whose state is the group's
    shares: dict[int, Share] = {}  #: of each lease; of those who copy their state none
    reached: bool = False
    left: bool = False  #: some of those who were there are to be waited for no more
    useless: bool = False  #: of the group's checkpoint nothing is here, and no task that has it has a GPU

    def lags(self, lease: int) -> bool:
        return self.verdict == "go" and lease not in self.shares

    @property
    def leases(self) -> tuple[int, ...]:
        return tuple(member.lease for member in self.members)


def decide(me: Member, present: Sequence[Member], batch: int, least: int) -> Decision:
    """What ``me`` does next, given all who are there, itself among them. ``batch``: samples of a step; ``least``: members at first."""
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
    source = farthest(members)
    if (why := objection(members, source, word, least, leaving)) is not None:
        useless = _useless(members, source, word)
        return Decision(verdict="wait", why=why, members=members, source=source, left=left, useless=useless)
    if all(one.lease != me.lease for one in members):
        cut = ", ".join(f"task {one.index}" for one in alike if _cut(me, one))
        return Decision(verdict="wait", why=f"it and {cut} do not reach each other; the others go on until they do: check the network")
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
    """Whose state counts: of those who have trained with others, before those with a checkpoint; the farthest, and the first of equals."""
    return max(present, key=lambda one: (one.took_part, one.step, -one.index))


def reaching(members: Sequence[Member]) -> tuple[Member, ...]:
    """The most of them who all reach each other; of several such groups the one with the first member."""
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


def objection(
    members: Sequence[Member], source: Member, word: ReplicaGroup | None, least: int, leaving: Collection[int] = ()
) -> str | None:
    """Why these may not take a step, None: they may. ``leaving``: leases that have said that they take no more."""
    here = {one.lease for one in members}
    last = [lease for lease in source.last if word is None or any(lease == one.lease for one in word.members)]
    if last and not (living := [lease for lease in last if lease not in leaving]):
        return f"all who took step {source.step} are leaving: waiting for the daemon's word that they have ended"
    if last:
        there, gone = here.intersection(living), len(source.last) > len(living)
        if 2 * len(there) > len(source.last) - gone:
            return None
        # Those who have ended may have taken a further step, with whoever is away. So nobody may be.
        known = living if word is None else [one.lease for one in word.members if one.lease not in leaving]
        if not (away := [lease for lease in known if lease not in here]):
            return None
        missing = ", ".join(_named(word, lease) for lease in away)
        return (
            f"{len(there)} of the {len(source.last)} that took step {source.step} {'is' if len(there) == 1 else 'are'} here, and it takes "
            f"more than half; waiting for {missing} or for the daemon's word that it has ended"
        )
    if word is None:
        return "waiting for the daemon to name the members"
    if away := [lease for lease in word.stepped if lease not in here]:
        return f"the group trains already: waiting for {', '.join(_named(word, lease) for lease in away)} to answer"
    if word.saved and not source.history:
        saved = ", ".join(f"task {index}" for index in word.saved)
        return f"nobody here has a checkpoint of the group, which began before: waiting for {saved}, or until its checkpoint is given up"
    if word.founder not in here:
        return f"waiting for {_named(word, word.founder)}, with which the group begins"
    if not source.history and len(here) < least:
        return f"{len(here)} of at least {least} members {'is' if len(here) == 1 else 'are'} here (replicas.min)"
    living = [one.lease for one in word.members]
    if 2 * len(here.intersection(living)) <= len(living):
        return f"{len(here)} of {len(living)} members are here, and it takes more than half to begin"
    return None


def _useless(members: Sequence[Member], source: Member, word: ReplicaGroup | None) -> bool:
    """Whether these only keep GPUs from the tasks that have the group's checkpoint."""
    if word is None or not word.saved or source.history or word.stepped:
        return False
    indexes = {one.index for one in members} | {one.index for one in word.members}
    return indexes.isdisjoint(word.saved)


def _named(word: ReplicaGroup | None, lease: int | None) -> str:
    found = next((one for one in word.members if one.lease == lease), None) if word is not None else None
    return f"task {found.index}" if found is not None else f"lease {lease}"


def _without_twins(present: Sequence[Member]) -> list[Member]:
    """Of two with one index the one with the newer lease."""
    return [one for one in present if not any(other.index == one.index and other.lease > one.lease for other in present)]


def other_facts(me: Member, source: Member) -> str | None:
    """What differs between what two train, in words; None: nothing.

    What only one of them tells is of another version of Stoker, and does not count; but all of them have to sum alike.
    """
    here, there = ({SUMS: "another way"} | one.facts for one in (me, source))
    wrong = [f"{name} {value} here, {there[name]} there" for name, value in here.items() if value != there.get(name, value)]
    if not wrong:
        return None
    return (
        f"replicas: this member trains something else than task {source.index}: {'; '.join(wrong)}; give all the same, or submit a new job"
    )


def after(history: str, step: int, leases: Sequence[int]) -> str:
    """The history once these have taken the step."""
    return hashlib.sha256(json.dumps([history, step, sorted(leases)]).encode()).hexdigest()[:16]
