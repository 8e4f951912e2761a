"""Arrays as one thing: acted upon as a whole at a fixed cost in statements, named by their array, told how they ended."""

from __future__ import annotations

from typing import Any

import pytest
from stoker.engine.api.jobs import resolve
from stoker.engine.cli import job_columns
from stoker.engine.errors import UsageError
from stoker.engine.rows import objects
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction
from stoker.engine.workflow.control import Control, control
from stoker.engine.workflow.submit import SubmitRequest, submit


def submit_array(store: Store, name: str, size: int) -> list[int]:
    tasks = [JobSpec(name=f"{name}[{i}]", recipe="toy", array_index=i, array_size=size) for i in range(size)]
    request = SubmitRequest(Submission(jobs=tasks, provenance=Provenance(argv=["x"], cwd="/")), "ann")
    return [row["id"] for row in store.write(submit, request)]


def listed(store: Store, limit: int = 10) -> list[dict[str, Any]]:
    """The rows of `stoker ps --all`, an array in one."""
    return [{**row, "collapsed": True} for row in objects(store, "api/jobs", True, 0.0, None, None, True, limit)]


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


def test_the_name_of_an_array_stands_for_its_first_task_however_many_it_has(store: Store) -> None:
    first = submit_array(store, "sweep", 150)[0]
    assert resolve(store, "sweep") == resolve(store, "swe") == first
    longer = submit_array(store, "sweep-long", 3)[0]
    assert (resolve(store, "sweep"), resolve(store, "sweep-")) == (first, longer)
    with pytest.raises(UsageError, match=r"beginning of several names: sweep-long\[0\] .*sweep\[0\]"):
        resolve(store, "swe")
    assert resolve(store, "sweep[14") == first + 14
    again = submit_array(store, "sweep", 2)[0]
    assert resolve(store, "sweep") == again


def test_an_array_of_which_tasks_were_cancelled_is_not_called_completed(store: Store) -> None:
    jobs = submit_array(store, "sweep", 3)
    store.write(control, Control("cancel", (jobs[0],), "ann"))
    (row,) = listed(store)
    assert (job_columns.state(row), job_columns.progress(row), row["array_finished_at"]) == ("pending", "1/3 ended, 1 cancelled", None)
    store.write(control, Control("cancel", tuple(jobs[1:]), "ann"))
    (row,) = listed(store)
    assert (job_columns.state(row), job_columns.progress(row)) == ("cancelled", "3/3 ended, 3 cancelled")
    assert row["array_finished_at"] > row["finished_at"]  # the row is its first task's, which ended before the others


def test_an_array_tells_how_many_of_its_tasks_run_on_silent_hosts(store: Store) -> None:
    submit_array(store, "sweep", 3)
    (row,) = listed(store)
    reason = next(column for column in job_columns.listed(0.0) if column.header == "REASON")
    assert "silent" not in reason.text(row)
    assert reason.text({**row, "state": "running", "array_silent": 2}) == "2 on silent runners"
