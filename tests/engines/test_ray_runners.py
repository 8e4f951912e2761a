"""Runners on three raylets of a real Ray: whatever of it is killed, no job stops for that, and all comes back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray_here
from e2e import DaemonProcess, Jobs, Said, command, end_workers, free_port, until
from lent_replicas import Training
from ray_here import RayCluster
from stoker.engine.client import ENV_CA, Client
from stoker.engine.home import Home
from stoker.engine.hosts.certificates import make_own, own
from stoker.runners.lease import processes

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]

COUNTS = "import os, time\nprint('pid', os.getpid(), [n for n in os.environ if n.startswith('RAY')], flush=True)\ntime.sleep(1000)"


@dataclass
class Site:
    cluster: RayCluster
    home: Home
    client: Client
    url: str
    token: str
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.client)

    def stoker(self, *words: str, token: str | None = None) -> Said:
        environment = {**os.environ, "STOKER_TOKEN": token or self.token, "RAY_ADDRESS": self.cluster.address}
        return command(self.home, "--url", self.url, "runner", "ray", *words, env=environment)

    def up(self, nodes: int, *words: str) -> None:
        said = self.stoker("up", "--nodes", str(nodes), "--slots", "1", *words)
        assert said.code == 0, said.err

    def rows(self) -> dict[str, dict[str, Any]]:
        said = self.stoker("list", "--json")
        assert said.code == 0, said.err
        return {row["node"]: row for row in json.loads(said.out)}

    def serve(self, *nodes: str) -> dict[str, dict[str, Any]]:
        """Once these serve, and no other."""

        def served() -> Any:
            found = self.rows()
            return found if set(found) == set(nodes) and all(row["state"] == "serves" for row in found.values()) else None

        return dict(until(served, 120, pause=0.5))

    def runs(self, job: int) -> int:
        """The process of a job that runs."""
        text = until(lambda: "pid" in (text := self.client.get(f"/v1/jobs/{job}/logs")["text"]) and text, 60)
        assert text.rstrip().endswith("[]"), text  # a job that uses Ray itself would join the wrong one
        return int(text.split()[1])


@pytest.fixture
def site(cluster: RayCluster, home: Home, start_daemon: Callable[..., DaemonProcess]) -> Iterator[Site]:
    """Over TLS: actors give their runners the authority that the home trusts."""
    port, (cert, key) = free_port(), own(home.tls)
    make_own(home.tls, ["127.0.0.1"])
    client = start_daemon("--tcp", f"127.0.0.1:{port}", "--tls-cert", str(cert), "--tls-key", str(key)).client()
    token = client.post("/v1/tokens", {"name": "nodes", "role": "runner"})["token"]
    found = Site(cluster, home, client, f"https://127.0.0.1:{port}", token)
    try:
        yield found
    finally:
        found.stoker("down", "--timeout", "10")
        for lock in (home.path / "ray" / "runners").glob("*.lock"):
            pid = int(lock.read_text() or 0)
            if pid and Path("/proc", str(pid)).exists():
                os.kill(pid, signal.SIGKILL)
        end_workers(Home(home.path / "ray"))


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def test_whatever_of_ray_is_killed_jobs_go_on_and_all_comes_back(site: Site) -> None:
    admin = site.client.post("/v1/tokens", {"name": "ann", "role": "admin"})["token"]
    said = site.stoker("up", "--nodes", "2", "--slots", "1", token=admin)
    assert said.code == 2 and "role admin" in said.line and not site.rows()
    site.up(2)
    first = site.serve("r1", "r2")
    jobs = [site.jobs.python("counts", COUNTS, grace=2.0) for _ in first]
    pids = [site.runs(job) for job in jobs]

    os.kill(first["r1"]["pid"], signal.SIGKILL)  # the agent
    until(lambda: (row := site.rows()["r1"])["state"] == "serves" and row["pid"] != first["r1"]["pid"], 60, pause=0.5)
    os.kill(first["r2"]["keeper"], signal.SIGKILL)  # the actor
    again = until(
        lambda: (row := site.rows().get("r2")) and row["keeper"] != first["r2"]["keeper"] and row["state"] == "serves" and row, 60
    )
    assert again["pid"] == first["r2"]["pid"] and again["starts"] == 0  # found, not started
    site.cluster.kill_raylet("r2")
    until(lambda: "r2" not in site.rows(), 60, pause=0.5)
    assert all(alive(pid) for pid in pids)
    assert {row["state"] for row in site.client.get("/v1/runners")["runners"]} == {"up"}
    site.cluster.forget("r2")
    site.cluster.join("r2")
    back = site.serve("r1", "r2")["r2"]
    assert back["pid"] == first["r2"]["pid"] and back["starts"] == 0

    assert [site.runs(job) for job in jobs] == pids and all(alive(pid) for pid in pids)
    assert all(len(site.client.get(f"/v1/jobs/{job}")["leases"]) == 1 for job in jobs)
    site.up(2)  # again: nothing is lacking
    assert {row["pid"] for row in site.rows().values()} == {row["pid"] for row in site.serve("r1", "r2").values()}
    assert site.stoker("up", "--nodes", "3", "--slots", "1").code == 4
    assert site.stoker("down").code == 0
    assert {site.jobs.state(job) for job in jobs} == {"pending"} and not site.rows()
    assert {row["state"] for row in site.client.get("/v1/runners")["runners"]} == {"stopped"}
    assert site.stoker("down").code == 3


def test_a_node_joins_and_another_leaves(site: Site) -> None:
    site.up(3, "--wait", "1")
    assert {row["state"] for row in site.rows().values()} == {"away"}  # Ray lends all nodes of a group or none
    site.cluster.join("r3")
    try:
        site.serve("r1", "r2", "r3")
        job = site.jobs.python("counts", COUNTS, grace=2.0)
        site.runs(job)
    finally:
        site.cluster.leave("r3")
    until(lambda: set(site.rows()) == {"r1", "r2", ""}, 60, pause=0.5)
    site.cluster.join("r4")
    try:
        site.serve("r1", "r2", "r4")
        assert site.stoker("down").code == 0
    finally:
        site.cluster.leave("r4")


@pytest.fixture
def quickly_silent(home: Home) -> None:
    home.config.write_text("[runners]\nsilent_after = 6\n")


@pytest.mark.timeout(900)
def test_replicas_over_two_nodes_lose_one_and_go_on_with_another(quickly_silent: None, site: Site, tmp_path: Path) -> None:
    site.up(2)
    first = site.serve("r1", "r2")
    training = Training(site.home, site.jobs, Home(site.home.path / "ray"), tmp_path)
    training.goes_on(2)
    ((supervisor,),) = site.jobs.sql(
        "SELECT w.pid FROM workers w JOIN leases l ON l.id = w.lease_id WHERE w.node_id = 'r2' AND l.ended_at IS NULL"
    )
    site.cluster.kill_raylet("r2")
    everything = [each.pid for each in processes.descendants(supervisor, processes.table())]
    for pid in (first["r2"]["pid"], supervisor, *everything):  # as a host that is no more
        os.kill(pid, signal.SIGKILL)
    site.cluster.forget("r2")
    site.cluster.join("r3")
    try:
        until(lambda: command(site.home, "runner", "forget", "r2").code == 0, 60, pause=0.5)  # once it is not heard
        training.goes_on(1)
        site.serve("r1", "r3")
        training.goes_on(2)
        training.ends()
        assert site.stoker("down").code == 0
    finally:
        site.cluster.leave("r3")
        site.cluster.join("r2")


def test_two_runners_of_one_name_leave_none(site: Site) -> None:
    elsewhere = site.home.path / "elsewhere"
    from e2e import RunnerProcess

    elsewhere.mkdir()
    ca = str(site.home.tls / "ca.pem")
    other = RunnerProcess(Home(elsewhere), "r1", 1, env={"STOKER_URL": site.url, "STOKER_TOKEN": site.token, ENV_CA: ca})
    try:
        other.start(site.client)
        said = site.stoker("up", "--nodes", "2", "--slots", "1")
        assert said.code == 4 and "runner r1 is" in said.line and not site.rows()
        states = {row["id"]: row["state"] for row in site.client.get("/v1/runners")["runners"]}
        assert states.pop("r1") == "up" and set(states.values()) <= {"stopped"}
    finally:
        other.end()


def test_the_head_dies_and_a_new_one_finds_the_runners(home: Home, start_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> None:
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}").client()
    token = client.post("/v1/tokens", {"name": "nodes", "role": "runner"})["token"]
    try:
        with ray_here.ray_cluster(tmp_path) as cluster:
            site = Site(cluster, home, client, f"http://127.0.0.1:{port}", token)
            site.up(2)
            first = site.serve("r1", "r2")
            job = site.jobs.python("counts", COUNTS, grace=2.0)
            pid = site.runs(job)
            cluster.kill_head()
            began = time.monotonic()
            assert site.stoker("list").code == 4 and time.monotonic() - began < 20
        with ray_here.ray_cluster(tmp_path) as cluster:
            site.cluster = cluster
            site.up(2)
            second = site.serve("r1", "r2")
            assert {name: (row["pid"], row["starts"]) for name, row in second.items()} == {n: (row["pid"], 0) for n, row in first.items()}
            assert alive(pid) and site.runs(job) == pid
            assert site.stoker("down").code == 0
    finally:
        end_workers(Home(home.path / "ray"))
