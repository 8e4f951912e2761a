"""A member of a training by torchft alone, as its examples have it: one lighthouse, a shard of the data for each replica.

It counts as `counting` does, and appends each step that it committed, with its samples, to a file. Where it stands in its shard follows
from the step, so that one that comes back repeats nothing of it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import timedelta
from typing import Any

import torch
from counting import Counts
from torch import distributed
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo


def main() -> int:
    index, most, steps, samples, batch, pace, timeout = json.loads(os.environ["MEMBER"])
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    model = Counts(samples, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store: Any = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    patience = timedelta(seconds=timeout)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience), min_replica_size=1, use_async_quorum=False, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, replica_id=f"r{index}",
        store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, timeout=patience, quorum_timeout=5 * patience,
        connect_timeout=patience, lighthouse_addr=os.environ["LIGHTHOUSE"], hostname="127.0.0.1",
    )  # fmt: skip
    with open(os.environ["COMMITTED"], "a") as committed:
        while (step := manager.current_step()) < steps:
            manager.start_quorum()
            begin = (manager.current_step() * batch + index * (batch // most)) % samples
            own = list(range(begin, begin + batch // most))
            time.sleep(pace * len(own))
            optimizer.zero_grad()
            (-model(torch.tensor(own)).mean()).backward()
            manager.allreduce(model.used.grad).wait()
            step = manager.current_step()
            if manager.should_commit():
                optimizer.step()
                committed.write(json.dumps([step, time.time(), own]) + "\n")
                committed.flush()
    time.sleep(1.0)
    os._exit(0)
