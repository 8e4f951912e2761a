"""Loaders that accelerate has prepared, or could not: it shards a DataLoader, and returns any other object unchanged.

Nothing of accelerate is imported: its loaded modules tell the number of processes, and a prepared loader keeps the DataLoader that it
iterates in ``base_dataloader``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ...engine.errors import UsageError

log = logging.getLogger("stoker.loaders")


def base_of(loader: object) -> DataLoader[Any] | None:
    """The DataLoader of this process's part, if accelerate has prepared the loader; else None."""
    base = getattr(loader, "__dict__", {}).get("base_dataloader")
    return base if isinstance(base, DataLoader) else None


class Within:
    """Stands for the DataLoader within a prepared loader: has its attributes, and iterates by the pipeline in its place."""

    def __init__(self, loader: DataLoader[Any], passes: Callable[[], Iterator[Any]]) -> None:
        self._loader, self._passes = loader, passes

    def __iter__(self) -> Iterator[Any]:
        return self._passes()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def check_sharded(loader: DataLoader[Any]) -> None:
    """UsageError if accelerate runs several processes and each would get all samples."""
    processes = _processes()
    if processes == 1 or _is_sharded(loader):
        return
    problem = (
        f"accelerate runs {processes} processes, and this loader is not divided among them: accelerator.prepare() returns what autotuned()"
        " gives as it is; write autotuned(accelerator.prepare(loader))"
    )
    if isinstance(loader.dataset, IterableDataset):  # it may divide itself, by its rank
        log.warning("%s, unless its data set gives each process a part", problem)
    else:
        raise UsageError(f"loader: {problem}, or give it a DistributedSampler (with num_replicas=1 where each process is to have all)")


def _processes() -> int:
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    return int(state().num_processes) if state is not None and state._shared_state else 1


def _is_sharded(loader: DataLoader[Any]) -> bool:
    """Whether a sampler knows of several processes."""
    waiting: list[Any] = [loader.sampler, loader.batch_sampler]
    for sampler in waiting:
        if hasattr(sampler, "num_replicas") or hasattr(sampler, "num_processes"):
            return True
        waiting += [inner for name in ("sampler", "batch_sampler") if (inner := getattr(sampler, name, None)) is not None]
        if len(waiting) > 16:
            break
    return False
