"""Training with a model's parts swapped in and out (layer-major), beside the plain loop with all of it on the device. All times *emulated*.

    python benchmarks/swap.py [--layers 8] [--width 512] [--parts 6] [--micro-batches 1 2 4 8] [--bandwidths 12 6 3]
    python benchmarks/swap.py --device cuda [--caps 0.25 0.5] [--threads 16]

A chain like GPT (attention, MLP, dropout, a head tied to the embedding) is cut into parts of equal weights and computes one step of C
micro-batches on the metered device. All of it is computed for real, and memory is what the device has counted: weights, gradients,
activations, the loss; not the optimizer's state, which stays on the host. No time is measured: computing takes its matrix products'
operations at the rate --tflops, a copy takes 20 µs a tensor and its bytes at the bandwidth. So the figures are the same in each run.
`step / computing` is the step beside what it computes itself, that is 1 when all copies are hidden; `step / plain` is it beside the plain
step, which does not compute activations again. The last table has the partition that the planner finds under a cap, its prediction, made
before the step, and what the step then took: `time off` is how far the two are apart. Gradients are compared with the plain loop's, which
has one sum for the tied weight, and with those of a plain loop that has a sum for each of its two names.

With ``--device cuda`` nothing is emulated: a model of 1.3 B parameters, its caps as shares of what the plain step takes with AdamW, and
FSDP2 with CPU offload in one process. `step / ideal` is the step without the optimizer, beside the plain one and once more the forward of
all parts but the last; `C forward / load`: what C micro-batches compute forward, beside the loads of all parts.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import swap_cuda
import torch
from common import arguments, machine, progress, show
from stoker.runners.device.metered import MeteredDevice
from stoker.runners.swap.chain import Chain, size_of, trace
from stoker.runners.swap.part_times import measure
from stoker.runners.swap.partition import Measured, smallest_cap
from stoker.runners.swap.swap_executor import MicroBatch, SwapExecutor
from stoker.runners.swap.swap_plan import plan_step
from stoker.runners.train import rng
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

UNBOUND = 1 << 40  #: bytes: memory is counted here, not capped


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
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.three(self.before(x)).chunk(3, dim=-1))
        later = torch.ones_like(q[0, 0] @ k[0, 0].T, dtype=torch.bool).triu(1)
        weights = functional.softmax((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf), dim=-1)
        x = x + self.drop(self.together((weights @ v).transpose(1, 2).flatten(2)))
        return x + self.drop(self.outer(functional.gelu(self.inner(self.between(x)))))


class Gpt(nn.Module):
    """Tokens, shape (batch, length), to logits, shape (batch, length, vocabulary)."""

    def __init__(self, layers: int, width: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places.weight)))


class Operations(TorchDispatchMode):
    """Floating point operations of matrix products, as torch's own counter has them; the emulated clock goes by them."""

    done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.done += count(*args, **(kwargs or {}), out_val=result)
        return result


def equal_cuts(chain: Chain, parts: int) -> list[int]:
    """Cuts into parts of about equal weights, where a single value crosses."""
    sizes = [size_of([chain.attribute(name) for name in names]) for names in chain.tensors_of]
    bound = chain.bound_cuts(set(chain.parameters))
    fit = [cut for cut in range(1, len(chain)) if cut not in bound and len(chain.crossing(cut)) == 1]
    goals = [sum(sizes) * part / parts for part in range(1, parts)]
    return sorted({min(fit, key=lambda cut: abs(sum(sizes[:cut]) - goal)) for goal in goals})


class Case:
    """One model and its micro-batches."""

    def __init__(self, options: Any, count: int, model: Gpt) -> None:
        self.rate = options.tflops * 1e12
        self.model = model
        generator = torch.Generator().manual_seed(1)
        self.batches = [torch.randint(options.vocabulary, (options.batch, options.length), generator=generator) for _ in range(count)]
        self.operations = Operations()

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

    def measured(self, bandwidth: float) -> Measured:
        """The profile of the model with the first micro-batch."""
        device = self.device(bandwidth=bandwidth)
        chain = Chain(self.model, trace(self.model))
        tokens = device.put(self.batches[0])
        with self.operations:
            return measure(
                chain, lambda: chain.bind((device.put(tokens),), {}), lambda _, answer: self.loss(answer, tokens), device, rounds=1
            )

    def swapped(self, cuts: Sequence[int] | int, bandwidth: float) -> tuple[MeteredDevice, Any, list[torch.Tensor]]:
        """``cuts``: before these nodes, or into so many equal parts."""
        self.model.zero_grad(set_to_none=True)
        chain = Chain(self.model, trace(self.model))
        device = self.device(bandwidth=bandwidth)
        executor = SwapExecutor(chain, equal_cuts(chain, cuts) if isinstance(cuts, int) else cuts, device)
        micro, there = [], [device.put(tokens) for tokens in self.batches]
        for c, tokens in enumerate(there):
            rng.seed_all(rng.mixed(0, c))
            micro.append(MicroBatch(chain.bind((tokens,), {}), rng.get_state()))
        with self.operations, device.step() as times:
            executor.run(micro, lambda c, answer: self.loss(answer, there[c]))
        return device, times, gradients(self.model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def difference(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """The largest of any element."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def planned_beside_equal(
    case: Case, options: Any, profile: Measured, count: int, bandwidth: float, equal_peak: int, equal: Any
) -> dict[str, Any]:
    """A partition with no more memory than the equal parts took, or with the least that the planner promises; as predicted and as run."""
    cap = max(equal_peak, smallest_cap(profile, count))
    plan = plan_step(profile, cap, count)
    device, step, _ = case.swapped(plan.cuts, bandwidth * 1e9)
    peak = device.memory()[1]
    if peak > plan.peak:
        raise SystemExit(f"the peak, {peak}, is above the predicted one, {plan.peak}")
    return {
        "C": count, "GB/s": bandwidth, "parts": len(plan.parts), "cap MB": cap / 1e6, "predicted MB": plan.peak / 1e6,
        "peak MB": peak / 1e6, "predicted ms": 1e3 * plan.seconds, "step ms": 1e3 * step.seconds,
        "time off": plan.seconds / step.seconds - 1,
        "step / computing": step.seconds / step.computing, "equal parts / planned": equal.seconds / step.seconds,
    }  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("metered", "cuda"), default="metered")
    numbers: dict[str, tuple[Callable[[str], float], float, float]] = {  # by default, without and with a GPU
        "layers": (int, 8, 24), "width": (int, 512, 2048), "vocabulary": (int, 4096, 32768), "batch": (int, 1, 2),
        "length": (int, 128, 512), "parts": (int, 6, 0), "tflops": (float, 5.0, 0.0), "threads": (int, 0, os.cpu_count() or 1),
        "steps": (int, 0, 3),
    }  # fmt: skip
    for name, (kind, *_) in numbers.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--caps", type=float, nargs="+", default=[0.25, 0.5], metavar="SHARE")
    parser.add_argument("--no-fsdp", action="store_true", help="with --device cuda: without FSDP2")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8], metavar="C")
    parser.add_argument("--bandwidths", type=float, nargs="+", default=[12.0, 6.0, 3.0], metavar="GB/S")
    options = parser.parse_args(given)
    for name, (_, emulated, real) in numbers.items():
        if getattr(options, name) is None:
            setattr(options, name, real if options.device == "cuda" else emulated)
    began = machine()
    torch.manual_seed(0)
    if options.device == "cuda":
        with torch.device("cuda"):
            model = Gpt(options.layers, options.width, options.vocabulary, options.length)
        swap_cuda.run(options, model, lambda tables: show(options, began, tables))
        return
    model = Gpt(options.layers, options.width, options.vocabulary, options.length)
    memory, times, plans = [], [], []
    profiles = {}
    for bandwidth in options.bandwidths:
        progress(f"profile, {bandwidth:g} GB/s")
        profiles[bandwidth] = Case(options, 1, model).measured(bandwidth * 1e9)
    for count in options.micro_batches:
        case = Case(options, count, model)
        progress(f"{count} micro-batches, plain")
        device, ideal, expected = case.plain()
        _, _, named = case.plain(names=True)
        for bandwidth in options.bandwidths:
            progress(f"{count} micro-batches, {bandwidth:g} GB/s")
            swapping, step, found = case.swapped(options.parts, bandwidth * 1e9)
            times.append({
                "C": count, "GB/s": bandwidth, "step ms": 1e3 * step.seconds, "stalled ms": 1e3 * step.stalled,
                "step / computing": step.seconds / step.computing, "step / plain": step.seconds / ideal,
            })  # fmt: skip
            plans.append(planned_beside_equal(case, options, profiles[bandwidth], count, bandwidth, swapping.memory()[1], step))
        plain_peak, peak = device.memory()[1], swapping.memory()[1]
        memory.append({
            "C": count, "plain MB": plain_peak / 1e6, "swapped MB": peak / 1e6, "swapped / plain": peak / plain_peak,
            "in MB": step.bytes_in / 1e6, "out MB": step.bytes_out / 1e6,
            "difference, a sum per name": difference(found, named), "one sum": difference(found, expected),
        })  # fmt: skip
    weights = size_of(list(model.parameters())) / 1e6
    show(options, began, {
        f"Peak memory, bytes moved in a step, and the largest difference of a gradient; weights {weights:,.1f} MB": memory,
        f"Times of a step, emulated at {options.tflops:g} TFLOP/s": times,
        "The planner's partition under the peak of the equal parts as a cap: predicted, and then run, emulated": plans,
    })  # fmt: skip


if __name__ == "__main__":
    main()
