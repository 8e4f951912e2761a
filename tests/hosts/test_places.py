"""The place of a job: who can read its checkpoint, and what it waits for where nobody can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from afar import Daemon
from stoker.engine.errors import Conflict
from stoker.engine.fleet import registration
from stoker.engine.fleet.board import Board
from stoker.engine.fleet.places_told import name_place
from stoker.engine.fleet.registration import NodeChange
from stoker.engine.forecast.explain import explain
from stoker.engine.forecast.trial import with_job
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.leases import LeaseStop, stop
from stoker.engine.protocol import PlaceTold, Record, Records, Report, SharedPlace
from stoker.engine.scheduling.view import Snapshot, snapshot
from stoker.engine.spec.model import JobSpec, Share
from stoker.engine.spec.model import Stop as SpecStop
from stoker.policies import registry
from stoker.policies.contract import View
from stoker.runners.network.probe import own_place, shared_place

JOB = JobSpec(name="a", command=["true"])


def saved(daemon: Daemon, node: str, *, step: int = 134, size: int | None = 1000, spec: JobSpec = JOB) -> int:
    """A job that was drained from a node once it had saved there."""
    job = daemon.submit(spec)
    lease = daemon.grant(job, node)
    now = 1_800_000_000.0
    daemon.tell(node, lease, "running", now, run_dir=f"/{node}/jobs/{job}/run-{lease}")
    record = Record(seq=1, ts=now, step=step, checkpoint=step)
    report = Report(node=node, session=daemon.sessions[node], records=[Records(lease=lease, rank=0, records=[record])])
    daemon.store.write(registration.report, report)
    daemon.store.write(lambda tx, batch: [stop(tx, batch)], LeaseStop(lease, "drain", "test"))
    daemon.tell(node, lease, "exited", now, outcome="stopped", saved=size)
    return job


def look(daemon: Daemon) -> Snapshot:
    with daemon.store.read() as con:
        return snapshot(con, "default", 1_800_000_100.0)


def starts(view: View, policy: str = "fifo") -> dict[int, list[str]]:
    plan = registry.create(policy, {}).plan(view)
    return {job: [str(view.gpus.id[gpu]) for gpu in allocation.gpus] for job, allocation in plan.allocations.items()}


def why(daemon: Daemon, job: int) -> str:
    return str(explain(daemon.store, job)["summary"])


@pytest.fixture
def hosts(daemon: Daemon) -> Daemon:
    for node in ("h1", "h2"):
        daemon.join(node, place=f"place-{node}")
    return daemon


@pytest.mark.parametrize(
    "policy", ["fifo", "priority", "srtf", "las", "edf", "gandiva", "optimus", "unisched", "lucid", "tiresias", "genie"]
)
@pytest.mark.sampled(2)
def test_a_job_with_a_checkpoint_starts_where_that_can_be_read(hosts: Daemon, policy: str) -> None:
    first, second = saved(hosts, "h2"), hosts.submit(JOB)
    assert starts(look(hosts).view, policy) == {first: ["h2/cpu0"], second: ["h1/cpu0"]}


def test_it_waits_while_its_place_is_full_and_others_start_elsewhere(hosts: Daemon) -> None:
    bound, blocker, free = saved(hosts, "h1"), hosts.submit(JOB), hosts.submit(JOB)
    hosts.grant(blocker, "h1")
    seen = look(hosts)
    assert starts(seen.view, "priority") == {free: ["h2/cpu0"]}
    (waits,) = registry.create("priority", {}).plan(seen.view).waiting
    assert waits.jobs.tolist() == [bound] and waits.reason.text.startswith("needs 1 GPU on h1, the only place for it; too few are free")
    assert "its checkpoint at step 134 lies on h1" in why(hosts, bound)


def test_it_waits_for_a_place_that_is_gone_until_it_is_moved(hosts: Daemon) -> None:
    bound = saved(hosts, "h1")
    hosts.store.write(registration.change_node, NodeChange("h1", "gone", "ann", "dead"))
    seen = look(hosts)
    assert len(seen.view.jobs) == 0
    words = f"its checkpoint at step 134 lies on h1 (gone); 'stoker move {bound} --restart' gives it up and begins anew elsewhere"
    assert seen.ineligible == [(bound, "place", words)]
    (done,) = hosts.store.write(control, Control("move", (bound,), "ann"))
    assert done["message"] == "may start on any runner, anew where its checkpoint is not"
    assert starts(look(hosts).view) == {bound: ["h2/cpu0"]}
    (again,) = hosts.store.write(control, Control("move", (bound,), "ann"))
    assert again["message"] == "has no checkpoint to give up: it may start on any runner"
    hosts.grant(bound, "h2")
    assert hosts.store.write(control, Control("move", (bound,), "ann"))[0]["message"].startswith("is assigned: 'stoker hold ")


def test_why_a_drained_job_stops_is_told_in_words(hosts: Daemon) -> None:
    lease = hosts.grant(job := hosts.submit(JOB), "h1")
    hosts.store.write(lambda tx, batch: [stop(tx, batch)], LeaseStop(lease, "drain", "ann"))
    assert why(hosts, job).startswith("suspending: its runner is being drained, attempt 1")


def test_a_job_that_begins_with_weights_is_not_told_to_give_them_up(hosts: Daemon) -> None:
    source = saved(hosts, "h1", spec=JobSpec(name="source", recipe="digits-cnn", stop=SpecStop(iterations=9)))
    begins = hosts.submit(JobSpec(name="tagger", recipe="digits-cnn", kind="infer", weights=f"job:{source}"))
    hosts.store.write(registration.change_node, NodeChange("h1", "gone", "ann", "dead"))
    assert (begins, "place", "the weights with which it begins lie on h1 (gone), and go to no other host") in look(hosts).ineligible
    (told,) = hosts.store.write(control, Control("move", (begins,), "ann"))
    assert told["message"] == f"has no checkpoint to give up: it may start on runners that read the weights of job {source}"


@pytest.mark.parametrize("policy", ["fifo", "srtf", "optimus", "unisched"])
def test_a_job_that_shares_its_input_starts_beside_its_group_while_there_is_room(daemon: Daemon, policy: str) -> None:
    for node in ("h1", "h2"):
        daemon.join(node, slots=2, place=f"place-{node}")
    spec = JobSpec(name="a", recipe="jpeg-cnn", stop=SpecStop(iterations=9), share=Share(input="sweep"))
    first = daemon.submit(spec)
    daemon.grant(first, "h2")
    second, other = daemon.submit(spec), daemon.submit(msgspec.structs.replace(spec, share=Share(input="another")))
    assert starts(look(daemon).view, policy)[second] == ["h2/cpu1"]
    daemon.grant(other, "h2", slot=1)
    assert starts(look(daemon).view, policy)[second][0].startswith("h1/"), "it does not wait for it"


def test_a_job_that_is_not_submitted_yet_may_start_anywhere(hosts: Daemon) -> None:
    saved(hosts, "h1")
    view = with_job(look(hosts).view, JOB)
    assert view.suits(0).tolist() == [True, False] and view.suits(1).tolist() == [True, True]


def test_runners_of_one_home_are_one_place(daemon: Daemon) -> None:
    for node in ("n1", "n2", "n3"):
        daemon.join(node, place="home" if node != "n3" else "other")
    saved(daemon, "n1")
    view = look(daemon).view
    assert [need.nodes.tolist() for need in view.needs] == [[True, True, False]]


def test_a_job_that_begins_with_another_ones_weights_goes_where_these_are(hosts: Daemon) -> None:
    source = saved(hosts, "h2", spec=JobSpec(name="a", recipe="digits-cnn"))
    hosts.store.write(control, Control("hold", (source,), "ann"))
    follower = hosts.submit(JobSpec(name="b", recipe="digits-cnn", weights=f"job:{source}"))
    assert starts(look(hosts).view) == {follower: ["h2/cpu0"]}
    hosts.grant(follower, "h2")
    board = Board(hosts.store)
    board.refresh()
    (assignment,) = board._answers["h2"].leases
    assert assignment.begin_from == f"/h2/jobs/{source}/checkpoints"


def test_hosts_that_share_a_directory_are_one_place(hosts: Daemon, tmp_path: Path) -> None:
    name = hosts.store.write(name_place, str(tmp_path))
    assert hosts.store.write(name_place, str(tmp_path)) == name
    for node in ("h1", "h2"):
        told = PlaceTold(name=name, path=f"/mnt/stoker-{name}")
        hosts.store.write(registration.report, Report(node=node, session=hosts.sessions[node], place=told))
    bound = saved(hosts, "h1")
    assert hosts.store.rows("policy/places_of_jobs", [bound]) == [(bound, name)]
    assert look(hosts).view.jobs.need is None
    hosts.grant(bound, "h2")
    board = Board(hosts.store)
    board.refresh()
    assert board._answers["h2"].leases[0].checkpoints == f"/mnt/stoker-{name}/{bound}/checkpoints"


def test_a_job_that_saved_in_a_home_stays_there_once_hosts_share_a_directory(hosts: Daemon) -> None:
    bound = saved(hosts, "h1")
    name = hosts.store.write(name_place, "/mnt")
    for node in ("h1", "h2"):
        told = PlaceTold(name=name, path=f"/mnt/stoker-{name}")
        hosts.store.write(registration.report, Report(node=node, session=hosts.sessions[node], place=told))
    assert starts(look(hosts).view) == {bound: ["h1/cpu0"]}
    hosts.grant(bound, "h1")
    board = Board(hosts.store)
    board.refresh()
    assert board._answers["h1"].leases[0].checkpoints is None


def test_hosts_where_a_job_could_not_be_started_are_left_out_by_policies(hosts: Daemon) -> None:
    job = hosts.submit(JOB)
    hosts.tell("h1", hosts.grant(job, "h1"), "exited", 0.0, outcome="start-failed", message="workdir: none", host_at_fault=True)
    assert starts(look(hosts).view) == {job: ["h2/cpu0"]}
    assert "not tried again on h1 (workdir: none)" in why(hosts, job)
    hosts.store.write(registration.change_node, NodeChange("h2", "gone", "ann", "dead"))
    assert look(hosts).ineligible == [(job, "excluded", "could not be started on h1 (workdir: none)")]


def test_a_directory_that_is_not_shared_is_told_by_its_probe(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()

    def shared(path: Path, *, known: bool) -> SharedPlace:
        return SharedPlace(path=str(path), name="ab12", known=known)

    made = shared_place(shared(here, known=False))
    assert made == PlaceTold(name="ab12", path=f"{here}/stoker-ab12")
    assert shared_place(shared(here, known=True)) == made
    wrong: dict[str, Any] = {"is not the directory that the other runners share": there, "there is no directory": tmp_path / "none"}
    for words, path in wrong.items():
        with pytest.raises(Conflict, match=f"runners.checkpoints: .*{words}") as caught:
            shared_place(shared(path, known=True))
        assert "\n" not in str(caught.value)
    assert not any(there.iterdir())


def test_a_home_has_one_name_for_all_its_runners(tmp_path: Path) -> None:
    name = own_place(tmp_path)
    assert own_place(tmp_path) == name and len(name) == 16
    assert {path.name for path in tmp_path.iterdir()} == {"place"}
