"""The known name that is nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LEAST = 3  #: letters in the midst of a name; fewer stand in too many


def meant(word: str, known: Iterable[str]) -> str | None:
    """The nearest of the known names, whatever the case: one that is spelt alike, else the shortest that begins with it or holds it."""
    names = {name.lower(): name for name in known}
    wanted = word.lower()
    if near := difflib.get_close_matches(wanted, names, n=1):
        return names[near[0]]
    holding = [name for name in names if (wanted in name and len(wanted) >= _LEAST) or (name.startswith(wanted) and len(wanted) >= 2)]
    return names[min(holding, key=lambda name: (not name.startswith(wanted), len(name), name))] if holding else None
