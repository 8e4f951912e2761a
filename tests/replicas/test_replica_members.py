"""Groups of real members: they grow and shrink, are killed and cut off, and end with the same bits and each sample counted once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from replica_members import PATIENCE, Member, World, counting, world
from replicas_links import hosts

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import torch
from stoker.engine.spec.model import JobSpec, Memory
from stoker.runners.lease.rundir import PREEMPTED_EXIT


def weights_of(member: Member) -> torch.Tensor:
    from stoker.runners.train.checkpoint import Checkpoints

    state = Checkpoints(member.directory.parent / "checkpoints").load()
    assert state is not None
    return state["model"]["used"]


def ended_alike(there: World, *members: Member, steps: int = 40) -> None:
    for member in members:
        assert there.wait(member) == 0, member.log
    assert len({member.weights for member in members}) == 1
    assert all(member.step == steps for member in members)
    uses = weights_of(members[0])
    passes, left = divmod(steps * 16, 64)
    assert sorted(uses.tolist()) == [float(passes)] * (64 - left) + [float(passes + 1)] * left


@pytest.mark.nightly
def test_members_come_and_go_and_end_with_the_same_bits(tmp_path: Path) -> None:
    with world(tmp_path, counting(least=2, pace=0.004)) as there:
        first, second = there.start(0, 1)
        there.until_step(first, 5)
        (third,) = there.start(2)
        there.until_step(third, 8)
        there.kill(second)
        there.until_step(first, 20)
        (again,) = there.start(1)
        ended_alike(there, first, third, again)


def test_of_two_neither_trains_alone_while_the_daemon_is_dead(tmp_path: Path) -> None:
    with world(tmp_path, counting(least=2, most=2, pace=0.004)) as there:
        first, second = there.start(0, 1)
        there.until_step(second, 5)
        there.mute = True
        there.kill(first)  # whose lighthouse is in use
        there.until_log(second, "1 of the 2 that took step")
        step = second.step
        assert step < 40
        there.mute = False
        there.tell()  # the daemon is back, and says that the other has ended
        there.until_step(second, step + 2)
        (again,) = there.start(0)
        ended_alike(there, second, again)


def test_three_lose_the_first_and_its_lighthouse_without_a_daemon_and_it_does_not_begin_anew_beside_them(tmp_path: Path) -> None:
    """The two splits of the trial: one comes back and looks at another lighthouse, one is killed before it took a step."""
    with world(tmp_path, counting(least=2, steps=60, pace=0.004)) as there:
        first, second, third = there.start(0, 1, 2)
        there.until_step(first, 3)
        there.mute = True
        there.kill(first)
        there.until_step(second, first.step + 5)  # two of three go on by themselves
        there.mute = False
        (early,) = there.start(0)
        there.kill(early)  # before it has trained
        (again,) = there.start(0)
        ended_alike(there, second, third, again, steps=60)
        assert max(report["values"].get("gaps", 0) for report in second.reports if "values" in report) >= 1


def test_nobody_waits_for_members_that_are_stopped(tmp_path: Path) -> None:
    """Neither for its silence, which takes half of quorum_timeout, nor for the daemon: the other goes on alone."""
    with world(tmp_path, counting(least=3, pace=0.004, timeout=40.0)) as there:
        first, second, third = there.start(0, 1, 2)
        there.until_step(third, 3)
        there.mute = True
        began = time.monotonic()
        for member, left in ((first, second), (third, second)):  # the lighthouse in use is that of the first, then of the second
            there.kill(member, signal.SIGTERM)
            there.until_step(left, member.step + 5)
        assert time.monotonic() - began < 15 * PATIENCE
        ended_alike(there, second)
        assert "asked to stop: leaving at step" in first.log


def test_a_member_without_state_gives_its_gpu_back_to_the_task_that_has_the_checkpoint(tmp_path: Path) -> None:
    with world(tmp_path, counting(timeout=1.0)) as there:
        there.saved = {1: 5}
        (late,) = there.start(0)
        assert there.wait(late) == PREEMPTED_EXIT
        assert late.log.splitlines()[-1].endswith("gives its GPU back: a task that has the group's checkpoint needs one first")


def test_one_that_is_left_with_an_old_state_gives_way_to_the_task_with_the_newest_checkpoint(tmp_path: Path) -> None:
    """It was cut off for long, and all with whom it trained have gone on without it and ended."""
    with world(tmp_path, counting(least=3, steps=600, pace=0.004, timeout=1.0)) as there:
        first, second, third = there.start(0, 1, 2)
        there.until_step(first, 3)
        there.mute = True
        there.kill(second)
        there.kill(third)
        there.until_log(first, "1 of the 3 that took step")
        there.mute, there.saved = False, {1: 500, 2: 495}
        there.tell()
        assert there.wait(first) == PREEMPTED_EXIT
        step = first.step
        assert f"the newest state here is of step {step}, and task 1 has saved a later one: waiting for task 1, or until" in first.log
        there.saved[0] = step
        (other,) = there.start(1)  # on another host, where that checkpoint does not lie: it must not begin without it
        there.until_log(other, "nobody here has a checkpoint of the group, which began before: waiting for task 1, task 2, task 0")


def test_a_late_one_finds_the_training_done(tmp_path: Path) -> None:
    with world(tmp_path, counting(steps=3)) as there:
        (first,) = there.start(0)
        assert there.wait(first) == 0
        there.done = True
        (late,) = there.start(1)
        assert there.wait(late) == 0
        assert "the group has finished its training without this member, whose own state is of step 0" in late.log
        assert late.step == 0


def test_one_that_trains_another_model_leaves_with_a_line_and_stops_nobody(tmp_path: Path) -> None:
    with world(tmp_path, counting(steps=600, pace=0.004)) as there:
        (first,) = there.start(0)
        there.until_step(first, 3)
        (other,) = there.start(1, spec=counting(steps=60, samples=32))
        assert there.wait(other) == 2
        assert "stoker: replicas: this member trains something else than task 0: model Counts" in other.log
        there.until_step(first, first.step + 2)


def test_of_two_with_one_id_the_older_leaves_and_the_newer_trains(tmp_path: Path) -> None:
    with world(tmp_path, counting(steps=600, pace=0.004)) as there:
        (first,) = there.start(0)
        there.until_step(first, 3)
        older, newer = there.start(1, 1)
        assert there.wait(older) == 2
        assert "stoker: task 1 runs again as lease 3; this one, lease 2, is an old one" in older.log
        there.until_step(newer, first.step + 2)  # one that leaves is not taken for one that has done all steps


@pytest.mark.nightly
def test_a_member_that_stood_still_is_left_behind_and_copies_the_state(tmp_path: Path) -> None:
    """As one whose link was cut: it is silent, and comes back with an older state."""
    with world(tmp_path, counting(least=3, steps=200, pace=0.002, timeout=1.0)) as there:
        first, second, third = there.start(0, 1, 2)
        there.until_step(first, 3)
        os.kill(first.pid, signal.SIGSTOP)
        there.until_step(second, first.step + 5)
        os.kill(first.pid, signal.SIGCONT)
        ended_alike(there, first, second, third, steps=200)
        assert "copied the weights of task" in first.log


def test_of_two_of_which_one_does_not_reach_the_other_one_is_left_out_until_the_link_is_mended(tmp_path: Path) -> None:
    with ExitStack() as held:
        try:
            links = held.enter_context(hosts(3))
        except OSError as error:
            pytest.skip(f"no link can be cut here: {error}")
        hurry = tmp_path / "hurry"
        job = counting(least=3, steps=100, timeout=1.0 * PATIENCE, pace=0.04, hurry=str(hurry))
        there = held.enter_context(world(tmp_path, job, links))
        first, second, third = there.start(0, 1, 2)
        there.until_step(first, 3)
        links[2].lose(links[1])
        there.until(lambda: any("do not reach each other" in one.log for one in (second, third)), "nobody is left out")
        there.until_step(first, first.step + 5)  # the others go on
        links[2].find(links[1])
        hurry.touch()
        ended_alike(there, first, second, third, steps=100)


def test_one_that_stood_still_as_the_others_finished_ends_with_their_state(tmp_path: Path) -> None:
    with world(tmp_path, counting(least=3, pace=0.004, timeout=4.0)) as there:
        first, second, third = there.start(0, 1, 2)
        there.until_step(first, 3)
        os.kill(third.pid, signal.SIGSTOP)
        there.until_step(second, 40)
        time.sleep(4.0)  # and they would end
        os.kill(third.pid, signal.SIGCONT)
        ended_alike(there, third, first, second)


def deep(memory: Memory, steps: int, pace: float = 0.0) -> JobSpec:
    return msgspec.structs.replace(counting(least=2, most=2, steps=steps), entrypoint="counting:deep", params={"pace": pace}, memory=memory)


SWAPPED = Memory(cap=48 << 10, accumulate=2, swap="force")


def test_swapped_members_end_with_the_bits_of_plain_ones(tmp_path: Path) -> None:
    ends = []
    for name, memory in (("plain", Memory(accumulate=2, swap="off")), ("swapped", SWAPPED)):
        with world(tmp_path / name, deep(memory, steps=6)) as there:
            members = there.start(0, 1)
            assert [there.wait(member) for member in members] == [0, 0], members[0].log
            ends += [member.weights for member in members]
    assert len(set(ends)) == 1
    assert "parts of the model under a cap" in members[0].log and members[0].reports[-2]["values"]["swap_in"] > 0


def test_of_swapped_members_one_is_killed_while_it_computes_and_comes_back(tmp_path: Path) -> None:
    with world(tmp_path, deep(SWAPPED, steps=40, pace=0.01)) as there:
        first, second = there.start(0, 1)
        there.until_step(first, 3)
        there.kill(second)
        (again,) = there.start(1)
        assert [there.wait(first), there.wait(again)] == [0, 0], first.log
        assert first.weights == again.weights
