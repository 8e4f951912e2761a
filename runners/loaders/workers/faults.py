"""Faults inside a pipeline, which name the stage and the item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ....engine.errors import StokerError


class StageError(StokerError):
    """A stage cannot go on; the message names the stage and the position of the item."""

    def __init__(self, stage: str, positions: Sequence[int], what: str) -> None:
        super().__init__(f"stage {stage!r}, {words(positions)}: {what}")
        self.stage = stage
        self.positions = tuple(positions)


class Ended(StokerError):
    """The pass was ended from elsewhere: by close(), or by another iteration of the same pipeline."""


class Ragged(ValueError):
    """Samples of one batch whose shapes differ; ``index`` counts within the batch."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(index, what)  # so that it can be pickled
        self.index = index
        self.what = what

    def __str__(self) -> str:
        return self.what


class At(NamedTuple):
    """The work of a worker at a moment."""

    stage: str
    positions: tuple[int, ...]
    place: int = 0  #: of the stage among those of one call
    since: float = -math.inf  #: time.perf_counter; a time before the call if it is not known better


class Misplaced(Exception):
    """An error of a function at a part of its item, or in a stage that joined it.

    ``unsent``: no function raised, but the item or its result cannot be sent between processes.
    """

    def __init__(self, error: Exception, at: At, *, unsent: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.at, self.unsent = error, at, unsent


class Unreplaced(StokerError):
    """A worker's process has died during an item, and no other can be started."""


class Drained(Exception):
    """The source has no more items."""


class Stopped(Exception):
    """The pass has been stopped, by its end, a fault, or close()."""


class Leave(Exception):
    """The stage has more workers than it is to have."""


def words(positions: Sequence[int]) -> str:
    """'item 7', or 'items 0 to 31' for a batch: positions count the items of the source from 0 in each pass."""
    if len(positions) == 1:
        return f"item {positions[0]}"
    return f"items {min(positions)} to {max(positions)}" if positions else "no item"


def located(error: BaseException, stage: str, positions: Sequence[int]) -> BaseException:
    """The error for the consumer: itself, with a note of its place; a StageError if it cannot be raised as itself."""
    if isinstance(error, Misplaced):
        return located(error.error, error.at.stage, error.at.positions)
    if isinstance(error, StageError):
        return error
    if isinstance(error, Ragged):
        position = positions[error.index] if error.index < len(positions) else error.index
        raised = StageError(stage, [position], error.what)
        raised.__cause__ = error
        return raised
    if isinstance(error, StopIteration | GeneratorExit):  # a for loop would take it for the end of the data
        raised = StageError(stage, positions, f"the function raised {type(error).__name__}")
        raised.__cause__ = error
        return raised
    error.add_note(f"in stage {stage!r} of the pipeline, {words(positions)}")
    return error
