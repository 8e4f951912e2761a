"""The random generators that training may draw from: torch's (CPU and this rank's GPU), NumPy's and Python's global ones."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

_MASK = (1 << 64) - 1


def seed_all(seed: int) -> None:
    if torch.backends.cuda.is_built() and os.environ.get("CUDA_VISIBLE_DEVICES") != "":  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:  # no GPU can be asked for later; torch would queue the call with a traceback, which takes 4 ms
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_host(*numbers: int) -> None:
    """Seed all generators but the GPU's by several numbers; a change of any gives other draws."""
    seed = mixed(*numbers)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def mixed(*numbers: int) -> int:
    """One seed of 63 bits from several numbers, by the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def get_state() -> dict[str, Any]:
    """Their states, as tensors and plain values, which weights_only reads."""
    state = host_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def host_state() -> dict[str, Any]:
    """The same without the GPU's, whose reading needs a copy from the device."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def set_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(state["python"])
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def preserved(state_of: Callable[[], Mapping[str, Any]] = get_state) -> Iterator[None]:
    """Leave the generators as they were, whatever the block draws."""
    state = state_of()
    try:
        yield
    finally:
        set_state(state)


def host_preserved() -> AbstractContextManager[None]:
    """The same for a block that draws on the host alone."""
    return preserved(host_state)


def draws(act: Callable[[], object]) -> bool:
    """Whether ``act`` draws from a global generator of the host; they are left as they were."""
    with host_preserved():
        before = host_state()
        act()
        after = host_state()
    same_numpy = torch.equal(before["numpy"][0], after["numpy"][0]) and before["numpy"][1:] == after["numpy"][1:]
    return not (torch.equal(before["torch"], after["torch"]) and same_numpy and before["python"] == after["python"])
