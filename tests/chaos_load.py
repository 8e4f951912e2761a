"""Load for crash tests: jobs of every kind, submitted and cancelled by a client that keeps a ledger of what was acknowledged."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.engine.client import Client
from stoker.engine.errors import StoreError, Unreachable, UsageError
from waiting import patient

SCRIPT = Path(__file__).with_name("chaos_job.py")
PATIENT = {"limit": 1000, "backoff": 0.1, "factor": 1.0}  #: kill -9 of a worker counts as a failure of the job
#: kinds of jobs, and how often in relation to the others
KINDS: dict[str, float] = {"plain": 8, "gang": 3, "wide": 1, "urgent": 3, "flaky": 2, "doomed": 1, "deaf": 1, "parent": 1, "garbler": 2,
                           "slow": 1, "held": 1, "chain": 2, "after-ok": 2, "after-any": 2}  # fmt: skip
TRAINING = {"recipe": "toy", "params": {"step_ms": 20.0, "checkpoint_every": 10}, "stop": {"iterations": 40}, "grace": 10.0}


@dataclass(slots=True)
class Accepted:
    """A submission that the daemon has acknowledged."""

    key: str
    job: int
    kind: str
    needs: tuple[tuple[int, str], ...] = ()  #: jobs that it waits for, with the mode
    cancelled: bool = False  #: a cancellation was sent


@dataclass(slots=True)
class Ledger:
    """What the client knows for certain."""

    accepted: dict[str, Accepted] = field(default_factory=dict)  #: by key
    refused: dict[str, str] = field(default_factory=dict)  #: key to why
    changed: list[str] = field(default_factory=list)  #: answers to one key that differed


class Load(threading.Thread):
    """Submits until told to end, and keeps at most ``backlog`` jobs in the system. Whatever is not answered is sent again."""

    def __init__(self, client: Client, directory: Path, seed: int, *, slots: int, backlog: int = 10, trainings: float = 0.03) -> None:
        super().__init__(name="load", daemon=True)
        self.ledger = Ledger()
        self.error: BaseException | None = None
        self._client, self._directory, self._slots, self._backlog, self._trainings = client, directory, slots, backlog, trainings
        self._random = random.Random(seed)
        self._open: set[int] = set()
        self._held: set[int] = set()
        self.ending = threading.Event()
        self._count = 0

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self._refresh()
                if len(self._open) < self._backlog:
                    self._submit()
                else:
                    self.ending.wait(0.1)
                self._meddle()
                self.ending.wait(self._random.uniform(0.0, 0.15))
            for job in sorted(self._held):
                self._insist(lambda job=job: self._client.post(f"/v1/jobs/{job}/release"))
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Submit nothing more, let go of what is held."""
        self.ending.set()
        self.join(patient(120))
        if self.error is not None:
            raise self.error
        assert not self.is_alive(), "the client hangs"

    def _insist(self, request: Callable[[], Any]) -> Any:
        """An answer, however often the daemon dies on the way, or its disk is full."""
        end = time.monotonic() + patient(90)
        while True:
            try:
                return request()
            except (Unreachable, StoreError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.03)

    def _refresh(self) -> None:
        rows = self._insist(lambda: self._client.get("/v1/jobs", state="submitted,pending,assigned,starting,running,suspending", arrays=1))
        self._open = {row["id"] for row in rows["jobs"]}

    # -- what is submitted

    def _submit(self) -> None:
        self._count += 1
        weights = KINDS | {"training": self._trainings * 20, "training-gang": self._trainings * 5}
        (kind,) = self._random.choices(list(weights), list(weights.values()))
        jobs = self._jobs(kind, f"c{self._count}")
        body = {"jobs": jobs, "provenance": {"argv": ["chaos"], "cwd": "/"}}
        try:
            answer = self._insist(lambda: self._client.post("/v1/jobs", body))["jobs"]
        except UsageError as error:
            if not kind.startswith("after"):
                raise
            self.ledger.refused[jobs[0]["idempotency_key"]] = str(error)
            return
        numbers = {job["name"]: row["id"] for job, row in zip(jobs, answer, strict=True)}
        for job in jobs:
            needs = tuple((int(numbers.get(d["job"], d["job"])), d["mode"]) for d in job.get("after", ()))
            self._accept(Accepted(job["idempotency_key"], numbers[job["name"]], kind, needs))
        if self._random.random() < 0.2:  # once more with the same keys: as a client does that never saw the answer
            again = self._insist(lambda: self._client.post("/v1/jobs", body))["jobs"]
            if [row["id"] for row in again] != list(numbers.values()) or not all(row["existing"] for row in again):
                self.ledger.changed.append(f"{answer} and then {again}")
        if kind == "held":
            self._held.add(numbers[jobs[0]["name"]])

    def _accept(self, new: Accepted) -> None:
        self.ledger.accepted[new.key] = new
        self._open.add(new.job)

    def _jobs(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The jobs of one submission."""
        seconds = round(self._random.uniform(0.2, 1.5), 1)
        script = [sys.executable, str(SCRIPT), str(self._directory), str(seconds)]
        job: dict[str, Any] = {"name": name, "idempotency_key": f"key-{name}", "retries": PATIENT, "grace": 3.0, "command": script}
        if kind == "chain":
            second = {**job, "name": name + "b", "idempotency_key": f"key-{name}b", "after": [{"job": name, "mode": "ok"}]}
            return [job, second]
        if kind.startswith("after") and (needed := self._needed()):
            job["after"] = [{"job": str(needed), "mode": kind.removeprefix("after-")}]
        if kind.startswith("training"):
            del job["command"]
        return [job | self._special(kind, script)]

    def _special(self, kind: str, script: list[str]) -> dict[str, Any]:
        """What distinguishes a job of this kind from a plain one."""
        brief, all_but_one = script[:-1], self._slots - 1
        kinds: dict[str, dict[str, Any]] = {
            "gang": {"gpus_min": 2, "gpus_max": 2, "priority": 1},
            "wide": {"gpus_min": all_but_one, "gpus_max": all_but_one, "priority": 2},  # more than any one runner has
            "urgent": {"priority": 10, "command": [*brief, "0.3"]},
            "flaky": {"command": [*script, "--fail", "2"]},
            "doomed": {"command": [*script, "--fail", "-1"], "retries": {**PATIENT, "limit": 1}},
            "deaf": {"command": [*script, "--deaf"], "grace": 0.3},
            "parent": {"command": [*script, "--child"]},
            "garbler": {"command": [*script, "--garble"]},
            "slow": {"command": [*brief, "60"], "timeout": 1.0, "retries": {"limit": 0}},
            "held": {"hold": True},
            "training": TRAINING,
            "training-gang": {**TRAINING, "gpus_min": 2, "gpus_max": 2},
        }
        return kinds.get(kind, {})

    def _needed(self) -> int | None:
        known = [accepted.job for accepted in list(self.ledger.accepted.values())[-8:]]
        return self._random.choice(known) if known else None

    # -- what is done to jobs

    def _meddle(self) -> None:
        """Now and then cancel, hold, release or reprioritise a job."""
        if not self._open or self._random.random() > 0.15:
            return
        job = self._random.choice(sorted(self._open))
        action = "release" if len(self._held) > 2 else self._random.choice(["cancel", "hold", "release", "priority"])
        if action == "hold":
            self._held.add(job)
        if action == "release" and self._held:
            job = self._held.pop()
        if action == "cancel":
            for accepted in self.ledger.accepted.values():
                if accepted.job == job:
                    accepted.cancelled = True
        body = {"priority": self._random.randint(-3, 3)} if action == "priority" else None
        self._insist(lambda: self._client.post(f"/v1/jobs/{job}/{action}", body))
