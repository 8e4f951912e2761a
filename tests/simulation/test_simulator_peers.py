"""The simulator beside public ones, on real traces with their simplifications; docs/accuracy.md explains what differs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from expected import PEERS, Peer, peer_workload, titan_recorded
from scripted import run
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results.figures import figures
from stoker.engine.sim.results.result import Result
from stoker.engine.sim.run_options import Options
from stoker.engine.sim.workload import Workload

TRACES = os.environ.get("STOKER_TRACES")
pytestmark = pytest.mark.skipif(not TRACES, reason="STOKER_TRACES does not name the directory of the traces")


@cache
def trace(name: str) -> Workload:
    assert TRACES is not None
    return peer_workload(Path(TRACES), name)


def simulated(peer: Peer) -> Result:
    return run(trace(peer.trace), peer.policy, peer.nodes, peer.options.costs, interval=peer.options.interval)


def average(peer: Peer) -> float:
    return float((simulated(peer).fates.ended - trace(peer.trace).submitted).mean())


def named(peer: Peer) -> str:
    return f"{peer.trace}-{peer.policy}-{peer.who}"


#: Tiresias' own program counts whole seconds, which is nothing by time and, as it happens, on itp01.
WHOLE_SECONDS = ("itp06-tiresias-", "philly_11cb48_2w-tiresias-")
EXACT = [peer for peer in PEERS if peer.options == Options() and not named(peer).startswith(WHOLE_SECONDS)]


@pytest.mark.slow
@pytest.mark.parametrize("peer", EXACT, ids=named)
def test_where_semantics_agree_averages_do_to_the_last_digit_that_is_printed(peer: Peer) -> None:
    assert average(peer) == pytest.approx(peer.jct, abs=0.005 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer not in EXACT], ids=named)
def test_where_they_differ_in_details_averages_are_within_one_percent(peer: Peer) -> None:
    assert average(peer) == pytest.approx(peer.jct, rel=0.01)


def test_more_than_averages() -> None:
    """What Tiresias' simulator prints of FIFO on itp06: median, 99th percentile, makespan."""
    fifo = next(peer for peer in PEERS if (peer.trace, peer.policy) == ("itp06", "fifo"))
    workload, result = trace("itp06"), simulated(fifo)
    found = figures(workload, result, Cluster.parse("1x128"))
    assert (round(found.jct_p50), round(found.makespan)) == (39_271, 5_171_895)
    assert found.jct_p99 == pytest.approx(498_102, rel=0.001)
    done = result.fates.gpu_time
    np.testing.assert_allclose(done, workload.duration * workload.gpus_min)


@pytest.mark.parametrize("name", ["FM-1-roberta-base", "FM-1-roberta-large"])
def test_each_job_of_titans_ends_when_its_simulator_ends_it(name: str) -> None:
    assert TRACES is not None
    peer = next(peer for peer in PEERS if (peer.trace, peer.policy) == (name, "sjf,backfill=true"))
    recorded = {row["name"]: float(row["staying_time"]) for row in titan_recorded(Path(TRACES), name)}
    theirs = [recorded[job] for job in trace(name).key]
    np.testing.assert_allclose(simulated(peer).fates.ended - trace(name).submitted, theirs, rtol=0, atol=1e-6)
