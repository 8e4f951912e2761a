"""Fixtures of the room: a cluster for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import slurm_here


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_here.Slurm]:
    with slurm_here.slurm(tmp_path_factory.mktemp("cluster") / "s") as cluster:
        yield cluster
