"""The blocks ``reuse`` and ``pipeline`` of a job: their notation, and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from ..model import PipelineOptions, Retired, Reuse, Stage, Switch, Tuner
from . import fields
from .fields import Reader
from .tree import Node, shown
from .units import LARGEST_SIZE, LONGEST_DURATION, format_duration

MAX_REPEAT = 1_000
MAX_BUFFER = 10**9  #: samples
MAX_EPOCHS = 1e9
MAX_RATE = 1e6  #: of a learning rate
MAX_WORKERS = 1_024  #: of one stage
_PEAKS = ("rule", "search")


def reuse(node: Node, field: str) -> Reuse:
    if not isinstance(node.value, dict):
        if isinstance(node.value, bool) or not isinstance(node.value, int):
            raise node.wrong(field, "a number of uses, or a mapping such as {repeat: 3, switch: plateau}")
        return Reuse(repeat=node.value)
    values = fields.struct(node, field, REUSE, "a mapping")
    buffer = values.pop("shuffle_buffer", None)
    return Reuse(**values, **({} if buffer is None else buffer))


def _buffer(node: Node, field: str) -> dict[str, Any]:
    if isinstance(node.value, dict):
        batches = fields.struct(node, field, BUFFER, "a mapping")
        if not batches:
            raise node.mark.error(field, "empty; write {batches: 3}, or a number of samples")
        return {"shuffle_batches": batches["batches"]}
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.wrong(field, "a number of samples, or {batches: 3}")
    return {"shuffle_buffer": node.value}


def _switch(node: Node, field: str) -> Switch:
    if node.value == "plateau":
        return Switch()
    forms = "plateau, {epochs: 20}, {fraction: 0.25} or {plateau: {watch: accuracy, patience: 3}}"
    if not isinstance(node.value, dict):
        raise node.wrong(field, forms)
    values = fields.struct(node, field, SWITCH, forms)
    if len(values) != 1:
        raise node.mark.error(field, f"must be one of {forms}")
    if "plateau" in values:
        return Switch(**values["plateau"])
    return Switch(on="epochs" if "epochs" in values else "fraction", **values)


def _plateau(node: Node, field: str) -> dict[str, Any]:
    return fields.struct(node, field, PLATEAU, "a mapping such as {watch: accuracy, patience: 3}")


def _peak(node: Node, field: str) -> float | str:
    if isinstance(node.value, str):
        if node.value not in _PEAKS:
            raise node.wrong(field, f"a learning rate, or one of {', '.join(_PEAKS)}")
        return node.value
    return fields.number(node, field)


def pipeline(node: Node, field: str) -> PipelineOptions:
    if isinstance(node.value, dict):
        return PipelineOptions(**fields.struct(node, field, PIPELINE, "a mapping"))
    if not isinstance(node.value, str):
        raise node.wrong(field, "a tuner, such as rate, or a mapping such as {tune: rate, workers: {decode: 4}}")
    return PipelineOptions(tune=_tuner(node, field))


def _workers(node: Node, field: str) -> dict[str, int]:
    return fields.struct(node, field, WORKERS, "a mapping of stages to workers, such as {decode: 4}")


_tuner: Reader[Any] = fields.choice(get_args(Tuner), refused_later=get_args(Retired))
BUFFER: dict[str, Reader[Any]] = {"batches": fields.number}
PLATEAU: dict[str, Reader[Any]] = {
    "watch": fields.text,
    "mode": fields.choice(("max", "min")),
    "min_epochs": fields.number,
    "patience": fields.whole,
    "min_delta": fields.number,
    "fraction": fields.number,
}
SWITCH: dict[str, Reader[Any]] = {"plateau": _plateau, "epochs": fields.number, "fraction": fields.number}
REUSE: dict[str, Reader[Any]] = {
    "repeat": fields.whole,
    "shuffle_buffer": _buffer,
    "memory": fields.size,
    "augment": fields.choice(("each-use", "once")),
    "switch": _switch,
    "schedule": fields.choice(("onecycle", "cosine")),
    "peak": _peak,
}
WORKERS: dict[str, Reader[Any]] = dict.fromkeys(get_args(Stage), fields.whole)
PIPELINE: dict[str, Reader[Any]] = {
    "tune": _tuner,
    "processes": fields.flag,
    "workers": _workers,
    "memory": fields.size,
    "interval": fields.duration,
}

# ---- rules ----


def reuse_problems(given: Reuse) -> Iterator[tuple[str, str]]:
    """Field and problem. Rules on the batch and the size of a sample are checked where these are known."""
    if not 1 <= given.repeat <= MAX_REPEAT:
        yield "reuse.repeat", f"must be between 1 (no sample is used again) and {MAX_REPEAT}, not {given.repeat}"
    if given.shuffle_buffer is not None and not 1 <= given.shuffle_buffer <= MAX_BUFFER:
        yield "reuse.shuffle_buffer", f"must be between 1 and {MAX_BUFFER} samples, not {given.shuffle_buffer}"
    if not 1 <= given.shuffle_batches <= MAX_BUFFER:  # nan is refused too
        yield "reuse.shuffle_buffer.batches", f"must be at least 1, so that a batch fits into the buffer, not {given.shuffle_batches:g}"
    if not 1 <= given.memory <= LARGEST_SIZE:
        yield "reuse.memory", "must be between 1 byte and 1 PiB"
    if isinstance(given.peak, (int, float)) and not 0 < given.peak <= MAX_RATE:
        yield "reuse.peak", f"must be a learning rate above 0 and at most {MAX_RATE:g}, rule or search, not {given.peak:g}"
    yield from _switch_problems(given.switch)


def _switch_problems(given: Switch) -> Iterator[tuple[str, str]]:
    field = "reuse.switch"
    if given.on == "epochs" and given.epochs is None:
        yield field, "needs a number of epochs, such as {epochs: 20}"
    if given.epochs is not None and not 0 < given.epochs <= MAX_EPOCHS:
        yield f"{field}.epochs", f"must be above 0 and at most {MAX_EPOCHS:g}, not {given.epochs:g}"
    plateau = f"{field}.plateau"
    if not 0 < given.fraction < 1:
        yield f"{plateau if given.on == 'plateau' else field}.fraction", f"must be between 0 and 1, both excluded, not {given.fraction:g}"
    if not 0 <= given.min_epochs <= MAX_EPOCHS:
        yield f"{plateau}.min_epochs", f"must be between 0 and {MAX_EPOCHS:g}, not {given.min_epochs:g}"
    if not 1 <= given.patience <= MAX_REPEAT:
        yield f"{plateau}.patience", f"must be between 1 and {MAX_REPEAT}, not {given.patience}"
    if not 0 <= given.min_delta < 1:
        yield f"{plateau}.min_delta", f"must be 0 or more and below 1, not {given.min_delta:g}"
    if given.watch is not None and not (0 < len(given.watch) <= 100 and given.watch.isprintable()):
        yield f"{plateau}.watch", f"must be the name of a metric, such as accuracy, not {shown(given.watch)}"


def pipeline_problems(given: PipelineOptions) -> Iterator[tuple[str, str]]:
    if given.tune in get_args(Retired):
        yield "pipeline.tune", f"{given.tune} is a baseline of the benchmarks and no longer open to jobs; write rate, which is faster"
    for stage, workers in given.workers.items():
        if stage not in WORKERS:
            yield "pipeline.workers", f"there is no stage {shown(stage)}; there are {', '.join(WORKERS)}"
        elif not 1 <= workers <= MAX_WORKERS:
            yield f"pipeline.workers.{stage}", f"must be between 1 and {MAX_WORKERS}, not {workers}"
    if given.memory is not None and not 1 <= given.memory <= LARGEST_SIZE:
        yield "pipeline.memory", "must be between 1 byte and 1 PiB"
    if not 0 <= given.interval <= LONGEST_DURATION:
        yield "pipeline.interval", f"must be at least 50ms and shorter than 100 years, not {given.interval:g} s"
    elif given.interval < 0.05:
        yield "pipeline.interval", f"must be at least 50ms, so that there is something to measure, not {format_duration(given.interval)}"
