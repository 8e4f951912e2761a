"""A training script whose data pipeline sizes itself. It has nothing else to do with Stoker, and runs without a daemon.

    python autotuned_script.py
    stoker submit --name autotuned -- python autotuned_script.py

One line makes the difference: `autotuned(loader)` in place of `loader`.
"""

import argparse
import sys
import time

import torch
from stoker.loaders import autotuned
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RemoteSamples(Dataset):
    """Samples that take a while to come, as from a disk of the network; here a sleep."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.002)
        values = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return values, (values[0] * values[1] > 0).long()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(RemoteSamples(options.samples), batch_size=32, shuffle=True)

    with autotuned(loader) as batches:
        for epoch in range(1, options.epochs + 1):
            began = time.perf_counter()
            for inputs, targets in batches:
                loss = nn.functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            speed = options.samples / (time.perf_counter() - began)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {speed:,.0f} samples/s", flush=True)
        found = ", ".join(
            f"{knob.stage} {value} {knob.unit}" for knob, value in zip(batches.pipeline.knobs, batches.pipeline.values, strict=True)
        )
        print(f"the tuner: {found}, after {len(batches.history)} steps; {batches.overhead:.1%} of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
