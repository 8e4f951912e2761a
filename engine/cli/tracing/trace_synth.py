"""`stoker trace synth`: workloads for evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .... import __version__
from ... import format as fmt
from ...errors import UsageError
from ..command import App, Command, examples, pass_app, unless_ended
from ..numbers import Finite
from ..output import Answer, json_option, print_facts

if TYPE_CHECKING:
    from ...traces.attributes import Attributes
    from ...traces.trace import Trace

T = TypeVar("T")

#: Options that are valid only with a source, and only without one.
_OF_SOURCES = ("window", "min_duration", "max_duration", "max_gpus", "replace", "scales", "arrivals")
_OF_NOTHING = ("rate", "median", "sigma", "requests")


@click.command("synth", cls=Command)
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option("--name", required=True, help="Name of the new trace.")
@click.option("--to", type=click.Path(path_type=Path), metavar="FILE", help="Write it to a CSV file in place of storing it.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed gives the same trace.")
@click.option("--jobs", type=int, metavar="N", help="So many jobs.")
@click.option(
    "--load", type=Finite(), metavar="F", help="Jobs whose GPU-time is F times what the cluster of --nodes has while they arrive."
)
@click.option("--nodes", metavar="NODESxGPUS", help="Cluster of the load, such as 100x8; larger jobs are left out.")
@click.option(
    "--window", metavar="START..END", help="Jobs of SOURCE submitted in it: 2d..16d from its start, or 2017-09-22..2017-10-06 (UTC)."
)
@click.option("--min-duration", metavar="TIME", help="Leave out shorter jobs (default: 1s).")
@click.option("--max-duration", metavar="TIME", help="Leave out longer jobs.")
@click.option("--max-gpus", type=int, metavar="N", help="Leave out jobs that ask for more GPUs.")
@click.option("--replace", is_flag=True, help="Jobs may be drawn more than once; copies come within the same hour.")
@click.option("--scales", metavar="S,M,L", help="Draw small, medium and large jobs (to 0.5, 10, 64 GPU-hours) so often: 0.3,0.6,0.1.")
@click.option("--arrivals", type=click.Choice(["keep", "poisson"]), help="Submissions as in SOURCE, or at any moment (default: keep).")
@click.option("--rate", type=Finite(), metavar="N", help="Without SOURCE: jobs an hour, in place of --load.")
@click.option("--median", metavar="TIME", help="Without SOURCE: median of the log-normal duration (default: Philly's, 1144s).")
@click.option("--sigma", type=Finite(), help="Without SOURCE: standard deviation of its logarithm (default: Philly's, 2.21).")
@click.option(
    "--requests",
    metavar="G:W,...",
    help="Without SOURCE: GPUs and their weights, such as 1:0.7,4:0.2,8:0.1 (default: Philly's, as far as they fit).",
)
@click.option("--models", metavar="CATALOGUE", help="Assign models: dlt, vit-base, roberta-base or vicuna-7b (default: as in SOURCE).")
@click.option(
    "--models-by", type=click.Choice(["scale", "even"]), default="scale", show_default=True, help="By the job's GPU-time, or any."
)
@click.option("--mix", metavar="MIX", help="Assign deadlines: slo, mix1, mix2 or best-effort (default: as in SOURCE).")
@click.option("--shares", metavar="D=P,...", help="Shares in place of the mix's own: strict=0.5,soft=0.3,best-effort=0.2.")
@click.option("--performance", type=Finite(), metavar="P", help="Share that stops at a metric's target (default: 0.2 with a mix).")
@click.option("--elastic", type=Finite(), default=1.0, show_default=True, help="GPUs that a job can use over those that it asks for.")
@json_option
@pass_app
@examples(
    "stoker trace synth philly --name p-mix2 --window 2017-09-22..2017-10-06 --mix mix2 --models dlt",
    "stoker trace synth philly.csv --name small --jobs 240 --scales 0.3,0.6,0.1 --models vit-base --seed 7",
    "stoker trace synth philly --name busy --load 1.2 --nodes 100x8 --replace",
    "stoker trace synth --name poisson --jobs 10000 --load 0.9 --nodes 16x8 --to poisson.csv",
)
@unless_ended("no workload was made")
def synth(app: App, source: str | None, name: str, to: Path | None, force: bool, **options: Any) -> Answer:
    """Make a workload from a trace, or from nothing.

    SOURCE is a file, or the name of an imported trace. Jobs are sampled and keep their arrival pattern; models, deadlines, stopping rules
    and elastic ranges are assigned by options. The whole recipe is stored beside the trace.
    """
    from ...traces.trace_check import check_name

    _refuse_strangers(source, options)
    try:
        check_name(name)
        made = _sample(app, source, name, options) if source is not None else _from_nothing(name, options)
    except ValueError as error:
        raise UsageError(_as_option(str(error), {*options, "name"})) from None
    stored = _write(made, to, force) if to else _store(app, made)
    value = {"name": made.name, "jobs": len(made.jobs), "dropped": made.dropped, "recipe": made.recipe, **stored}
    where = f"is written to {to}" if to else "is stored"
    return Answer(value, lambda: print_facts(_facts(value)), done=f"workload {made.name} {where}")


def _as_option(message: str, options: Iterable[str]) -> str:
    from .trace_source import as_options

    return as_options(message, options).replace("add replace", "add --replace")


def _refuse_strangers(source: str | None, options: Mapping[str, Any]) -> None:
    names, why = (
        (_OF_NOTHING, "is for workloads from nothing: leave out SOURCE, or it") if source is not None else (_OF_SOURCES, "needs a SOURCE")
    )
    for name in names:
        if options[name] not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')}: {why}")


def _capacity(options: Mapping[str, Any]) -> tuple[int | None, int]:
    """GPUs of the cluster, and of its largest node."""
    from ...sim.cluster import Cluster

    if options["nodes"] is None:
        return None, 8
    cluster = Cluster.parse(options["nodes"])
    return cluster.total, max(cluster.nodes)


def _attributes(options: Mapping[str, Any]) -> Attributes:
    from ...traces.attributes import KEEP, Attributes

    gpus, per_node = _capacity(options)
    return Attributes(
        models=options["models"] or KEEP,
        models_by=options["models_by"],
        mix=options["mix"] or KEEP,
        shares=_pairs("shares", options["shares"], "=", str, "DEMAND=SHARE, such as strict=0.5"),
        performance=options["performance"],
        elastic=options["elastic"],
        gpus=gpus,
        per_node=per_node,
    )


def _sample(app: App, source: str, name: str, options: Mapping[str, Any]) -> Trace:
    from ...traces.sampling import Choice
    from ...traces.synth import sample
    from .trace_source import load_trace

    wanted = _attributes(options)
    scales = _numbers("scales", options["scales"])
    trace = load_trace(source, lambda: app.client)
    choice = Choice(
        window=window(options["window"], trace.starts_at) if options["window"] else None,
        min_duration=_duration("min_duration", options["min_duration"]) if options["min_duration"] else 1.0,
        max_duration=_duration("max_duration", options["max_duration"]) if options["max_duration"] else None,
        max_gpus=options["max_gpus"],
        jobs=options["jobs"],
        load=options["load"],
        gpus=wanted.gpus,
        replace=options["replace"],
        scales=scales,
    )
    return sample(
        trace, name, choice=choice, wanted=wanted, arrivals=options["arrivals"] or "keep", seed=options["seed"], version=__version__
    )


def _from_nothing(name: str, options: Mapping[str, Any]) -> Trace:
    from ...traces import generate
    from ...traces.synth import from_nothing

    if options["jobs"] is None:
        raise UsageError("--jobs: say how many jobs to make, or name a SOURCE to take them from")
    wanted = _attributes(options)
    shape = generate.Shape(
        jobs=options["jobs"],
        rate=options["rate"] / 3600 if options["rate"] is not None else None,
        load=options["load"],
        gpus=wanted.gpus,
        median=_duration("median", options["median"]) if options["median"] else generate.PHILLY_MEDIAN,
        sigma=options["sigma"] if options["sigma"] is not None else generate.PHILLY_SIGMA,
        requests=_pairs("requests", options["requests"], ":", int, "GPUS:WEIGHT, such as 8:0.1") or generate.philly_requests(wanted.gpus),
    )
    return from_nothing(name, shape, wanted=wanted, seed=options["seed"], version=__version__)


def window(text: str, starts_at: float | None) -> tuple[float, float]:
    """``START..END`` in seconds from a trace's start: durations, or dates (UTC) if the start is known. Either may be missing."""
    start, dots, end = text.partition("..")
    if not dots:
        raise ValueError(f"window: {text!r} is not START..END, such as 2d..16d or 2017-09-22..2017-10-06")
    return _moment(start, starts_at, 0.0), _moment(end, starts_at, float("inf"))


def _moment(text: str, starts_at: float | None, missing: float) -> float:
    from ...spec.reading import units

    text = text.strip()
    if not text:
        return missing
    if "-" not in text:
        return _duration("window", text)
    if starts_at is None:
        raise ValueError(f"window: {text!r} is a date, and the trace does not tell when it was; count from its start, such as 2d..16d")
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"window: {text!r} is neither {units.DURATION_FORMS} nor a date such as 2017-09-22 or 2017-09-22T06:00") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - starts_at


def _duration(field: str, text: str) -> float:
    from ...spec.reading import units

    try:
        return units.duration(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _numbers(field: str, text: str | None) -> tuple[float, float, float] | None:
    if text is None:
        return None
    try:
        small, medium, large = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"{field}: {text!r} is not three numbers with commas between, such as 0.3,0.6,0.1") from None
    return small, medium, large


def _pairs(field: str, text: str | None, mark: str, kind: Callable[[str], T], form: str) -> dict[T, float] | None:
    """``a=1,b=2`` as a table; ``form``: the form of each part, for errors."""
    if text is None:
        return None
    found: dict[T, float] = {}
    for part in text.split(","):
        key, between, value = part.strip().partition(mark)
        try:
            if not between:
                raise ValueError
            found[kind(key.strip())] = float(value)
        except ValueError:
            raise ValueError(f"{field}: {part.strip()!r} is not {form}") from None
    return found


def _write(made: Trace, to: Path, force: bool) -> dict[str, Any]:
    from .trace_commands import write_file

    write_file(made, to, force)
    return {"file": str(to), "existing": False}


def _store(app: App, made: Trace) -> dict[str, Any]:
    from .trace_send import progress_bar, send_trace

    with unless_ended("'stoker trace list' shows whether it was stored"), progress_bar(f"storing {made.name}") as progress:
        answer = send_trace(app.client, made, progress)
    return {"file": None, "existing": answer["existing"]}


def _facts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    recipe = value["recipe"]
    made = recipe["made"]
    yield "trace", value["name"]
    yield "file", value["file"] or ""
    yield "stored", "there already, nothing was changed" if value["existing"] else ""
    yield "jobs", f"{made['jobs']:,}, {made['gpu_hours']:,.0f} GPU-hours within {fmt.duration(made['span_seconds'])}"
    yield "load", f"{made['load']:.3f} of {recipe['attributes']['gpus']} GPUs" if made["load"] is not None else ""
    yield "left out", ", ".join(f"{count:,} {reason}" for reason, count in value["dropped"].items())
    yield "seed", str(recipe["seed"])
