"""How long jobs take from the grant of their first lease until they do what their durations count: told to people only.

A job's run time begins when its worker lives. What was measured as run time holds all that comes after; what a submitter says, and steps
with their pace, leave out the loading before the first step, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

#: Seconds until the worker lives, and from then to the first step, where nothing was measured.
RECIPE = (1.0, 5.0)
COMMAND = (0.5, 0.0)  #: the same of a command, which counts from its first instruction on
_COMMAND = "command/"  #: what the models of commands begin with

#: model, seconds until its workers lived, from then to the first step, times measured, whether by forks, and whether the next is to be so
Row = tuple[str, float, float, int, bool, bool]


@dataclass(frozen=True, slots=True)
class StartUp:
    """Seconds of a first start."""

    worker: float  #: until the worker lives
    loading: float  #: from then to the first step

    def until_work(self, *, loading: bool) -> float:
        """``loading``: what is known of the job's duration does not hold its loading."""
        return self.worker + loading * self.loading


class StartUps:
    """By model, as its next start is expected: by a fork or not (docs/warm.md).

    Of a model never so measured it is the mean of its like in the pool, commands or not, in fresh processes: forks teach nothing of those.
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
