"""How the cores of a node are divided over the jobs that run on it: the signal to their data pipelines to grow or to shrink.

Each GPU (or slot) in use stands for an equal part of the cores, whoever holds it. So the cores of idle GPUs are lent to
those who run, and are taken back as soon as another job starts: all cores are always given, and none twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from ..worker.cores import usable
from .rundir import CPUS
from .runs import Run


def divide(cores: float, held: Mapping[int, Collection[str]]) -> dict[int, float]:
    """Cores of each lease, by the GPUs that each holds; leases on one GPU divide its part equally."""
    users = Counter(gpu for gpus in held.values() for gpu in set(gpus))
    return {lease: round(cores * sum(1 / users[gpu] for gpu in set(gpus)) / len(users), 3) for lease, gpus in held.items() if gpus}


class Shares:
    """Writes each lease's share into its run directory, when it has changed."""

    def __init__(self, cores: Callable[[], float] = usable):
        self._cores = cores
        self._told: dict[int, float] = {}

    def tell(self, runs: Iterable[Run]) -> dict[int, float]:
        """Divide the cores over these leases, all that run or are about to; answers with the share of each."""
        running = list(runs)
        shares = divide(self._cores(), {run.lease: run.assignment.gpus for run in running}) if running else {}
        told: dict[int, float] = {}
        for run in running:
            share = shares[run.lease]
            with run.isolated():  # tried again at the next look
                if self._told.get(run.lease) != share:
                    run.dir.replace(CPUS, {"cpus": share})
                told[run.lease] = share
        self._told = told
        return shares
