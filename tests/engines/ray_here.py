"""A cluster of Ray with three raylets on this host: a head that lends nothing, and two nodes with a name each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SMALL = {"object_store_memory": 80_000_000}


class RayCluster:
    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self.cluster.address)
        self.nodes: dict[str, Any] = {}
        for name in ("r1", "r2"):
            self.join(name)

    def join(self, name: str) -> None:
        self.nodes[name] = self.cluster.add_node(num_cpus=2, labels={"stoker-node": name}, **SMALL)

    def leave(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=True)

    def raylet(self, name: str) -> int:
        return int(self.nodes[name].all_processes["raylet"][0].process.pid)

    def kill_raylet(self, name: str) -> None:
        os.kill(self.raylet(name), signal.SIGKILL)

    def forget(self, name: str) -> None:
        """What is left of a node whose raylet was killed."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def kill_head(self) -> None:
        for kind in ("gcs_server", "raylet"):
            for one in self.cluster.head_node.all_processes[kind]:
                os.kill(one.process.pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.cluster.shutdown()


@contextlib.contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install '.[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    made = RayCluster.__new__(RayCluster)
    try:
        made.__init__()  # type: ignore[misc]
        yield made
    finally:
        made.close()
