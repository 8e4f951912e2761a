"""Jobs that go on on another pretended host, with and without a shared disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e import Jobs, until
from pretended import Network, network

pytestmark = [pytest.mark.xdist_group("hosts"), pytest.mark.slow]

COUNTS = """
import stoker, time
path = stoker.checkpoint_dir() / "n"
n = int(path.read_text()) if path.exists() else 0
print("begins at", n, flush=True)
while n < 400:
    n += 1
    path.write_text(str(n))
    stoker.report(step=n, total=400, checkpoint=n)
    if stoker.should_stop():
        break
    time.sleep(0.05)
"""


def step(jobs: Jobs, job: int) -> int:
    progress = jobs.client.get(f"/v1/jobs/{job}")["progress"]
    return 0 if progress is None or progress["checkpoint_step"] is None else int(progress["checkpoint_step"])


def drained(net: Network, jobs: Jobs, job: int) -> None:
    """The job has saved on h1, which is drained."""
    until(lambda: step(jobs, job) > 5)
    assert net.hosts[0].stoker("drain", "h1", "--now", "--wait").returncode == 0


def test_where_nothing_is_fetched_it_waits_for_its_host(tmp_path: Path) -> None:
    with network(tmp_path, 2) as net:
        first, second = net.hosts
        client = net.up("--slots", "1", config='[runners]\nfetch_at_most = "0B"\n')
        jobs = Jobs(client)
        job = jobs.python("counts", COUNTS)
        until(lambda: step(jobs, job) > 5)
        second.runner()
        drained(net, jobs, job)
        saved = step(jobs, job)
        summary = until(lambda: (said := client.get(f"/v1/jobs/{job}/explain")["summary"]) and "lies on" in said and said)
        assert f"its checkpoint at step {saved} lies on h1" in summary
        assert first.stoker("move", str(job)).returncode == 2
        assert jobs.state(job) == "pending"
        assert first.stoker("runner", "resume", "h1").returncode == 0
        until(lambda: step(jobs, job) > saved)
        assert f"begins at {saved}" in client.get(f"/v1/jobs/{job}/logs")["text"]
        assert first.stoker("drain", "h1", "--now", "--wait").returncode == 0
        assert first.stoker("move", str(job), "--restart").returncode == 0
        until(lambda: client.get(f"/v1/jobs/{job}/logs")["node"] == "h2")
        assert until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"]).startswith("begins at 0")


def test_with_a_shared_directory_it_goes_on_where_it_was(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    with network(tmp_path, 2) as net:
        _, second = net.hosts
        client = net.up("--slots", "1", config=f'[runners]\ncheckpoints = "{shared}"\n')
        jobs = Jobs(client)
        job = jobs.python("counts", COUNTS)
        until(lambda: step(jobs, job) > 5)
        second.runner()
        drained(net, jobs, job)
        saved = step(jobs, job)
        until(lambda: client.get(f"/v1/jobs/{job}/logs")["node"] == "h2")
        assert until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"]).startswith(f"begins at {saved}")
        assert not list((second.home / "jobs" / str(job)).glob("checkpoints/*"))
