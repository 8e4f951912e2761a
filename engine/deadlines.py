"""Watches deadlines: a job that is not going to make its own is announced once, in time to do something about it."""

from __future__ import annotations

from .store.store import Store
from .workflow.settings import Note, note


class DeadlineWatch:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._announced = {row[0] for row in store.rows("policy/announced_deadlines")}

    def look(self) -> None:
        """Compare estimated ends with deadlines; an event for each job newly at risk, or newly too late."""
        for job, words in self._store.rows("policy/deadlines_at_risk"):
            if job not in self._announced:
                self._store.write(note, Note("job.deadline-at-risk", "daemon", words, job=job))
                self._announced.add(job)
