"""Who may take a step: never two groups side by side, and a pause with its reason where that cannot be known."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from stoker.engine.protocol import Replica, ReplicaGroup
from stoker.runners.replicas.membership import Member, after, decide
from stoker.runners.replicas.replica_group import JoinedGroup, Settings

BATCH = 12


def word(*leases: int, epoch: int = 1, stepped: tuple[int, ...] = (), saved: dict[int, int] | None = None) -> ReplicaGroup:
    """``saved``: tasks with the steps of their checkpoints. The first lease of all is 1."""
    members = [Replica(lease=lease, index=lease % 10, address="x") for lease in leases]
    founder = min(leases, default=None)
    saved = saved or {}
    return ReplicaGroup(
        group=1, epoch=epoch, members=members, founder=founder, stepped=list(stepped), saved=list(saved), saved_steps=list(saved.values()),
        first=1,
    )  # fmt: skip


def member(lease: int, step: int = 0, last: tuple[int, ...] = (), told: ReplicaGroup | None = None, **more: object) -> Member:
    """Of the task that is the last digit of its lease; one that has a step has taken it with others."""
    history = after("", step, last) if step else ""
    known = {"group": 1, "index": lease % 10, "address": "x", "history": history, "took_part": bool(step)} | more
    return Member(lease=lease, step=step, last=last, word=told, **known)  # type: ignore[arg-type]


def test_a_group_begins_with_the_oldest_lease_and_the_wanted_number() -> None:
    told = word(1, 2, 3)
    zero, one, two = (member(lease, told=told) for lease in (1, 2, 3))
    assert decide(one, [one, two], BATCH, 2).why == "waiting for task 1, with which the group begins"
    assert "1 of at least 2 members" in decide(zero, [zero], BATCH, 2).why
    begun = decide(one, [zero, one], BATCH, 2)
    assert begun.verdict == "go" and begun.leases == (1, 2)
    assert not begun.lags(1) and begun.lags(2)  # it begins with the weights of the first, however its own were drawn


def test_a_newcomer_does_not_begin_beside_a_group_that_has_a_step() -> None:
    told = word(1, 2, 3, 4, 5, stepped=(1, 2))
    newcomers = [member(lease, told=told) for lease in (3, 4, 5)]  # more than half, and they reach none of the others
    assert decide(newcomers[0], newcomers, BATCH, 1).why == "the group trains already: waiting for task 1, task 2 to answer"


def test_more_than_half_of_those_who_took_the_last_step_go_on() -> None:
    told = word(1, 2, 3)
    left = [member(lease, 10, (1, 2, 3), told) for lease in (1, 2)]
    assert decide(left[0], left, BATCH, 1).verdict == "go"
    alone = decide(left[0], left[:1], BATCH, 1)
    assert alone.verdict == "wait"
    assert alone.why == (
        "1 of the 3 that took step 10 is here, and it takes more than half; "
        "waiting for task 2, task 3 or for the daemon's word that it has ended"
    )


def test_of_two_neither_goes_on_alone_until_the_daemon_says_that_the_other_has_ended() -> None:
    one = member(1, 10, (1, 2), word(1, 2))
    assert decide(one, [one], BATCH, 1).verdict == "wait"
    told = member(1, 10, (1, 2), word(1, epoch=2))
    assert decide(told, [told], BATCH, 1).verdict == "go"


def test_those_who_have_ended_may_have_gone_on_with_one_that_is_away() -> None:
    """A link is cut, the part beyond takes a step, and most of it is stopped: neither does the rest of it go on beside the others."""
    told = word(1, 2, 5, epoch=2, stepped=(1, 2, 5))
    beyond = member(1, 11, (1, 3, 4), told)
    assert decide(beyond, [beyond], BATCH, 1).verdict == "wait"
    here = [member(lease, 10, (1, 2, 3, 4, 5), told) for lease in (2, 5)]
    assert "2 of the 5 that took step 10 are here, and it takes more than half; waiting for task 1" in decide(here[0], here, BATCH, 1).why
    met = decide(here[0], [beyond, *here], BATCH, 1)
    assert met.verdict == "go" and met.source == beyond and met.leases == (1, 2, 5)
    told = word(2, 5, epoch=3)  # it has ended too
    here = [member(lease, 10, (1, 2, 3, 4, 5), told) for lease in (2, 5)]
    assert decide(here[0], here, BATCH, 1).verdict == "go"
    told = word(2, 5, 16, epoch=4)  # a newer one may have gone on with those
    here = [member(lease, 10, (1, 2, 3, 4, 5), told) for lease in (2, 5)]
    assert "waiting for task 6" in decide(here[0], here, BATCH, 1).why


def test_where_the_first_has_ended_others_may_have_begun_with_it_however_late_the_daemon_hears_of_steps() -> None:
    told = word(2, 3, 4, 5)  # lease 1 has begun with 5, and has ended; the daemon has heard of no step
    newcomers = [member(lease, told=told) for lease in (2, 3, 4)]  # more than half, with the oldest living one
    why = "others may have begun with one that has ended: waiting for task 5 or for the daemon's word that it has ended"
    assert decide(newcomers[0], newcomers, BATCH, 1).why == why
    begun = member(5, 3, (1, 5), told)
    assert decide(newcomers[0], [*newcomers, begun], BATCH, 1).source == begun
    told = word(1, 2, 3, 4, 5)  # none can have begun without the first of all
    assert decide(newcomers[0], [member(lease, told=told) for lease in (1, 2, 3)], BATCH, 1).verdict == "go"
    failed = member(1, told=told, doubts=((1, 4, 5),))  # unless it has tried to, and does not know how that ended with them
    assert "waiting for task 4, task 5" in decide(failed, [failed, *newcomers[:2]], BATCH, 1).why


def test_a_sum_that_failed_here_may_have_ended_well_with_those_who_are_away() -> None:
    told, last = word(1, 2, 3, 4, 5), (1, 2, 3, 4, 5)
    doubting = member(3, 10, last, told, doubts=((1, 2, 3),))
    here = [doubting, *(member(lease, 10, last, told) for lease in (4, 5))]
    assert decide(doubting, here, BATCH, 1).why.startswith(
        "step 11 may have been taken by task 1, task 2, with which a sum has failed here;"
    )
    orphan = member(1, 11, (1, 2, 3), told)  # it alone has
    assert decide(doubting, [orphan, doubting, member(2, 10, last, told)], BATCH, 1).source == orphan
    here.append(member(2, 10, last, told))  # it has not, so the first is alone
    assert decide(doubting, here, BATCH, 1).source == here[-1]
    taken = [member(lease, 11, (2, 3, 4, 5), told) for lease in (2, 3, 4, 5)]
    assert decide(orphan, [orphan, *taken], BATCH, 1).source == taken[0] and decide(orphan, [orphan, *taken], BATCH, 1).lags(1)


def test_one_that_was_cut_off_does_not_go_on_from_its_old_state_when_all_with_whom_it_trained_have_ended() -> None:
    old = member(3, 10, (1, 2, 3), word(3, epoch=2, saved={1: 100, 2: 95, 3: 10}))
    alone = decide(old, [old], BATCH, 1)
    assert alone.useless
    assert alone.why == (
        "the newest state here is of step 10, and task 1 has saved a later one: waiting for task 1, or until its checkpoint is given up"
    )
    back = member(11, 100, (1, 2), word(3, 11, epoch=3, saved={1: 100}), took_part=False)
    met = decide(old, [old, back], BATCH, 1)
    assert met.source == back and met.lags(3) and not met.lags(11)
    old = member(3, 10, (1, 2, 3), word(3, epoch=2, saved={1: 5}))
    assert decide(old, [old], BATCH, 1).verdict == "go"
    both = [member(lease, 10, (1, 2, 3), word(2, 3, epoch=2, saved={1: 11})) for lease in (2, 3)]
    assert decide(both[0], both, BATCH, 1).verdict == "go"  # two of three: no other group has gone on from there


def test_of_four_half_go_on_when_one_of_the_others_has_ended() -> None:
    told = word(1, 2, 3, epoch=2)
    here = [member(lease, 10, (1, 2, 3, 4), told) for lease in (1, 2)]
    assert decide(here[0], here, BATCH, 1).verdict == "go"
    here = [member(lease, 10, (1, 2, 3, 4), word(1, 2, 3, 4)) for lease in (1, 2)]
    assert decide(here[0], here, BATCH, 1).verdict == "wait"


def test_who_is_newer_than_the_word_of_its_own_daemon_has_not_ended() -> None:
    """Its host does not hear the daemon; the others told of themselves when they took a step with it, and are cut off now."""
    group: Any = object.__new__(JoinedGroup)
    group.settings = Settings(group=1, lease=1, index=1, host="", port=0, batch=BATCH, least=1)
    group._told, group._stop, group._seek = lambda: word(1, epoch=1), lambda: False, lambda: None
    group._cut, group.settled, group._client, group.me = {}, set(), object(), member(1, 10, (1, 2, 3))
    newer = [member(lease, 10, (1, 2, 3), word(1, 2, 3, epoch=3)) for lease in (2, 3)]
    group._quorum = lambda: [group.me, *newer]
    assert group._met().verdict == "go"
    group._quorum = lambda: [group.me]
    assert group._met().verdict == "wait"


def test_one_that_says_that_it_leaves_is_not_waited_for() -> None:
    told = word(1, 2)
    there = [member(1, 10, (1, 2), told), member(2, 10, (1, 2), told, leaving=True)]
    decision = decide(there[0], there, BATCH, 1)
    assert decision.verdict == "go" and decision.leases == (1,) and decision.left
    assert not decide(there[0], [there[0], member(2, 10, (1, 2), told)], BATCH, 1).left
    newcomer = member(13, told=word(2, 13, stepped=(2,)))  # its state is not in a checkpoint yet, as far as anyone knows
    assert decide(newcomer, [newcomer, there[1]], BATCH, 1).verdict == "wait"


def test_those_without_the_groups_checkpoint_are_of_no_use_until_a_task_that_has_it_is_started() -> None:
    late = member(13, told=word(13, epoch=9, saved={1: 80}))
    assert decide(late, [late], BATCH, 1).useless
    late = member(13, told=word(13, 21, epoch=10, saved={1: 80}))  # it is on its way
    assert not decide(late, [late], BATCH, 1).useless
    back = member(21, 80, (1,), word(13, 21, epoch=10, saved={1: 80}), took_part=False)
    assert not decide(late, [late, back], BATCH, 1).useless


def test_with_the_daemon_dead_a_restarted_member_is_not_the_one_that_it_was() -> None:
    """It has forgotten the steps that it took since its checkpoint, so it is no witness of them."""
    old = word(1, 2, 3)
    back = [member(3, 10, (1, 2, 3), old), member(11, 8, (1, 2, 3), old, took_part=False)]
    assert decide(back[0], back, BATCH, 1).verdict == "wait"


def test_a_group_that_has_lost_all_its_members_goes_on_from_the_newest_checkpoint() -> None:
    told = word(11, 12, 13, epoch=9)
    back = [member(lease, step, (1, 2, 3), told, took_part=False) for lease, step in ((11, 80), (12, 100), (13, 80))]
    decision = decide(back[0], back, BATCH, 2)
    assert decision.verdict == "go" and decision.source == back[1]
    assert decision.lags(11) and decision.lags(13)
    assert decide(back[1], back[1:2], BATCH, 1).verdict == "wait"  # it is neither the oldest nor more than half


def test_a_late_one_does_not_begin_anew_where_a_task_that_is_away_has_a_checkpoint() -> None:
    told = word(13, epoch=9, saved={1: 80})
    late = member(13, told=told)
    assert "waiting for task 1, or until its checkpoint is given up" in decide(late, [late], BATCH, 1).why
    told = word(13, 21, epoch=10, saved={1: 80})
    late, back = member(13, told=told), member(21, 80, (1,), told, took_part=False)
    assert decide(late, [late, back], BATCH, 1).lags(13)
    given_up = member(13, told=word(13, epoch=11))
    assert decide(given_up, [given_up], BATCH, 1).verdict == "go"


def test_an_older_or_newer_checkpoint_loses_to_the_groups_state() -> None:
    told = word(1, 2, 13)
    for step in (5, 500):
        there = [member(1, 50, (1, 2), told), member(2, 50, (1, 2), told), member(13, step, (1, 2, 3), told, took_part=False)]
        decision = decide(there[2], there, BATCH, 1)
        assert decision.verdict == "go" and decision.source == there[0] and decision.lags(13)


def test_equal_steps_of_other_members_are_another_state() -> None:
    told = word(1, 2, 3)
    first = member(1, 11, (1, 2), told)
    other = member(3, 11, (3, 2), told)
    assert decide(other, [first, member(2, 11, (1, 2), told), other], BATCH, 1).lags(3)


def test_of_two_with_one_id_the_older_leaves() -> None:
    told = word(1, 12)
    old, new = member(2, 10, (1, 2), told), member(12, told=told)
    first = member(1, 10, (1, 2), told)
    leaves = decide(old, [first, old, new], BATCH, 1)
    assert leaves.verdict == "leave" and leaves.why == "task 2 runs again as lease 12; this one, lease 2, is an old one"
    assert decide(first, [first, old, new], BATCH, 1).leases == (1, 12)


def test_a_member_that_trains_something_else_leaves_and_the_others_go_on() -> None:
    told = word(1, 2, 3)
    good = [member(lease, 10, (1, 2), told, facts={"model": "A", "torch": "2.13"}) for lease in (1, 2)]
    wrong = member(3, told=told, facts={"model": "B", "torch": "2.13"})
    assert decide(good[0], [*good, wrong], BATCH, 1).leases == (1, 2)
    assert decide(wrong, [*good, wrong], BATCH, 1).why == (
        "replicas: this member trains something else than task 1: model B here, A there; give all the same, or submit a new job"
    )


def test_members_that_sum_otherwise_are_not_in_one_group_also_if_one_is_too_old_to_tell() -> None:
    told = word(1, 2)
    old = member(1, 10, (1,), told, facts={"model": "A"})
    new = member(2, told=told, facts={"model": "A", "samples": "64", "sums": "in bundles of 4"})  # samples: a fact of newer ones
    assert decide(new, [old, new], BATCH, 1).why == (
        "replicas: this member trains something else than task 1: sums in bundles of 4 here, another way there; "
        "bring the runners to one version of Stoker"
    )
    new, late = member(1, 10, (1,), told, facts=new.facts), member(2, told=told, facts=old.facts)
    assert decide(new, [new, late], BATCH, 1).leases == (1,)
    assert decide(new, [new, member(2, told=told, facts={"sums": "in bundles of 4"})], BATCH, 1).leases == (1, 2)


def test_a_cut_link_leaves_out_one_of_its_ends_and_says_so() -> None:
    told = word(1, 2, 3)
    zero = member(1, 10, (1, 2, 3), told)
    one, two = member(2, 10, (1, 2, 3), told, unreached=(3,)), member(3, 10, (1, 2, 3), told)
    there = [zero, one, two]
    assert decide(zero, there, BATCH, 1).leases == (1, 2)  # what one of them has seen counts for both
    left_out = decide(two, there, BATCH, 1)
    assert left_out.verdict == "wait"
    assert left_out.why == "it and task 2 do not reach each other; the others go on until they do: check the network"


def test_the_first_is_left_out_where_only_the_others_reach_each_other() -> None:
    told = word(1, 2, 3)
    there = [member(1, 11, (1, 2, 3), told, unreached=(2, 3)), *(member(lease, 10, (1, 2, 3), told) for lease in (2, 3))]
    assert decide(there[1], there, BATCH, 1).leases == (2, 3)
    assert decide(there[0], there, BATCH, 1).verdict == "wait"


@given(st.data())
def test_of_parts_that_do_not_reach_each_other_one_at_most_goes_on(data: st.DataObject) -> None:
    """Whatever each has heard of the daemon: of leases that took the last step, one that it calls ended is no longer there."""
    leases = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    ended = set(data.draw(st.lists(st.sampled_from(leases), unique=True)))
    words = [word(*leases, epoch=1, stepped=tuple(leases)), word(*(set(leases) - ended), epoch=2, stepped=tuple(set(leases) - ended))]
    alive = sorted(set(leases) - ended)
    newcomers = [lease + 10 for lease in data.draw(st.lists(st.sampled_from(leases), unique=True))]
    part_of = {lease: data.draw(st.integers(0, 2)) for lease in (*alive, *newcomers)}
    going = 0
    for part in range(3):
        there = [
            member(lease, 10, tuple(leases), data.draw(st.sampled_from(words)), leaving=data.draw(st.booleans()))
            for lease in alive
            if part_of[lease] == part
        ]
        there += [member(lease, told=data.draw(st.sampled_from(words))) for lease in newcomers if part_of[lease] == part]
        verdicts = {decide(one, there, BATCH, 1).verdict for one in there if not one.leaving} - {"leave"}
        assert len(verdicts) <= 1  # they decide alike
        going += verdicts == {"go"}
    assert going <= 1


def test_all_decide_alike_in_whatever_order_they_are_told() -> None:
    told = word(1, 2, 3)
    there = [member(1, 10, (1, 2, 3), told, done=((0, 4),)), member(2, 10, (1, 2, 3), told), member(3, 9, (1, 2, 3), told)]
    found = {str(decide(one, order, BATCH, 1)) for one in there for order in itertools.permutations(there)}
    assert len(found) == 1
