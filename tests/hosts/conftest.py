"""Fixtures of the room: a daemon whose hosts are messages, and hosts that are pretended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from afar import Clock, Daemon
from stores import reopened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def daemon(template: Path, tmp_path: Path, clock: Clock) -> Iterator[Daemon]:
    store = reopened(Path(shutil.copyfile(template, tmp_path / "stoker.duckdb")), clock=clock)
    yield Daemon(store)
    store.close()
