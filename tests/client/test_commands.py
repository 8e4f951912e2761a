"""The commands that people reach for, on a real daemon: retry, wait, cancel by what jobs are, filters of ps, times of logs, clean."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime

import pytest
from e2e import DaemonProcess, Jobs
from stoker.engine.errors import UsageError
from stoker.engine.protocol import VERSION
from waiting import patient

pytestmark = pytest.mark.xdist_group("client-commands")

Stoker = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def jobs(live: DaemonProcess) -> Jobs:
    return Jobs(live.client())


def test_a_failed_job_is_retried_as_a_new_job_with_the_same_spec(stoker: Stoker, jobs: Jobs) -> None:
    first = jobs.shell("flaky", "test -e ok && echo worked || exit 3", labels={"team": "nlp"}, priority=3)
    jobs.ended(first)
    code, out, _ = stoker("retry", "flaky", str(first), "--json")
    row, same = json.loads(out)
    assert same["id"] == row["id"] and same["existing"]
    assert code == 0 and row["of"] == first and row["id"] != first and row["name"] == "flaky"
    spec = jobs.show(row["id"])["spec"]
    assert (spec["command"], spec["labels"], spec["priority"]) == (["sh", "-c", "test -e ok && echo worked || exit 3"], {"team": "nlp"}, 3)
    code, out, err = stoker("wait", str(row["id"]))
    assert code == 10 and f"job {row['id']} flaky failed" in err and "flaky" in out


def test_only_the_tasks_that_ended_badly_are_retried(stoker: Stoker, jobs: Jobs) -> None:
    assert stoker("submit", "--array", "n=0,1,2", "--name", "part", "--wait", "--", "sh", "-c", "exit {n}")[0] == 10
    code, out, _ = stoker("retry", "part", "--json")
    again = json.loads(out)
    assert code == 0 and [row["name"] for row in again] == ["part[1]", "part[2]"]
    assert {jobs.show(row["id"])["array_id"] for row in again} == {again[0]["id"]}
    assert stoker("wait", *[str(row["id"]) for row in again])[0] == 10


def test_what_has_not_ended_badly_is_not_retried(stoker: Stoker, jobs: Jobs) -> None:
    held, good = jobs.shell("held", "true", hold=True), jobs.shell("good", "true")
    jobs.ended(good)
    assert stoker("retry", str(held)) == (4, "", f"stoker: error: job {held} held is submitted: 'stoker cancel {held}' ends it first\n")
    code, _, err = stoker("retry", str(good))
    assert code == 4 and "has completed: submit it again" in err
    assert stoker("retry", "nonesuch")[0] == 3


def test_a_retry_that_is_sent_twice_submits_once(jobs: Jobs) -> None:
    first = jobs.shell("once", "exit 1")
    jobs.ended(first)
    one, two = (jobs.client.post(f"/v1/jobs/{first}/retry", {"key": "k"})["jobs"] for _ in range(2))
    assert one[0]["id"] == two[0]["id"] and two[0]["existing"]
    second = jobs.shell("once", "exit 1")  # of the same name, and another job
    jobs.ended(second)
    (other,) = jobs.client.post(f"/v1/jobs/{second}/retry", {"key": "k"})["jobs"]
    assert not other["existing"] and other["of"] == second
    own = jobs.shell("own", "exit 1", idempotency_key="k/nightly")  # no retry's key, though it begins like one
    jobs.ended(own)
    (fresh,) = jobs.client.post(f"/v1/jobs/{own}/retry", {"key": "k"})["jobs"]
    assert not fresh["existing"] and fresh["of"] == own


def test_a_retry_by_name_that_is_sent_twice_submits_once(stoker: Stoker, jobs: Jobs) -> None:
    """By the second time the name means the job that the first has made, whatever has become of that."""
    assert stoker("submit", "--array", "n=0,1", "--name", "named", "--wait", "--", "sh", "-c", "exit {n}")[0] == 10
    (made,) = jobs.client.post("/v1/jobs/named/retry", {"key": "again"})["jobs"]
    for _ in range(2):
        (same,) = jobs.client.post("/v1/jobs/named/retry", {"key": "again"})["jobs"]
        assert (same["id"], same["existing"], same["of"], same["name"]) == (made["id"], True, made["of"], "named[1]")
        jobs.ended(made["id"])


def test_wait_gives_up_in_time(stoker: Stoker, jobs: Jobs) -> None:
    held = jobs.shell("slow", "true", hold=True)
    began = time.monotonic()
    code, out, err = stoker("wait", str(held), "--timeout", "200ms")
    assert code == 7 and out == "" and "it goes on, wait again" in err and time.monotonic() - began < patient(5)


def test_jobs_are_listed_by_name_label_and_time(stoker: Stoker, jobs: Jobs) -> None:
    jobs.shell("bert-small", "true", hold=True, labels={"team": "nlp", "size": "s"})
    jobs.shell("bert-large", "true", hold=True, labels={"team": "nlp"})
    jobs.shell("bert_other", "true", hold=True)
    assert stoker("submit", "--hold", "--array", "n=0,1", "--name", "bert-grid", "--", "true")[0] == 0

    def names(*options: str) -> list[str]:
        return sorted(row["name"] for row in json.loads(stoker("ps", "--json", *options)[1]))

    assert names("--name", "bert-*") == ["bert-grid[0]", "bert-large", "bert-small"]
    assert names("--name", "bert-grid", "--arrays") == ["bert-grid[0]", "bert-grid[1]"]
    assert names("--name", "bert_*") == ["bert_other"]
    assert names("--label", "team=nlp", "--label", "size=s") == ["bert-small"]
    assert names("--label", "team=nlp", "--name", "bert-l*") == ["bert-large"]
    ended = jobs.shell("brief", "true")
    jobs.ended(ended)
    assert names("--name", "brief", "--since", "1h") == ["brief"]
    assert names("--name", "brief", "--since", "1ms") == [] == names("--name", "brief", "--state", "completed", "--since", "1ms")
    assert names("--name", "brief", "--state", "completed") == ["brief"]


def test_jobs_are_cancelled_by_what_they_are(stoker: Stoker, jobs: Jobs) -> None:
    held = [jobs.shell(f"go-{n}", "true", hold=True, labels={"x": str(n)}) for n in range(3)]
    other = jobs.shell("go-other", "true", hold=True, user="bea")
    code, out, _ = stoker("cancel", "--name", "go-*", "--label", "x=1", "--json")
    assert code == 0 and [row["id"] for row in json.loads(out)] == [held[1]]
    assert stoker("cancel", "--state", "submitted", "--name", "go-*")[0] == 0
    assert [jobs.state(job) for job in (*held, other)] == ["cancelled"] * 3 + ["submitted"]
    for option in ("--name", "--state"):  # of a variable that is not set
        code, _, err = stoker("cancel", "--user", "bea", option, "")
        assert code == 2 and f"{option}: is empty" in err
    for empty in ({"name": ""}, {"user": ""}, {"states": [""]}):
        with pytest.raises(UsageError):
            jobs.client.post("/v1/cancel", {"labels": {}, **empty})
    assert jobs.state(other) == "submitted"
    assert stoker("cancel", "--user", "bea")[0] == 0 and jobs.state(other) == "cancelled"
    code, out, _ = stoker("cancel", "--user", "bea")
    assert (code, out) == (0, "no such jobs\n")


def test_lines_of_a_log_by_pattern_and_time(stoker: Stoker, jobs: Jobs) -> None:
    began = time.time()
    job = jobs.shell("talk", "echo one; echo loss 1; sleep 2.2; echo loss 2; printf 'loss end'")
    jobs.ended(job)
    assert stoker("logs", str(job), "--grep", "loss \\d")[1] == "loss 1\nloss 2\n"
    assert stoker("logs", "-f", str(job), "--grep", "end$")[1] == "loss end"
    stamped = stoker("logs", str(job), "-t")[1].splitlines()
    times = [datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").timestamp() for line in stamped]  # noqa: DTZ007 - local, as it is shown
    assert [line[21:] for line in stamped] == ["one", "loss 1", "loss 2", "loss end"]
    assert began - 1 <= times[0] and times[2] - times[0] >= 2 and times == sorted(times)
    late = datetime.fromtimestamp(times[2]).strftime("%Y-%m-%dT%H:%M:%S")  # noqa: DTZ006
    assert stoker("logs", str(job), "--since", late)[1] == "loss 2\nloss end"
    assert stoker("logs", str(job), "--since", "1h", "--grep", "one")[1] == "one\n"
    assert stoker("logs", str(job), "-n", "1", "-t")[1].endswith("loss end")


def test_what_is_kept_is_told_with_its_size_and_its_time(stoker: Stoker, jobs: Jobs, live: DaemonProcess) -> None:
    (bundles := live.home.path / "bundles").mkdir(exist_ok=True)
    (bundles / f"{'ab' * 32}.part").write_bytes(bytes(1 << 20))
    jobs.ended(jobs.shell("leaves", "true"))
    code, out, err = stoker("clean", "--json")
    rows = {row["what"]: row for row in json.loads(out)}
    assert code == 0 and not err
    assert rows["database"]["bytes"] > 0 and rows["jobs"]["bytes"] > 0 and rows["bundles"]["bytes"] >= 1 << 20
    assert rows["events"]["rows"] > 0 and rows["events"]["seconds"] == 365 * 86_400
    assert re.search(r"^decisions +\d", stoker("clean")[1], re.MULTILINE)


def test_what_another_host_keeps_at_the_same_path_is_told_too(stoker: Stoker, jobs: Jobs, live: DaemonProcess) -> None:
    kept = jobs.shell("elsewhere", "true", hold=True)
    home = str(live.home.path)
    session = jobs.client.post("/v1/runner/hello", HELLO | {"home": home})["session"]
    said = {"node": HELLO["node"], "session": session}
    jobs.client.post("/v1/runner/report", said | {"files": [[kept, 5 << 20]]})
    rows = {row["where"]: row for row in json.loads(stoker("clean", "--json")[1])}
    assert (rows[f"another:{home}"]["what"], rows[f"another:{home}"]["bytes"]) == ("files of 1 job", 5 << 20)
    jobs.client.post("/v1/runner/report", said | {"left": True})


HELLO = {
    "protocol": VERSION, "version": "t", "node": "apart", "host": "another", "boot_id": "b", "pid": 1, "pid_started": 1.0,
    "address": "localhost", "pool": "apart", "leases": [],
    "gpus": [{"id": "apart/cpu0", "index": 0, "kind": "cpu", "name": "cpu", "memory": 0, "health": "ok", "note": None}],
}  # fmt: skip
