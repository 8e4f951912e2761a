"""The feed-forward half of a transformer's block: normalised, widened, dropped out, added."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.outer(torch.nn.functional.gelu(self.inner(self.norm(x)))))
