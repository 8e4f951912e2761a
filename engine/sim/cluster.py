"""The simulated cluster: how many nodes with how many GPUs each."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ...policies.contract import Gpus, Nodes

_PART = re.compile(r"(\d+)x(\d+)")
MOST_GPUS = 100_000
MOST_OF_A_NODE = 512  #: the limit of a buddy cell's score (policies/placement/consolidated.py)


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[int, ...]  #: GPUs of each node

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """``100x8`` is 100 nodes of 8 GPUs; ``4x8,2x4`` has two kinds. ValueError names the mistake."""
        nodes: list[int] = []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or int(match[1]) < 1 or int(match[2]) < 1:
                raise ValueError(f"nodes: {text!r} is not NODESxGPUS, such as 100x8, or several of them with commas between")
            if int(match[2]) > MOST_OF_A_NODE:
                raise ValueError(f"nodes: a node of {match[2]} GPUs is more than the {MOST_OF_A_NODE} that can be placed")
            nodes += [int(match[2])] * min(int(match[1]), MOST_GPUS)
            if sum(nodes) > MOST_GPUS:
                raise ValueError(f"nodes: {text!r} is more than {MOST_GPUS} GPUs")
        return cls(tuple(nodes))

    def __str__(self) -> str:
        runs: list[list[int]] = []
        for gpus in self.nodes:
            if runs and runs[-1][1] == gpus:
                runs[-1][0] += 1
            else:
                runs.append([1, gpus])
        return ",".join(f"{count}x{gpus}" for count, gpus in runs)

    @property
    def total(self) -> int:
        return sum(self.nodes)

    def tables(self) -> tuple[Nodes, Gpus]:
        """As a policy sees it: every GPU usable, of unknown memory."""
        nodes = Nodes(id=np.array([f"n{number}" for number in range(len(self.nodes))], dtype=object))
        node = np.repeat(np.arange(len(self.nodes)), self.nodes)
        index = np.concatenate([np.arange(gpus) for gpus in self.nodes])
        return nodes, Gpus(
            id=np.array([f"n{n}/gpu{i}" for n, i in zip(node.tolist(), index.tolist(), strict=True)], dtype=object),
            node=node.astype(np.int64),
            index=index.astype(np.int64),
            usable=np.ones(self.total, dtype=bool),
            memory=np.zeros(self.total),
        )
