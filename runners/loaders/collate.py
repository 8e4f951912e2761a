"""Collates a batch by torch's rules; an error about differing shapes names the sample and the shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .workers.faults import Ragged


def default_collate(samples: list[Any]) -> Any:
    """As torch's default_collate: tensors are stacked, numbers become tensors, containers are collated field by field.

    Raises:
        Ragged: shapes or fields differ; it names the sample.
    """
    from torch.utils.data import default_collate as collate  # heavy, and not needed by a pipeline that collates otherwise

    try:
        return collate(samples)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        if (found := _ragged(samples)) is not None:
            raise found from error
        raise


def keep_to_own_memory() -> None:
    """Keep torch's default_collate from stacking tensors in shared memory, as it does in a process that torch knows as a worker.

    A container has 64 MiB of it or less, and it is not needed here: batches go through a memory file.
    """
    import torch
    from torch.utils.data._utils import collate

    functions = collate.default_collate_fn_map
    if functions.get(torch.Tensor) is collate.collate_tensor_fn:
        functions[torch.Tensor] = _stacked


def _stacked(tensors: list[Any], *, collate_fn_map: Any = None) -> Any:
    """As torch does where there is no worker."""
    from torch.utils.data._utils import collate, worker

    worker._worker_info, info = None, worker._worker_info
    try:
        return collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
    finally:
        worker._worker_info = info


def _ragged(samples: list[Any]) -> Ragged | None:
    first = dict(_shapes(samples[0], ""))
    for index, sample in enumerate(samples):
        own = dict(_shapes(sample, ""))
        for path in (*first, *(path for path in own if path not in first)):
            if own.get(path) != first.get(path):
                where = f"in field {path.lstrip('.')} " if path else ""
                return Ragged(
                    index,
                    f"cannot be batched: {where}it has {_words(own.get(path))}, the first of its batch {_words(first.get(path))};"
                    " pad or resize samples in a stage before, or give Batch a collate function",
                )
    return None


def _shapes(value: Any, path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Path and shape of each array in a sample."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        yield path, tuple(shape)
    elif isinstance(value, Mapping):
        for key, element in value.items():
            yield from _shapes(element, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, element in enumerate(value):
            yield from _shapes(element, f"{path}.{index}")


def _words(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else f"shape {shape}"
