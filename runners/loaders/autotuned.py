"""A pipeline that sizes itself while the training takes batches from it: InTune's listing 1 (003 ch. 4.4) as one line of a script."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, SupportsIndex

from torch.utils.data import DataLoader, Dataset

from ...engine.errors import UsageError, nearest
from .pipeline import Pipeline
from .prepared import Within, base_of, check_sharded
from .readings import machine
from .readings import step_telemetry as telemetry
from .staged import staged
from .tuner import Report, Step, Tuner
from .tuning import known_controllers as registry
from .tuning.controller import Controller, Knob
from .tuning.guard import Guard
from .workers.leaving import at_exit

log = logging.getLogger("stoker.loaders")

POLL = 0.5  #: most seconds between two checks for a change of the machine
LEAST_BATCHES = 8  #: of a window, unless it is a whole interval: with fewer, chance outweighs the pipeline
PATIENCE = 1.0  #: seconds that the end of a pass waits for a step under way; then the step continues beside the next pass


def autotuned(
    pipeline: Pipeline | DataLoader[Any] | Dataset[Any],
    knobs: Sequence[Knob | str] | None = None,
    *,
    controller: str | Controller = "rate",
    interval: float = 2.0,
    memory: int | None = None,
    report: Report | None = None,
    processes: bool | None = None,
    limit: float | None = None,
) -> Autotuned:
    """Iterable of the pipeline's batches; a controller sets the workers and buffers while it is iterated.

        for batch in autotuned(DataLoader(dataset, batch_size=64, shuffle=True)):
            train(batch)

    pipeline: a Pipeline, or a DataLoader or Dataset, which `staged` cuts into stages.
    knobs: those that the controller may turn, as ``pipeline["udf"].knob`` or names of stages; None: all.
    controller: a name of `tuning.known_controllers`, or a Controller.
    interval: most seconds between two steps, reached when nothing changes; the first steps come after an eighth of it.
    memory: bytes that this process and its workers may use, model included; None: all of the machine or its cgroup. The guard
        keeps below it, whatever the controller wants. If not even one worker a stage and the smallest buffers fit, they are used
        anyway, with a warning.
    report: called with each step; None: the job's table ``pipelines``, nothing outside a job.
    processes, limit: of a DataLoader: see `staged`.

    Raises UsageError for an impossible knob, controller, interval or loader.
    """
    loader, prepared = None, None
    if not isinstance(pipeline, Pipeline):
        if (base := base_of(pipeline)) is not None:
            prepared, pipeline = pipeline, base
        given, pipeline = pipeline, staged(pipeline, processes=processes, limit=limit)
        loader = given if isinstance(given, DataLoader) else DataLoader(given, batch_size=None)
    elif processes is not None or limit is not None:
        option = "limit" if processes is None else "processes"
        raise UsageError(f"{option}: give it to the stages of the Pipeline: Map(function, {option}={limit or processes})")
    if not interval > 0:
        raise UsageError(f"interval: {interval} is not a time above 0 s; leave it out for 2 s")
    if not isinstance(memory, SupportsIndex | None):
        raise UsageError(f"memory: {memory!r} is not a whole number of bytes; write 4 << 30 for 4 GiB")
    if memory is not None and memory <= 0:
        raise UsageError(f"memory: {memory} bytes leave no room for anything; leave it out for all of the machine's")
    if isinstance(controller, str):
        controller = registry.create(controller)
    free = _chosen(pipeline.knobs, knobs)
    report = report or partial(telemetry.report, name=pipeline.name)
    guard = Guard(memory=memory)
    tuner = Tuner(pipeline, controller, guard, free=free, interval=interval, report=report)
    return Autotuned(pipeline, tuner, loader=loader, prepared=prepared)


def _chosen(there: tuple[Knob, ...], wanted: Sequence[Knob | str] | None) -> tuple[Knob, ...]:
    if wanted is None:
        return there
    stages = {knob.stage for knob in there}
    names = [knob if isinstance(knob, str) else knob.stage for knob in wanted]
    for name in names:
        if name not in stages:
            raise UsageError(f"knobs: stage {name!r} has none{nearest(name, stages)}; there are {', '.join(sorted(stages))}")
    return tuple(knob for knob in there if knob.stage in names)


class Autotuned:
    """A pipeline with its tuner. Iterate it as often as you like: the tuner keeps its state. Close it, or use it in a ``with``.

    Made of a DataLoader, it has all its attributes, such as ``dataset``, ``batch_size``, ``sampler`` and ``batch_sampler``.

    Args:
        loader: the DataLoader that the pipeline was made of.
        prepared: accelerate's wrapper of it, which iterates it, counts its batches and moves them to the device.
    """

    def __init__(self, pipeline: Pipeline, tuner: Tuner, *, loader: DataLoader[Any] | None = None, prepared: Any = None) -> None:
        self.pipeline = pipeline
        self._loader, self._prepared = loader, prepared
        if prepared is not None and loader is not None:
            prepared.base_dataloader = Within(loader, self._begun)
        self._tuner = tuner
        self._watch: Watch | None = None
        self._late: Watch | None = None  #: of an earlier pass, whose last step has not ended
        self._cpu = self._wall = 0.0

    @property
    def history(self) -> list[Step]:
        """The last 4096 steps: (observation, decision, values given, refusal)."""
        return list(self._tuner.history)

    @property
    def failed(self) -> str:
        """The controller's failure, since when the values have stayed; empty: none."""
        return self._tuner.failed

    @property
    def overhead(self) -> float:
        """CPU time of the tuner and its meters, as a share of the time of all ended passes: 0.01 is 1 % of a core."""
        return (self._cpu + self.pipeline.watching) / self._wall if self._wall else 0.0

    def __len__(self) -> int:
        return len(self.pipeline)

    def __bool__(self) -> bool:
        return True  # not the length, which a pipeline may not have

    def __getattr__(self, name: str) -> Any:
        loader = self.__dict__.get("_loader")
        if loader is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(loader, name)

    def __iter__(self) -> Iterator[Any]:
        if self._prepared is not None:
            return iter(self._prepared)
        if self._loader is not None:
            check_sharded(self._loader)
        return self._begun()

    def _begun(self) -> Iterator[Any]:
        self._end(self._watch)
        if self._late is None or not self._late.busy:
            self._tuner.begin()
        batches = iter(self.pipeline)  # now and not at the first batch: samplers draw their seed here, as those of a DataLoader do
        return self._pass(batches)

    def _pass(self, batches: Iterator[Any]) -> Iterator[Any]:
        watch = self._watch = Watch(self._tuner, self._late)
        watch.start()
        try:
            for batch in batches:
                watch.delivered += 1
                watch.wanted = False
                yield batch
                watch.wanted = True
        finally:
            self._end(watch)

    def _end(self, watch: Watch | None, *, closing: bool = False) -> None:
        if watch is not None and watch.end(closing=closing):
            self._cpu += watch.cpu
            self._wall += watch.wall
            self._late = watch.late

    def state_dict(self) -> dict[str, Any]:
        """The place in the pass, and the values found so far."""
        return {"pipeline": self.pipeline.state_dict(), "values": list(self.pipeline.values), "processes": self.pipeline.processes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there; values of a pipeline with other knobs are left out."""
        self.pipeline.load_state_dict(state["pipeline"])
        if len(state["values"]) == len(self.pipeline.knobs):
            values = tuple(knob.clip(value) for knob, value in zip(self.pipeline.knobs, state["values"], strict=True))
            self._tuner.resume(values, [stage for stage, moved in state.get("processes", {}).items() if moved])

    def close(self) -> None:
        """End the tuner, every worker, and the pass."""
        self._end(self._watch, closing=True)
        if self._late is not None:
            self._late.give_up(closing=True)
        self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Watch:
    """The thread that steps a tuner during one pass."""

    def __init__(self, tuner: Tuner, late: Watch | None = None) -> None:
        self.late = late  #: an earlier one, still at a step, for which this one waits; the next one waits for it after this has ended
        self.delivered = 0  #: batches of this pass that the training has been given
        self.wanted = True  #: the training waits for one
        self.cpu = self.wall = 0.0  #: seconds, once it has ended
        self._tuner = tuner
        self._leave, self._ending = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stoker-tuner", daemon=True)

    def start(self) -> None:
        at_exit(self.end)
        self._thread.start()

    def end(self, *, closing: bool = False) -> bool:
        """Whether this call ended it. ``closing``: the training is over, so an unfinished step gets no warning."""
        with self._ending:
            if self._leave.is_set():
                return False
            self._leave.set()
        self._thread.join(PATIENCE)  # a controller that hangs must not keep the training
        if self.late is not None and self.late.busy:
            self.late.give_up(closing=closing)  # it had a whole pass
        elif self._thread.is_alive():
            log.log(
                logging.DEBUG if closing else logging.WARNING,
                "a step of the tuner has not ended in %g s; the training goes on, and the next step comes after it",
                PATIENCE,
            )
            self.late = self
        else:
            self.late = None
        return True

    @property
    def busy(self) -> bool:
        """Its thread has not ended."""
        return self._thread.is_alive()

    def give_up(self, *, closing: bool = False) -> None:
        """Wait no more for its unfinished step, and let it change nothing."""
        if self.busy and not self._tuner.failed:
            self._tuner.give_up("a step has not ended since an earlier pass")
            log.log(logging.DEBUG if closing else logging.WARNING, "%s; the training goes on without it", self._tuner.failed)

    def _late_ended(self) -> bool:
        """Wait for the step of an earlier pass; False: this pass has ended first."""
        late = self.late
        while late is not None and late.busy and not self._tuner.failed:
            if self._leave.wait(min(POLL, self._tuner.interval)):
                return False
        return True

    def _run(self) -> None:
        began = time.monotonic()
        try:
            if not self._late_ended():
                return
            while self._due():
                if transition := self._tuner.step():
                    self._leave.wait(transition)
                    self._tuner.discard()
        except Exception:
            log.exception("the tuner has ended; the pipeline keeps the values that it has")
        self.cpu, self.wall = time.thread_time(), time.monotonic() - began

    def _due(self) -> bool:
        """Wait until a step is worth taking; False: the pass has ended, and the next one continues the wait.

        A window without a delivery shows a pipeline that is too slow if the training waits for a batch; it shows nothing while the
        training does something else, such as a validation.
        """
        tuner, size = self._tuner, machine_size()
        began, before = time.monotonic() - tuner.waited, self.delivered - tuner.batches
        while True:
            elapsed, seen = time.monotonic() - began, self.delivered - before
            enough = (elapsed >= tuner.gap and seen >= LEAST_BATCHES) or (elapsed >= tuner.interval and (seen or self.wanted))
            if enough or machine_size() != size:
                tuner.waited, tuner.batches = 0.0, 0
                return True
            if self._leave.wait(min(POLL, tuner.gap / 2)):
                tuner.waited, tuner.batches = elapsed, seen
                return False


def machine_size() -> tuple[float, int]:
    """Cores and bytes that this process may use."""
    return machine.cpus(), machine.memory_total()
