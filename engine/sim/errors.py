"""What ends a simulation early."""

from __future__ import annotations


class SimulationError(ValueError):
    """The policy raised or answered with an invalid plan; the message says when and what was wrong."""
