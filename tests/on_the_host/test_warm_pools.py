"""Pools of warm GPUs, live: stored as the policy has them, told to runners, and seen by the next view; what runners keep and refuse."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from one_runner import Host
from stoker.engine.protocol import ForkServer
from stoker.engine.scheduling.policy_settings import PolicySetting, set_policy
from stoker.engine.scheduling.warm_by_hand import KeepWarm, keep_warm
from stoker.engine.scheduling.warm_gpus import EXPECTED_LOAD_SECONDS, LOAD_PATIENCE_SECONDS, warm_columns
from stoker.engine.store.store import Store
from stoker.runners.recipes import RECIPES, Param, Recipe
from stoker.runners.warm import held, warm_starts
from stoker.runners.warm.warm_starts import ServerKind, WarmStarts


def gpus_of(host: Host) -> Any:
    return host.scheduling.look("default").view.gpus


def kept(host: Host) -> list[str]:
    host.board.refresh()
    return host.board._answers["n1"].warm


def server(state: Any, **fields: Any) -> ForkServer:
    return ForkServer(recipe="prompt", backbone="gpt", state=state, since=time.time(), **fields)


def test_pools_are_stored_told_and_seen(store: Store) -> None:
    host = Host(store)
    assert gpus_of(host).warm is None and kept(host) == []
    assert host.tick({}, warm={"gpt": [1]}) == "applied"
    assert host.rows("SELECT idx, warm, warm_since IS NULL FROM gpus ORDER BY 1") == [(0, None, True), (1, "gpt", False)]
    assert kept(host) == ["gpt"]
    assert gpus_of(host).warm.tolist() == ["", "gpt"]
    now = time.time()
    assert gpus_of(host).warm_at[0] == -np.inf and now < gpus_of(host).warm_at[1] <= now + EXPECTED_LOAD_SECONDS + 1

    host.report(servers=[server("loading", pid=7)])
    assert gpus_of(host).warm_at[1] > time.time()
    host.report(servers=[server("ready", pid=7, memory=1 << 20)])
    assert gpus_of(host).warm_at[1] == -np.inf
    host.report(servers=[server("failed", note="no recipe starts from gpt")])
    assert gpus_of(host).warm_at[1] == -np.inf  # nobody waits for what will not come
    host.report()
    assert host.rows("SELECT state, note FROM fork_servers") == [("failed", "no recipe starts from gpt")]

    since = host.rows("SELECT warm_since FROM gpus ORDER BY idx")
    host.tick({}, warm={"gpt": [1]})
    host.tick({})  # None: pools stay
    assert kept(host) == ["gpt"] and host.rows("SELECT warm_since FROM gpus ORDER BY idx") == since
    host.tick({}, warm={})
    assert kept(host) == [] and gpus_of(host).warm is None


def test_pools_end_with_the_policy_that_had_them(store: Store) -> None:
    host = Host(store)
    host.tick({}, warm={"gpt": [0, 1]})
    store.write(set_policy, PolicySetting("default", "sjf", 1.0, {}, "ann"))
    host.scheduling.reload()
    host.scheduling.tick("default")
    assert kept(host) == []


def test_a_server_is_not_waited_for_for_ever() -> None:
    def at(since: float, *servers: Any) -> float:
        warm, moments = warm_columns(np.array(["gpt", None], dtype=object), np.array([since, 0.0]), np.array(["a", "a"]), servers, 1000.0)
        assert moments is not None and warm is not None and warm.tolist() == ["gpt", ""]
        return float(moments[0])

    assert at(999.0) == 999.0 + EXPECTED_LOAD_SECONDS
    assert at(980.0) > 1000.0  # late, and waited for a little longer each time
    assert at(1000.0 - LOAD_PATIENCE_SECONDS) == -np.inf
    assert at(0.0, ("a", "gpt", "loading", 999.0)) == 999.0 + EXPECTED_LOAD_SECONDS
    assert at(999.0, ("b", "gpt", "ready", 1.0)) == 999.0 + EXPECTED_LOAD_SECONDS  # another runner's


def test_a_runner_keeps_what_it_is_told_to_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet:
        """A server without a process, ready at once."""

        @classmethod
        def start(cls, *_: Any) -> Quiet:
            return cls()

        def __init__(self) -> None:
            self.memory, self.used_at, self.since, self.until = 400, time.monotonic(), 1.0, 2.0
            self.ready, self.gone, self.admitted, self.why = True, False, False, ""
            self.process = type("Process", (), {"pid": 7})

        def end(self) -> None:
            self.gone = True

    monkeypatch.setattr(warm_starts, "WarmServer", Quiet)
    monkeypatch.setitem(RECIPES, "prompt", Recipe("prompt", "", "prompt:build", {"backbone": Param("gpt", "", choices=("bert", "gpt"))}))
    starts = WarmStarts(True)
    starts.keep(["gpt", "unheard-of"])
    found = {one.backbone: one for one in starts.told()}
    assert found["gpt"].state == "ready" and found["gpt"].until is None
    assert (found["unheard-of"].state, found["unheard-of"].note) == ("failed", "no recipe starts from unheard-of")
    starts.keep([])
    assert starts.told() == []

    starts.limit = 1000
    starts.keep(["bert", "gpt"])
    starts._load(ServerKind("toy"))
    assert [(one.backbone, one.recipe, one.state) for one in starts.told()] == [
        ("bert", "any", "ready"), ("gpt", "any", "ready"), ("", "toy", "failed"),
    ]  # fmt: skip
    starts.drain(True)
    assert [one.state for one in starts.told()] == ["failed"]


def test_a_backbone_is_taken_once() -> None:
    loaded: list[str] = []

    def load(name: str) -> list[str]:
        loaded.append(name)
        return [name]

    held.hold("gpt", load)
    first = held.take("gpt", load)
    assert loaded == ["gpt"]
    assert held.take("gpt", load) is not first and loaded == ["gpt", "gpt"]


def test_the_key_of_a_server() -> None:
    text, toy = RECIPES["text-classifier"], RECIPES["toy"]
    assert text.backbone({}) == "minilm" and text.backbone({"backbone": "minilm"}) == "minilm"
    assert text.backbone({"backbone": "other"}) is None and toy.backbone({"backbone": "minilm"}) is None
    prompt = Recipe("prompt", "", "prompt:build", {"backbone": Param("gpt", "", choices=("bert", "gpt"))})
    assert prompt.backbone({}) == "gpt" and prompt.backbone({"params": {"backbone": "bert"}}) == "bert"


def test_what_people_keep_warm_is_kept_on_each_runner_of_the_pool(store: Store) -> None:
    host = Host(store)
    store.write(keep_warm, KeepWarm("default", ("minilm", "gpt"), "ann"))
    store.write(keep_warm, KeepWarm("elsewhere", ("bert",), "ann"))
    host.tick({}, warm={"gpt": [0], "llama": [1]})
    assert kept(host) == ["gpt", "llama", "minilm"]
    store.write(keep_warm, KeepWarm("default", ("gpt",), "ann"))
    host.tick({}, warm={})
    assert kept(host) == ["gpt"]  # a policy takes nothing from people
    store.write(keep_warm, KeepWarm("default", (), "ann"))
    assert kept(host) == []
    events = host.rows("SELECT before, after FROM events WHERE kind = 'pool.warm' AND detail ->> '$.pool' = 'default' ORDER BY seq")
    assert events == [(None, "gpt, minilm"), ("gpt, minilm", "gpt"), ("gpt", None)]
