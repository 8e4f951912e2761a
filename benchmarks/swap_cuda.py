"""The part of swap.py that runs on a GPU: jobs' own steps, swapped and plain, and FSDP2 with CPU offload, each measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from common import progress
from stoker.engine.spec.model import Memory
from stoker.runners.device.cuda import CudaDevice
from stoker.runners.swap.loss_call import inputs_of, loss_of
from stoker.runners.swap.part_times import measure
from stoker.runners.swap.partition import Measured
from stoker.runners.swap.swap_plan import SwapPlan, plan_step
from stoker.runners.swap.swapped_step import SwappedStep
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks
from torch import distributed, nn
from torch.nn import functional

STEPS = 3  #: timed, after one to warm up
MIB = 1 << 20


def tables(options: Any, model: nn.Module) -> dict[str, list[dict[str, Any]]]:
    """``model``: on the GPU."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(options.threads)
    draw = torch.Generator().manual_seed(1)
    data = [torch.randint(options.vocabulary, (options.length,), generator=draw) for _ in range(options.batch)]
    task = Task(model=model, train=data, loss=next_tokens, batch_size=options.batch, iterations=1, optimizer=adam)
    size = sum(parameter.numel() for parameter in model.parameters())
    plain = {}
    for count in options.micro_batches:
        progress(f"{count} micro-batches, plain")
        plain[count] = timed(PlainStep(task, Ranks(0, 1, device), count, fused=True), data, count)
        for parameter in model.parameters():
            parameter.grad = None
    need = max(each["peak MiB"] for each in plain.values())
    model.to("cpu")
    freed()
    caps = [int(need * MIB * share) for share in options.caps]
    swapping = CudaDevice(caps[0], device)
    step = SwappedStep(task, Memory(cap=caps[0]), swapping)
    progress("pinning, and measuring the parts")
    step.place(model)
    begun = time.perf_counter()
    profile = profiled(step, data)
    took = time.perf_counter() - begun
    rows, plans = [], []
    for cap in caps:
        torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.get_device_properties(device).total_memory)
        swapping.cap = cap
        there = swapping.memory()[0]
        for count in options.micro_batches:
            progress(f"{count} micro-batches, cap {cap >> 20} MiB")
            begun = time.perf_counter()
            plan = plan_step(profile, cap - there, count)
            planning = time.perf_counter() - begun
            step._cuts = lambda _, plan=plan: plan.cuts  # type: ignore[method-assign, misc]
            step.training.executor = None
            rows.append(row(step, data, count, cap, plan, plain[count]))
            plans.append({
                "cap MiB": cap >> 20, "C": count, "parts": len(plan.parts), "predicted MiB": (plan.peak + there) / MIB,
                "peak MiB": rows[-1]["peak MiB"], "predicted s": plan.seconds, "step s": rows[-1]["step s"],
                "time off": plan.seconds / rows[-1]["step s"] - 1, "planning s": planning,
            })  # fmt: skip
    step.close()
    del step
    freed()
    offloaded = [] if options.no_fsdp else fsdp(options, model, data, device)
    for found in offloaded:
        found["swapped / FSDP2"] = (
            min(r["whole s"] for r in rows if r["C"] == found["C"] and r["cap MiB"] == rows[0]["cap MiB"]) / found["whole s"]
        )
    title = f"{torch.cuda.get_device_name(device)}, {size / 1e9:.2f} B parameters, {options.batch} x {options.length} tokens, fp32"
    return {
        f"{title}; all on the GPU": [{"C": count, **each} for count, each in plain.items()],
        f"Swapped; `step` without the optimizer, `whole` with it on {options.threads} threads; profiled in {took:.0f} s": rows,
        "Planned before the step, and as measured": plans,
        "FSDP2, one process, CPUOffloadPolicy, each block a group": offloaded,
    }


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-5)


def next_tokens(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def profiled(step: SwappedStep, data: Sequence[torch.Tensor]) -> Measured:
    chain, device, task = step.training.chain, step.device, step.task
    judged = device.put(torch.stack(list(data)))
    step.model.train()
    return measure(
        chain, lambda: inputs_of(task, chain, device.put(judged)), lambda _, answer: loss_of(task, answer, judged), device, rounds=2
    )


def seconds(act: Callable[[], object]) -> float:
    """Median of some."""
    found = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        act()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return median(found)


def timed(step: PlainStep, data: Sequence[torch.Tensor], count: int) -> dict[str, float]:
    """Of a plain step, whose gradients are made on the GPU, and all that AdamW keeps."""
    step.place(step.task.model)
    batches = [torch.stack(list(data))] * count
    freed()
    torch.cuda.reset_peak_memory_stats()
    step.update(batches, 1.0)
    whole = seconds(lambda: step.update(batches, 1.0))
    peak = torch.cuda.max_memory_allocated()
    step.optimizer.step = lambda *_: None  # type: ignore[assignment, method-assign]
    return {"step s": seconds(lambda: step.update(batches, 1.0)), "whole s": whole, "peak MiB": peak / MIB}


def row(step: SwappedStep, data: Sequence[torch.Tensor], count: int, cap: int, plan: SwapPlan, plain: dict[str, float]) -> dict[str, Any]:
    batches = [torch.stack(list(data))] * count
    step.update(batches, 1.0)
    whole = seconds(lambda: step.update(batches, 1.0))
    moved = step.values
    step._move = lambda: None  # type: ignore[method-assign]
    bare = seconds(lambda: step.update(batches, 1.0))
    stalled = step.values["swap_stall"]
    del step._move  # type: ignore[attr-defined]
    again = count * sum(part.forward for part in plan.parts[:-1])
    load = sum(part.load for part in plan.parts)
    return {
        "cap MiB": cap >> 20, "C": count, "parts": len(plan.parts), "C compute / load": plan.ideal / (2 * load),
        "peak MiB": moved["swap_peak"] / MIB, "step s": bare, "stalled s": stalled, "whole s": whole,
        "step / ideal": bare / (plain["step s"] + again), "step / plain": bare / plain["step s"], "whole / plain": whole / plain["whole s"],
        "in MB": moved["swap_in"] / 1e6, "out MB": moved["swap_out"] / 1e6,
    }  # fmt: skip


def freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def fsdp(options: Any, model: nn.Module, data: Sequence[torch.Tensor], device: torch.device) -> list[dict[str, Any]]:
    """It is micro-batch-major: every block is loaded twice for each micro-batch, and its gradients leave after each."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    torch.cuda.set_per_process_memory_fraction(1.0)
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
        whole = seconds(lambda step=step: step(True))  # type: ignore[misc]
        found.append({"C": count, "step s": seconds(lambda step=step: step(False)), "whole s": whole,  # type: ignore[misc]
                      "peak MiB": torch.cuda.max_memory_allocated() / MIB})  # fmt: skip
    distributed.destroy_process_group()
    return found
