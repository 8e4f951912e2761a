"""A long storm over a group, by night; what it counts, and that it leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import replicas
from replica_members import HERE, PATIENCE


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_thousand_steps_under_kills_stops_pauses_and_cut_links_count_each_sample_once_a_pass(tmp_path: Path) -> None:
    steps, members = 1000, 4
    storm = replicas.Storm(replicas.events(40, steps, members, seed=1), seed=1)
    found = replicas.run_replicas(tmp_path, steps, members, storm)
    assert (found["wrong"], found["split"], found["failed"]) == (0, 0, 0)
    assert found["alike"] == found["ended"] >= 2
    assert len(storm.times) >= 35  # the last ones may come when all steps are done
    assert found["recovery max"] < 40 * PATIENCE  # a member that is waited for in vain holds all others up for a minute


def test_a_step_that_two_groups_took_is_told_from_one_that_was_taken_again() -> None:
    def member(lease: int, *taken: tuple[int, str, list[int]]) -> Any:
        return SimpleNamespace(lease=lease, taken=[(step, "", history, leases) for step, history, leases in taken])

    killed = member(1, (7, "a", [1, 2, 3, 4]))  # it alone ended that sum well
    others = [member(lease, (7, "b", [2, 3, 4])) for lease in (2, 3, 4)]
    assert replicas.splits([killed, *others]) == []
    beside = [member(lease, (7, "c", [1, 5])) for lease in (1, 5)]
    assert replicas.splits([*others, *beside]) == [7]


def test_a_member_ends_with_whoever_has_started_it_however_that_ends() -> None:
    code = """if True:
        import os, time
        from replicas_links import ends_with
        own = os.getpid()
        if not os.fork():
            ends_with(own)
            print("lives", flush=True)
            time.sleep(600)
        os.wait()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=HERE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"lives\n"
        process.kill()
        assert process.stdout.read() == b""  # nobody holds the other end any more
