"""Places in simulations: a job that was suspended goes on where its checkpoint is."""

from __future__ import annotations

import numpy as np
import pytest
from stoker.engine.scheduling.guards import Actions
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.policies import registry
from stoker.policies.contract import Plan, View


def nodes_of_jobs(policy: str, places: str) -> tuple[dict[int, list[int]], int]:
    """On which nodes each job was started, in order, and how many jobs ended."""
    draw = np.random.default_rng(7)
    jobs = make_workload("w", np.sort(draw.uniform(0, 600, 40)), draw.uniform(20, 400, 40), draw.choice([1, 2], 40))
    started: dict[int, list[int]] = {}

    def observe(view: View, plan: Plan, actions: Actions) -> None:
        for start in actions.starts:
            (node,) = set(view.gpus.node[list(start.gpus)].tolist())
            started.setdefault(start.job, []).append(node)

    result = simulate(jobs, Cluster.parse("3x2"), registry.create(policy, {}), Options(places=places), observer=observe)  # type: ignore[arg-type]
    return started, int(np.isfinite(result.fates.ended).sum())


@pytest.mark.parametrize("policy", ["srtf", "gandiva"])
def test_with_a_disk_a_node_jobs_resume_where_they_were(policy: str) -> None:
    roaming, ended = nodes_of_jobs(policy, "shared")
    assert any(len(set(nodes)) > 1 for nodes in roaming.values()) and ended == 40
    bound, ended = nodes_of_jobs(policy, "node")
    assert any(len(nodes) > 1 for nodes in bound.values())
    assert all(len(set(nodes)) == 1 for nodes in bound.values()) and ended == 40
