"""Data sets made once on this host, and kept in Stoker's cache directory beside the packages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ..engine.errors import StokerError
from .packages import ENV_CACHE, cache_dir, given_out, locked


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Directory of the data set, filled by ``make`` if it is not there; other callers wait meanwhile."""
    folder = cache_dir() / "datasets" / name
    given_out.add(folder)
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{name}.lock")):
            if not folder.exists():
                _make(folder, make)
    except OSError as error:
        raise StokerError(
            f"cannot keep the data set {name} in {folder.parent}: {error.strerror or error}; set {ENV_CACHE} to another directory"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    """Make it and rename it, so that an existing directory is whole. The caller has the lock: an unfinished one is a killed process's."""
    made = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        make(made)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
