"""Checkpoints: written so that a reader finds all of one or none of it, whatever is killed and whenever.

    DIR/step-0000000120/state.pt        torch.save of tensors and plain values, read with weights_only
    DIR/step-0000000120/manifest.json   {"step", "files": {"state.pt": {"sha256", "size"}}}

A checkpoint is made in a hidden directory, fsynced, and renamed. The last ``keep`` stay; a damaged one is passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import torch

from ...engine.errors import StokerError

log = logging.getLogger(__name__)

_STATE, _MANIFEST = "state.pt", "manifest.json"


class CheckpointError(StokerError):
    """A checkpoint cannot be written."""

    code: ClassVar[str] = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one job. One process at a time writes here: rank 0 of the lease in force."""

    path: Path
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(f"keep: {self.keep} is too few; keep at least 2, as the newest may turn out to be damaged")

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first."""
        return sorted(int(found.name[5:]) for found in self.path.glob("step-*") if found.name[5:].isdigit())

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Make the state durable. When it cannot be written, what was there before remains."""
        final, temporary = self._of(step), self.path / f".step-{step}.tmp"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._clear_leftovers()
            temporary.mkdir()
            self._write(temporary, step, state)
            if final.exists():  # a damaged one, or the same step again
                final.rename(self.path / f".step-{step}.old")
            temporary.rename(final)
            _fsync(self.path)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(self._failure(step, error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._clear_leftovers()
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self._of(old), ignore_errors=True)
        return final

    def load(self) -> dict[str, Any] | None:
        """State of the newest checkpoint that is whole, None when there is none."""
        for step in reversed(self.steps()):
            try:
                return self._read(self._of(step))
            except (OSError, ValueError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
                log.warning("checkpoint of step %d is damaged (%s); trying the one before it", step, error)
        return None

    def _of(self, step: int) -> Path:
        return self.path / f"step-{step:010d}"

    def _write(self, directory: Path, step: int, state: Mapping[str, Any]) -> None:
        with (directory / _STATE).open("wb") as file:
            hashing = _Hashing(file)
            try:
                torch.save(dict(state), cast(IO[bytes], hashing))
            except RuntimeError as error:
                raise hashing.error or error from None
            _flush(file)
        # What weights_only refuses would be noticed only when it is needed: notice it now.
        try:
            torch.load(directory / _STATE, map_location="meta", weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL (\S+)", str(error))
            what = found[1] if found else "an object"
            message = (
                f"cannot save the checkpoint of step {step}: its state holds {what}; keep to tensors, numbers, strings, lists and dicts"
            )
            raise CheckpointError(message) from None
        manifest = {"step": step, "files": {_STATE: {"sha256": hashing.digest.hexdigest(), "size": hashing.size}}}
        with (directory / _MANIFEST).open("w") as text:
            json.dump(manifest, text)
            _flush(text)
        _fsync(directory)

    @staticmethod
    def _read(directory: Path) -> dict[str, Any]:
        manifest = json.loads((directory / _MANIFEST).read_text())
        for name, entry in manifest["files"].items():
            file = directory / name
            if file.stat().st_size != entry["size"]:
                raise ValueError(f"{name} has {file.stat().st_size} bytes, not {entry['size']}")
            with file.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != entry["sha256"]:
                    raise ValueError(f"the checksum of {name} does not match")
        state: dict[str, Any] = torch.load(directory / _STATE, map_location="cpu", weights_only=True)
        return state

    def _clear_leftovers(self) -> None:
        for leftover in self.path.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _failure(self, step: int, error: Exception) -> str:
        before = self.steps()
        kept = f"the checkpoint of step {before[-1]} remains" if before else "there is no earlier checkpoint"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        return f"cannot save the checkpoint of step {step} in {self.path}: {why}; free some space there; {kept}"


class _Hashing:
    """A file that torch.save writes to from front to back, hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None  #: why a write failed, which torch replaces by a complaint about positions

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        self.size += len(content)
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _fsync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
