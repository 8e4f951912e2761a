"""A long storm over a group, by night."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
import replicas
from replica_members import PATIENCE


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
