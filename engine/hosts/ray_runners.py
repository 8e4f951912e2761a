"""Runners on the nodes of a Ray cluster: an actor on each starts the runner, finds it and restarts it. No other part of Ray is used.

Ray chooses nodes and times (a group of bundles, STRICT_SPREAD, its autoscaler), Stoker's policies choose the jobs. A runner is no child of
Ray's: the death of a raylet or an actor ends no job, and proves nothing to the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Conflict, StokerError, UsageError
from ..home import Home
from .lent_nodes import keep_secret, trust

LEAST_VERSION = (2, 60)  #: the tested version of Ray
NAMESPACE = "stoker"
GROUP = "stoker-"  #: of the names of groups and actors; their pool follows
LABEL = "stoker-node"  #: of a Ray node: the name of its runner, in place of the host's
CURRENT = Path("/tmp/ray/ray_current_cluster")  #: where Ray notes the cluster of this host
ANSWER_TIMEOUT = 10.0  #: seconds within which a living actor answers
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  #: seconds until an ended runner is restarted; doubles with each failure in a row


@dataclass(frozen=True, slots=True)
class Offer:
    """The runner that each node is to run."""

    url: str  #: of the daemon
    folder: str  #: on every node: the home of the runner, its log and its token
    pool: str = "default"
    gpus: int | None = None  #: of each node; None: CPU slots
    slots: int | None = None
    trusted: str = ""  #: see `lent_nodes.trusted_by`

    def bundle(self) -> dict[str, float]:
        """Resources that Ray reserves for it."""
        return {"CPU": 0.01, "GPU": float(self.gpus)} if self.gpus else {"CPU": float(self.slots or 1)}


class Keeper:
    """The actor of a node. Its whole state is the lock that its runner holds, so its own death costs nothing."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._gpus = list(_ray().get_gpu_ids()) if offer.gpus else None
        self.node = node_name()
        self.home = Home(Path(offer.folder))
        self.starts, self.said = 0, "it has no token; 'stoker runner ray up' again sends it"
        self._leaving = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def tell(self) -> dict[str, Any]:
        runner = self._runner()
        state = "serves" if runner is not None else "leaves" if self._leaving.is_set() else "starts"
        said = "" if runner is not None else self.said
        return {"node": self.node, "host": socket.gethostname(), "state": state, "starts": self.starts, "pid": runner,
                "keeper": os.getpid(), "daemon": self.offer.url, "said": said}  # fmt: skip

    def take_token(self, token: str) -> None:
        """Take the token as an argument of a call, as an argument of the actor's creation would stand in Ray's tables."""
        if not self._token.exists() or self._token.read_text().strip() != token:
            keep_secret(self._token, token)

    def leave(self, patience: float) -> str:
        """Make the runner hand its node back, and start no other one; returns its name."""
        self._leaving.set()
        end = time.monotonic() + patience
        while (runner := self._runner()) is not None:
            if time.monotonic() > end:
                raise TimeoutError(f"runner {self.node} still stops its jobs, and leaves after that")
            with contextlib.suppress(ProcessLookupError):  # it has just left
                os.kill(runner, signal.SIGTERM)  # a second one has no effect
            time.sleep(0.3)
        return self.node

    @property
    def _token(self) -> Path:
        return self.home.path / "token"

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._leaving.wait(pause if self.starts else 0.2):
            if self._runner() is not None:
                pause = FIRST_PAUSE
            elif self._token.exists():
                try:
                    pause = FIRST_PAUSE if self._start() else min(2 * pause, LONGEST_PAUSE)
                except (OSError, StokerError) as error:  # for example a full disk: try again later
                    self.said, pause = f"{type(error).__name__}: {error}", min(2 * pause, LONGEST_PAUSE)

    def _start(self) -> bool:
        """Start it outside Ray's tree of processes, in a session of its own; returns whether it has come up."""
        self.starts += 1
        argv = [sys.executable, "-m", "stoker", "--home", str(self.home.path), "--url", self.offer.url, "runner", "start", "--hand-back"]
        argv += ["--node", self.node, "--pool", self.offer.pool]
        if self._gpus is None:
            argv += ["--slots", str(self.offer.slots or len(os.sched_getaffinity(0)))]
        else:
            argv += ["--gpus", ",".join(map(str, self._gpus))]
        log = self.home.path / f"runner-{self.node}.log"
        with open(log, "ab") as file:
            begin = file.tell()
            environment = _environment() | trust(self.home, self.offer.trusted)
            environment["STOKER_TOKEN"] = self._token.read_text().strip()
            subprocess.run(
                ["setsid", "--fork", *argv], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=True, cwd="/"
            )
        end = time.monotonic() + 30
        while time.monotonic() < end and not self._leaving.wait(0.2):
            if self._runner() is not None:
                return True
            if lines := log.read_bytes()[begin:].decode(errors="replace").splitlines():
                self.said = lines[-1][-500:]
                if self.said.startswith(("stoker runner: ", "stoker: error: ")):
                    return False
        return False

    def _runner(self) -> int | None:
        """Process of this node's runner, in whatever way it was started."""
        lock = self.home.runner_lock(self.node)
        try:
            pid = int(lock.read_text())
            if not Path("/proc", str(pid)).exists():  # and while one starts its lock is not touched
                return None
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except (FileNotFoundError, ValueError):
            return None
        except BlockingIOError:
            return pid


def node_name() -> str:
    labels: dict[str, str] = _ray().get_runtime_context().get_node_labels() or {}
    return labels.get(LABEL) or socket.gethostname().split(".")[0]


def _environment() -> dict[str, str]:
    """The raylet's environment (this actor's parent), as Ray changes devices and threads of its workers; without Ray's variables."""
    try:
        text = Path(f"/proc/{os.getppid()}/environ").read_bytes()
        found = dict(line.decode(errors="surrogateescape").split("=", 1) for line in text.split(b"\0") if b"=" in line)
    except OSError:
        found = {}
    return {name: value for name, value in (found or os.environ).items() if not name.startswith("RAY_")}


def _ray() -> Any:
    """The library. Conflict if it is not installed, or too old."""
    try:
        import ray
    except ImportError:
        raise Conflict(f"Ray is not installed here: {_INSTALL}") from None
    have = tuple(int(part) for part in str(ray.__version__).split(".")[:2] if part.isdecimal())
    if have < LEAST_VERSION:
        raise Conflict(f"Ray {ray.__version__} is installed here, and {LEAST_VERSION[0]}.{LEAST_VERSION[1]} or later is needed: {_INSTALL}")
    return ray


_INSTALL = "pip install '.[ray]' in Stoker's source tree, in the version of the cluster"


def head(address: str | None) -> str:
    """The address of a cluster's head: ``address``, RAY_ADDRESS, or that of this host. Conflict if there is none."""
    _ray()
    where = address or os.environ.get("RAY_ADDRESS") or (CURRENT.read_text().strip() if CURRENT.exists() else "")
    if not where:
        raise Conflict("no Ray runs on this host: name its head with --ray-address HOST:PORT, or start one with 'ray start --head'")
    host, _, port = where.rpartition(":")
    if "//" in where or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--ray-address: {where[:100]!a} is not HOST:PORT of a Ray head, such as 10.0.0.1:6379")
    try:  # Ray itself would try for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise Conflict(
            f"no Ray head answers at {where} ({error.strerror or error}): start it, or name another with --ray-address"
        ) from None
    return where


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The library, connected to a cluster. Its output about its nodes is suppressed."""
    where, ray = head(address), _ray()
    with contextlib.redirect_stdout(sys.stderr):
        _connect(ray, where)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, where: str) -> None:
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # it advises against a group here, as `down` would be wrong in the other order
    try:
        ray.init(address=where, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (RuntimeError, ConnectionError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise Conflict(f"Ray at {where} is not to be had: {words}") from None


def up(ray: Any, offer: Offer, nodes: int, token: str, wait: float) -> list[dict[str, Any]]:
    """Start the actors, and so the runners; returns `rows`. A repetition starts the missing ones.

    If a runner cannot run: Conflict, and all started ones are ended.
    """
    from ray.util.placement_group import placement_group, placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    name = GROUP + offer.pool
    known = _group(ray, name)
    if known is not None:
        _require_same(offer, nodes, list(placement_group_table(known)["bundles"].values()), rows(ray, offer.pool))
    group = known or placement_group([offer.bundle()] * nodes, strategy="STRICT_SPREAD", lifetime="detached", name=name)
    kind = ray.remote(Keeper)
    own = {"num_cpus": offer.bundle()["CPU"], "num_gpus": offer.gpus or 0}
    for number in range(nodes):
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        kind.options(
            name=f"{name}-{number}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=-1, max_concurrency=4,
            scheduling_strategy=strategy, **own,
        ).remote(offer)  # fmt: skip
    end = time.monotonic() + wait
    group.wait(max(wait, 0.1))
    sent = [keeper.take_token.remote(token) for keeper in _keepers(ray, name)]
    ray.wait(sent, num_returns=len(sent), timeout=max(end - time.monotonic(), 0.1))  # `rows` has the errors
    while True:
        found = rows(ray, offer.pool)
        refused = [row for row in found if str(row["said"]).startswith("stoker")]
        if known is None and refused:
            down(ray, offer.pool, ANSWER_TIMEOUT)
            raise Conflict(
                f"the runner of {refused[0]['node']} cannot run, and none was left: {str(refused[0]['said']).partition(': ')[2]}"
            )
        if all(row["state"] == "serves" for row in found) or time.monotonic() > end:
            return found
        time.sleep(0.3)


def _require_same(offer: Offer, nodes: int, bundles: list[dict[str, float]], found: list[dict[str, Any]]) -> None:
    """Conflict if the pool's runners differ from the requested ones."""
    have = f"pool {offer.pool!r} has runners on {len(bundles)} nodes of this cluster"
    if other := next((row["daemon"] for row in found if row["daemon"] not in ("", offer.url)), None):
        raise Conflict(f"{have}, and they serve the daemon at {other}; name another --pool")
    if len(bundles) != nodes or any(bundle != offer.bundle() for bundle in bundles):
        lends = ", ".join(f"{amount:g} {kind}" for kind, amount in bundles[0].items())
        raise Conflict(f"{have}, each with {lends}: end them first with 'stoker runner ray down --pool {offer.pool}'")


_AWAY: dict[str, Any] = {"node": "", "host": "", "state": "away", "starts": 0, "pid": None, "keeper": None, "daemon": ""}


def rows(ray: Any, pool: str) -> list[dict[str, Any]]:
    """The reports of a pool's actors."""
    asked = [(number, keeper.tell.remote()) for number, keeper in enumerate(_keepers(ray, GROUP + pool))]
    end = time.monotonic() + ANSWER_TIMEOUT
    found = []
    for number, answer in asked:
        try:
            found.append({"actor": f"{GROUP}{pool}-{number}", **ray.get(answer, timeout=max(end - time.monotonic(), 0.1))})
        except ray.exceptions.RayError as error:
            why = "there is no node for it, or that does not answer" if isinstance(error, ray.exceptions.GetTimeoutError) else _words(error)
            found.append({**_AWAY, "actor": f"{GROUP}{pool}-{number}", "said": why})
    return found


def pools(ray: Any) -> list[str]:
    """Pools that have runners on the cluster."""
    names = {
        str(one["name"]).rpartition("-")[0] for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE
    }
    return sorted(name.removeprefix(GROUP) for name in names if name.startswith(GROUP))


def down(ray: Any, pool: str, patience: float) -> tuple[list[str], list[str]]:
    """Make the runners hand their nodes back, end the actors, then the group; returns names of runners that have left, and errors.

    An actor that does not answer has no node yet, or its raylet is dead: the daemon knows the state of its runner.
    """
    name = GROUP + pool
    keepers = list(_keepers(ray, name))
    left, wrong = [], []
    there = [keeper for keeper, row in zip(keepers, rows(ray, pool), strict=False) if row["state"] != "away"]
    asked = [keeper.leave.remote(patience) for keeper in there]
    end = time.monotonic() + patience + ANSWER_TIMEOUT
    for answer in asked:
        try:
            left.append(str(ray.get(answer, timeout=max(end - time.monotonic(), 0.1))))
        except ray.exceptions.RayError as error:
            wrong.append(_words(error))
    for keeper in keepers:  # before the group, or they would be restarted for ever
        ray.kill(keeper)
    if (group := _group(ray, name)) is not None:
        ray.util.remove_placement_group(group)
    return left, wrong


def _group(ray: Any, name: str) -> Any:
    try:
        return ray.util.get_placement_group(name)
    except ValueError:
        return None


def _keepers(ray: Any, name: str) -> Iterator[Any]:
    for number in range(10_000):
        try:
            yield ray.get_actor(f"{name}-{number}", namespace=NAMESPACE)
        except ValueError:
            return


def _words(error: Exception) -> str:
    """The words of an actor's error, without those of its transport."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:300]
