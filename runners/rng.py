"""The random generators that training may draw from: torch's (CPU and this rank's GPU), NumPy's and Python's global ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def get_state() -> dict[str, Any]:
    """Their states, as tensors and plain values, which weights_only reads."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators as they were, whatever the block draws."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)
