"""Fine-tuning jobs of a trace, from its recipe: their speed on any number of GPUs, and the gain of beginning with another's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...policies.contract import Profile
from ...policies.estimate.throughput import Throughput
from ...policies.estimate.transfers import Joint, Transfers


@dataclass(frozen=True, slots=True)
class Told:
    profiles: Sequence[Profile]
    backbones: Mapping[str, str]  #: by model
    transfers: Transfers | None = None

    def columns(self, models: Sequence[str], asked: Sequence[int]) -> dict[str, Any]:
        """Columns for `make_workload`, for jobs of these models with these GPU requests."""
        if self.transfers is None:
            return {}
        return {
            "kind": ["finetune" if model in self.backbones else "" for model in models],
            "backbone": [self.backbones.get(model, "") for model in models],
            "asked": asked,
            "transfers": self.transfers,
        }


def told(recipe: Mapping[str, Any] | None, profiles: Sequence[Profile]) -> Told:
    """``profiles`` and those of the recipe's kinds of jobs, with the known values of pairs of these."""
    tables = None if recipe is None else recipe.get("fine_tuning")
    if not tables:
        return Told(profiles, {})
    try:
        return _told(tables, profiles)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        words = f"{type(error).__name__}: {error}"
        raise ValueError(f"recipe: what the trace tells of fine-tuning jobs cannot be read ({words}); import its source anew") from None


def _told(tables: Mapping[str, Any], profiles: Sequence[Profile]) -> Told:
    kinds, first = tables["kinds"], len(profiles)
    speeds = {(backbone, batch): (gpus, near, far) for backbone, batch, gpus, near, far in tables["speeds"]}
    known = [*profiles, *(Profile(kind["model"], _throughput(speeds, kind["backbone"], kind["batch"])) for kind in kinds)]
    begin = np.full((len(known), len(known)), np.nan)
    for b in range(len(kinds)):
        begin[first + b, first + b] = 0.0  # after a job with the same data there is nothing left to learn
    for a, b, epochs in tables["temporal"]:
        if a != b:
            begin[first + a, first + b] = epochs / kinds[b]["epochs"]
    joint = {}
    for a, b, epochs_a, epochs_b in tables["spatial"]:
        for one, two, epochs in ((a, b, epochs_a), (b, a, epochs_b)):
            joint[first + one, first + two] = _joint(speeds, kinds[one], kinds[two], epochs)
    return Told(known, {kind["model"]: kind["backbone"] for kind in kinds}, Transfers(begin, joint))


_Speeds = Mapping[tuple[str, int], tuple[Sequence[int], Sequence[float], Sequence[float]]]


def _throughput(speeds: _Speeds, backbone: str, batch: int, over: float = 1.0) -> Throughput:
    gpus, near, far = speeds[backbone, batch]
    return Throughput(gpus, [rate / over for rate in near], [rate / over for rate in far])


def _joint(speeds: _Speeds, one: Mapping[str, Any], two: Mapping[str, Any], epochs: float) -> Joint:
    """An epoch of both is all samples of both; a batch is one of each."""
    alone = speeds[one["backbone"], one["batch"]][1][0]
    work = epochs * (one["samples"] + two["samples"]) / (one["epochs"] * one["samples"])
    return Joint(work, _throughput(speeds, one["backbone"], one["batch"] + two["batch"], alone))
