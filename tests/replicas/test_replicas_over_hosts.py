"""A group over pretended hosts: a link is cut and mended, one loses what goes one way, a host dies, and its task goes on on another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from e2e import Jobs, until
from pretended import network
from replica_members import HERE

pytest.importorskip("torchft", reason="the extra 'replicas' is not installed")

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("hosts"), pytest.mark.timeout(900)]

STEPS = 2000


def test_a_group_outlives_a_cut_link_and_a_host(tmp_path: Path) -> None:
    with network(tmp_path, 4) as net:
        first, second, third, fourth = net.hosts
        jobs = Jobs(net.up("--slots", "1", config="[runners]\nsilent_after = 6\n"))
        for host in (second, third):
            host.runner()
        job = {
            "name": "lm", "entrypoint": "counting:build", "workdir": str(HERE), "params": {"pace": 0.03, "hurry": str(tmp_path / "hurry")},
            "replicas": {"min": 2, "max": 3, "global_batch": 16, "quorum_timeout": "2s"}, "stop": {"iterations": STEPS},
        }  # fmt: skip
        (tmp_path / "lm.yaml").write_text(yaml.safe_dump(job))
        said = first.stoker("submit", str(tmp_path / "lm.yaml"))
        assert said.returncode == 0, said.stderr

        def now() -> tuple[int, int]:
            """Members of the newest step, and which that is."""
            rows = jobs.sql("SELECT members, step FROM replicas_now WHERE members > 0 ORDER BY step DESC LIMIT 1")
            return rows[0] if rows else (0, 0)

        def trains(count: int, seconds: float = 90) -> None:
            step = now()[1]
            until(lambda: now()[0] == count and now()[1] > step, seconds, says=first.said)

        trains(3, 120)
        third.cut()
        trains(2)
        third.mend()
        trains(3)
        third.lose(second)
        trains(2)
        words = "do not reach each other; the others go on until they do"
        until(lambda: any(words in log for host in (second, third) for log in _logs(host.home)), 30)
        third.find(second)
        trains(3)
        second.die()
        trains(2)
        until(lambda: net.state(second.name) == "suspect", 60)
        fourth.runner()
        forget = f"'stoker runner forget {second.name}'"
        until(lambda: forget in jobs.client.get("/v1/jobs/1/explain")["summary"], 30)
        assert jobs.show(2)["state"] == "running"  # it may be, so it is not begun there
        forgotten = first.stoker("runner", "forget", second.name)
        assert forgotten.returncode == 0, forgotten.stderr
        trains(3, 180)  # without its checkpoint, from the state of the others
        (tmp_path / "hurry").touch()
        for number in (1, 2, 3):
            assert jobs.ended(number, 200)["state"] == "completed", jobs.show(number)
        ends = [line for host in (first, third, fourth) for line in _ends(host.home)]
        assert len({line.rpartition("weights ")[2] for line in ends}) == 1 and len(ends) == 3, ends


def _logs(home: Path) -> list[str]:
    return [path.read_text() for path in home.glob("jobs/*/run-*/output.log")]


def _ends(home: Path) -> list[str]:
    return [line for log in _logs(home) for line in log.splitlines() if f"finished at step {STEPS}" in line]
