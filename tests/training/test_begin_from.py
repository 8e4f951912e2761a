"""Trainings that begin with the weights of another one: a job's checkpoints, or a file; by name and shape, and never with nothing."""

from __future__ import annotations

import shutil
import signal
import threading

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Stop
from stoker.runners.train import checkpoint, rng
from stoker.runners.train.checkpoint import Checkpoints, weights_of
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker.ranks import Ranks
from test_training import Job, assert_same
from torch import nn

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]

ALONE = Ranks(0, 1, torch.device("cpu"))
DATA = [(torch.full((4,), i / 40), torch.tensor([i % 2.0])) for i in range(40)]


class Net(nn.Module):
    def __init__(self, width=8, classes=1, frozen=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, classes)
        self.body.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.head(self.body(inputs)).mean(1, keepdim=True)


def trainer(path, *, begin_from=None, steps=6, width=8, classes=1, frozen=False, seed=0, **fields):
    torch.manual_seed(seed)
    task = Task(model=Net(width, classes, frozen), train=DATA, loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
                batch_size=4, seed=seed, **({"checkpoint_every": 2} | fields))  # fmt: skip
    with rng.preserved():
        return Trainer(task, Stop(iterations=steps), path / "checkpoints", ALONE, begin_from=begin_from)


@pytest.fixture
def first(tmp_path):
    """The checkpoints of a job that has trained, and its weights."""
    done = trainer(tmp_path / "first")
    assert done.run()
    return done.checkpoints.path, {name: value.clone() for name, value in done.model.state_dict().items()}


def test_it_begins_with_what_it_does_not_call_its_own(first, tmp_path):
    path, weights = first
    begun = trainer(tmp_path / "second", begin_from=path, classes=3, seed=5)
    state = begun.model.state_dict()
    assert_same({name: state[name] for name in state if "body" in name}, {name: weights[name] for name in weights if "body" in name})
    torch.manual_seed(5)
    assert torch.equal(begun.model.head.weight, Net(classes=3).head.weight)  # another shape, and its own anyhow
    again = trainer(tmp_path / "third", begin_from=path, own=())
    assert_same(dict(again.model.state_dict()), weights)
    begun.close(), again.close()


def test_a_checkpoint_of_its_own_wins_and_it_has_one_before_the_first_step(first, tmp_path):
    path, weights = first
    begun = trainer(tmp_path / "second", begin_from=path, seed=5, steps=4)
    kept, begun.parts = begun.parts, lambda: None  # as if it were asked to stop before the first batch
    assert not begun.run() and begun.checkpoints.steps() == [0]
    shutil.rmtree(path)  # the other job is gone
    again = trainer(tmp_path / "second", begin_from=path, seed=5, steps=4)
    assert torch.equal(again.model.body[0].weight, weights["body.0.weight"])
    assert again.run()
    assert kept is not None and again.checkpoints.steps() == [2, 4]


def test_frozen_weights_that_came_from_elsewhere_are_in_its_checkpoints(first, tmp_path):
    """Of a task that leaves out what it does not train, as that is the same whenever it is built: here it is not."""
    path, weights = first
    done = trainer(tmp_path / "second", begin_from=path, frozen=True, save_frozen=False, seed=5, steps=4)
    assert done.run()
    again = trainer(tmp_path / "second", begin_from=path, frozen=True, save_frozen=False, seed=5, steps=6)
    assert torch.equal(again.model.body[0].weight, weights["body.0.weight"])
    assert again.run()
    assert "body.0.weight" in again.checkpoints.load()["model"]
    plain = trainer(tmp_path / "plain", frozen=True, save_frozen=False)
    assert plain.run() and "body.0.weight" not in plain.checkpoints.load()["model"]


def test_a_job_that_is_done_at_once_still_leaves_a_checkpoint(tmp_path):
    done = trainer(tmp_path, steps=0)
    assert done.run() and done.checkpoints.steps() == [0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"width": 4}, r"step-0000000006 is of another model: body\.0\.weight is 8 x 4, here 4 x 4, .* and 3 more"),
        ({"own": ("body", "head")}, "holds only this task's own weights \\(body, head\\)"),
        ({"own": "head"}, r"the task's own is the text 'head'; give a list of names, such as \['head'\]"),
    ],
)
def test_weights_that_do_not_fit_are_named(first, tmp_path, given, words):
    with pytest.raises(UsageError, match=words) as error:
        trainer(tmp_path / "second", begin_from=first[0], **given)
    assert "\n" not in str(error.value)


def test_tensors_that_are_lacking_or_unknown_are_named(tmp_path):
    torch.save({"body.0.weight": torch.zeros(8, 4), "tail.weight": torch.zeros(1)}, tmp_path / "some.pt")
    words = "it lacks body.0.bias, it lacks body.1.weight, it lacks body.1.bias and 4 more"
    with pytest.raises(UsageError, match=words):
        trainer(tmp_path / "second", begin_from=tmp_path / "some.pt")
    torch.save(Net().state_dict() | {"tail.weight": torch.zeros(1)}, tmp_path / "more.pt")
    with pytest.raises(UsageError, match=r"this one has no tail\.weight"):
        trainer(tmp_path / "second", begin_from=tmp_path / "more.pt")


def test_a_file_is_as_good_be_it_weights_alone_or_of_a_checkpoint(first, tmp_path):
    path, weights = first
    torch.save(weights, tmp_path / "weights.pt")
    for file in (tmp_path / "weights.pt", path / "step-0000000006" / "state.pt"):
        begun = trainer(tmp_path / "second", begin_from=file)
        assert torch.equal(begun.model.body[0].weight, weights["body.0.weight"])
        begun.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no .*weights.pt on this host"),
        (b"", "cannot be read as weights saved by torch.save"),
        (b"no weights at all\n", "cannot be read as weights saved by torch.save"),
        (b"\x80\x04K\x01.", "holds no tensors by name|cannot be read"),
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path, content, words):
    if content is not None:
        (tmp_path / "weights.pt").write_bytes(content)
    with pytest.raises(UsageError, match=words) as error:
        trainer(tmp_path, begin_from=tmp_path / "weights.pt")
    assert "\n" not in str(error.value)


def test_a_damaged_file_of_a_checkpoint_is_noticed_and_a_damaged_newest_one_passed_over(first, tmp_path):
    path, _ = first
    newest = path / "step-0000000006" / "state.pt"
    content = bytearray(newest.read_bytes())
    content[-500] ^= 0xFF
    newest.write_bytes(content)
    with pytest.raises(UsageError, match=r"state\.pt cannot be read .* checksum of state\.pt does not match"):
        weights_of(newest, ALONE)
    assert weights_of(path, ALONE)[1].name == "step-0000000004"
    (path / "step-0000000004" / "manifest.json").unlink()
    words = r"there is no whole checkpoint in .*: that of step 6 is damaged \(.*\), that of step 4 is damaged \(No such file or directory\)"
    with pytest.raises(UsageError, match=words):
        weights_of(path, ALONE)
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        weights_of(tmp_path, ALONE)


def test_what_is_read_is_kept_by_the_job_that_writes_there(tmp_path):
    writes = Checkpoints(tmp_path)
    for step in (1, 2):
        writes.save(step, {"model": {"w": torch.tensor(float(step))}})
    with writes.held(1):
        for step in (3, 4, 5):
            writes.save(step, {"model": {"w": torch.tensor(float(step))}})
        assert writes.steps() == [1, 4, 5] and writes.read(1)["model"]["w"] == 1.0
    writes.save(6, {"model": {"w": torch.tensor(6.0)}})
    assert writes.steps() == [5, 6]


def test_whoever_reads_while_the_job_goes_on_finds_a_whole_checkpoint(tmp_path, monkeypatch):
    """Without the lock too, as on a file system that has none: what has gone is looked for anew."""
    monkeypatch.setattr(checkpoint, "_is_read", lambda directory: False)
    writes, over = Checkpoints(tmp_path), threading.Event()
    writes.save(1, {"model": {"w": torch.full((1000,), 1.0)}})

    def save():
        step = 1
        while not over.is_set():
            step += 1
            writes.save(step, {"model": {"w": torch.full((1000,), float(step))}})

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for _ in range(100):
            found, where = weights_of(tmp_path, ALONE)
            assert torch.equal(found["w"], torch.full((1000,), float(int(where.name[5:]))))
    finally:
        over.set()
        thread.join()


def test_killed_again_and_again_it_ends_as_one_that_was_not(tmp_path):
    """Real workers, real kills; meanwhile the job whose weights it began with has saved others."""
    source = Job(tmp_path / "source").start()
    assert source.end() == 0, source.log

    def second(name):
        job = Job(tmp_path / name)
        job.assigned = {"begin_from": str(tmp_path / "source" / "checkpoints")}
        return job

    whole = second("whole").start()
    assert whole.end() == 0, whole.log
    assert "begins with" in whole.log and next(record.checkpoint for record in whole.records) == 0
    killed = second("killed")
    killed.start(PAUSE="step:2").when("in-step-0").signal(signal.SIGKILL).end()
    shutil.rmtree(tmp_path / "source" / "checkpoints")
    killed.start(PAUSE="step:6").when("in-step-0").signal(signal.SIGKILL).end()
    assert killed.start().end() == 0, killed.log
    assert killed.losses() == whole.losses()
    assert_same(killed.state, whole.state)


def test_a_gang_begins_alike_on_each_rank(tmp_path):
    source = Job(tmp_path / "source").start()
    assert source.end() == 0, source.log
    gang = Job(tmp_path / "gang")
    gang.assigned = {"begin_from": str(tmp_path / "source" / "checkpoints")}
    assert gang.start(2).end() == 0, gang.log
    nowhere = Job(tmp_path / "nowhere")
    nowhere.assigned = {"begin_from": str(tmp_path / "gone")}
    assert nowhere.start(2).end() == 2
    assert nowhere.log.count(f"weights: there is no {tmp_path}/gone on this host") == 2
