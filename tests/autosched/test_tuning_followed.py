"""A daemon with 64 emulated GPUs follows a day whose best configuration changes twice, in compressed time: a period takes 12 s, not 1 h."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from common import Runner
from e2e import DaemonProcess, Jobs, command, until
from stoker.engine.errors import StokerError
from stoker.engine.home import Home

EVERY = 12.0  #: seconds
NODES, GPUS = 8, 8


class Node(threading.Thread):
    """A runner that speaks the protocol and starts nothing: what it is given runs until it is to stop."""

    def __init__(self, daemon: DaemonProcess, number: int) -> None:
        super().__init__(daemon=True)
        self.runner, self.runs = Runner(daemon.client(), f"node{number}", GPUS), set[int]()
        self.runner.hello()

    def run(self) -> None:
        while True:
            try:
                for lease in self.runner.poll().leases:
                    if lease.stop is not None:
                        self.runner.complete(lease.lease)
                    elif lease.lease not in self.runs:
                        self.runs.add(lease.lease)
                        self.runner.run(lease.lease)
            except (StokerError, OSError):  # the daemon is gone: the test is over
                return


def wide(name: str, gpus: int, seconds: float) -> dict[str, Any]:
    return {"name": name, "command": ["true"], "estimate": seconds, "gpus_min": gpus, "gpus_max": gpus}


def day() -> list[dict[str, Any]]:
    """Half of the pool is free soon and the other half late; many short jobs stand behind one that wants all: best overtaken."""
    return [wide("soon", 32, 5), wide("late", 32, 1000), wide("all", 64, 100), *(wide(f"short{n}", 1, 5) for n in range(32))]


def night() -> list[dict[str, Any]]:
    """Short ones that want all stand before long small ones, which would hold them up for long: best not overtaken."""
    return [wide("soon", 32, 20), wide("next", 32, 40), *(wide(f"all{n}", 64, 10) for n in range(10)),
            *(wide(f"long{n}", 1, 1000) for n in range(22))]  # fmt: skip


@pytest.mark.nightly  # by day in a simulation: test_tuning_in_simulation.py; a daemon that applies what it finds: test_tuning_live.py
@pytest.mark.parametrize("hours", [(day, night), (day, night, day)], ids=["once", "twice"])
def test_a_load_whose_best_configuration_changes_is_followed(
    home: Home, start_daemon: Callable[..., DaemonProcess], hours: tuple[Callable[[], list[dict[str, Any]]], ...]
) -> None:
    daemon = start_daemon()
    jobs = Jobs(daemon.client())
    for number in range(NODES):
        Node(daemon, number).start()
    assert command(home, "policy", "set", "fifo", "backfill=false", "--auto", "--every", f"{EVERY:g}s").code == 0
    for hour in hours:
        began, best = time.time(), hour is day
        ids = jobs.submit_all(*hour())

        def in_force(best: bool = best) -> bool:
            ((config,),) = jobs.sql("SELECT config FROM policy_history ORDER BY id DESC LIMIT 1")
            return bool(json.loads(config)["backfill"] is best)

        until(in_force, 90, says=lambda: jobs.sql("SELECT ts, outcome, why FROM tunings"))
        # The batch may come in the midst of a search, or before its first jobs have begun: the second one sees it at the latest.
        ((kept,),) = jobs.sql(f"SELECT count(*) FROM tunings WHERE epoch(ts) > {began} AND outcome = 'kept'")
        assert kept <= 2
        query = f"SELECT predicted_gain FROM tunings WHERE epoch(ts) > {began} AND outcome = 'applied' ORDER BY id DESC LIMIT 1"
        ((gain,),) = until(lambda query=query: jobs.sql(query))  # it is written down a moment after it is in force
        assert gain > 1.1
        for job in ids:
            jobs.act("cancel", job)
        until(lambda: jobs.sql("SELECT count(*) FROM jobs WHERE finished_at IS NULL") == [(0,)], 60)
    assert jobs.sql("SELECT count(*) FROM tunings WHERE outcome = 'rolled back'") == [(0,)]
