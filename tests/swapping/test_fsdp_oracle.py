"""FSDP2 as an oracle: public code that trains the same model, each block a group of its own, has the gradients of swapped parts to the bit.

On a CPU it copies nothing, so it says nothing about time. A process of its own, as it changes what torch holds for all of a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import copy, json
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from stoker.runners.train import rng
from transformer_block import Block
from unit_steps import executor_of, micro_batch, units_of

WIDTH, WORDS = 16, 30


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(answer, tokens, count):
    return nn.functional.cross_entropy(answer.flatten(0, 1), tokens.flatten()) / count


def sharded(model, batches, step):
    for c, tokens in enumerate(batches):
        rng.seed_all(rng.mixed(step, c))
        loss_of(model(tokens), tokens, len(batches)).backward()


def swapped(executor, batches, step):
    micro = []
    for c, tokens in enumerate(batches):
        rng.seed_all(rng.mixed(step, c))
        micro.append(micro_batch(executor, lambda model, there: loss_of(model(there), there, len(batches)), tokens))
    executor.run(micro)
    executor.stepped()


def trained(model, step_of, count):
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        draw = torch.Generator().manual_seed(step)
        step_of([torch.randint(WORDS, (2, 5), generator=draw) for _ in range(count)], step)
        seen.append([getattr(each.grad, "full_tensor", lambda each=each: each.grad)().clone() for each in model.parameters()])
        optimizer.step()
    return seen


torch.set_num_threads(1)
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
mesh, found = init_device_mesh("cpu", (1,)), {}
for count in (1, 2, 4, 8):
    torch.manual_seed(0)
    model = Model()
    theirs = copy.deepcopy(model)
    for block in theirs.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(theirs, mesh=mesh)
    expected = trained(theirs, lambda batches, step: sharded(theirs, batches, step), count)
    named = [f"blocks.{block}.{name}" for block in range(3) for name in ("norm", "inner", "outer")]
    sample = [torch.zeros(2, 5, dtype=torch.long)]
    executor = executor_of(units_of(model, lambda model, tokens: loss_of(model(tokens), tokens, 1), sample, named), 11)
    ours = trained(model, lambda batches, step: swapped(executor, batches, step), count)
    same = [[torch.equal(one, other) for one, other in zip(*steps, strict=True)] for steps in zip(expected, ours, strict=True)]
    found[count] = {"parts": len(executor.parts), "gradients": sum(map(len, same)), "same": sum(map(sum, same))}
distributed.destroy_process_group()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.nightly  # those of the plain loop: test_swap_executor.py
def test_gradients_of_three_steps_are_those_of_fsdp2_to_the_bit():
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ran = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert sorted(found, key=int) == ["1", "2", "4", "8"]
    for each in found.values():
        assert each["parts"] > 8 and each["same"] == each["gradients"] == 3 * (3 + 3 * 6)
