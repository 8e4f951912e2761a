"""Options of a simulation besides the policy: costs, guards, errors of estimates. All can be turned off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..scheduling.guards import PreemptionLimits

NO_LIMITS = PreemptionLimits(min_run_time=0.0, max_preemptions=None, cooldown=0.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """In seconds, unless stated. By default all is free, as in the public simulators."""

    suspend: float = 0.0  #: from the request to stop until the GPUs are free (002 fig. 5.3a: 2 to 4 s)
    resume: float = 0.0  #: from a lease's start until training continues, after a suspension (002 fig. 5.3b)
    resume_per_gpu: float = 0.0  #: more of that for each GPU beyond the first
    cold_start: float = 0.0  #: the same at the first start on GPUs that are cold
    warm_start: float = 0.0  #: at the first start on GPUs that are warm for it: see `LoadedByJobs`
    checkpoint_interval: float = 0.0  #: work since the last checkpoint is lost when a job fails; 0: no work is lost
    lost_on_suspend: float = 0.0  #: seconds of work lost when a job is suspended (0: it checkpoints on the request to stop)
    #: Training time until a job's speed is known. Policies without ``profiles`` do not see the job before.
    profiling: float = 0.0
    profiler_gpus: int = 0  #: GPUs outside the cluster on which jobs of such policies are profiled, one each, in turn; 0: as many as needed
    spread_slowdown: float = (
        1.0  #: a job without a profile on more nodes than it needs takes so many times longer (Eqn 5.2's inter-node term)
    )
    packing_slowdown: float | None = None  #: jobs that share GPUs take so many times longer; None: by their profiles, else 1
    turn: float = 0.0  #: from the end of a step until the next job has its turn, where jobs take turns
    pause: float = 0.0  #: from a higher priority's request for the turn until it has it
    failures_per_gpu_hour: float = 0.0  #: mean failures of a running job per GPU-hour
    commit: float = 0.0  #: from a decision until it is in force; events meanwhile are decided on after that
    handover: float = 5.0  #: most seconds of a start in the process of a job that has just ended there: it loads its data and a head


#: Measured costs of suspension and resumption, by name.
#: `thesis`: 002 ch. 5.3.2.3 with fig. 5.3. Suspension takes up to 4 s, whatever the model and the number of GPUs (fig. 5.3a).
#: Resumption grows with the GPUs, and that of VGG19 on 16 differs from that on 2 by at most 5 s (fig. 5.3b as the text reads it).
#: Its height is drawn but not printed; the author's later simulator (Titan) has 18 s for one GPU.
PRESETS: Mapping[str, Costs] = {
    "none": Costs(),
    "thesis": Costs(suspend=4.0, resume=18.0, resume_per_gpu=5.0 / 14.0),
}


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of the policy's estimates; the truth does not change. They are factors of times, one draw per job and kind."""

    duration: float = 0.0  #: standard deviation of the logarithm
    bias: float = 0.0  #: mean of the logarithm: with 0.1 jobs seem about 10 % longer than they are
    unknown: float = 0.0  #: share of the jobs without an estimate of their duration
    gaussian: float = 0.0  #: standard deviation of a normal factor of mean 1, cut off at 0.05 (002 ch. 5.6.1 perturbs run times so)
    #: Share of its training after which the end of a job that stops at a metric is known; until then the belief falls evenly from
    #: its submitted maximum. 0: known from the start; more than 1: never, so the maximum is believed to the end.
    iterations: float = 0.6
    #: Seconds of running after which a job's pace is measured, and the belief is right except for ``iterations``
    #: (002 ch. 5.3.2.1 corrects the estimate while the job trains). inf: the error stays for a job's whole life.
    corrected: float = math.inf


@dataclass(frozen=True, slots=True)
class Options:
    costs: Costs = field(default_factory=Costs)
    limits: PreemptionLimits = NO_LIMITS
    errors: Errors = field(default_factory=Errors)
    interval: float | None = None  #: seconds between rounds; None: the policy's own, or at every event
    until: float | None = None  #: stop at this time; None: when all jobs have ended
    seed: int = 0
    places: Literal["shared", "node"] = (
        "shared"  #: node: a job that has trained on a node resumes there only, as only that has its checkpoint
    )

    @property
    def random(self) -> bool:
        """Whether a run has random draws, so that another seed gives another run."""
        return bool(self.errors.duration or self.errors.unknown or self.errors.gaussian or self.costs.failures_per_gpu_hour)
