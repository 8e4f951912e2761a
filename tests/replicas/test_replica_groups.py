"""A group of replicas as the daemon has it: an array of its own, its word on who lives, its end; and what is refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from afar import Clock, Daemon
from scripted import run
from spec_as_yaml import dump
from stoker.engine.api.jobs.retries import Retry, _again
from stoker.engine.config import Config, PolicyDefault
from stoker.engine.errors import Conflict, UsageError
from stoker.engine.fleet import registration
from stoker.engine.fleet.board import Board
from stoker.engine.forecast.explain import explain
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import Assignment, Record, Records, Report
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.scheduling.view import snapshot
from stoker.engine.spec.build import Context
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.spec.reading.load import load_text
from stoker.engine.tasks import Tasks
from stoker.policies import registry
from stoker.runners.replicas.replica_trainer import ReplicaTrainer
from stores import reopened

LM = "name: lm\nrecipe: toy\nreplicas: {min: 1, max: 3, global_batch: 12}\n"


def specs(text: str = LM) -> list[JobSpec]:
    return load_text(text, "f.yaml", Context(now=0.0, cwd=Path("/"), files=False))


@pytest.fixture
def daemon(template: Path, tmp_path: Path) -> Iterator[Daemon]:
    store = reopened(Path(shutil.copyfile(template, tmp_path / "stoker.duckdb")), clock=Clock())
    found = Daemon(store)
    for node in ("h1", "h2", "h3"):
        found.join(node)
    yield found
    store.close()


def submitted(daemon: Daemon, text: str = LM) -> list[int]:
    request = SubmitRequest(Submission(jobs=specs(text), provenance=Provenance(argv=["x"], cwd="/")), "ann")
    return [row["id"] for row in daemon.store.write(submit, request)]


def told(board: Board, node: str) -> Assignment:
    board.refresh()
    (assignment,) = board._answers[node].leases
    return assignment


def test_replicas_are_an_array_of_single_jobs_and_are_written_as_one() -> None:
    found = specs()
    assert [spec.name for spec in found] == ["lm[0]", "lm[1]", "lm[2]"]
    assert all((spec.gpus_max, spec.array_size) == (1, 3) for spec in found)
    assert specs(dump(found)) == found


def test_the_daemons_word_names_the_living_leases_in_the_order_of_their_tasks(daemon: Daemon) -> None:
    first, second, _ = submitted(daemon)
    board = Board(daemon.store)
    later = daemon.grant(second, "h2")  # the older lease is that of the second task
    alone = told(board, "h2")
    assert alone.replicas is not None and alone.hosts == 1 and alone.rendezvous.startswith("10.0.0.2:")
    assert (alone.replicas.group, alone.replicas.founder, alone.replicas.done) == (first, later, False)
    lease = daemon.grant(first, "h1")
    daemon.tell("h1", lease, "starting", 0.0, port=4711)
    word = told(board, "h2").replicas
    assert word is not None and word.epoch > alone.replicas.epoch
    assert [(one.lease, one.index, one.address) for one in word.members] == [(lease, 0, "10.0.0.1:4711"), (later, 1, "")]
    assert (word.founder, word.stepped, told(board, "h1").hosts) == (later, [], 2)
    daemon.tell("h1", lease, "running", 0.0)
    record = Record(seq=1, ts=0.0, step=1, values={"members": 1.0, "samples": 12.0})
    report = Report(node="h1", session=daemon.sessions["h1"], records=[Records(lease=lease, rank=0, records=[record])])
    daemon.store.write(registration.report, report)
    daemon.tell("h2", later, "exited", 0.0, outcome="failed", exit_code=-9)  # killed: it comes back, at no cost
    assert (daemon.job(second)["state"], daemon.job(second)["failures"]) == ("pending", 0)
    last = told(board, "h1").replicas
    assert last is not None and last.epoch > word.epoch and last.founder == lease and last.stepped == [lease]
    assert "1 of 1 to 3 train; 12 samples committed in steps of 12" in explain(daemon.store, first)["summary"]


def test_a_view_names_the_groups_that_train_while_some_of_their_tasks_wait(daemon: Daemon) -> None:
    first, second, third = submitted(daemon)
    array = submitted(daemon, "name: a\nrecipe: toy\narray: {params: {lr: [1, 2]}}")

    def groups() -> Mapping[int, int]:
        with daemon.store.read() as con:
            return snapshot(con, "default", 1e9).replicas

    assert groups() == {}
    daemon.grant(second, "h2")
    daemon.grant(array[0], "h3")
    assert groups() == dict.fromkeys((first, second, third), first)


@pytest.mark.parametrize("policy", ["gandiva", "las", "tiresias"])
def test_a_later_job_gets_the_gpu_of_a_replica_though_another_of_the_group_waits_before_it(daemon: Daemon, policy: str) -> None:
    group = submitted(daemon)
    lease = daemon.grant(group[0], "h1")
    daemon.tell("h1", lease, "running", Clock.now)
    daemon.store.write(lambda tx, _: [tx.update("nodes", ["id"], [{"id": node, "state": "draining"} for node in ("h2", "h3")])], None)
    clock = Clock()
    clock.now += 50_000.0
    scheduling = Scheduling(daemon.store, Tasks(lambda *_: None), Config(policy=PolicyDefault(policy)), clock)
    scheduling.reload()
    scheduling.tick("default")
    said = "SELECT j.state, w.reason FROM jobs j LEFT JOIN waiting w ON w.job_id = j.id ORDER BY j.id"
    reason = f"job {group[0]} is a replica of the same group and goes on"
    with daemon.store.read() as con:
        assert con.execute(said).fetchall() == [("running", None), ("pending", reason), ("pending", reason)]
    submitted(daemon, "name: other\nrecipe: toy")
    scheduling.tick("default")
    with daemon.store.read() as con:
        states = con.execute(said).fetchall()
    assert states[0] == ("suspending", None) and states[3] == ("pending", f"waits for job {group[0]} to stop")


def test_tasks_that_never_ran_end_with_the_group(daemon: Daemon) -> None:
    first, second, third = submitted(daemon)
    leases = [daemon.grant(first, "h1"), daemon.grant(second, "h2")]
    for node, lease in zip(("h1", "h2"), leases, strict=True):
        daemon.tell(node, lease, "running", 0.0)
    daemon.tell("h1", leases[0], "exited", 0.0, outcome="completed", exit_code=0)
    assert [daemon.job(job)["state"] for job in (first, second, third)] == ["completed", "running", "completed"]
    assert daemon.job(third)["state_reason"] == "its group of replicas has finished all steps"
    word = told(Board(daemon.store), "h2").replicas
    assert word is not None and word.done
    daemon.tell("h2", leases[1], "exited", 0.0, outcome="lost")  # nothing is left for it to come back for
    assert daemon.job(second)["state"] == "completed"


def test_more_replicas_than_the_pool_has_gpus_are_refused(daemon: Daemon) -> None:
    with pytest.raises(UsageError) as caught:
        submitted(daemon, LM.replace("max: 3", "max: 4"))
    assert "replicas.max: lm asks for up to 4 replicas, pool 'default' has 3 GPUs: lower it, or add a runner" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("replicas: {min: 1, max: 2}", "f.yaml:3: replicas: global_batch is missing"),
        ("replicas: {min: 3, max: 2, global_batch: 6}", "f.yaml:3: replicas.min: 3 is larger than max, 2; lower one or raise the other"),
        ("replicas: {min: 3, max: 4, global_batch: 65}",
         "f.yaml:3: replicas.global_batch: no number of members from 3 to 4 divides 65; give 64 or 68"),
        ("replicas: {min: 1, max: 4, global_batch: 3}",
         "f.yaml:3: replicas.max: 4 replicas cannot share a global batch of 3 samples; raise global_batch or lower max"),
        ("gpus: 2\nreplicas: {min: 1, max: 2, global_batch: 4}",
         "f.yaml:4: replicas: each replica has one GPU; write gpus: 1, and the number of replicas as min and max"),
        ("replicas: {min: 1, max: 2, global_batch: 4}\narray: {params: {lr: [1, 2]}}",
         "array: cannot go with replicas, which are an array by themselves; submit a job for each combination"),
        ("replicas: {min: 1, max: 2, global_batch: 4, quorum_timeout: 0.1s}",
         "f.yaml:3: replicas.quorum_timeout: must be between 1s and 10m, not 0.1s"),
    ],
)  # fmt: skip
def test_what_cannot_be_replicated_is_refused_in_a_line(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        specs(f"name: lm\nrecipe: toy\n{text}")
    assert str(caught.value).endswith(problem)
    assert "\n" not in str(caught.value)


def test_a_replica_without_torchft_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from stoker.runners.replicas.replica_group import JoinedGroup, Settings

    monkeypatch.setitem(sys.modules, "torchft", None)
    monkeypatch.delitem(sys.modules, "torchft.coordination", raising=False)
    settings = Settings(group=1, lease=1, index=0, host="127.0.0.1", port=0, batch=4, least=1)
    with pytest.raises(
        UsageError, match=r"replicas: the package torchft is not installed here; install it with: pip install '.\[replicas\]'"
    ):
        JoinedGroup(settings, lambda: None, lambda: False, print)


def saved(daemon: Daemon, node: str, lease: int, step: int = 5, **values: float) -> None:
    daemon.tell(node, lease, "running", 0.0, run_dir=f"/{node}/jobs/{lease}/run-{lease}")
    record = Record(seq=1, ts=0.0, step=step, checkpoint=step, values=values)
    report = Report(node=node, session=daemon.sessions[node], records=[Records(lease=lease, rank=0, records=[record])])
    daemon.store.write(registration.report, report)


def waits(daemon: Daemon, job: int) -> list[str]:
    """Codes of why the policy does not see a job."""
    with daemon.store.read() as con:
        seen = snapshot(con, "default", Clock.now)
    return [code for number, code, _ in seen.ineligible if number == job]


def test_the_checkpoint_of_one_that_copies_is_not_asked_for(daemon: Daemon) -> None:
    for node in ("h1", "h2", "h3"):
        daemon.join(node, place=f"place-{node}", fetch_at_most=1 << 20)
    first, second, _ = submitted(daemon)
    leases = [daemon.grant(first, "h1"), daemon.grant(second, "h2")]
    saved(daemon, "h1", leases[0], members=2.0)
    saved(daemon, "h2", leases[1], members=2.0)
    daemon.tell("h2", leases[1], "exited", 0.0, outcome="lost", saved=1000)
    daemon.grant(second, "h3")
    board = Board(daemon.store)
    assert told(board, "h3").fetch is None and board._answers["h2"].send == []
    daemon.tell("h1", leases[0], "exited", 0.0, outcome="lost", saved=1000)  # nobody trains any more: it begins with its own
    assert told(board, "h3").fetch is not None
    assert [one.job for one in board._answers["h2"].send] == [second]


def test_from_one_that_is_behind_a_checkpoint_nobody_copies(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut off, and the other one has gone on without it."""
    for node in ("h1", "h2", "h3"):
        daemon.join(node, place=f"place-{node}", fetch_at_most=1 << 20)
    first, second, third = submitted(daemon)
    leases = [daemon.grant(first, "h1"), daemon.grant(second, "h2")]
    saved(daemon, "h1", leases[0], members=2.0)
    saved(daemon, "h2", leases[1], step=90, members=1.0)
    board = Board(daemon.store)
    word = told(board, "h1").replicas
    assert word is not None and word.first == leases[0] == word.founder
    daemon.tell("h2", leases[1], "exited", 0.0, outcome="lost", saved=1000)
    assert [waits(daemon, job) for job in (second, third)] == [[], ["group"]]
    assert "lies on" in explain(daemon.store, second)["summary"]
    daemon.grant(second, "h3")
    assert told(board, "h3").fetch is not None
    assert waits(daemon, third) == []
    word = told(board, "h1").replicas
    assert word is not None and (word.saved, word.saved_steps, word.first) == ([0, 1], [5, 90], leases[0])
    daemon.tell("h1", leases[0], "exited", 0.0, outcome="lost", saved=1000)
    again = daemon.grant(first, "h1")
    word = told(board, "h1").replicas
    assert word is not None and word.founder != word.first == leases[0] < again  # one that has ended may have trained with it
    daemon.tell("h3", again - 1, "exited", 0.0, outcome="lost", saved=1000)
    daemon.tell("h1", again, "exited", 0.0, outcome="lost", saved=1000)
    monkeypatch.setattr(Clock, "now", Clock.now + 1.0)
    anew = daemon.grant(second, "h3")
    word = told(board, "h3").replicas
    assert word is not None and word.founder == word.first == anew


def test_a_replica_may_come_back_on_any_host_while_another_one_has_the_state(daemon: Daemon) -> None:
    first, second, _ = submitted(daemon)
    leases = [daemon.grant(first, "h1"), daemon.grant(second, "h2")]
    saved(daemon, "h1", leases[0], members=2.0)
    saved(daemon, "h2", leases[1], members=2.0)
    daemon.store.write(registration.change_node, registration.NodeChange("h2", "suspect", "daemon", "silent"))
    assert (
        "1 of 1 to 3 train, 1 on h2 is not heard and not begun elsewhere, unless 'stoker runner forget h2'"
        in explain(daemon.store, first)["summary"]
    )
    daemon.store.write(registration.change_node, registration.NodeChange("h2", "gone", "ann", "its disk went with it"))
    assert daemon.job(second)["state"] == "pending" and waits(daemon, second) == []
    daemon.grant(second, "h3")
    board = Board(daemon.store)
    assert told(board, "h3").fetch is None
    daemon.tell("h1", leases[0], "exited", 0.0, outcome="lost", saved=1000)  # now their checkpoints are all that is left
    word = told(board, "h3").replicas
    assert told(board, "h3").fetch is not None and word is not None and word.saved == [0, 1]


def test_of_a_group_that_goes_on_from_a_checkpoint_the_task_that_has_it_goes_first(daemon: Daemon) -> None:
    first, second, third = submitted(daemon)
    lease = daemon.grant(second, "h2")
    saved(daemon, "h2", lease, members=1.0)
    assert waits(daemon, first) == []  # it would copy the state
    daemon.tell("h2", lease, "exited", 0.0, outcome="lost")
    assert [waits(daemon, job) for job in (first, second, third)] == [["group"], [], ["group"]]
    with daemon.store.read() as con:
        seen = snapshot(con, "default", Clock.now)
    assert (first, "group", "lm[1] goes first, which has its group's checkpoint at step 5") in seen.ineligible
    assert seen.view.jobs.id.tolist() == [second]
    daemon.store.write(control, Control("hold", (second,), "ann"))
    assert waits(daemon, first) == waits(daemon, third) == ["group"]  # they could but wait for it
    daemon.store.write(control, Control("release", (second,), "ann"))
    daemon.grant(second, "h1")
    assert [waits(daemon, job) for job in (first, third)] == [[], []]


def test_a_group_is_retried_whole_and_not_beside_what_is_left_of_it(daemon: Daemon) -> None:
    tasks = submitted(daemon)

    def retried(job: int) -> list[str]:
        call: Any = SimpleNamespace(daemon=daemon, only=None)
        return [spec.name for spec in _again(call, job, Retry(), array=False)[0].jobs]

    daemon.store.write(control, Control("cancel", tuple(tasks[:1]), "ann"))
    with pytest.raises(Conflict, match=r"the other replicas of lm go on without it; 'stoker cancel lm' ends them"):
        retried(tasks[0])
    daemon.store.write(control, Control("cancel", tuple(tasks), "ann"))
    assert retried(tasks[1]) == ["lm[0]", "lm[1]", "lm[2]"]
    other = submitted(daemon)
    lease = daemon.grant(other[0], "h1")
    daemon.store.write(control, Control("cancel", tuple(other[1:]), "ann"))
    daemon.tell("h1", lease, "running", 0.0)
    daemon.tell("h1", lease, "exited", 0.0, outcome="completed", exit_code=0)
    with pytest.raises(Conflict, match="the replicas lm have finished all steps, so there is nothing to retry"):
        retried(other[1])


def test_the_page_names_the_policies_that_take_gpus_from_a_group_when_others_come() -> None:
    page = (Path(__file__).parents[2] / "docs/elastic.md").read_text()
    named = re.findall(r"`(\w+)`", page[page.index("short jobs of others come") : page.index("take GPUs from it")])
    rows = [(0.0, 36_000.0, 1)] * 3 + [(3600.0 + 60 * place, 600.0, 1) for place in range(4)]
    shrinks = []
    for name in sorted(registry.POLICIES):
        fates = run(rows, name, "1x3").fates
        assert (fates.started[:3] == 0.0).all(), name  # every policy lets it grow into what is free
        shrinks += [name] * bool(fates.preemptions[:3].any())
    assert named == shrinks


def test_who_waits_for_others_is_not_hanging() -> None:
    reports: list[Any] = []
    for took_part in (True, False):
        waiting: Any = SimpleNamespace(group=SimpleNamespace(me=SimpleNamespace(took_part=took_part)), _report=reports.append)
        ReplicaTrainer._waits(waiting, "2 of at least 3 members are here")
    assert reports == [{"members": 0.0}, None]
