"""The workflow on a real store, with a runner that is only messages: states, leases, retries, dependencies, fencing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from stoker.engine.errors import Conflict, NotFound, Stale, UsageError
from stoker.engine.fleet import registration as runners
from stoker.engine.fleet.watch import run_out
from stoker.engine.jobs import leases
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.moves import Move, move
from stoker.engine.jobs.outcomes import End, judge
from stoker.engine.jobs.states import FINAL, TRANSITIONS, State
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Record, Records, Report, WorkerUpdate
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.spec.model import Demand, Dependency, JobSpec, Provenance, Retries, Stop, Submission, Tier
from stoker.engine.store.store import Store

SLOTS = 4
HELLO = Hello(protocol=VERSION, version="t", node="n1", host="h", boot_id="b", pid=1, pid_started=1.0, home="/h", address="localhost",
              pool="default", gpus=[], leases=[])  # fmt: skip


def _granted_long_ago(tx, batch):
    tx.update("leases", ["id"], [{"id": lease, "granted_at": 1.0} for lease in batch])
    return [None] * len(batch)


class Host:
    """A store with one runner, and short words for what the parts of the system would do."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.session = self.hello()

    def hello(self, node: str = "n1", slots: int = SLOTS, known: Sequence[int] = ()) -> int:
        gpus = [GpuInfo(id=f"{node}/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(slots)]
        return self.store.write(runners.hello, msgspec.structs.replace(HELLO, node=node, gpus=gpus, leases=list(known)))

    def submit(self, *specs: JobSpec) -> list[int]:
        request = SubmitRequest(Submission(jobs=list(specs), provenance=Provenance(argv=["x"], cwd="/")), "ann")
        return [row["id"] for row in self.store.write(submit, request)]

    def grant(self, job: int, *slots: int, node: str = "n1", expires: float | None = None) -> int:
        given = leases.Grant(job, tuple((f"{node}/cpu{slot}", node) for slot in slots or (0,)), expires)
        enacted = self.enact(grants=[given])
        assert not enacted.skipped, enacted.skipped
        (lease,) = enacted.leases
        self.store.write(_granted_long_ago, lease)  # its runner may tell of any time
        return lease

    def enact(self, **what):
        decision = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")
        return self.store.write(enact, Enactment(decision, **what))

    def report(self, *updates: WorkerUpdate, records: Sequence[Records] = (), node: str = "n1", session: int | None = None):
        message = Report(node=node, session=session or self.session, workers=list(updates), records=list(records))
        return self.store.write(runners.report, message)

    def run(self, lease: int, now: float = 100.0) -> None:
        self.report(WorkerUpdate(lease=lease, state="running", ts=now, pid=7, pid_started=1.0, boot_id="b", run_dir="/r"))

    def exit(self, lease: int, outcome: str = "completed", code: int = 0, ts: float = 200.0, **more):
        return self.report(WorkerUpdate(lease=lease, state="exited", ts=ts, exit_code=code, outcome=outcome, **more))

    def stop(self, lease: int, reason: str = "preempted", for_job: int | None = None) -> None:
        self.enact(stops=[leases.LeaseStop(lease, reason, "policy:test", for_job)])

    def control(self, action: str, *jobs: int, **more) -> list[str]:
        return [row["message"] for row in self.store.write(control, Control(action, jobs, "ann", **more))]

    def job(self, number: int) -> dict:
        return self.store.objects("api/job", number)[0]

    def state(self, number: int) -> str:
        return self.job(number)["state"]

    def history(self, number: int) -> list[str]:
        with self.store.read() as con:
            rows = con.execute("SELECT after FROM events WHERE job_id = $1 AND kind = 'job.state' ORDER BY seq", [number])
            return [row[0] for row in rows.fetchall()]


@pytest.fixture
def host(store: Store) -> Host:
    return Host(store)


def spec(name: str = "job", **fields) -> JobSpec:
    return JobSpec(name=name, **{"recipe": "toy", **fields})


def test_a_job_goes_through_its_states_each_with_an_event(host):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.report(WorkerUpdate(lease=lease, state="starting", ts=99.0))
    host.run(lease)
    host.exit(lease)
    assert host.history(job) == ["submitted", "pending", "assigned", "starting", "running", "completed"]
    row = host.job(job)
    assert (row["outcome"], row["exit_code"], row["lease_id"], row["attempts"]) == ("completed", 0, None, 1)
    assert row["finished_at"] is not None and row["run_time"] > 0 and row["attained"] == row["run_time"]


def test_every_transition_that_is_not_in_the_table_is_refused(host):
    (job,) = host.submit(spec())

    def to(state):
        def command(tx, batch):
            move(tx, [Move(job, state, "test", "test")])
            return [None]

        return command

    for state in State:
        if state not in TRANSITIONS[State.PENDING]:
            with pytest.raises(Conflict, match="no transition from pending"):
                host.store.write(to(state), None)
    assert host.state(job) == "pending"


def test_final_states_lead_nowhere_and_every_state_is_reachable():
    reached, frontier = {State.SUBMITTED}, [State.SUBMITTED]
    while frontier:
        for following in TRANSITIONS[frontier.pop()] - reached:
            reached.add(following)
            frontier.append(following)
    assert reached == set(State)
    assert {State.COMPLETED, State.FAILED, State.CANCELLED} == FINAL


def test_preemption_returns_a_job_to_the_queue_and_counts(host):
    first, second = host.submit(spec("a"), spec("b"))
    lease = host.grant(first)
    host.run(lease)
    host.stop(lease, for_job=second)
    assert host.state(first) == "suspending"
    host.exit(lease, "stopped", 75)
    row = host.job(first)
    assert (row["state"], row["preemptions"], row["failures"], row["state_reason"]) == ("pending", 1, 0, "preempted")
    again = host.grant(first)
    assert again > lease and host.job(first)["attempts"] == 2


def test_a_script_that_dies_of_the_stop_signal_was_stopped_and_did_not_fail(host):
    (job,) = host.submit(spec(command=("sleep", "9"), recipe=None))
    lease = host.grant(job)
    host.run(lease)
    host.stop(lease)
    host.exit(lease, "failed", -15)
    assert (host.state(job), host.job(job)["failures"]) == ("pending", 0)


def test_a_job_that_ends_by_itself_while_it_is_being_stopped_is_complete(host):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.run(lease)
    host.stop(lease)
    host.exit(lease, "completed", 0)
    assert host.state(job) == "completed"


def test_failures_are_retried_with_backoff_up_to_the_limit(host):
    (job,) = host.submit(spec(retries=Retries(limit=2, backoff=10, factor=3)))
    delays = []
    for _ in range(3):
        lease = host.grant(job)
        host.run(lease)
        host.exit(lease, "failed", 1)
        row = host.job(job)
        delays.append(None if row["not_before"] is None else round((row["not_before"] - row["state_since"]).total_seconds()))
    assert delays == [10, 30, None]
    assert (row["state"], row["failures"], row["outcome"], row["exit_code"]) == ("failed", 3, "failed", 1)


def test_exit_codes_that_are_final_are_not_retried(host):
    (job,) = host.submit(spec(retries=Retries(limit=5, never_on=(3,))))
    host.exit(host.grant(job), "failed", 3)
    assert host.state(job) == "failed"


COMMAND, ENTRYPOINT = {"command": ("train",), "recipe": None}, {"entrypoint": "train:task", "recipe": None}


@pytest.mark.parametrize(
    ("fields", "outcome", "stop", "state"),
    [
        ({}, "failed", None, "failed"),
        (ENTRYPOINT, "failed", None, "failed"),
        (COMMAND, "failed", None, "pending"),
        (ENTRYPOINT, "failed", "preempted", "pending"),
        (ENTRYPOINT, "stopped", "timeout", "pending"),
        (ENTRYPOINT, "lost", None, "pending"),
    ],
)
@pytest.mark.sampled(2)
def test_what_our_own_worker_finds_wrong_with_a_job_is_final(host, fields, outcome, stop, state):
    (job,) = host.submit(spec(retries=Retries(limit=50), **fields))
    lease = host.grant(job)
    host.run(lease)
    if stop:
        host.stop(lease, stop)
    host.exit(lease, outcome, 2)
    row = host.job(job)
    assert row["state"] == state
    assert row["state_reason"].endswith("; the job itself is wrong, so it is not tried again") == (state == "failed")


def test_out_of_memory_is_retried_once_at_most():
    retries = Retries(limit=10)
    assert judge(End("oom", 1, None), retries, failures=0, cancelled=False, held=False).state is State.PENDING
    assert judge(End("oom", 1, None), retries, failures=1, cancelled=False, held=False).state is State.FAILED
    beside = judge(End("oom", 1, None), Retries(limit=0), failures=1, cancelled=False, held=False, shared=True)
    assert (beside.state, beside.failed, beside.alone) == (State.PENDING, False, True), "it may be the other job's doing"


def reports(lease: int, *records: Record, rank: int = 0) -> list[Records]:
    return [Records(lease=lease, rank=rank, records=list(records))]


@pytest.mark.parametrize(
    ("reason", "record", "state"),
    [
        ("preempted", None, "pending"),
        ("preempted", Record(seq=1, ts=150.0, step=98, total=100), "pending"),
        ("preempted", Record(seq=1, ts=150.0, step=99, total=100), "completed"),
        ("timeout", Record(seq=1, ts=150.0, step=100, total=100), "completed"),
        ("timeout", Record(seq=1, ts=150.0, step=50, total=100), "failed"),
        ("cancelled", Record(seq=1, ts=150.0, step=50, total=100), "cancelled"),
        ("preempted", Record(seq=1, ts=150.0, step=3, values={"accuracy": 0.95}), "completed"),
        ("preempted", Record(seq=1, ts=150.0, step=3, values={"accuracy": 0.85}), "pending"),
    ],
)
@pytest.mark.sampled(2)
def test_exit_0_of_a_job_that_was_stopped_is_its_end_when_its_last_reports_say_so(host, reason, record, state):
    job, after = host.submit(spec(stop=Stop(metric="accuracy", target=0.9)), spec(name="after", after=(Dependency("job"),)))
    lease = host.grant(job)
    host.run(lease)
    host.stop(lease, reason)
    exited = WorkerUpdate(lease=lease, state="exited", ts=200.0, exit_code=0, outcome="stopped")
    host.report(exited, records=reports(lease, record) if record else ())  # one message: the last reports come with the end
    assert host.state(job) == state
    assert (host.state(after) == "pending") == (state == "completed")


def test_steps_of_an_attempt_before_end_no_job(host):
    (job,) = host.submit(spec(retries=Retries(limit=1)))
    first = host.grant(job)
    host.run(first)
    failed = WorkerUpdate(lease=first, state="exited", ts=200.0, exit_code=1, outcome="failed")
    host.report(failed, records=reports(first, Record(seq=1, ts=150.0, step=99, total=100)))
    second = host.grant(job)
    host.run(second, now=300.0)
    host.stop(second)
    host.exit(second, "stopped", 0)
    assert host.state(job) == "pending"


@pytest.mark.parametrize("outcome", ["lost", "unkillable"])
def test_a_lost_worker_is_nobodys_failure(host, outcome):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.run(lease)
    host.exit(lease, outcome, None)
    assert (host.state(job), host.job(job)["failures"], host.job(job)["preemptions"]) == ("pending", 0, 0)


def test_a_signal_from_outside_after_which_the_worker_left_cleanly_requeues(host):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.run(lease)
    host.exit(lease, "stopped", 75)
    assert (host.state(job), host.job(job)["failures"]) == ("pending", 0)


def test_cancelling_in_every_state(host):
    pending, running, suspending, assigned, held, done = host.submit(*(spec(f"j{i}") for i in range(6)))
    a, b, c = host.grant(running, 0), host.grant(suspending, 1), host.grant(assigned, 2)
    d = host.grant(done, 3)
    for lease in (a, b, d):
        host.run(lease)
    host.exit(d)
    host.stop(b)
    host.control("hold", held)
    messages = host.control("cancel", pending, running, suspending, assigned, held, done)
    assert messages == ["cancelled", *["is being stopped"] * 3, "cancelled", "had already ended as completed"]
    assert [host.state(j) for j in (pending, running, suspending, assigned, held)] == ["cancelled", *["suspending"] * 3, "cancelled"]
    host.exit(a, "failed", -15)
    host.exit(b, "stopped", 75)
    host.exit(c, "stopped", None)
    assert {host.state(j) for j in (running, suspending, assigned)} == {"cancelled"}


def test_hold_and_release(host):
    waiting, running = host.submit(spec("w"), spec("r"))
    lease = host.grant(running)
    host.run(lease)
    host.control("hold", waiting, running)
    assert (host.state(waiting), host.state(running)) == ("submitted", "suspending")
    host.exit(lease, "stopped", 75)
    assert host.state(running) == "submitted"
    assert host.control("hold", running) == ["was held already"]
    assert host.enact(grants=[leases.Grant(waiting, (("n1/cpu0", "n1"),), None)]).skipped == {waiting: "no longer waits"}
    host.control("release", waiting, running)
    assert (host.state(waiting), host.state(running)) == ("pending", "pending")
    assert host.job(running)["preemptions"] == 0


def test_a_hold_says_whether_there_is_a_checkpoint(host):
    saved, not_saved = host.submit(spec("saved"), spec("not-saved"))
    for job in (saved, not_saved):
        lease = host.grant(job, job % 2)
        host.run(lease)
        record = Record(seq=1, ts=1000.0, step=1, values={"loss": 1.0}, checkpoint=1 if job == saved else None)
        host.report(records=[Records(lease=lease, rank=0, records=[record])])
    with_one, without = host.control("hold", saved, not_saved)
    assert with_one == "is being stopped; when released, it goes on from its checkpoint"
    assert without == "is being stopped; when released, it goes on from what it saves now, or begins anew if it saves nothing"


def test_priority_changes_while_queued(host):
    (job,) = host.submit(spec(priority=1))
    assert host.control("priority", job, priority=9) == ["priority 1 -> 9"]
    assert host.job(job)["priority"] == 9


def test_dependencies_release_cancel_and_cascade(host):
    a, b, c, d, e = host.submit(
        spec("a"), spec("b", after=(Dependency("a"),)), spec("c", after=(Dependency("a", "any"),)), spec("d", after=(Dependency("b"),)),
        spec("e", after=(Dependency("b"), Dependency("c"))),
    )  # fmt: skip
    assert [host.state(j) for j in (a, b, c, d, e)] == ["pending", *["submitted"] * 4]
    host.exit(host.grant(a), "failed", 1)
    assert [host.state(j) for j in (b, c, d, e)] == ["cancelled", "pending", "cancelled", "cancelled"]
    assert host.job(d)["outcome"] == "dependency" and "job 2" in host.job(d)["state_reason"]


def test_a_job_waits_for_all_that_it_needs(host):
    a, b, c = host.submit(spec("a"), spec("b"), spec("c", after=(Dependency("a"), Dependency("b"))))
    host.exit(host.grant(a))
    assert host.state(c) == "submitted"
    host.exit(host.grant(b))
    assert host.state(c) == "pending"


def test_dependencies_on_earlier_submissions_and_on_what_has_ended(host):
    (a,) = host.submit(spec("a"))
    host.exit(host.grant(a))
    (b,) = host.submit(spec("b", after=(Dependency("a"),)))
    assert host.state(b) == "pending"
    host.exit(host.grant(b), "failed", 1)
    with pytest.raises(UsageError, match="could never start"):
        host.submit(spec("c", after=(Dependency("b"),)))
    with pytest.raises(NotFound, match=r"'zz'.*no such job"):
        host.submit(spec("c", after=(Dependency("zz"),)))


def test_idempotency_keys_answer_with_the_first_job(host):
    (first,) = host.submit(spec(idempotency_key="k"))
    (again,) = host.submit(spec(idempotency_key="k"))
    assert first == again
    with host.store.read() as con:
        assert con.execute("SELECT count(*) FROM jobs").fetchall() == [(1,)]


def test_a_submission_is_taken_whole_or_not_at_all(host):
    with pytest.raises(UsageError, match="asks for 99 GPUs, pool 'default' has 4"):
        host.submit(spec("fits"), spec("huge", gpus_min=99, gpus_max=99))
    with host.store.read() as con:
        assert con.execute("SELECT count(*) FROM jobs").fetchall() == [(0,)]
    with pytest.raises(UsageError, match=r"no runner offers pool 'defualt' \(did you mean 'default'\?\)"):
        host.submit(spec(pool="defualt"))


def test_deadline_steps_are_kept(host):
    tiers = (Tier(2e9, 80.0), Tier(3e9, 50.0))
    (job,) = host.submit(spec(demand=Demand("soft", tiers)))
    assert [(row[1], row[2]) for row in host.store.rows("policy/tiers", "default")] == [(2e9, 80.0), (3e9, 50.0)]
    assert host.job(job)["deadline"].year == 2065


def test_no_gpu_is_given_twice(host):
    a, b = host.submit(spec("a"), spec("b"))
    host.grant(a, 0)
    taken = leases.Grant(b, (("n1/cpu0", "n1"),), None)
    assert host.enact(grants=[taken]).skipped == {b: "its GPUs are no longer free"}
    c, d = host.submit(spec("c"), spec("d"))
    both = [leases.Grant(job, (("n1/cpu1", "n1"),), None) for job in (c, d)]
    assert set(host.enact(grants=both).skipped) == {d}


def test_reports_of_a_lease_that_has_ended_are_not_taken(host):
    (job,) = host.submit(spec())
    old = host.grant(job)
    host.run(old)
    host.exit(old, "lost", None)
    new = host.grant(job)
    late = [Records(lease=old, rank=0, records=[Record(seq=1, ts=1.0, step=1, values={"loss": 1.0})])]
    assert host.report(records=late).stale == [old]
    assert host.exit(old, "completed").stale == [old]
    assert host.state(job) == "assigned" and host.job(job)["lease_id"] == new
    with host.store.read() as con:
        assert con.execute("SELECT count(*) FROM metrics").fetchall() == [(0,)]


def test_an_agent_of_an_older_session_is_turned_away(host):
    old = host.session
    host.session = host.hello()
    with pytest.raises(Stale, match="another agent has registered"):
        host.report(session=old)


def test_records_sent_again_are_stored_once(host):
    (job,) = host.submit(spec(stop=Stop(iterations=10, metric="accuracy", target=0.9)))
    lease = host.grant(job)
    host.run(lease)

    def records(*numbers: int) -> list[Records]:
        made = [Record(seq=n, ts=1000.0 + n, step=n, values={"loss": 1.0 / n, "accuracy": n / 10}, checkpoint=n if n == 2 else None)
                for n in numbers]  # fmt: skip
        return [Records(lease=lease, rank=0, records=made)]

    host.report(records=records(1, 2, 3))
    host.report(records=records(2, 3, 4))
    with host.store.read() as con:
        assert con.execute("SELECT list(seq ORDER BY seq) FROM metrics WHERE name = 'loss'").fetchall() == [([1, 2, 3, 4],)]
        step, loss, metric, checkpoint, pace = con.execute(
            "SELECT step, loss, metric, checkpoint_step, seconds_per_step FROM progress"
        ).fetchall()[0]
    assert (step, loss, metric, checkpoint, pace) == (4, 0.25, 0.4, 2, 1.0)


def test_a_gang_over_two_nodes_ends_when_its_last_part_has_and_as_the_worst_of_them(host):
    second = host.hello("n2")
    (job,) = host.submit(spec(gpus_min=2, gpus_max=2))
    lease = host.enact(grants=[leases.Grant(job, (("n1/cpu0", "n1"), ("n2/cpu0", "n2")), None)]).leases[0]
    host.run(lease)
    host.exit(lease, "completed")
    assert host.state(job) == "running"
    host.report(WorkerUpdate(lease=lease, state="exited", ts=200.0, exit_code=-9, outcome="failed"), node="n2", session=second)
    assert (host.state(job), host.job(job)["exit_code"]) == ("failed", -9)


def test_leases_that_a_runner_has_no_trace_of_are_lost_and_those_never_started_are_kept(host):
    started, granted, kept = host.submit(*(spec(f"j{i}") for i in range(3)))
    a, _, c = host.grant(started, 0), host.grant(granted, 1), host.grant(kept, 2)
    host.run(a)
    host.run(c)
    host.session = host.hello(known=[c])
    assert [host.state(j) for j in (started, granted, kept)] == ["pending", "assigned", "running"]


def test_a_runner_declared_dead_loses_its_jobs_and_its_reports(host):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.run(lease)
    host.store.write(runners.change_node, runners.NodeChange("n1", "gone", "ann", "burnt"))
    assert host.state(job) == "pending"
    with pytest.raises(Stale):
        host.exit(lease)  # it must register again
    host.session = host.hello(known=[lease])
    assert host.exit(lease).stale == [lease]
    assert host.state(job) == "pending"


def test_a_name_is_not_taken_over_from_a_runner_that_may_live(host):
    (job,) = host.submit(spec())
    lease = host.grant(job)
    host.run(lease)
    other = msgspec.structs.replace(HELLO, host="elsewhere", gpus=[])
    with pytest.raises(Conflict, match=r"runner n1 is /h on h: choose another --node"):
        host.store.write(runners.hello, other)
    assert host.state(job) == "running"
    host.store.write(runners.change_node, runners.NodeChange("n1", "gone", "ann", "burnt"))
    host.store.write(runners.hello, other)


@pytest.mark.parametrize(("before", "after"), [("stopped", "up"), ("stopped", "draining"), ("gone", "up"), ("up", "drained")])
def test_a_runner_can_not_be_wished_into_a_state(host, before, after):
    if before == "stopped":
        host.store.write(runners.report, Report(node="n1", session=host.session, left=True))
    elif before == "gone":
        host.store.write(runners.change_node, runners.NodeChange("n1", "gone", "ann", "x"))
    what = "stoker runner list" if before == "up" else "stoker runner start"
    with pytest.raises(Conflict, match=f"runner n1 is {before}: .*'{what}'"):
        host.store.write(runners.change_node, runners.NodeChange("n1", after, "ann", "x"))


def test_leases_expire_and_attempts_time_out(host):
    expiring, slow, fine = host.submit(spec("e"), spec("s", timeout=10.0), spec("f", timeout=1e10))
    a, b, c = host.grant(expiring, 0, expires=1.0), host.grant(slow, 1), host.grant(fine, 2)
    for lease in (a, b, c):
        host.run(lease)
    assert host.store.write(run_out, [a, b, c]) == 2
    assert [host.state(j) for j in (expiring, slow, fine)] == ["suspending", "suspending", "running"]
    host.exit(a, "stopped", 75)
    host.exit(b, "stopped", 75)
    assert (host.state(expiring), host.job(expiring)["preemptions"]) == ("pending", 1)
    assert (host.state(slow), host.job(slow)["outcome"]) == ("failed", "timeout")


def test_what_completed_jobs_measured_is_remembered_for_their_model(host):
    for duration in (10.0, 20.0):
        (job,) = host.submit(spec())
        lease = host.grant(job)
        with host.store.read() as con:
            now = con.execute("SELECT epoch(now())").fetchall()[0][0]
        host.run(lease, now - duration)
        host.exit(lease, ts=now)
    with host.store.read() as con:
        samples, mean = con.execute("SELECT samples, duration FROM profiles WHERE model = 'toy'").fetchall()[0]
    assert samples == 2 and mean == pytest.approx(15.0, abs=0.1)
    (new,) = host.submit(spec())
    with host.store.read() as con:
        left = con.execute("SELECT remaining FROM estimates WHERE job_id = $1", [new]).fetchall()[0][0]
    assert left == pytest.approx(mean, abs=0.1)


def test_unknown_work_left_is_unknown_and_not_nothing(host):
    (job,) = host.submit(spec(recipe=None, command=("x",)))
    with host.store.read() as con:
        assert con.execute("SELECT remaining FROM estimates WHERE job_id = $1", [job]).fetchall() == [(None,)]


@pytest.mark.parametrize("outcome", ["failed", "unkillable", "lost"])
@pytest.mark.parametrize(("cause", "words"), [("timeout", "ran longer than its timeout"), ("hang", "made no progress")])
def test_the_first_cause_of_an_end_stands_whatever_follows_it(cause: str, words: str, outcome: str) -> None:
    verdict = judge(End(outcome, 1, cause, "RuntimeError: interrupted"), Retries(limit=0), failures=0, cancelled=False, held=False)
    assert (verdict.state, verdict.outcome) == (State.FAILED, cause)
    assert verdict.reason.startswith(words) and verdict.reason.endswith("and then: RuntimeError: interrupted)")


def test_a_hang_is_told_once() -> None:
    verdict = judge(
        End("hang", -15, "hang", "made no progress, and was stopped"), Retries(limit=0), failures=0, cancelled=False, held=False
    )
    assert (verdict.outcome, verdict.reason) == ("hang", "made no progress, and was stopped")
