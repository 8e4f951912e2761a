"""One training of the evaluation of PerFect: what is learned, by when, and at what cost in CPU time."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from perfect_case import LR, MOMENTUM, STEPS, Case, Measured, Point
from perfect_loading import Batch, Plain, Reader, Reuse, augmented, held_out, source, to_batch
from stoker.engine.spec.model import Switch
from stoker.runners.loaders.reuse.schedules import FineTune, HighestRates, rule_peak, search_peak
from stoker.runners.loaders.reuse.switch import SwitchRule
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

_TESTS = 24  #: in a training of the usual length
_TRIAL = 0.25  #: of the second stage, that a trial of a peak takes


def network() -> nn.Module:
    """Three convolutions; some 20 000 parameters."""
    widths = (1, 12, 24, 48)
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        kernel = 3 if number else 5
        layers += [nn.Conv2d(before, after, kernel, stride=2, padding=kernel // 2, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * 16, 10))


@torch.no_grad()
def _outputs(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    model.eval()
    outputs: torch.Tensor = model(images)
    model.train()
    return outputs


def _right(model: nn.Module, batch: Batch) -> float:
    return (_outputs(model, batch.images).argmax(1) == batch.labels).float().mean().item()


def _validated(model: nn.Module, batch: Batch) -> float:
    return nn.functional.cross_entropy(_outputs(model, batch.images), batch.labels).item()


class Clock:
    """CPU seconds of this process since it was made, but for what is measured outside of the training."""

    def __init__(self) -> None:
        self._began, self._apart = time.process_time(), 0.0

    def read(self) -> float:
        return time.process_time() - self._began - self._apart

    @contextmanager
    def stopped(self) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self._apart += time.process_time() - began


class Training:
    """One training, step by step. Everything random follows from the case's seed."""

    def __init__(self, case: Case) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(case.seed)
        random.seed(case.seed)
        self.case = case
        self.tested, self.validated = held_out()
        self.reader = Reader(case)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), LR, MOMENTUM, weight_decay=case.weight_decay)
        self.schedule: LRScheduler = CosineAnnealingLR(self.optimizer, case.steps)
        self.highest = HighestRates()
        self.curve: list[Point] = []
        self.rates: list[float] = []  #: of the steps that were made
        self.clock = Clock()
        self.source = source(self.reader, case)
        self.stage = 1

    def run(self) -> Measured:
        switched, decodes, decode_cpu, search_cpu, peak = None, 0, 0.0, 0.0, None
        if isinstance(self.source, Reuse):
            self._reuse(self.source)
            switched, decodes, decode_cpu, before = len(self.rates), self.reader.decodes, self.reader.cpu, self.clock.read()
            peak = self._switch(self.source)
            search_cpu = self.clock.read() - before
        while len(self.rates) < self.case.steps:
            self._step()
        return Measured(
            curve=self.curve,
            cpu=self.clock.read(),
            decodes=self.reader.decodes,
            decode_cpu=self.reader.cpu,
            rates=self.rates,
            switched=switched,
            stage_1_decodes=decodes,
            stage_1_decode_cpu=decode_cpu,
            peak=peak,
            search_cpu=search_cpu,
        )

    def _reuse(self, source: Reuse) -> None:
        """The stage with reuse, until the rule ends it."""
        rule = SwitchRule(_switch(self.case), self.case.steps)
        while not rule.due:
            losses = self._step()
            step, epochs, fresh = len(self.rates), self.reader.decodes / self.case.images, losses[source.first_uses]
            if rule.watches_first_uses and len(fresh):
                rule.first_use(step, epochs, float(fresh.mean()), len(fresh))
            rule.stepped(step, epochs)

    def _switch(self, source: Reuse) -> float | None:
        """To the stage without reuse, for good. Returns the peak of its learning rate, None where the first schedule goes on."""
        self.stage = 2
        self.source = Plain(self.reader, source.buffer.leave())
        if self.case.moments == "reset":
            self.optimizer.state.clear()
        if self.case.peak == "none":
            return None
        highest = max(self.highest.highest)
        match self.case.peak:
            case "rule":
                peak = rule_peak(highest)
            case "search":
                peak, _ = search_peak(highest, self._trial())
            case given:
                peak = given
        self.schedule = self._fine_tune(self.case.steps - len(self.rates), peak)
        return peak

    def _fine_tune(self, steps: int, peak: float) -> FineTune:
        return FineTune(self.optimizer, steps, kind=self.case.schedule, peaks=[peak])

    def _trial(self) -> Callable[[float], float]:
        """A shortened second stage, always on the same batches and from here; gives its loss in validation."""
        steps = max(1, round((self.case.steps - len(self.rates)) * _TRIAL))
        batches = [self._batch() for _ in range(steps)]
        model, optimizer = copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())

        def trial(peak: float) -> float:
            schedule = self._fine_tune(steps, peak)
            for batch in batches:
                self._update(batch)
                schedule.step()
            loss = _validated(self.model, self.validated)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(copy.deepcopy(optimizer))  # else the moments would be those saved, and change
            return loss

        return trial

    def _step(self) -> torch.Tensor:
        """Train on a batch. Returns each sample's loss before that, (B)."""
        self.highest.saw(self.optimizer)
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        losses = self._update(self._batch())
        self.schedule.step()
        if len(self.rates) % max(1, STEPS // _TESTS) == 0 or len(self.rates) == self.case.steps:
            self._test()
        return losses

    def _batch(self) -> Batch:
        return to_batch(augmented(self.source.next(), self.case.augment, self.stage))

    def _update(self, batch: Batch) -> torch.Tensor:
        losses = nn.functional.cross_entropy(self.model(batch.images), batch.labels, reduction="none")
        self.optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return losses.detach()

    def _test(self) -> None:
        with self.clock.stopped():
            right = 100 * _right(self.model, self.tested)
        self.curve.append(Point(len(self.rates), self.reader.decodes, self.clock.read(), right))


def _switch(case: Case) -> Switch:
    return Switch() if case.last is None else Switch(on="fraction", fraction=case.last)
