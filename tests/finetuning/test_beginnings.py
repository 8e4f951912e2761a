"""Trainings that begin with what another job has left: which of it they read, whether they keep it, and the bits of what is undone."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
import torch
from stoker.engine.errors import StokerError
from stoker.engine.protocol import AdapterOffer
from stoker.engine.spec.model import Stop
from stoker.runners.finetune import beginning
from stoker.runners.finetune.left_adapter import kind_of_labels
from stoker.runners.train.checkpoint import Checkpoints
from stoker.runners.train.trainer import Trainer
from tiny_models import ALONE, build, same, save

pytestmark = [pytest.mark.xdist_group("tiny models"), pytest.mark.filterwarnings("ignore::UserWarning:peft.*")]

STEPS = 8
STOP = Stop(iterations=STEPS, metric="accuracy", target=2.0)  # never reached


@pytest.fixture
def texts(tmp_path):
    """A file of texts whose labels follow from a word, by name; ``swapped``: the other way round, of the same kind of labels."""

    def write(name, word="zz", swapped=False, classes=(0, 1), rows=40):
        path = tmp_path / f"{name}.jsonl"
        row = "note {} {}".format
        path.write_text(
            "\n".join(
                json.dumps({"text": row(f"{name}{n}", word if n % 2 else "aa"), "label": classes[(n + swapped) % 2]}) for n in range(rows)
            )
        )
        return str(path)

    return write


@pytest.fixture
def task(model_of):
    def make(data, petl="lora", backbone=None, **params):
        return build("text-classifier", backbone or model_of("bert"), data=data, petl=petl, lr=2e-2, **{"eval_limit": 8, **params})

    return make


def trains(task, folder, offers=(), curve=(), stop=STOP, steps=None):
    """Train to the end; ``steps``: be asked to stop after so many."""
    make = partial(Trainer, task, stop, ranks=ALONE)
    done = beginning.train(task, lambda checkpoints, **how: make(checkpoints=checkpoints, **how), offers, curve, stop, folder, ALONE)
    return {name: value.clone() for name, value in task.model.state_dict().items()}, done


def offer(folder, job=1, **fields):
    return AdapterOffer(job=job, directory=str(folder), data="other", digest="another", **fields)


@pytest.fixture
def left(task, texts, tmp_path, told):
    """Checkpoints of a job that has ended, by what it trained."""

    def make(name="first", petl="lora", **params):
        trains(task(texts(name), petl, **params), tmp_path / name)
        told.clear()
        return tmp_path / name

    return make


def states(told):
    return [one["begun"]["state"] for one in told if "begun" in one]


@pytest.mark.parametrize(("petl", "params"), [("lora", {}), ("adapter", {}), ("prompt", {"r": 3}), ("full", {"layers": "last"})])
@pytest.mark.sampled(2)
def test_a_named_one_is_taken_whole_but_for_the_head(petl, params, left, task, texts, told, tmp_path):
    source = left(petl=petl, **params)
    of = Checkpoints(source).load()["model"]
    begun = task(texts("second"), petl, **params)
    head = begun.model.head.weight.detach().clone()
    taken, _ = begun.leaves.read(begun, source)
    assert taken and all(torch.equal(value, of[name]) for name, value in taken.items())
    assert {name for name, value in begun.model.named_parameters() if value.requires_grad and not name.startswith("head.")} == set(taken)
    trains(begun, tmp_path / "b", [offer(source, named=True)], stop=Stop(iterations=1))
    first = Checkpoints(tmp_path / "b").steps()[0]
    saved = Checkpoints(tmp_path / "b").read(first)["model"]
    assert first == 0 and torch.equal(saved["head.weight"], head) and same({name: saved[name] for name in taken}, taken)
    assert states(told) == ["begun"]
    assert told[-1]["adapter"]["begun"] and told[-1]["adapter"]["steps"] == 1


def test_what_helps_is_kept_and_what_does_not_ends_with_the_bits_of_a_training_from_the_backbone(left, task, texts, told, tmp_path):
    source = left()
    cold, _ = trains(task(texts("second")), tmp_path / "cold")
    told.clear()
    monkey = pytest.MonkeyPatch()
    for worse, outcome in ((False, "kept"), (True, "undone")):
        with monkey.context() as patch:
            patch.setattr(beginning._Beginning, "_compared", lambda self, *_, worse=worse: (worse, "as the test says"))
            weights, done = trains(task(texts("second")), tmp_path / outcome, [offer(source)])
        assert done and same(weights, cold) is worse
        begun = [one["begun"] for one in told if "begun" in one]
        assert [one["state"] for one in begun] == ["begun", outcome]
        assert (begun[-1]["step"], begun[-1]["cost"]) == (beginning.TRIAL, beginning.TRIAL)
        assert told[-1]["adapter"]["begun"] is not worse
        assert not (tmp_path / outcome / beginning.COLD).exists() and not (tmp_path / outcome / beginning.BEGUN).exists()
        told.clear()


def test_where_jobs_like_it_are_known_nothing_is_trained_twice_to_compare(left, task, texts, told, tmp_path):
    source = left()
    cold, _ = trains(task(texts("second")), tmp_path / "cold")
    told.clear()
    weights, _ = trains(task(texts("second")), tmp_path / "undone", [offer(source)], curve=[(2, 1.5)])  # nobody is right that often
    assert same(weights, cold)
    kept, _ = trains(task(texts("second")), tmp_path / "kept", [offer(source)], curve=[(2, -1.0)])
    assert not same(kept, cold)
    assert [(one["begun"]["state"], one["begun"]["cost"]) for one in told if "begun" in one and one["begun"]["state"] != "begun"] == [
        ("undone", 2), ("kept", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("worse", [False, True])
@pytest.mark.sampled(2)
def test_whoever_is_killed_on_the_way_ends_with_the_same_bits(worse, left, task, texts, told, tmp_path, monkeypatch):
    source = left()
    monkeypatch.setattr(beginning._Beginning, "_compared", lambda self, *_: (worse, ""))
    whole, _ = trains(task(texts("second")), tmp_path / "whole", [offer(source)])
    steps = {"left": 0}
    step = Trainer._train_step

    def dies(self, parts):
        steps["left"] -= 1
        if steps["left"] == 0:
            raise KeyboardInterrupt
        step(self, parts)

    monkeypatch.setattr(Trainer, "_train_step", dies)
    for left_over in (3, 7, 5, 2):  # in the trial from the backbone, in that with the adapter, and twice after it was decided
        steps["left"] = left_over
        with pytest.raises(KeyboardInterrupt):
            trains(task(texts("second")), tmp_path / "killed", [offer(source)])
    steps["left"] = -1
    weights, done = trains(task(texts("second")), tmp_path / "killed", [offer(source)])
    assert done and same(weights, whole)


def test_when_what_was_tried_has_gone_meanwhile_the_next_one_is_tried_from_its_beginning(left, task, texts, told, tmp_path, monkeypatch):
    first, second = left("first"), left("other")
    monkeypatch.setattr(beginning._Beginning, "_compared", lambda self, *_: (False, ""))
    whole, _ = trains(task(texts("second")), tmp_path / "whole", [offer(second, 2)])
    step = Trainer._train_step
    count = iter(range(1, 100))

    def dies(self, parts):
        if next(count) == beginning.TRIAL + 3:
            raise KeyboardInterrupt
        step(self, parts)

    monkeypatch.setattr(Trainer, "_train_step", dies)
    with pytest.raises(KeyboardInterrupt):
        trains(task(texts("second")), tmp_path / "b", [offer(first), offer(second, 2)])
    shutil.rmtree(first)
    weights, _ = trains(task(texts("second")), tmp_path / "b", [offer(first), offer(second, 2)])
    assert same(weights, whole) and told[-2]["begun"]["source"] == 2


def test_a_look_comes_soon_or_not_at_all(left, task, texts, told, tmp_path):
    source = left()
    trains(task(texts("second")), tmp_path / "short", [offer(source)], stop=Stop(iterations=beginning.TRIAL))
    assert states(told) == ["begun"] and told[-1]["adapter"]["begun"]
    told.clear()
    trains(task(texts("second")), tmp_path / "late", [offer(source)], curve=[(beginning.LATEST_LOOK + 1, 0.5)])
    assert [one["begun"].get("step") for one in told if "begun" in one] == [None, beginning.TRIAL]


def judged(task, *accuracies):
    """Evaluations have these accuracies, one after the other, and the last one for good."""
    left_over = list(accuracies)
    task.evaluate = lambda model: {"accuracy": left_over.pop(0) if left_over[1:] else left_over[0]}
    return task


@pytest.mark.parametrize(
    ("accuracies", "params", "outcome"),
    [
        ((0.1, 0.1, 0.9, 1.0, 1.0, 0.5), {"eval_every": 2}, "undone"),  # of steps 2, 4 and 5
        ((float("nan"), 0.5), {}, "kept"),
        ((0.5, float("nan")), {}, "undone"),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_compared_is_of_the_step_of_the_look_and_a_number_is_better_than_none(
    accuracies, params, outcome, left, task, texts, told, tmp_path
):
    source = left()
    trains(judged(task(texts("second"), **params), *accuracies), tmp_path / "b", [offer(source)])
    assert states(told) == ["begun", outcome]


def test_a_loss_of_training_is_nothing_to_compare_by(left, task, texts, told, tmp_path):
    source = left()
    stop = Stop(iterations=STEPS, metric="loss", target=0.0, mode="min")
    trains(task(texts("second")), tmp_path / "b", [offer(source)], curve=[(1, 1e-9)], stop=stop)
    assert [one["begun"].get("step") for one in told if "begun" in one] == [None, beginning.TRIAL]


def test_a_job_whose_own_checkpoints_are_lost_begins_anew_and_says_so(left, task, texts, told, tmp_path, monkeypatch):
    source = left()
    monkeypatch.setattr(beginning._Beginning, "_compared", lambda self, *_: (False, ""))
    trains(task(texts("second")), tmp_path / "b", [offer(source)])
    for step in Checkpoints(tmp_path / "b").steps():
        shutil.rmtree(Checkpoints(tmp_path / "b").path_of(step))
    told.clear()
    trains(task(texts("second")), tmp_path / "b")
    assert states(told) == ["cold"] and "is lost" in told[0]["begun"]["why"] and not told[-1]["adapter"]["begun"]


def test_what_cannot_be_begun_with_is_told_in_words_and_the_next_one_is_taken(left, task, texts, told, tmp_path, model_of):
    whole, wrong = left(), left("wrong", r=4)
    damaged, gone = tmp_path / "damaged", tmp_path / "gone"
    shutil.copytree(whole, damaged)
    file = damaged / "adapter" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"\0\1\2\3\4\5\6\7")
    named = {"named": True}
    trains(
        task(texts("second")),
        tmp_path / "b",
        [offer(gone, 7, **named), offer(damaged, 8, **named), offer(wrong, 9, **named), offer(whole, **named)],
    )
    (begun,) = [one["begun"] for one in told if "begun" in one]
    assert begun["source"] == 1 and begun["damaged"].keys() == {"7", "8"}
    told.clear()
    other = task(texts("second"), backbone=save("bert", tmp_path / "other model", seed=1))
    _, done = trains(other, tmp_path / "c", [offer(whole, 1, **named), offer(wrong, 9, **named)])
    (begun,) = [one["begun"] for one in told if "begun" in one]
    assert done and begun["state"] == "cold" and "revision of the backbone" in begun["why"] and "\n" not in begun["why"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": None}, "it is of the same data"),
        ({"same_kind": True}, "its labels are of another kind (aa, bb)"),
    ],
)
def test_the_same_data_and_other_kinds_of_labels_are_not_tried(change, words, task, texts, told, tmp_path):
    trains(task(texts("first", classes=("aa", "bb"))), tmp_path / "first")
    told.clear()
    second = task(texts("second"))
    change = {**change, **({"digest": second.leaves.digest} if "digest" in change else {})}
    trains(second, tmp_path / "b", [AdapterOffer(**{"job": 1, "directory": str(tmp_path / "first"), "data": "x", "digest": "y", **change})])
    (begun,) = [one["begun"] for one in told if "begun" in one]
    assert begun["state"] == "cold" and words in begun["why"]


@pytest.mark.parametrize("how", ["cut", "deleted"])
def test_of_a_model_that_was_trained_itself_the_newest_checkpoint_is_read_and_missed(how, left, task, texts, told, tmp_path):
    source = left(petl="full", layers="last")
    (checkpoint,) = source.glob("step-*")
    state = checkpoint / "state.pt"
    state.write_bytes(state.read_bytes()[:-9]) if how == "cut" else shutil.rmtree(checkpoint)
    trains(task(texts("second"), "full", layers="last"), tmp_path / "b", [offer(source)])
    assert states(told) == ["cold"] and told[0]["begun"]["damaged"].keys() == {"1"} and "weights:" not in told[0]["begun"]["why"]
    assert told[-1]["adapter"]["bytes"] > 20_000


def test_weights_that_are_not_finite_are_nobodys_beginning(left, task, texts, tmp_path, told):
    source = left(petl="full", layers="last")
    checkpoints = Checkpoints(source)
    state = checkpoints.load()
    state["model"]["encoder.body.encoder.layer.3.output.dense.bias"][0] = float("nan")
    checkpoints.save(STEPS + 1, state)
    begun = task(texts("second"), "full", layers="last")
    with pytest.raises(StokerError, match="not finite"):
        begun.leaves.read(begun, source)


def test_kinds_of_labels_are_the_names_of_the_classes():
    assert kind_of_labels(["Spam ", "ham"]) == kind_of_labels(["ham", "spam"]) == "ham, spam"
    assert kind_of_labels([f"class number {n}" for n in range(99)]).startswith("99 classes (")


def test_a_job_that_is_over_before_anything_was_tried_teaches_nothing(left, task, texts, told, tmp_path):
    source = left()
    trains(task(texts("second")), tmp_path / "b", [offer(source)], stop=Stop(iterations=STEPS, metric="accuracy", target=0.0))
    assert states(told) == ["begun", "cold"] and "was over before an adapter could be tried" in told[-2]["begun"]["why"]
    assert not told[-1]["adapter"]["begun"] and told[-1]["adapter"]["reached"]
