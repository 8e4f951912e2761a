"""The daemon and its parts: long polls, tokens, hooks, metrics, recurring jobs, silent runners, deadlines, tasks, decisions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import msgspec
import pytest
from e2e import free_port
from model import one_transaction
from stoker.engine.config import Config, Guards, Hook, PolicyDefault, load
from stoker.engine.daemon import tcp_socket
from stoker.engine.errors import KINDS, Conflict, NoRoom, NotFound, Stale, Unauthorized, UsageError
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.board import Board
from stoker.engine.fleet.silence import SILENT_AFTER, Fleet
from stoker.engine.forecast.deadline_watch import DeadlineWatch
from stoker.engine.hooks import Hooks
from stoker.engine.identity import Process, boot_id, stat
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.recurring import Recurring
from stoker.engine.jobs.schedule_rows import NewSchedule, add_schedule
from stoker.engine.jobs.states import State
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Report
from stoker.engine.scheduling import policy_errors, ticks
from stoker.engine.scheduling.policy_errors import would_fail
from stoker.engine.scheduling.policy_settings import PolicySetting, set_policy
from stoker.engine.scheduling.ticks import Scheduling
from stoker.engine.spec.model import Demand, Dependency, JobSpec, Provenance, Submission, Tier
from stoker.engine.tasks import Tasks
from stoker.policies.fifo import Fifo
from waiting import patient, until

PROVENANCE = Provenance(argv=[], cwd="/")


def hello(node: str = "n1", slots: int = 2, **more) -> Hello:
    gpus = [GpuInfo(id=f"{node}/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(slots)]
    fields = {"protocol": VERSION, "version": "t", "node": node, "host": "h", "boot_id": "b", "pid": 1, "pid_started": 1.0, "home": "/h",
              "address": "localhost", "pool": "default", "gpus": gpus, "leases": []}  # fmt: skip
    return Hello(**{**fields, **more})


def put(store, *specs: JobSpec) -> list[int]:
    return [row["id"] for row in store.write(submit, SubmitRequest(Submission(jobs=list(specs), provenance=PROVENANCE), "ann"))]


def events(store, kind: str) -> list[str]:
    with store.read() as con:
        return [row[0] for row in con.execute("SELECT reason FROM events WHERE kind = $1 ORDER BY seq", [kind]).fetchall()]


class TestRealDaemon:
    def test_an_assignment_reaches_a_waiting_runner_at_once(self, start_daemon):
        daemon = start_daemon()
        runner, user = daemon.client(), daemon.client()
        session = runner.post("/v1/runner/hello", msgspec.to_builtins(hello()))["session"]
        first = runner.post("/v1/runner/poll", {"node": "n1", "session": session, "version": -1, "wait": 0.1})
        assert first["leases"] == []
        got = []
        poll = {"node": "n1", "session": session, "version": first["version"], "wait": 600.0}
        waiting = threading.Thread(target=lambda: got.append(runner.post("/v1/runner/poll", poll, timeout=patient(120))))
        waiting.start()
        user.post(
            "/v1/jobs", {"jobs": [{"name": "a", "recipe": "toy", "gpus_min": 2, "gpus_max": 2}], "provenance": {"argv": [], "cwd": "/"}}
        )
        waiting.join(patient(60))
        (lease,) = got[0]["leases"]
        assert (lease["job"], lease["gpus"], lease["world_size"], lease["stop"]) == (1, ["n1/cpu0", "n1/cpu1"], 2, None)
        assert lease["spec"]["name"] == "a" and got[0]["version"] != first["version"]

    def test_an_address_of_no_interface_is_a_wrong_option_and_a_port_that_is_taken_is_not(self):
        with pytest.raises(UsageError, match="name an address of this host"):
            tcp_socket("203.0.113.7", free_port())  # of documentation (RFC 5737)
        with tcp_socket("127.0.0.1", 0) as held, pytest.raises(Conflict, match="choose another port"):
            tcp_socket("127.0.0.1", held.getsockname()[1])

    def test_tokens_and_roles_over_tcp(self, start_daemon):
        port = free_port()
        daemon = start_daemon("--tcp", f"127.0.0.1:{port}")
        admin = daemon.client()
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(Unauthorized, match="no valid token"):
            daemon.client(url, "wrong").get("/v1/status")
        assert daemon.client(url).get("/healthz") == {"ok": True}
        made = admin.post("/v1/tokens", {"name": "reader", "role": "read"})
        reader = daemon.client(url, made["token"])
        assert reader.get("/v1/status")["version"]
        job = {"jobs": [{"name": "a", "recipe": "toy"}], "provenance": {"argv": [], "cwd": "/"}}
        with pytest.raises(Unauthorized, match=r"needs role submit.*'reader' has role read"):
            reader.post("/v1/jobs", job)
        submitter = daemon.client(url, admin.post("/v1/tokens", {"name": "bob", "role": "submit"})["token"])
        assert submitter.post("/v1/jobs", job)["jobs"][0]["id"] == 1
        assert submitter.get("/v1/jobs/1")["job"]["owner"] == "bob"
        for refused in ("/v1/runner/hello", "/v1/policy", "/v1/shutdown"):
            with pytest.raises(Unauthorized):
                submitter.post(refused, {})
        admin.post(f"/v1/tokens/{made['id']}/revoke")
        with pytest.raises(Unauthorized):
            reader.get("/v1/status")
        listed = admin.get("/v1/tokens")["tokens"]
        assert [(t["name"], t["revoked"]) for t in listed] == [("reader", True), ("bob", False)]
        assert "token" not in json.dumps(listed).replace("tokens", "") and made["token"] not in json.dumps(listed)

    def test_metrics_are_in_prometheus_format(self, start_daemon):
        client = start_daemon().client()
        client.post("/v1/runner/hello", msgspec.to_builtins(hello()))
        text = client.request("GET", "/metrics").read().decode()
        sample = re.compile(r'^stoker_[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? -?[0-9.e+-]+$')
        assert all(line.startswith("# ") or sample.match(line) for line in text.splitlines())
        assert 'stoker_gpus{pool="default"} 2' in text and 'stoker_runner_up{runner="n1"} 1.0' in text

    def test_metrics_have_each_pool_and_each_state_at_zero_too(self, start_daemon):
        client = start_daemon().client()

        def scrape() -> dict[str, float]:
            lines = client.request("GET", "/metrics").read().decode().splitlines()
            return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

        empty = scrape()
        assert {name: empty[name] for name in empty if name.startswith("stoker_jobs{")} == {f'stoker_jobs{{state="{s}"}}': 0 for s in State}
        assert empty['stoker_jobs_waiting{pool="default"}'] == empty['stoker_gpus{pool="default"}'] == 0
        assert empty['stoker_leases_ended_total{outcome="oom"}'] == 0
        session = client.post("/v1/runner/hello", msgspec.to_builtins(hello(pool="big")))["session"]
        far, near = ({"kind": "strict", "tiers": [{"deadline": time.time() + after}]} for after in (9000.0, 60.0))
        job = {"command": ["true"], "pool": "big", "gpus_min": 2, "gpus_max": 2}
        timed = [{**job, "name": name, "estimate": 600.0, "demand": demand} for name, demand in (("second", far), ("third", near))]
        jobs = [{"name": "first", **job}, *timed]
        client.post("/v1/jobs", {"jobs": jobs, "provenance": {"argv": [], "cwd": "/"}})
        until(lambda: scrape()['stoker_jobs_active{pool="big"}'] == 1)
        busy = scrape()
        assert busy['stoker_jobs_waiting{pool="big"}'] == 2 and busy['stoker_gpus_wanted{pool="big"}'] == 4
        assert busy['stoker_longest_wait_seconds{pool="big"}'] > 0 and busy['stoker_jobs_waiting{pool="default"}'] == 0
        assert busy['stoker_gpus_held{pool="big"}'] == 2
        risks = {risk: busy[f'stoker_open_deadlines{{pool="big",risk="{risk}"}}'] for risk in ("safe", "at risk", "missed", "unknown")}
        assert risks == {"safe": 0, "at risk": 1, "missed": 0, "unknown": 1}
        lease = client.post("/v1/runner/poll", {"node": "n1", "session": session, "version": -1, "wait": 30.0})["leases"][0]["lease"]
        worker = {"lease": lease, "ts": time.time(), "pid": 1, "pid_started": 1.0, "boot_id": "b", "run_dir": "/tmp/none"}
        for ended in ({"state": "running"}, {"state": "exited", "outcome": "completed", "exit_code": 0}):
            client.post("/v1/runner/report", {"node": "n1", "session": session, "workers": [{**worker, **ended}]})
        assert scrape()['stoker_first_starts_total{pool="big"}'] == 1
        for name in ("second", "third"):
            client.post(f"/v1/jobs/{name}/cancel")
        client.post("/v1/runner/report", {"node": "n1", "session": session, "left": True})
        assert busy.keys() <= scrape().keys(), "no series goes as nothing is left to count"

    def test_a_clean_stop_answers_waiting_polls_and_exits_zero(self, start_daemon):
        daemon = start_daemon()
        runner = daemon.client()
        session = runner.post("/v1/runner/hello", msgspec.to_builtins(hello()))["session"]
        answer = runner.post("/v1/runner/poll", {"node": "n1", "session": session, "version": -1, "wait": 0.1})
        poll = {"node": "n1", "session": session, "version": answer["version"], "wait": 600.0}
        # Sent from here: a thread may come to send it only when nobody listens any more.
        waiting = runner._connect()
        waiting.request("POST", "/v1/runner/poll", json.dumps(poll), {"Content-Type": "application/json"})
        assert daemon.client().get("/v1/status")  # what came before it has been read
        assert daemon.stop() == 0
        assert json.loads(waiting.getresponse().read())["leases"] == []
        assert not daemon.home.socket.exists()


def test_a_new_database_does_not_give_out_numbers_that_have_directories(home):
    for path in ("jobs/7/run-12", "jobs/9/checkpoints", "jobs/3/run-40.1", "jobs/old/run-99"):
        (home.path / path).mkdir(parents=True)
    assert home.used_numbers() == (9, 40)


def test_hooks_run_on_their_events_with_the_facts_and_failures_are_recorded(store, tmp_path):
    out = tmp_path / "facts"
    hooks = Hooks(store, [Hook(("cancelled",), f'echo "$STOKER_EVENT $STOKER_JOB_ID $STOKER_JOB_NAME" > {out}; cat > {out}.json'),
                          Hook(("cancelled",), "echo broken >&2; exit 3"), Hook(("failed",), f"touch {out}.never")])  # fmt: skip
    store.listen(hooks.committed)
    (job,) = put(store, JobSpec(name="a b", recipe="toy"))
    store.write(control, Control("cancel", (job,), "ann"))
    hooks.close()
    assert out.read_text() == "cancelled 1 a b\n"
    assert json.loads((tmp_path / "facts.json").read_text())["job_name"] == "a b"
    assert not (tmp_path / "facts.never").exists()
    (failure,) = until(lambda: events(store, "hook.failed"))
    assert "exit code 3: broken" in failure


def test_config_errors_name_the_file_and_the_nearest_key(home):
    assert load(home) == Config()
    home.config.write_text("[guards]\nmin_runtime = 3.0\n")
    with pytest.raises(UsageError, match=r"config.toml.*min_runtime.*did you mean 'min_run_time'"):
        load(home)
    home.config.write_text('[[hooks]]\non = ["finished"]\ncommand = "x"\n')
    with pytest.raises(UsageError, match=r"'finished' is not one of completed"):
        load(home)
    home.config.write_text("[guards\n")
    with pytest.raises(UsageError, match=r"config\.toml"):
        load(home)


def test_a_recurring_job_is_submitted_once_a_minute_with_its_deadline_from_then(store):
    tasks = Tasks(lambda *_: None)
    recurring = Recurring(store, tasks)
    spec = JobSpec(name="nightly", recipe="toy", cron="0 3 * * *", demand=Demand("strict", (Tier(time.time() + 3600),)))
    number = store.write(
        add_schedule, NewSchedule("nightly", spec.cron, msgspec.json.encode(Submission(jobs=[spec], provenance=PROVENANCE)).decode(), "ann")
    )
    recurring.reload()
    tasks.start()
    hour = time.gmtime(until(lambda: recurring.next_run(number)))
    assert (hour.tm_hour, hour.tm_min) == (3, 0)
    ((_, _, text, user, created, _),) = store.rows("policy/schedules")
    recurring._fire(number, text, user, created)
    recurring._fire(number, text, user, created)
    with store.read() as con:
        rows = con.execute("SELECT schedule_id, epoch(deadline) - epoch(submitted_at), spec ->> '$.cron' FROM jobs").fetchall()
    assert len(rows) in (1, 2)  # two when the minute turned between the two
    assert rows[0][0] == number and rows[0][1] == pytest.approx(3600, abs=60) and rows[0][2] is None
    tasks.stop()


class TestFleet:
    def fleet(self, store, clock) -> Fleet:
        store.write(runners.hello, hello(pid=4_000_000))
        fleet = Fleet(store, clock=lambda: clock[0])
        store.listen(lambda commit: fleet.reload() if "nodes" in commit.topics else None)
        return fleet

    def state(self, store) -> str:
        return dict(store.rows("api/node_states"))["n1"]

    def test_a_silent_runner_is_suspect_and_its_jobs_stay_its_own(self, store):
        clock = [time.time()]
        fleet = self.fleet(store, clock)
        clock[0] += SILENT_AFTER + 1
        fleet.watch()
        assert self.state(store) == "suspect"
        fleet.hear("n1", 1)
        fleet.watch()
        assert self.state(store) == "up"

    def test_a_drain_is_over_when_the_last_job_has_left(self, store):
        clock = [time.time()]
        fleet = self.fleet(store, clock)
        fleet.change("n1", "draining", "ann", "test")
        fleet.watch()
        assert self.state(store) == "drained"

    def test_a_runner_that_stops_while_its_drain_is_looked_at_has_stopped(self, store, monkeypatch):
        fleet = self.fleet(store, [time.time()])
        fleet.change("n1", "draining", "ann", "test")
        rows = store.rows

        def stops(query, *given):
            if query == "api/busy_nodes":
                store.write(runners.report, Report(node="n1", session=1, left=True))
            return rows(query, *given)

        with monkeypatch.context() as patch:
            patch.setattr(store, "rows", stops)
            fleet.watch()
        assert self.state(store) == "stopped"

    def test_forgetting_is_refused_while_it_may_live(self, store):
        clock = [time.time()]
        fleet = self.fleet(store, clock)
        with pytest.raises(Conflict, match="heard less than 60 s ago"):
            fleet.forget("n1", "ann")
        clock[0] += SILENT_AFTER + 1
        own = stat(1)
        store.write(runners.hello, hello(pid=1, pid_started=own.started, boot_id=boot_id()))
        fleet.reload()
        with pytest.raises(Conflict, match="process 1 is alive"):
            fleet.forget("n1", "ann")
        store.write(runners.hello, hello(pid=1, pid_started=own.started + 1, boot_id=boot_id()))
        fleet.forget("n1", "ann")
        assert self.state(store) == "gone"
        with pytest.raises(NotFound, match="runner 'zz'"):
            fleet.forget("zz", "ann")

    def test_an_old_session_is_stale(self, store):
        fleet = self.fleet(store, [time.time()])
        with pytest.raises(Stale):
            fleet.hear("n1", 99)


def test_a_deadline_at_risk_is_announced_once(store):
    fine, late = put(
        store, JobSpec(name="fine", recipe="toy", estimate=10.0, demand=Demand("strict", (Tier(time.time() + 1000),))),
        JobSpec(name="late", recipe="toy", estimate=5000.0, demand=Demand("strict", (Tier(time.time() + 1000),))),
    )  # fmt: skip
    watch = DeadlineWatch(store)
    watch.look()
    watch.look()
    DeadlineWatch(store).look()  # a restarted daemon
    with store.read() as con:
        rows = con.execute("SELECT job_id, reason FROM events WHERE kind = 'job.deadline-at-risk'").fetchall()
    assert [row[0] for row in rows] == [late] and "after its deadline" in rows[0][1]
    assert fine != late


class TestTasks:
    def test_a_task_that_raises_is_reported_and_runs_again(self):
        heard, runs = [], []
        tasks = Tasks(lambda *event: heard.append(event))

        def work():
            runs.append(1)
            raise RuntimeError("no luck")

        tasks.every("t", 0.05, work)
        tasks.start()
        until(lambda: len(runs) >= 3)
        tasks.stop()
        assert heard[0] == ("task.error", "t", "RuntimeError: no luck")
        assert next(iter(tasks.states())).errors >= 3

    def test_wake_ups_while_it_runs_are_folded_into_one_more_run(self):
        runs, go, inside = [], threading.Event(), threading.Event()
        tasks = Tasks(lambda *_: None)

        def work():
            runs.append(1)
            inside.set()
            go.wait(60)

        tasks.every("t", 3600.0, work)
        tasks.start()
        tasks.wake("t")
        assert inside.wait(patient(60))
        for _ in range(50):
            tasks.wake("t")
        go.set()
        until(lambda: len(runs) == 2 and not any(s.running_since for s in tasks.states()))
        tasks.stop()
        assert len(runs) == 2

    def test_an_appointment_that_comes_before_the_run_is_over_is_kept(self):
        runs = []
        tasks = Tasks(lambda *_: None)

        def work():
            runs.append(1)
            if len(runs) < 3:
                tasks.wake_at("t", time.time())
                time.sleep(0.2)

        tasks.every("t", 3600.0, work)
        tasks.start()
        tasks.wake("t")
        until(lambda: len(runs) == 3)
        tasks.stop()

    def test_a_task_that_hangs_is_seen_and_the_others_go_on(self, monkeypatch):
        monkeypatch.setattr("stoker.engine.tasks.STUCK_AFTER", 1.0)
        heard, runs, go = [], [], threading.Event()
        tasks = Tasks(lambda *event: heard.append(event))
        tasks.every("hangs", 0.05, lambda: go.wait(60))
        tasks.every("goes on", 0.05, lambda: runs.append(1))
        tasks.start()
        until(lambda: any(event[:2] == ("task.stuck", "hangs") for event in heard))
        count = len(runs)
        until(lambda: len(runs) > count)
        assert {s.name: s.stuck for s in tasks.states()} == {"hangs": True, "goes on": False, "watchdog": False}
        go.set()
        tasks.stop()


class TestScheduling:
    @pytest.fixture
    def scheduling(self, store):
        store.write(runners.hello, hello(slots=2))
        made = Scheduling(store, Tasks(lambda *_: None), Config(policy=PolicyDefault("fifo"), guards=Guards(min_run_time=0.0)))
        made.reload()
        return made

    def decisions(self, store):
        with store.read() as con:
            return con.execute("SELECT policy, ticks, outcome, error FROM decisions ORDER BY id").fetchall()

    def test_ticks_that_decide_the_same_share_a_row(self, store, scheduling):
        put(store, *(JobSpec(name=f"j{i}", recipe="toy") for i in range(3)))
        for _ in range(5):
            scheduling.tick("default")
        scheduling.flush()
        assert self.decisions(store) == [("fifo", 5, "applied", None)]
        with store.read() as con:
            assert con.execute("SELECT job_id, code FROM waiting").fetchall() == [(3, "resources")]

    def test_ticks_that_were_counted_are_written_with_the_next_decision(self, store, scheduling):
        for _ in range(3):
            scheduling.tick("default")
        put(store, JobSpec(name="a", recipe="toy"))
        before, tick = store.commits, threading.Thread(target=scheduling.tick, args=["default"])
        with one_transaction(store):
            tick.start()
            until(lambda: store._requests.qsize() == 2)
        tick.join()
        assert store.commits == before + 1
        assert self.decisions(store) == [("fifo", 3, "unchanged", None), ("fifo", 1, "applied", None)]

    def test_what_was_decided_stands_though_the_count_of_ticks_before_it_cannot_be_written(self, store, scheduling, monkeypatch):
        for _ in range(3):
            scheduling.tick("default")
        put(store, JobSpec(name="a", recipe="toy"))
        submit_, failed = store.submit, Future()
        failed.set_exception(NoRoom("the disk was full for a moment"))
        monkeypatch.setattr(store, "submit", lambda f, of, **more: failed if of.decision.number else submit_(f, of, **more))
        scheduling.tick("default")
        monkeypatch.undo()
        scheduling.tick("default")
        scheduling.flush()
        assert self.decisions(store) == [("fifo", 1, "unchanged", None), ("fifo", 2, "applied", None)]

    def test_a_policy_is_in_force_from_the_next_tick_and_the_history_is_kept(self, store, scheduling):
        scheduling.tick("default")
        store.write(set_policy, PolicySetting("default", "srtf", 1.0, {"hysteresis": 3.0}, "ann"))
        scheduling.reload()
        scheduling.tick("default")
        scheduling.flush()
        assert [row[0] for row in self.decisions(store)] == ["fifo", "srtf"]
        assert scheduling.in_force()[0]["config"] == {"hysteresis": 3.0}

    def test_a_policy_that_raises_or_plans_what_can_not_be_changes_nothing(self, store, scheduling, tmp_path, monkeypatch):
        (tmp_path / "odd_policies.py").write_text(
            "from dataclasses import dataclass\n"
            "from stoker.policies.contract import Allocation, Plan\n"
            "@dataclass\nclass Config:\n    pass\n"
            "class Raises:\n    name, Config = 'raises', Config\n    def __init__(self, config): pass\n"
            "    def plan(self, view): raise RuntimeError('out of ideas')\n"
            "class Twice(Raises):\n    name = 'twice'\n"
            "    def plan(self, view): return Plan({int(job): Allocation((0,)) for job in view.jobs.id})\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        put(store, JobSpec(name="running", recipe="toy"))
        scheduling.tick("default")
        put(store, JobSpec(name="new", recipe="toy"))
        for policy in ("odd_policies:Raises", "odd_policies:Twice"):
            store.write(set_policy, PolicySetting("default", policy, 1.0, {}, "ann"))
            scheduling.reload()
            for _ in range(3):
                scheduling.tick("default")
        scheduling.flush()
        rows = self.decisions(store)[1:]
        assert [(row[1], row[2]) for row in rows] == [(3, "error"), (3, "invalid")]
        assert (
            rows[0][3].startswith("RuntimeError: out of ideas (odd_policies.py, line 9: def plan(self, view): raise")
            and "\n" not in rows[1][3]
        )
        with store.read() as con:
            assert con.execute("SELECT state FROM jobs ORDER BY id").fetchall() == [("assigned",), ("pending",)]

    def test_that_a_policy_fails_and_answers_again_is_an_event_each_and_hooks_hear_of_it(self, store, scheduling, tmp_path, monkeypatch):
        (tmp_path / "moody_policies.py").write_text(
            "from stoker.policies.fifo import Fifo\n"
            "class Moody(Fifo):\n"
            "    asked = 0\n"
            "    def plan(self, view):\n"
            "        self.asked += 1\n"
            "        return super().plan(view) if self.asked % 4 == 0 else {}[self.asked]\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        hooks = Hooks(store, [Hook(("policy-error",), f'echo "$STOKER_EVENT $STOKER_REASON" >> {tmp_path}/heard')])
        store.listen(hooks.committed)
        put(store, *(JobSpec(name=f"j{i}", recipe="toy", gpus_min=2, gpus_max=2) for i in range(2)))
        store.write(set_policy, PolicySetting("default", "moody_policies:Moody", 1.0, {}, "ann"))
        scheduling.reload()
        for _ in range(3):
            scheduling.tick("default")
        (pool,) = scheduling.in_force()
        assert pool["error"].startswith("KeyError: 3 (moody_policies.py, line 6: return ") and pool["failing_since"] <= time.time()
        with store.read() as con:
            first, second = con.execute("SELECT code, reason FROM waiting").fetchall()
        assert first == second and first[0] == "policy-error" and "KeyError: 1 (moody" in first[1], "rewritten by no later error"
        scheduling.tick("default")
        assert scheduling.in_force()[0]["error"] is None
        kinds = "SELECT kind, detail->>'pool' FROM events WHERE kind LIKE 'policy.%' AND kind <> 'policy.set' ORDER BY seq"
        with store.read() as con:
            assert con.execute(kinds).fetchall() == [("policy.error", "default"), ("policy.recovered", "default")]
            assert con.execute("SELECT code FROM waiting").fetchall() == [("resources",)]
        hooks.close()
        assert (tmp_path / "heard").read_text().startswith("policy-error policy moody_policies:Moody of pool default fails, so nothing")

    def test_a_policy_on_trial_that_does_not_answer_is_said_to_fail(self, scheduling):
        let_go = threading.Event()

        class Hangs(Fifo):
            def plan(self, view):
                let_go.wait()
                return super().plan(view)

        assert would_fail(Hangs(Fifo.Config()), scheduling.look("default").view, 0.01) == "it does not answer within 0.01 s"
        let_go.set()
        assert scheduling.would_fail("default", Fifo(Fifo.Config()), "fifo") is None

    def test_an_error_without_words_is_told_by_its_name(self, scheduling):
        class Wordless(Exception):
            def __str__(self):
                raise KeyError("none")

        class Raises(Fifo):
            def plan(self, view):
                raise Wordless

        assert would_fail(Raises(Fifo.Config()), scheduling.look("default").view).startswith("Wordless: its own words fail (test_daemon.py")

    def test_a_policy_on_trial_that_computes_for_ever_is_stopped(self, scheduling):
        class Spins(Fifo):
            def plan(self, view):
                while True:
                    pass

        assert would_fail(Spins(Fifo.Config()), scheduling.look("default").view, 0.01) == "it does not answer within 0.01 s"
        until(lambda: not any(thread.name == "policy is asked" for thread in threading.enumerate()))

    def test_a_policy_of_ones_own_that_hangs_is_given_up_and_another_takes_its_place(self, store, scheduling, tmp_path, monkeypatch):
        (tmp_path / "stuck_policies.py").write_text(
            "import threading\n"
            "from stoker.policies.fifo import Fifo\n"
            "let_go = threading.Event()\n"
            "class Stuck(Fifo):\n"
            "    def plan(self, view):\n"
            "        let_go.wait()\n"
            "        raise KeyboardInterrupt\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(ticks, "LONGEST_ANSWER", 0.05)
        put(store, JobSpec(name="j", recipe="toy"))
        store.write(set_policy, PolicySetting("default", "stuck_policies:Stuck", 0.01, {}, "ann"))
        scheduling.reload()
        monkeypatch.setattr(policy_errors, "ANSWER_SECONDS", 0.05)
        scheduling._take_up(scheduling._pools["default"])
        said = [scheduling.foresee([JobSpec(name="k", recipe="toy")])[0][1]]
        assert scheduling.held_back("default", 1) is None, "also who asks beside the ticks gets an answer"
        let_go = scheduling._pools["default"].setting.loaded.policy.plan.__globals__["let_go"]
        let_go.set()
        until(lambda: not any(thread.name == "policy is asked" for thread in threading.enumerate()))
        monkeypatch.setattr(policy_errors, "ANSWER_SECONDS", patient(30))
        said.append(scheduling.foresee([JobSpec(name="k", recipe="toy")])[0][1])
        assert said[0].endswith("cannot say: it does not answer within 0.05 s") and "cannot say: KeyboardInterrupt: " in said[1]
        until(lambda: not any(thread.name == "policy is asked" for thread in threading.enumerate()))
        let_go.clear()
        before = threading.active_count()
        for _ in range(3):
            scheduling.tick("default")
        (pool,) = scheduling.in_force()
        assert "fails, so nothing starts there" in scheduling.foresee([JobSpec(name="k", recipe="toy")])[0][1], "nor is it asked then"
        assert pool["error"] == "it does not answer within 0.05 s" and "repair it and set it again" in pool["remedy"]
        assert threading.active_count() <= before + 1, "it is not asked again before it is back"
        monkeypatch.setattr(ticks, "LONGEST_ANSWER", patient(30))
        let_go.set()
        until(lambda: threading.active_count() == before)
        scheduling.tick("default")
        assert scheduling.in_force()[0]["error"].startswith("KeyboardInterrupt: (stuck_policies.py, line 7")
        store.write(set_policy, PolicySetting("default", "fifo", 5.0, {}, "ann"))
        scheduling.reload()
        scheduling.tick("default")
        assert scheduling.in_force()[0]["error"] is None
        with store.read() as con:
            assert con.execute("SELECT state FROM jobs").fetchall() == [("assigned",)]

    def test_a_job_of_which_the_policy_says_nothing_is_told_so(self, store, scheduling, tmp_path, monkeypatch):
        (tmp_path / "mute_policies.py").write_text(
            "from stoker.policies.contract import Plan\n"
            "from stoker.policies.fifo import Fifo\n"
            "class Mute(Fifo):\n"
            "    def plan(self, view):\n"
            "        return Plan({})\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        put(store, JobSpec(name="j", recipe="toy"))
        store.write(set_policy, PolicySetting("default", "mute_policies:Mute", 5.0, {}, "ann"))
        scheduling.reload()
        scheduling.tick("default")
        with store.read() as con:
            said = con.execute("SELECT code, reason FROM waiting").fetchall()
        assert said == [("unexplained", "policy mute_policies:Mute gives no reason")]

    def test_a_setting_that_comes_during_a_tick_is_taken_up_right_after_it(self, store, scheduling):
        (task,) = (one for one in scheduling._tasks.states() if one.name == "policy default")
        task.running_since = time.monotonic()
        store.write(set_policy, PolicySetting("default", "srtf", 3600.0, {}, "ann"))
        scheduling.reload()
        assert task.dirty, "it runs once more, and not an interval later"

    def test_a_setting_that_is_being_taken_up_is_told_all_the_while(self, store, scheduling, monkeypatch):
        scheduling.tick("default")
        store.write(set_policy, PolicySetting("default", "srtf", 5.0, {}, "ann"))
        scheduling.reload()
        told, flush = [], scheduling._flush
        # What the policy before has left to write is written first, which takes a moment.
        monkeypatch.setattr(scheduling, "_flush", lambda state: (told.append(scheduling.in_force()[0]["policy"]), flush(state)))
        scheduling.tick("default")
        assert set(told) == {"srtf"} and scheduling.in_force()[0]["policy"] == "srtf"

    def test_places_and_starts_are_forecast(self, store, scheduling):
        put(store, *(JobSpec(name=f"j{i}", recipe="toy", estimate=100.0) for i in range(5)))
        scheduling.tick("default")
        scheduling.forecast()
        with store.read() as con:
            rows = con.execute("SELECT position, epoch(est_start - updated_at) FROM waiting ORDER BY position").fetchall()
        assert [row[0] for row in rows] == [1, 2, 3]
        assert [row[1] for row in rows] == pytest.approx([100, 100, 200], abs=40)

    def test_a_forecast_leaves_out_what_has_left_the_queue_since_the_tick(self, store, scheduling):
        jobs = put(store, *(JobSpec(name=f"j{i}", recipe="toy", estimate=100.0) for i in range(5)))
        scheduling.tick("default")
        store.write(control, Control("cancel", (jobs[2],), "ann"))
        scheduling.forecast()
        with store.read() as con:
            assert con.execute("SELECT job_id, position FROM waiting ORDER BY position").fetchall() == [(jobs[3], 1), (jobs[4], 2)]

    def test_a_dry_run_tells_when_a_job_would_start(self, store, scheduling):
        fits = JobSpec(name="x", recipe="toy", estimate=10.0)
        assert scheduling.foresee([fits])[0][1] == "starts at once"
        twice = JobSpec(name="y", recipe="toy", weights="job:x", after=(Dependency("x"),))
        assert scheduling.foresee([twice])[0] == (None, "waits for x")
        put(store, *(JobSpec(name=f"j{i}", recipe="toy", estimate=100.0) for i in range(2)))
        scheduling.tick("default")
        start, why = scheduling.foresee([fits])[0]
        assert start == pytest.approx(time.time() + 100, abs=40) and "needs 1 GPU" in why
        with store.read() as con:
            assert con.execute("SELECT count(*) FROM jobs").fetchall() == [(2,)]

    def test_preemption_takes_two_ticks_and_is_explained(self, store, scheduling):
        store.write(set_policy, PolicySetting("default", "priority", 1.0, {}, "ann"))
        scheduling.reload()
        low = put(store, JobSpec(name="a", recipe="toy"), JobSpec(name="b", recipe="toy"))
        scheduling.tick("default")
        (urgent,) = put(store, JobSpec(name="urgent", recipe="toy", gpus_min=2, gpus_max=2, priority=9))
        scheduling.tick("default")
        with store.read() as con:
            stops = con.execute("SELECT job_id, stop_reason, stop_for FROM leases ORDER BY job_id").fetchall()
        assert stops == [(job, "preempted", urgent) for job in low]


def test_the_board_knows_every_runner_and_counts_versions_anew_in_each_daemon(store):
    store.write(runners.hello, hello())
    board, again = Board(store), Board(store)
    board.refresh()
    first = board._answers["n1"].version
    assert board._answers["n1"].shutdown is None
    store.write(runners.change_node, runners.NodeChange("n1", "draining", "ann", "test", leaving=True))
    board.refresh()
    again.refresh()
    assert (board._answers["n1"].version, board._answers["n1"].shutdown) == (first + 1, "stop")
    assert again._answers["n1"].shutdown == "stop", "a restarted daemon still wants it to leave"
    store.write(runners.hello, hello())
    board.refresh()
    assert board._answers["n1"].shutdown is None, "who registers wants to serve"


def test_processes_are_known_by_pid_and_start():
    from stoker.engine.identity import alive

    own = stat(1)
    assert alive(Process(1, own.started)) and not alive(Process(1, own.started + 1))


def test_every_error_has_an_exit_code_of_its_own():
    codes = {name: kind.exit_code for name, kind in KINDS.items()}
    assert len(set(codes.values())) == len(codes) and codes.pop("error") == 1 and all(code > 1 for code in codes.values())


def test_no_message_is_looked_at_first_while_there_are_threads():
    program = """
import sys, msgspec
from stoker.engine import daemon
looked = []
sys.setprofile(lambda frame, event, arg: looked.append(frame) if "msgspec" in frame.f_code.co_filename else None)
daemon.make_types_ready()
assert looked
looked.clear()
kinds = msgspec.Struct.__subclasses__()
for kind in kinds:
    kinds += kind.__subclasses__()
    try:
        msgspec.json.decode(b"{}", type=kind)
    except msgspec.ValidationError:
        pass
assert len(kinds) > 100 and not looked
"""
    subprocess.run([sys.executable, "-c", program], check=True)
