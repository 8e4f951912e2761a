"""Members that are threads. Those who wait in a sum for what comes through others hear at once that one has left it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from replica_members import PATIENCE

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import torch
from stoker.engine.errors import UsageError
from stoker.engine.protocol import Replica, ReplicaGroup
from stoker.runners.replicas.membership import Decision
from stoker.runners.replicas.replica_group import Group, Settings
from stoker.runners.train.batches import Interrupted

STOP = threading.Event()


@contextmanager
def groups(count: int) -> Iterator[list[Group]]:
    """The members of one group."""
    made: list[Group] = []
    STOP.clear()

    def word() -> ReplicaGroup:
        members = [Replica(lease=one.me.lease, index=one.me.index, address=one.me.address) for one in made]
        return ReplicaGroup(group=7, epoch=len(made), members=members, founder=1, first=1)

    def ignored(why: str) -> None:
        pass

    for index in range(count):
        settings = Settings(
            group=7, lease=index + 1, index=index, host="127.0.0.1", port=0, batch=8, least=count, quorum_timeout=10.0 * PATIENCE
        )
        made.append(Group(settings, word, STOP.is_set, ignored))
        made[-1].tell(facts={"sums": "alike"})
    try:
        yield made
    finally:
        for group in made:
            group.close()


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Group, Decision]]]:
    """Who are about to sum."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with groups(4) as members:
        with ThreadPoolExecutor(4) as pool:
            decisions = list(pool.map(Group.meet, members))
        assert {len(decision.members) for decision in decisions} == {4}
        yield list(zip(members, decisions, strict=True))


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


def test_one_finds_the_lighthouse_of_an_older_version_and_leaves_with_a_line() -> None:
    """That tells neither which it runs nor how it sums."""
    with groups(2) as (older, newer), ThreadPoolExecutor(1) as pool:
        older.tell(own="", facts={})
        meeting = pool.submit(older.meet)
        with pytest.raises(UsageError, match="sums alike here, another way there; bring the runners to one version of Stoker"):
            newer.meet()
        STOP.set()
        with pytest.raises(Interrupted):
            meeting.result()
