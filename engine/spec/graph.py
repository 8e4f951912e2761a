"""Cycles among jobs that wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_cycle(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Names around a cycle, the first one repeated at the end; [] if there is none. Names without an entry need no others.

    A depth-first search without recursion: a chain may be as long as a submission.
    """
    done: set[str] = set()
    for start in needs:
        path: dict[str, None] = {}  # in order, and quick to look up
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                done.add(path.popitem()[0])
            elif name in path:
                names = [*path]
                return [*names[names.index(name) :], name]
            elif name in needs and name not in done:
                path[name] = None
                stack.append((name, True))
                stack.extend((need, False) for need in needs[name])
    return []
