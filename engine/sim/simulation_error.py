"""Early ends of a simulation."""

from __future__ import annotations


class SimulationError(ValueError):
    """The policy raised or returned an invalid plan; the message has the time and the reason."""


class StudyEnded(BaseException):
    """A signal asks the study to end. It is no Exception, so no error of a policy is taken for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
