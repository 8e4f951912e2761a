"""The loss of a small language model under a storm of kills, stops and joins, beside the same training by members that stay.

    python benchmarks/replica_losses.py [--steps 200] [--members 3] [--events 12] [--dropout 0 0.1] [--seed 0]

Both take the same samples in each step: characters of Python's own library. What may differ is in which order gradients are added up; and
with dropout which numbers of a sample are left out, as these are drawn by the batch that a member computes.
`apart`: the largest difference of a step's loss so far, over the loss of the members that stay. The control is one member fewer, who all
stay as well: AdamW makes of the last digit of a gradient more from step to step, whoever adds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import replicas
import torch
from common import arguments, machine, progress, show
from replica_members import Member, counting, world
from stoker.runners.training import Task
from torch import nn
from torch.nn import functional

LENGTH, WIDTH, HEADS = 32, 64, 4
SAMPLES = 4096
TIMEOUT = 1.0


class Characters:
    """Sample i is so many characters of a text, and the one after each."""

    def __init__(self) -> None:
        text = Path(tempfile.__file__).read_bytes()[: SAMPLES * 4 + LENGTH + 1]
        self.text = torch.tensor(list(text)).clamp(max=127)

    def __len__(self) -> int:
        return min(SAMPLES, (len(self.text) - LENGTH - 1) // 4)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.text[4 * index : 4 * index + LENGTH + 1]


class Small(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout, batch_first=True), 2)
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.blocks(self.words(tokens) + self.places(torch.arange(LENGTH)), mask=mask, is_causal=True))


def build(dropout: float) -> Task:
    torch.manual_seed(0)

    def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Task(
        model=Small(dropout), train=Characters(), loss=loss, batch_size=4, checkpoint_every=10, clip_norm=1.0,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    )  # fmt: skip


def losses(steps: int, members: int, dropout: float, storm: replicas.Storm | None) -> list[float]:
    """Of each step, as whoever took it last reported it."""
    counts = counting(least=members, most=members, steps=steps, timeout=TIMEOUT)
    spec = msgspec.structs.replace(counts, entrypoint="replica_losses:build", params={"dropout": dropout})
    everyone: list[Member] = []
    with tempfile.TemporaryDirectory() as home, world(Path(home), spec) as there:
        if storm is None:
            everyone += there.start(*range(members))
            for member in list(there.members):
                there.wait(member, 600.0)
        else:
            replicas.survive(there, members, storm, everyone)
        told = [report for member in everyone for report in member.reports if "loss" in report.get("values", {})]
        # Of one that was killed as it had taken a step, while the others had to take it again, the report is of no account.
        found = {report["step"]: report["values"]["loss"] for report in sorted(told, key=lambda report: report["ts"])}
    return [found[step] for step in range(1, steps + 1)]


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--events", type=int, default=12)
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(given)
    began, tables = machine(), {}
    for dropout in asked.dropout:
        progress(f"dropout {dropout:g}: members that stay")
        stay = losses(asked.steps, asked.members, dropout, None)
        progress(f"dropout {dropout:g}: {asked.events} events")
        storm = replicas.Storm(replicas.events(asked.events, asked.steps, asked.members, asked.seed), asked.seed)
        come = losses(asked.steps, asked.members, dropout, storm)
        progress(f"dropout {dropout:g}: one member fewer")
        fewer = losses(asked.steps, asked.members - 1, dropout, None)
        apart, control = ([abs(one - other) / one for one, other in zip(stay, those, strict=True)] for those in (come, fewer))
        tables[f"Loss of a step, dropout {dropout:g}, {len(storm.times)} events"] = [
            {
                "step": step,
                "stay": stay[step - 1],
                "come and go": come[step - 1],
                "apart": max(apart[:step]),
                "control apart": max(control[:step]),
            }
            for step in sorted({1, *(asked.steps * part // 8 for part in range(1, 9))} - {0})
        ]
    show(asked, began, tables)


if __name__ == "__main__":
    main()
