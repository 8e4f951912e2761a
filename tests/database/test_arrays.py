"""Arrays as one thing: acted upon as a whole at a fixed cost in statements, named by their array, told how they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from e2e import Jobs, command, until
from stoker.engine.api.jobs.jobs import Named, resolve
from stoker.engine.cli import job_columns
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.json_rows import objects
from stoker.engine.spec.build import Context
from stoker.engine.spec.model import Dependency, JobSpec, Provenance, Submission
from stoker.engine.spec.reading.load import load_text
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction


def submit_array(store: Store, name: str, size: int) -> list[int]:
    tasks = [JobSpec(name=f"{name}[{i}]", recipe="toy", array_index=i, array_size=size) for i in range(size)]
    request = SubmitRequest(Submission(jobs=tasks, provenance=Provenance(argv=["x"], cwd="/")), "ann")
    return [row["id"] for row in store.write(submit, request)]


def listed(store: Store, limit: int = 10) -> list[dict[str, Any]]:
    """The rows of `stoker ps --all`, an array in one."""
    return [{**row, "collapsed": True} for row in objects(store, "api/jobs", True, 0.0, None, None, True, limit, None, None, None)]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which statements are executed inside transactions, by method."""
    seen: list[str] = []
    for method in ("execute", "objects", "insert", "update", "delete"):
        real = getattr(Transaction, method)

        def counted(*args: Any, method: str = method, real: Any = real) -> Any:
            seen.append(method)
            return real(*args)

        monkeypatch.setattr(Transaction, method, counted)
    return seen


@pytest.mark.parametrize("action", ["hold", "release", "priority", "cancel"])
def test_what_is_done_to_a_whole_array_takes_as_many_statements_as_for_one_of_its_tasks(
    store: Store, statements: list[str], action: str
) -> None:
    """One statement a task let `release --array` of 10 000 tasks hold the only writer for more than ten minutes."""
    jobs = submit_array(store, "sweep", 40)
    if action == "release":
        store.write(control, Control("hold", tuple(jobs), "ann"))
    statements.clear()
    (one,) = store.write(control, Control(action, (jobs[0],), "ann", 3))  # type: ignore[arg-type]
    alone = list(statements)
    statements.clear()
    rest = store.write(control, Control(action, tuple(jobs[1:]), "ann", 3))  # type: ignore[arg-type]
    assert statements == alone
    assert {(row["state"], row["message"]) for row in rest} == {(one["state"], one["message"])}
    assert [row["id"] for row in rest] == jobs[1:]


def test_the_name_of_an_array_is_found_however_many_tasks_it_has(store: Store) -> None:
    first = submit_array(store, "sweep", 150)[0]
    assert resolve(store, "sweep") == resolve(store, "swe") == Named(first, True)
    longer = submit_array(store, "sweep-long", 3)[0]
    assert (resolve(store, "sweep"), resolve(store, "sweep-")) == (Named(first, True), Named(longer, True))
    with pytest.raises(UsageError, match=r"beginning of several names: sweep-long\[0\] .*sweep\[0\]"):
        resolve(store, "swe")
    assert resolve(store, "sweep[14") == Named(first + 14, False)
    assert resolve(store, str(first)) == resolve(store, "sweep[0]") == Named(first, False)
    again = submit_array(store, "sweep", 2)[0]
    assert resolve(store, "sweep") == Named(again, True)
    alone = JobSpec(name="sweep", recipe="toy")
    request = SubmitRequest(Submission(jobs=[alone], provenance=Provenance(argv=["x"], cwd="/")), "ann")
    (row,) = store.write(submit, request)
    assert resolve(store, "sweep") == Named(row["id"], False)  # the newest of a name, an array or not


def waits_for(store: Store, after: str, name: str = "later", mode: Literal["ok", "any"] = "ok") -> list[int]:
    """The jobs that a new one which names ``after`` waits for."""
    spec = JobSpec(name=name, recipe="toy", after=(Dependency(after, mode),))
    (row,) = store.write(submit, SubmitRequest(Submission(jobs=[spec], provenance=Provenance(argv=["x"], cwd="/")), "ann"))
    with store.read() as con:
        found = con.execute("SELECT needs FROM dependencies WHERE job_id = $1 ORDER BY needs", [row["id"]]).fetchall()
    return [needs for (needs,) in found]


def test_a_job_waits_for_all_tasks_of_an_array_that_was_submitted_earlier(store: Store) -> None:
    old = submit_array(store, "sweep", 2)
    submit_array(store, "sweep-long", 2)
    assert waits_for(store, "sweep") == old
    new = submit_array(store, "sweep", 3)
    assert waits_for(store, "sweep") == new
    assert waits_for(store, "sweep[1]") == [new[1]]
    store.write(control, Control("cancel", (new[1],), "ann"))
    assert waits_for(store, "sweep", mode="any") == new
    with pytest.raises(UsageError, match=f"after: job {new[1]}, a task of sweep, has ended as cancelled, so later could never start"):
        waits_for(store, "sweep")


def test_what_is_not_found_is_never_said_to_be_the_job_that_waits(store: Store) -> None:
    with pytest.raises(NotFound) as refused:
        waits_for(store, "train", "trai")
    assert str(refused.value) == "after: trai waits for 'train', and there is no such job"


@pytest.mark.slow
def test_what_is_done_to_the_name_of_an_array_is_done_to_all_its_tasks(home, start_daemon) -> None:
    start_daemon()
    assert command(home, "submit", "--name", "w", "--array", "lr=1,2,3", "--hold", "--", "true").code == 0
    for line in (["priority", "5", "w"], ["hold", "w"], ["release", "w"], ["cancel", "w"]):
        assert [row["name"] for row in json.loads(command(home, *line, "--json").out)] == ["w[0]", "w[1]", "w[2]"]
    assert [row["name"] for row in json.loads(command(home, "cancel", "w[1]", "--json").out)] == ["w[1]"]
    shown = command(home, "show", "w")
    assert "'w' is an array of 3 tasks: this is w[0], job 1" in shown.err
    report = command(home, "report", "w", "--out", str(home.path / "plots"), "--json")
    assert json.loads(report.out)["jobs"]["total"] == 3


def test_an_array_of_which_tasks_were_cancelled_is_not_called_completed(store: Store) -> None:
    jobs = submit_array(store, "sweep", 3)
    store.write(control, Control("cancel", (jobs[0],), "ann"))
    (row,) = listed(store)
    assert (job_columns.state(row), job_columns.progress(row), row["array_finished_at"]) == ("pending", "1/3 ended, 1 cancelled", None)
    store.write(control, Control("cancel", tuple(jobs[1:]), "ann"))
    (row,) = listed(store)
    assert (job_columns.state(row), job_columns.progress(row)) == ("cancelled", "3/3 ended, 3 cancelled")
    assert row["array_finished_at"] > row["finished_at"]  # the row is its first task's, which ended before the others


def test_an_array_has_the_number_of_its_first_task_also_where_only_later_ones_are_listed(store: Store) -> None:
    jobs = submit_array(store, "sweep", 3)
    store.write(control, Control("cancel", (jobs[0],), "ann"))
    (row,) = objects(store, "api/jobs", False, 1e12, None, None, True, 10, None, None, None)
    number = next(column for column in job_columns.listed(0.0) if column.header == "ID")
    assert row["id"] == jobs[1] and number.text({**row, "collapsed": True}) == str(jobs[0]), "as the one that ended before is not"
    assert number.text(row) == str(jobs[1])


def test_an_array_tells_how_many_of_its_tasks_are_held_and_what_has_ended_is_held_no_more(store: Store) -> None:
    jobs = submit_array(store, "sweep", 3)
    store.write(control, Control("hold", tuple(jobs), "ann"))
    (row,) = listed(store)
    assert (job_columns.state(row), job_columns.progress(row)) == ("pending", "0/3 ended, 3 held")
    reason = next(column for column in job_columns.listed(0.0) if column.header == "REASON")
    assert reason.text(row) == f"held: 'stoker release {jobs[0]} --array' lets them go", "not its first task alone"
    store.write(control, Control("cancel", tuple(jobs[:1]), "ann"))
    (row,) = listed(store)
    assert (row["state"], row["held"], job_columns.progress(row)) == ("cancelled", False, "1/3 ended, 1 cancelled, 2 held")
    assert [(row["state"], row["held"]) for row in objects(store, "api/array_groups", jobs[0])] == [
        ("submitted", True),
        ("cancelled", False),
    ]


def test_an_array_is_told_by_the_states_and_reasons_of_its_tasks_and_the_gpus_that_they_hold(store: Store) -> None:
    jobs = submit_array(store, "sweep", 6)
    store.write(control, Control("hold", tuple(jobs[3:]), "ann"))
    store.write(control, Control("cancel", (jobs[4],), "ann"))
    groups = [(row["state"], row["tasks"], row["gpus"], row["indices"]) for row in objects(store, "api/array_groups", jobs[2])]
    assert groups == [("pending", 3, 0, [0, 1, 2]), ("submitted", 2, 0, [3, 5]), ("cancelled", 1, 0, [4])]
    assert [row["array_index"] for row in objects(store, "api/array_rows", jobs[2], 4)] == [0, 1, 2, 3]
    (row,) = listed(store)
    assert job_columns.gpus(row) == "1", "what each asks for, as none holds any"
    assert job_columns.gpus({**row, "array_gpus": 5, "gpus": 1}) == "5"


def test_indices_are_written_in_short() -> None:
    assert job_columns.spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert job_columns.spans(range(0, 100, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, …"


def test_an_array_tells_how_many_of_its_tasks_run_on_silent_hosts(store: Store) -> None:
    submit_array(store, "sweep", 3)
    (row,) = listed(store)
    reason = next(column for column in job_columns.listed(0.0) if column.header == "REASON")
    assert "silent" not in reason.text(row)
    assert reason.text({**row, "state": "running", "array_silent": 2}) == "2 on silent runners"


def models(text: str) -> list[str]:
    return [spec.model for spec in load_text(text, "sweep.yaml", Context(now=0.0, cwd=Path("/"), files=False))]


def test_the_tasks_of_an_array_share_what_they_teach_of_their_length() -> None:
    grid = "\narray: {params: {lr: [0.1, 0.01], n: [1, 2]}}"
    for line in ("python train.py --lr {lr} --n {n}", "[python, train.py, --lr, '{lr}']", "python train.py"):
        assert len(set(models(f"name: sweep\ncommand: {line}{grid}"))) == 1
    assert models(f"name: sweep\ncommand: python a.py --lr {{lr}}{grid}") != models(f"name: sweep\ncommand: python b.py --lr {{lr}}{grid}")
    assert models(f"name: sweep\ncommand: python a.py{grid}")[0] == models("name: sweep\ncommand: python a.py")[0]
    assert len(set(models(f"name: sweep\nentrypoint: 'package.module:train'{grid}"))) == 1
    assert len(set(models("name: sweep\nrecipe: toy\narray: {params: {lr: [0.1, 0.01], model: [small, large]}}"))) == 2


def test_what_a_task_teaches_tells_srtf_of_the_rest(home, start_daemon, start_runner) -> None:
    """The tasks are short, which the first one shows; so they go before a job that is said to take ten minutes."""
    jobs = Jobs(start_daemon().client())
    assert command(home, "policy", "set", "srtf").code == 0
    (home.path / "sweep.yaml").write_text(
        f"name: sweep\ncommand: until [ -e {home.path}/go ]; do sleep 0.05; done; echo {{n}}\narray: {{params: {{n: [1, 2, 3]}}}}\n"
    )
    start_runner(slots=1)
    assert command(home, "submit", str(home.path / "sweep.yaml")).code == 0
    until(lambda: jobs.sql("SELECT 1 FROM jobs WHERE state = 'running'"))
    said = jobs.submit("said", "true", estimate=600)
    (home.path / "go").touch()
    assert jobs.ended(said)["state"] == "completed"
    assert jobs.sql("SELECT count(DISTINCT model) FROM jobs WHERE array_index IS NOT NULL") == [(1,)]
    order = jobs.sql("SELECT name FROM jobs ORDER BY first_start_at")
    assert [name for (name,) in order] == ["sweep[0]", "sweep[1]", "sweep[2]", "said"]
