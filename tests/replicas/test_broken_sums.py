"""A sum that one member of four leaves in the middle: those who wait for what comes through others hear of it at once too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from replica_members import PATIENCE

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import torch
from stoker.engine.protocol import Replica, ReplicaGroup
from stoker.runners.replicas.membership import Decision
from stoker.runners.replicas.replica_group import Group, Settings


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Group, Decision]]]:
    """Members of one group who are about to sum."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    groups: list[Group] = []

    def word() -> ReplicaGroup:
        members = [Replica(lease=one.me.lease, index=one.me.index, address=one.me.address) for one in groups]
        return ReplicaGroup(group=7, epoch=len(groups), members=members, founder=1, first=1)

    def ignored(why: str) -> None:
        pass

    for index in range(4):
        settings = Settings(
            group=7, lease=index + 1, index=index, host="127.0.0.1", port=0, batch=8, least=4, quorum_timeout=10.0 * PATIENCE
        )
        groups.append(Group(settings, word, lambda: False, ignored))
        groups[-1].tell(facts={"sums": "alike"})
    with ThreadPoolExecutor(4) as pool:
        decisions = list(pool.map(Group.meet, groups))
    assert {len(decision.members) for decision in decisions} == {4}
    yield list(zip(groups, decisions, strict=True))
    for group in groups:
        group.close()


@pytest.mark.parametrize("bundles", [1, 6])
def test_a_member_that_is_lost_in_a_sum_is_noticed_by_all_at_once(four: list[tuple[Group, Decision]], bundles: int) -> None:
    """The sum goes round in a ring: who waits for one that lives does not see the loss itself."""
    *left, (lost, _) = four
    held: list[Any] = []  # as a step holds what it has sent until it computes again

    def summed(group: Group, decision: Decision) -> bool:
        sent = [group.start(torch.ones(1000), decision) for _ in range(bundles)]
        held.extend(sent)
        return group.sum([torch.ones(3)], decision, sent)

    with ThreadPoolExecutor(3) as pool:
        sums = [pool.submit(summed, *one) for one in left]
        time.sleep(0.5)  # all three wait in it
        assert not any(each.done() for each in sums)
        began = time.monotonic()
        lost.close()
        assert not any(each.result() for each in sums)
        assert time.monotonic() - began < 30 * PATIENCE  # else each waits for as long as a step may take: 60 s, and quorum_timeout
