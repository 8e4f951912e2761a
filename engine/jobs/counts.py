"""The number of jobs in each state, in memory: counted once, then updated with each committed transition."""

from __future__ import annotations

from collections import Counter

from ..store.store import Committed, Store


class Counts:
    """Changed on the writer's thread, read by any thread."""

    def __init__(self, store: Store) -> None:
        self._counts: Counter[str] = Counter(dict(store.rows("api/job_counts")))

    def committed(self, commit: Committed) -> None:
        """Each transition of a job is an event (`workflow/moves.py`)."""
        changed = self._counts.copy()
        for event in commit.events:
            if event["kind"] == "job.state":
                changed[event["after"]] += 1
                if event["before"] is not None:
                    changed[event["before"]] -= 1
        self._counts = changed

    def by_state(self) -> dict[str, int]:
        return {state: count for state, count in sorted(self._counts.items()) if count}
