"""The job of overhead.py: trains a small network for some steps, reports each of them, and writes down what that took.

python overhead_script.py FILE STEPS
"""

import json
import sys
import time
from pathlib import Path

import stoker
import torch
from torch import nn


def main() -> None:
    file, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(512, 1, 28, 28), torch.randint(10, (512,))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3872, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(-5, steps):
        if step == 0:  # the first steps make allocations and caches
            wall, cpu = time.perf_counter(), time.process_time()
        batch = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stoker.report(step=step + 6, total=steps + 6, loss=loss.item())
        if stoker.should_stop():
            sys.exit(75)
    file.write_text(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
