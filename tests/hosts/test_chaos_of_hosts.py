"""Pretended hosts that die, are cut off, or have no room, while a job is on its way between them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e import Jobs, until
from pretended import Host, Network, network
from test_moves import COUNTS, step

pytestmark = [pytest.mark.xdist_group("hosts"), pytest.mark.nightly, pytest.mark.timeout(400)]

#: with 24 MiB beside its step: it takes a moment to be sent
LARGE = COUNTS.replace("n = int(", "(path.parent / 'weights').write_bytes(bytes(24 << 20)) if not path.exists() else None\nn = int(", 1)


def begins(jobs: Jobs, job: int, node: str) -> int:
    """At which step it has begun on a node."""
    until(lambda: (said := jobs.client.get(f"/v1/jobs/{job}/logs"))["node"] == node and said["text"], 90)
    return int(jobs.client.get(f"/v1/jobs/{job}/logs")["text"].split()[2])


def state(net: Network, node: str) -> str | None:
    return net.state(node)


def test_the_host_that_sends_dies_and_comes_back(tmp_path: Path) -> None:
    with network(tmp_path, 3) as net:
        _, second, third = net.hosts
        jobs = Jobs(net.up("--no-runner"))
        second.runner()
        job = jobs.python("counts", LARGE)
        until(lambda: step(jobs, job) > 5)
        third.runner()
        jobs.client.post("/v1/runners/h2/drain", {"now": True})
        until(lambda: jobs.state(job) in ("assigned", "starting"), 60, pause=0.02)
        second.die()
        second.boot()
        second.runner_again()
        assert begins(jobs, job, "h3") > 5
        assert jobs.ended(job)["state"] == "completed"


def test_a_host_without_room_says_so_and_another_one_goes_on(tmp_path: Path) -> None:
    with network(tmp_path, 3) as net:
        _, second, third = net.hosts
        jobs = Jobs(net.up("--no-runner"))
        second.runner()
        job = jobs.python("counts", LARGE)
        until(lambda: step(jobs, job) > 5)
        small_disk(third)
        third.runner()
        jobs.client.post("/v1/runners/h2/drain", {"now": True})
        until(
            lambda: "there is no room for it on the disk of this host" in (jobs.show(job)["excluded"] or jobs.show(job)["state_reason"]), 90
        )
        jobs.client.post("/v1/runners/h2/resume", {})
        assert begins(jobs, job, "h2") > 5


def small_disk(host: Host) -> None:
    subprocess.run(host.argv("mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(host.home)), check=True)


def test_a_host_that_is_cut_off_stops_its_job_before_another_one_begins_it(tmp_path: Path) -> None:
    with network(tmp_path, 3) as net:
        _, second, third = net.hosts
        jobs = Jobs(net.up("--no-runner", config='[runners]\nsilent_after = 3\nfence_after = "6s"\n'))
        second.runner()
        beats = tmp_path / "beats"
        line = (
            'with open(%r, "a", buffering=1) as f:\n while True:\n  print(socket.gethostname(), time.monotonic(), file=f); time.sleep(0.05)'
        )
        job = jobs.python("beats", f"import socket, time\n{line % str(beats)}", grace=1.0)
        until(beats.exists)
        third.runner()
        second.cut()

        def of(node: str) -> list[float]:
            rows = [row.split() for row in beats.read_text().splitlines()]
            return [float(row[1]) for row in rows if len(row) == 2 and row[0] == node]

        until(lambda: of("h3"), 120)
        assert of("h2")[-1] < of("h3")[0]
        second.mend()
        until(lambda: state(net, "h2") == "up", 60)
        assert of("h2")[-1] < of("h3")[0] and jobs.state(job) == "running"
        ends: list[Any] = [row["outcome"] for row in jobs.client.get(f"/v1/jobs/{job}")["leases"]]
        assert sorted(str(end) for end in ends) == ["None", "lost"]


def test_a_runner_belongs_to_one_daemon(tmp_path: Path) -> None:
    with network(tmp_path, 2) as net:
        _, second = net.hosts
        net.up("--no-runner")
        second.runner()
        again = second.stoker("--url", net.url, "runner", "start", "--slots", "1", timeout=60)
        assert again.returncode == 4 and "a runner of node 'h2' is running already" in again.stderr
        token = second.stoker("--url", net.url, "status")
        assert token.returncode == 5  # without a token
