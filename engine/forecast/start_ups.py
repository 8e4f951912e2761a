"""The time of jobs from the grant of their first lease to the work that their durations count. For people only.

A job's run time begins when its worker lives. Measured run times include all that follows; a submitter's estimate, and steps with
their pace, also leave out the loading before the first step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

#: Seconds until the worker lives, and from then to the first step, if not measured.
RECIPE = (1.0, 5.0)
COMMAND = (0.5, 0.0)  #: the same for a command, which counts from its first instruction on
_COMMAND = "command/"  #: prefix of the models of commands

#: model, seconds until its workers lived, from then to the first step, measurements, whether by forks, whether the next one will be
Row = tuple[str, float, float, int, bool, bool]


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds of a first start."""

    worker: float  #: until the worker lives
    loading: float  #: from then to the first step

    def until_work(self, *, loading: bool) -> float:
        """``loading``: the job's known duration does not include its loading."""
        return self.worker + loading * self.loading


class StartUps:
    """Start-ups by model, for its next expected kind of start: by a fork or not (docs/warm.md).

    For a model without such a measurement it is the mean of the pool's others (commands or not) in fresh processes, as forks do not predict
    those.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for model, worker, loading, times, warm, expected in rows:
            for key in ([model] if expected else []) + ([] if warm else [_kind(model)]):
                sums[key][0] += worker * times
                sums[key][1] += loading * times
                sums[key][2] += times
        self._means = {key: StartUp(worker / times, loading / times) for key, (worker, loading, times) in sums.items()}

    def of(self, model: str) -> StartUp:
        default = StartUp(*(COMMAND if _kind(model) == _COMMAND else RECIPE))
        return self._means.get(model) or self._means.get(_kind(model)) or default


def _kind(model: str) -> str:
    return _COMMAND if model.startswith(_COMMAND) else ""
