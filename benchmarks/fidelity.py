"""How near the simulator comes to the live system: the same jobs run for real on two CPU slots and are simulated.

    python benchmarks/fidelity.py [--policy fifo srtf] [--jobs 32] [--gap 9] [--steps 40 320]

Live: a daemon, a real runner with two slots, real workers, each of which trains the toy recipe for a known number of steps; every fifth job
is a gang of two. Jobs come at random times (exponential gaps, one seed for all policies). Then the simulator gets the very submissions
and the few numbers in which a profile of the machine consists, all of them means over leases:

- pace: seconds a step, by size of the gang, from the times of first and last step (steps, unlike seconds, are what a job declares);
- start: from the grant of a first lease until its first step begins, and what more a gang's takes;
- resume: the same of later leases; suspend: from the word to stop until the lease has ended;
- ending: from the last step until the lease of a completed job has ended.

They are taken from the leases of the same run ("own run") and, with two policies or more, of the other runs ("other run"): a forecast, as
good as the machine is steady from one run to the next. "job by job" takes for each job the time that it held its slots, where nobody
interrupted it: what then differs is the scheduling alone. Goal: average JCT within 10 %, own run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.scheduling.guards import PreemptionLimits
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.model import JobSpec, Stop
from stoker.policies import registry

SLOTS = 2
STEP = 0.05  #: seconds of the pause in a step
LIMITS = PreemptionLimits(min_run_time=3.0, max_preemptions=10, cooldown=10.0)  #: the defaults are for jobs longer than these
CONFIG = "[guards]\nmin_run_time = {0.min_run_time}\nmax_preemptions = {0.max_preemptions}\ncooldown = {0.cooldown}\n"
LEASES = Path(__file__).with_name("fidelity.sql")


@dataclass(frozen=True, slots=True)
class Script:
    """The jobs, one a row: when they come (s), and what they are."""

    gap: np.ndarray[Any, Any]  #: seconds since the one before
    steps: np.ndarray[Any, Any]
    gpus: np.ndarray[Any, Any]
    priority: np.ndarray[Any, Any]


def write_script(jobs: int, gap: float, steps: Sequence[int], seed: int) -> Script:
    rng = np.random.default_rng(seed)
    least, most = steps
    return Script(
        gap=np.append(0.0, rng.exponential(gap, jobs - 1)),
        steps=np.exp(rng.uniform(np.log(least), np.log(most), jobs)).round().astype(int),
        gpus=np.where(np.arange(jobs) % 5 == 4, SLOTS, 1),
        priority=rng.integers(0, 3, jobs),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What the tables say after a live run, one row a job, and a row a lease in ``leases``."""

    submitted: np.ndarray[Any, Any]
    jct: np.ndarray[Any, Any]
    preemptions: int
    leases: list[dict[str, Any]]


def live(policy: str, script: Script) -> Run:
    with Daemon() as daemon:
        policies = f'[policy]\nname = "{policy}"\n'
        daemon.home.config.write_text(policies + CONFIG.format(LIMITS))
        daemon.start()
        daemon.start_runner(SLOTS)
        client = daemon.client()
        daemon.wait_for("the runner registers", lambda: bool(client.get("/v1/runners")["runners"]))
        _warm_up(daemon)
        start = time.monotonic()
        for number, moment in enumerate(np.cumsum(script.gap).tolist()):
            time.sleep(max(0.0, start + moment - time.monotonic()))
            client.post_raw("/v1/jobs", msgspec.json.encode(submission(_job(script, number))))
        longest = 120.0 + 60.0 * len(script.steps)
        daemon.wait_for("the jobs end", lambda: not _unfinished(daemon), longest)
        return _read(daemon, len(script.steps))


def _warm_up(daemon: Daemon) -> None:
    """The first import of torch reads its files from disk: not what later jobs pay."""
    job = JobSpec(name="warm-up", recipe="toy", gpus_min=SLOTS, gpus_max=SLOTS, stop=Stop(iterations=2))
    daemon.client().post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
    daemon.wait_for("the first job ends", lambda: not _unfinished(daemon))


def _unfinished(daemon: Daemon) -> int:
    time.sleep(0.5)  # asking must not cost what is measured
    return int(daemon.query("SELECT count(*) FROM jobs WHERE finished_at IS NULL")[0][0])


def _job(script: Script, number: int) -> JobSpec:
    steps, gpus = int(script.steps[number]), int(script.gpus[number])
    return JobSpec(
        name=f"job-{number}", recipe="toy", params={"step_ms": 1e3 * STEP, "eval_every": 0, "checkpoint_every": 0, "seed": number},
        gpus_min=gpus, gpus_max=gpus, priority=int(script.priority[number]), stop=Stop(iterations=steps), estimate=steps * STEP,
    )  # fmt: skip


def _read(daemon: Daemon, jobs: int) -> Run:
    rows = daemon.query(
        "SELECT name, state, epoch(submitted_at), epoch(finished_at - submitted_at), preemptions, id FROM jobs WHERE id > 1 ORDER BY id"
    )
    if any(row[1] != "completed" for row in rows) or len(rows) != jobs:
        why = daemon.query(
            "SELECT j.name, arg_max(e.reason, e.seq) FROM jobs j JOIN events e ON e.job_id = j.id WHERE j.state <> 'completed' GROUP BY 1"
        )
        raise SystemExit("not completed: " + ", ".join(f"{name} ({reason})" for name, reason in why))
    columns = ("job", "attempt", "gpus", "granted", "told", "ended", "reports", "first", "last", "first_step", "last_step")
    leases = [dict(zip(columns, row, strict=True)) for row in daemon.query(LEASES.read_text()) if row[0] > 1]
    submitted = np.array([row[2] for row in rows])
    return Run(submitted - submitted[0], np.array([row[3] for row in rows]), sum(row[4] for row in rows), leases)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds, means over leases; by size of the gang where there are two."""

    pace: Mapping[int, float]
    start: Mapping[int, float]
    suspend: float
    resume: Mapping[int, float]
    ending: float


def measure(leases: Sequence[Mapping[str, Any]]) -> Measured:
    trained = [lease for lease in leases if lease["reports"] >= 2]
    pace = {}
    for gpus in (1, SLOTS):
        same = [lease for lease in trained if lease["gpus"] == gpus] or trained
        pace[gpus] = sum(lease["last"] - lease["first"] for lease in same) / sum(lease["last_step"] - lease["first_step"] for lease in same)

    def until_first_step(*, resumed: bool) -> dict[int, float]:
        found = {
            gpus: [
                lease["first"] - pace[gpus] - lease["granted"]
                for lease in trained
                if lease["gpus"] == gpus and (lease["attempt"] > 1) == resumed
            ]
            for gpus in (1, SLOTS)
        }
        every = [seconds for several in found.values() for seconds in several]
        return {gpus: float(np.mean(several or every)) for gpus, several in found.items()} if every else {}

    start = until_first_step(resumed=False)
    suspended = [lease["ended"] - lease["told"] for lease in leases if lease["told"] is not None]
    endings = [lease["ended"] - lease["last"] for lease in trained if lease["told"] is None]
    return Measured(
        pace, start, float(np.mean(suspended)) if suspended else 0.0, until_first_step(resumed=True) or start, float(np.mean(endings))
    )


def predicted(script: Script, measured: Measured) -> np.ndarray[Any, Any]:
    """Seconds of work of each job. What the start of a gang takes longer than that of a single job is counted as work."""
    pace, start = (np.array([of[int(gpus)] for gpus in script.gpus]) for of in (measured.pace, measured.start))
    work: np.ndarray[Any, Any] = script.steps * pace + measured.ending + np.maximum(0.0, start - measured.start[1])
    return work


def as_it_was(script: Script, run: Run, measured: Measured) -> np.ndarray[Any, Any]:
    """The same, but what a job in truth held its slots for, where nobody interrupted it."""
    work = predicted(script, measured)
    numbers = [lease["job"] for lease in run.leases]
    for lease in run.leases:
        if numbers.count(lease["job"]) == 1:
            work[lease["job"] - min(numbers)] = max(0.0, lease["ended"] - lease["granted"] - measured.start[1])
    return work


def simulated(
    policy: str, script: Script, run: Run, measured: Measured, duration: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], int]:
    """JCT of each job, and preemptions in all."""
    workload = make_workload("live", run.submitted, duration, script.gpus, priority=script.priority)
    more = max(0.0, measured.resume[SLOTS] - measured.resume[1])
    costs = Costs(
        suspend=measured.suspend, resume=measured.resume[1], resume_per_gpu=more / (SLOTS - 1), cold_start=measured.start[1],
        warm_start=measured.start[1],
    )  # fmt: skip
    result = simulate(workload, Cluster((SLOTS,)), registry.create(policy, {}), Options(costs=costs, limits=LIMITS))
    return result.fates.ended - run.submitted, int(result.fates.preemptions.sum())


def compare(policy: str, script: Script, run: Run, source: str, measured: Measured, duration: np.ndarray[Any, Any]) -> dict[str, Any]:
    jct, preemptions = simulated(policy, script, run, measured, duration)
    average = float(run.jct.mean())
    return {
        "policy": policy,
        "measured in": source,
        "jobs": len(run.jct),
        "live JCT s": average,
        "simulated s": float(jct.mean()),
        "difference %": 100 * (float(jct.mean()) / average - 1),
        "of a job, median |error| %": float(np.median(100 * np.abs(jct / run.jct - 1))),
        "preemptions live": run.preemptions,
        "simulated": preemptions,
    }


def describe(policy: str, run: Run, measured: Measured) -> dict[str, Any]:
    return {
        "run": policy,
        "leases": len(run.leases),
        "start s": measured.start[1],
        "of a gang": measured.start[SLOTS],
        "step s": measured.pace[1],
        "of a gang ": measured.pace[SLOTS],
        "ending s": measured.ending,
        "suspend s": measured.suspend,
        "resume s": measured.resume[1],
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--policy", nargs="+", default=["fifo", "srtf"])
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--gap", type=float, default=9.0, help="mean seconds between submissions")
    parser.add_argument("--steps", nargs=2, type=int, default=[40, 320], help="least and most steps of a job")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    began = machine()
    script = write_script(options.jobs, options.gap, options.steps, options.seed)
    runs: dict[str, Run] = {}
    for policy in options.policy:
        progress(f"{policy}: {options.jobs} jobs, live")
        runs[policy] = live(policy, script)
    compared = []
    for policy, run in runs.items():
        own = measure(run.leases)
        compared.append(compare(policy, script, run, "own run", own, predicted(script, own)))
        compared.append(compare(policy, script, run, "own run, job by job", own, as_it_was(script, run, own)))
        others = [lease for other, of in runs.items() if other != policy for lease in of.leases]
        if others:
            other = measure(others)
            compared.append(compare(policy, script, run, "other run", other, predicted(script, other)))
    found = [describe(policy, run, measure(run.leases)) for policy, run in runs.items()]
    show(options, began, {"Average JCT, live and simulated": compared, "Measured, means over leases": found})


if __name__ == "__main__":
    main()
