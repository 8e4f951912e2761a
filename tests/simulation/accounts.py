"""Workloads of any shape, and the laws that every simulation of them keeps."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scripted import workload
from stoker.engine.scheduling.guards import Actions
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Costs
from stoker.engine.sim.workload import Workload
from stoker.policies.contract import Demand, Phase, Plan, View

NODES = ["1x1", "1x4", "2x2", "1x3,2x2"]
TIMES = st.integers(0, 60).map(float)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 8))
    rows = [(draw(TIMES), draw(st.integers(0, 90).map(float)), draw(st.sampled_from([1, 1, 2, 3, 5]))) for _ in range(n)]
    slack = [draw(st.floats(1.0, 3.0)) for _ in rows]
    demand = [draw(st.sampled_from([Demand.BEST_EFFORT, Demand.SOFT, Demand.STRICT])) for _ in rows]
    tiers = [[] if d == Demand.BEST_EFFORT else [(row[0] + row[1] * by + 1, 100.0)] for row, by, d in zip(rows, slack, demand, strict=True)]
    return workload(rows, demand=demand, tiers=tiers, models=[draw(st.sampled_from("abc")) for _ in rows])


costs = st.builds(
    Costs,
    suspend=st.sampled_from([0.0, 2.0]),
    resume=st.sampled_from([0.0, 3.0]),
    resume_per_gpu=st.sampled_from([0.0, 0.5]),
    cold_start=st.sampled_from([0.0, 5.0]),
    warm_start=st.sampled_from([0.0, 1.0]),
    lost_on_suspend=st.sampled_from([0.0, 4.0]),
    profiling=st.sampled_from([0.0, 7.0]),
    profiler_gpus=st.sampled_from([0, 1]),
    checkpoint_interval=st.sampled_from([0.0, 10.0]),
    failures_per_gpu_hour=st.sampled_from([0.0, 20.0]),
    commit=st.sampled_from([0.0, 0.0, 0.03, 2.5]),
)


class Witness:
    """Looks at each decision as it is carried out."""

    def __init__(self, jobs: Workload, nodes: str) -> None:
        self.jobs, self.total = jobs, Cluster.parse(nodes).total
        self.moments: list[float] = []

    def __call__(self, view: View, plan: Plan, actions: Actions) -> None:
        jobs = view.jobs
        assert not self.moments or view.now >= self.moments[-1], "time goes back"
        self.moments.append(view.now)
        assert (jobs.submitted_at <= view.now).all(), "a job is seen before it is submitted"
        assert np.array_equal(jobs.id, np.sort(jobs.id)), "jobs do not stand in the order of submission"
        held = np.diff(jobs.alloc_start)
        assert ((held > 0) == (jobs.phase != Phase.PENDING)).all(), "a job waits with GPUs or runs without"
        whole = (held >= jobs.gpus_min) & (held <= jobs.gpus_max)
        assert ((held == 0) | whole | (held == jobs.profile_gpus)).all(), "neither a whole gang nor a profiling run"
        shared = {job for group in plan.groups for job in group.jobs}
        users = list(jobs.alloc_gpus.tolist())
        for start in actions.starts:
            assert jobs.phase[np.searchsorted(jobs.id, start.job)] == Phase.PENDING
            users += start.gpus
        assert shared or len(users) == len(set(users)), "a GPU has two users"
        known = jobs.profile_gpus == 0
        assert (jobs.remaining >= -1e-6)[known].all()
        assert (jobs.remaining <= self.jobs.duration[jobs.id] + 1e-6)[known].all(), "more work is left than there was"
        assert np.isnan(jobs.remaining[~known]).all(), "it is known how long an unknown job takes"


def assert_accounts_agree(jobs: Workload, nodes: str, result: Result) -> None:
    fates, bars, usage = result.fates, result.bars, result.usage
    total = Cluster.parse(nodes).total
    ran = fates.gpu_time > 0
    assert np.array_equal(fates.dropped, jobs.gpus_min > total)
    assert not (ran & fates.dropped).any()
    assert (np.isfinite(fates.ended) | fates.rejected | fates.dropped).all(), "a job was lost"
    assert not (np.isfinite(fates.ended) & (fates.rejected | fates.dropped)).any(), "a job has two fates"
    length = bars.ends - bars.begins
    whole = np.unique(np.stack((bars.job, bars.begins, length)), axis=1)  # of a stay on GPUs that are no neighbours there are several
    np.testing.assert_allclose(np.bincount(whole[0].astype(np.int64), whole[2], len(jobs)), fates.run_time, atol=1e-6)
    np.testing.assert_allclose(np.bincount(bars.job, length * bars.gpus, len(jobs)), fates.gpu_time, atol=1e-6)
    for job in range(len(jobs)):
        begins = whole[1, whole[0] == job]
        assert (begins[1:] >= (begins + whole[2, whole[0] == job])[:-1] - 1e-9).all(), "a job runs twice at once"
    # The area under the use over time is the GPU-time held, and it never exceeds the cluster.
    np.testing.assert_allclose((np.diff(usage.ts) * usage.busy[:-1]).sum(), fates.gpu_time.sum(), atol=1e-6)
    assert ((usage.busy >= 0) & (usage.busy <= total) & (usage.running >= 0) & (usage.waiting >= 0)).all()
    assert not len(usage.ts) or (usage.busy[-1], usage.running[-1], usage.waiting[-1]) == (0, 0, 0)
    assert (fates.lost >= -1e-9).all()
    # What was held and not lost is the work, no more and no less: alone and in place every job has speed 1.
    done = np.isfinite(fates.ended)
    np.testing.assert_allclose((fates.gpu_time - fates.lost)[done], (jobs.duration * jobs.gpus_min)[done], atol=1e-6)
    assert (fates.ended[done] >= jobs.submitted[done] + jobs.duration[done] - 1e-9).all()
