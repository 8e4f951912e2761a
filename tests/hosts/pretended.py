"""Pretended hosts: each has its own network, host name, boot id and processes, in namespaces of the kernel. All share one disk.

To kill the first process of one (`die`) is the death of that host, to take its interface down (`cut`) a cut link.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from stoker.engine.client import Client
from stoker.engine.home import Home
from waiting import until

_INIT = (
    """hostname "$1"; mount --bind "$2" /proc/sys/kernel/random/boot_id; mount --bind "$3" /etc/hosts; touch "$4"; exec sleep infinity"""
)


def _run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=check)


@cache
def why_not() -> str | None:
    """Why hosts cannot be pretended here; None: they can."""
    for tool in ("ip", "unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            return f"there is no program {tool}"
    name = f"stk{os.getpid()}x"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
        _run("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true")
    except subprocess.CalledProcessError as error:
        return f"namespaces are not permitted: {error.stderr.strip()}"
    return None


class Host:
    """A pretended host, started anew after `die` with another boot id."""

    def __init__(self, network: Network, number: int) -> None:
        self.network, self.name, self.address = network, f"h{number}", f"{network.subnet}.{number}"
        self.namespace, self.link = f"{network.prefix}h{number}", f"{network.prefix}v{number}"
        _run("ip", "netns", "add", self.namespace)
        _run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _run("ip", "link", "set", self.link, "master", network.bridge)
        _run("ip", "link", "set", self.link, "up")
        for words in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            _run("ip", "-n", self.namespace, *words)
        self.home = network.folder / self.name
        self.home.mkdir(exist_ok=True)
        self.init: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[bytes]] = []
        self.boot()

    def boot(self) -> None:
        boot_id, ready = self.network.folder / f"boot-{self.name}", self.network.folder / f"ready-{self.name}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        names = self.network.folder / f"hosts-{self.name}"
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")  # as Debian has it
        ready.unlink(missing_ok=True)
        space = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
        argv = [*space, "--kill-child=KILL", "bash", "-c", _INIT, "init", self.name, str(boot_id), str(names), str(ready)]
        self.init = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        until(ready.exists, 20)
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        self.pid = int(children[0])

    def argv(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-n", "-p", f"--wd={self.home}", *argv]

    def stoker(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """One command there, to its end."""
        argv = self.argv(sys.executable, "-m", "stoker", "--home", str(self.home), *arguments)
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=self.network.environment, **options)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A command that stays, its output in NAME.log of the host's home."""
        argv = self.argv(sys.executable, "-m", "stoker", "--home", str(self.home), *arguments)
        with open(self.home / "said.log", "ab") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**self.network.environment, **(env or {})}
            )
        self.started.append(process)
        return process

    def runner(self, *options: str) -> subprocess.Popen[bytes]:
        """A runner, until it has registered."""
        where = ["--url", self.network.url, "runner", "start", "--slots", "1", "--warm", "off"]
        process = self.start(*where, *options, env={"STOKER_TOKEN": self.network.token})
        until(lambda: self.network.state(self.name) == "up", 60, says=self.said, alive=(process,))
        return process

    def runner_again(self) -> subprocess.Popen[bytes]:
        """After its host has booted: that it is up again is not to be told from before."""
        return self.start("--url", self.network.url, "runner", "start", "--slots", "1", "--warm", "off",
                          env={"STOKER_TOKEN": self.network.token})  # fmt: skip

    def signal(self, process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
        """To what was started there: nsenter, which waits for it, passes nothing on."""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), number)

    def said(self) -> str:
        return (self.home / "said.log").read_text()[-3000:]

    def cut(self) -> None:
        _run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self.link, "up")

    def lose(self, other: Host) -> None:
        """What it sends to the other one is lost without a word; what that sends arrives."""
        _run(
            "ip", "-n", self.namespace, "neigh", "replace", other.address, "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"
        )

    def find(self, other: Host) -> None:
        _run("ip", "-n", self.namespace, "neigh", "del", other.address, "dev", "eth0")

    def die(self) -> None:
        """All processes of it at once."""
        assert self.init is not None
        self.init.kill()
        self.init.wait()
        for process in self.started:
            process.wait()
        self.started.clear()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.die()
        _run("ip", "netns", "del", self.namespace, check=False)
        _run("ip", "link", "del", self.link, check=False)


class Network:
    """Hosts h1, h2, … behind a bridge; the daemon is on h1, which the test reaches too."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.prefix = folder, f"s{os.getpid() % 100_000}"
        self.bridge, self.subnet = f"{self.prefix}br", f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"TMPDIR": "/tmp"}
        self.token, self.url = "", f"http://{self.subnet}.1:7465"
        self.hosts: list[Host] = []
        self.client: Client | None = None
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.subnet}.254/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        for number in range(1, count + 1):
            self.hosts.append(Host(self, number))

    @staticmethod
    def run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return _run(*argv, check=check)

    def up(self, *options: str, config: str = "") -> Client:
        """`stoker up` on h1; a client of it."""
        first = self.hosts[0]
        (first.home / "config.toml").write_text(config)
        process = first.start("up", "--tcp", "0.0.0.0:7465", *(options or ("--no-runner",)))
        until(lambda: first.stoker("status").returncode == 0, 60, says=first.said, alive=(process,), pause=0.5)
        admin = first.stoker("token", "create", "--role", "admin", "tests", "--json")
        self.token = first.stoker("token", "create", "--role", "runner", "runners").stdout.split()[-1]
        if "--tls" in options:
            self.url = self.url.replace("http:", "https:")
            self.environment["STOKER_CA"] = str(first.home / "tls" / "ca.pem")  # all share one disk
        self.client = Client(Home(first.home), self.url, json.loads(admin.stdout)["token"])
        return self.client

    def state(self, node: str) -> str | None:
        assert self.client is not None
        rows = self.client.get("/v1/runners")["runners"]
        return next((str(row["state"]) for row in rows if row["id"] == node), None)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        for host in self.hosts:
            host.close()
        _run("ip", "link", "del", self.bridge, check=False)


@contextlib.contextmanager
def network(folder: Path, count: int) -> Iterator[Network]:
    if (why := why_not()) is not None:
        pytest.skip(f"hosts cannot be pretended here: {why}")
    made = Network.__new__(Network)
    made.hosts, made.client = [], None
    try:
        made.__init__(folder, count)  # type: ignore[misc]
        yield made
    finally:
        made.close()
