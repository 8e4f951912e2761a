"""The conditions by which a request selects jobs: user, states, name and labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ...errors import UsageError, nearest
from ...jobs.states import State
from ...spec.reading.tree import shown


def known_states(states: Sequence[str]) -> list[str] | None:
    """The states of the request, None: any. UsageError for one that does not exist."""
    for state in states:
        if state not in State.__members__.values():
            raise UsageError(f"state: there is no {shown(state)}{nearest(state, State)}; states: {', '.join(State)}")
    return list(states) or None


def like(name: str | None) -> str | None:
    """A name in which ``*`` and ``?`` stand for any characters, as a pattern of SQL's LIKE."""
    if not name:
        return None
    escaped = name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%").replace("?", "_")


def labels_of(pairs: Sequence[str]) -> dict[str, str]:
    """The labels of a query, each ``KEY=VALUE``; UsageError names a malformed one."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"label: must be KEY=VALUE, such as team=nlp, not {shown(pair)}")
        found[key] = value
    return found


def as_json(labels: Mapping[str, str]) -> str | None:
    return json.dumps(labels, sort_keys=True) if labels else None
