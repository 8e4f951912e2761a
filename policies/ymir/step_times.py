"""The time of an iteration: the lookup table S(a, configuration) of 002 ch. 3.4.2.3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass
class StepTimes:
    """Seconds of a step, and its seconds of synchronisation, by GPUs and samples on each of them.

    Values between measured points are interpolated linearly (002 ch. 3.5.1), first over samples and then over GPUs; outside of them the
    nearest point counts. `update` takes in measurements as jobs train.
    """

    _points: dict[int, dict[int, tuple[float, float, int]]] = field(default_factory=dict)  #: the last is the number of measurements

    def update(self, gpus: int, samples: int, step: float, sync: float = 0.0) -> None:
        """Take in a measured step; the mean of a point's measurements counts."""
        if gpus < 1 or samples < 1 or not (math.isfinite(step) and step > 0) or not 0 <= sync <= step:
            raise ValueError(f"step times: {step} s with {sync} s of synchronisation on {gpus} GPUs with {samples} samples each is no step")
        before, sync_before, times = self._points.setdefault(gpus, {}).get(samples, (0.0, 0.0, 0))
        mean = (before * times + step) / (times + 1), (sync_before * times + sync) / (times + 1)
        self._points[gpus][samples] = (*mean, times + 1)

    @property
    def gpus(self) -> list[int]:
        """Measured numbers of GPUs."""
        return sorted(self._points)

    @property
    def samples(self) -> tuple[int, int]:
        """The fewest and the most measured samples on a GPU."""
        sizes = [size for points in self._points.values() for size in points]
        return min(sizes), max(sizes)

    def step(self, gpus: int, samples: float) -> tuple[float, float]:
        """(seconds, seconds of synchronisation among them) of one forward and backward pass with its exchange of gradients."""
        known = self.gpus
        if not known:
            raise ValueError("step times: nothing was measured")
        at = [_interpolated(self._points[n], samples) for n in known]
        return tuple(float(np.interp(gpus, known, [one[part] for one in at])) for part in (0, 1))  # type: ignore[return-value]

    def seconds(self, gpus: int, batch: int) -> tuple[float, int]:
        """(S(a, configuration), samples that it takes in) of an iteration with a global batch.

        Gradients are accumulated if a GPU cannot hold its part of the batch; only the last of these passes exchanges them.
        """
        fewest, most = self.samples
        on_each = math.ceil(batch / gpus - 1e-8)
        passes = max(1, math.ceil(on_each / most - 1e-8))
        if gpus == 1 and batch > most:
            passes = max(passes, 2)
        at_once = max(min(math.ceil(on_each / passes - 1e-8), batch // (gpus * passes)), fewest)
        step, sync = self.step(gpus, at_once)
        return step + (step - sync) * (passes - 1), gpus * at_once * passes

    def rate(self, gpus: int, batch: int) -> float:
        """Samples a second."""
        seconds, samples = self.seconds(gpus, batch)
        return samples / seconds

    def most_gpus(self, batch: int) -> int:
        """Most GPUs among which a batch can be divided, each with enough samples."""
        return max(1, min(batch // self.samples[0], self.gpus[-1]))


def _interpolated(points: Mapping[int, tuple[float, float, int]], samples: float) -> tuple[float, float]:
    sizes = sorted(points)
    return tuple(float(np.interp(samples, sizes, [points[size][part] for size in sizes])) for part in (0, 1))  # type: ignore[return-value]
