"""The figures of the evaluation of UniSched (002 ch. 5.5.2 and 5.6): what is run for each, and what the thesis says of it.

A figure is a grid: points (workloads, densities, …) by variants (policies, or settings of UniSched), the first of which is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from unisched_runs import CORRECTED, Case, Measured
from unisched_workloads import ITP, MADE_UP, MIX1, MIX2, PER_NODE, PHILLY, PUBLISHED, SLO, Recipe

MISSING = "–"
NOT_TOLD = "not told"
RATIO, MORE, VALUE = "times", "more, points", "value"


@dataclass(frozen=True, slots=True)
class Metric:
    field: str  #: of Measured
    name: str
    unit: str
    scale: float = 1.0  #: from Measured's unit


R_SLO = Metric("r_slo", "R_slo", "%", 100.0)
R_PERFORMANCE = Metric("r_performance", "R_slo of jobs that stop at a metric", "%", 100.0)
LATENCY = Metric("best_effort_jct", "best-effort JCT", "h", 1 / 3600.0)
SLO_STOPS = Metric("slo_suspensions", "suspensions of an SLO job", "")
BE_STOPS = Metric("best_effort_suspensions", "of a best-effort job", "")
PENDING = Metric("longest_profiling_wait", "longest wait for profiling", "s")
CYCLE = Metric("cycle_cpu", "CPU of the longest cycle", "s")
JOBS = Metric("jobs", "jobs", "")


@dataclass(frozen=True, slots=True)
class Point:
    label: str
    source: str
    mix: str
    density: float = 1.0
    hostile: float | None = None
    overhead: float = 1.0
    larger: float = 1.0  #: cluster and jobs, by the scale's own


@dataclass(frozen=True, slots=True)
class Variant:
    label: str
    policy: str = "unisched"
    config: tuple[tuple[str, Any], ...] = ()
    noise: float = 0.0
    corrected: float = math.inf  #: seconds that a job has run when its estimate has no noise any more
    partition: bool = False  #: jobs are profiled on GPUs of the cluster that are set aside for it, as many as of Chronus
    maximum: bool = False  #: jobs that stop at a metric are taken to run to their maximum of iterations


@dataclass(frozen=True, slots=True)
class Claim:
    """What the thesis says, beside which the same is computed."""

    what: str
    metric: Metric
    how: str
    variants: Sequence[str]
    thesis: str
    points: Sequence[str] = ()  #: labels; (): all


@dataclass(frozen=True, slots=True)
class Grid:
    number: str
    title: str
    along: str  #: what the points are
    points: Sequence[Point]
    variants: Sequence[Variant]
    metrics: Sequence[Metric]
    claims: Sequence[Claim]
    front: Sequence[Variant] = ()  #: settings of one policy that trade the first metric for the second; the other variants are beside it


@dataclass(frozen=True, slots=True)
class Scale:
    """How large it all is. Load does not depend on it: jobs are as many as the nodes take."""

    nodes: Mapping[str, int]
    days: float
    seeds: int


#: The thesis has clusters of 120 and 96 nodes, and two traces; it does not say which ran on which.
FULL = Scale({PHILLY: 120, ITP: 96, MADE_UP: 120}, 14.0, 3)
SMALL = Scale({PHILLY: 10, ITP: 8, MADE_UP: 10}, 2.0, 1)
QUICK = Scale({PHILLY: 3, ITP: 4, MADE_UP: 3}, 0.5, 1)


def profiler_gpus(nodes: int) -> int:
    """Of a static profiler: two nodes of 120 (002 ch. 5.6.1), and two runs on two GPUs at least."""
    return max(4, round(nodes * PER_NODE * 2 / 120))


def cases(grid: Grid, point: Point, variant: Variant, scale: Scale) -> list[Case]:
    """One a seed."""
    nodes = max(round(scale.nodes[point.source] * point.larger), 1)
    config = variant.config
    if variant.policy == "chronus" or ("profiler", "static") in config:
        config = (*config, ("profiler_gpus", profiler_gpus(nodes)))
    return [
        Case(
            Recipe(point.source, point.mix, nodes, scale.days, point.density, point.hostile, seed),
            variant.policy,
            config,
            point.overhead,
            variant.noise,
            profiler_gpus(nodes) if variant.partition else 0,
            variant.maximum,
            variant.corrected,
        )
        for seed in range(scale.seeds)
    ]


def all_cases(grid: Grid, scale: Scale) -> Iterator[Case]:
    for point in grid.points:
        for variant in grid.variants:
            yield from cases(grid, point, variant, scale)


# The grids

UNISCHED = Variant("UniSched")
THREE_SIGMA, GENIE, HYDRA = Variant("3Sigma", "threesigma"), Variant("GENIE", "genie"), Variant("Hydra", "hydra")
OPTIMUS, THEMIS = Variant("Optimus", "optimus"), Variant("Themis", "themis")
EDF, SRTF, CHRONUS = Variant("EDF", "edf"), Variant("SRTF", "srtf"), Variant("Chronus", "chronus")
BASELINES = (THREE_SIGMA, GENIE, HYDRA, OPTIMUS, THEMIS, CHRONUS, EDF, SRTF)
#: What an hour of a best-effort job's waiting costs, beside 100 for a deadline. The first is the text's.
FRONT = (UNISCHED, *(Variant(f"waiting_cost={cost}", config=(("waiting_cost", float(cost)),)) for cost in (5, 10, 20, 40, 80, 160, 320)))
SLO_AWARE, DL = ("3Sigma", "GENIE", "Hydra"), ("Optimus", "Themis")
_THESIS = (UNISCHED, THREE_SIGMA, GENIE, HYDRA, OPTIMUS, THEMIS)
#: 5.4.3 counts what profiling costs for all schedulers, and schedulers before it reserve GPUs for it (5.2.2). Of the baselines only Themis
#: has the estimator of iterations (5.4.4), and Optimus brings its own.
_AS_THERE = (UNISCHED, *(replace(one, partition=True, maximum=one not in (OPTIMUS, THEMIS)) for one in _THESIS[1:]))


def grids(real: bool) -> list[Grid]:
    """All figures; without ``real`` traces on workloads that are made up."""
    sources = {"P": PHILLY, "I": ITP} if real else {"M": MADE_UP}
    names = {mix: [f"{letter}_{mix.upper()}" for letter in sources] for mix in (SLO, MIX1, MIX2)}
    every = [Point(f"{letter}_{mix.upper()}", source, mix) for letter, source in sources.items() for mix in (SLO, MIX1, MIX2)]
    mixed = [point for point in every if point.mix != SLO]
    own = [Point("P_MIX1, own deadlines", PHILLY, PUBLISHED)] if real else []
    most = next(reversed(sources.values()))  # in place of Helios, which the thesis takes for most of 5.6
    return [*_end_to_end(every, own, names, most), *_estimator(mixed, every, most), *_selector(mixed, most), _chronus(mixed), _front(mixed)]


def _end_to_end(every: Sequence[Point], own: Sequence[Point], names: Mapping[str, list[str]], most: str) -> list[Grid]:
    mixes = [*names[MIX1], *names[MIX2]]
    densities = [Point(f"{share:.0%}", most, MIX2, density=share) for share in (0.8, 1.0, 1.2, 1.4, 1.6)]
    return [
        Grid(
            "5.6a-b", "Deadlines and best-effort latency beside other schedulers", "workload", [*every, *own],
            [UNISCHED, *BASELINES], [R_SLO, LATENCY],
            [
                Claim("R_slo of SLO-aware schedulers, SLO workloads", R_SLO, RATIO, SLO_AWARE, "1.17 to 4.82", names[SLO]),
                Claim("R_slo of SLO-aware schedulers, mixed", R_SLO, RATIO, SLO_AWARE, "0.95 to 2.77", mixes),
                Claim("R_slo of DL schedulers, mixed", R_SLO, RATIO, DL, "2.01 to 6.84", mixes),
                Claim("best-effort JCT of SLO-aware schedulers", LATENCY, RATIO, SLO_AWARE, "1.66 to 4.02", mixes),
                Claim("best-effort JCT of DL schedulers", LATENCY, RATIO, DL, "1.18 to 3.11", mixes),
            ],
        ),
        Grid(
            "5.6e", "As 5.6a-b, others profiled on GPUs of the cluster and without the estimator of iterations", "workload",
            [point for point in every if point.mix != SLO], _AS_THERE, [R_SLO, LATENCY],
            [
                Claim("R_slo of SLO-aware schedulers, mixed", R_SLO, RATIO, SLO_AWARE, "0.95 to 2.77"),
                Claim("R_slo of DL schedulers, mixed", R_SLO, RATIO, DL, "2.01 to 6.84"),
                Claim("best-effort JCT of SLO-aware schedulers", LATENCY, RATIO, SLO_AWARE, "1.66 to 4.02"),
                Claim("best-effort JCT of DL schedulers", LATENCY, RATIO, DL, "1.18 to 3.11"),
            ],
        ),
        Grid(
            "5.6c-d", "Density of submissions", "density", densities, _THESIS, [R_SLO, LATENCY],
            [
                Claim("R_slo of the others", R_SLO, RATIO, (*SLO_AWARE, *DL), "1.18 to 2.67"),
                Claim("best-effort JCT of the others", LATENCY, RATIO, (*SLO_AWARE, *DL), "0.67 to 3.78"),
                Claim("best-effort JCT of GENIE at 160 %", LATENCY, RATIO, ("GENIE",), "3.78", ("160%",)),
                Claim("best-effort JCT of Optimus at 80 %", LATENCY, RATIO, ("Optimus",), "0.67", ("80%",)),
            ],
        ),
        Grid(
            "5.8", "Suspensions and resumptions", "workload", every, [UNISCHED], [SLO_STOPS, BE_STOPS],
            [
                Claim("suspensions of an SLO job", SLO_STOPS, VALUE, ("UniSched",), "2 to 6"),
                Claim("suspensions of a best-effort job", BE_STOPS, VALUE, ("UniSched",), "fewer", mixes),
            ],
        ),
    ]  # fmt: skip


def _estimator(mixed: Sequence[Point], every: Sequence[Point], most: str) -> list[Grid]:
    printed = Variant("unified, as printed", config=(("urgent_profiling", False),))
    static = Variant("static profiler", config=(("profiler", "static"),))
    maximum = Variant("maximum of iterations", config=(("iterations", "maximum"),))
    unaware = Variant("not SR-aware", config=(("resumption_aware", False),))
    overheads = [Point(f"x{times:g}", most, MIX2, overhead=times) for times in (1.0, 2.0, 4.0, 8.0)]
    shares = (0.2, 0.4, 0.6, 0.8)
    noises = [Variant(f"noise {share:.0%}", noise=share, corrected=CORRECTED) for share in shares]
    lasting = [Variant(f"noise {share:.0%}, never corrected", noise=share) for share in shares]
    return [
        Grid(
            "5.9a", "Profiling runs together with all jobs, or on GPUs of their own", "workload", mixed,
            [UNISCHED, printed, static], [R_SLO, PENDING],
            [
                Claim("R_slo where no profiling run is urgent", R_SLO, MORE, (printed.label,), NOT_TOLD),
                Claim("R_slo of a static profiler", R_SLO, MORE, (static.label,), "above 0"),
                Claim("longest wait, unified", PENDING, VALUE, ("UniSched",), "840"),
                Claim("longest wait, static profiler", PENDING, VALUE, (static.label,), "2105"),
            ],
        ),
        Grid(
            "5.9b", "Training iterations estimated, or taken to be the maximum", "workload", every, [UNISCHED, maximum],
            [R_SLO, R_PERFORMANCE],
            [
                Claim("R_slo without the estimator", R_SLO, MORE, (maximum.label,), "0.7 to 5.1"),
                Claim("the same, of jobs that stop at a metric", R_PERFORMANCE, MORE, (maximum.label,), "0.7 to 5.1"),
            ],
        ),
        Grid(
            "5.9c", "Estimates with and without suspensions", "overhead of a suspension", overheads, [UNISCHED, unaware], [R_SLO, LATENCY],
            [Claim("R_slo without the SR-aware estimator", R_SLO, MORE, (unaware.label,), "above 0")],
        ),
        Grid(
            "5.9d", "Noise of the estimates", "workload", mixed, [UNISCHED, *noises, *lasting], [R_SLO, LATENCY],
            [
                Claim("R_slo with noise up to 40 %", R_SLO, MORE, [one.label for one in noises[:2]], "hardly any"),
                Claim("R_slo with noise of 60 and 80 %", R_SLO, MORE, [one.label for one in noises[2:]], "above 0"),
                Claim("R_slo with noise up to 40 % that stays", R_SLO, MORE, [one.label for one in lasting[:2]], NOT_TOLD),
                Claim("R_slo with noise of 60 and 80 % that stays", R_SLO, MORE, [one.label for one in lasting[2:]], NOT_TOLD),
            ],
        ),
    ]  # fmt: skip


def _selector(mixed: Sequence[Point], most: str) -> list[Grid]:
    ten = Variant("10 min", config=(("slo_leases", 2),))
    others = [Variant(f"{5 * leases} min", config=(("slo_leases", leases),)) for leases in (1, 4, 6, 12)]
    feasible = Variant("any feasible choice", config=(("objective", False),))
    sizes = [Point(f"x{times:g}", most, MIX2, larger=times) for times in (0.5, 1.0, 2.0)]
    consolidated = Variant("consolidated", config=(("placement", "consolidated"),))
    hostile = [Point(f"{share:.0%}", most, MIX2, hostile=share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    leases = [point for point in mixed if point.source == most]
    return [
        Grid(
            "5.10a", "Length of an SLO lease", "workload", leases, [ten, *others], [R_SLO, LATENCY],
            [Claim("R_slo of other lengths", R_SLO, MORE, [one.label for one in others], "0 and more")],
        ),
        Grid(
            "5.10b-c", "With and without the objective", "workload", mixed, [UNISCHED, feasible], [R_SLO, LATENCY],
            [
                Claim("R_slo without the objective", R_SLO, RATIO, (feasible.label,), "significantly above 1"),
                Claim("best-effort JCT without the objective", LATENCY, RATIO, (feasible.label,), "slightly below 1"),
            ],
        ),
        Grid(
            "5.10d", "Time of a cycle by size of cluster and workload", "size", sizes, [UNISCHED], [JOBS, CYCLE],
            [Claim("longest cycle", CYCLE, VALUE, ("UniSched",), "below 10")],
        ),
        Grid(
            "5.11", "Joint optimisation beside consolidation", "hostile jobs", hostile, [UNISCHED, consolidated], [R_SLO, LATENCY],
            [
                Claim("R_slo of consolidation", R_SLO, MORE, (consolidated.label,), "above 0, growing"),
                Claim("best-effort JCT of consolidation", LATENCY, RATIO, (consolidated.label,), "above 1, growing"),
            ],
        ),
    ]  # fmt: skip


def _chronus(mixed: Sequence[Point]) -> Grid:
    estimator = Variant("Chronus + Estimator", "chronus", (("iterations", "estimated"), ("resumption_aware", True), ("caution", 2.0)))
    selector = Variant(
        "Chronus + Selector", "chronus", (("placement", "joint"), ("best_effort", "joint"), ("profiler", "unified"), ("late", 0.01))
    )
    chronus = Variant("Chronus", "chronus")
    return Grid(
        "5.12", "Chronus, and what makes it UniSched", "workload", mixed, [chronus, estimator, selector, UNISCHED], [R_SLO, LATENCY],
        [
            Claim("R_slo of UniSched", R_SLO, MORE, ("UniSched",), "down to -5.2"),
            Claim("R_slo of Chronus + Estimator", R_SLO, MORE, (estimator.label,), "down to -4.2"),
            Claim("R_slo of Chronus + Selector", R_SLO, MORE, (selector.label,), "down to -1.5"),
            Claim("best-effort JCT of Chronus + Estimator", LATENCY, RATIO, (estimator.label,), "down to 0.58"),
            Claim("best-effort JCT of Chronus + Selector", LATENCY, RATIO, (selector.label,), "0.60 to 0.96"),
        ],
    )  # fmt: skip


def _front(mixed: Sequence[Point]) -> Grid:
    title = "Deadlines against best-effort latency: what waiting costs"
    return Grid("front", title, "workload", mixed, [*FRONT, *BASELINES], [R_SLO, LATENCY], [], FRONT)


# What comes of them


class Averages:
    """Means over the seeds of one grid's metrics."""

    def __init__(self, grid: Grid, scale: Scale, measured: Mapping[Case, Measured]) -> None:
        self.grid, self._scale, self._measured = grid, scale, measured

    def of(self, point: Point, variant: Variant, metric: Metric) -> float | None:
        values = [getattr(self._measured[case], metric.field) for case in cases(self.grid, point, variant, self._scale)]
        known = [value for value in values if value is not None]
        return fmean(known) * metric.scale if known else None

    def compared(self, point: Point, variant: Variant, metric: Metric, how: str, to: Variant | None = None) -> float | None:
        """With ``to`` (else the first variant) at the same point; None where there is nothing to compare, or it would be with nothing."""
        value, reference = (self.of(point, one, metric) for one in (variant, to or self.grid.variants[0]))
        if how == VALUE or value is None or reference is None:
            return value
        if how == MORE:
            return value - reference
        return value / reference if reference > 0 else None


def table(averages: Averages) -> list[dict[str, Any]]:
    """A row a point and variant."""
    grid, rows = averages.grid, []
    for point in grid.points:
        for variant in grid.variants:
            row: dict[str, Any] = {grid.along: point.label, "of": variant.label}
            for metric in grid.metrics:
                value = averages.of(point, variant, metric)
                row[f"{metric.name} {metric.unit}".rstrip()] = MISSING if value is None else value
                if len(grid.variants) > 1 and metric in (R_SLO, LATENCY):
                    times = averages.compared(point, variant, metric, RATIO)
                    row[f"{metric.name} x {grid.variants[0].label}"] = MISSING if times is None else times
            rows.append(row)
    return rows


def beside(averages: Averages) -> list[dict[str, Any]]:
    """A row a claim of the thesis: the least and the most of what was measured."""
    grid = averages.grid
    rows = []
    for claim in grid.claims:
        points = [point for point in grid.points if not claim.points or point.label in claim.points]
        variants = [variant for variant in grid.variants if variant.label in claim.variants]
        found = [averages.compared(point, variant, claim.metric, claim.how) for point in points for variant in variants]
        values = [value for value in found if value is not None]
        rows.append({
            "figure": grid.number,
            "what": claim.what,
            "as": f"{claim.how}, {claim.metric.unit}" if claim.how == VALUE and claim.metric.unit else claim.how,
            "least": min(values) if values else MISSING,
            "median": sorted(values)[len(values) // 2] if values else MISSING,
            "most": max(values) if values else MISSING,
            "thesis": claim.thesis,
        })  # fmt: skip
    return rows
