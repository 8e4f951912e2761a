"""Jobs on a directory that start by a fork: one server for all recipes, the same bits as in fresh processes, never of other weights."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stoker.engine.home import Home
from stoker.runners import packages
from stoker.runners.backbones import hub_model
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import ENV_TAG
from stoker.runners.recipes import ANY
from stoker.runners.warm import fork_server, loaded_state
from stoker.runners.warm.warm_starts import ServerKind, WarmStarts
from test_agent import until
from test_warm_starts import Warm, job, said

pytestmark = pytest.mark.xdist_group("tiny models")
SMALL = {"batch_size": 4, "eval_limit": 4}


@pytest.fixture
def host(home: Home) -> Iterator[Warm]:
    host = Warm(home.path)
    host.daemon.open()
    host.start()
    yield host
    host.close()


@pytest.mark.slow
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one", "both"])
def test_all_recipes_are_forked_from_what_holds_their_directory_and_end_with_the_same_bits(
    host: Warm, model_of: Any, data: dict[str, str], tmp_path: Path, both: bool
) -> None:
    path = shutil.copytree(model_of("llama"), tmp_path / "a llama")  # a blank in a path is no end of it
    classify = {"recipe": "text-classifier", "params": {"data": data["mails"], "petl": "lora", **SMALL}, "backbone": str(path)}
    go_on = {"recipe": "causal-lm", "params": {"data": data["text"], "context": 16, **SMALL}, "backbone": str(path)}
    cold = host.warmed(1, **classify)
    assert any("loss" in record.get("values", {}) for record in cold)
    until(lambda: any(one.state == "ready" for report in host.daemon.reports for one in report.servers or ()))
    assert host.train(2, **classify) == cold
    forked = host.train(3, **go_on)
    assert any("loss" in record.get("values", {}) for record in forked)
    assert not both or host.train(4, **go_on, warm="off") == forked
    (server,) = host.servers()
    threads = list(Path(f"/proc/{server.pid}/task").iterdir())
    assert processes.command(server.pid) == fork_server.READY_NAME and len(threads) == 1
    assert said(host).count("starts warm") == 2


def test_what_is_held_is_outdated_when_a_file_of_it_changes(model_of: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(model_of("llama"), tmp_path / "llama"))
    hub_model.hold(str(path))
    stamps = loaded_state.files(time.time() + 1, [each for each in packages.given_out if each == path])
    assert loaded_state.changed(stamps) is None
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())  # it may be anything
    assert loaded_state.changed(stamps) == str(path / "model.safetensors")


def test_a_pool_keeps_a_directory_and_jobs_of_all_recipes_fit_it(model_of: Any) -> None:
    path = str(model_of("bert"))
    warm = WarmStarts(enabled=False)
    warm._draining = True  # no process is started
    warm.enabled = True
    warm.keep([path])
    assert warm._kept == {ServerKind(ANY, path)} and not warm._broken
    for recipe in ("text-classifier", "causal-lm", "prompt-tune"):
        warm.why_cold(job(1, recipe=recipe, backbone=path), {"env": {**warm._servers_environment(), ENV_TAG: ""}, "cwd": "/"})  # type: ignore[typeddict-item]
        assert warm._fits[1] == ServerKind(ANY, path), recipe
    for recipe, name in (("text-classifier", "minilm"), ("causal-lm", "tiny"), ("prompt-tune", "tiny")):
        spec = {"recipe": recipe, "backbone": name}
        warm.why_cold(job(1, **spec), {"env": {**warm._servers_environment(), ENV_TAG: ""}, "cwd": "/"})  # type: ignore[typeddict-item]
        assert warm._fits[1] == ServerKind(ANY, name)


@pytest.mark.nightly  # of a directory by day
def test_a_model_that_has_a_name_is_held_once_for_all_recipes(host: Warm, data: dict[str, str]) -> None:
    tune = {"recipe": "prompt-tune", "params": {"data": data["mails"], "tokens": 4, **SMALL}, "backbone": "tiny"}
    go_on = {"recipe": "causal-lm", "params": {"data": data["text"], "context": 16, **SMALL}, "backbone": "tiny"}
    cold = host.warmed(1, **tune)
    until(lambda: any(one.state == "ready" for report in host.daemon.reports for one in report.servers or ()))
    assert host.train(2, **tune) == cold
    assert host.train(3, **go_on, warm="off") == host.train(4, **go_on)
    assert len(host.servers()) == 1 and said(host).count("starts warm") == 2
