"""How the cores of a node are divided over the jobs that run on it: the signal to their data pipelines to grow or to shrink.

Each GPU (or slot) in use stands for an equal part of the cores, whoever holds it. So the cores of idle GPUs are lent to
those who run, and are taken back as soon as another job starts: all cores are always given, and none twice. But jobs that share
slots have the cores of these and no others (`pinning`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from ...engine.protocol import Assignment
from ..worker.cores import usable
from .rundir import CPUS
from .runs import Run


def divide(cores: float, held: Mapping[int, Collection[str]], pinned: Collection[int] = ()) -> dict[int, float]:
    """Cores of each lease, by the GPUs that each holds; leases on one GPU divide its part equally.

    ``pinned``: leases that have a core for each of their GPUs, to divide with those beside them; the others have what is left.
    """
    users = Counter(gpu for gpus in held.values() for gpu in set(gpus))
    parts = {lease: sum(1 / users[gpu] for gpu in set(gpus)) for lease, gpus in held.items() if gpus}
    bound = sum(parts[lease] for lease in pinned)
    a_gpu = cores / max(cores, len(users))  # more slots than cores: each is a part of one
    rest = (cores - a_gpu * bound) / max(len(users) - bound, 1e-9)
    return {lease: round(part * (a_gpu if lease in pinned else rest), 3) for lease, part in parts.items()}


class Shares:
    """Writes each lease's share of the cores into its run directory, when it has changed."""

    def __init__(self, cores: Callable[[], float] = usable, is_pinned: Callable[[Assignment], bool] = lambda assignment: False):
        self._is_pinned, self._cores = is_pinned, cores
        self._told: dict[int, float] = {}

    def tell(self, runs: Iterable[Run]) -> dict[int, float]:
        """Divide the cores over these leases, all that run or are about to; answers with the share of each."""
        running = list(runs)
        pinned = [run.lease for run in running if self._is_pinned(run.assignment)]
        shares = divide(self._cores(), {run.lease: run.assignment.gpus for run in running}, pinned) if running else {}
        told: dict[int, float] = {}
        for run in running:
            share = shares[run.lease]
            with run.isolated():  # tried again at the next look
                if self._told.get(run.lease) != share:
                    run.dir.replace(CPUS, {"cpus": share})
                told[run.lease] = share
        self._told = told
        return shares
