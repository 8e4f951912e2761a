"""Data sets that are made on this host once, and kept in Stoker's cache directory beside the packages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ...engine.errors import StokerError
from ..packages import ENV_CACHE, cache_dir, given_out


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Directory of the data set, filled by ``make`` if it is not there. What others make at the same time is the same: the first stays."""
    folder = cache_dir() / "datasets" / name
    given_out.add(folder)
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}."))
        try:
            make(made)
            _publish(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise StokerError(
            f"cannot keep the data set {name} in {folder.parent}: {error.strerror or error}; set {ENV_CACHE} to another directory"
        ) from error
    return folder


def _publish(made: Path, folder: Path) -> None:
    """In one step, so that a directory that is there is whole."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise
