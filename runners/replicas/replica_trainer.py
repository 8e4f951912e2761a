"""The training loop of a replica: that of every recipe and entrypoint, but each step is taken together with the present members."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...engine.errors import UsageError
from ...engine.protocol import Assignment, ReplicaGroup
from ...engine.spec.model import Replicas, Stop
from ..lease.rundir import REPLICAS
from ..train import rng
from ..train.batch_feeds import SampleSource, State
from ..train.batches import Interrupted, Order
from ..train.step import PartialStep, PlainStep
from ..train.task import Task
from ..train.trainer import Trainer
from ..worker import script
from ..worker.ranks import Ranks
from .averaging import BUNDLE, Behind, ReplicaStep
from .membership import RULES, SUMS, Decision, after
from .replica_group import Finished, JoinedGroup, Settings

log = logging.getLogger(__name__)


class ReplicaTrainer(Trainer):
    """One member's run. A step has ``replicas.global_batch`` samples, of which the task's ``batch_size`` are computed at once."""

    def __init__(
        self,
        task: Task,
        stop: Stop,
        checkpoints: Path,
        ranks: Ranks,
        replicas: Replicas,
        assignment: Assignment,
        told: Callable[[], ReplicaGroup | None],
        begin_from: Path | None = None,
        work: PartialStep | None = None,
    ) -> None:
        if (word := assignment.replicas) is None:
            raise UsageError("replicas: this lease was given by a daemon that knows no replicas; bring daemon and runner to one version")
        index = next((one.index for one in word.members if one.lease == assignment.lease), 0)
        host, _, port = assignment.rendezvous.rpartition(":")
        settings = Settings(
            group=word.group, lease=assignment.lease, index=index, host=host.strip("[]"), port=int(port), batch=replicas.global_batch,
            least=replicas.min, quorum_timeout=replicas.quorum_timeout, goodbye=min(5.0, assignment.grace / 4),
            state_bytes=3 * sum(each.numel() * each.element_size() for each in task.model.parameters()),
        )  # fmt: skip
        most = min(task.batch_size, replicas.global_batch)
        if len(task.train) < replicas.global_batch:
            raise UsageError(
                f"replicas.global_batch: {replicas.global_batch} is more than the {len(task.train)} samples there are; lower it"
            )
        task = dataclasses.replace(task, batch_size=replicas.global_batch)
        task.check(1)
        order = Order(len(task.train), task.batch_size, task.seed)
        self.source = SampleSource(task.train, task.augment, task.collate, task.seed, order)
        self.history, self.takers = "", tuple[int, ...]()
        self.agreed = False  #: all members know that the target of the stopping rule is reached
        facts = _facts(task, stop)
        self.group = JoinedGroup(settings, told, script.should_stop, self._waits)
        try:
            self.share = ReplicaStep(work or PlainStep(task, ranks), self.group, task.seed, most, self._load, self._meet)
            super().__init__(task, stop, checkpoints, ranks, work=self.share, begin_from=begin_from)
        except BaseException:
            self.group.close()
            raise
        facts["optimizer"] = type(self.share.optimizer).__name__
        self.group.tell(facts=facts, step=self.step, history=self.history, last=self.takers)

    def close(self) -> None:
        super().close()
        self.group.close()

    def _run(self) -> bool:
        if script.should_stop():
            return self._leave(rng.get_state())
        if self.saved is not None:
            log.info("resumed at step %d of %d", self.step, self.total)
            self._report(checkpoint=self.saved)
        elif self.begun:
            self._save(rng.get_state())
        try:
            self.share.prepare()
            while True:
                if self._evaluation_due() and not self._evaluate():
                    return self._leave(rng.get_state())
                if self._checkpoint_due():
                    self._save(rng.get_state())
                if self._at_end():
                    if self._agree():
                        break
                    continue
                self.group.tell(reached=self.reached)
                self._take_step()
        except Interrupted:
            if self.group.gives_way:  # the last line of the log becomes the reason why its lease ended
                if self.step > (self.saved or 0):
                    self._save(rng.get_state())
                log.info("gives its GPU back: a task that has the group's checkpoint needs one first")
                return False
            return self._leave(rng.get_state())
        except Finished as end:
            return self._finished(end)
        self.watch.tell()
        return self._end()

    def _leave(self, generators: Any) -> bool:
        self.group.leave()
        return super()._leave(generators)

    def _end(self) -> bool:
        self.group.finish(self._packed())
        if self.task.finish is not None:
            self.task.finish(self.model, self.checkpoints.path)
        log.info("finished at step %d%s; weights %s", self.step, self._verdict(), digest(self.model))
        return True

    def _finished(self, end: Finished) -> bool:
        """Handle that the others have done all steps."""
        if end.state is not None:
            self._unpack(end.state)
        elif not self._at_end():
            log.info("the group has finished its training without this member, whose own state is of step %d", self.step)
            return True
        if self._evaluation_due() and not self._evaluate():
            return self._leave(rng.get_state())
        self._save(rng.get_state())
        return self._end()

    # ---- one step ----

    def _at_end(self) -> bool:
        return self.step >= self.total or self.agreed

    def _agree(self) -> bool:
        """Meet once more: the last sum may have failed for others, which then took the step again. False: it has to meet again."""
        decision = self._meet()
        if decision.lags(self.group.me.lease):
            if self._copied(decision):
                self.saved = None
            else:
                self.group.failed(decision)
            return False
        if len(decision.shares) < len(decision.members):
            return False
        self.group.settled.update(decision.leases)
        return True

    def _take_step(self) -> None:
        decision = self._meet()
        while True:
            try:
                if decision.lags(self.group.me.lease) and not self._copied(decision):
                    self.group.failed(decision)  # its source has gone
                    decision = self._meet()
                elif self._at_end():  # the copied state was the last
                    return
                elif decision.reached:
                    self.reached = self.agreed = True
                    return
                else:
                    self.share.begin(decision)
                    self._train(decision)
                    return
            except Behind as behind:
                self.group.tell(done=())
                decision = behind.decision

    def _meet(self) -> Decision:
        decision = self.group.meet()
        source = decision.source
        if source is not None and source.lease == self.group.me.lease and len(decision.shares) < len(decision.members):
            self.group.publish(self._packed())
        return decision

    def _train(self, decision: Decision) -> None:
        with self.sharing:
            self.update((), 1.0)
        decision = self.share.decision  # members may have left meanwhile
        if self.scheduler is not None:
            self.scheduler.step()
        self.history, self.takers = after(self.history, self.step, decision.leases), decision.leases
        self.step += 1
        self.group.forget()
        seconds = self.share.computed if decision.shares.get(self.group.me.lease) else self.group.me.seconds
        self.group.tell(step=self.step, history=self.history, last=self.takers, took_part=True, done=(), doubts=(), seconds=seconds)
        loss = {"loss": self.share.loss}
        samples = {"samples": float(self.step * self.task.batch_size)}
        group = {"members": float(len(decision.members)), "lost_seconds": self.group.lost, "gaps": float(self.group.gaps)}
        self._report({**loss, **samples, **group, **self.share.values})
        self._look_at_target(loss)
        self.tell_loss(self.share.loss)

    def _load(self, positions: range) -> Any:
        """The batch of some samples of the present step: the same bits whichever member loads it."""
        base = self.step * self.order.batch_size
        places = [base + position for position in positions]
        samples = []
        for place in places:
            samples.append(self.source.augmented(place, 0, self.source.decode(place, self.order.index(place))))
        return self.source.collated(samples, places)

    # ---- states ----

    def _copied(self, decision: Decision) -> bool:
        state = self.group.copy(decision)
        if state is None:
            return False
        self._unpack(state)
        log.info("copied the weights of task %d at step %d", decision.source.index if decision.source else 0, self.step)
        return True

    def _packed(self) -> bytes:
        buffer = io.BytesIO()
        torch.save(self._state([], []), buffer)
        return buffer.getvalue()

    def _unpack(self, state: bytes) -> None:
        self.take(torch.load(io.BytesIO(state), map_location=self.ranks.device, weights_only=True))
        self.group.tell(step=self.step, history=self.history, last=self.takers, done=(), doubts=())

    def take(self, state: Mapping[str, Any]) -> None:
        super().take(state)
        self.history, self.takers = state["replicas"]["history"], tuple(state["replicas"]["last"])

    def _state(self, generators: list[Any], feeds: list[State]) -> dict[str, Any]:
        return super()._state(generators, feeds) | {"replicas": {"history": self.history, "last": list(self.takers)}}

    def _waits(self, why: str) -> None:
        """Report that it may not go on, so that it does not count as hanging."""
        log.info("waits: %s", why)
        self._report({"members": 0.0} if self.group.me.took_part else None)


def word_in(run_dir: Path, assignment: Assignment) -> Callable[[], ReplicaGroup | None]:
    """A function that reads the daemon's newest word from the run directory, again only after the agent has put a new one there."""
    path = run_dir / REPLICAS
    known: tuple[object, ReplicaGroup | None] = (None, assignment.replicas)

    def told() -> ReplicaGroup | None:
        nonlocal known
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != known[0]:
                known = (seen, msgspec.json.decode(path.read_bytes(), type=ReplicaGroup))
        except (OSError, msgspec.DecodeError):  # the file is missing yet, or cut by a full disk: the last word still holds
            pass
        return known[1]

    return told


def digest(model: torch.nn.Module) -> str:
    """Digest of a model's saved state: equal for equal bits."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        _feed(found, value)
    return found.hexdigest()[:12]


def _facts(task: Task, stop: Stop) -> dict[str, str]:
    """The facts that must be the same for all members."""
    model = hashlib.sha256()
    for name, parameter in task.model.named_parameters():
        model.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}".encode())
    data = hashlib.sha256()
    with rng.preserved():
        for index in sorted({(len(task.train) - 1) * part // 15 for part in range(16)}):
            rng.seed_host(index)
            _feed(data, task.train[index])
    return {
        "model": f"{type(task.model).__name__} {model.hexdigest()[:8]}",
        "samples": f"{len(task.train)} ({data.hexdigest()[:8]})",
        "global batch": str(task.batch_size),
        "seed": str(task.seed),
        "steps": str(task.steps(stop)),
        "torch": torch.__version__.partition("+")[0],
        SUMS: f"in bundles of {BUNDLE}, by rules {RULES}",  # versions of Stoker that sum or meet differently must not be in one group
    }


def _feed(found: Any, value: Any) -> None:
    """Feed the bits of a sample that are the same in every process into a digest."""
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, Mapping):
        for key in value:
            _feed(found, key)
            _feed(found, value[key])
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(found, each)
    elif isinstance(value, str | bytes | int | float | bool | None):
        found.update(repr(value).encode())
    elif hasattr(value, "tobytes"):
        found.update(value.tobytes())
    else:
        found.update(type(value).__name__.encode())
