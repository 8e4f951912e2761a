"""The part of swap.py that runs on a GPU: jobs' own steps, swapped and plain, and FSDP2 with CPU offload, each measured."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import torch
from common import progress
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory
from stoker.runners.device.cuda import CudaDevice
from stoker.runners.device.device import CapExceeded
from stoker.runners.swap.model_profile import measure
from stoker.runners.swap.partition import MeasuredChain
from stoker.runners.swap.swap_plan import SwapPlan, plan_step
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.swap.task_batches import begun
from stoker.runners.train import rng
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import distributed, nn
from torch.nn import functional

MIB = 1 << 20


Row = dict[str, Any]
Told = Callable[[dict[str, list[Row]]], None]  #: is given tables as soon as they are there


def run(options: Any, model: nn.Module, told: Told) -> None:
    """``model``: on the GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(options.threads)
    draw = torch.Generator().manual_seed(1)
    data = [torch.randint(options.vocabulary, (options.length,), generator=draw) for _ in range(options.batch)]
    task = Task(model=model, train=data, loss=next_tokens, batch_size=options.batch, iterations=1, optimizer=adam)
    size = sum(parameter.numel() for parameter in model.parameters())
    title = f"{torch.cuda.get_device_name(device)}, {size / 1e9:.2f} B parameters, {options.batch} x {options.length} tokens, fp32"
    plain = {count: timed(options, PlainStep(task, Ranks(0, 1, device), count, fused=True), data, count) for count in options.micro_batches}
    told({f"{title}: all on the GPU": [{"C": count, **each} for count, each in plain.items()]})
    need = max(each["peak MiB"] for each in plain.values())
    for parameter in model.parameters():
        parameter.grad = None
    model.to("cpu")
    freed()
    caps = [int(need * MIB * share) for share in options.caps]
    step = SwappedStep(task, Memory(cap=caps[0]), CudaDevice(caps[0], device))
    progress("pinning, and measuring the parts")
    step.place(model)
    begun = time.perf_counter()
    profile = profiled(task, step, data)
    took = time.perf_counter() - begun
    rows: list[Row] = []
    plans: list[Row] = []
    for cap in caps:
        step.device = CudaDevice(cap, device)
        for count in options.micro_batches:
            with suppress(UsageError):
                plan, row = swapped(options, step, profile, data, count, cap, plain[count])
                rows.append(row)
                plans.append({
                    "cap MiB": cap >> 20, "C": count, "parts": len(plan.parts), "predicted MiB": plan.peak / MIB,
                    "peak MiB": row["peak MiB"],
                    "predicted s": plan.seconds, "step s": row["step s"], "time off": plan.seconds / row["step s"] - 1,
                })  # fmt: skip
    told({
        f"Swapped; `step` without the optimizer, `whole` with it on {options.threads} threads; profiled in {took:.0f} s": rows,
        "Planned before the step, and as measured": plans,
    })  # fmt: skip
    step.close()
    del step
    freed()
    if options.no_fsdp:
        return
    found = fsdp(options, copy.deepcopy(model), data, device)  # without the hooks of the swapped step
    best = {
        (row["C"], name): min(other[name] for other in rows if other["C"] == row["C"]) for row in rows for name in ("step s", "whole s")
    }
    for row in found:
        row |= {
            f"FSDP2 / swapped, {name[:-2]}": row[name] / best[row["C"], name] for name in ("step s", "whole s") if (row["C"], name) in best
        }
    told({"FSDP2, one process, CPUOffloadPolicy, each block a group": found})


def swapped(
    options: Any, step: SwappedStep, profile: MeasuredChain, data: Sequence[torch.Tensor], count: int, cap: int, plain: Row
) -> tuple[SwapPlan, Row]:
    """With the planner's cuts for the cap, or for a little less where the allocator needs room between what is used. UsageError: none."""
    for room in (1.0, 0.95, 0.9, 0.8):
        plan = plan_step(profile, int(room * cap), count)
        progress(f"{count} micro-batches, cap {cap >> 20} MiB, {len(plan.parts)} parts")
        step._cut = lambda *_, plan=plan: plan.cuts  # type: ignore[method-assign, misc]
        step.executor = None
        try:
            return plan, measured_row(options, step, data, count, cap, plan, plain)
        except CapExceeded as error:
            progress(str(error))
        freed()
    raise UsageError("nothing fits")


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-5)


def next_tokens(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def profiled(task: Task, step: SwappedStep, data: Sequence[torch.Tensor]) -> MeasuredChain:
    batch = torch.stack(list(data))
    step.model.train()
    return measure(step._compared([batch]), lambda device: begun(task, batch, rng.get_state(), device), step.device, rounds=2)


def seconds(act: Callable[[], object], steps: int) -> float:
    """Median of so many."""
    found = []
    for _ in range(steps):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        act()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return median(found)


def timed(options: Any, step: PlainStep, data: Sequence[torch.Tensor], count: int) -> Row:
    """Of a plain step, whose gradients are made on the GPU, and all that AdamW keeps."""
    progress(f"{count} micro-batches, plain")
    step.place(step.task.model)
    batches = [torch.stack(list(data))] * count
    freed()
    torch.cuda.reset_peak_memory_stats()
    step.update(batches, 1.0)
    whole = seconds(lambda: step.update(batches, 1.0), options.steps)
    peak = torch.cuda.max_memory_allocated()
    step.optimizer.step = lambda *_: None  # type: ignore[assignment, method-assign]
    return {"step s": seconds(lambda: step.update(batches, 1.0), options.steps), "whole s": whole, "peak MiB": peak / MIB}


def measured_row(options: Any, step: SwappedStep, data: Sequence[torch.Tensor], count: int, cap: int, plan: SwapPlan, plain: Row) -> Row:
    batches = [torch.stack(list(data))] * count
    step.update(batches, 1.0)
    whole = seconds(lambda: step.update(batches, 1.0), options.steps)
    moved = step.values
    step._move = lambda: None  # type: ignore[method-assign]
    bare = seconds(lambda: step.update(batches, 1.0), options.steps)
    stalled = step.values["swap_stall"]
    del step._move
    again = count * sum(part.forward for part in plan.parts[:-1])
    row = {
        "cap MiB": cap >> 20, "C": count, "parts": len(plan.parts),
        "load GB/s": 1e-9 * sum(part.weights for part in plan.parts) / sum(part.load for part in plan.parts),
        "C forward / load": count * sum(part.forward for part in plan.parts) / sum(part.load for part in plan.parts),
        "peak MiB": moved["swap_peak"] / MIB, "step s": bare, "stalled s": stalled, "whole s": whole,
        "step / ideal": bare / (plain["step s"] + again), "step / plain": bare / plain["step s"], "whole / plain": whole / plain["whole s"],
        "in MB": moved["swap_in"] / 1e6, "out MB": moved["swap_out"] / 1e6,
    }  # fmt: skip
    progress(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    return row


def freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def fsdp(options: Any, model: nn.Module, data: Sequence[torch.Tensor], device: torch.device) -> list[dict[str, Any]]:
    """It is micro-batch-major: every block is loaded twice for each micro-batch, and its gradients leave after each."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    torch.cuda.set_per_process_memory_fraction(1.0)
    progress("FSDP2")
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1, device_id=device)
    offload = CPUOffloadPolicy()
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, offload_policy=offload)
    fully_shard(model, offload_policy=offload)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    there = torch.stack(list(data)).to(device)
    found = []
    for count in options.micro_batches:
        progress(f"{count} micro-batches, FSDP2")

        def step(optimize: bool, count: int = count) -> None:
            for _ in range(count):
                (next_tokens(model, there) / count).backward()
            if optimize:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step(True)
        torch.cuda.reset_peak_memory_stats()
        whole = seconds(lambda step=step: step(True), options.steps)  # type: ignore[misc]
        bare = seconds(lambda step=step: step(False), options.steps)  # type: ignore[misc]
        found.append({"C": count, "step s": bare, "whole s": whole, "peak MiB": torch.cuda.max_memory_allocated() / MIB})
        progress(str(found[-1]))
    distributed.destroy_process_group()
    return found
