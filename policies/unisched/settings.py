"""Settings of UniSched, and those that turn it into Chronus or into a mixture of both (002 ch. 5.6)."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import tunable

JOINT, CONSOLIDATED = "joint", "consolidated"
ESTIMATED, MAXIMUM = "estimated", "maximum"
UNIFIED, STATIC = "unified", "static"
SRTF = "srtf"
QUICK, THOROUGH = "quick", "thorough"


@dataclass(frozen=True)
class UniSchedConfig:
    be_lease: float = tunable(
        300.0, "seconds of a lease of best-effort and profiling jobs, and of a scheduling cycle", low=1.0, high=86400.0
    )
    slo_leases: int = tunable(2, "how many times longer a lease of a job with a deadline is", low=1, high=96)
    placement: str = tunable(
        JOINT,
        "joint: a gang may be spread over more nodes where its speed there is known and the optimum wants it; consolidated: never",
        choices=(JOINT, CONSOLIDATED),
    )
    best_effort: str = tunable(
        JOINT,
        "joint: best-effort jobs are chosen with all others; srtf: after them, the shortest remaining time first",
        choices=(JOINT, SRTF),
    )
    profiler: str = tunable(
        UNIFIED, "unified: profiling runs are chosen with all other jobs; static: they have GPUs of their own", choices=(UNIFIED, STATIC)
    )
    profiler_gpus: int = tunable(16, "GPUs set aside for a static profiler, a quarter of the pool at most", low=1, high=1024)
    urgent_profiling: bool = tunable(
        True,
        "a profiling run of a job with a deadline is worth what waiting for it may lose, and may end leases early; false: 1, as any other",
    )
    urgency: float = tunable(
        0.0,
        "what a GPU is worth for a lease to a job with a deadline that has no slack; falls with its slack; 0: as in the text",
        low=0.0,
        high=10.0,
    )
    interrupt: bool = tunable(True, "end leases early for a deadline that cannot wait for the next cycle; false: no lease ends early")
    iterations: str = tunable(
        ESTIMATED,
        "how long a job that stops at a metric's target is taken to run: as estimated, or to its maximum of iterations",
        choices=(ESTIMATED, MAXIMUM),
    )
    resumption_aware: bool = tunable(True, "add what suspensions are expected to cost to the time a job needs (Eqn 5.3)")
    objective: bool = tunable(True, "look for the largest reward; false: take jobs in the order of submission as far as they fit")
    overhead: float = tunable(25.0, "seconds that a suspension costs with its resumption, where none was measured", low=0.0, high=3600.0)
    margin: float = tunable(
        0.0, "a job with a deadline is taken to need so much longer, as a share, as far as the deadline allows", low=0.0, high=1.0
    )
    caution: float = tunable(
        2.0,
        "standard errors of its estimate by which a job with a deadline is taken to need longer, as far as the deadline allows",
        low=0.0,
        high=10.0,
    )
    late: float = tunable(
        0.01,
        "what a job that has lost its deadlines is worth, as a share of a best-effort job of that length",
        low=0.0,
        high=1.0,
    )
    waiting_cost: float = tunable(
        0.0,
        "what an hour costs that a best-effort job waits, beside 100 for a strict deadline: deadlines that take more from those who "
        "wait than they are worth are given up; 0: as in the text, none is",
        low=0.0,
        high=1000.0,
    )
    unknown: float = tunable(3600.0, "seconds that a job of unknown length is taken to need at least", low=1.0, high=1e7)
    effort: str = tunable(
        QUICK, "how far a cycle's optimisation goes where the gap stays too wide: quick, some tenths of a second; thorough, seconds",
        choices=(QUICK, THOROUGH),
    )  # fmt: skip
    gap: float = tunable(0.01, "relative gap to the optimum that is good enough", low=0.0, high=0.5)
    time_limit: float = tunable(5.0, "seconds for a cycle's optimisation, after which its best is taken", low=0.0, high=600.0)
