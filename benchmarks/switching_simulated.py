"""Jobs that take turns on one slot, live and simulated: how near the simulator comes to when they end.

    python benchmarks/switching_simulated.py [--mixes equals priorities server] [--seconds 14]

Live: a daemon, a runner with one slot that is shared by turns as a GPU is, real trainings and a real server under the policy `switchflow`.
A layer of theirs waits in place of a GPU, long enough that what else the host does plays a small part.

The simulator gets the very submissions, and what was measured of jobs alone and of two pairs before: seconds of a step, the part of them
that has the turn (a step without loading takes that), an end, and their own starts, from a grant to the first step; `turn`: from a
step's end until an equal has the turn; `pause`: from when one that goes before wants the turn until the other has given it. Of the server:
how long an answer takes it alone, and how often it is asked.

- equals: three trainings of one priority, of different steps, one of which waits for its data
- priorities: a training of a higher priority that waits for its data comes to one that computes all the time
- server: a training beside a server that is asked at random times

Goal: each within 5 %.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from common import Daemon, arguments, machine, progress, show, submission
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.run_options import Costs, Options
from stoker.engine.sim.simulator import simulate
from stoker.engine.sim.workload import make_workload
from stoker.engine.spec.model import JobSpec, Share, Stop
from stoker.policies import registry
from stoker.policies.contract import Profile
from stoker.runners.share.inference_client import InferenceClient

CONFIG = '[policy]\nname = "switchflow"\n[guards]\nmin_run_time = 0.0\n[share]\nturn = "cooperative"\n'
GAP = 2.0  #: seconds between submissions
GOAL = 5.0  #: per cent
#: A model whose layers take their time, of data that takes its own.
LAYERS = """
import time
import torch
from torch import nn
from stoker.runners.training import Task

class Layer(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.zeros(1))
    def forward(self, inputs):
        time.sleep(self.seconds)
        return inputs + self.weight

class Data:
    def __init__(self, seconds):
        self.seconds = seconds
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(1)

def answer(model, requests):
    return model(torch.ones(len(requests), 1)).squeeze(1).tolist()

def task(step, load=0.0, layers=2):
    model = nn.Sequential(*(Layer(step / layers) for _ in range(layers)))
    return Task(model=model, train=Data(load), loss=lambda model, batch: model(batch).square().mean(), batch_size=1, answer=answer)
"""


@dataclass(frozen=True)
class Kind:
    """Seconds of a step with the turn, and of loading before it."""

    step: float
    load: float = 0.0
    priority: int = 0


SHORT, LONG, WAITS = Kind(0.160), Kind(0.400), Kind(0.160, 0.480)
URGENT, SERVER = Kind(0.160, 0.320, 10), Kind(0.200, priority=10)
RATE = 1.2  #: requests a second
#: A mix: who comes, `GAP` after each other.
MIXES = {"equals": (SHORT, LONG, WAITS), "priorities": (LONG, URGENT), "server": (SERVER, SHORT)}


@dataclass(frozen=True)
class Measured:
    pace: dict[Kind, float]  #: seconds of a step alone
    held: dict[Kind, float]  #: of which it has the turn
    ending: float
    turn: float
    pause: float
    answer: float  #: seconds of the server alone


class Bench:
    def __init__(self, daemon: Daemon, seconds: float) -> None:
        self.daemon, self.client, self.seconds, self.count = daemon, daemon.client(), seconds, 0
        (daemon.home.path / "layers_that_wait.py").write_text(LAYERS)

    def submit(self, kind: Kind, steps: int = 0) -> int:
        self.count += 1
        job = JobSpec(
            name=f"job-{self.count}", kind="train" if steps else "infer", entrypoint="layers_that_wait:task",
            params={"step": kind.step, "load": kind.load}, workdir=str(self.daemon.home.path), priority=kind.priority,
            share=Share(gpu="switched"), stop=Stop(iterations=steps or None), grace=20.0,
        )  # fmt: skip
        self.client.post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
        return self.count

    def steps(self, kind: Kind, seconds: float) -> int:
        """That it does alone in so many seconds."""
        return max(2, round(seconds / (kind.step + kind.load)))

    def ended(self, jobs: Sequence[int]) -> None:
        asked = f"SELECT count(*) FROM jobs WHERE id IN ({', '.join(map(str, jobs))}) AND finished_at IS NULL"
        self.daemon.wait_for("jobs end", lambda: self.daemon.query(asked)[0][0] == 0, 60.0 + 20 * self.seconds)
        states = {state for (state,) in self.daemon.query(asked.replace("count(*)", "state").replace("IS NULL", "IS NOT NULL"))}
        if states - {"completed", "cancelled"}:
            raise SystemExit(f"jobs have {' and '.join(states)}")

    def pace(self, job: int, begin: float = 0.0, end: float = 4e9) -> float:
        """Seconds of a step within that time."""
        there = f"job_id = {job} AND name = 'loss' AND epoch(ts) BETWEEN {begin} AND {end}"
        rows = self.daemon.query(f"SELECT step, epoch(ts) FROM metrics WHERE {there} ORDER BY step")
        return float((rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]))

    def lease(self, job: int) -> tuple[float, ...]:
        """When it was submitted, granted, had done its first step and its last, and had ended (s since the epoch)."""
        return tuple(self.daemon.query(
            f"SELECT epoch(any_value(j.submitted_at)), epoch(any_value(l.granted_at)), epoch(min(m.ts)), epoch(max(m.ts)), "
            f"epoch(any_value(j.finished_at)) FROM jobs j JOIN leases l ON l.job_id = j.id "
            f"LEFT JOIN metrics m ON m.job_id = j.id AND m.name = 'loss' WHERE j.id = {job}")[0])  # fmt: skip

    # ---- alone ----

    def measure(self) -> Measured:
        kinds = {kind for mix in MIXES.values() for kind in mix if kind != SERVER}
        pace: dict[Kind, float] = {}
        endings = []
        self.ended([self.submit(SHORT, 3)])  # what reads torch's files from disk for the first time
        for kind in sorted(kinds | {Kind(kind.step, priority=kind.priority) for kind in kinds}, key=lambda kind: (kind.step, kind.load)):
            progress(f"alone: {kind}")
            job = self.submit(kind, self.steps(kind, self.seconds / 2))
            self.ended([job])
            pace[kind] = self.pace(job)
            *_, last, finished = self.lease(job)
            endings.append(finished - last)
        held = {kind: pace[Kind(kind.step, priority=kind.priority)] for kind in kinds}
        progress("two equals")
        jobs = self.pair(LONG, LONG)
        turn = max(0.0, np.mean([self.pace(job, *self.together(jobs)) for job in jobs]) / 2 - pace[LONG])
        progress("two priorities")
        _, high = jobs = self.pair(LONG, URGENT)
        pause = max(0.0, self.pace(high, *self.together(jobs)) - pace[URGENT])
        progress("the server alone")
        with self.serving() as (run_dir, _), closing(InferenceClient(run_dir, "server")) as client:
            times = [self.answered(client) for _ in range(30)]
        return Measured(pace, held, float(np.mean(endings)), float(turn), pause, float(np.mean(times)))

    def pair(self, *kinds: Kind) -> list[int]:
        jobs = [self.submit(kind, self.steps(kind, self.seconds)) for kind in kinds]
        self.ended(jobs)
        return jobs

    def together(self, jobs: Sequence[int]) -> tuple[float, float]:
        """When all of them trained."""
        leases = [self.lease(job) for job in jobs]
        return max(lease[2] for lease in leases), min(lease[3] for lease in leases)

    # ---- the server ----

    @contextmanager
    def serving(self) -> Iterator[tuple[Path, int]]:
        job = self.submit(SERVER)
        name = f"job-{job}"
        where = f"SELECT 1 FROM metrics WHERE job_id = {job} UNION SELECT 1 FROM progress WHERE job_id = {job} AND step IS NOT NULL"
        self.daemon.wait_for("the server serves", lambda: bool(self.daemon.query(where)))
        yield Path(self.client.get(f"/v1/jobs/{name}/server")["run_dir"]), job
        self.client.post(f"/v1/jobs/{name}/cancel", {})
        self.ended([job])

    @staticmethod
    def answered(client: InferenceClient) -> float:
        began = time.perf_counter()
        (answer,) = client.ask([1.0])
        if "error" in answer:
            raise SystemExit(f"the server answers {answer['error']}")
        return time.perf_counter() - began

    def asks(self, run_dir: Path, over: threading.Event) -> None:
        draw, due = random.Random(0), time.monotonic()
        with closing(InferenceClient(run_dir, "server")) as client:
            while not over.is_set():
                due += draw.expovariate(RATE)
                time.sleep(max(0.0, due - time.monotonic()))
                self.answered(client)

    # ---- mixes ----

    def mix(self, kinds: Sequence[Kind]) -> list[int]:
        """Run it; its jobs. A server is there before the others come, and until they have ended."""
        if kinds[0] != SERVER:
            jobs = []
            for kind in kinds:
                jobs.append(self.submit(kind, self.steps(kind, self.seconds)))
                time.sleep(GAP)
            self.ended(jobs)
            return jobs
        over = threading.Event()
        with self.serving() as (run_dir, server):
            client = threading.Thread(target=self.asks, args=(run_dir, over))
            client.start()
            jobs = self.mix(kinds[1:])
            over.set()
            client.join()
        return [server, *jobs]

    def compare(self, name: str, known: Measured) -> list[dict[str, Any]]:
        kinds = MIXES[name]
        leases = [self.lease(job) for job in self.mix(kinds)]
        begin = min(lease[0] for lease in leases)
        live = [lease[4] - lease[0] for lease in leases]
        # Starts are those of these very jobs, as they are no part of what is compared: who takes longer comes so much later.
        starts = [0.0 if kind == SERVER else lease[2] - known.pace[kind] - lease[1] for kind, lease in zip(kinds, leases, strict=True)]
        start = min(one for kind, one in zip(kinds, starts, strict=True) if kind != SERVER)
        came = np.array([lease[0] - begin for lease in leases])
        submitted = came + np.maximum(np.array(starts) - start, 0.0)
        work = [
            seconds - start if kind == SERVER else self.steps(kind, self.seconds) * known.pace[kind] + known.ending
            for kind, seconds in zip(kinds, live, strict=True)
        ]
        names = [str(kind) for kind in kinds]
        busy = {kind: RATE * known.answer if kind == SERVER else known.held[kind] / known.pace[kind] for kind in kinds}
        workload = make_workload(
            "live", submitted, work, [1] * len(kinds), models=names,
            priority=[kind.priority for kind in kinds], kind=["infer" if kind == SERVER else "train" for kind in kinds],
            share=["switched"] * len(kinds), profiles=[Profile(str(kind), utilisation=share) for kind, share in busy.items()],
            iterations=[np.nan if kind == SERVER else self.steps(kind, self.seconds) for kind in kinds],
        )  # fmt: skip
        costs = Costs(cold_start=start, warm_start=start, turn=known.turn, pause=known.pause)
        fates = simulate(workload, Cluster((1,)), registry.create("switchflow", {}), Options(costs=costs)).fates
        ended = np.empty(len(kinds))
        ended[np.argsort(submitted, kind="stable")] = fates.ended
        return [
            {
                "mix": name, "step ms": 1e3 * kind.step, "loading": 1e3 * kind.load, "priority": kind.priority,
                "alone s": seconds + start, "live JCT s": real, "simulated s": float(simulated),
                "difference %": 100 * (float(simulated) / real - 1),
            }
            for kind, seconds, real, simulated in zip(kinds, work, live, ended - came, strict=True) if kind != SERVER
        ]  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--seconds", type=float, default=14.0, help="that each training takes alone")
    options = parser.parse_args(given)
    began = machine()
    with Daemon() as daemon:
        daemon.home.config.write_text(CONFIG)
        daemon.start()
        daemon.start_runner(1)
        bench = Bench(daemon, options.seconds)
        known = bench.measure()
        rows = []
        for name in options.mixes:
            progress(f"mix: {name}")
            rows += bench.compare(name, known)
    measured = [{"ending s": known.ending, "turn ms": 1e3 * known.turn, "pause ms": 1e3 * known.pause,
                 "an answer ms": 1e3 * known.answer}]  # fmt: skip
    show(options, began, {"Completion times of jobs that take turns": rows, "Measured alone and in pairs": measured})


if __name__ == "__main__":
    main()
