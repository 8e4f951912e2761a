"""A store with runners on several hosts that are only messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.engine.fleet import registration
from stoker.engine.jobs import leases
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.protocol import VERSION, GpuInfo, Hello, Report, WorkerUpdate
from stoker.engine.scheduling.enact import Decision, Enactment, enact
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.store.store import Store

DECISION = Decision("default", "test", 0, 0.0, 0.0, 1, 0, "ok", None, 0.0, 0.0, 0.0, "applied")


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Daemon:
    """What a daemon does with the messages of its runners, on a clock that the test sets."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions: dict[str, int] = {}

    def join(self, node: str, slots: int = 1, **fields: Any) -> None:
        gpus = [GpuInfo(id=f"{node}/cpu{i}", index=i, kind="cpu", name="cpu") for i in range(slots)]
        hello = {"host": node, "boot_id": node, "home": f"/{node}", "address": f"10.0.0.{len(self.sessions) + 1}"} | fields
        self.sessions[node] = self.store.write(
            registration.hello,
            Hello(protocol=VERSION, version="t", node=node, pid=1, pid_started=1.0, pool="default", gpus=gpus, leases=[], **hello),
        )

    def submit(self, spec: JobSpec) -> int:
        request = SubmitRequest(Submission(jobs=[spec], provenance=Provenance(argv=["x"], cwd="/")), "ann")
        return int(self.store.write(submit, request)[0]["id"])

    def grant(self, job: int, *nodes: str, slot: int = 0) -> int:
        given = leases.Grant(job, tuple((f"{node}/cpu{slot}", node) for node in nodes), None)
        enacted = self.store.write(enact, Enactment(DECISION, grants=[given]))
        assert not enacted.skipped, enacted.skipped
        return int(enacted.leases[0])

    def tell(self, node: str, lease: int, state: Any, ts: float, *, now: float | None = None, **more: Any) -> None:
        update = WorkerUpdate(lease=lease, state=state, ts=ts, **more)
        self.store.write(registration.report, Report(node=node, session=self.sessions[node], workers=[update], now=now))

    def job(self, number: int) -> dict[str, Any]:
        return self.store.objects("api/job", number)[0]

    def leases(self, job: int) -> Sequence[dict[str, Any]]:
        return self.store.objects("api/leases", job)
