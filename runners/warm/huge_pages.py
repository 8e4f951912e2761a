"""Weights in huge pages: forks share them without a page fault for every 64 KiB, which would take 64 ms for 500 MiB (docs/warm.md)."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_PAGE, _HUGE = 1 << 12, 1 << 21


def settle(model: nn.Module) -> None:
    """Move a model's weights to huge pages. Bits and offsets within a page stay, as results may depend on both."""
    import torch

    weights = [weight for weight in model.parameters() if weight.is_contiguous() and weight.device.type == "cpu"]
    size = sum(weight.nbytes + _PAGE for weight in weights)
    if size < 8 * _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    place = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        place.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # the kernel has none
        return
    whole = torch.frombuffer(place, dtype=torch.uint8)
    at = -whole.data_ptr() % _HUGE
    for weight in weights:
        at += (weight.data_ptr() - whole.data_ptr() - at) % _PAGE
        there = whole[at : at + weight.nbytes].view(weight.dtype).view(weight.shape)
        weight.data = there.copy_(weight.detach())
        at += weight.nbytes
