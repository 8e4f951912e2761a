"""Two jobs on the same GPUs: a job's sharing score, and its possible partners (Lucid, ASPLOS 2023, section 3.3).

Lucid classes jobs by their mean speed beside others: 95 % of their speed alone or more, 85 % or more, slower. The sum of the sharing
scores of two jobs on the same GPUs has a limit. Here the measured speeds of the pair itself (`View.slowdowns`) give the class of
each; few pairs are measured, and for others it comes from a job's utilisation of the GPU alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contract import PACKED, Bools, Floats, Ints, View
from .victims import occupants


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Why a job has no partner. ``{jobs}`` in the words stands for the names of jobs (ids)."""

    words: str
    jobs: tuple[int, ...] = ()
    unknown: bool = False  #: only measurements of these are missing


TINY, MEDIUM, JUMBO = 0, 1, 2  #: sharing scores
FAST, FAIR = 0.95, 0.85  #: shares of the speed alone from which on jobs beside others are tiny, and medium (section 3.3)


def sharing_scores(utilisation: Floats, tiny: float, jumbo: float) -> Ints:
    """``TINY`` up to a utilisation of ``tiny``, ``JUMBO`` from ``jumbo`` on and if unknown."""
    scores = np.full(len(utilisation), JUMBO, dtype=np.int64)
    scores[utilisation < jumbo] = MEDIUM
    scores[utilisation <= min(tiny, jumbo)] = TINY
    return scores


def measured_scores(slowdowns: Floats) -> Floats:
    """The same for jobs beside one certain other, by the factors on their time there; NaN: not known."""
    speeds = 1.0 / slowdowns
    scores: Floats = np.where(speeds >= FAST, float(TINY), np.where(speeds >= FAIR, float(MEDIUM), float(JUMBO)))
    scores[np.isnan(slowdowns)] = np.nan
    return scores


def utilisation_and_memory(view: View) -> tuple[Floats, Floats]:
    """Shares of a GPU's compute and memory that each job uses; NaN: not known."""
    if view.jobs.profile is None or not view.profiles:
        unknown = np.full(len(view.jobs), np.nan)
        return unknown, unknown
    # The last row stands for jobs without a profile, whose row is -1.
    utilisation = np.array([profile.utilisation for profile in view.profiles] + [np.nan])
    memory = np.array([profile.memory for profile in view.profiles] + [np.nan])
    return utilisation[view.jobs.profile], memory[view.jobs.profile]


def may_share(view: View) -> Bools:
    """Jobs whose submitters do not forbid sharing."""
    jobs = view.jobs
    return np.ones(len(jobs), dtype=bool) if jobs.share is None else np.isin(jobs.share, ("", PACKED))


class Sharing:
    """The possible partners of waiting jobs, kept up to date while a plan is made. Arrays have one row per job.

    A pair has gangs of one size, no larger than a node (Lucid's released code shares no larger ones), and is known to fit into memory,
    as a job that runs out of memory also ends its partner. There are never three on one GPU: they are far slower and gain almost
    nothing (section 3.3).
    """

    def __init__(
        self, view: View, scores: Ints, memory: Floats, most_score: int, most_memory: float, largest_node: int, barred: Bools
    ) -> None:
        """``largest_node``: its GPUs; ``barred``: running jobs that no other may join."""
        self.view, self.scores, self.memory = view, scores, memory
        self.most_score, self.most_memory, self.largest_node = most_score, most_memory, largest_node
        self.gpus: dict[int, tuple[int, ...]] = {}  #: of jobs that the plan starts
        self.open = occupants(view) & ~barred & may_share(view) & (view.jobs.held == view.jobs.gpus_min)
        self.pairs = None if view.slowdowns is None else measured_scores(view.slowdowns) + measured_scores(view.slowdowns).T
        self.bytes = np.full(len(view.jobs), np.inf)  #: of the job's smallest GPU, inf when unknown
        owner = view.jobs.holder
        np.minimum.at(self.bytes, owner, self._bytes(view.jobs.alloc_gpus))
        self.open[owner[~view.gpus.usable[view.jobs.alloc_gpus]]] = False

    def shares(self, rows: Ints) -> Bools:
        """Jobs that could have a partner at all."""
        tried = self.scores[rows] <= self.most_score
        if self.pairs is not None and self.view.jobs.profile is not None:
            fits = np.append((self.pairs <= self.most_score).any(axis=1), False)  # the last row is that of jobs without a profile
            tried |= fits[self.view.jobs.profile[rows]]
        able: Bools = tried & (self.memory[rows] < self.most_memory)  # False for NaN
        able &= (self.view.jobs.gpus_min[rows] <= self.largest_node) & may_share(self.view)[rows]
        return able

    def starts(self, row: int, gpus: tuple[int, ...]) -> None:
        """A job that the plan starts alone may be joined, too."""
        self.gpus[row] = gpus
        self.open[row] = True
        self.bytes[row] = self._bytes(np.array(gpus)).min()

    def partner(self, row: int, among: Bools) -> int | None:
        """The job ``among`` these with the least sum of scores that ``row`` may join, the earliest of equals; None: there is none."""
        jobs, together = self.view.jobs, self._together(row)
        fits = self.open & among & (jobs.gpus_min == jobs.gpus_min[row])
        fits &= together <= self.most_score
        fits &= self.memory + self.memory[row] <= self.most_memory
        fits &= jobs.gpu_memory + jobs.gpu_memory[row] <= self.bytes
        if jobs.need is not None:
            suits = self.view.suits(row)
            for other in np.flatnonzero(fits).tolist():
                fits[other] = suits[list(self.gpus.get(other, jobs.allocation(other)))].all()
        partners = np.flatnonzero(fits)
        return int(partners[np.argmin(together[partners])]) if len(partners) else None

    def refusal(self, row: int, among: Bools) -> Unpacked | None:
        """Why `partner` finds none for ``row``, by the first that it might have joined; None: it finds one, or may not share."""
        jobs, together = self.view.jobs, self._together(row)
        if int(jobs.gpus_min[row]) > self.largest_node or not may_share(self.view)[row] or self.partner(row, among) is not None:
            return None
        others = np.flatnonzero(self.open & (jobs.gpus_min == jobs.gpus_min[row])).tolist()
        if unknown := [one for one in (*others[:1], row) if np.isnan(self.memory[one])]:
            return Unpacked(
                f"how much {{jobs}} use{'s' * (len(unknown) == 1)} is not known yet", tuple(jobs.id[unknown].tolist()), unknown=True
            )
        if not others:
            return Unpacked("no job of its size runs alone that may be joined")
        other = others[0]
        name = (int(jobs.id[other]),)
        if together[other] > self.most_score:
            scores = f"sharing scores {together[other]:g}, at most {self.most_score}"
            return Unpacked(f"it and {{jobs}} would slow each other too much ({scores})", name)
        if among[other]:
            return Unpacked("the memory of a GPU does not hold it and {jobs}", name)
        return Unpacked("{jobs} ends so much sooner that it would be slowed for its whole remaining time", name)

    def _together(self, row: int) -> Floats:
        """The sum of the scores of ``row`` and each job."""
        together: Floats = (self.scores + self.scores[row]).astype(np.float64)
        if self.pairs is None or self.view.jobs.profile is None or (own := self.view.jobs.profile[row]) < 0:
            return together
        measured = np.append(self.pairs[own], np.nan)[self.view.jobs.profile]
        return np.where(np.isnan(measured), together, measured)

    def join(self, row: int, partner: int) -> tuple[int, ...]:
        """The GPUs of the pair; neither can be joined again."""
        self.open[[row, partner]] = False
        return self.gpus[partner] if partner in self.gpus else tuple(self.view.jobs.allocation(partner).tolist())

    def _bytes(self, gpus: Ints) -> Floats:
        memory = self.view.gpus.memory[gpus]
        return np.where(memory > 0, memory, np.inf)
