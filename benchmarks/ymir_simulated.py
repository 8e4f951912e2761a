"""Fine-tunings that begin with what others have left, live and simulated: how near the simulator comes to when they end.

    python benchmarks/ymir_simulated.py [--jobs 20] [--gap 4] [--tasks movies amazon nyt]

Live: a daemon with the policy `ymir`, a runner with two slots, real trainings of ``text-classifier`` on MiniLM to a target of the accuracy.
First the tables are taught: a job of each data set from the backbone, then each with the adapter of each other one (``begin: job:``).
Then ``--jobs`` jobs of random data sets come at random times, all with ``begin: auto``.

The simulator gets the very submissions, those that taught before them, and from the daemon's tables: the steps of each data set from the
backbone, the gain of each pair (the view `transfers`), the seconds of a step, of a start (to the first step, from when a slot was free for
the job) and of an end, means over the leases of the ``--jobs`` that started warm. *Forecast*: the same by the leases that taught. Goal:
mean completion time within 10 %, own run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.adapters.adapter_choice import LEAST_GAIN
from stoker.engine.scheduling.guards import PreemptionLimits
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.model import JobSpec, Stop
from stoker.policies import registry
from stoker.policies.contract import Profile
from stoker.policies.estimate.transfers import Transfers

SLOTS = 2
LIMITS = PreemptionLimits(min_run_time=60.0)  #: longer than these jobs take, which so are not preempted
CONFIG = f'[policy]\nname = "ymir"\n[guards]\nmin_run_time = {LIMITS.min_run_time}\n'
BEFORE = 1e5  #: seconds before the first of the jobs that are compared, at which in the simulation those that taught have come
LEASES = """
SELECT l.job_id AS job, coalesce(any_value(l.warm), false) AS warm,
       greatest(epoch(any_value(j.submitted_at)), lag(epoch(any_value(l.ended_at))) OVER (PARTITION BY g.gpu_id ORDER BY l.id)) AS free,
       epoch(any_value(l.ended_at)) AS ended, epoch(min(m.ts)) AS first, epoch(max(m.ts)) AS last, count(m.step) AS steps
FROM leases l JOIN jobs j ON j.id = l.job_id JOIN lease_gpus g ON g.lease_id = l.id
JOIN metrics m ON m.lease_id = l.id AND m.rank = 0 AND m.name = 'loss'
GROUP BY l.id, l.job_id, g.gpu_id ORDER BY l.job_id
"""


@dataclass(frozen=True)
class Measured:
    """Seconds, means over leases."""

    pace: float
    start: float
    ending: float


class Bench:
    def __init__(self, daemon: Daemon, params: Mapping[str, Any], stop: Stop) -> None:
        self.daemon, self.params, self.stop = daemon, params, stop
        self.data: dict[int, str] = {}  #: of each job

    def submit(self, data: str, begin: str) -> int:
        job = JobSpec(
            name=f"{data}-{len(self.data)}", kind="finetune", recipe="text-classifier", backbone="minilm",
            params={**self.params, "data": data}, stop=self.stop, begin=begin, estimate=60.0,
        )  # fmt: skip
        self.daemon.client().post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
        number = len(self.data) + 1
        self.data[number] = data
        return number

    def ended(self) -> None:
        asked = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
        self.daemon.wait_for("jobs end", lambda: self._asked(asked)[0][0] == 0, 3600.0)
        failed = self._asked("SELECT name, state, state_reason FROM jobs WHERE state <> 'completed'")
        if failed:
            raise SystemExit("not completed: " + ", ".join(f"{name} ({state}: {why})" for name, state, why in failed))

    def _asked(self, query: str) -> list[list[Any]]:
        time.sleep(0.5)  # asking must not cost what is measured
        return self.daemon.query(query)

    def teach(self, tasks: Sequence[str]) -> list[int]:
        alone = {task: self.submit(task, "never") for task in tasks}
        self.ended()
        pairs = [self.submit(task, f"job:{alone[source]}") for task in tasks for source in tasks if source != task]
        self.ended()
        return [*alone.values(), *pairs]

    def come(self, tasks: Sequence[str], jobs: int, gap: float, seed: int) -> list[int]:
        draw = np.random.default_rng(seed)
        due, found = time.monotonic(), []
        for number in range(jobs):
            due += float(draw.exponential(gap)) if number else 0.0
            time.sleep(max(0.0, due - time.monotonic()))
            found.append(self.submit(tasks[draw.integers(len(tasks))], "auto"))
        self.ended()
        return found

    def measure(self, jobs: Sequence[int]) -> Measured:
        columns = ("job", "warm", "free", "ended", "first", "last", "steps")
        leases = [dict(zip(columns, row, strict=True)) for row in self.daemon.query(LEASES) if row[0] in jobs]
        leases = [lease for lease in leases if lease["warm"]] or leases
        several = [lease for lease in leases if lease["steps"] > 1]
        pace = sum(lease["last"] - lease["first"] for lease in several) / max(sum(lease["steps"] - 1 for lease in several), 1)
        start = np.mean([lease["first"] - lease["free"] - pace for lease in leases])
        return Measured(pace, max(float(start), 0.0), float(np.mean([lease["ended"] - lease["last"] for lease in leases])))

    def known(self, tasks: Sequence[str]) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
        """Steps of a data set from the backbone, and what is left of them with the adapter of another one."""
        cold = self.daemon.query("SELECT data, avg(steps) FROM adapters WHERE NOT begun GROUP BY data")
        gains = self.daemon.query(
            "SELECT from_data, data, exp(avg(ln(measured))) FROM transfers WHERE measured > 0 AND NOT same_data GROUP BY ALL"
        )
        return {data: float(steps) for data, steps in cold}, {(one, two): 1 / float(gain) for one, two, gain in gains if gain >= LEAST_GAIN}

    def simulated(self, tasks: Sequence[str], taught: Sequence[int], jobs: Sequence[int], measured: Measured) -> np.ndarray[Any, Any]:
        """Completion times of ``jobs``."""
        steps, left = self.known(tasks)
        came = dict(self.daemon.query("SELECT id, epoch(submitted_at) FROM jobs"))
        begin = min(came[job] for job in jobs)
        submitted = [BEFORE * (number + 1) / len(taught) - BEFORE for number in range(len(taught))]
        submitted = [BEFORE + at for at in (*submitted, *(came[job] - begin + 1.0 for job in jobs))]
        names = [self.data[job] for job in (*taught, *jobs)]
        ratios = np.array([[left.get((one, two), np.nan) if one != two else 0.0 for two in tasks] for one in tasks])
        workload = make_workload(
            "live", submitted, [steps[name] * measured.pace for name in names], [1] * len(names), models=names,
            profiles=[Profile(task) for task in tasks], kind=["finetune"] * len(names), backbone=["minilm"] * len(names),
            transfers=Transfers(ratios),
        )  # fmt: skip
        starts = measured.start + measured.ending  # neither is shorter for who begins with an adapter
        options = Options(costs=Costs(cold_start=starts, warm_start=starts, resume=starts, handover=starts), limits=LIMITS)
        took = simulate(workload, Cluster((SLOTS,)), registry.create("ymir", {}), options).fates.ended - workload.submitted
        return np.asarray(took[len(taught) :])


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--gap", type=float, default=4.0, help="mean seconds between submissions")
    parser.add_argument("--tasks", nargs="+", default=["movies", "amazon", "nyt"], help="packaged sets")
    parser.add_argument("--target", type=float, default=0.7, help="accuracy")
    parser.add_argument("--steps", type=int, default=24, help="at most, of a job")
    parser.add_argument("--limit", type=int, default=200, help="texts to train on")
    parser.add_argument("--eval-limit", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    began = machine()
    params = {"layers": "last", "limit": options.limit, "eval_limit": options.eval_limit, "eval_every": 2, "checkpoint_every": 0}
    stop = Stop(iterations=options.steps, metric="accuracy", target=options.target)
    with Daemon() as daemon:
        daemon.home.config.write_text(CONFIG)
        daemon.start()
        daemon.start_runner(SLOTS)
        bench = Bench(daemon, params, stop)
        progress("teaching the tables")
        taught = bench.teach(options.tasks)
        progress(f"{options.jobs} jobs")
        jobs = bench.come(options.tasks, options.jobs, options.gap, options.seed)
        live = np.array(
            [row[0] for row in daemon.query(f"SELECT epoch(finished_at - submitted_at) FROM jobs WHERE id >= {jobs[0]} ORDER BY id")]
        )
        rows, seconds = [], []
        for name, source in (("own run", jobs), ("forecast", taught)):
            measured = bench.measure(source)
            jct = bench.simulated(options.tasks, taught, jobs, measured)
            rows.append({
                "measured in": name, "jobs": len(jobs), "live JCT s": float(live.mean()), "simulated s": float(jct.mean()),
                "difference %": 100 * (float(jct.mean()) / float(live.mean()) - 1),
                "of a job, median |error| %": float(np.median(100 * np.abs(jct / live - 1))),
            })  # fmt: skip
            seconds.append({"leases of": name, "start s": measured.start, "step s": measured.pace, "ending s": measured.ending})
        steps, left = bench.known(options.tasks)
        kinds = [{"data": task, "steps": steps[task], **{f"left of it from {one}": left.get((one, task), 1.0) if one != task else "-"
                  for one in options.tasks}} for task in options.tasks]  # fmt: skip
        outcomes = daemon.query(f"SELECT outcome, count(*), sum(cost_steps) FROM transfers WHERE job_id >= {jobs[0]} GROUP BY 1 ORDER BY 1")
    came = [{"outcome": outcome, "jobs": count, "steps of trials": cost} for outcome, count, cost in outcomes]
    show(options, began, {
        "Mean completion time, live and simulated": rows, "Measured, means over leases": seconds, "Steps, and gains of pairs": kinds,
        "What came of them live": came,
    })  # fmt: skip


if __name__ == "__main__":
    main()
