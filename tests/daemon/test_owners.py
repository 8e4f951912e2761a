"""Whose jobs are whose, on a real daemon over TCP: what tokens of role submit may act on, and whose the idempotency keys are."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Said, free_port
from stoker.engine.cli.main import run
from stoker.engine.client import Client
from stoker.engine.errors import Conflict, NotFound, Unauthorized, UsageError
from stoker.engine.home import Home
from waiting import patient

pytestmark = pytest.mark.xdist_group("owners")

PROVENANCE = {"argv": [], "cwd": "/"}


class Shared:
    """A daemon with the tokens of two users, and the socket of its owner."""

    def __init__(self, home: Home, config: str = "") -> None:
        home.create()
        if config:
            home.config.write_text(config)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.daemon = DaemonProcess(home, "--tcp", self.url.removeprefix("http://"))
        self.admin = self.daemon.start()
        self.tokens = {name: self.admin.post("/v1/tokens", {"name": name, "role": "submit"})["token"] for name in ("ann", "bob")}
        self.ann, self.bob = (self.daemon.client(self.url, self.tokens[name]) for name in ("ann", "bob"))


def submit(client: Client, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    specs = [{"command": ["true"], "hold": True, **job} for job in jobs]
    answer: list[dict[str, Any]] = client.post("/v1/jobs", {"jobs": specs, "provenance": PROVENANCE})["jobs"]
    return answer


def one(client: Client, name: str, **fields: Any) -> int:
    return int(submit(client, {"name": name, **fields})[0]["id"])


@pytest.fixture(scope="module")
def shared(template: Path) -> Iterator[Shared]:
    home = Home(Path(tempfile.mkdtemp(prefix="stoker-")))
    shutil.copyfile(template, home.database)
    running = Shared(home)
    yield running
    running.daemon.end()
    assert "Traceback" not in running.daemon.said()
    shutil.rmtree(home.path, ignore_errors=True)


# -- Who may act on what -----------------------------------------------------------------------------------------------------

ACTIONS: dict[str, dict[str, Any]] = {"hold": {}, "release": {}, "priority": {"priority": 5}, "cancel": {}}


@pytest.mark.parametrize("action", ACTIONS)
def test_others_jobs_are_not_acted_on(shared: Shared, action: str) -> None:
    job = one(shared.ann, f"anns-{action}")
    before = shared.admin.get(f"/v1/jobs/{job}")["job"]
    for array in (False, True):
        with pytest.raises(Unauthorized) as refused:
            shared.bob.post(f"/v1/jobs/{job}/{action}", {**ACTIONS[action], "array": array})
        said = f"job {job} anns-{action} is ann's, and this token acts for bob: ask ann, or take a token of role admin"
        assert str(refused.value) == said
    assert shared.bob.get(f"/v1/jobs/{job}")["job"] == before, "and reading is open to all"
    assert shared.ann.post(f"/v1/jobs/{job}/{action}", ACTIONS[action])["jobs"][0]["id"] == job
    assert shared.admin.post(f"/v1/jobs/{job}/{action}", ACTIONS[action])["jobs"][0]["id"] == job


def test_an_array_is_its_submitters_whole(shared: Shared) -> None:
    tasks = [{"name": f"sweep[{i}]", "array_index": i, "array_size": 3} for i in range(3)]
    ids = [row["id"] for row in submit(shared.ann, *tasks)]
    with pytest.raises(Unauthorized, match="is ann's"):
        shared.bob.post("/v1/jobs/sweep/cancel", {"array": True})
    assert {shared.ann.get(f"/v1/jobs/{job}")["job"]["state"] for job in ids} == {"submitted"}
    assert [row["state"] for row in shared.ann.post("/v1/jobs/sweep/cancel", {"array": True})["jobs"]] == ["cancelled"] * 3


def test_the_command_line_says_whose_it_is_in_one_line(
    shared: Shared, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, own = one(shared.ann, "anns"), one(shared.bob, "bobs")
    monkeypatch.setenv("STOKER_TOKEN", shared.tokens["bob"])
    capsys.readouterr()
    code = run(["--url", shared.url, "cancel", str(theirs), str(own)])
    said = Said(code, *capsys.readouterr())
    assert (
        code == 5
        and said.err == f"stoker: error: job {theirs} anns is ann's, and this token acts for bob: ask ann, or take a token of role admin\n"
    )
    assert shared.admin.get(f"/v1/jobs/{theirs}")["job"]["state"] == "submitted"
    assert shared.admin.get(f"/v1/jobs/{own}")["job"]["state"] == "cancelled", "what is one's own is done all the same"


def test_a_name_means_ones_own_job_first(shared: Shared) -> None:
    anns, bobs = one(shared.ann, "train"), one(shared.bob, "train")
    assert shared.ann.get("/v1/jobs/train")["job"]["id"] == anns
    assert shared.bob.get("/v1/jobs/train")["job"]["id"] == bobs
    assert shared.admin.get("/v1/jobs/train")["job"]["id"] == bobs, "who has none of that name is given the newest"
    assert shared.ann.post("/v1/jobs/train/cancel", {})["jobs"][0]["id"] == anns


def test_recurring_jobs_and_traces_are_their_makers(shared: Shared) -> None:
    body = {"jobs": [{"name": "nightly", "command": ["true"], "cron": "0 0 1 1 *"}], "provenance": PROVENANCE}
    schedule = shared.ann.post("/v1/jobs", body)["schedule"]
    with pytest.raises(Unauthorized, match=f"^schedule {schedule} nightly is ann's"):
        shared.bob.post(f"/v1/schedules/{schedule}/remove")
    assert [row["name"] for row in shared.admin.get("/v1/schedules")["schedules"]] == ["nightly"]
    shared.ann.post(f"/v1/schedules/{schedule}/remove")
    assert shared.admin.get("/v1/schedules")["schedules"] == []

    job = {"key": "1", "submitted": 0.0, "duration": 1.0, "gpus_min": 1}
    trace = {"name": "week", "format": "neutral", "source": "x", "sha256": "0", "jobs": [job]}
    shared.ann.post("/v1/traces", trace)
    with pytest.raises(Unauthorized, match=r"^trace week is ann's"):
        shared.bob.fetch("DELETE", "/v1/traces/week")
    shared.ann.fetch("DELETE", "/v1/traces/week")
    with pytest.raises(NotFound):
        shared.ann.get("/v1/traces/week")


def test_nobody_submits_in_anothers_name_but_an_admin(shared: Shared) -> None:
    with pytest.raises(Unauthorized, match=r"^sly: user: this token acts for bob, not for ann: leave it out$"):
        one(shared.bob, "sly", user="ann")
    assert shared.admin.get(f"/v1/jobs/{one(shared.bob, 'frank', user='bob')}")["job"]["owner"] == "bob"
    job = one(shared.admin, "for-ann", user="ann")
    assert shared.ann.post(f"/v1/jobs/{job}/cancel", {})["jobs"][0]["state"] == "cancelled"


def test_a_team_may_be_trusted(home: Home, template: Path) -> None:
    shutil.copyfile(template, home.database)
    team = Shared(home, "[access]\nteam = true\n")
    try:
        job = one(team.ann, "ours")
        assert team.bob.post(f"/v1/jobs/{job}/priority", {"priority": 3})["jobs"][0]["message"] == "priority 0 -> 3"
        assert team.admin.get(f"/v1/jobs/{one(team.bob, 'for-ann', user='ann')}")["job"]["owner"] == "ann"
        with pytest.raises(Unauthorized, match="needs role admin"):
            team.bob.post("/v1/runners/x/drain")
    finally:
        team.daemon.end()


# -- Waiting for other people's jobs ---------------------------------------------------------------------------------------


def test_a_job_may_wait_for_anothers_and_a_name_means_ones_own_first(shared: Shared) -> None:
    anns, bobs = one(shared.ann, "base"), one(shared.bob, "base")

    def needs(client: Client, word: str) -> list[int]:
        job = one(client, f"after-{word}-{time.monotonic_ns()}", after=[{"job": word}])
        return [row["needs"] for row in client.get(f"/v1/jobs/{job}")["dependencies"]]

    assert needs(shared.ann, "base") == [anns] and needs(shared.bob, "base") == [bobs]
    assert needs(shared.bob, str(anns)) == [anns]
    only = one(shared.ann, "only-anns")
    assert needs(shared.bob, "only-anns") == [only]


def test_a_key_is_nothing_that_others_can_wait_for(shared: Shared) -> None:
    keyed = one(shared.ann, "keyed", idempotency_key="anns-key")
    job = one(shared.ann, "after-key", after=[{"job": "anns-key"}])
    assert [row["needs"] for row in shared.ann.get(f"/v1/jobs/{job}")["dependencies"]] == [keyed]
    with pytest.raises(NotFound, match="'anns-key'"):
        one(shared.bob, "sly", after=[{"job": "anns-key"}])


# -- Idempotency keys ------------------------------------------------------------------------------------------------------


def test_keys_belong_to_users(shared: Shared) -> None:
    first = submit(shared.ann, {"name": "a", "idempotency_key": "k1"})[0]
    other = submit(shared.bob, {"name": "b", "idempotency_key": "k1"})[0]
    assert first["id"] != other["id"] and not other["existing"]
    again = submit(shared.ann, {"name": "a", "idempotency_key": "k1"})[0]
    assert (again["id"], again["existing"]) == (first["id"], True)
    # An admin who submits for somebody uses that one's keys.
    (known,) = submit(shared.admin, {"name": "a", "idempotency_key": "k1", "user": "ann"})
    assert (known["id"], known["existing"]) == (first["id"], True)


def _deadline(seconds: float) -> dict[str, Any]:
    return {"kind": "strict", "tiers": [{"deadline": round(time.time() + seconds, 3), "reward": 100.0}]}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"command": ["false"]}, "command"), ({"name": "renamed"}, "name"), ({"gpus_max": 4, "gpus_min": 2}, "gpus"),
        ({"params": {"lr": 0.2}, "priority": 3}, "priority, params"), ({"labels": {"x": "y"}}, "labels"), ({"estimate": 5.0}, "estimate"),
        ({"demand": {"kind": "strict", "tiers": [{"deadline": 4e9}]}}, "deadline"), ({"demand": {}}, "demand"), ({"hold": False}, "hold"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.sampled(3)
def test_the_same_key_with_another_content_is_a_conflict(shared: Shared, change: dict[str, Any], fields: str) -> None:
    key = f"content-{fields}-{len(change)}"
    job = {"name": "was", "command": ["true"], "params": {"lr": 0.1}, "idempotency_key": key, "demand": _deadline(7200)}
    number = one(shared.ann, **job)
    before = shared.admin.get("/v1/jobs", all=1, limit=10_000)["jobs"]
    new = {**job, **change}
    with pytest.raises(Conflict) as refused:
        submit(shared.ann, {"name": "beside"}, new)
    assert str(refused.value) == (
        f"idempotency_key: '{key}' is that of job {number} was, and {new['name']} differs from it in {fields}: "
        "give another key, or submit the same again"
    )
    assert len(shared.admin.get("/v1/jobs", all=1, limit=10_000)["jobs"]) == len(before), "all of a submission or none of it"
    # The same again: two hours from then on are another moment, and the same wish.
    assert submit(shared.ann, {**job, "demand": _deadline(7200)})[0]["existing"]


def test_two_equal_keys_in_one_submission_are_an_error(shared: Shared) -> None:
    with pytest.raises(UsageError, match=r"^two: idempotency_key: 'same' is also the key of one; give each its own$"):
        submit(shared.ann, {"name": "one", "idempotency_key": "same"}, {"name": "two", "idempotency_key": "same"})
    assert not submit(shared.ann, {"name": "one", "idempotency_key": "same"})[0]["existing"]


def test_a_key_that_many_send_at_once_makes_one_job(shared: Shared) -> None:
    """Also where two of them come into one transaction."""
    answers: list[dict[str, Any]] = []

    def send() -> None:
        client = shared.daemon.client(shared.url, shared.tokens["ann"])
        answers.extend(submit(client, {"name": "raced", "idempotency_key": "raced"}))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(60))
    assert len(answers) == 8 and len({row["id"] for row in answers}) == 1
    assert sorted(row["existing"] for row in answers) == [False] + [True] * 7


def test_what_a_token_cancels_by_what_it_is_are_its_own_jobs(shared: Shared) -> None:
    hers, his = one(shared.ann, "sweep-a"), one(shared.bob, "sweep-b")
    assert [row["id"] for row in shared.ann.post("/v1/cancel", {"name": "sweep-*"})["jobs"]] == [hers]
    with pytest.raises(Unauthorized, match="is bob's, and this token acts for ann"):
        shared.ann.post("/v1/cancel", {"user": "bob", "name": "sweep-*"})
    with pytest.raises(UsageError, match="name the user, states"):
        shared.ann.post("/v1/cancel", {})
    assert shared.bob.get(f"/v1/jobs/{his}")["job"]["state"] == "submitted"


def test_a_retry_is_its_owners_and_nobody_elses(shared: Shared) -> None:
    hers = one(shared.ann, "again")
    shared.ann.post(f"/v1/jobs/{hers}/cancel", {})
    with pytest.raises(Unauthorized):
        shared.bob.post(f"/v1/jobs/{hers}/retry", {})
    (row,) = shared.admin.post(f"/v1/jobs/{hers}/retry", {})["jobs"]
    assert shared.admin.get(f"/v1/jobs/{row['id']}")["job"]["owner"] == "ann"
