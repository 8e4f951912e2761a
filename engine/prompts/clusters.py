"""Two layers of prompts: K-medoids by cosine distance (002 ch. 4.4.3.1). Pure functions of arrays.

The method is FasterPAM (Schubert and Rousseeuw, Fast and eager k-medoids clustering, Information Systems 101, 2021): a candidate is
swapped in as soon as it improves the sum of distances, and the gain for all K medoids is found in one pass over the prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32] | NDArray[np.float64]
    Ints = NDArray[np.int64]

MOST_CLUSTERS = 50  #: K of 4.5.2
_LEAST_GAIN = 1e-9  #: relative to the sum of distances; smaller gains are rounding errors


@dataclass(frozen=True, slots=True)
class Clusters:
    medoids: Ints  #: rows of the K medoids
    member: Ints  #: for each of the n rows, the row of its medoid
    distance: float  #: mean cosine distance of a row to its medoid

    @property
    def scores(self) -> float:
        """Scores computed in a lookup, averaged over all rows as targets: K, and the size of the chosen cluster (4.4.3.2)."""
        import numpy as np

        _, sizes = np.unique(self.member, return_counts=True)
        return len(self.medoids) + float(np.square(sizes).sum()) / len(self.member)


def cosine_distances(features: Floats) -> NDArray[np.float32]:
    """Distances between all rows, n × n, for features n × d, none of which is zero."""
    import numpy as np

    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    distances = np.asarray(1.0 - unit @ unit.T, dtype=np.float32)
    np.clip(distances, 0.0, 2.0, out=distances)
    np.fill_diagonal(distances, 0.0)
    return distances


def count_for(prompts: int) -> int:
    """Number of clusters for C prompts: √C, which makes K + C/K smallest (4.4.3.2), but at most `MOST_CLUSTERS`."""
    return max(1, min(MOST_CLUSTERS, round(math.sqrt(prompts))))


def k_medoids(distances: Floats, k: int, *, seed: int = 0, rounds: int = 100) -> Clusters:
    """Choose ``k`` of n rows so that the sum of distances (n × n) to the nearest chosen one is small.

    ValueError unless 1 ≤ k ≤ n. The same seed gives the same clusters.
    """
    import numpy as np

    n = len(distances)
    if not 1 <= k <= n:
        raise ValueError(f"{k} clusters of {n} rows")
    random = np.random.default_rng(seed)
    chosen = _Chosen(distances, random.permutation(n)[:k])
    last = -1  # the last candidate that was swapped in
    for _ in range(rounds if k < n else 0):
        for candidate in range(n):
            if candidate == last:
                return chosen.clusters()
            if chosen.improve(candidate) or last < 0:
                last = candidate
    return chosen.clusters()


class _Chosen:
    """The present medoids, with the nearest and second nearest of each row."""

    def __init__(self, distances: Floats, medoids: Ints) -> None:
        self.distances = distances
        self.medoids = medoids.copy()
        self._look()

    def _look(self) -> None:
        import numpy as np

        to = self.distances[:, self.medoids].astype(np.float64)
        rows = np.arange(len(to))
        self.near = to.argmin(axis=1)
        self.first = to[rows, self.near]
        to[rows, self.near] = np.inf
        self.second = to.min(axis=1)  # infinite with one medoid
        second = np.where(np.isfinite(self.second), self.second, 0.0)
        #: how much the sum grows when a medoid is removed and its rows go to their second nearest
        self.removal = np.bincount(self.near, weights=second - self.first, minlength=len(self.medoids))

    def improve(self, candidate: int) -> bool:
        """Replace the medoid for which this lowers the sum most by the candidate. False: it lowers it for none."""
        import numpy as np

        if candidate in self.medoids:
            return False
        to = self.distances[candidate].astype(np.float64)
        if len(self.medoids) == 1:
            change = np.array([(to - self.first).sum()])
        else:
            nearer = to < self.first
            between = ~nearer & (to < self.second)
            change = self.removal + np.minimum(to - self.first, 0.0).sum()
            change += np.bincount(self.near[nearer], weights=(self.first - self.second)[nearer], minlength=len(self.medoids))
            change += np.bincount(self.near[between], weights=(to - self.second)[between], minlength=len(self.medoids))
        out = int(change.argmin())
        if change[out] >= -_LEAST_GAIN * max(1.0, float(self.first.sum())):
            return False
        self.medoids[out] = candidate
        self._look()
        return True

    def clusters(self) -> Clusters:
        import numpy as np

        order = np.sort(self.medoids)
        member = order[self.distances[:, order].argmin(axis=1)]
        member[order] = order  # a medoid belongs to itself, even if an equal prompt is a medoid too
        return Clusters(order, member, float(self.first.mean()))
