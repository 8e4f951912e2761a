"""Members that are threads: nobody waits for long for one that is lost, cut off or has given up, in a sum or for a state."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from replica_members import PATIENCE

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import torch
from stoker.engine.errors import UsageError
from stoker.engine.protocol import Replica, ReplicaGroup
from stoker.runners.replicas import replica_group
from stoker.runners.replicas.member_server import MemberServer, Status, fetch
from stoker.runners.replicas.membership import Decision, Member
from stoker.runners.replicas.replica_group import JoinedGroup, Settings
from stoker.runners.train.batches import Interrupted

STOP = threading.Event()


@contextmanager
def groups(count: int, timeout: float = 10.0, least: int = 0) -> Iterator[list[JoinedGroup]]:
    """The members of one group."""
    made: list[JoinedGroup] = []
    STOP.clear()

    def word() -> ReplicaGroup:
        members = [Replica(lease=one.me.lease, index=one.me.index, address=one.me.address) for one in made]
        return ReplicaGroup(group=7, epoch=len(made), members=members, founder=1, first=1)

    def ignored(why: str) -> None:
        pass

    for index in range(count):
        settings = Settings(
            group=7,
            lease=index + 1,
            index=index,
            host="127.0.0.1",
            port=0,
            batch=8,
            least=least or count,
            goodbye=0.5,
            quorum_timeout=timeout * PATIENCE,
        )
        made.append(JoinedGroup(settings, word, STOP.is_set, ignored))
        made[-1].tell(facts={"sums": "alike"})
    try:
        yield made
    finally:
        for group in made:
            group.close()


@contextmanager
def summing(monkeypatch: pytest.MonkeyPatch, bundles: int, timeout: float) -> Iterator[tuple[JoinedGroup, list[Future[bool]]]]:
    """Of four who are to sum one, which does not, and the sums of the others, who wait in it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    held: list[Any] = []  # as a step holds what it has sent until it computes again

    def summed(group: JoinedGroup, decision: Decision) -> bool:
        sent = [group.start(torch.ones(1000), decision) for _ in range(bundles)]
        held.extend(sent)
        return group.sum([torch.ones(3)], decision, sent)

    with groups(4, timeout) as members, ThreadPoolExecutor(4) as pool:
        decisions = list(pool.map(JoinedGroup.meet, members))
        assert {len(decision.members) for decision in decisions} == {4}
        sums = [pool.submit(summed, *one) for one in zip(members[:3], decisions, strict=False)]
        time.sleep(0.5)
        assert not any(each.done() for each in sums)
        yield members[3], sums


def noticed(sums: list[Future[bool]]) -> None:
    """By all, and soon: else each waits for as long as a step may take, which is 60 s, and quorum_timeout."""
    began = time.monotonic()
    assert not any(each.result() for each in sums)
    assert time.monotonic() - began < 30 * PATIENCE


@pytest.mark.parametrize("bundles", [1, 6])
def test_a_member_that_is_lost_in_a_sum_is_noticed_by_all_at_once(monkeypatch: pytest.MonkeyPatch, bundles: int) -> None:
    """The sum goes round in a ring: who waits for one that lives does not see the loss itself."""
    with summing(monkeypatch, bundles, timeout=10.0) as (lost, sums):
        lost.close()
        noticed(sums)


def test_a_member_that_is_cut_off_in_a_sum_is_noticed_as_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stay, and nothing comes over them."""
    with summing(monkeypatch, 1, timeout=1.0) as (lost, sums):
        lost._answers.close()
        noticed(sums)


def test_nobody_waits_in_a_sum_for_a_member_that_meets_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have heard of the step, and it has not: what the lighthouse told it was lost."""
    with summing(monkeypatch, 1, timeout=1.0) as (lost, sums), ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(lost.meet)
        noticed(sums)
        STOP.set()
        with pytest.raises(Interrupted):
            meeting.result()


def test_nobody_waits_in_a_sum_for_a_member_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still answers, while it saves its state."""
    with summing(monkeypatch, 1, timeout=1.0) as (leaving, sums):
        leaving.leave()
        noticed(sums)


def test_nobody_waits_for_a_member_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It meets the others at each step, as the lighthouse hears of it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(replica_group, "_MEETING_PAUSE", pause := 0.2 * PATIENCE)
    with groups(3, least=2) as members, ThreadPoolExecutor(3) as pool:
        members[2]._cut = {2: "127.0.0.1:1"}
        outside = pool.submit(members[2].meet)
        began = time.monotonic()
        try:
            for _ in range(30):
                decisions = list(pool.map(JoinedGroup.meet, members[:2]))
                assert {decision.leases for decision in decisions} == {(1, 2)}
            assert time.monotonic() - began < 30 * pause
        finally:
            STOP.set()
        with pytest.raises(Interrupted):
            outside.result()


def test_the_same_members_meet_again_after_one_has_come_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of their first meeting are still in the store of the first one, which comes late here."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def formed(group: JoinedGroup, decision: Decision) -> bool:
        time.sleep(0.3 if group is members[0] else 0.0)
        return group._form(decision)

    with groups(3, timeout=1.0) as members, ThreadPoolExecutor(3) as pool:
        for step, there in enumerate((members[:2], members, members[:2])):
            for one in there:
                one.tell(step=step)
            decision = Decision(verdict="go", members=tuple(one.me for one in there), source=there[0].me)
            assert all(pool.map(formed, there, [decision] * len(there)))


def test_one_finds_the_lighthouse_of_an_older_version_and_leaves_with_a_line() -> None:
    """That tells neither which it runs nor how it sums."""
    with groups(2, timeout=1.0) as (older, newer), ThreadPoolExecutor(1) as pool:
        older.tell(own="", facts={})
        meeting = pool.submit(older.meet)
        with pytest.raises(UsageError, match="sums alike here, another way there; bring the runners to one version of Stoker"):
            newer.meet()
        STOP.set()
        with pytest.raises(Interrupted):
            meeting.result()


def test_what_a_member_told_earlier_is_not_taken_for_what_it_tells_now_where_it_comes_late_to_the_lighthouse() -> None:
    """Over a link that was cut: of an earlier step, in which it had done a part already. That would count, and is in no sum any more."""
    from torchft.coordination import LighthouseClient

    def late(group: JoinedGroup, before: Member) -> None:
        second = timedelta(seconds=20 * PATIENCE)
        client = LighthouseClient(groups_of[0]._own, connect_timeout=second)
        name, words = group._name(), before.encoded()
        client.quorum(name, timeout=second, address="", store_address="", step=0, world_size=1, shrink_only=False, data={"member": words})

    with groups(2, timeout=2.0) as groups_of, ThreadPoolExecutor(8) as pool:
        list(pool.map(JoinedGroup.meet, groups_of))
        earlier = [msgspec.structs.replace(one.me, done=((4 * place, 4 * place + 2),)) for place, one in enumerate(groups_of)]
        meeting = pool.submit(groups_of[0].meet)
        time.sleep(0.3)  # it is there, and the other is waited for
        for one, before in zip(groups_of, earlier, strict=True):
            pool.submit(late, one, before)
            time.sleep(0.1)
        try:
            for each in (meeting, pool.submit(groups_of[1].meet)):
                assert all(share.kept == () for share in each.result().shares.values())
        finally:
            STOP.set()


def test_a_state_is_waited_for_as_long_as_its_member_answers() -> None:
    status = Status(member=Member(group=7, lease=1, index=0, address="", step=3))
    server = MemberServer("127.0.0.1", 0, 7, lambda: status)
    address = f"127.0.0.1:{server.port}"
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(fetch, address, 7, 3, "h", patience=60.0, silence=2.0 * PATIENCE)
        time.sleep(1.2 * PATIENCE)  # it is asked a second time
        server.publish(3, "h", b"state")
        assert late.result() == b"state"
    assert fetch(address, 7, 4, "h", patience=0.1, silence=2.0 * PATIENCE) is None
    began = time.monotonic()
    assert fetch(address, 7, 2, "h", patience=60.0, silence=1.0 * PATIENCE) is None  # it has gone on
    assert time.monotonic() - began < 30.0
    server.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert fetch(f"127.0.0.1:{silent.getsockname()[1]}", 7, 3, "h", patience=60.0, silence=0.2) is None
        assert time.monotonic() - began < 30.0
