"""Two tasks of one backbone train their first steps together: what they share, what each goes on from, who is stopped on the way."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from stoker.engine.errors import Conflict
from stoker.engine.protocol import AdapterOffer
from stoker.engine.spec.model import Stop
from stoker.runners.finetune import beginning, joint_phase
from stoker.runners.finetune.joint_task import AnnealedOrder, Together, joint, share_of_first
from stoker.runners.train.checkpoint import Checkpoints
from stoker.runners.train.step import PlainStep
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from tiny_models import ALONE, build, same

pytestmark = [pytest.mark.xdist_group("tiny models"), pytest.mark.filterwarnings("ignore::UserWarning:peft.*")]

STEPS = 8
STOP = Stop(iterations=STEPS)


@pytest.fixture
def task(model_of, tmp_path):
    """Of notes whose labels follow from a word."""

    def make(name, classes=("no", "yes"), rows=40, petl="lora", **params):
        path = tmp_path / f"{name}.jsonl"
        words = ["aa", *(f"z{number}" for number in range(1, len(classes)))]
        lines = [{"text": f"{name} {n} {words[n % len(classes)]}", "label": classes[n % len(classes)]} for n in range(rows)]
        path.write_text("\n".join(map(json.dumps, lines)))
        return build("text-classifier", model_of("bert"), data=str(path), petl=petl, **{"lr": 2e-2, "eval_limit": 8, **params})

    return make


def trains(task, folder, other=None, offers=(), ranks=ALONE, stop=STOP, work=lambda _: None):
    """As a worker does: the phase with ``other``, if any, then the rest. Answers whether it is over."""
    if other is not None and not joint_phase.train_together(task, 2, other, work, stop, folder, ranks):
        return False
    make = partial(Trainer, task, stop, ranks=ALONE)
    return beginning.train(task, lambda checkpoints, **how: make(checkpoints=checkpoints, **how), offers, [], stop, folder, ALONE)


def begun(told):
    return [(one["begun"]["state"], one["begun"]["source"], one["begun"]["step"]) for one in told if "begun" in one]


@pytest.mark.parametrize(("first", "second"), [(30, 10), (7, 70), (5, 5)])
def test_shares_go_from_those_of_the_data_sets_to_nearly_equal_ones(first, second):
    steps, size = 20, 8
    order = AnnealedOrder(first, second, size, seed=1, steps=steps)
    assert share_of_first(first, second, 0, steps) == pytest.approx(first / (first + second))
    assert share_of_first(first, second, steps - 1, steps) == pytest.approx(first**0.2 / (first**0.2 + second**0.2))
    wanted = sum(share_of_first(first, second, step, steps) for step in range(steps)) * size
    batches = [order.batch(step) for step in range(steps + 3)]
    taken = Counter(index for batch in batches for index in batch)
    ours = sum(count for index, count in Counter(i for batch in batches[:steps] for i in batch).items() if index < first)
    assert all(len(batch) == size and 0 < sum(index < first for index in batch) < size for batch in batches)
    assert abs(ours - wanted) <= (1 if min(first, second) * size >= first + second else size)
    for which in (range(first), range(first, first + second)):  # each as often as the others of its task
        assert max(taken[index] for index in which) - min(taken[index] for index in which) <= 1
    assert [order.index(step * size + place) for step in range(3) for place in range(size)] == [i for batch in batches[:3] for i in batch]
    assert sorted(order.batch(4, 0, 2) + order.batch(4, 1, 2)) == sorted(batches[4])


@pytest.mark.parametrize(("petl", "params"), [("lora", {}), ("full", {"layers": "last"})])
def test_what_both_train_is_shared_and_each_has_its_own_head(petl, params, task, tmp_path):
    first, second = task("mails", petl=petl, **params), task("news", ("a", "b", "c"), rows=60, petl=petl, **params)
    phase = joint(first, second, 4, STEPS)
    items = [phase.train[0], phase.train[1], phase.train[len(first.train)]]
    batch = phase.collate(items)
    first.model.eval(), second.model.eval()
    apart = [each.loss(each.model, each.collate([item[1] for item in items if item[0] == n])) for n, each in enumerate((first, second))]
    assert torch.isclose(phase.loss(phase.model, batch), 2 / 3 * apart[0] + 1 / 3 * apart[1], rtol=1e-5)
    before, heads = [{name: value.clone() for name, value in half.items()} for half in phase.model.halves()], ("head.weight", "head.bias")
    Trainer(phase, Stop(iterations=4), tmp_path / "phase", ALONE).run()
    halves = phase.model.halves()
    shared = {name for name in halves[0] if name not in heads}
    assert shared and same({n: halves[0][n] for n in shared}, {n: halves[1][n] for n in shared})
    for was, now in zip(before, halves, strict=True):
        assert not any(torch.equal(was[name], now[name]) for name in heads) and not same(was, now)
    alone = task("mails").model
    count = sum(map(torch.numel, Together(task("mails"), task("mails")).parameters()))
    assert count == sum(map(torch.numel, alone.parameters())) + sum(map(torch.numel, alone.head.parameters()))


def test_both_go_on_from_where_they_were_together(task, told, tmp_path):
    first, folder = task("mails"), tmp_path / "a"
    assert trains(first, folder, lambda: task("news", ("a", "b", "c"), rows=60))
    assert begun(told) == [("joint", 2, 4)] and told[-1]["adapter"]["steps"] == STEPS and told[-1]["adapter"]["begun"]
    part = folder / joint_phase.part_of(2)
    left = Checkpoints(part).read(4)["model"]
    told.clear()
    offer = AdapterOffer(job=1, directory=str(folder), data="mails", digest="", named=True, part=part.name, steps=4, why="as told")
    second = task("news", ("a", "b", "c"), rows=60)
    assert not torch.equal(second.model.head.weight, left["head.weight"])
    assert trains(second, tmp_path / "b", offers=[offer])
    start = Checkpoints(tmp_path / "b").read(0)["model"]
    assert same({name: start[name] for name in left}, left)
    assert begun(told) == [("joint", 1, 4)] and told[0]["begun"]["cost"] == 4
    told.clear()
    (part / "adapter" / "stoker.json").unlink()
    assert trains(task("news", ("a", "b", "c"), rows=60), tmp_path / "c", offers=[offer])
    assert told[0]["begun"]["state"] == "cold" and "no longer there" in told[0]["begun"]["why"]


def test_whoever_is_stopped_on_the_way_ends_with_the_same_bits(task, told, tmp_path, monkeypatch):
    def other():
        return task("news")

    whole = task("mails")
    trains(whole, tmp_path / "whole", other)
    steps = {"left": 0}
    monkeypatch.setattr(script, "report", lambda **values: steps.update(left=steps["left"] - ("loss" in values)))
    monkeypatch.setattr(script, "should_stop", lambda: steps["left"] <= 0)
    attempts, done = 0, False
    while not done:
        attempts, steps["left"] = attempts + 1, 3
        broken = task("mails")
        done = trains(broken, tmp_path / "broken", other)
    assert attempts == 3 and same(broken.model.state_dict(), whole.model.state_dict())
    halves = [Checkpoints(tmp_path / name / joint_phase.part_of(2)).read(4)["model"] for name in ("whole", "broken")]
    assert same(*halves)


@pytest.mark.parametrize("after", ["the half", "what was decided", "its own"])
def test_whoever_is_killed_while_the_halves_are_written_ends_with_the_same_bits(after, task, told, tmp_path, monkeypatch):
    whole = task("mails")
    trains(whole, tmp_path / "whole", lambda: task("news"))
    place, name = {"the half": (joint_phase, "keep"), "what was decided": (joint_phase, "_own"), "its own": (joint_phase.shutil, "rmtree")}[
        after
    ]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, name, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        trains(task("mails"), tmp_path / "killed", lambda: task("news"))
    told.clear()
    broken = task("mails")
    assert trains(broken, tmp_path / "killed", lambda: task("news")) and same(broken.model.state_dict(), whole.model.state_dict())
    assert begun(told) == [("joint", 2, 4)] and not (tmp_path / "killed" / joint_phase.part_of(2) / joint_phase.PHASE).exists()


def test_a_target_of_the_loss_is_the_first_ones_alone(task, told, tmp_path):
    first = task("mails")
    trains(first, tmp_path / "a", lambda: task("news"), stop=Stop(iterations=STEPS, metric="loss", target=100.0, mode="min"))
    assert begun(told) == [("joint", 2, 4)] and told[-1]["adapter"]["steps"] == 5


@pytest.mark.parametrize(
    ("fields", "stop", "why"),
    [
        ({"batch_size": 8}, STOP, "batches of 4 and 8"),
        ({"petl": "adapter"}, STOP, "do not train the same of one backbone"),
        ({"r": 4}, STOP, "do not train the same of one backbone"),
        ({}, Stop(iterations=1), "it has 1 steps in all"),
        ({"text_column": "words"}, STOP, "words"),
    ],
)
def test_who_can_not_trains_alone_and_says_why(fields, stop, why, task, told, tmp_path):
    alone = task("mails")
    trains(alone, tmp_path / "alone", stop=stop)
    told.clear()
    first = task("mails")
    assert trains(first, tmp_path / "a", lambda: task("news", **fields), stop=stop)
    assert begun(told) == [("cold", 2, 0)] and why in told[0]["begun"]["why"]
    assert same(first.model.state_dict(), alone.model.state_dict())


def test_who_is_to_begin_with_the_weights_of_another_one_says_that_nobody_need_wait(task, told, tmp_path):
    assert joint_phase.train_together(task("mails"), 2, lambda: task("news"), lambda _: None, STOP, tmp_path / "a", ALONE, begins=True)
    assert begun(told) == [("cold", 2, 0)] and "begin with the weights of another job" in told[0]["begun"]["why"]
    assert not (tmp_path / "a").exists()


def test_nothing_that_is_wrong_with_the_other_fails_the_first(task, told, tmp_path):
    def gone():
        raise FileNotFoundError(2, "No such file or directory", "/home/b/work")

    assert trains(task("mails"), tmp_path / "a", gone)
    assert begun(told) == [("cold", 2, 0)] and "No such file or directory: '/home/b/work'" in told[0]["begun"]["why"]


@pytest.mark.parametrize(("how", "why"), [("losses", "no longer finite"), ("memory", "out of memory"), ("evaluation", "no such file")])
def test_common_steps_that_fail_by_the_other_one_leave_the_first_as_if_there_had_been_none(how, why, task, told, tmp_path):
    alone = task("mails")
    trains(alone, tmp_path / "alone")

    def other():
        found, calls = task("news"), []

        def loss(model, batch):
            calls.append(len(calls))
            if how == "memory" and len(calls) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return found.loss(model, batch) * (math.nan if how == "losses" and len(calls) > 2 else 1)

        def evaluate(model):
            raise FileNotFoundError("no such file")

        return replace(found, loss=loss, evaluate=evaluate if how == "evaluation" else found.evaluate)

    told.clear()
    first = task("mails")
    assert trains(first, tmp_path / "a", other)
    assert begun(told) == [("cold", 2, 0)] and why in told[0]["begun"]["why"] and not told[-1]["adapter"]["begun"]
    assert same(first.model.state_dict(), alone.model.state_dict())
    assert not (tmp_path / "a" / joint_phase.part_of(2)).exists()


def test_a_first_one_that_fails_alone_too_fails_by_itself(task, told, tmp_path):
    first = task("mails")
    broken = replace(first, loss=lambda model, batch: (_ for _ in ()).throw(torch.OutOfMemoryError("its own")))
    with pytest.raises(torch.OutOfMemoryError, match="its own"):
        trains(broken, tmp_path / "a", lambda: task("news"))
    assert begun(told) == [("cold", 2, 0)]


def test_the_common_steps_are_made_as_those_of_the_first_are(task, told, tmp_path):
    made = []

    def fused(phase):
        made.append(PlainStep(phase, ALONE, fused=True))
        return made[-1]

    assert trains(task("mails"), tmp_path / "a", lambda: task("news"), work=fused)
    assert made[0].optimizer.state and begun(told) == [("joint", 2, 4)]


def test_who_has_trained_already_goes_on_alone_and_what_was_told_is_told_again(task, told, tmp_path):
    first = task("mails")
    trains(first, tmp_path / "a", stop=Stop(iterations=2))
    told.clear()
    assert trains(task("mails"), tmp_path / "a", lambda: task("news"))
    assert begun(told) == [("cold", 2, 0)] and "has begun to train before" in told[0]["begun"]["why"]
    trains(task("mails"), tmp_path / "b", lambda: task("news"))
    told.clear()
    trains(task("mails"), tmp_path / "b", lambda: task("news"))
    assert begun(told) == [("joint", 2, 4)]
    with pytest.raises(Conflict, match="batch of one sample"):
        joint(task("mails", batch_size=1), task("news", batch_size=1), 2, 4)
