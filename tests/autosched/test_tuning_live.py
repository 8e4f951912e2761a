"""A daemon that tunes its pool: asked for, and by itself (002 ch. 6.5.2, 6.5.3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.home import Home


@pytest.fixture
def pool(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Jobs:
    """Two slots and 40 jobs of many lengths, the first long."""
    jobs = Jobs(start_daemon().client())
    start_runner("here", 2)
    assert command(home, "policy", "set", "srtf", "hysteresis=50", "unknown=1").code == 0
    lengths = [4000, 3000] + [30 + 40 * (n % 9) for n in range(38)]
    jobs.submit_all(*[{"name": f"j{n}", "command": ["sleep", "600"], "estimate": length} for n, length in enumerate(lengths)])
    return jobs


def test_a_pool_is_tuned_and_says_what_was_found(home: Home, pool: Jobs) -> None:
    dry = command(home, "tune", "default", "--objective", "jct", "--dry-run", "--trials", "12", "--json")
    assert dry.code == 0, dry.err
    found = json.loads(dry.out)
    assert not found["applied"] and found["trials"] == 12 and found["gain"] >= 1.0
    assert {row["key"] for row in found["keys"]} == {"hysteresis", "unknown", "measure"}
    assert pool.sql("SELECT outcome, trials FROM tunings") == [("dry-run", 12)]
    bad = command(home, "tune", "default", "--range", "hysteresis=0:5")
    assert bad.code == 2 and "hysteresis: 0 to 5 is not within its range" in bad.err
    told = command(home, "tune", "history", "--json")
    assert [row["outcome"] for row in json.loads(told.out)["tunings"]] == ["dry-run"]


@pytest.mark.slow
def test_a_pool_that_tunes_itself_obeys_a_person(home: Home, pool: Jobs) -> None:
    assert command(home, "policy", "set", "srtf", "hysteresis=50", "--auto", "--every", "12s").code == 0
    row: tuple[Any, ...] = until(lambda: pool.sql("SELECT outcome, why, trials FROM tunings WHERE asked_by = 'autosched'"), 60)[0]
    assert row[0] in ("applied", "kept") and row[2] > 1
    assert command(home, "policy", "set", "fifo").code == 0
    count = pool.sql("SELECT count(*) FROM tunings")[0][0]
    assert pool.sql("SELECT enabled FROM auto_tuning ORDER BY id DESC LIMIT 1") == [(False,)]
    time.sleep(3.0)
    assert pool.sql("SELECT count(*) FROM tunings")[0][0] - count <= 1  # one may have been under way
    assert pool.sql("SELECT policy FROM policy_history ORDER BY id DESC LIMIT 1") == [("fifo",)]
