"""Checkpoints: a reader finds a whole one or none, whichever process is killed and whenever.

    DIR/step-0000000120/state.pt        torch.save of tensors and plain values, read with weights_only
    DIR/step-0000000120/manifest.json   {"step", "files": {"state.pt": {"sha256", "size"}}}

A checkpoint is made in a hidden directory, fsynced, and renamed. The last ``keep`` stay; a damaged one is passed over.
A job that begins with another's weights locks the directory that it reads (flock, shared); the other job keeps it for so long.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import torch

from ...engine.errors import StokerError, UsageError
from ..worker.ranks import Ranks

log = logging.getLogger(__name__)

_STATE, _MANIFEST = "state.pt", "manifest.json"


#: errors of reading a checkpoint that is not whole
DAMAGES = (OSError, ValueError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError)


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
        """Make the state durable. If it cannot be written, the earlier checkpoints remain."""
        final, temporary = self.path_of(step), self.path / f".step-{step}.tmp"
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
            if not _is_read(self.path_of(old)):
                shutil.rmtree(self.path_of(old), ignore_errors=True)
        return final

    def load(self) -> dict[str, Any] | None:
        """State of the newest checkpoint that is whole, None when there is none."""
        for step in reversed(self.steps()):
            try:
                return self.read(step)
            except DAMAGES as error:
                log.warning("checkpoint of step %d is damaged (%s); trying the one before it", step, error)
        return None

    @contextmanager
    def held(self, step: int) -> Iterator[None]:
        """The job that writes here keeps the checkpoint of this step meanwhile. Raises OSError when it has gone."""
        directory = os.open(self.path_of(step), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without such locks: a reader that finds it gone looks again
                fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
        finally:
            os.close(directory)

    def read(self, step: int) -> dict[str, Any]:
        """State of one checkpoint; one of `DAMAGES` when it is not whole."""
        return self._read(self.path_of(step))

    def path_of(self, step: int) -> Path:
        return self.path / f"step-{step:010d}"

    def _write(self, directory: Path, step: int, state: Mapping[str, Any]) -> None:
        with (directory / _STATE).open("wb") as file:
            hashing = _Hashing(file)
            try:
                torch.save(dict(state), cast(IO[bytes], hashing))
            except RuntimeError as error:
                raise hashing.error or error from None
            _flush(file)
        # Notice now what weights_only refuses, not when the checkpoint is needed.
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


def weights_of(source: Path, ranks: Ranks) -> tuple[dict[str, torch.Tensor], Path]:
    """The weights that a training is to begin with, and their path: a file, or a directory's newest whole checkpoint.

    All ranks read the same. Raises UsageError if there are none: the training must not begin without them.
    """
    for _ in range(_READ_ATTEMPTS):
        state, where, problem = None, source, ""
        with ExitStack() as held:
            if ranks.first:
                try:
                    state, where = _newest(source, held)
                except UsageError as error:
                    problem = str(error)
            where, problem = ranks.gather((where, problem))[0]
            if problem:
                raise UsageError(problem)
            if not ranks.first:
                try:
                    state = _state_in(where)
                except DAMAGES as error:
                    problem = f"weights: {where} cannot be read by every rank: {_line(error)}"
            problem = next(filter(None, ranks.gather(problem)), "")
        if not problem:
            return _weights(state, where), where
    raise UsageError(problem)


_READ_ATTEMPTS = 10  #: attempts, as a checkpoint may go while ranks read it on a file system without locks


def _newest(source: Path, held: ExitStack) -> tuple[Any, Path]:
    if source.is_dir():
        checkpoints, seen, damaged = Checkpoints(source), list[int](), list[str]()
        while (steps := checkpoints.steps()) != seen:  # the job that writes there may have removed those found
            seen, damaged = steps, []
            for step in reversed(steps):
                try:
                    held.enter_context(checkpoints.held(step))
                    return checkpoints.read(step), checkpoints.path_of(step)
                except DAMAGES as error:
                    damaged.append(f"that of step {step} is damaged ({_line(error)})")
        if not damaged:
            raise UsageError(f"weights: there is no checkpoint in {source}")
        raise UsageError(f"weights: there is no whole checkpoint in {source}: {', '.join(damaged)}")
    if not source.exists():
        raise UsageError(f"weights: there is no {source} on this host")
    try:
        return _state_in(source), source
    except Exception as error:  # torch raises many kinds for a file of another format
        raise UsageError(f"weights: {source} cannot be read as weights saved by torch.save: {_line(error)}") from None


def _state_in(place: Path) -> Any:
    """The content of a checkpoint's directory, or of a file, which may be a checkpoint's."""
    directory = place if place.is_dir() else place.parent
    if place.is_dir() or (place.name == _STATE and (directory / _MANIFEST).is_file()):
        return Checkpoints._read(directory)
    return torch.load(place, map_location="cpu", weights_only=True)


def _weights(state: Any, where: Path) -> dict[str, torch.Tensor]:
    """By name: the model of a checkpoint, or a state_dict as it is."""
    model = state.get("model", state) if isinstance(state, Mapping) else None
    found = {name: value for name, value in model.items() if isinstance(value, torch.Tensor)} if isinstance(model, Mapping) else {}
    if not found:
        raise UsageError(f"weights: {where} holds no tensors by name; give a checkpoint, or a file of torch.save(model.state_dict(), FILE)")
    return found


def _line(error: Exception) -> str:
    """The first line of its message; torch's have many."""
    words = error.strerror if isinstance(error, OSError) else None
    return words or (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_read(directory: Path) -> bool:
    """Whether another job begins with it (`Checkpoints.held`)."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such locks here
        return False
    finally:
        os.close(descriptor)
    return False


class _Hashing:
    """A file that torch.save writes to from front to back, hashed on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None  #: why a write failed; torch's own error then complains about positions instead

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
