"""The schedules that replicas are held against take as long as their papers say, and links are shared by what goes both ways."""

from __future__ import annotations

import pytest
from replicas_pipelines import Stage, gpipe, pipedream, ring, seconds

STAGES = [Stage(1.0, 2.0, 0)] * 4


def test_of_gpipe_the_pipeline_fills_and_drains_each_round() -> None:
    assert seconds(STAGES, gpipe(4), 0.0) == (4 + 3) * 3.0
    assert seconds(STAGES, gpipe(8), 0.0) == 2 * (4 + 3) * 3.0


def test_of_pipedream_it_fills_once() -> None:
    assert seconds(STAGES, pipedream(16), 0.0) == (16 + 3) * 3.0


def test_what_is_sent_takes_its_time() -> None:
    orders = [[("F", 0), ("B", 0)]] * 2
    assert seconds(STAGES[:2], orders, 3.0) == 1 + 3 + 1 + 2 + 3 + 2


def test_over_slow_links_a_stage_in_the_middle_sends_two_things_a_mini_batch() -> None:
    idle = [Stage(0.0, 0.0, 0)] * 4
    assert (seconds(idle, pipedream(40), 1.0) - seconds(idle, pipedream(20), 1.0)) / 20 >= 2.0


def test_a_ring_sends_each_part_twice() -> None:
    assert ring(100e6, 2, 800.0) == pytest.approx(1.0)
    assert ring(100e6, 8, 800.0) == pytest.approx(1.75)
