"""Real pipelines that are sized while they are iterated: where the workers go, what changes that, and what is left at the end."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from pipeline_work import burns, nothing_left
from stoker.engine.errors import UsageError
from stoker.loaders import Autotuned, Batch, Decision, Map, Observation, Pipeline, Prefetch, Source, autotuned
from stoker.runners.loaders import autotuned as module
from stoker.runners.loaders.workers.faults import Ended
from stoker.runners.worker import cores
from torch.utils.data import DataLoader, Dataset
from waiting import patient

pytestmark = pytest.mark.usefixtures("roomy")

ENOUGH = 4000  #: batches after which a test gives up
LONG = patient(60.0)  #: seconds; nothing here takes so long unless it hangs


class Naps:
    """A function that waits, as a disk or a network makes it wait; its time can be changed while it is used."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, item: int) -> int:
        time.sleep(self.seconds)
        return item


class Asks:
    """A controller that wants so many workers in every stage, or what it is told to do instead."""

    name: ClassVar[str] = "asks"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def decide(self, seen: Observation) -> Decision:
        return Decision(
            tuple(self.workers if knob.unit == "workers" else value for knob, value in zip(seen.knobs, seen.values, strict=True))
        )


class Proportional(Asks):
    """Workers in proportion to what an item takes, 12 in all."""

    def decide(self, seen: Observation) -> Decision:
        takes = {stage.name: (stage.cpu + stage.wait) / stage.per_batch for stage in seen.stages}
        if any(map(math.isnan, takes.values())):
            return Decision(seen.values, "not known yet")
        shares = {name: 12 * seconds / max(sum(takes.values()), 1e-9) for name, seconds in takes.items()}
        return Decision(tuple(knob.clip(shares[knob.stage]) if knob.unit == "workers" else 1 for knob in seen.knobs), f"{shares}")


class Fails(Asks):
    def decide(self, seen: Observation) -> Decision:
        raise ZeroDivisionError("no idea")


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def naps(first: float, second: float) -> tuple[Pipeline, Naps, Naps]:
    one, two = Naps(first), Naps(second)
    return Pipeline([Source(endless), Map(one, name="one"), Map(two, name="two"), Batch(4), Prefetch(mib=1)]), one, two


def workers(tuned: Autotuned) -> dict[str, int]:
    return {knob.stage: value for knob, value in zip(tuned.pipeline.knobs, tuned.pipeline.values, strict=True) if knob.unit == "workers"}


def tuner_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "stoker-tuner"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture(autouse=True)
def the_end_of_a_pass_waits_for_the_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a step takes on a busy machine."""
    monkeypatch.setattr(module, "PATIENCE", LONG)


def test_most_workers_go_to_the_slow_stage() -> None:
    pipeline, *_ = naps(0.001, 0.010)
    with autotuned(pipeline, controller=Proportional(12), interval=0.4) as tuned:
        for number, _ in enumerate(tuned):
            found = workers(tuned)
            if found["two"] >= 8 and found["two"] > 2 * found["one"]:
                break
            assert number < ENOUGH, found
        assert tuned.history
        assert not tuned.failed


def test_a_cost_that_changes_is_followed() -> None:
    pipeline, one, two = naps(0.001, 0.010)
    with autotuned(pipeline, controller=Proportional(12), interval=0.4) as tuned:
        turned = False
        for number, _ in enumerate(tuned):
            found = workers(tuned)
            if not turned and found["two"] > 2 * found["one"]:
                turned = True
                one.seconds, two.seconds = two.seconds, one.seconds
            if turned and found["one"] > 2 * found["two"]:
                break
            assert number < ENOUGH, f"turned: {turned}, {found}"


RESIZED = """
import json, os, time
from itertools import pairwise
from stoker.loaders import Batch, Map, Pipeline, Prefetch, Source, autotuned

def restrict(cores):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)

def endless():
    while True:
        yield 1

end = time.monotonic() + 60
both = sorted(os.sched_getaffinity(0))[:2]
restrict(both)
plan = [both[:1], both]
seen = []
pipeline = Pipeline([Source(endless), Map(lambda item: sum(range(2000)) + item, name="udf"), Batch(8), Prefetch(mib=1)])
with autotuned(pipeline, interval=0.4) as tuned:
    for _ in tuned:
        history = tuned.history
        if history and (not seen or history[-1].seen.cpus != seen[-1]):
            seen.append(history[-1].seen.cpus)
            if not plan:
                break
            restrict(plan.pop(0))
        if time.monotonic() > end:
            break
    steps = [step.seen for step in tuned.history]
    # Of the cores: what others hold of the memory may change at any time, and is a resize too.
    print(json.dumps([seen, [now.resized for before, now in pairwise(steps) if now.cpus != before.cpus]]))
"""


@pytest.mark.xdist_group("clock")
@pytest.mark.skipif(cores.usable() < 2, reason="needs two cores")
@pytest.mark.slow
def test_a_machine_that_changes_its_size_is_followed() -> None:
    done = subprocess.run([sys.executable, "-c", RESIZED], capture_output=True, text=True, timeout=patient(100), check=True)
    assert json.loads(done.stdout) == [[2.0, 1.0, 2.0], [True, True]]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


def test_the_default_controller_finds_the_slow_stage() -> None:
    """How many workers it gives depends on what else the machine does; that it gives some, and to which stage, does not."""
    pipeline, *_ = naps(0.0002, 0.010)
    with autotuned(pipeline, interval=0.4) as tuned:
        for number, _ in enumerate(tuned):
            if workers(tuned)["two"] > workers(tuned)["one"]:
                break
            assert number < ENOUGH, tuned.history[-1]
        assert tuned.history[-1].wanted.why


def test_one_line_around_a_loader() -> None:
    loader = DataLoader(Numbers(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    expected = [batch.tolist() for batch in loader]
    loader.generator.manual_seed(1)
    with autotuned(loader, interval=0.4) as tuned:
        assert len(tuned) == 8
        assert [batch.tolist() for batch in tuned] == expected
        while not tuned.history:
            assert len(list(tuned)) == 8
        assert tuned.history[0].seen.batch_size == 8.0


def test_short_passes_add_up_and_what_was_found_stays() -> None:
    pipeline = Pipeline([Source(range(12)), Map(Naps(0.002), name="udf"), Batch(4), Prefetch(mib=1)])
    with autotuned(pipeline, controller=Asks(3), interval=0.2) as tuned:
        for _ in range(ENOUGH):
            assert len(list(tuned)) == 3, "fewer batches than a window shows"
            if tuned.history:
                break
        assert workers(tuned) == {"read": 3, "udf": 3, "batch": 3}
        list(tuned)
        assert workers(tuned) == {"read": 3, "udf": 3, "batch": 3}
        assert 0 < tuned.overhead < 1


def test_another_pass_ends_the_one_before() -> None:
    pipeline, *_ = naps(0.001, 0.001)
    with autotuned(pipeline, controller=Asks(2), interval=0.1) as tuned:
        first = iter(tuned)
        next(first)
        second = iter(tuned)
        next(second)
        with pytest.raises(Ended):
            list(first)
        assert tuner_threads(), "the second goes on, with its tuner"
        for number, _ in enumerate(second):
            assert number < ENOUGH
            if tuned.history:
                break


def test_only_the_knobs_that_were_named_are_turned() -> None:
    pipeline, *_ = naps(0.001, 0.001)
    with autotuned(pipeline, ["two"], controller=Asks(2), interval=0.2) as tuned:
        for number, _ in enumerate(tuned):
            assert number < ENOUGH
            if workers(tuned)["two"] == 2:
                break
        assert workers(tuned) == {"one": 1, "two": 2, "batch": 1}


def test_a_first_batch_that_takes_long_is_not_waited_for() -> None:
    def waits(item: int) -> int:
        until = time.monotonic() + LONG
        while not tuned.history and time.monotonic() < until:
            time.sleep(0.001)
        return item

    with autotuned(Pipeline([Source(endless), Map(waits, name="udf"), Batch(100)]), controller=Asks(20), interval=0.1) as tuned:
        next(iter(tuned))
        assert tuned.history[0].seen.throughput == 0
        assert workers(tuned) == {"udf": 20, "batch": 20}


def test_leaving_early_ends_the_tuner() -> None:
    pipeline, *_ = naps(0.001, 0.001)
    with autotuned(pipeline, interval=0.2) as tuned:
        for _ in tuned:
            assert tuner_threads()
            break
        assert not tuner_threads()


@pytest.mark.parametrize("controller", [Fails(1), Asks(2)], ids=["fails", "asks"])
def test_every_sample_comes_once_whatever_the_controller_does(controller: Asks, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline([Source(range(2000)), Map(Naps(0.0003), name="udf"), Batch(4), Prefetch(mib=1)])
    with autotuned(pipeline, controller=controller, interval=0.1) as tuned:
        assert [number for batch in tuned for number in batch.tolist()] == list(range(2000))
        assert ("no idea" in tuned.failed) == isinstance(controller, Fails)
    assert ("no idea" in caplog.text) == isinstance(controller, Fails)


def test_an_error_of_a_stage_is_the_training_s() -> None:
    def fails(item: int) -> int:
        if item == 100:
            raise RuntimeError("item 100 is broken")
        return item

    with autotuned(Pipeline([Source(endless), Map(fails, name="udf"), Batch(4)]), interval=0.2) as tuned:
        with pytest.raises(Exception, match="item 100 is broken"):
            list(tuned)
        assert not tuner_threads()


def test_a_stage_that_hangs_is_an_error_where_it_has_a_limit() -> None:
    gate = threading.Event()
    with autotuned(
        Pipeline([Source(range(8)), Map(lambda item: gate.wait() and item, name="udf", limit=0.3), Batch(4)]), interval=0.2
    ) as tuned:
        try:
            with pytest.raises(Exception, match="limit"):
                list(tuned)
        finally:
            gate.set()


def train_until_reached(tuned: Autotuned, controller: Hangs | Dawdles) -> None:
    """Take batches until the controller has been asked, and end the pass."""
    for number, _ in enumerate(tuned):
        assert number < ENOUGH
        if controller.reached.is_set():
            return


class Hangs(Asks):
    def __init__(self) -> None:
        super().__init__(1)
        self.gate, self.reached = threading.Event(), threading.Event()

    def decide(self, seen: Observation) -> Decision:
        self.reached.set()
        self.gate.wait()
        return Decision((9, 9))


def test_a_controller_that_hangs_does_not_keep_the_training(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    controller = Hangs()
    pipeline = Pipeline([Source(endless), Map(Naps(0.001), name="udf"), Batch(4)])
    with autotuned(pipeline, controller=controller, interval=0.1) as tuned:
        train_until_reached(tuned, controller)
        assert "has not ended" in caplog.text
        tuned.close()
        assert "since an earlier pass" in tuned.failed
        controller.gate.set()
        for thread in threading.enumerate():
            if thread.name == "stoker-tuner":
                thread.join(LONG)
        assert pipeline.values == (1, 1), "what it says when nobody waits any more is not set"


class Dawdles(Asks):
    """Its first step lasts until the gate opens."""

    def __init__(self) -> None:
        super().__init__(3)
        self.gate, self.reached, self.inside = threading.Event(), threading.Event(), 0

    def decide(self, seen: Observation) -> Decision:
        self.inside += 1
        assert self.inside == 1, "one step at a time"
        self.reached.set()
        self.gate.wait()
        self.inside -= 1
        return super().decide(seen)


def test_a_step_that_is_slow_at_the_end_of_a_pass_is_taken_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    controller = Dawdles()
    pipeline = Pipeline([Source(endless), Map(Naps(0.001), name="udf"), Batch(4)])
    with autotuned(pipeline, controller=controller, interval=0.1) as tuned:
        train_until_reached(tuned, controller)
        for number, _ in enumerate(tuned):
            assert number < ENOUGH
            if number == 20:
                assert not tuned.history
                controller.gate.set()
            if len(tuned.history) > 1:
                break
        assert not tuned.failed
        assert pipeline.values == (3, 3)


def iter_400() -> Iterator[int]:
    return iter(range(400))


def test_a_step_that_outlasts_a_whole_pass_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    controller = Dawdles()
    pipeline = Pipeline([Source(iter_400), Map(Naps(0.001), name="udf"), Batch(4)])
    with autotuned(pipeline, controller=controller, interval=0.1) as tuned:
        while not controller.reached.is_set():
            list(tuned)
        list(tuned)
        assert "since an earlier pass" in tuned.failed
        assert len(list(tuned)) == 100
        controller.gate.set()
        for thread in threading.enumerate():
            if thread.name == "stoker-tuner":
                thread.join(LONG)
        assert pipeline.values == (1, 1)


class Megabytes:
    def __call__(self, item: int) -> torch.Tensor:
        return torch.zeros(1 << 18)  # 1 MiB


@pytest.mark.xdist_group("clock")
@pytest.mark.slow
def test_processes_that_compute_settle_at_the_number_of_cores() -> None:
    pipeline = Pipeline([Source([0.02] * 100_000), Map(burns, name="udf", processes=True), Prefetch(mib=4)])
    until = time.monotonic() + patient(200)
    with autotuned(pipeline, knobs=["udf"], interval=0.5) as tuned:
        for _ in tuned:
            # Steps before the first process is there, which may take long where others compute, show nothing of what it settles at.
            steady = [step for step in tuned.history if step.given == step.seen.values and step.seen.stages[1].items]
            if time.monotonic() > until or len(steady) >= 12:
                break
    given = [step.given[1] for step in tuned.history]
    assert len(steady) >= 12
    assert max(given) <= math.ceil(tuned.history[-1].seen.cpus) + 1
    assert statistics.median(step.seen.stages[1].wait for step in steady) < 0.005, "a turn for a core that is not had is no wait"


def test_the_guard_refuses_what_does_not_fit() -> None:
    pipeline = Pipeline([Source(endless), Map(Megabytes(), name="udf"), Batch(2), Prefetch(mib=4)])
    used = pipeline.observe().memory_used
    with autotuned(pipeline, controller=Asks(500), interval=0.1, memory=used + (256 << 20)) as tuned:
        for number, _ in enumerate(tuned):
            assert number < ENOUGH
            if len(tuned.history) >= 3:
                break
        assert all(step.refused for step in tuned.history)
        assert max(max(step.given) for step in tuned.history) < 500


def test_the_state_goes_on_with_the_values_that_were_found() -> None:
    def make() -> Autotuned:
        return autotuned(Pipeline([Source(range(40)), Map(Naps(0.001), name="udf"), Batch(4)]), controller=Asks(2), interval=0.1)

    with make() as first:
        while not first.history:
            list(first)
        batches = iter(first)
        delivered = [next(batches).tolist() for _ in range(3)]
        state = json.loads(json.dumps(first.state_dict()))
    with make() as second:
        second.load_state_dict(state)
        assert second.pipeline.values == (2, 2, 2)
        assert delivered + [batch.tolist() for batch in second] == [list(range(at, at + 4)) for at in range(0, 40, 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"knobs": ["ufd"]}, r"knobs: stage 'ufd' has none \(did you mean 'udf'\?\)"),
        ({"interval": 0.0}, "interval: 0.0 is not a time above 0 s"),
        ({"interval": float("nan")}, "interval: nan is not a time above 0 s"),
        ({"controller": "rat"}, "did you mean 'rate'"),
        ({"processes": True}, "processes: give it to the stages of the Pipeline"),
        ({"memory": 0}, "memory: 0 bytes"),
    ],
    ids=["knob", "interval", "nan", "controller", "processes", "memory"],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        autotuned(Pipeline([Source(range(4)), Map(hashlib.sha256, name="udf"), Batch(4)]), **options)


def test_the_log_is_quiet_when_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), autotuned(Pipeline([Source(range(400)), Batch(4)]), interval=0.1) as tuned:
        list(tuned)
    assert caplog.text == ""
