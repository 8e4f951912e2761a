"""Training with a model's parts swapped in and out (layer-major), beside the plain loop and two other schedules. All times *emulated*.

    python benchmarks/swap.py [--layers 8] [--width 512] [--parts 6] [--micro-batches 1 2 4 8] [--ratios 0.5 1 2] [--models GPT-3-Small …]
    python benchmarks/swap.py --device cuda [--caps 0.25 0.5] [--threads 16]

A chain like GPT (attention, MLP, dropout, a head tied to the embedding) computes one step of C micro-batches on the metered device.
No time is measured: computing takes its matrix products' operations at the rate --tflops, a copy takes 20 µs a tensor and its bytes at a
bandwidth. So the figures are the same in each run.

1. In --parts parts of equal weights, computed for real: memory is what the device has counted (weights, gradients, activations, the loss;
   not the optimizer's state, which stays on the host), bytes moved, and the largest difference of a gradient from the plain loop's, which
   has one sum for the tied weight, and from those of a plain loop that has a sum for each of its two names.
2. In the parts that the planner finds under two caps (shares of what one part needs), for bandwidths at which C forward passes take
   --ratios times as long as all loads. The prediction is made first; then the step runs on the metered device, with tensors that have no
   content, and `time off` is how far the two are apart. `step / ideal`: beside what it computes, computing again included; `step / plain`:
   beside the plain step. The other schedules are plans with the same parts: FSDP2 with CPU offload loads each part twice a micro-batch and
   carries gradients out in each, which compute waits for where they are added to others (torch 2.13, _fsdp_collectives.py); it keeps all
   activations, which the cap is not asked for. Micro-batch-major loads each part three times a micro-batch (forward, again, backward).
3. Table 3.3's models (004 ch. 3.5) under caps of 8, 11 and 32 GB, C = 4, as plans, from tensors without content; nothing of them is run.

With ``--device cuda`` nothing is emulated: a model of 1.3 B parameters, its caps as shares of what the plain step takes with AdamW, and
FSDP2 with CPU offload in one process. `step / ideal` is the step without the optimizer, beside the plain one and once more the forward of
all parts but the last; `C forward / load`: what C micro-batches compute forward, beside the loads of all parts.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import swap_cuda
import torch
from common import arguments, machine, progress, show
from stoker.engine.errors import UsageError
from stoker.runners.device.device import Device
from stoker.runners.device.metered import BANDWIDTH, MeteredDevice
from stoker.runners.swap.comparison import compared
from stoker.runners.swap.interception import Interception
from stoker.runners.swap.micro_batch import MicroBatch
from stoker.runners.swap.model_profile import measure, size_of, sizes_of
from stoker.runners.swap.model_units import Finder, Units
from stoker.runners.swap.partition import MeasuredChain, cost_of, smallest_cap
from stoker.runners.swap.swap_executor import SwapExecutor
from stoker.runners.swap.swap_plan import plan_step
from stoker.runners.train import rng
from swap_schedules import at_bandwidth, at_rate, bandwidth_for, fsdp2, micro_batch_major, parts_of
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

UNBOUND = 1 << 50  #: bytes: memory is counted here, not capped
#: table 3.3 with Brown et al. 2020, table 2.1: layers, width, heads (of GPT-3 XL 16, as 24 do not divide its width)
MODELS = {
    "GPT-3-Small": (12, 768, 12), "Medium": (24, 1024, 16), "Large": (24, 1536, 16), "XL": (24, 2048, 16), "2.7B": (32, 2560, 32),
    "6.7B": (32, 4096, 32), "13B (18 layers)": (18, 5120, 40), "175B (2 blocks)": (2, 12288, 96),
}  # fmt: skip
VOCABULARY, LENGTH, ACCUMULATE = 50_257, 2_048, 4
#: memory in GB, and half of the peak of 32-bit floating point in TFLOP/s, as the maker states it
GPUS = {"GTX 1080": (8, 4.4), "GTX 1080 Ti": (11, 5.7), "V100": (32, 7.8)}


class Block(nn.Module):
    """Causal attention and an MLP, each beside a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.together = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.three(self.before(x)).chunk(3, dim=-1)
        q, k, v = self.apart(q), self.apart(k), self.apart(v)
        later = torch.ones_like(q[0, 0] @ k[0, 0].T, dtype=torch.bool).triu(1)
        weights = functional.softmax((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf), dim=-1)
        x = x + self.drop(self.together((weights @ v).transpose(1, 2).flatten(2)))
        return x + self.drop(self.outer(functional.gelu(self.inner(self.between(x)))))

    def apart(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) as (batch, heads, length, width of a head)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Gpt(nn.Module):
    """Tokens, shape (batch, length), to logits, shape (batch, length, vocabulary)."""

    def __init__(self, layers: int, width: int, vocabulary: int, length: int, heads: int = 0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads or max(1, width // 64)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))))


class Operations(TorchDispatchMode):
    """Floating point operations of matrix products, as torch's own counter has them; the emulated clock goes by them."""

    done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.done += count(*args, **(kwargs or {}), out_val=result)
        return result


def equal_cuts(units: Units, parts: int) -> list[int]:
    """Cuts into parts of about equal weights."""
    sizes = sizes_of(units)
    goals = [sum(sizes) * part / parts for part in range(1, parts)]
    return sorted({min(units.cuts(), key=lambda cut: abs(sum(sizes[:cut]) - goal)) for goal in goals})


_UNITS: dict[nn.Module, Units] = {}


class Case:
    """One model and its micro-batches."""

    def __init__(self, options: Any, count: int, model: Gpt) -> None:
        self.rate = options.tflops * 1e12
        self.model = model
        generator = torch.Generator().manual_seed(1)
        size = options.batch, model.places.num_embeddings
        self.batches = [torch.randint(model.words.num_embeddings, size, generator=generator) for _ in range(count)]
        self.batches = [tokens.to(model.words.weight.device) for tokens in self.batches]
        self.operations = Operations()

    @property
    def units(self) -> Units:
        """By a comparison with the model itself, if it has any content; of each model once."""
        if self.model not in _UNITS:
            finder = Finder(self.model)
            begin = [lambda: self.begun(self.batches[0][:, :8], None)]
            empty = self.batches[0].is_meta
            _UNITS[self.model] = Units(self.model, finder.units()) if empty else compared(self.model, finder, begin)
            Interception(_UNITS[self.model])
        return _UNITS[self.model]

    def begun(self, tokens: torch.Tensor, device: Device | None) -> MicroBatch:
        there = tokens if device is None else device.put(tokens)
        return MicroBatch(lambda: self.loss(self.model(there), there), rng.get_state(), size_of(tokens))

    def device(self, **link: float) -> MeteredDevice:
        return MeteredDevice(UNBOUND, clock=lambda: self.operations.done / self.rate, **link)

    def loss(self, answer: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Each token's answer is to be the next one."""
        return functional.cross_entropy(answer[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) / len(self.batches)

    def plain(self, names: bool = False) -> tuple[MeteredDevice, float, list[torch.Tensor]]:
        """All of it on the device; its seconds, and the gradients. ``names``: with a sum for each name of the tied weight."""
        device = self.device()
        model: Gpt = device.launch(lambda: copy.deepcopy(self.model))
        if names:
            model.head.weight = nn.Parameter(model.words.weight.detach())
        with self.operations, device.step() as times:
            for c, tokens in enumerate(self.batches):
                rng.seed_all(rng.mixed(0, c))
                there = device.put(tokens)
                device.launch(lambda there=there: self.loss(model(there), there).backward())
        if names:
            assert model.head.weight.grad is not None and model.words.weight.grad is not None
            model.words.weight.grad = model.head.weight.grad + model.words.weight.grad
            model.head.weight = model.words.weight
        return device, times.computing, gradients(model)

    def measured(self, bandwidth: float) -> MeasuredChain:
        """The profile of the model with the first micro-batch."""
        units = self.units
        with self.operations:
            return measure(units, lambda device: self.begun(self.batches[0], device), self.device(bandwidth=bandwidth), rounds=1)

    def swapped(self, cuts: Sequence[int] | int, bandwidth: float) -> tuple[MeteredDevice, Any, list[torch.Tensor]]:
        """``cuts``: before these calls, or into so many equal parts."""
        self.model.zero_grad(set_to_none=True)
        device = self.device(bandwidth=bandwidth)
        executor = SwapExecutor(self.units, equal_cuts(self.units, cuts) if isinstance(cuts, int) else cuts, device)
        micro = []
        for c, tokens in enumerate(self.batches):
            rng.seed_all(rng.mixed(0, c))
            micro.append(self.begun(tokens, device))
        with self.operations, device.step() as times:
            executor.run(micro)
        return device, times, gradients(self.model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def difference(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """The largest of any element."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def hollow(*sizes: int) -> Gpt:
    """A model without content."""
    with torch.device("meta"):
        return Gpt(*sizes)


def swept(options: Any, model: Gpt) -> list[dict[str, Any]]:
    """The planner's partitions, as predicted, and then run, and other schedules with the same parts."""
    measured = Case(options, 1, model).measured(BANDWIDTH)
    forward = sum(piece.forward for piece in measured.pieces)
    whole = cost_of(measured, [], 1).peak
    rows = []
    for count, ratio in itertools.product(options.micro_batches, options.ratios):
        bandwidth = bandwidth_for(measured, count * forward / ratio)
        if bandwidth is None:
            raise SystemExit(f"C = {count}, ratio {ratio:g}: the latencies of the copies alone take longer; lower --tflops")
        profile, case = at_bandwidth(measured, bandwidth), Case(options, count, model)
        _, plain, _ = case.plain()
        for share in options.caps:
            progress(f"C = {count}, ratio {ratio:g}, cap {share:g} of the whole")
            cap = max(int(share * whole), smallest_cap(profile, count))
            plan = plan_step(profile, cap, count)
            device, step, _ = case.swapped(plan.cuts, bandwidth)
            peak = device.memory()[1]
            if peak > cap:
                raise SystemExit(f"the peak, {peak} bytes, is above the cap, {cap} bytes")
            parts = parts_of(profile, plan.cuts)
            fsdp, major = fsdp2(parts, count), micro_batch_major(parts, count)
            rows.append({
                "C": count, "C x forward / load": ratio, "GB/s": bandwidth / 1e9, "cap / whole": cap / whole, "parts": len(parts),
                "peak / cap": peak / cap, "predicted ms": 1e3 * plan.seconds, "step ms": 1e3 * step.seconds,
                "time off": plan.seconds / step.seconds - 1, "step / ideal": step.seconds / step.computing,
                "step / plain": step.seconds / plain, "MB moved": (step.bytes_in + step.bytes_out) / 1e6,
                "FSDP2 / step": fsdp.seconds / step.seconds, "its MB": fsdp.moved / 1e6,
                "micro-batch-major / step": major.seconds / step.seconds, "its MB moved": major.moved / 1e6,
            })  # fmt: skip
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("metered", "cuda"), default="metered")
    numbers: dict[str, tuple[Callable[[str], float], float, float]] = {  # by default, without and with a GPU
        "layers": (int, 8, 24), "width": (int, 512, 2048), "vocabulary": (int, 4096, 32768), "batch": (int, 1, 2),
        "length": (int, 128, 512), "parts": (int, 6, 0), "tflops": (float, 1.0, 0.0), "threads": (int, 0, os.cpu_count() or 1),
        "steps": (int, 0, 3),
    }  # fmt: skip
    for name, (kind, *_) in numbers.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--no-fsdp", action="store_true", help="with --device cuda: without FSDP2")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8], metavar="C")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="C forward passes over all loads")
    parser.add_argument(
        "--caps", type=float, nargs="+", metavar="SHARE", help="of what one part needs; on a GPU of a plain step with AdamW"
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), help="of table 3.3")
    options = parser.parse_args(given)
    for name, (_, emulated, real) in numbers.items():
        if getattr(options, name) is None:
            setattr(options, name, real if options.device == "cuda" else emulated)
    options.caps = options.caps or ([0.25, 0.5] if options.device == "cuda" else [0.4, 0.7])
    began = machine()
    torch.manual_seed(0)
    sizes = options.layers, options.width, options.vocabulary, options.length
    if options.device == "cuda":
        with torch.device("cuda"):
            model = Gpt(*sizes)
        swap_cuda.run(options, model, lambda tables: show(options, began, tables))
        return
    model = Gpt(*sizes)
    memory = []
    for count in options.micro_batches:
        case = Case(options, count, model)
        progress(f"{count} micro-batches, for real")
        device, _, expected = case.plain()
        _, _, named = case.plain(names=True)
        swapping, step, found = case.swapped(options.parts, BANDWIDTH)
        plain_peak, peak = device.memory()[1], swapping.memory()[1]
        memory.append({
            "C": count, "plain MB": plain_peak / 1e6, "swapped MB": peak / 1e6, "swapped / plain": peak / plain_peak,
            "in MB": step.bytes_in / 1e6, "out MB": step.bytes_out / 1e6,
            "difference, a sum per name": difference(found, named), "one sum": difference(found, expected),
        })  # fmt: skip
    weights = size_of(list(model.parameters())) / 1e6
    tables = {
        f"Peak memory, bytes moved in a step, and the largest difference of a gradient; weights {weights:,.1f} MB": memory,
        f"Times of a step, emulated at {options.tflops:g} TFLOP/s: as planned, as run, and other schedules": swept(options, hollow(*sizes)),
    }
    if options.models:
        tables |= {"Table 3.3's models, C = 4, 2048 tokens: plans, emulated; nothing is run": large_plans(options)}
    show(options, began, tables)


def large_plans(options: Any) -> list[dict[str, Any]]:
    """Table 3.3's models on its GPUs, at half of their peak rates."""
    rows = []
    for name in options.models:
        layers, width, heads = MODELS[name]
        progress(f"plans of {name}")
        model = hollow(layers, width, VOCABULARY, LENGTH, heads)
        weights = size_of(list(model.parameters()))
        measured = Case(argparse.Namespace(tflops=1.0, batch=1), 1, model).measured(BANDWIDTH)
        for gpu, (gigabytes, tflops) in GPUS.items():
            profile = at_rate(measured, tflops)
            row = {"model": name, "weights GB": weights / 1e9, "GPU": gpu, "cap GB": gigabytes, "TFLOP/s": tflops}
            try:
                plan = plan_step(profile, int(gigabytes * 1e9), ACCUMULATE)
            except UsageError:
                least = smallest_cap(profile, ACCUMULATE) / 1e9
                rows.append(row | {"parts": "none", "peak GB": f"needs {least:.3g}", "step s": "-", "step / ideal": "-"})
                continue
            rows.append(row | {"parts": len(plan.parts), "peak GB": plan.peak / 1e9, "step s": plan.seconds,
                               "step / ideal": plan.seconds / plan.ideal})  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
