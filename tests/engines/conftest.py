"""Fixtures of the room: a cluster of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray_here
import slurm_here


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_here.Slurm]:
    with slurm_here.slurm(tmp_path_factory.mktemp("cluster") / "s") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ray_here.RayCluster]:
    with ray_here.ray_cluster(tmp_path_factory.mktemp("ray")) as made:
        yield made
