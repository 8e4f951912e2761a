"""A rank of a training by DDP, which counts as `counting` does and begins anew from its last checkpoint when one of them was lost."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from counting import Counts
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

EVERY = 20  #: steps between checkpoints


def main() -> int:
    rank, size, steps, samples, batch, pace = json.loads(os.environ["MEMBER"])
    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{os.environ['PORT']}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    saved = Path(os.environ["CHECKPOINT"])
    model, step = Counts(samples, 0.0), 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        step = state["step"]
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(batch))
    with open(os.environ["COMMITTED"], "a") as committed:
        while step < steps:
            begin = step * batch % samples
            own = list(range(begin + rank * batch // size, begin + (rank + 1) * batch // size))
            time.sleep(pace * len(own))
            optimizer.zero_grad()
            (-parallel(torch.tensor(own)).sum() * size / batch).backward()  # DDP divides by the ranks
            optimizer.step()
            step += 1
            if rank == 0:
                committed.write(json.dumps([step, time.time()]) + "\n")
                committed.flush()
                if step % EVERY == 0 or step == steps:
                    torch.save({"model": model.state_dict(), "step": step}, f"{saved}.new")
                    Path(f"{saved}.new").replace(saved)
    os._exit(0)
