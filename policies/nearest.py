"""The known name nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LEAST_LETTERS = 3  #: letters to match within a name; fewer occur in too many


def meant(word: str, known: Iterable[str]) -> str | None:
    """The nearest known name, whatever the case: one of similar spelling, else the shortest that begins with it or contains it."""
    names = {name.lower(): name for name in known}
    wanted = word.lower()
    if near := difflib.get_close_matches(wanted, names, n=1):
        return names[near[0]]
    holding = [
        name for name in names if (wanted in name and len(wanted) >= _LEAST_LETTERS) or (name.startswith(wanted) and len(wanted) >= 2)
    ]
    return names[min(holding, key=lambda name: (not name.startswith(wanted), len(name), name))] if holding else None
