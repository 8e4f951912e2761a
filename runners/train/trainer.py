"""The training loop of recipes and entrypoints: data-parallel, reported, and resumable at any step.

On a CPU a run that was stopped and resumed ends with the same weights, to the last bit, as one that was not. The order of
samples is a function of the step, and the checkpoint holds model, optimizer, schedule and each rank's random generators.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...engine.errors import StokerError, UsageError, nearest
from ...engine.spec.model import PipelineOptions, Reuse, Stop
from ..share.input_groups import InputGroup
from ..share.replayed_step import ReplayedStep
from ..share.yielding import Yielding
from ..worker import script
from ..worker.ranks import Ranks, any_rank
from . import rng
from .batch_feeds import Feed, Part, ReuseFeed, SampleSource, State
from .batches import Interrupted, Order
from .checkpoint import CheckpointError, Checkpoints, weights_of
from .feed_choice import Loading
from .reusing import Reusing
from .speed import Watch
from .step import PlainStep, Step
from .task import Task
from .trials import Trials

log = logging.getLogger(__name__)

_LOG_INTERVAL = 5.0  #: seconds between log lines with the loss
_RESERVED = {"step", "total", "checkpoint", "memory"}  #: names that `script.report` uses itself


class Trainer:
    """One run of a task: from its newest checkpoint, if any, to the end or to the request to stop.

    ``parts``: number of a batch's parts, if not one for each rank; ``work``: how a batch updates the weights;
    ``begin_from``: a file, or a directory of checkpoints, whose weights it begins with while it has no checkpoint of its own;
    ``given``: weights by name to begin with in the same way, also for the task's own modules; ``until``: a step at which it evaluates,
    saves and stops, and whose checkpoints are not reported; ``silent``: nothing is reported. ``group``: the jobs that share its input.
    """

    def __init__(
        self,
        task: Task,
        stop: Stop,
        checkpoints: Path,
        ranks: Ranks,
        parts: int | None = None,
        *,
        reuse: Reuse | None = None,
        pipeline: PipelineOptions | None = None,
        work: Step | None = None,
        begin_from: Path | None = None,
        given: Mapping[str, torch.Tensor] | None = None,
        until: int | None = None,
        silent: bool = False,
        group: InputGroup | None = None,
    ) -> None:
        self.task, self.stop, self.ranks = task, stop, ranks
        self.work = work or PlainStep(task, ranks)
        parts = parts or ranks.size
        reuse = reuse if reuse is not None and reuse.repeat > 1 else None  # one use of each sample is the training without reuse
        task.check(parts)
        self.checkpoints = Checkpoints(checkpoints)
        self.total = task.steps(stop, self.work.accumulate)
        self.order = task.order or Order(len(task.train), task.batch_size, task.seed)
        source = SampleSource(task.train, task.augment, task.collate, task.seed, self.order)
        self.loading = Loading(source, self.order, ranks.rank, parts, reuse, pipeline, group)
        self.model, self.parallel = task.model, self.work.place(task.model)
        self.optimizer = self.work.optimizer
        self.sharing = Yielding(self.model.parameters(), ranks.device)
        if isinstance(self.work, ReplayedStep):
            self.work.share_by(self.sharing)
        self.scheduler = task.scheduler(self.optimizer, self.total) if task.scheduler else None
        self.reusing = Reusing(reuse, task, self.total, self.order, ranks) if reuse is not None else None
        self.step = 0
        self.evaluated = 0  #: the step at which the last evaluation was made
        self.saved: int | None = None  #: the step of the newest checkpoint
        self.begun = False  #: with the weights of another training
        self.kept: set[str] = set()  #: frozen parameters that are not as the task builds them, so that checkpoints have them
        self.last: float | None = None  #: value of the stopping rule's metric, since this attempt began
        self.reached = False  #: the target of the stopping rule
        self.until, self.silent = until, silent
        self.metrics: dict[str, Any] | None = None  #: of the last evaluation
        rng.seed_all(task.seed * 1_000_003 + ranks.rank)
        if self.reusing is not None:
            self.reusing.warn(self.optimizer, self.loading.capacity, self.loading.part, len(task.train) // parts)
        feeds = self._resume()
        if self.saved is None and given is not None:
            self.model.load_state_dict(given, strict=False)
            self.begun = True
        elif self.saved is None and begin_from is not None:
            self._begin(begin_from)
        if len(set(ranks.gather(self.step))) > 1:
            raise UsageError(f"the ranks see different checkpoints in {checkpoints}; the directory must be shared by all nodes of the job")
        self.watch = Watch(self.parallel, ranks)
        self._logged = time.monotonic()
        with rng.preserved():  # a controller of a pipeline may seed what it draws from
            self.feed = self._feed(feeds)

    def run(self) -> bool:
        """Train, and close. True: to the end; False: asked to stop, and everything is in a checkpoint."""
        try:
            return self._run()
        finally:
            self.close()

    def close(self) -> None:
        """End the loading and the computation."""
        self.feed.close()
        self.loading.close()
        self.work.close()
        self.sharing.close()

    def _run(self) -> bool:
        if any_rank(script.should_stop()):
            return self._leave(rng.get_state())
        if self.saved is not None:
            log.info("resumed at step %d of %d", self.step, self.total)
            self._report(checkpoint=self.saved if self.until is None else None)
        elif self.begun:
            self._save(rng.get_state())  # it goes on from these weights after any stop: that job's newest may be others by then
        while True:
            if self._evaluation_due() and not self._evaluate():
                return self._leave(rng.get_state())
            if self.reusing is not None and self.reusing.due and not self._done() and not self._switch():
                return self._leave(rng.get_state())
            if self._checkpoint_due():
                self._save(rng.get_state())
            if self._done():
                break
            if self.until is not None and self.step >= self.until:
                return self._look()
            before = rng.get_state()  # of a batch that may never be used
            begun = time.perf_counter()
            parts = self.parts()
            if any_rank(parts is None or script.should_stop()) or parts is None:
                return self._leave(before)
            try:
                self._train_step(parts)
            except Interrupted:  # before anything was computed
                return self._leave(before)
            self.watch.stepped(time.perf_counter() - begun)
        self.watch.tell()
        if self.task.finish is not None and self.ranks.first:
            self.task.finish(self.model, self.checkpoints.path)
        log.info("finished at step %d%s", self.step, self._verdict())
        return True

    def _look(self) -> bool:
        """At the step ``until``. False: asked to stop before it was done."""
        if (self.metrics is None or self.evaluated != self.step) and self.task.evaluate is not None and not self._evaluate():
            return self._leave(rng.get_state())
        if self.step != self.saved:
            self._save(rng.get_state())
        return True

    def _done(self) -> bool:
        return self.reached or self.step >= self.total

    # ---- one step ----

    def parts(self) -> list[Part] | None:
        """This rank's parts of the batches of the next step. None when asked to stop before they came."""
        try:
            return [self.feed.fetch() for _ in range(self.work.accumulate)]
        except Interrupted:
            return None

    def _train_step(self, parts: Sequence[Part]) -> None:
        part = parts[-1]  #: the only one where samples are reused
        weight = self.weight(part)
        values: dict[str, float] = {}
        with self.sharing:
            if self.reusing is not None and self.reusing.probes(self.step):
                values |= self.reusing.probe(self.step, self.model, part)
            if self.reusing is not None:
                self.reusing.before(self.optimizer)
            loss = self.update([part.data for part in parts], weight)
        if self.scheduler is not None:
            self.scheduler.step()
        self.step += 1
        self.feed.used()
        mean = self.ranks.sum(loss.item() * weight / self.ranks.size)
        if self.reusing is not None:
            values |= self.reusing.trained(self.step, part.fresh)
        samples = self.step * self.work.accumulate * self.task.batch_size
        if self.loading.shared is not None:
            values |= self.loading.shared.values(last=self.step >= self.total)
        self._report({"loss": mean, "samples": float(samples), **values, **self.work.values})
        self._look_at_target({"loss": mean})
        self.tell_loss(mean)

    def tell_loss(self, mean: float) -> None:
        """In a line of the log, every now and then."""
        if time.monotonic() - self._logged >= _LOG_INTERVAL:
            self._logged = time.monotonic()
            log.info("step %d of %d: loss %.4f", self.step, self.total, mean)

    def weight(self, part: Part) -> float:
        """Of this rank's part in the mean over the ranks, which average as equals; it is not 1 if a batch is divided unevenly."""
        return part.samples * self.ranks.size / self.task.batch_size

    def update(self, batches: Sequence[Any], weight: float) -> torch.Tensor:
        """Move the weights by the batches of one step, ``weight`` times their mean gradient; the mean of their losses."""
        return self.work.update(batches, weight)

    def _report(self, values: dict[str, Any] | None = None, checkpoint: int | None = None) -> None:
        if self.ranks.first and not self.silent:
            script.report(step=self.step, total=self.total, checkpoint=checkpoint, **(values or {}))

    # ---- evaluation and the stopping rule ----

    def _evaluation_due(self) -> bool:
        if self.task.evaluate is None or self.evaluated == self.step:
            return False
        return self._done() or bool(self.task.eval_every and self.step % self.task.eval_every == 0)

    def _evaluate(self) -> bool:
        """Rank 0 evaluates, the others wait. False: asked to stop before it was done; it is made again after resuming."""
        interrupted = False
        metrics: dict[str, float] = {}
        if self.ranks.first:
            assert self.task.evaluate is not None
            self.model.eval()
            try:
                with rng.preserved(), torch.no_grad(), self.sharing:  # an evaluation must not change the training
                    metrics = _metrics(self.task.evaluate(self.model))
            except Interrupted:
                interrupted = True
            else:
                if reserved := _RESERVED & set(metrics):
                    raise UsageError(f"the task's evaluate() returns {sorted(reserved)[0]!r}, which a report uses itself; rename it")
                self._look_at_target(metrics, strict=True)
                self._report(metrics)
                log.info("step %d of %d: %s", self.step, self.total, ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        if any_rank(interrupted):
            return False
        self.metrics = metrics
        if self.reusing is not None:
            self.reusing.evaluated(self.ranks.gather(metrics)[0])
        self.evaluated = self.step
        self.reached = any_rank(self.reached)
        return True

    def _look_at_target(self, metrics: Mapping[str, float], strict: bool = False) -> None:
        name, target = self.stop.metric, self.stop.target
        if name is None or target is None:
            return
        if name in metrics:
            self.last = metrics[name]
            self.reached = metrics[name] >= target if self.stop.mode == "max" else metrics[name] <= target
        elif strict and name != "loss":
            known = sorted({*metrics, "loss"})
            raise UsageError(f"stop.metric: this task reports no {name!r}{nearest(name, known)}; it reports {', '.join(known)}")

    def _verdict(self) -> str:
        if self.stop.metric is None:
            return ""
        if self.reached or self.last is None:
            return f": {self.stop.metric} {'reached' if self.reached else 'did not reach'} {self.stop.target}"
        return f": {self.stop.metric} did not reach {self.stop.target}; it ended at {self.last:.4g}"

    # ---- from reuse to no reuse ----

    def _feed(self, states: Sequence[State]) -> Feed:
        """From the beginning, from the step, or from the states of the checkpoint's ranks."""
        if self.reusing is None:
            return self.loading.from_step(self.step * self.work.accumulate)
        judged = functools.partial(self.reusing.probes_after, self.step)
        return self.loading.resumed(states, judged) if states else self.loading.reused(judged=judged)

    def _switch(self) -> bool:
        """Go on without reuse, for good. False: asked to stop before it was done; it is made again after resuming."""
        assert self.reusing is not None and isinstance(self.feed, ReuseFeed)
        positions, reusing = self.feed.rest(), self.reusing
        try:
            with self.sharing:
                reusing.choose_peak(Trials(self, positions).loss)
        except Interrupted:
            return False
        self.scheduler = reusing.schedule(self.optimizer, self.total - self.step, reusing.peaks)
        self.feed.close()
        with rng.preserved():
            self.feed = self.loading.once(positions)
        reusing.enter(self.step)
        return True

    def _resume_reuse(self, state: Mapping[str, Any]) -> None:
        if ("reuse" in state) != (self.reusing is not None):
            made = "with" if "reuse" in state else "without"
            raise UsageError(f"the checkpoint in {self.checkpoints.path} was made {made} reuse; submit it as a new job")
        if self.reusing is not None:
            self.reusing.resume(state["reuse"])
            if self.reusing.stage == 2:
                self.scheduler = self.reusing.schedule(self.optimizer, 1, self.reusing.peaks)  # its state tells the rest

    # ---- leaving and resuming ----

    def _leave(self, generators: Mapping[str, Any]) -> bool:
        self.watch.tell()
        if self.step > (self.saved or 0):
            self._save(generators)
        log.info("asked to stop: leaving at step %d of %d, all of it in a checkpoint", self.step, self.total)
        return False

    def _checkpoint_due(self) -> bool:
        if self.step == self.saved:
            return False
        return self._done() or bool(self.task.checkpoint_every and self.step and self.step % self.task.checkpoint_every == 0)

    def _save(self, generators: Mapping[str, Any]) -> None:
        """Rank 0 writes, the others wait: all go on only when it is durable."""
        every = self.ranks.gather(dict(generators))
        feeds = self.ranks.gather(self.feed.state()) if self.reusing is not None else []
        failure: CheckpointError | None = None
        if self.ranks.first:
            try:
                self.checkpoints.save(self.step, self._state(every, feeds))
            except CheckpointError as error:
                failure = error
        if any_rank(failure is not None):
            raise failure or StokerError("rank 0 could not save a checkpoint; see its message")
        self.saved = self.step
        if self.until is None:
            self._report(checkpoint=self.step)

    def _state(self, generators: list[Any], feeds: list[State]) -> dict[str, Any]:
        model = self.model.state_dict()
        if not self.task.save_frozen:
            for name in self._frozen() - self.kept:
                del model[name]
        return {
            "step": self.step,
            "evaluated": self.evaluated,
            "reached": self.reached,
            "samples": self.order.samples,
            "batch_size": self.order.batch_size,
            "seed": self.order.seed,
            "model": dict(model),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "generators": generators,
        } | ({"reuse": self.reusing.state(), "feeds": feeds} if self.reusing is not None else {})

    def _frozen(self) -> set[str]:
        return {name for name, parameter in self.model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}

    def _resume(self) -> list[State]:
        """Take up the newest checkpoint; the feeds' states of its ranks, if they have any."""
        state = self.checkpoints.load()
        if state is None:
            return []
        for name, now in (("samples", self.order.samples), ("batch_size", self.order.batch_size), ("seed", self.order.seed)):
            if state[name] != now:
                problem = f"the checkpoint in {self.checkpoints.path} was made with {name} {state[name]}, the task has {now}"
                raise UsageError(f"{problem}; submit it as a new job")
        self.take(state)
        self.saved = self.step
        feeds: list[State] = state.get("feeds", [])
        return feeds

    def take(self, state: Mapping[str, Any]) -> None:
        """Take over the saved state."""
        missing, unexpected = self.model.load_state_dict(state["model"], strict=False)
        if unexpected or not set(missing) <= (set() if self.task.save_frozen else self._frozen()):
            names = ", ".join([*missing, *unexpected][:3])
            raise UsageError(f"the checkpoint in {self.checkpoints.path} is of another model (it differs in {names}); submit a new job")
        self.kept = self._frozen() & state["model"].keys()
        self._resume_reuse(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step = int(state["step"])
        self.evaluated, self.reached = int(state["evaluated"]), bool(state["reached"])
        if len(state["generators"]) == self.ranks.size:
            rng.set_state(state["generators"][self.ranks.rank])
        else:  # another number of ranks: the same samples in the same order, other draws
            rng.seed_all(self.task.seed * 1_000_003 + self.step * 1009 + self.ranks.rank)

    def _begin(self, source: Path) -> None:
        """Take over the weights of another training by name and shape, except the task's own."""
        given, where = weights_of(source, self.ranks)
        taken = self.task.fitting(given, where)
        self.model.load_state_dict(taken, strict=False)
        self.begun, self.kept = True, self._frozen() & taken.keys()
        log.info("begins with %d tensors of %s", len(taken), where)


def _metrics(returned: Any) -> dict[str, float]:
    """The return of `evaluate`; UsageError that names an item that is no metric."""
    if not isinstance(returned, Mapping):
        raise UsageError(f"the task's evaluate() must return a mapping of names to numbers, not {type(returned).__name__}")
    metrics: dict[str, float] = {}
    for name, value in returned.items():
        if not isinstance(name, str):
            raise UsageError(f"the task's evaluate() returns a metric named {name!r}; a name is a string")
        try:
            metrics[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise UsageError(f"the task's evaluate() returns {name} = {repr(value)[:100]}, which is not one number") from None
    return metrics
