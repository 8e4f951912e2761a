"""The two layers of a lookup, and when a job may use them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.runners.prompts.lookup import Candidate, lookup, most_scores

MEDOID = np.array([0, 0, 2, 2, 2, 5], dtype=np.int32)


def test_a_lookup_by_hand() -> None:
    """Representatives 0, 2, 5 are scored, then the cluster of 2: not prompt 1, though it is the best of all."""
    scores = {0: 3.0, 1: 0.1, 2: 2.0, 3: 1.5, 4: 2.5, 5: 4.0}
    asked: list[list[int]] = []

    def score(rows):
        asked.append(list(rows))
        return [scores[row] for row in rows]

    found = lookup(MEDOID, score)
    assert asked == [[0, 2, 5], [3, 4]]
    assert found[:2] == [Candidate(3, 1.5, 2), Candidate(2, 2.0, 1)] and [one.row for one in found] == [3, 2, 4, 0, 5]


def test_a_cluster_of_one_and_an_empty_bank() -> None:
    assert [one.row for one in lookup(np.array([0], dtype=np.int32), lambda rows: [1.0] * len(rows))] == [0]
    with pytest.raises(ValueError, match="empty"):
        lookup(np.array([], dtype=np.int32), lambda rows: [])


def test_the_longest_lookup_scores_all_representatives_and_the_largest_cluster() -> None:
    assert most_scores(MEDOID) == 5
    assert most_scores(np.repeat(np.arange(0, 3000, 60), 60).astype(np.int32)) == 109


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_what_is_scored_is_a_representative_or_of_the_best_cluster(groups, random) -> None:
    medoid = np.array([groups.index(group) for group in groups], dtype=np.int32)
    scores = [random.random() for _ in groups]
    found = lookup(medoid, lambda rows: [scores[row] for row in rows])
    best = min(set(medoid.tolist()), key=lambda row: scores[row])
    assert {one.row for one in found} == set(medoid.tolist()) | {row for row in range(len(groups)) if medoid[row] == best}
    assert len(found) <= most_scores(medoid) and found[0].score == min(one.score for one in found)
