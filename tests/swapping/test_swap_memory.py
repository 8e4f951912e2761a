"""What swapping takes of the host, as the kernel counts it, beside a process that holds weights, gradients and optimizer state alone."""

import json
import subprocess
import sys

import pytest

CHILD = """
import gc, hashlib, json, os, sys
gc.disable()
import torch
from stoker.runners.worker import late_dynamo
late_dynamo.put_off()
from torch import nn
from stoker.engine.spec.model import Memory
from stoker.runners.swap.swapped_step import SwappedStep, open_device
from stoker.runners.train.step import PlainStep
from stoker.runners.train.task import Task
from stoker.runners.worker.ranks import Ranks

how, width, layers, cap, count, steps = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
torch.manual_seed(0)
STEPS = [[torch.randn(2, width) for _ in range(count)] for _ in range(steps)]


def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(lines[name].split()[0]) * 1024


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1)) for _ in range(layers)))


task = Task(model=Model(), train=[0, 1], loss=lambda model, batch: model(batch).square().mean(), batch_size=2, clip_norm=0.5,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
told = {}
if how == "holds":
    optimizer = torch.optim.AdamW(task.model.parameters(), fused=True)
    for parameter in task.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    told["memory"] = status("VmRSS")
else:
    cpu = Ranks(0, 1, torch.device("cpu"))
    swapped = SwappedStep(task, Memory(cap=cap, accumulate=count), open_device(cap, cpu.device))
    step = swapped if how == "swaps" else PlainStep(task, cpu, count, fused=True)
    step.place(task.model)
    sums = []
    for batches in STEPS:
        sums.append(step.update(batches, 1.0).item())
        sums += [hashlib.sha256(parameter.grad.numpy()).hexdigest() for parameter in task.model.parameters()]
    told = {"memory": status("VmHWM"), "sums": sums, "peak": step.values.get("swap_peak")}
print(json.dumps(told), flush=True)
os._exit(0)
"""


def child(how, *numbers):
    """What it tells: bytes of its memory, and losses and gradients of each step."""
    ran = subprocess.run([sys.executable, "-c", CHILD, how, *map(str, numbers)], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def assert_it_takes_no_more_than_its_cap_beside_what_the_host_must_hold(width, layers, cap, count, steps):
    held, swapped = (child(how, width, layers, cap, count, steps) for how in ("holds", "swaps"))
    assert len(swapped["sums"]) == steps * (1 + 2 * layers)
    assert 0 < swapped["peak"] <= cap
    assert swapped["memory"] - held["memory"] <= cap + (64 << 20)
    return swapped["sums"]


@pytest.mark.slow
def test_the_host_holds_weights_gradients_and_optimizer_once_and_the_device_its_cap():
    assert_it_takes_no_more_than_its_cap_beside_what_the_host_must_hold(1200, 16, 24 << 20, 2, 2)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_blocks_above_200_mib_with_eight_batches_a_step():
    block = 7300 * 7301 * 4
    assert block > 200 << 20
    numbers = 7300, 3, int(3.2 * block), 8, 3
    sums = assert_it_takes_no_more_than_its_cap_beside_what_the_host_must_hold(*numbers)
    assert sums == child("plain", *numbers)["sums"]
