"""The trials of a search as tasks of a Ray cluster. The library is handed in, connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...policies.autosched.search import NotMeasured, TrialFigures
from .situation import Situation

TRIES = 2  #: more of a trial whose process or node dies


class TrialsOnRay:
    """``trial``: what a task does, with the situation first."""

    def __init__(self, ray: Any, trial: Callable[..., TrialFigures]) -> None:
        self._ray = ray
        self._task = ray.remote(num_cpus=1, max_retries=TRIES)(_told)
        self._trial = trial
        self._sent: tuple[Situation, Any] | None = None

    def begin(self, situation: Situation, *arguments: Any) -> Any:
        if self._sent is None or self._sent[0] is not situation:
            self._sent = situation, self._ray.put(situation)  # once
        return self._task.remote(self._trial, self._sent[1], *arguments)

    def result(self, begun: Any) -> TrialFigures:
        """Raises NotMeasured."""
        try:
            told = self._ray.get(begun)
        except self._ray.exceptions.RayError as error:
            raise NotMeasured(f"its task ended: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from None
        if isinstance(told, NotMeasured):
            raise told
        assert isinstance(told, TrialFigures)
        return told


def _told(trial: Callable[..., TrialFigures], situation: Situation, *arguments: Any) -> TrialFigures | NotMeasured:
    try:
        return trial(situation, *arguments)
    except NotMeasured as error:
        return error
