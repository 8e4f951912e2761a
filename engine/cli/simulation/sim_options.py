"""Options of simulations: costs, guards and errors of estimates. One table makes them and their help.

A test compares the table with the fields of `engine.sim.run_options`; the table itself imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...errors import UsageError
from ..numbers import FiniteRange

if TYPE_CHECKING:
    from ...sim.run_options import Options

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Seconds, or a duration such as 10m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from ...spec.reading import units

        try:
            return units.duration(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


DURATION = Duration()
FACTOR = FiniteRange(1.0, 1e6)
NOT_NEGATIVE = FiniteRange(0.0, 1e6)
LOGARITHM = FiniteRange(-10.0, 10.0)  #: of a factor: 10 is 22 000 times too long, and no such factor overflows
SPREAD = FiniteRange(0.0, 10.0)  #: of such logarithms, or of factors


@dataclass(frozen=True, slots=True)
class Setting:
    """An option and the field of `Options`, or of one of its parts, that it sets."""

    flag: str
    part: str  #: costs, limits or errors; empty: a field of Options itself
    field: str
    help: str
    type: Any = DURATION  #: click's

    @property
    def parameter(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


SETTINGS: tuple[Setting, ...] = (
    Setting("--interval", "", "interval", "Time between rounds of the policy (default: at every event, or its own)."),
    Setting("--until", "", "until", "Stop at this simulated time (default: when all jobs have ended)."),
    Setting(
        "--places",
        "",
        "places",
        "Where checkpoints lie (node: a job resumes on its node only; default: shared).",
        click.Choice(["shared", "node"]),
    ),
    Setting("--suspend", "costs", "suspend", "From the word to stop until the GPUs are free."),
    Setting("--resume", "costs", "resume", "From a lease's start until training goes on, after a suspension."),
    Setting("--resume-per-gpu", "costs", "resume_per_gpu", "More of that for each GPU beyond the first."),
    Setting("--cold-start", "costs", "cold_start", "Before the first training on GPUs that are cold for the model."),
    Setting("--warm-start", "costs", "warm_start", "Before the first training on GPUs that are warm for it."),
    Setting("--handover", "costs", "handover", "Before the first training in the process of a job that has just ended there, at most."),
    Setting("--checkpoint-interval", "costs", "checkpoint_interval", "A failure loses the work since the last checkpoint (0: nothing)."),
    Setting("--lost-on-suspend", "costs", "lost_on_suspend", "Work lost when a job is suspended."),
    Setting(
        "--profiling", "costs", "profiling", "Each job is profiled for so long first: by the policy itself, or before it sees the job."
    ),
    Setting(
        "--profiler-gpus", "costs", "profiler_gpus", "GPUs besides, for jobs no policy profiles (0: needs none).", click.IntRange(min=0)
    ),
    Setting("--spread-slowdown", "costs", "spread_slowdown", "Times longer on more nodes than needed, without a profile.", FACTOR),
    Setting("--packing-slowdown", "costs", "packing_slowdown", "Times longer on shared GPUs (1: none; default: as profiles tell).", FACTOR),
    Setting("--turn", "costs", "turn", "From a step's end until the next job has its turn, where jobs take turns."),
    Setting("--pause", "costs", "pause", "From when a job of a higher priority wants its turn until it has it."),
    Setting("--failures-per-gpu-hour", "costs", "failures_per_gpu_hour", "Mean failures of a running job per GPU-hour.", NOT_NEGATIVE),
    Setting("--commit-delay", "costs", "commit", "From a decision until it is in force (live some 10 to 40 ms)."),
    Setting("--min-run-time", "limits", "min_run_time", "Guard: a lease is not taken back sooner."),
    Setting("--max-preemptions", "limits", "max_preemptions", "Guard: preemptions of one job at most.", click.IntRange(min=0)),
    Setting("--cooldown", "limits", "cooldown", "Guard: a preempted job may not soon displace the one it gave way to."),
    Setting("--estimate-error", "errors", "duration", "Standard deviation of the logarithm of estimates over truth.", SPREAD),
    Setting("--estimate-bias", "errors", "bias", "Mean of that logarithm; 0.1 is about 10 % too long.", LOGARITHM),
    Setting("--unknown-share", "errors", "unknown", "Share of the jobs of whose duration nothing is known.", FiniteRange(0.0, 1.0)),
    Setting("--estimate-noise", "errors", "gaussian", "Standard deviation of normal noise on estimates, over the truth.", SPREAD),
    Setting("--estimate-corrected", "errors", "corrected", "Estimates are right for jobs that have run so long (default: never)."),
    Setting(
        "--iterations-known", "errors", "iterations", "Progress at which it is known when a metric stops a job (2: never).", NOT_NEGATIVE
    ),
)


def sim_options(command: F, *, until: bool) -> F:
    """Decorator: an option for each of the table, with ``--until`` if wanted; those not given are None."""
    for setting in reversed([setting for setting in SETTINGS if until or setting.field != "until"]):
        metavar = "DURATION" if setting.type is DURATION else None
        command = click.option(setting.flag, setting.parameter, type=setting.type, help=setting.help, metavar=metavar)(command)
    return command


def make_options(costs: str, values: Mapping[str, Any]) -> Options:
    """Options of a simulation from a preset of costs and the given options."""
    import dataclasses

    from ...sim.run_options import PRESETS, Errors, Options

    given: dict[str, dict[str, Any]] = {part: {} for part in ("", "costs", "limits", "errors")}
    for setting in SETTINGS:
        if (value := values.get(setting.parameter)) is not None:
            given[setting.part][setting.field] = value
    if given[""].get("interval") == 0:
        raise UsageError("--interval: must be longer than 0; leave it out to ask the policy at every event")
    base = Options()
    return dataclasses.replace(
        base,
        costs=dataclasses.replace(PRESETS[costs], **given["costs"]),
        limits=dataclasses.replace(base.limits, **given["limits"]) if given["limits"] else base.limits,
        errors=Errors(**given["errors"]),
        **given[""],
    )
