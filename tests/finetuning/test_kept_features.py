"""What the frozen part of a model makes of each text, computed once: the same bits wherever kept, in any batch, after a resumption."""

from __future__ import annotations

import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.runners.finetune.kept_features import KeptFeatures
from stoker.runners.recipes.encoder import Encoder
from tiny_models import build, same, trainer, weights

pytestmark = pytest.mark.xdist_group("tiny models")

SMALL = {
    "hidden_size": 16, "layer_norm_eps": 1e-5, "vocab_size": 50, "pad_token_id": 0, "max_position_embeddings": 32, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1, "num_attention_heads": 2, "intermediate_size": 32, "hidden_act": "gelu", "num_hidden_layers": 3,
}  # fmt: skip


def batch(*texts):
    tokens = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens, tokens != 0


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    made = Encoder(SMALL)
    made.freeze(2)
    return made.train()


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
    assert {name.split(".")[1] for name, value in encoder.named_parameters() if value.grad is not None} == {"2"}


@pytest.fixture
def task(model_of, data):
    return lambda **params: build("text-classifier", model_of("bert"), data=data["mails"], lr=1e-2, **{"layers": "head", **params})


def test_a_resumed_job_ends_with_the_same_bits(task, tmp_path):
    whole = trainer(task(features="kept"), tmp_path / "whole", steps=30)
    assert whole.run() and whole.task.model.encoder.kept.computed == 36  # 32 texts to train on, 4 held out
    parts = trainer(task(features="kept"), tmp_path / "parts", steps=30)
    parts.until = 13
    assert parts.run() and parts.step == 13
    again = trainer(task(features="kept"), tmp_path / "parts", steps=30)
    assert again.run() and same(weights(again), weights(whole))
    plain = trainer(task(), tmp_path / "plain", steps=30)
    plain.run()
    assert all(torch.allclose(value, weights(whole)[name], atol=1e-4) for name, value in weights(plain).items())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"petl": "lora"}, "an adapter is trained in all layers, so nothing below it is frozen"),
        ({"layers": "all"}, "with layers: all nothing is frozen"),
        ({"layers": "last"}, "of a backbone that is a directory they are kept with layers: head only"),
    ],
)
def test_where_nothing_is_frozen_below_it_is_said(params, words, task):
    with pytest.raises(UsageError, match=f"params.features: .*{words}"):
        task(features="kept", **params)
