"""Runners as batch jobs of a real Slurm: whatever ends one, its jobs go on in the next, and nothing runs twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import slurm_here
from e2e import SAVES, DaemonProcess, Jobs, Said, command, end_workers, free_port, until
from lent_replicas import Training
from slurm_here import Slurm
from stoker.engine.client import Client
from stoker.engine.home import Home
from stoker.engine.hosts.certificates import make_own, own

pytestmark = pytest.mark.xdist_group("slurm")

QUICK = "from stoker.engine import services\nservices.PILOT_LOOKS = 0.5\n"  # each is an execution of squeue


@dataclass
class Site:
    """A daemon that listens on TCP, and the pilots' commands."""

    slurm: Slurm
    home: Home
    client: Client
    url: str
    token: str
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.client)

    @property
    def pilots(self) -> Home:
        return Home(self.home.path / "slurm")

    def stoker(self, *words: str, token: str | None = None) -> Said:
        return command(self.home, "--url", self.url, "runner", "slurm", *words, env={**os.environ, "STOKER_TOKEN": token or self.token})

    def up(self, *words: str, limit: str = "1h") -> None:
        said = self.stoker("--partition", "gpu", "--time", limit, "--slots", "1", *words)
        assert said.code == 0, said.err

    def state(self, node: str) -> str | None:
        return {row["id"]: row["state"] for row in self.client.get("/v1/runners")["runners"]}.get(node)

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.pilots.path.glob("pilot-*.log")))

    def saves(self) -> int:
        """A job that has left checkpoints."""
        job = self.jobs.python("saves", SAVES, grace=5.0)
        until(lambda: self.saved(job) > 3, says=self.log)
        return job

    def saved(self, job: int) -> int:
        progress = self.client.get(f"/v1/jobs/{job}")["progress"]
        return int(progress["checkpoint_step"] or 0) if progress else 0

    def began_at(self, job: int, lease: int) -> int | None:
        """The step from which it went on in its lease of that place, None: it has not begun."""
        rows = self.jobs.sql(f"SELECT run_dir FROM workers JOIN leases l ON l.id = lease_id WHERE l.job_id = {job} ORDER BY l.id")
        if len(rows) < lease or rows[lease - 1][0] is None:
            return None
        said = [path.read_text() for path in Path(rows[lease - 1][0]).glob("*.log")]
        found = [line for text in said for line in text.splitlines() if line.startswith("begins at ")]
        return int(found[0].split()[-1]) if found else None

    def goes_on(self, job: int, lease: int) -> int:
        """Once it runs again: from where."""
        return int(until(lambda: self.began_at(job, lease), 60, says=self.log))


@pytest.fixture
def site(slurm: Slurm, home: Home, start_daemon: Callable[..., DaemonProcess]) -> Iterator[Site]:
    with begun(slurm, home, start_daemon) as made:
        yield made


@contextmanager
def begun(slurm: Slurm, home: Home, start_daemon: Callable[..., DaemonProcess]) -> Iterator[Site]:
    """Over TLS: pilots trust the authority that the home trusts from which they are handed in."""
    port, (cert, key) = free_port(), own(home.tls)
    make_own(home.tls, ["127.0.0.1"])
    client = start_daemon("--tcp", f"127.0.0.1:{port}", "--tls-cert", str(cert), "--tls-key", str(key), changes=QUICK).client()
    token = client.post("/v1/tokens", {"name": "pilots", "role": "runner"})["token"]
    found = Site(slurm, home, client, f"https://127.0.0.1:{port}", token)
    try:
        yield found
    finally:
        slurm.ask("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        until(lambda: slurm.ask("scancel", "--user=root", check=False) is not None and not slurm.ask("squeue", "--noheader"), 60)
        end_workers(found.pilots)


def test_a_pilot_that_is_cancelled_saves_its_jobs_for_its_successor(site: Site) -> None:
    refused = site.stoker("--partition", "nowhere", "--time", "1h")
    assert refused.code == 2 and "nowhere" in refused.line
    admin = site.client.post("/v1/tokens", {"name": "ann", "role": "admin"})["token"]
    assert site.stoker("--partition", "gpu", "--time", "1h", token=admin).code == 2
    assert not site.slurm.jobs() and not site.pilots.path.exists()  # nothing half started

    site.up()
    job = site.saves()
    ((first, node),) = site.slurm.running()
    assert site.jobs.sql("SELECT node_id, engine, job, host FROM pilots") == [(node, "slurm", str(first), node)]
    assert f"{node} leaves in" in site.client.get(f"/v1/jobs/{job}/explain")["summary"]
    kept = [path for path in site.slurm.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if site.token.encode() in path.read_bytes()]  # what Slurm keeps of a job others may read
    site.slurm.ask("scancel", str(first))
    assert site.goes_on(job, 2) > 3
    assert site.jobs.show(job)["failures"] == 0 and ("lost",) not in site.jobs.sql("SELECT outcome FROM leases")
    ((second, _),) = site.slurm.running()
    assert second != first

    said = site.stoker("list", "--json")
    assert said.code == 0 and str(second) in said.out
    saved = site.saved(job)
    assert site.stoker("down").code == 0
    assert site.jobs.state(job) == "pending" and site.saved(job) >= saved
    assert site.slurm.ask("squeue", "--noheader") == "" and site.state(node) == "stopped"


@pytest.mark.nightly
def test_a_pilot_that_is_killed_is_forgotten_by_the_word_of_slurm_and_its_job_goes_on_elsewhere(site: Site) -> None:
    site.up()
    job = site.saves()
    ((first, node),) = site.slurm.running()
    site.slurm.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")  # its successor has to go elsewhere
    try:
        until(lambda: site.jobs.sql("SELECT seen FROM pilots") == [(True,)])
        site.slurm.ask("scancel", "--signal=KILL", "--batch", str(first))
        assert site.goes_on(job, 2) > 3
        ((_, other),) = site.slurm.running()
        assert other != node
        assert site.state(node) == "gone"
        (event,) = [one for one in site.jobs.events("node.state") if one["after"] == "gone"]
        assert f"job {first} of Slurm, has ended" in event["reason"]
    finally:
        site.slurm.ask("scontrol", "update", f"nodename={node}", "state=resume")


@pytest.mark.nightly
def test_an_urgent_job_takes_a_node_and_gives_it_back(site: Site) -> None:
    site.up("--nodes", "2")
    first, second = site.saves(), site.saves()
    (_, node), _ = site.slurm.running()
    site.slurm.ask("sbatch", "--partition=urgent", "--exclusive", f"--nodelist={node}", "--wrap=sleep 5", "--output=/dev/null")
    until(lambda: {site.jobs.state(first), site.jobs.state(second)} == {"pending", "running"}, 90, says=site.log)
    moved = first if site.jobs.state(first) == "pending" else second
    assert site.goes_on(moved, 2) > 3
    assert site.jobs.show(moved)["failures"] == 0


@pytest.mark.nightly
def test_at_its_limit_a_pilot_hands_over_in_time(site: Site) -> None:
    site.up(limit="4m")
    job = site.saves()
    ((first, _),) = site.slurm.running()
    saved, began = site.saved(job), time.monotonic()
    until(lambda: site.slurm.jobs()[first][0] == "COMPLETED", 240, says=site.log)  # not TIMEOUT
    assert time.monotonic() - began < 240 and site.goes_on(job, 2) > saved
    assert site.jobs.show(job)["failures"] == 0


@pytest.mark.nightly
def test_a_runner_that_cannot_serve_takes_its_successor_back(site: Site) -> None:
    site.up()
    until(site.slurm.running)
    assert site.client.get("/v1/tokens")["tokens"]
    for row in site.client.get("/v1/tokens")["tokens"]:
        if row["role"] == "runner":
            site.client.post(f"/v1/tokens/{row['id']}/revoke", {})
    ((first, _),) = site.slurm.running()
    site.slurm.ask("scancel", str(first))
    until(lambda: not site.slurm.ask("squeue", "--noheader"), 60, says=site.log)
    assert "no successor is wanted" in site.log()


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_replicas_over_two_nodes_lose_one_and_go_on_with_another(
    home: Home, start_daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    with slurm_here.slurm(tmp_path / "s", "abc") as cluster, begun(cluster, home, start_daemon) as site:
        site.up("--nodes", "2")
        until(lambda: len(site.client.get("/v1/runners")["runners"]) == 2, 60, says=site.log)
        training = Training(home, site.jobs, site.pilots, tmp_path, site.log)
        training.goes_on(2)
        (first, dead), (_, left) = cluster.running()
        cluster.ask("scontrol", "update", f"nodename={dead}", "state=drain", "reason=test")  # as a host that is no more
        cluster.ask("scancel", "--signal=KILL", "--batch", str(first))
        training.goes_on(1)  # once Slurm's word has told the other that it is alone
        training.goes_on(2)
        assert {node for _, node in cluster.running()} == {left, next(node for node in cluster.nodes if node not in (dead, left))}
        assert site.state(dead) == "gone"
        training.ends()
