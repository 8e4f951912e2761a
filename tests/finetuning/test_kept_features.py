"""What the frozen part of a model makes of each text, computed once: the same bits wherever kept, in any batch, after a resumption."""

from __future__ import annotations

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.runners.backbones.hub_body import HubTexts
from stoker.runners.backbones.hub_model import load
from stoker.runners.finetune.kept_features import KeptFeatures
from tiny_models import build, same, trainer, weights

pytestmark = pytest.mark.xdist_group("tiny models")


def batch(*texts):
    tokens = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens, tokens != 0


@pytest.fixture(params=["bert", "llama"])
def encoder(request, model_of):
    return HubTexts(load(str(model_of(request.param))), "last").train()


@pytest.mark.parametrize(("memory", "file", "computed"), [(1 << 20, 0, 3), (0, 1 << 20, 3), (16 * 4 * 4, 1 << 20, 3), (0, 0, 6)])
def test_where_they_are_kept_changes_no_bit(memory, file, computed, tmp_path):
    torch.manual_seed(1)
    texts = {bytes([n]): torch.randn(n + 2, 16) for n in range(3)}
    kept = KeptFeatures(tmp_path, memory=memory, file=file)
    for _ in range(2):
        for key, features in texts.items():
            assert torch.equal(kept.get(key, features.clone), features)
    assert kept.computed == computed and not list(tmp_path.iterdir())


def test_a_full_disk_is_no_failure(tmp_path):
    kept = KeptFeatures(tmp_path / "is not there", memory=0)
    assert torch.equal(kept.get(b"x", lambda: torch.ones(2, 2)), torch.ones(2, 2))
    assert torch.equal(kept.get(b"x", lambda: torch.ones(2, 2)), torch.ones(2, 2)) and kept.computed == 2


def test_a_text_has_the_same_features_in_any_batch_and_the_trained_layer_learns_from_them(encoder):
    tokens, mask = batch([3, 4, 5, 6, 7], [8, 9], [3, 4, 5, 6, 7, 8, 9])
    plain = encoder.eval()(tokens, mask)
    encoder.kept = KeptFeatures()
    whole = encoder(tokens, mask)
    assert torch.allclose(whole, plain, atol=1e-5) and encoder.kept.computed == 3
    alone = torch.cat([encoder.kept.padded(*batch(ids), lambda row: pytest.fail("it is kept")) for ids in ([8, 9],)])
    assert torch.equal(alone[0], encoder.kept.padded(tokens, mask, lambda row: pytest.fail("it is kept"))[1, :2])
    encoder.train()(tokens, mask).sum().backward()
    changed = [name for name, value in encoder.named_parameters() if value.grad is not None]
    assert changed and all(".layer.3." in name or "layers.3." in name or name.endswith("norm.weight") for name in changed)
    encoder.kept = None
    assert torch.equal(encoder.eval()(tokens, mask), plain)  # nothing of it was changed


@pytest.fixture
def task(model_of, data):
    return lambda **params: build("text-classifier", model_of("bert"), data=data["mails"], lr=1e-2, **{"layers": "head", **params})


@pytest.mark.parametrize("layers", ["head", "last"])
def test_a_resumed_job_ends_with_the_same_bits(layers, task, tmp_path):
    whole = trainer(task(features="kept", layers=layers), tmp_path / "whole", steps=30)
    assert whole.run() and whole.task.model.encoder.kept.computed == 36  # 32 texts to train on, 4 held out
    parts = trainer(task(features="kept", layers=layers), tmp_path / "parts", steps=30)
    parts.until = 13
    assert parts.run() and parts.step == 13
    again = trainer(task(features="kept", layers=layers), tmp_path / "parts", steps=30)
    assert again.run() and same(weights(again), weights(whole))
    plain = trainer(task(layers=layers), tmp_path / "plain", steps=30)
    plain.run()
    assert all(torch.allclose(value, weights(whole)[name], atol=1e-3) for name, value in weights(plain).items())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"petl": "lora"}, "an adapter is trained in all layers, so nothing below it is frozen"),
        ({"layers": "all"}, "with layers: all nothing is frozen"),
    ],
)
def test_where_nothing_is_frozen_below_it_is_said(params, words, task):
    with pytest.raises(UsageError, match=f"params.features: .*{words}"):
        task(features="kept", **params)
