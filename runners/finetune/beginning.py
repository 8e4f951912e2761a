"""A training that may begin with another job's adapter, and keeps it if that helps: keep or undo (002 ch. 3.4.3).

The adapter of a job named by the user is taken as it is. A chosen one is tried for a few steps, and kept only if it is then no worse than
the training from the backbone at that step. That figure comes from similar jobs, or, if none is known, is computed here first. Both have
a directory of checkpoints of their own, and the job gets those of the better one and resumes as after a preemption. So an undone
beginning ends with the bits of a training from the backbone. The decision is kept in a file, in case the process is killed on the way.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from ...engine.errors import StokerError
from ...engine.protocol import MOST_WORDS, AdapterOffer
from ...engine.spec.model import Stop
from ..train.checkpoint import Checkpoints
from ..train.task import Task
from ..train.trainer import Trainer
from ..worker import script
from ..worker.ranks import Ranks

log = logging.getLogger(__name__)

TRIAL = 5  #: steps of a trial if no similar job is known
LATEST_LOOK = 25  #: most steps of a trial, even if similar jobs were measured later only: a bad choice costs no more
FILE = "beginning.json"
COLD, BEGUN = "from-backbone", "begun"  #: directories of the checkpoints of a trial, beside those of the job
_LOSS, _TRAINING_LOSS = "eval_loss", "loss"

Weights = dict[str, torch.Tensor]


class MakeTrainer(Protocol):
    def __call__(self, checkpoints: Path, **how: Any) -> Trainer: ...


@dataclass(frozen=True, slots=True)
class State:
    """The decision, as in the file.

    ``phase``: cold: it trains from the backbone first, to compare; begun: it tries the adapter. The others are final: kept, undone, taken
    (without a trial), joint (it trained with another job first), none.
    """

    phase: str
    source: int | None = None
    step: int = 0  #: of the comparison
    cold: dict[str, Any] | None = None  #: metrics of the training from the backbone at that step


def train(
    task: Task,
    make: MakeTrainer,
    offers: Sequence[AdapterOffer],
    curve: Sequence[tuple[int, float]],
    stop: Stop,
    checkpoints: Path,
    ranks: Ranks,
) -> bool:
    """Train to the end. False: asked to stop, and everything is in a checkpoint. ``make``: a trainer of the task; ``curve``: steps of a
    training from the backbone, with the metric of ``stop`` that similar jobs had there."""
    return _Beginning(task, make, list(offers), list(curve), stop, checkpoints, ranks).run()


def known(checkpoints: Path) -> State | None:
    """The decision, if any."""
    try:
        return State(**json.loads((checkpoints / FILE).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s cannot be read (%s); it begins anew", checkpoints / FILE, error)
        return None


def keep(state: State, checkpoints: Path) -> None:
    if state.phase == "none":
        (checkpoints / FILE).unlink(missing_ok=True)
        return
    checkpoints.mkdir(parents=True, exist_ok=True)
    unfinished = checkpoints / f".{FILE}.unfinished"
    unfinished.write_text(json.dumps(asdict(state)))
    unfinished.replace(checkpoints / FILE)


def tell_left(trainer: Trainer, *, begun: bool) -> None:
    """Report the adapter of a finished training for others; ``begun``: it had begun with one itself."""
    leaves = trainer.task.leaves
    if leaves is not None and trainer.ranks.first:
        told = leaves.told(trainer.model, trainer.task, trainer.checkpoints.path)
        script.report_of_adapters(adapter={**told, "steps": trainer.step, "reached": trainer.reached, "begun": begun})


@dataclass
class _Beginning:
    task: Task
    make: MakeTrainer
    offers: list[AdapterOffer]
    curve: list[tuple[int, float]]
    stop: Stop
    path: Path
    ranks: Ranks
    read: dict[int, Weights] = field(default_factory=dict)  #: adapters to begin with, by job
    start: Weights = field(default_factory=dict)  #: the trained weights, as the task built them

    def run(self) -> bool:
        state, own = self.ranks.gather(self._known())[0]
        if state is None:
            state = State("none") if own else self._choose()
        elif not own and self._is_lost(state):
            state = self._choose(again=True)
        while state.phase in ("cold", "begun"):
            found = self._from_backbone(state) if state.phase == "cold" else self._try(state)
            if found is None:
                return False
            state = found
        if state.phase in ("kept", "undone"):
            self._hand_over(BEGUN if state.phase == "kept" else COLD)
        begins = state.phase == "taken" and state.source is not None and not own
        trainer = self.make(self.path, given=self.read[state.source] if begins and state.source is not None else None)
        done = trainer.run()
        if done:
            tell_left(trainer, begun=state.phase in ("kept", "taken", "joint"))
        return done

    # With which

    def _choose(self, *, again: bool = False) -> State:
        """The first offer that can be read, and whether it is tried first. ``again``: it had begun, and that adapter is lost."""
        self._clear()  # trials of an earlier choice
        refused: dict[int, str] = {}
        damaged: dict[int, str] = {}
        for offer in self.offers:
            problem = next(filter(None, self.ranks.gather(self._problem(offer))), None)
            if problem is None:
                state = self._way(offer)
                self._keep(state)
                if offer.part:
                    self._tell("joint", offer, damaged=damaged, step=offer.steps, cost=offer.steps)
                else:
                    self._tell("begun", offer, damaged=damaged)
                log.info("begins with %s: %s", _what(offer), offer.why)
                return state
            refused[offer.job] = problem
            if offer.here and ("damaged" in problem or "no longer there" in problem):
                damaged[offer.job] = problem
            log.warning("does not begin with %s: %s", _what(offer), problem)
        self._keep(State("none"))
        if refused or again:
            words = "; ".join(f"job {job}: {problem}" for job, problem in refused.items()) or "the adapter with which it had begun is lost"
            self._tell("cold", None, why=f"trains from its backbone: {words}", damaged=damaged)
        return State("none")

    def _way(self, offer: AdapterOffer) -> State:
        if offer.named or self.ranks.size > 1 or self.task.evaluate is None:
            return State("taken", offer.job)
        # A training loss is known at each step, and no evaluation has it.
        compared = self.stop.metric not in (None, _TRAINING_LOSS) and self.curve and self.curve[0][0] <= LATEST_LOOK
        known = self.curve[0][0] if compared else 0
        if self.task.steps(self.stop) <= (known or TRIAL):
            return State("taken", offer.job)  # it is over before a comparison
        return State("begun" if known else "cold", offer.job, known or TRIAL)

    def _problem(self, offer: AdapterOffer) -> str | None:
        """Why it cannot begin with an offer; None: it can, and its weights are read."""
        leaves = self.task.leaves
        assert leaves is not None
        if self.ranks.size > 1 and not offer.named and offer.expected is None:
            return "nothing was measured of this pair, and a gang tries nothing"
        if not offer.named and offer.digest == leaves.digest:
            return "it is of the same data"
        try:
            found, about = leaves.read(self.task, Path(offer.directory, offer.part), whole=bool(offer.part))
        except StokerError as error:
            return str(error) if offer.here else f"its adapter lies in a place that this host does not read ({error})"
        if offer.same_kind and about.get("labels") != leaves.labels:
            return f"its labels are of another kind ({about.get('labels')}), and nothing was measured of this pair"
        self.read[offer.job] = found
        return None

    def _is_lost(self, state: State) -> bool:
        """Whether its chosen adapter is no longer there, while the job has no checkpoint of its own."""
        if state.phase in ("cold", "begun", "taken"):
            return self._weights(state.source) is None
        return state.phase == "joint" or (state.phase == "kept" and not self.ranks.gather(Checkpoints(self.path / BEGUN).steps())[0])

    def _weights(self, source: int | None) -> Weights | None:
        """The weights chosen before, which may be lost since."""
        offer = next((offer for offer in self.offers if offer.job == source), None)
        problem = "it is no longer offered" if offer is None else self._problem(offer)
        problem = next(filter(None, self.ranks.gather(problem)), None)
        return None if problem is not None or source is None else self.read[source]

    # Trials, of a job on one GPU

    def _from_backbone(self, state: State) -> State | None:
        """Train from the backbone up to the comparison at ``state.step``; nothing is reported yet."""
        trainer = self._trial(COLD, state, silent=True)
        if trainer is None:
            return None
        if trainer.reached or trainer.step >= trainer.total:
            script.report(step=trainer.step, total=trainer.total, **(trainer.metrics or {}))
            self._tell("cold", None, step=trainer.step, why="its training from the backbone was over before an adapter could be tried")
            return self._keep(replace(state, phase="undone"))  # no measurement of the pair
        return self._keep(replace(state, phase="begun", cold=trainer.metrics))

    def _try(self, state: State) -> State | None:
        trainer = self._trial(BEGUN, state, given=self._begun_weights(state))
        if trainer is None:
            return None
        cold = state.cold or ({self.stop.metric: self.curve[0][1]} if self.stop.metric and self.curve else {})
        worse, words = self._compared(trainer.metrics or {}, cold)
        if worse and not trainer.reached:
            if state.cold is not None:
                script.report(step=state.step, total=trainer.total, **state.cold)  # the state that it continues
            return self._decide(state, "undone", words, cost=trainer.step)
        return self._decide(state, "kept", words, cost=state.step if state.cold is not None else 0)

    def _begun_weights(self, state: State) -> Weights | None:
        """None: its trial has a checkpoint already."""
        return None if Checkpoints(self.path / BEGUN).steps() or state.source is None else self.read[state.source]

    def _trial(self, name: str, state: State, **how: Any) -> Trainer | None:
        """None: asked to stop before it was over."""
        self._reset()
        trainer = self.make(self.path / name, until=state.step, **how)
        done = trainer.run()
        self._reset()
        return trainer if done else None

    def _compared(self, metrics: Mapping[str, float], cold: Mapping[str, float]) -> tuple[bool, str]:
        """Whether it is worse than from the backbone, by the stopping metric, else by the loss; and the figures."""
        asked = [(self.stop.metric, 1.0 if self.stop.mode == "max" else -1.0)] if self.stop.metric else []
        for name, sign in [*asked, (_LOSS, -1.0)]:
            if name in metrics and name in cold and metrics[name] != cold[name]:
                worse = not (sign * metrics[name] > sign * cold[name] or math.isnan(cold[name])) or math.isnan(metrics[name])
                return worse, f"{name} {metrics[name]:.3g}, {cold[name]:.3g} from the backbone"
        return False, "as good as from the backbone"

    def _reset(self) -> None:
        """Set all trained weights back to those that the task built."""
        if not self.start:
            frozen = {name for name, value in self.task.model.named_parameters() if not value.requires_grad}
            self.start = {name: value.clone() for name, value in self.task.model.state_dict().items() if name not in frozen}
        self.task.model.load_state_dict(self.start, strict=False)

    # The decision

    def _decide(self, state: State, phase: str, words: str, cost: int) -> State:
        offer = next(offer for offer in self.offers if offer.job == state.source)
        told = f"at step {state.step}: {words}"
        log.info("%s the adapter that it began with, %s", "keeps" if phase == "kept" else "undoes", told)
        why = f"{offer.why}; kept {told}" if phase == "kept" else f"undone {told}"
        self._tell(phase, offer, step=state.step, cost=cost, why=why)
        return self._keep(replace(state, phase=phase))

    def _tell(
        self, state: str, offer: AdapterOffer | None, *, why: str = "", damaged: Mapping[int, str] | None = None, **more: Any
    ) -> None:
        leaves = self.task.leaves
        if not self.ranks.first or leaves is None:
            return
        told: dict[str, Any] = {"state": state, "labels": leaves.labels, "why": (why or (offer.why if offer else ""))[:MOST_WORDS], **more}
        if offer is not None:
            told |= {"source": offer.job, "same_data": offer.digest == leaves.digest}
            told |= {"expected": offer.expected} if offer.expected is not None else {}
        if damaged:
            told["damaged"] = {str(job): words[:MOST_WORDS] for job, words in damaged.items()}
        script.report_of_adapters(begun=told)

    def _known(self) -> tuple[State | None, bool]:
        return known(self.path), bool(Checkpoints(self.path).steps())

    def _keep(self, state: State) -> State:
        if self.ranks.first:
            keep(state, self.path)
        return state

    def _hand_over(self, name: str) -> None:
        """Make the checkpoints of a trial the job's."""
        if self.ranks.first:
            for step in Checkpoints(self.path / name).steps():
                found = Checkpoints(self.path / name).path_of(step)
                if not (self.path / found.name).exists():
                    found.rename(self.path / found.name)
            self._clear()
        self.ranks.gather(None)  # all read them from now on

    def _clear(self) -> None:
        for each in (COLD, BEGUN) if self.ranks.first else ():
            shutil.rmtree(self.path / each, ignore_errors=True)


def _what(offer: AdapterOffer) -> str:
    return f"its half of {offer.steps} steps with job {offer.job}" if offer.part else f"the adapter of job {offer.job} ({offer.data})"
