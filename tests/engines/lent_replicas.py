"""A group of two replicas on nodes that an engine lends, as its user sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from e2e import Jobs, command, until
from stoker.engine.home import Home

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
STEPS = 600


class Training:
    """``home``: of the daemon; ``runners``: where the runners keep the jobs' logs; ``says``: what to tell where it does not go on."""

    def __init__(self, home: Home, jobs: Jobs, runners: Home, folder: Path, says: Callable[[], str] | None = None) -> None:
        pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")
        self.jobs, self.runners, self.hurry, self.says = jobs, runners, folder / "hurry", says
        job = {
            "name": "lm", "entrypoint": "counting:build", "workdir": str(BENCHMARKS), "params": {"pace": 0.03, "hurry": str(self.hurry)},
            "stop": {"iterations": STEPS}, "replicas": {"min": 2, "max": 2, "global_batch": 16, "quorum_timeout": "2s"},
        }  # fmt: skip
        (folder / "lm.yaml").write_text(yaml.safe_dump(job))
        assert command(home, "submit", str(folder / "lm.yaml")).out == "jobs 1 to 2\n"

    def goes_on(self, count: int) -> None:
        """So many take a step together that none has taken so far."""
        newest = "SELECT step, members FROM replicas_now WHERE members > 0 ORDER BY step DESC LIMIT 1"
        done = max((step for step, _ in self.jobs.sql(newest)), default=0)
        until(lambda: any(step > done and members == count for step, members in self.jobs.sql(newest)), 120, says=self.says)

    def ends(self) -> None:
        """Both are completed, with the same weights."""
        self.hurry.touch()
        for number in (1, 2):
            assert self.jobs.ended(number, 200)["state"] == "completed", self.jobs.show(number)
        logs = [path.read_text() for path in self.runners.path.glob("jobs/*/run-*/output.log")]
        ends = [line.rpartition("weights ")[2] for text in logs for line in text.splitlines() if f"finished at step {STEPS}" in line]
        assert len(ends) == 2 and len(set(ends)) == 1
