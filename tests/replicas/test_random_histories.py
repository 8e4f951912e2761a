"""Groups under all at once: deaths, cut links, sums that end for some only, checkpoints, and a daemon that lags in all that it tells."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from stoker.engine.protocol import Replica, ReplicaGroup
from stoker.runners.replicas.membership import Decision, Member, after, decide


@dataclass
class One:
    """A living member."""

    lease: int
    index: int
    told: ReplicaGroup
    step: int = 0
    history: str = ""
    last: tuple[int, ...] = ()
    took: bool = False
    leaving: bool = False
    doubts: tuple[tuple[int, ...], ...] = ()

    def member(self) -> Member:
        return Member(group=1, lease=self.lease, index=self.index, address="x", step=self.step, history=self.history, took_part=self.took,
                      last=self.last, leaving=self.leaving, doubts=self.doubts, word=self.told)  # fmt: skip


@dataclass
class Group:
    """What is, and what the daemon has heard of it. It lags in all but one thing: what it calls ended has ended."""

    draw: random.Random
    alive: dict[int, One] = field(default_factory=dict)
    checkpoints: dict[int, tuple[int, str, tuple[int, ...]]] = field(default_factory=dict)  #: of tasks
    parents: dict[str, str] = field(default_factory=dict)  #: of each state
    lasting: set[str] = field(default_factory=set)  #: states that more than half of those who were to take the step have
    leases: dict[int, int] = field(default_factory=dict)  #: that have not ended, as the daemon knows; the task of each
    stepped: set[int] = field(default_factory=set)
    saved: dict[int, tuple[int, str]] = field(default_factory=dict)
    given: int = 0
    first: int = 0
    words: int = 0

    def chance(self, of: float) -> bool:
        return self.draw.random() < of

    def word(self) -> ReplicaGroup:
        self.words += 1
        return ReplicaGroup(
            group=1, epoch=self.words, members=[Replica(lease=lease, index=index) for lease, index in self.leases.items()],
            founder=min(self.leases, default=None), first=self.first, stepped=sorted(self.stepped & self.leases.keys()),
            saved=list(self.saved), saved_steps=[step for step, _ in self.saved.values()],
        )  # fmt: skip

    def give(self, index: int) -> None:
        self.given += 1
        if not self.leases:
            self.first = self.given
        self.leases[self.given] = index
        one = self.alive[self.given] = One(self.given, index, self.word())
        if index in self.checkpoints and self.chance(0.9):
            one.step, one.history, one.last = self.checkpoints[index]

    def happens(self) -> None:
        """Between two steps."""
        for one in list(self.alive.values()):
            if one.step and self.chance(0.25):
                self.checkpoints[one.index] = (one.step, one.history, one.last)
            if one.leaving or self.chance(0.12):
                del self.alive[one.lease]
            elif self.chance(0.1):
                one.leaving = True
        for lease in self.leases.keys() - self.alive.keys():
            if self.chance(0.6):
                del self.leases[lease]
        for index in sorted(set(range(5)) - set(self.leases.values())):
            if self.chance(0.3):
                self.give(index)
        self.stepped |= {one.lease for one in self.alive.values() if one.took and self.chance(0.2)}
        self.saved |= {index: found[:2] for index, found in self.checkpoints.items() if self.chance(0.5)}
        told = self.word()
        for one in self.alive.values():
            if self.chance(0.4):
                one.told = told

    def parts(self) -> Iterator[list[One]]:
        """Those who reach each other."""
        count = self.draw.choice((1, 2, 2, 3))
        part = {lease: self.draw.randrange(count) for lease in self.alive}
        for number in range(count):
            if there := [one for one in self.alive.values() if part[one.lease] == number]:
                yield there

    def decided(self, there: Sequence[One]) -> Decision | None:
        present = [one.member() for one in there]
        newest = max((one.told for one in there), key=lambda word: word.epoch)
        found = [decide(member, present, 60, 1) for member in present if not member.leaving]
        for one in there:
            one.told = newest
        assert len({decision.verdict for decision in found}) <= 1
        return found[0] if found else None

    def meet(self, there: Sequence[One]) -> None:
        decision = self.decided(there)
        if decision is None or decision.verdict != "go":
            return
        self.judge(decision, there[0].told)
        assert decision.source is not None
        source, members = decision.source, [one for one in there if one.lease in decision.leases]
        for one in members:
            if decision.lags(one.lease):
                if self.chance(0.1):  # of its source nothing comes
                    return
                one.step, one.history, one.last, one.doubts = source.step, source.history, source.last, ()
        if self.chance(0.1):  # the processes do not meet
            return
        history = after(source.history, source.step, decision.leases)
        self.parents[history] = source.history
        done = members if self.chance(0.5) else [one for one in members if self.chance(0.5)]
        for one in members:
            if one in done:
                one.step, one.history, one.last, one.took, one.doubts = source.step + 1, history, decision.leases, True, ()
            else:
                one.doubts = (*one.doubts, decision.leases)
        if 2 * len(done) > len(members):
            self.lasting.add(history)

    def judge(self, decision: Decision, word: ReplicaGroup) -> None:
        """These go on from the state of their source: is that any other than the one to go on from?"""
        source = decision.source
        assert source is not None
        for one in self.alive.values():
            if one.lease not in decision.leases and one.took and one.history in self.lasting:
                assert self.comes_from(source.history, one.history), f"two groups: {decision.leases} at {source.step} beside {one}"
        here = {one.index for one in decision.members}
        stale = any(one.took_part for one in decision.members)  # else the daemon has chosen with whose checkpoint they go on
        for index, (step, history) in self.saved.items():
            told = (index, step) in zip(word.saved, word.saved_steps, strict=True)
            may_come = stale or index in {one.index for one in word.members}
            if told and may_come and history in self.lasting and index not in here and step > source.step:
                assert not self.comes_from(history, source.history), f"at {source.step} in place of {step}, which task {index} has saved"

    def comes_from(self, state: str, older: str) -> bool:
        while state != older and state:
            state = self.parents[state]
        return state == older


@pytest.mark.parametrize("many", [range(300), pytest.param(range(300, 30_000), marks=pytest.mark.nightly)], ids=["some", "many"])
def test_no_step_is_taken_beside_another_group_nor_from_a_state_that_is_known_to_be_old(many: range) -> None:
    for seed in many:
        group = Group(random.Random(seed))
        for _ in range(12):
            group.happens()
            for there in group.parts():
                group.meet(there)
        rests(group)


def rests(group: Group) -> None:
    """All reach each other and have heard the newest word: they go on, unless one that is away has a newer checkpoint."""
    for one in list(group.alive.values()):
        if one.leaving:
            del group.alive[one.lease]
    group.leases = {lease: index for lease, index in group.leases.items() if lease in group.alive}
    if not group.alive:
        return
    told = group.word()
    for one in group.alive.values():
        one.told = told
    decision = group.decided(list(group.alive.values()))
    assert decision is not None
    best = max(one.step for one in group.alive.values())
    away = [step for index, (step, _) in group.saved.items() if index not in group.leases.values()]
    if decision.verdict == "go":
        group.judge(decision, told)
    else:
        assert max(away, default=0) > best or (group.saved and not best), decision.why
