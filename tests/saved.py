"""What a state is after it was saved to a file and loaded again, as a checkpoint's is."""

from __future__ import annotations

import io
from typing import Any

import torch


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Loaded as checkpoints are: tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
