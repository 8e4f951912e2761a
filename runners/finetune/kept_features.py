"""Features of samples by the frozen part of a model, computed once and kept: in memory, then in a file, then not at all.

Each sample is computed by itself. In a batch the last bits of its numbers depend on the other samples, so a preempted job, which has lost
its features, would end with other weights.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

MEMORY_BYTES = 256 << 20  #: bytes that are kept in memory
FILE_BYTES = 4 << 30  #: bytes that are kept in a file besides


class KeptFeatures:
    """By key; all of one width and kind. ``folder``: of the file, which has no name and is gone with the process."""

    def __init__(self, folder: Path | None = None, *, memory: int = MEMORY_BYTES, file: int = FILE_BYTES) -> None:
        self._folder, self._room, self._file_room = folder, memory, file
        self._near: dict[bytes, torch.Tensor] = {}
        self._far: dict[bytes, tuple[int, torch.Size, torch.dtype]] = {}
        self._end = 0
        self._file: int | None = None
        self.computed = 0  #: so many times in all

    def get(self, key: bytes, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The features of a sample, on the CPU; callers must not change them."""
        if (found := self._near.get(key)) is not None:
            return found
        if (place := self._far.get(key)) is not None and (read := self._read(*place)) is not None:
            return read
        self.computed += 1
        with torch.no_grad():
            made = compute().detach().cpu().contiguous()
        self._keep(key, made)
        return made

    def _keep(self, key: bytes, made: torch.Tensor) -> None:
        size = made.numel() * made.element_size()
        if size <= self._room:
            self._near[key], self._room = made, self._room - size
        elif self._end + size <= self._file_room and self._write(made, size):
            self._far[key] = (self._end, made.shape, made.dtype)
            self._end += size

    def _write(self, made: torch.Tensor, size: int) -> bool:
        try:
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._folder) as file:
                    self._file = os.dup(file.fileno())
            return os.pwrite(self._file, made.view(torch.uint8).numpy().tobytes() if made.dim() else b"", self._end) == size
        except OSError:  # the disk is full or read-only: the features are computed again
            self._file_room = 0
            return False

    def _read(self, begin: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        assert self._file is not None
        size = shape.numel() * dtype.itemsize
        content = bytearray(os.pread(self._file, size, begin))
        return torch.frombuffer(content, dtype=dtype).view(shape) if len(content) == size else None

    def padded(self, tokens: torch.Tensor, mask: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The features of a batch's rows, stacked; a row with a feature for each token is padded with zeros.

        ``compute``: of one row without padding, (1, length), those without the first dimension.
        """
        lengths: Sequence[int] = mask.sum(1).tolist()
        rows = [tokens[row : row + 1, :length] for row, length in enumerate(lengths)]
        found = [self.get(row.cpu().numpy().tobytes(), lambda row=row: compute(row)) for row in rows]  # type: ignore[misc]
        if found[0].dim() == 1:
            return torch.stack(found).to(tokens.device)
        states = torch.zeros(len(found), tokens.shape[1], found[0].shape[1], dtype=found[0].dtype)
        for row, features in enumerate(found):
            states[row, : len(features)] = features
        return states.to(tokens.device)
