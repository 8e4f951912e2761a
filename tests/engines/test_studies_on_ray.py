"""Runs of a study and trials of a search as tasks of Ray: the same figures as here."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e import command
from ray_here import RayCluster
from stoker.engine.home import Home
from stoker.engine.sim import study
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.study_on_ray import run_on_ray
from stoker.engine.sim.workload import make_workload

HAND = "job_id,job_key,submit,duration,num_gpu,vc\n" + "".join(f"{i},{i},{40 * i},{60 + 37 * i % 400},{1 + i % 2},v\n" for i in range(60))
TIMED = ("seconds", "plan_share", "study")  #: ends of keys whose values are times of this machine


class Ref:
    """What a task will give."""

    def __init__(self, call: Callable[[], Any], run: study.Run) -> None:
        self.call, self.run = call, run


class Inline:
    """What of the library is used, done at once in this process; a task whose run is named in ``dies`` is lost with its node."""

    class exceptions:  # noqa: N801 - as the library has it
        class RayError(Exception):
            pass

    def __init__(self, *dies: int) -> None:
        self.dies, self.most, self.cancelled = dies, 0, list[Any]()

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        class Task:
            def __init__(self, function: Callable[..., Any]) -> None:
                self.function = function

            def remote(self, *arguments: Any) -> Any:
                return Ref(lambda: self.function(*arguments), arguments[-1])

        return Task

    def wait(self, refs: list[Any]) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(refs))
        return refs[:1], refs[1:]

    def get(self, ref: Ref) -> Any:
        if ref.run.number in self.dies:
            raise self.exceptions.RayError("the node\ndied")
        return ref.call()

    def cancel(self, ref: Any, force: bool) -> None:
        self.cancelled.append(ref)


def asked() -> study.Study:
    workload = make_workload("hand", [40 * i for i in range(30)], [60 + 37 * i % 400 for i in range(30)], [1 + i % 2 for i in range(30)])
    return study.Study(workload, Cluster.parse("1x2"), Options(), study.runs_of(study.choose(["fifo", "srtf"], []), range(2)))


def ends(outcomes: list[study.StudyOutcome]) -> list[tuple[int, list[float]]]:
    return sorted((one.run.number, one.result.fates.ended.tolist()) for one in outcomes if one.result)


def test_runs_are_tasks_and_one_that_is_lost_costs_no_other() -> None:
    here = list(study.run_study(asked(), 1, lambda *_: None))
    ray = Inline(2)
    there = list(run_on_ray(ray, asked(), 3))
    assert ends(there) == [one for one in ends(here) if one[0] != 2] and ray.most == 3
    (lost,) = [one for one in there if one.error]
    assert lost.run.number == 2 and lost.error == "its task ended: RayError: the node died"
    coming = run_on_ray(ray := Inline(), asked(), None)
    next(coming)
    coming.close()
    assert len(ray.cancelled) == 3


@pytest.mark.nightly
@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore")
def test_on_a_real_cluster_figures_are_those_of_one_process(cluster: RayCluster, home: Home, tmp_path: Path) -> None:
    (trace := tmp_path / "hand.csv").write_text(HAND)

    def told(*words: str) -> list[tuple[str, Any]]:
        said = command(home, *words, "--json", env={**os.environ, "RAY_ADDRESS": cluster.address})
        assert said.code == 0, said.err
        return list(leaves(json.loads(said.out)))

    simulated = ["simulate", str(trace), "-p", "fifo", "-p", "srtf", "-n", "1x2", "--seeds", "2", "--estimate-error", "0.5", "--no-store"]
    assert told(*simulated, "-j", "1") == told(*simulated, "--on", "ray")
    tuned = ["tune", "--trace", str(trace), "-n", "1x2", "-p", "tiresias", "--trials", "6"]
    assert told(*tuned) == told(*tuned, "--on", "ray")


def leaves(value: Any, name: str = "") -> Any:
    """What stands in JSON, but for times."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, f"{name}.{number}")
    elif not name.endswith(TIMED):
        yield name, value
