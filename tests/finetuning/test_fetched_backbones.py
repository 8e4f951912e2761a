"""Models that are fetched where that is allowed, from an imitation of the hub on this host; and that nothing is fetched where it is not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stoker.engine.errors import UsageError
from stoker.runners.backbones import hub_directory, hub_model
from tiny_models import build, trainer

pytestmark = pytest.mark.xdist_group("tiny models")
COMMIT = "c" * 40
FIND = """
import sys
from stoker.engine.errors import StokerError
from stoker.runners.backbones import hub_directory
for name in sys.argv[1:]:
    try:
        found = hub_directory.find(name)
        found.check(texts=True)
        print("found", found.revision, flush=True)
    except StokerError as error:
        print(error, flush=True)
"""

HOLD = """
import os
import sys
from stoker.runners.backbones import hub_model
print("held", hub_model.hold_for_forks(sys.argv[1]).directory.revision, "beside", len(os.listdir("/proc/self/task")) - 1, "threads")
"""


class Hub(ThreadingHTTPServer):
    """The part of the hub that a download asks for. Names of models say what goes wrong."""

    daemon_threads = True

    def __init__(self, model: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {path.name: path.read_bytes() for path in model.iterdir()}
        self.asked: list[str] = []
        self.reached, self.cut = threading.Event(), True


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0].strip("/")
        hub.asked.append(path)
        if "/absent" in path:
            self.told(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("api/models/") and "/tree/" in path:
            self.told(200, json.dumps([self.entry(name) for name in hub.files]).encode())
        elif path.startswith("api/models/"):
            self.told(200, json.dumps({"id": path.removeprefix("api/models/"), "sha": COMMIT, "siblings": []}).encode())
        else:
            self.file(path)

    def entry(self, name: str) -> dict[str, Any]:
        content = self.server.files[name]
        large = {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}}
        return {"type": "file", "path": name, "size": len(content), "oid": git_sum(content), **(large if name.endswith("tensors") else {})}

    def file(self, path: str) -> None:
        name = path.rpartition("/")[2]
        content = self.server.files[name]
        tag = hashlib.sha256(content).hexdigest() if name.endswith("tensors") else git_sum(content)
        if "/changed" in path and name.endswith("tensors"):
            content = content[:-1] + bytes([content[-1] ^ 1])
        stops = ("/slow" in path or "/cut" in path) and name.endswith("tensors") and self.server.cut and self.command == "GET"
        self.told(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, whole=not stops)
        self.close_connection = self.close_connection or stops
        if stops and "/cut" not in path:
            self.server.reached.set()
            threading.Event().wait(60)

    def told(self, code: int, content: bytes, headers: dict[str, str] | None = None, whole: bool = True) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content if whole else content[:100])
            self.wfile.flush()


def git_sum(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@pytest.fixture
def hub(model_of: Any) -> Iterator[Hub]:
    hub = Hub(model_of("llama"))
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


def finding(cache: Path, url: str, *names: str, allowed: bool = True, code: str = FIND) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env = {**kept, "HF_HOME": str(cache), "HF_ENDPOINT": url, hub_directory.ENV_DOWNLOAD: str(int(allowed)), "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen([sys.executable, "-c", code, *names], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(cache: Path, url: str, *names: str, **how: Any) -> list[str]:
    child = finding(cache, url, *names, **how)
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    return out.splitlines()


def test_a_model_is_fetched_once_whole_or_refused_in_one_line(hub: Hub, model_of: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{hub.server_address[1]}"
    assert "nothing is fetched unless config.toml has [backbones] with download = true" in said(tmp_path, url, "a/tiny", allowed=False)[0]
    assert hub.asked == []
    whole, changed, absent, again, cut = said(tmp_path, url, "a/tiny", "a/changed", "a/absent", "a/changed", "a/cut")
    assert whole == f"found {hub_directory.find(str(model_of('llama'))).revision}"
    assert (
        changed.startswith("backbone: a/changed cannot be fetched: model.safetensors came with another checksum than ") and again == changed
    )
    assert absent.startswith("backbone: a/absent cannot be fetched: 404")
    assert cut.startswith("backbone: a/cut cannot be fetched: ") and "\n" not in cut
    hub.cut = False
    assert said(tmp_path, url, "a/cut") == [whole]
    hub.asked.clear()
    assert said(tmp_path, url, "a/tiny", allowed=False) == [whole] and hub.asked == []  # it is in the cache now


def test_a_fork_server_fetches_too_and_has_no_thread_of_it(hub: Hub, model_of: Any, tmp_path: Path) -> None:
    (line,) = said(tmp_path, f"http://127.0.0.1:{hub.server_address[1]}", "a/tiny", code=HOLD)
    assert line == f"held {hub_directory.find(str(model_of('llama'))).revision} beside 0 threads"


def test_a_download_that_is_killed_is_no_model_until_it_was_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{hub.server_address[1]}"
    child = finding(tmp_path, url, "a/slow")
    assert hub.reached.wait(120)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (line,) = said(tmp_path, url, "a/slow", allowed=False)
    assert line.startswith("backbone: a/slow was fetched in part only; nothing is fetched unless ")
    (line,) = said(tmp_path, "http://127.0.0.1:9", "a/slow")
    assert line.startswith("backbone: a/slow cannot be fetched: ") and "connect" in line.lower()
    hub.cut = False
    assert said(tmp_path, url, "a/slow")[0].startswith("found ")


def test_without_leave_nothing_asks_the_network(
    model_of: Any, data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    monkeypatch.delenv(hub_directory.ENV_DOWNLOAD, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = tmp_path / "hub" / "models--a--tiny"
    shutil.copytree(model_of("qwen2"), folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    assert hub_model.load("a/tiny").config.model_type == "qwen2"
    tuned = trainer(build("causal-lm", "a/tiny", data=data["text"], context=16, petl="lora"), tmp_path, steps=1)
    assert tuned.run() and (tuned.checkpoints.path / "adapter" / "adapter_config.json").exists()
    with pytest.raises(UsageError, match="nothing is fetched unless"):
        hub_model.load("a/other")
