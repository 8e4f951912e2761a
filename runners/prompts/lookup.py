"""Lookup in a prompt bank: the two layers of 002 ch. 4.4.3.2, and when a job may use them (4.4.3.4, 4.5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    #: A text, or the vectors (tokens, hidden) of a prompt that was tuned.
    Prompt = str | NDArray[np.float32]

BUDGET = 0.2  #: share of a deadline that a lookup may take

#: Rows of the bank → the score of each by equation 4.1; smaller is better.
Score = Callable[[Sequence[int]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Candidate:
    row: int
    score: float
    layer: int  #: 1: it represents a cluster, 2: it is of the cluster that was chosen


def lookup(medoid: NDArray[np.int32], score: Score) -> list[Candidate]:
    """All rows that were scored, the best first: each representative, then the others of the best one's cluster.

    ``medoid``: of each row, the row that represents it (n). ValueError of an empty bank.
    """
    if not len(medoid):
        raise ValueError("the bank is empty")
    first = sorted({int(row) for row in medoid})
    scored = [Candidate(row, value, 1) for row, value in zip(first, score(first), strict=True)]
    best = min(scored, key=_order).row
    second = [row for row, of in enumerate(medoid.tolist()) if of == best and row != best]
    if second:
        scored += [Candidate(row, value, 2) for row, value in zip(second, score(second), strict=True)]
    return sorted(scored, key=_order)


def prompts_of(bank: Mapping[str, Any]) -> list[Prompt]:
    """What tunings begin with, a row of an exported bank each (`engine.prompts.bank_files`)."""
    texts: list[Prompt] = bank["prompts"].tolist()
    if "ends" not in bank:  # a file of an earlier version
        return texts
    ends, width = bank["ends"].tolist(), bank["features"].shape[1]
    return [
        bank["vectors"][begin:end].reshape(-1, width) if begin < end else text
        for text, begin, end in zip(texts, [0, *ends[:-1]], ends, strict=True)
    ]


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.score, candidate.row


def most_scores(medoid: NDArray[np.int32]) -> int:
    """Scores of the longest lookup that this bank can need: all representatives, and the largest cluster."""
    import numpy as np

    _, sizes = np.unique(medoid, return_counts=True)
    return len(sizes) + int(sizes.max()) - 1


def fits(medoid: NDArray[np.int32], seconds_per_score: float, deadline: float) -> bool:
    """Whether 20 % of the seconds that a job has are at least the longest time of a lookup.

    4.5.2 prints the opposite: a lookup where the budget does *not* surpass its overhead.
    """
    return BUDGET * deadline >= most_scores(medoid) * seconds_per_score
