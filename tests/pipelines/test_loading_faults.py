"""What a job says when its loading cannot work, fails or hangs: which sample, in which stage, and before it costs hours."""

import logging
import re
import sys
import threading
import time
import types

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import PipelineOptions, Reuse, Stop, Switch
from stoker.runners.loaders.stages import Working
from stoker.runners.loaders.workers.worker_processes import WorkerProcess
from stoker.runners.train import batches, piped, rng
from stoker.runners.train.batch_feeds import SampleSource
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks
from waiting import patient

ALONE = Ranks(0, 1, torch.device("cpu"))
REUSE = Reuse(repeat=2, switch=Switch(on="fraction", fraction=0.5))
BLOCKS = {
    "plain": {},
    "reuse": {"reuse": REUSE},
    "threads": {"pipeline": PipelineOptions(tune="fixed")},
    "both": {"reuse": REUSE, "pipeline": PipelineOptions(tune="fixed")},
}


class Numbers:
    """Samples that are their index; what is in ``stuck`` comes when it is released."""

    def __init__(self, stuck=(), broken=()):
        self.stuck, self.broken = stuck, broken
        self.begun, self.released = threading.Event(), threading.Event()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError("corrupt record")
        if index in self.stuck:
            self.begun.set()
            assert self.released.wait(patient(60))
        return torch.tensor([float(index)])


class Slow:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(30)


class Broken:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        raise ValueError(f"corrupt record {index}")


def task(data, **more):
    model = torch.nn.Linear(1, 1)
    return Task(model=model, train=data, loss=lambda model, batch: model(batch).mean(), batch_size=4, checkpoint_every=None, **more)


def trained(made, folder, blocks):
    with rng.preserved():
        return Trainer(made, Stop(iterations=8), folder / "job", ALONE, **blocks).run()


@pytest.mark.parametrize("blocks", [{}, {"reuse": REUSE}], ids=["alone", "reuse"])
@pytest.mark.parametrize("part", ["augment", "train"])
def test_what_cannot_be_sent_is_refused_before_the_first_step(tmp_path, monkeypatch, blocks, part):
    class Local(Numbers):
        pass

    reported = []
    monkeypatch.setattr(script, "report", lambda **values: reported.append(values))
    data, augment = {"train": (Local(), None), "augment": ([torch.ones(1)] * 12, lambda sample: sample)}[part]
    with pytest.raises(UsageError, match=rf"^pipeline\.processes: the task's {part} cannot be sent .*top level of a module") as caught:
        trained(task(data, augment=augment), tmp_path, {"pipeline": PipelineOptions(processes=True), **blocks})
    assert reported == [] and "\n" not in str(caught.value)


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_an_error_of_the_data_set_names_the_sample(tmp_path, blocks, capsys):
    with pytest.raises(ValueError, match="corrupt record") as caught:
        trained(task(Numbers(broken=(7,))), tmp_path, blocks)
    worker._tell_place(caught.value)
    said = capsys.readouterr().err
    assert said.startswith("stoker: ValueError: corrupt record (at train[7]") and said.endswith(")\n") and said.count("\n") == 1


@pytest.mark.parametrize("processes", [True, None], ids=["processes", "either"])
def test_samples_for_a_buffer_are_apart_and_those_of_a_batch_together(monkeypatch, processes):
    monkeypatch.setattr(piped.LoadingPlan, "_run", lambda plan, stages, samples: stages)
    made = SampleSource(Numbers(), doubtful, torch.utils.data.default_collate, 0, order=None)
    plan = piped.LoadingPlan(made, PipelineOptions(processes=processes), False, augments=True, collates=False)
    for stages, apart in ((plan.samples(None, 4), True), (plan.redrawn(BATCHES, 4, list, []), True), (plan.batches(BATCHES), False)):
        working = [stage for stage in stages if isinstance(stage, Working)]
        assert len(working) == (1 if processes else 2)
        assert all(stage.apart is apart for stage in working)


BATCHES = types.SimpleNamespace(part=4)


def doubtful(sample):
    if sample == 7:
        raise ValueError("no face found")
    return sample * 2


def ragged(sample):
    return torch.zeros(int(sample) + 1)


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize(
    ("augment", "said"),
    [
        (doubtful, r"ValueError: no face found \(augmenting train\[7\]"),
        (ragged, r"RuntimeError: stack expects .* \(collating train\[\d+(, \d+){3}\]"),
    ],
    ids=["raises", "ragged"],
)
def test_an_error_in_making_a_batch_names_its_samples(tmp_path, blocks, augment, said, capsys):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        trained(task(Numbers(), augment=augment), tmp_path, blocks)
    worker._tell_place(caught.value)
    line = capsys.readouterr().err
    assert re.match(f"stoker: {said}.*\\)\n$", line)


def test_of_an_augmentation_that_hangs_behind_the_buffer_the_sample_is_named(tmp_path, monkeypatch, caplog):
    begun, released = threading.Event(), threading.Event()

    def stuck(sample):
        if sample == 7 and threading.current_thread().name.startswith("augment"):
            begun.set()
            assert released.wait(patient(60))
        return sample * 2

    monkeypatch.setattr(batches, "_OVERDUE", 0.0)
    monkeypatch.setattr(script, "should_stop", begun.is_set)
    try:
        with caplog.at_level(logging.INFO):
            assert not trained(task(Numbers(), augment=stuck), tmp_path, BLOCKS["both"])
    finally:
        released.set()
    (said,) = [record.getMessage() for record in caplog.records if "has not come" in record.getMessage()]
    assert "augment-0 is augmenting train[7]" in said.splitlines()[0]


def test_an_error_in_a_worker_process_is_told_once(tmp_path, capsys):
    with pytest.raises(ValueError, match="corrupt record") as caught:
        trained(task(Broken()), tmp_path, {"pipeline": PipelineOptions(processes=True)})
    worker._tell_place(caught.value)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "(at train[" in said and "in stage 'decode'" in said and "Traceback" not in said


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_a_batch_that_does_not_come_is_looked_into_when_the_job_is_asked_to_stop(tmp_path, monkeypatch, caplog, blocks):
    data = Numbers(stuck=range(12))
    made = task(data)
    monkeypatch.setattr(batches, "_OVERDUE", 0.0)
    monkeypatch.setattr(script, "should_stop", data.begun.is_set)
    monkeypatch.setattr(piped.Draws, "of", lambda *_: piped.Draws())  # which looks at some samples before it begins
    try:
        with caplog.at_level(logging.INFO):
            trained(made, tmp_path, blocks)
    finally:
        data.released.set()
    (said,) = [record.getMessage() for record in caplog.records if "has not come" in record.getMessage()]
    first, *stacks = said.splitlines()
    assert "at train[" in first
    assert any("self.released.wait(patient(60))" in line for line in stacks)
    assert "thread stoker-" not in said


def test_of_a_worker_process_that_hangs_the_samples_and_the_process_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(batches, "_OVERDUE", 0.0)
    sent = threading.Event()
    answer = WorkerProcess._answer

    def awaited(self, **more):
        if sys._getframe(1).f_code is WorkerProcess.call.__code__:
            sent.set()
        return answer(self, **more)

    monkeypatch.setattr(WorkerProcess, "_answer", awaited)
    monkeypatch.setattr(script, "should_stop", sent.is_set)
    with caplog.at_level(logging.INFO):
        trained(task(Slow()), tmp_path, {"pipeline": PipelineOptions(tune="fixed", processes=True)})
    (said,) = [record.getMessage() for record in caplog.records if "has not come" in record.getMessage()]
    assert "decode-0 is waiting for worker process " in said.splitlines()[0] and "train[" in said.splitlines()[0]
