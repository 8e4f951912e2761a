"""A daemon that tunes its pool: asked for, and by itself (002 ch. 6.5.2, 6.5.3)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from stoker.engine.autosched.stored_models import StoredModel, keep_model, version_of
from stoker.engine.home import Home
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction
from stoker.policies import registry
from stoker.policies.autosched.causal_model import CausalModel, Encoder, Samples
from stoker.policies.autosched.search_space import Space, space_of


@pytest.fixture
def pool(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Jobs:
    """Two slots and 40 jobs of many lengths, the first long."""
    jobs = Jobs(start_daemon().client())
    start_runner("here", 2)
    assert command(home, "policy", "set", "srtf", "hysteresis=50", "unknown=1").code == 0
    lengths = [4000, 3000] + [30 + 40 * (n % 9) for n in range(38)]
    jobs.submit_all(*[{"name": f"j{n}", "command": ["sleep", "600"], "estimate": length} for n, length in enumerate(lengths)])
    return jobs


@pytest.mark.slow
def test_a_pool_is_tuned_and_says_what_was_found(home: Home, pool: Jobs) -> None:
    dry = command(home, "tune", "default", "--objective", "jct", "--dry-run", "--trials", "12", "--json")
    assert dry.code == 0, dry.err
    found = json.loads(dry.out)
    assert not found["applied"] and found["trials"] == 12 and found["gain"] >= 1.0
    assert {row["key"] for row in found["keys"]} == {"hysteresis", "unknown", "measure"}
    assert pool.sql("SELECT outcome, trials FROM tunings") == [("dry-run", 12)]
    bad = command(home, "tune", "default", "--range", "hysteresis=0:5")
    assert bad.code == 2 and "hysteresis: 0 to 5 is not within its range" in bad.err
    told = command(home, "tune", "history", "--json")
    assert [row["outcome"] for row in json.loads(told.out)["tunings"]] == ["dry-run"]


def test_what_cannot_be_tuned_says_so_and_what_is_in_force_stays(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    jobs = Jobs(start_daemon().client())
    nothing = command(home, "policy", "set", "edf", "--auto")
    assert nothing.code == 2 and nothing.err.strip() == "stoker: error: the policy has no keys to tune; 'stoker policy list' names others"
    assert jobs.sql("SELECT count(*) FROM auto_tuning WHERE enabled") == [(0,)]
    early = command(home, "policy", "set", "tiresias", "--auto", "--every", "12s")
    assert early.code == 0 and "auto: waits for a history of 30 jobs; it has 0" in early.err
    assert "auto: pool 'default' tunes itself, every 12s for jct, and upon bursts of arrivals" in early.err
    assert "every 12s, jct" in command(home, "policy", "show", "tiresias").out
    jobs.client.post("/v1/policy", {"policy": "tiresias", "pool": "other", "create": True})
    rows = {line.split()[0]: line for line in command(home, "status").out.splitlines() if line}
    assert rows["default"].endswith("  every 12s for jct; waits for a history of 30 jobs; it has 0")
    assert "every 12s" not in rows["other"], "it does not tune itself"
    for arguments, words in (
        (("tune", "default", "--dry-run"), "pool 'default' has no GPUs, so there is nothing to tune"),
        (("tune", "nowhere"), "there is no pool 'nowhere'"),
        (("policy", "set", "tiresias", "--auto", "--every", "5s"), "every: 5 s is outside its range 12 s to 7 days"),
        (("policy", "set", "tiresias", "--every", "2h"), "--every: is for a pool that tunes itself; add --auto"),
        (("policy", "set", "tiresias", "--objective", "p99"), "--objective: is for a pool that tunes itself; add --auto"),
    ):
        said = command(home, *arguments)
        assert said.code != 0 and words in said.err and len(said.err.strip().splitlines()) == 1
    assert jobs.sql("SELECT policy FROM policy_history ORDER BY id DESC LIMIT 1") == [("tiresias",)]


TEN = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n" + "".join(
    f"{n},1,{30 * n},100,vgg16,{100 + n},30\n" for n in range(10)
)


@pytest.mark.slow
def test_an_idle_pool_is_told_what_to_do_instead(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    start_daemon()
    start_runner("here", 2)
    assert command(home, "policy", "set", "tiresias").code == 0
    dry = command(home, "tune", "--dry-run")
    assert (dry.code, dry.err) == (0, "") and "no job is there or expected" in dry.out and "stoker tune --trace FILE" in dry.out
    said = command(home, "tune")
    assert said.code == 1 and "stoker tune --trace FILE" in said.line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ("-p", "srtf", "--learn"),
            "the history has 5 jobs, 30 are needed; durations are not predicted: 2 jobs have ended; 100 are needed",
        ),
        (("-p", "edf"), "the policy has no keys to tune"),
        (
            ("-p", "tiresias", "--range", "threshold_1=5000:9000", "--range", "threshold_2=10:20"),
            "threshold_2: at most 20, while threshold_1",
        ),
        (("-p", "tiresias", "--only", "nothing"), "nothing: the policy has no such key"),
        (("-p", "tiresias", "--range", "=1:2"), "--range: '=1:2' is not KEY=LOW:HIGH"),
        (("-p", "tiresias,auto=true"), "--policy: auto is for 'stoker simulate'"),
        (("-p", "tiresias", "--range", "threshold_1=nan:9"), "--range: 'threshold_1=nan:9': LOW and HIGH are to be finite"),
        (("-p", "tiresias", "--at", "100d"), "no job is there or expected, so all configurations are alike"),
    ],
)
@pytest.mark.sampled(3)
def test_bad_traces_and_wishes_are_one_line(home: Home, tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    (tmp_path / "ten.csv").write_text(TEN)
    said = command(home, "tune", "--trace", str(tmp_path / "ten.csv"), "-n", "1x2", "--trials", "3", *more)
    assert words in said.err and "Traceback" not in said.err
    assert said.code == 0 or "--learn" not in more


@pytest.mark.slow
def test_a_simulation_that_tunes_itself_says_what_came_of_it(home: Home, tmp_path: Path) -> None:
    """Of runs in processes of their own; the second is of a trace too short."""
    rows = [f"{n},{1 + n % 3},{150 * n},100,vgg16,{100 + 200 * (n % 5)},30\n" for n in range(40)]
    (tmp_path / "many.csv").write_text(TEN.splitlines()[0] + "\n" + "".join(rows))
    (tmp_path / "ten.csv").write_text(TEN)
    asked = ("-n", "1x4", "-p", "tiresias", "-p", "tiresias,auto=true", "--jobs", "2", "--no-store")
    told = json.loads(command(home, "simulate", str(tmp_path / "many.csv"), *asked, "--json").out)
    plain, tuned = (run["tuned"] for run in told["runs"])
    assert plain is None and tuned["searches"] >= 1 and 0 <= tuned["applied"] <= tuned["searches"]
    told = command(home, "simulate", str(tmp_path / "ten.csv"), *asked)
    assert "tiresias,auto=true, seed 0: about 1 search of 40 trials each come, one every 1h" in told.err
    said = told.out
    assert "tiresias,auto=true, seed 0: it never searched: it waits for a history of 30 jobs, and for one at hand" in said


@pytest.mark.slow
def test_a_pool_that_tunes_itself_obeys_a_person(home: Home, pool: Jobs) -> None:
    assert command(home, "policy", "set", "srtf", "hysteresis=50", "--auto", "--every", "12s").code == 0
    row: tuple[Any, ...] = until(lambda: pool.sql("SELECT outcome, why, trials FROM tunings WHERE asked_by = 'autosched'"), 60)[0]
    assert row[0] in ("applied", "kept") and row[2] > 1
    until(lambda: re.search(r"every 12s for jct; next search (soon|in \d+s)\n", command(home, "status").out))
    by_hand = command(home, "policy", "set", "fifo")
    assert by_hand.code == 0 and "auto: pool 'default' no longer tunes itself" in by_hand.err
    count = pool.sql("SELECT count(*) FROM tunings")[0][0]
    assert pool.sql("SELECT enabled FROM auto_tuning ORDER BY id DESC LIMIT 1") == [(False,)]
    time.sleep(3.0)
    assert pool.sql("SELECT count(*) FROM tunings")[0][0] - count <= 1  # one may have been under way
    assert pool.sql("SELECT policy FROM policy_history ORDER BY id DESC LIMIT 1") == [("fifo",)]


@pytest.mark.slow
@pytest.mark.nightly  # in a store: test_measured_tunings.py; live without the kill: above
def test_what_was_learnt_and_a_wrong_prediction_outlive_a_kill(
    home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]
) -> None:
    """A search is applied and its model stored; killed, and told that jobs were to be much faster, the next daemon takes it back."""
    pytest.importorskip("causallearn")
    daemon = start_daemon()
    jobs = Jobs(daemon.client())
    start_runner("here", 2)
    # One slot is busy, and the first that waits wants both: without backfilling all others wait for it.
    jobs.submit_all(
        {"name": "long", "command": ["sleep", "600"], "estimate": 1000},
        {"name": "wide", "command": ["sleep", "600"], "estimate": 100, "gpus_min": 2, "gpus_max": 2},
        *[{"name": f"j{n}", "command": ["sleep", "600"], "estimate": 30 + n} for n in range(38)],
    )
    assert command(home, "policy", "set", "fifo", "backfill=false", "--auto", "--every", "12s").code == 0
    ((applied,),) = until(
        lambda: jobs.sql("SELECT id FROM tunings WHERE outcome = 'applied'"), 60, says=lambda: jobs.sql("SELECT outcome, why FROM tunings")
    )
    daemon.kill()

    store = Store.open(home.database)
    space = space_of(registry.load("fifo").Config, {"backfill": False})
    samples = made_samples(space)
    store.write(keep_model, StoredModel("default", "fifo", version_of(registry.loaded("fifo")), CausalModel.learnt(space, "jct", samples)))
    store.write(expect_less, applied)
    store.close()

    jobs = Jobs(start_daemon().client())
    ((why,),) = until(lambda: jobs.sql("SELECT why FROM tunings WHERE outcome = 'rolled back' AND measured_gain < 0.9"), 60)
    assert why.startswith("a period is over; jobs took ")
    # The next search finds the same, and does not put it in force again.
    until(lambda: jobs.sql("SELECT id FROM tunings WHERE outcome = 'kept' AND why LIKE '%was taken back in the last 24 periods'"), 60)
    assert jobs.sql("SELECT count(*) FROM tunings WHERE outcome IN ('applied', 'measured')") == [(0,)]
    assert json.loads(jobs.sql("SELECT config FROM policy_history ORDER BY id DESC LIMIT 1")[0][0])["backfill"] is False
    assert jobs.sql("SELECT samples >= 60 FROM causal_models WHERE policy = 'fifo'") == [(True,)]
    assert command(home, "policy", "set", "fifo", "backfill=false").code == 0
    ask = ("tune", "default", "--dry-run", "--trials", "6", "--json")
    found = json.loads(until(lambda: command(home, *ask).out, 60))  # one of its own may be under way
    assert not found["model"].startswith("none") and found["causes"]


def expect_less(tx: Transaction, batch: Sequence[int]) -> Sequence[None]:
    """The prediction of a search is made wrong: jobs were to take half a second of the period."""
    tx.update("tunings", ["id"], [{"id": number, "expected": 0.5} for number in batch])
    return [None] * len(batch)


def made_samples(space: Space) -> Samples:
    """Of queueing that grows with the first key, and a reward that falls with it."""
    rng = np.random.default_rng(0)
    first = np.column_stack((rng.random((120, len(Encoder(space).names))), rng.random((120, 4))))
    metrics = np.column_stack((first[:, 0], *(rng.random((120, 3)).T)))
    return Samples(first, metrics, -metrics[:, 0] + 0.01 * rng.random(120))
