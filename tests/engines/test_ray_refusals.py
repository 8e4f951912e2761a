"""Ray that is not installed, too old or not there: one line, and nothing is started."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from e2e import free_port
from stoker.engine.errors import Conflict, UsageError
from stoker.engine.hosts import ray_runners


def pretended(version: str) -> ModuleType:
    module = ModuleType("ray")
    module.__version__ = version  # type: ignore[attr-defined]
    return module


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Conflict, match=r"Ray is not installed here: pip install '\.\[ray\]'"):
        ray_runners.head(None)
    monkeypatch.setitem(sys.modules, "ray", pretended("2.9.3"))
    with pytest.raises(Conflict, match=r"Ray 2\.9\.3 is installed here, and 2\.60 or later is needed"):
        ray_runners.head(None)


def test_a_head_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", pretended("2.60.0"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_runners, "CURRENT", tmp_path / "none")
    with pytest.raises(Conflict, match="no Ray runs on this host"):
        ray_runners.head(None)
    there = f"127.0.0.1:{free_port()}"
    with pytest.raises(Conflict, match=f"no Ray head answers at {there}"):
        ray_runners.head(there)
    (tmp_path / "none").write_text(there)  # what a head that was killed has left
    with pytest.raises(Conflict, match=f"no Ray head answers at {there}"):
        ray_runners.head(None)
    for given in ("ray://10.0.0.1:10001", "10.0.0.1", "10.0.0.1:x", ":6379", "10.0.0.1:99999"):
        with pytest.raises(UsageError, match="is not HOST:PORT of a Ray head"):
            ray_runners.head(given)


def test_what_is_offered_is_what_ray_lends() -> None:
    assert ray_runners.Offer("http://x:1", "/h", gpus=8).bundle() == {"CPU": 0.01, "GPU": 8.0}
    assert ray_runners.Offer("http://x:1", "/h", slots=4).bundle() == {"CPU": 4.0}


def test_an_actor_starts_its_runner_once_there_is_room_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    began, refused = threading.Event(), [Conflict("the file cannot be kept there (No space left on device)"), OSError(28, "No space left")]

    def start(keeper: ray_runners.Keeper) -> bool:
        keeper.starts += 1
        if refused:
            raise refused.pop()
        began.set()
        return True

    monkeypatch.setattr(ray_runners, "node_name", lambda: "n1")
    monkeypatch.setattr(ray_runners, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(ray_runners.Keeper, "_start", start)
    (tmp_path / "token").touch()
    keeper = ray_runners.Keeper(ray_runners.Offer("https://x:1", str(tmp_path), slots=1))
    try:
        assert began.wait(30) and keeper.said.startswith("Conflict: ")
    finally:
        keeper.leave(1.0)
