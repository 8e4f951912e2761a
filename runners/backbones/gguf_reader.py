"""Weights in GGUF files: what they say of themselves, and their tensors in 32 bits.

The format: github.com/ggml-org/ggml, docs/gguf.md; its quantised blocks: ggml-quants.c. Only the few kinds that the files we know have.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.errors import StokerError

_ALIGNMENT = 32  #: bytes, unless the file says another
_BLOCK = 32  #: numbers of a quantised block
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
#: kind of a tensor, by its number: name, numbers and bytes of a block
_KINDS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", _BLOCK, 20), 8: ("Q8_0", _BLOCK, 34)}


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file that has been read."""

    about: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]  #: float32, rows first, as torch has them


def read(path: Path) -> Weights:
    """All of a file. StokerError: it is no GGUF file of version 3, is cut short, or has a kind of tensor that is not known here."""
    try:
        return _Reader(path.read_bytes()).weights()
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise StokerError(f"{path} cannot be read as GGUF weights: {error}") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def weights(self) -> Weights:
        if self.data[:4] != b"GGUF" or self.take("<4sI")[1] != 3:
            raise ValueError("it is not GGUF version 3")
        tensors, pairs = self.take("<QQ")
        about = {}
        for _ in range(pairs):
            name = self.string()
            about[name] = self.value(self.take("<I")[0])
        places = [self.place() for _ in range(tensors)]
        alignment = about.get("general.alignment", _ALIGNMENT)
        begin = -(-self.at // alignment) * alignment
        return Weights(about, {name: self.tensor(begin + offset, shape, kind) for name, shape, kind, offset in places})

    def take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def string(self) -> str:
        (length,) = self.take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.take("<IQ")
            return [self.value(inner) for _ in range(count)]
        return self.take(_SCALARS[kind])[0]

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        (dimensions,) = self.take("<I")
        shape = self.take(f"<{dimensions}Q")
        kind, offset = self.take("<IQ")
        if kind not in _KINDS:
            raise ValueError(f"tensor {name} is of kind {kind}; known are {', '.join(words for words, _, _ in _KINDS.values())}")
        return name, tuple(reversed(shape)), kind, offset

    def tensor(self, at: int, shape: tuple[int, ...], kind: int) -> torch.Tensor:
        name, numbers, size = _KINDS[kind]
        blocks = int(np.prod(shape)) // numbers
        raw = np.frombuffer(self.data, np.uint8, blocks * size, at).reshape(blocks, size)
        return torch.from_numpy(_FLOATS[name](raw).reshape(shape))


def _halves(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.copy().view(np.float16).astype(np.float32)


def _q4_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A scale and a least value, then 32 numbers of 4 bits: the low halves of 16 bytes before their high halves."""
    scale, least, packed = _halves(raw[:, :2]), _halves(raw[:, 2:4]), raw[:, 4:]
    numbers: NDArray[np.float32] = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return numbers * scale + least


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A scale, then 32 numbers of 8 bits."""
    numbers: NDArray[np.float32] = raw[:, 2:].copy().view(np.int8).astype(np.float32)
    return numbers * _halves(raw[:, :2])


_FLOATS = {"F32": lambda raw: raw.copy().view(np.float32), "F16": _halves, "Q4_1": _q4_1, "Q8_0": _q8_0}
