"""When the daemon takes the end of a batch job for the death of a runner, and when it does not. Slurm's commands are scripts here."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from afar import Clock, Daemon
from stoker.engine.errors import Conflict
from stoker.engine.fleet.silence import Fleet
from stoker.engine.hosts import slurm_runners
from stoker.engine.hosts.ended_pilots import EndedPilots
from stoker.engine.spec.model import JobSpec
from stores import reopened


class Cluster:
    """What Slurm's commands print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for tool in ("squeue", "scontrol", "sinfo"):
            (folder / tool).write_text(
                f"#!/bin/sh\necho {tool} >> {folder}/asked\ncat {folder}/{tool}.out || {{ echo '{tool}: error: no' >&2; exit 1; }}\n"
            )
            (folder / tool).chmod(0o755)
        self.queue({})
        self.say("scontrol", "ClusterName             = c\nProctrackType           = proctrack/cgroup\n")
        self.say("sinfo", "h2 idle\n")

    def say(self, tool: str, text: str) -> None:
        (self.folder / f"{tool}.out").write_text(text)

    def queue(self, jobs: dict[int, Any]) -> None:
        rows = [{"cluster": "c", "job_id": job, "job_state": state, "name": "x", "nodes": "h2"} for job, state in jobs.items()]
        self.say("squeue", json.dumps({"jobs": rows}))

    def asked(self) -> int:
        path = self.folder / "asked"
        return path.read_text().split().count("squeue") if path.exists() else 0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (folder := tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Cluster(folder)


@pytest.fixture
def daemon(template: Path, tmp_path: Path) -> Iterator[Daemon]:
    store = reopened(Path(shutil.copyfile(template, tmp_path / "stoker.duckdb")), clock=Clock())
    yield Daemon(store)
    store.close()


@pytest.fixture
def pilots(daemon: Daemon) -> EndedPilots:
    return EndedPilots(daemon.store, Fleet(daemon.store))


def state(daemon: Daemon) -> str:
    return str(daemon.store.objects("api/runners")[0]["state"])


def told(daemon: Daemon) -> list[str]:
    """What was put on record of pilots whose end proves nothing."""
    with daemon.store.read() as con:
        return [row[0] for row in con.execute("SELECT reason FROM events WHERE kind = 'pilots.unproved' ORDER BY seq").fetchall()]


def serve(daemon: Daemon, pilots: EndedPilots, cluster: Cluster, queued: Any = "RUNNING") -> int:
    """A job on a runner whose pilot is in the queue, and has been seen there."""
    daemon.join("h2", pilot="slurm/c/7/h2")
    job = daemon.submit(JobSpec(name="a", command=["true"]))
    daemon.grant(job, "h2")
    cluster.queue({7: queued, 8: "COMPLETED"})
    pilots.look()
    assert state(daemon) == "up"
    return job


@pytest.mark.parametrize(
    "ended",
    [{7: "CANCELLED"}, {7: ["NODE_FAIL"]}, {}],
    ids=["cancelled", "newer", "forgotten"],
)
def test_the_end_of_its_pilot_ends_a_runner_and_its_job_is_queued_again(
    daemon: Daemon, pilots: EndedPilots, cluster: Cluster, ended: dict[int, Any]
) -> None:
    job = serve(daemon, pilots, cluster)
    cluster.queue(ended)
    pilots.look()
    assert state(daemon) == "gone" and daemon.job(job)["state"] == "pending" and not told(daemon)
    asked = cluster.asked()
    pilots.look()
    assert cluster.asked() == asked  # no pilot serves


def test_a_pilot_that_may_have_processes_has_not_ended(daemon: Daemon, pilots: EndedPilots, cluster: Cluster) -> None:
    serve(daemon, pilots, cluster)
    for queued in ("RUNNING", "COMPLETING", ["CANCELLED", "COMPLETING"], "SUSPENDED", "A_STATE_TO_COME", []):
        cluster.queue({7: queued})
        pilots.look()
        assert state(daemon) == "up" and not told(daemon), queued


def test_what_proves_nothing_is_said_once(daemon: Daemon, pilots: EndedPilots, cluster: Cluster) -> None:
    serve(daemon, pilots, cluster)
    cluster.queue({7: "CANCELLED"})
    cluster.say("sinfo", "h2 idle*\n")
    for _ in range(2):
        pilots.look()
    (words,) = told(daemon)
    assert "h2 does not answer Slurm" in words and "'stoker runner forget h2'" in words
    cluster.say("sinfo", "h2 down\n")
    pilots.look()
    cluster.say("scontrol", "ProctrackType = proctrack/linuxproc\n")
    pilots.look()
    assert len(told(daemon)) == 2 and "proctrack/linuxproc" in told(daemon)[-1]
    (cluster.folder / "squeue.out").unlink()
    pilots.look()
    cluster.say("squeue", "<html>")
    pilots.look()
    assert len(told(daemon)) == 4 and state(daemon) == "up"
    cluster.queue({7: "CANCELLED"})
    cluster.say("scontrol", "ProctrackType = proctrack/cgroup\n")
    cluster.say("sinfo", "h2 idle\n")
    pilots.look()
    assert state(daemon) == "gone"


def test_a_pilot_that_was_never_seen_is_not_missed(daemon: Daemon, pilots: EndedPilots, cluster: Cluster) -> None:
    """The queue of another cluster, or one that hides the jobs of others."""
    daemon.join("h2", pilot="slurm/c/7/h2")
    pilots.look()
    assert state(daemon) == "up" and "not in the queue that this host sees" in told(daemon)[0]


def test_a_runner_that_came_back_in_another_pilot_is_left_alone(daemon: Daemon, pilots: EndedPilots, cluster: Cluster) -> None:
    serve(daemon, pilots, cluster)
    cluster.queue({7: "CANCELLED"})
    rows = daemon.store.rows("api/pilots", "slurm")
    daemon.join("h2", pilot="slurm/c/9/h2")
    pilots._look(rows)  # found out before
    assert state(daemon) == "up" and not told(daemon)
    daemon.join("h2")  # started by hand
    pilots.look()
    assert state(daemon) == "up" and not daemon.store.rows("api/pilots", "slurm")


def test_what_is_no_pilot_is_none(daemon: Daemon) -> None:
    for given in ("slurm", "slurm/c/7", "slurm//7/h2", "pbs/c/7/h2", "slurm/c/7/h2/x"):
        daemon.join("h2", pilot=given)
        assert not daemon.store.rows("api/pilots", "slurm"), given


def test_slurm_that_is_not_there_is_said_in_one_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cluster.folder))
    with pytest.raises(Conflict, match="there is no sbatch on this host"):
        slurm_runners.require()
