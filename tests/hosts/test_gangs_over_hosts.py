"""Gangs over pretended hosts, whose names resolve to 127.0.1.1, as Debian's do."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e import Jobs, until
from pretended import network

pytestmark = pytest.mark.xdist_group("hosts")

RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["STOKER_NODE_RANK"]), world_size=int(os.environ["STOKER_NODES"]))
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item(), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"], flush=True)
"""


@pytest.mark.slow
def test_a_gang_over_hosts_one_of_them_that_of_the_daemon(tmp_path: Path) -> None:
    with network(tmp_path, 2) as net:
        first, second = net.hosts
        client = net.up("--slots", "1")
        runner = second.runner()
        jobs = Jobs(client)
        job = jobs.python("gang", RANKS, gpus_min=2, gpus_max=2)
        assert jobs.ended(job)["state"] == "completed", (first.said(), second.said())
        last = client.get(f"/v1/jobs/{job}/logs")["text"].splitlines()[-1]
        assert last == f"sum 2.0 {first.address} eth0"
        # The part on the other host has a log of its own, also when its runner has left.
        there = f"sum 2.0 {first.address} eth0"
        assert client.get(f"/v1/jobs/{job}/logs", node="h2")["text"].splitlines()[-1] == there
        second.signal(runner)
        until(lambda: net.state("h2") == "stopped", says=second.said)
        assert first.stoker("logs", str(job), "--node", "h2").stdout.splitlines()[-1] == there
        assert "node: job 1 has written no log on runner 'h9'; it has on h1, h2" in first.stoker("logs", str(job), "--node", "h9").stderr
