"""A storm of kills, stops, pauses, joins and cut links over a training by replicas: which samples count, and whether all end alike.

    python benchmarks/replicas.py [--steps 1000] [--members 4] [--events 40] [--ways replicas torchft ddp] [--seed 0]

Real member processes train to count: each use of a sample adds one to its own weight. Some are killed (kill -9), told to stop, or stand
still for longer than ``quorum_timeout``; missing ones are started again. Links are cut for a while: of some members to all others, both
ways or one way, or from one member to one other. Each member is in a network namespace for that; where these are not permitted, it stands
still instead, and a line says so.

- replicas: Stoker's. The daemon's word is what this program tells; for a while after a fifth of the events it is dead, and half of those
  who are cut off do not hear it.
- torchft: torchft alone, as its examples have it: one lighthouse, which is not killed, a shard of the data for each replica.
- ddp: DDP; where one was lost all begin anew from the last checkpoint, of every 20 steps.

Over the other two a cut link is a pause. ``wrong``: samples that counted more or less often than once a pass; ``batches``: sizes of steps;
``alike``: of the members at the end, those with the weights of the first, bit for bit; ``split``: steps that two groups
took side by side. ``recovery``: from an event to the next step but for a usual step, s.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common import arguments, machine, progress, show
from replica_members import PATIENCE, Member, World, counting, nursery, world
from replicas_links import hosts
from stoker.runners.lease.rundir import PREEMPTED_EXIT
from stoker.runners.network.addresses import free_port

SAMPLES, BATCH, PACE, TIMEOUT = 64, 16, 0.001, 1.0


def events(count: int, steps: int, members: int, seed: int) -> list[tuple[int, str, int]]:
    """At which step what happens to which task."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(5, max(steps - 10, 6 + count)), count))
    return [(step, draw.choice(("kill", "kill", "stop", "pause", "cut", "cut")), draw.randrange(members)) for step in at]


class Storm:
    """Carries out the events on whatever the way has."""

    def __init__(self, plan: Sequence[tuple[int, str, int]], seed: int) -> None:
        self.plan, self.draw = list(plan), random.Random(seed + 1)
        self.times: list[float] = []
        self.later: list[tuple[float, Callable[[], None]]] = []  #: what ends an event, and when
        self.lost: Counter[tuple[int, int]] = Counter()  #: hosts of whom the first sends to the second in vain, by how many cuts

    def due(self, step: int) -> tuple[str, int] | None:
        if not self.plan or step < self.plan[0][0]:
            return None
        _, kind, index = self.plan.pop(0)
        self.times.append(time.time())
        return kind, index

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.later.append((time.monotonic() + seconds, what))

    def end_events(self) -> None:
        now = time.monotonic()
        ends = [what for until, what in self.later if until <= now]
        self.later = [each for each in self.later if each[0] > now]
        for what in ends:
            what()

    # ---- over replicas ----

    def happen(self, there: World, kind: str, index: int) -> None:
        member = next((member for member in there.members if member.index == index), None)
        if kind == "cut" and there.hosts:
            self._cut(there, index)
        elif member is None or len(there.members) < 3:
            return
        elif kind in ("pause", "cut"):
            os.kill(member.pid, signal.SIGSTOP)
            self.after(1.5 * TIMEOUT, lambda: _signal(member, signal.SIGCONT))
        else:
            _signal(member, signal.SIGCONT)
            _signal(member, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        if self.draw.random() < 0.2:
            there.mute = True
            self.after(2 * TIMEOUT, lambda: _hears(there))

    def _cut(self, there: World, index: int) -> None:
        others = [other for other in range(len(there.hosts)) if other != index]
        beside = self.draw.choice(others)
        part = {index} if self.draw.random() < 0.6 else {index, beside}
        lost = {(one, other) for one in part for other in {*others, index} - part}
        way = self.draw.choice(("both", "to", "from", "one"))
        if way == "one":
            part, lost = set(), {(index, beside)}
        elif way == "from":
            lost = {(other, one) for one, other in lost}
        elif way == "both":
            lost |= {(other, one) for one, other in lost}
        deaf = part if way == "both" and self.draw.random() < 0.5 else set()
        there.deaf |= deaf
        self._lose(there, lost, 1)

        def mend() -> None:
            self._lose(there, lost, -1)
            there.deaf -= deaf
            there.tell()

        self.after(self.draw.uniform(0.1, 4.0) * TIMEOUT, mend)

    def _lose(self, there: World, lost: Iterable[tuple[int, int]], more: int) -> None:
        for pair in lost:
            one, other = (there.hosts[index] for index in pair)
            before = self.lost[pair]
            self.lost[pair] += more
            if not before:
                one.lose(other)
            elif not self.lost[pair]:
                one.find(other)


def _hears(there: World) -> None:
    there.mute = False
    there.tell()


def _signal(member: Member, number: int) -> None:
    if nursery().wait(member.pid, 0.0) is None:
        os.kill(member.pid, number)


def run_replicas(home: Path, steps: int, members: int, storm: Storm) -> dict[str, Any]:
    everyone: list[Member] = []
    with contextlib.ExitStack() as held:
        try:
            links = held.enter_context(hosts(members))
        except OSError as error:
            progress(f"no link is cut, members stand still instead: {error}")
            links = []
        there = held.enter_context(
            world(home, counting(least=2, most=members, steps=steps, timeout=TIMEOUT, pace=PACE, batch=BATCH), links)
        )
        last, failed = survive(there, members, storm, everyone)
    reached = sorted((report["ts"], report["step"]) for member in everyone for report in member.reports)
    weights = [member.weights for member in last]
    used = [round(value) for value in _used(last)]
    passes = steps * BATCH / SAMPLES
    return {
        "way": "replicas", "steps": steps, "events": len(storm.times), "wrong": sum(not passes - 1 < count < passes + 1 for count in used),
        "batches": BATCH, "alike": weights.count(weights[0]), "ended": len(weights), "split": len(splits(everyone)), "failed": failed,
    } | _pace(reached, storm.times)  # fmt: skip


def survive(there: World, members: int, storm: Storm, everyone: list[Member]) -> tuple[list[Member], int]:
    """Train through the storm: those who have taken the last step, and how many have ended as none should.

    ``everyone`` who ever was is put into that list.
    """
    everyone += there.start(*range(members))
    finished: list[Member] = []
    failed, moved, step = 0, time.monotonic(), 0
    while there.members:
        storm.end_events()
        for member in [each for each in there.members if nursery().wait(each.pid, 0.0) is not None]:
            ended_well = (code := nursery().wait(member.pid, 0.0)) == 0
            if code not in (0, -signal.SIGKILL, -signal.SIGTERM, PREEMPTED_EXIT):
                failed += 1
                progress(f"task {member.index}, lease {member.lease}, ended with {code}: {member.log[-1000:]}")
            there.done = there.done or ended_well
            finished += [member] if ended_well and "finished at step" in member.log else []
            there.saved[member.index] = max(there.saved.get(member.index, 0), member.saved)
            there.ended(member)
        farthest = max((member.step for member in there.members), default=0)
        if farthest > step:
            step, moved = farthest, time.monotonic()
        elif time.monotonic() - moved > 120.0 * PATIENCE:
            told = "\n".join(f"task {one.index}, lease {one.lease}:\n{one.log[-2000:]}" for one in there.members)
            raise AssertionError(f"nobody goes on from step {step}:\n{told}")
        if not any(ended(member) for member in (*there.members, *finished)):
            if (event := storm.due(step)) is not None:
                storm.happen(there, *event)
            present = {member.index for member in there.members}
            if missing := [index for index in range(members) if index not in present | there.deaf]:
                everyone += there.start(missing[0]) if not there.mute else []
        time.sleep(0.02)
    return finished, failed


def ended(member: Member) -> bool:
    return "finished at step" in member.log


def splits(everyone: Sequence[Member]) -> list[int]:
    """Steps that two groups took, each more than half of those who were to, while one who had taken it with the first still lived."""
    states: dict[int, dict[str, list[tuple[float, float]]]] = {}  #: of a step, when each of those who have one took it, and when it ended
    wanted: dict[tuple[int, str], int] = {}
    for member in everyone:
        for step, history, leases, moment in member.taken:
            states.setdefault(step, {}).setdefault(history, []).append((moment, member.ended))
            wanted[step, history] = len(leases)
    found = []
    for step, takers in states.items():
        lasting = sorted((sorted(those) for history, those in takers.items() if 2 * len(those) > wanted[step, history]), key=min)
        if any(max(end for _, end in first) > min(then)[0] for first, then in pairwise(lasting)):
            found.append(step)
    return sorted(found)


def _used(last: Sequence[Member]) -> list[float]:
    from stoker.runners.train.checkpoint import Checkpoints

    states = [Checkpoints(member.directory.parent / "checkpoints").load() for member in last]
    newest: dict[str, Any] = max((state for state in states if state is not None), key=lambda state: state["step"])
    return [float(value) for value in newest["model"]["used"].tolist()]


def run_torchft(home: Path, steps: int, members: int, storm: Storm) -> dict[str, Any]:
    os.environ.setdefault("RUST_LOG", "error")
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=500, quorum_tick_ms=20)
    address = f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}"
    logs = [home / f"committed-{index}" for index in range(members)]
    pids: dict[int, int] = {}

    def start(index: int) -> None:
        env = {"LIGHTHOUSE": address, "COMMITTED": str(logs[index]), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        env["MEMBER"] = json.dumps([index, members, steps, SAMPLES, BATCH, PACE, TIMEOUT])
        pids[index] = nursery().start(env, home / f"log-{index}", "replicas_torchft:main")

    def lines() -> list[list[Any]]:
        return [
            [index, *json.loads(line)] for index, log in enumerate(logs) if log.exists() for line in log.read_text().splitlines() if line
        ]

    for index in range(members):
        start(index)
    try:
        until = time.monotonic() + 600
        while (step := max((row[1] for row in lines()), default=0)) < steps - 1 and time.monotonic() < until:
            for index, pid in list(pids.items()):
                if nursery().wait(pid, 0.0) is not None:
                    start(index)
            if (event := storm.due(step)) is not None:
                kind, index = event
                if kind in ("pause", "cut"):
                    _pause(pids[index])
                else:
                    os.kill(pids[index], signal.SIGKILL)
            time.sleep(0.02)
        time.sleep(2.0)
    finally:
        for pid in pids.values():
            nursery().end(pid)
        lighthouse.shutdown()
    taken: dict[int, list[int]] = {}
    for _, step, _, own in lines():
        taken.setdefault(step, []).extend(own)
    used = Counter(sample for own in taken.values() for sample in own)
    passes = steps * BATCH / SAMPLES
    sizes = [len(own) for own in taken.values()]
    return {
        "way": "torchft", "steps": max(taken, default=0) + 1, "events": len(storm.times),
        "wrong": sum(not passes - 1 < used[sample] < passes + 1 for sample in range(SAMPLES)), "batches": f"{min(sizes)} to {max(sizes)}",
        "lost": sum(max(BATCH - size, 0) for size in sizes), "repeated": sum(max(size - BATCH, 0) for size in sizes),
    } | _pace(sorted((row[2], row[1]) for row in lines()), storm.times)  # fmt: skip


def run_ddp(home: Path, steps: int, members: int, storm: Storm) -> dict[str, Any]:
    import torch

    committed, saved = home / "committed", home / "checkpoint"

    def start() -> list[int]:
        port = free_port()
        pids = []
        for rank in range(members):
            env = {"PORT": str(port), "COMMITTED": str(committed), "CHECKPOINT": str(saved), "CUDA_VISIBLE_DEVICES": ""}
            env |= {"GLOO_SOCKET_IFNAME": "lo", "MEMBER": json.dumps([rank, members, steps, SAMPLES, BATCH, PACE])}
            pids.append(nursery().start(env, home / f"log-{rank}", "replicas_ddp:main"))
        return pids

    def lines() -> list[tuple[int, float]]:
        return [tuple(json.loads(line)) for line in committed.read_text().splitlines()] if committed.exists() else []

    pids = start()
    try:
        until = time.monotonic() + 600
        while (step := max((row[0] for row in lines()), default=0)) < steps and time.monotonic() < until:
            if (event := storm.due(step)) is not None:
                kind, index = event
                if kind in ("pause", "cut"):
                    _pause(pids[index])
                else:
                    for pid in (pids[index], *pids):  # the others stand in a sum with it, and are ended too
                        nursery().end(pid)
                    pids = start()
            time.sleep(0.02)
        time.sleep(1.0)
    finally:
        for pid in pids:
            nursery().end(pid)
    state = torch.load(saved, weights_only=True)
    passes = state["step"] * BATCH / SAMPLES
    wrong = sum(not passes - 1 < round(count) < passes + 1 for count in state["model"]["used"].tolist())
    redone = sum(count - 1 for count in Counter(step for step, _ in lines()).values())
    return {
        "way": "ddp", "steps": state["step"], "events": len(storm.times), "wrong": wrong, "batches": BATCH, "steps done again": redone,
    } | _pace(sorted((moment, step) for step, moment in lines()), storm.times)  # fmt: skip


def _pause(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5 * TIMEOUT)
    os.kill(pid, signal.SIGCONT)


def _pace(reached: Sequence[tuple[float, int]], times: Sequence[float]) -> dict[str, Any]:
    """How long a usual step took, and the longest wait for one after each event."""
    firsts: list[float] = []
    farthest = -1
    for moment, step in reached:
        if step > farthest:
            farthest = step
            firsts.append(moment)
    gaps = [(begin, end - begin) for begin, end in pairwise(firsts)]
    usual = median(gap for _, gap in gaps)
    after = sorted(
        max((gap for begin, gap in gaps if at - usual <= begin + gap and begin <= at + 5.0), default=usual) - usual for at in times
    )
    found: dict[str, Any] = {"step ms": 1000 * usual, "steps/s": len(gaps) / (firsts[-1] - firsts[0])}
    if after:
        found |= {"recovery p50": after[len(after) // 2], "recovery max": after[-1]}
    return found


WAYS = {"replicas": run_replicas, "torchft": run_torchft, "ddp": run_ddp}


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS), default=list(WAYS))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(given)
    began, tables = machine(), {}
    for way in asked.ways:
        progress(f"{way}: {asked.steps} steps, {asked.events} events")
        storm = Storm(events(asked.events, asked.steps, asked.members, asked.seed), asked.seed)
        with tempfile.TemporaryDirectory() as home:
            tables[f"A storm over {way}"] = [WAYS[way](Path(home), asked.steps, asked.members, storm)]
    show(asked, began, tables)


if __name__ == "__main__":
    main()
