"""Early ends of a simulation."""

from __future__ import annotations


class SimulationError(ValueError):
    """The policy raised or answered with an invalid plan; the message says when and what was wrong."""


class StudyEnded(BaseException):
    """The study is to end, as its process was told by a signal. No Exception: nothing that a policy does is taken for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
