"""Tiny models in directories, each made once for a process of pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stoker.runners.train import rng
from stoker.runners.worker import script
from tiny_models import save, write_texts


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a tiny model, by its architecture. Nobody changes it."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = save(name, tmp_path_factory.mktemp("models") / name)
        return made[name]

    return find


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_texts(tmp_path_factory.mktemp("data"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is reported of adapters."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(script, "report_of_adapters", lambda **what: said.append(what))
    return said


@pytest.fixture(autouse=True)
def as_a_worker(one_thread: None) -> Iterator[None]:
    with rng.preserved():
        yield
