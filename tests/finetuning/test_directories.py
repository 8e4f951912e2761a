"""A backbone that is a directory: what it is told by, and what is refused in one line, most of it before a job is submitted."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from stoker.engine.errors import StokerError, UsageError
from stoker.engine.spec.build import Context
from stoker.engine.spec.reading.load import load_text
from stoker.runners.backbones import hub_directory, hub_model
from stoker.runners.recipes import RECIPES, find
from tiny_models import build, save, write_tokenizer

pytestmark = pytest.mark.xdist_group("tiny models")


@pytest.fixture
def copied(model_of, tmp_path):
    return Path(shutil.copytree(model_of("llama"), tmp_path / "here" / "llama"))


def changed(path, **values):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))


def submitted(text, cwd):
    return load_text(text, "job.yaml", Context(now=1.9e9, cwd=cwd, recipes=RECIPES))


def cut(path):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-100])


def cut_in_the_header(path):
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:40])


def sharded(path):
    (path / "model.safetensors").rename(path / "model-1-of-2.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def indexed(path, **places):
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def old_weights(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


NOT_WHOLE = r"has a model.safetensors that is cut short or is not safetensors; fetch it again"
FAULTS = [
    (lambda path: (path / "tokenizer.json").unlink(), r"has no tokenizer.json, so texts cannot be read"),
    (lambda path: (path / "tokenizer.json").write_text("{"), r"has a tokenizer.json that is not JSON"),
    (lambda path: write_tokenizer(path, more=3), r"and its tokenizer do not fit: that has tokens up to number 258, the"),
    (sharded, r"lacks 1 of the 2 files of its weights, model-2-of-2.safetensors first; fetch it again"),
    (cut, r"has a model.safetensors of \d+ bytes, but by its header it has \d+; fetch it again"),
    (cut_in_the_header, NOT_WHOLE),
    (lambda path: (path / "model.safetensors").write_bytes(b""), NOT_WHOLE),
    (lambda path: (path / "model.safetensors").write_bytes(struct.pack("<Q", 3) + b"[1]"), NOT_WHOLE),
    (lambda path: (path / "model.safetensors").unlink(), r"has no weights: neither model.safetensors nor"),
    (indexed, r"has a model.safetensors.index.json without a weight_map of names and files"),
    (lambda path: indexed(path, a="model-1.safetensors"), r"has a model.safetensors.index.json without metadata, which transformers asks"),
    (old_weights, r"has its weights in pytorch_model.bin, and no \*.safetensors; load and save it with transformers"),
    (lambda path: (path / "config.json").unlink(), r"has no config.json; a directory as save_pretrained of transformers writes it has one"),
    (lambda path: (path / "config.json").write_text("[]"), r"has a config.json that is not a mapping"),
    (lambda path: (path / "config.json").write_text("{}"), r"has a config.json without model_type"),
    (lambda path: changed(path, model_type="lama"), r"is a model of type 'lama', which the installed transformers does not know"),
    (lambda path: changed(path, quantization_config={"quant_method": "gptq"}), r"is quantised \(gptq\); recipes train weights of 16 or 32"),
    (lambda path: changed(path, auto_map={"AutoModel": "own.Model"}), r"needs code of its own \(own.Model\), which would"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "line"), FAULTS)
def test_what_files_tell_is_refused_before_a_job_is_submitted(spoil, line, copied, tmp_path, data):
    spoil(copied)
    text = f"name: job\nrecipe: causal-lm\nbackbone: ./here/llama\nparams: {{data: {data['text']}}}\n"
    with pytest.raises(UsageError, match=f"job.yaml:3: backbone: .*here/llama {line}") as told:
        submitted(text, tmp_path)
    assert "\n" not in str(told.value)
    with pytest.raises(UsageError, match=line):  # and by the job, where the files were spoilt since
        build("causal-lm", copied, data=data["text"], context=16)


def test_a_path_means_the_same_wherever_it_is_read(copied, tmp_path):
    for given in ("here/llama", "./here/llama", f"{copied}/"):
        (spec,) = submitted(f"name: job\nrecipe: prompt-tune\nbackbone: {given}\n", tmp_path)
        assert spec.backbone == spec.starts_from == str(copied)
        assert find("prompt-tune").backbone({"backbone": spec.backbone}) == str(copied)
    (spec,) = submitted("name: job\nrecipe: causal-lm\nparams: {backbone: here/llama}\n", tmp_path)
    assert spec.params["backbone"] == spec.starts_from == str(copied)


@pytest.mark.parametrize(
    ("backbone", "line"),
    [
        ("./here/lama", r"backbone: .*here/lama does not exist \(did you mean 'llama'\?\); give a directory with config.json"),
        ("./here/llama/config.json", r"backbone: .*config.json is a file, not a directory"),
        ("smollm2", r"job.yaml:3: backbone: 'smollm2' is not one of smollm2-135m, tiny, none, OWNER/NAME of .*, the path .* \(did you"),
    ],
)
def test_what_is_not_there_is_said(backbone, line, copied, tmp_path):
    with pytest.raises(UsageError, match=line):
        submitted(f"name: job\nrecipe: causal-lm\nbackbone: {backbone}\n", tmp_path)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_what_no_file_can_be_called_is_not_there(name):
    with pytest.raises(UsageError, match=r"backbone: /.* does not exist; give a directory"):
        hub_directory.find(f"/{name}")


def test_a_name_is_looked_for_in_the_local_cache_alone(model_of, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv(hub_directory.ENV_DOWNLOAD, raising=False)
    text = "name: job\nrecipe: causal-lm\nbackbone: some/tiny-llama\n"
    (spec,) = submitted(text, tmp_path)  # its runner may have it
    with pytest.raises(UsageError, match=r"some/tiny-llama is neither a directory nor a model in Hugging Face's cache.*download = true"):
        hub_directory.find("some/tiny-llama")
    folder = tmp_path / "hub" / "models--some--tiny-llama"
    shutil.copytree(model_of("llama"), folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (spec,) = submitted(text, tmp_path)
    assert spec.backbone == "some/tiny-llama"
    assert hub_directory.find("some/tiny-llama").revision == hub_directory.find(str(model_of("llama"))).revision
    (folder / "snapshots" / "abc" / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"has no tokenizer.json"):
        submitted(text, tmp_path)


def test_a_revision_is_of_what_a_model_is_and_not_of_where_it_stands(model_of, copied, tmp_path):
    here, there = (hub_directory.find(str(path)) for path in (model_of("llama"), copied))
    assert here.revision == there.revision and here.tokens == there.tokens
    changed(copied, _name_or_path="another/name", transformers_version="1")
    assert hub_directory.find(str(copied)).revision == here.revision
    changed(copied, rms_norm_eps=1e-3)
    assert hub_directory.find(str(copied)).revision != here.revision
    other = save("llama", tmp_path / "trained on", seed=1)  # the same shapes under the same names
    assert hub_directory.find(str(other)).revision != here.revision


def test_weights_are_mapped_and_neither_drawn_nor_read_by_threads(model_of):
    import torch

    torch.manual_seed(1)
    before = torch.get_rng_state()
    model = hub_model.load(str(model_of("bert"))).model
    assert torch.equal(torch.get_rng_state(), before)
    place = next(model.parameters()).data_ptr()
    spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "bert/model.safetensors" in line]
    assert any(int(begin, 16) <= place < int(end, 16) for begin, end in spans)
    assert not model.training and not model.config.use_cache


def test_weights_that_are_not_those_of_the_config_are_named(copied, caplog):
    changed(copied, intermediate_size=32)
    line = r"whose shape differs from its config: model.layers.0.mlp.down_proj.weight is \[32, 64\], and should be \[32, 32\]"
    with pytest.raises(UsageError, match=line):
        hub_model.load(str(copied))
    changed(copied, intermediate_size=64, num_hidden_layers=3)
    hub_model.load(str(copied))
    assert "9 have no place in the model of its config, such as model.layers.3.input_layernorm.weight" in caplog.text


def test_weights_that_a_model_lacks_are_not_made_up(model_of, tmp_path):
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(model_of("llama"), tmp_path / "llama"))
    kept = load_file(path / "model.safetensors")
    del kept["model.layers.1.mlp.up_proj.weight"]
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks the weights model.layers.1.mlp.up_proj.weight, and 0 more: it would begin with random"):
        hub_model.load(str(path))


@pytest.mark.parametrize(
    ("recipe", "model", "params", "line"),
    [
        ("causal-lm", "bert", {}, r"backbone: .* is an encoder \(bert\); causal-lm takes a decoder"),
        ("prompt-tune", "bert", {}, r"is an encoder \(bert\); a language model takes a decoder"),
        ("text-classifier", "vit", {}, r"is a model of pictures \(vit\); text-classifier takes an encoder or a decoder"),
        ("causal-lm", "llama", {"context": 129}, r"params.context: 129 is more than .* reads at once, 128 tokens; lower it"),
        ("causal-lm", "llama", {"layers": 3}, r"params.layers: .* has its own; leave it out"),
        ("text-classifier", "bert", {"max_tokens": 129}, r"params.max_tokens: 129 is more than .* reads at once, 128 tokens"),
        ("causal-lm", "llama", {"attention": "flash_attention_2"}, r"params.attention: .* cannot use 'flash_attention_2'"),
    ],
)
def test_what_does_not_suit_a_recipe_is_one_line(recipe, model, params, line, model_of, data):
    with pytest.raises(UsageError, match=line) as told:
        build(recipe, model_of(model), **({"data": data["mails"]} if recipe != "text-classifier" else {}), **params)
    assert "\n" not in str(told.value)


def test_params_of_what_is_loaded_are_not_for_random_weights(data):
    with pytest.raises(UsageError, match=r"params.dtype: is for a backbone that is loaded, not for backbone: none; leave it out"):
        build("causal-lm", "none", data=data["text"], dtype="bfloat16")


def test_without_transformers_it_is_said_how_to_install_it(copied, tmp_path, monkeypatch):
    found = hub_directory.importlib.util.find_spec
    monkeypatch.setattr(hub_directory.importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name))
    with pytest.raises(UsageError, match=r"is loaded by the package transformers, which this Python lacks; install it with: pip install"):
        submitted("name: job\nrecipe: causal-lm\nbackbone: ./here/llama\n", tmp_path)
    with pytest.raises(StokerError, match=r"pip install '\.\[llm\]'"):
        hub_model.load(str(copied))


def test_a_model_of_timm_needs_timm(copied, tmp_path, monkeypatch):
    (copied / "config.json").write_text(json.dumps({"architecture": "resnet10t", "pretrained_cfg": {"input_size": [3, 64, 64]}}))
    found = hub_directory.importlib.util.find_spec
    monkeypatch.setattr(hub_directory.importlib.util, "find_spec", lambda name: None if name == "timm" else found(name))
    with pytest.raises(UsageError, match=r"job.yaml:3: backbone: .*/llama is a model of timm, which this Python lacks; install timm"):
        submitted("name: job\nrecipe: image-classifier\nbackbone: ./here/llama\nparams: {data: .}\n", tmp_path)


def test_a_host_without_memory_for_it_says_so(copied, monkeypatch):
    monkeypatch.setattr(hub_model.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1 << 10}))
    with pytest.raises(StokerError, match=r"takes 0.0 GiB in float32, and the host has 0.0 GiB of memory left; end something there, or"):
        hub_model.load(str(copied))
