"""Stores for tests that are not about opening one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.engine.store.store import Store, connect


def reopened(path: Path, **options: Any) -> Store:
    """The store of a file that this program has just closed (such as a copy of the fixture ``template``).

    `Store.open` would read every row, and look for migrations and changed views: more than many a test then takes.
    """
    return Store(connect(path), path, **options)
