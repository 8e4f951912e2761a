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
    def member(lease: int, history: str, leases: list[int], moment: float, ended: float = 100.0) -> Any:
        return SimpleNamespace(lease=lease, taken=[(7, history, leases, moment)], ended=ended)

    one = member(1, "a", [1, 2, 3, 4], 1.0)  # it alone has ended that sum well
    others = [member(lease, "b", [2, 3, 4], 2.0) for lease in (2, 3, 4)]
    assert replicas.splits([one, *others]) == []
    alone = member(5, "c", [5], 1.0, ended=1.5)  # it was killed, and nobody else had that state
    assert replicas.splits([alone, *others]) == []
    beside = [member(lease, "d", [1, 5], 3.0) for lease in (1, 5)]
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
