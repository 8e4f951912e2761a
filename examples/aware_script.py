"""A training script that reports, stops when asked, and goes on exactly where it was. Without Stoker it runs just the same.

    python aware_script.py --steps 400
    stoker submit --name aware -- python aware_script.py --steps 400

Three calls make the difference: stoker.report, stoker.should_stop and stoker.checkpoint_dir.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import nn

try:
    import stoker
except ModuleNotFoundError:  # a host without Stoker
    stoker = None


def save(path: Path, **state: object) -> None:
    """Write, flush to the disk, rename: whoever reads finds the old checkpoint or the new one, never half of one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(options.seed)
    inputs = torch.randn(2000, 16)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0

    path = (stoker.checkpoint_dir() if stoker else Path()) / "last.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["generator"])  # dropout and the choice of samples go on where they were
        first = state["step"]
        print(f"resumed at step {first}", flush=True)

    for step in range(first + 1, options.steps + 1):
        batch = torch.randint(len(inputs), (64,))
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stop = stoker is not None and stoker.should_stop()
        durable = stop or step % options.checkpoint_every == 0 or step == options.steps
        if durable:
            save(path, step=step, model=model.state_dict(), optimizer=optimizer.state_dict(), generator=torch.get_rng_state())
        if stoker:
            stoker.report(step=step, total=options.steps, loss=loss.item(), checkpoint=step if durable else None)
        if stop and step < options.steps:
            print(f"asked to stop at step {step}", flush=True)
            return 75  # "stopped, with everything in a checkpoint": the job goes on later
    print(f"loss {loss.item():.6f}" if first < options.steps else "nothing left to do", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
