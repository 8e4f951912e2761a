"""Replicas that swap beside the schedules of GPipe and PipeDream over slow links: 004 ch. 3.5.2, figures 3-14 to 3-16. *Emulated*.

    python benchmarks/replicas_pipelines.py [--models XL …] [--gpu V100] [--links 0 800 400] [--real 2 4 8] [--payload 24]

1. Seconds that a GPU spends on one mini-batch (2 048 tokens), four GPUs, C = 4, without all-reduce and optimizer; and how much of its time
   each computes. Replicas: the planner's swapped step under the GPU's memory. GPipe: four forwards, then four backwards, then the next
   four. PipeDream: one forward, one backward in turn, and no flush. A pipeline's parts are cut between blocks so that the slowest stage is
   as fast as can be. Nothing of it waits for memory, nothing is computed again, and what it sends leaves beside what it computes: all of
   that is in favour of the pipelines. Computing is matrix products at half of the maker's rate.
2. A global batch of 256 mini-batches on 8 and 12 GPUs, with the sum of the gradients in a ring and the optimizer on the host. Pipelines
   (two, three of them) sum each stage for itself.
3. With --real N …: the schedules in real processes, each in a network namespace of its own, whose link `tc` throttles (needs root).
   Computing is a pause of the emulated length, what is sent is real: the first model's activations over four GPUs, and the sum of --payload
   MB by N members through the process group that replicas use. `emulated / real` tells how far tables 1 and 2 can be believed.

Each GPU has a link of so many Mbit/s out and as many in, whomever it talks to; 0: no limit.
"""

from __future__ import annotations

import argparse
import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import replicas_links
from common import arguments, machine, progress, show
from stoker.engine.errors import UsageError
from stoker.runners.device.metered import BANDWIDTH
from stoker.runners.swap.partition import MeasuredChain
from stoker.runners.swap.swap_plan import SwapPlan, plan_step
from swap import ACCUMULATE, GPUS, LENGTH, MODELS, VOCABULARY, Case, hollow
from swap_schedules import at_rate

STAGES, GLOBAL = 4, 256
WORD = 4  #: bytes of a number
Op = tuple[str, int]  #: "F" or "B", and of which mini-batch


@dataclass(frozen=True, slots=True)
class Stage:
    forward: float  #: seconds of a mini-batch
    backward: float
    weights: int  #: bytes


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    stages: tuple[Stage, ...]
    weights: int  #: bytes
    activations: int  #: bytes that go from stage to stage
    plan: SwapPlan | None  #: None: it does not fit in any way

    @property
    def computes(self) -> float:
        """Seconds of a mini-batch, nothing computed again."""
        return sum(stage.forward + stage.backward for stage in self.stages)


def model_of(name: str, gpu: str) -> Model:
    layers, width, heads = MODELS[name]
    gigabytes, tflops = GPUS[gpu]
    measured = Case(argparse.Namespace(tflops=1.0, batch=1), 1, hollow(layers, width, VOCABULARY, LENGTH, heads)).measured(BANDWIDTH)
    profile = at_rate(measured, tflops)
    try:
        plan = plan_step(profile, int(gigabytes * 1e9), ACCUMULATE)
    except UsageError:
        plan = None
    own = {weight.master: weight.size for piece in profile.pieces for weight in piece.weights}
    return Model(name, tuple(stages(profile)), sum(own.values()), LENGTH * width * WORD, plan)


def stages(profile: MeasuredChain) -> list[Stage]:
    """The model in `STAGES` parts, the slowest of which is as fast as can be."""
    found: list[list[Stage]] = [[]]
    for piece in profile.pieces:  # a piece's backward computes it again first: a third of its time
        again = piece.backward / 3
        if piece.name.startswith(("blocks", "head")):
            found.append([])
        found[-1].append(Stage(again, 2 * again, sum({weight.master: weight.size for weight in piece.weights}.values())))
    units = [_together(unit) for unit in found]
    ends = [[math.inf] * (len(units) + 1) for _ in range(STAGES + 1)]  # of the first n units in k stages: the slowest
    cut = [[0] * (len(units) + 1) for _ in range(STAGES + 1)]
    ends[0][0] = 0.0
    for k in range(1, STAGES + 1):
        for n in range(k, len(units) + 1):
            for before in range(k - 1, n):
                slowest = max(ends[k - 1][before], sum(unit.forward + unit.backward for unit in units[before:n]))
                if slowest < ends[k][n]:
                    ends[k][n], cut[k][n] = slowest, before
    bounds = [len(units)]
    for k in range(STAGES, 0, -1):
        bounds.insert(0, cut[k][bounds[0]])
    return [_together(units[begin:end]) for begin, end in pairwise(bounds)]


def _together(parts: Sequence[Stage]) -> Stage:
    return Stage(sum(each.forward for each in parts), sum(each.backward for each in parts), sum(each.weights for each in parts))


# ---- schedules ----


def gpipe(count: int) -> list[list[Op]]:
    """Of each stage what it computes, in order: C forwards, C backwards, and again."""
    rounds = [range(begin, min(begin + ACCUMULATE, count)) for begin in range(0, count, ACCUMULATE)]
    return [[op for some in rounds for op in ([("F", c) for c in some] + [("B", c) for c in some])] for _ in range(STAGES)]


def pipedream(count: int) -> list[list[Op]]:
    """One forward, one backward, once as many forwards are on their way as there are stages from here on."""
    orders = []
    for stage in range(STAGES):
        ahead = min(STAGES - stage, count)
        order: list[Op] = [("F", c) for c in range(ahead)]
        for c in range(count):
            order.append(("B", c))
            if ahead + c < count:
                order.append(("F", ahead + c))
        orders.append(order)
    return orders


SCHEDULES = {"GPipe": gpipe, "PipeDream": pipedream}


def seconds(parts: Sequence[Stage], orders: Sequence[Sequence[Op]], transfer: float) -> float:
    """Until the last is computed. A stage computes one thing, sends one and receives one at a time, all three beside each other."""
    last = len(parts) - 1
    there = {("F", 0, c) for kind, c in orders[0] if kind == "F"}
    left, queue = [list(order) for order in orders], list[tuple[str, int, int, int]]()
    computing, sending, receiving = set[int](), set[int](), set[int]()
    events: list[tuple[float, int, Callable[[], None]]] = []  # what ends when
    now, count = 0.0, 0

    def later(after: float, then: Callable[[], None]) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (now + after, count, then))

    def computed(stage: int, kind: str, c: int) -> None:
        computing.discard(stage)
        onward = stage + (1 if kind == "F" else -1)
        if kind == "F" and stage == last:
            there.add(("B", stage, c))
        elif onward >= 0:
            queue.append((kind, stage, onward, c))

    def arrived(kind: str, stage: int, onward: int, c: int) -> None:
        sending.discard(stage)
        receiving.discard(onward)
        there.add((kind, onward, c))

    while True:
        for stage, order in enumerate(left):
            if order and stage not in computing and (order[0][0], stage, order[0][1]) in there:
                kind, c = order.pop(0)
                computing.add(stage)
                later(parts[stage].forward if kind == "F" else parts[stage].backward, partial(computed, stage, kind, c))
        for one in list(queue):
            if one[1] not in sending and one[2] not in receiving:
                queue.remove(one)
                sending.add(one[1])
                receiving.add(one[2])
                later(transfer, partial(arrived, *one))
        if not events:
            return now
        now, _, then = heapq.heappop(events)
        then()


def bytes_a_second(link: float) -> float:
    return link * 1e6 / 8 if link else math.inf


def ring(size: float, members: int, link: float) -> float:
    """Seconds of a sum: each sends its part of everything twice, but to itself."""
    return 2 * (members - 1) / members * size / bytes_a_second(link)


# ---- tables ----


def mini_batches(model: Model, link: float) -> dict[str, Any]:
    """Table 1's row: 4 GPUs, seconds of a GPU a mini-batch and the share of the time in which it computes."""
    transfer = model.activations / bytes_a_second(link)
    row: dict[str, Any] = {"model": model.name, "Mbit/s": link or "-"}
    took = {"GPipe": seconds(model.stages, gpipe(ACCUMULATE), transfer) * STAGES / ACCUMULATE}
    many = 32  # PipeDream's pace once the pipeline is full
    full = seconds(model.stages, pipedream(2 * many), transfer) - seconds(model.stages, pipedream(many), transfer)
    took["PipeDream"] = full * STAGES / many
    if model.plan is not None:
        took["replicas"] = model.plan.seconds / ACCUMULATE
    row |= {f"{name} s": value for name, value in took.items()}
    row |= {f"{name} computes": model.computes / value for name, value in took.items() if name != "replicas"}
    if model.plan is not None:
        row["replicas compute"] = model.plan.ideal / model.plan.seconds
        row |= {f"{name} / replicas": took[name] / took["replicas"] for name in ("GPipe", "PipeDream")}
    return row


def global_batches(model: Model, link: float, gpus: int, adam: float) -> dict[str, Any]:
    """Table 2's row. ``adam``: seconds of the optimizer a parameter."""
    pipelines = gpus // STAGES
    each = -(-GLOBAL // pipelines)
    transfer = model.activations / bytes_a_second(link)
    largest = max(stage.weights for stage in model.stages)
    row: dict[str, Any] = {"model": model.name, "Mbit/s": link or "-", "GPUs": gpus}
    for name, schedule in SCHEDULES.items():
        row[f"{name} s"] = seconds(model.stages, schedule(each), transfer) + ring(largest, pipelines, link) + largest / WORD * adam
    if model.plan is not None:
        own = -(-GLOBAL // gpus)
        whole = model.plan.seconds * own / ACCUMULATE
        summed = ring(model.weights, gpus, link)
        row |= {"replicas s": whole + summed + model.weights / WORD * adam, "of it the sum": summed}
        row |= {f"{name} / replicas": row[f"{name} s"] / row["replicas s"] for name in SCHEDULES}
    return row


def over_real_links(model: Model, links: Sequence[float], members: Sequence[int], payload: float) -> dict[str, list[dict[str, Any]]]:
    """The third part: what the other two have worked out, in real processes."""
    limited = [link for link in links if link]
    steps, sums = [], []
    for link in limited:
        for name, schedule in SCHEDULES.items():
            orders = schedule(4 * ACCUMULATE)
            progress(f"{name} at {link:g} Mbit/s")
            parts = [[stage.forward, stage.backward] for stage in model.stages]
            found = replicas_links.run(link, STAGES, do="stage", parts=parts, orders=orders, size=model.activations)
            real, expected = found[0], seconds(model.stages, orders, model.activations / bytes_a_second(link))
            steps.append({"schedule": name, "Mbit/s": link, "s": real, "emulated / real": expected / real})
        for count in members:
            progress(f"a sum by {count} at {link:g} Mbit/s")
            real = max(replicas_links.run(link, count, do="sum", size=int(payload * 1e6)))
            sums.append(
                {"members": count, "Mbit/s": link, "MB": payload, "s": real, "emulated / real": ring(payload * 1e6, count, link) / real}
            )
    return {f"Real links: {model.name}, computing is emulated": steps, "Real links: a sum by gloo": sums}


def adam_seconds() -> float:
    """Of AdamW a parameter, on this host, measured."""
    import torch

    weights = torch.nn.Parameter(torch.zeros(4_000_000))
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.AdamW([weights], fused=True)
    optimizer.step()
    begun = time.perf_counter()
    for _ in range(3):
        optimizer.step()
    return (time.perf_counter() - begun) / 3 / weights.numel()


def _filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with all columns: those of a model that does not fit have some less."""
    columns = dict.fromkeys(column for row in sorted(rows, key=len, reverse=True) for column in row)
    return [{column: row.get(column, "-") for column in columns} for row in rows]


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="of table 3.3")
    parser.add_argument("--gpu", default="V100", choices=list(GPUS))
    parser.add_argument("--links", type=float, nargs="+", default=[0, 800, 400], metavar="MBIT")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 12], metavar="N")
    parser.add_argument("--real", type=int, nargs="+", default=[], metavar="N")
    parser.add_argument("--payload", type=float, default=24.0, metavar="MB")
    asked = parser.parse_args(given)
    began, models = machine(), []
    for name in asked.models:
        progress(f"profile and plan of {name}")
        models.append(model_of(name, asked.gpu))
    adam = adam_seconds()
    tables = {
        f"One mini-batch, s of a GPU, 4 GPUs of type {asked.gpu}, C = 4, emulated": _filled(
            [mini_batches(model, link) for model in models for link in asked.links]
        ),
        f"256 mini-batches with sum and optimizer ({1e9 * adam:.2g} ns a parameter), s, emulated": _filled(
            [global_batches(model, link, gpus, adam) for model in models for link in asked.links for gpus in asked.gpus]
        ),
    }
    if asked.real:
        tables |= over_real_links(models[0], asked.links, asked.real, asked.payload)
    show(asked, began, tables)


if __name__ == "__main__":
    main()
