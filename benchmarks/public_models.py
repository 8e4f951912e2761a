"""Models that people bring, small, with random weights and data: language, images, sound, as `swap_models.py` trains them.

Each is made by its own package, which may be absent. What a model is given is what its users give it: labels, and its own loss where it has
one. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from stoker.runners.training import Task
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY, LABELS, SIDE = 64, 4, 4, 24, 300, 5, 64
SAMPLES = 24
EPSILON = 1e-5  #: of AdamW: gradients that are but rounding, as those of a key's bias, move nothing

Make = Callable[[], Task]
MODELS: dict[str, tuple[str, Make]] = {}  #: by name: the package, and what makes it


def task(model: nn.Module, sample: Callable[[], Any], loss: Callable[[nn.Module, Any], torch.Tensor], batch: int = 2) -> Task:
    return Task(model=model, train=[sample() for _ in range(SAMPLES)], loss=loss, batch_size=batch,
                optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=EPSILON))  # fmt: skip


def own_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    found: torch.Tensor = model(**batch).loss
    return found


def labelled(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    answer = model(batch["x"])
    answer = answer[0] if isinstance(answer, tuple) else answer["out"].mean((2, 3)) if isinstance(answer, dict) else answer
    return functional.cross_entropy(answer, batch["y"])


# ---- samples ----


def tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (LENGTH,))


def text() -> dict[str, torch.Tensor]:
    found = tokens()
    return {"input_ids": found, "labels": found}


def padded() -> dict[str, torch.Tensor]:
    found, length = tokens(), int(torch.randint(LENGTH // 2, LENGTH, ()))
    return {"input_ids": found, "attention_mask": (torch.arange(LENGTH) < length).long(), "labels": found}


def classified() -> dict[str, torch.Tensor]:
    return {**padded(), "labels": torch.randint(LABELS, ())}


def translated() -> dict[str, torch.Tensor]:
    return {**padded(), "labels": tokens()[: LENGTH // 2]}


def pixels(side: int = SIDE) -> torch.Tensor:
    return torch.randn(3, side, side)


def image(side: int = SIDE) -> dict[str, torch.Tensor]:
    return {"pixel_values": pixels(side), "labels": torch.randint(LABELS, ())}


def picture(side: int = SIDE) -> dict[str, torch.Tensor]:
    return {"x": pixels(side), "y": torch.randint(LABELS, ())}


def captioned() -> dict[str, torch.Tensor]:
    found = tokens()
    found[-1] = 2  # the end, where CLIP reads the sentence
    return {"input_ids": found, "pixel_values": pixels(32)}


def contrastive(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return own_loss(model, {**batch, "return_loss": True})  # type: ignore[dict-item]


# ---- torch alone ----


class _LanguageModel(nn.Module):
    """Words, what is between, and a head tied to them; ``reads`` says what of its answer is used."""

    def __init__(self, between: nn.Module, reads: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.words, self.between, self.reads = nn.Embedding(VOCABULARY, WIDTH), between, reads
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.words.weight

    def forward(self, found: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.reads(self.between(self.words(found))))
        return answer


def plain(name: str, between: Callable[[], nn.Module], reads: Callable[[Any], torch.Tensor] = lambda answer: answer) -> None:
    def next_word(model: nn.Module, found: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(found).flatten(0, 1), found.roll(-1, 1).flatten())

    MODELS[f"torch {name}"] = "torch", lambda: task(_LanguageModel(between(), reads), tokens, next_word)


plain("TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True), LAYERS))
plain("LSTM", lambda: nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True, dropout=0.1), lambda answer: answer[0])

# ---- transformers ----

COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "use_cache": False}
DECODER = {
    **COMMON, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": 2 * LENGTH,
}  # fmt: skip
GROUPED = {**DECODER, "num_key_value_heads": HEADS // 2}
VISION = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH, "image_size": 32,
    "patch_size": 8, "num_labels": LABELS,
}  # fmt: skip
SEQUENCES = {
    **COMMON, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 2 * WIDTH, "decoder_ffn_dim": 2 * WIDTH, "max_position_embeddings": 2 * LENGTH,
    "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {**COMMON, "d_model": WIDTH, "d_kv": 16, "num_heads": HEADS, "d_ff": 2 * WIDTH, "num_layers": LAYERS, "decoder_start_token_id": 0}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": LABELS}


def hf(name: str, head: str, sample: Callable[[], Any] = text, loss: Callable[[nn.Module, Any], torch.Tensor] = own_loss, config: str = "",
       **values: Any) -> None:  # fmt: skip
    """A model of transformers: the class ``head``, and the configuration named like it."""

    def make() -> Task:
        import transformers

        transformers.logging.set_verbosity_error()
        of = config or next(head[: -len(end)] for end in _HEADS if head.endswith(end)) + "Config"
        return task(getattr(transformers, head)(getattr(transformers, of)(**values)), sample, loss)

    MODELS[name] = "transformers", make


_HEADS = ("LMHeadModel", "ForCausalLM", "ForSequenceClassification", "ForMaskedLM", "ForConditionalGeneration", "ForImageClassification",
          "ForPreTraining", "MTModel", "ForCTC", "ForPrediction", "ForSemanticSegmentation", "Model")  # fmt: skip

hf("GPT-2", "GPT2LMHeadModel", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH, **COMMON)
hf("GPT-2, with its cache", "GPT2LMHeadModel", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH,
   **{**COMMON, "use_cache": True})  # fmt: skip
hf("GPT-2, padded batches", "GPT2LMHeadModel", padded, n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH, **COMMON)
hf("GPT-2, eager attention", "GPT2LMHeadModel", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH,
   attn_implementation="eager", **COMMON)  # fmt: skip
hf("GPT-Neo", "GPTNeoForCausalLM", hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS, attention_types=[[["global", "local"], 2]],
   max_position_embeddings=2 * LENGTH, window_size=8, **COMMON)  # fmt: skip
hf("GPT-J", "GPTJForCausalLM", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH, rotary_dim=8, **COMMON)
hf("GPT-NeoX", "GPTNeoXForCausalLM", **DECODER)
hf("GPT-BigCode", "GPTBigCodeForCausalLM", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH, **COMMON)
hf("CodeGen", "CodeGenForCausalLM", n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=2 * LENGTH, rotary_dim=8, **COMMON)
hf("OPT", "OPTForCausalLM", hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, ffn_dim=2 * WIDTH,
   word_embed_proj_dim=WIDTH, max_position_embeddings=2 * LENGTH, **COMMON)  # fmt: skip
hf("BLOOM", "BloomForCausalLM", hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, **COMMON)
hf("MPT", "MptForCausalLM", d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, max_seq_len=2 * LENGTH, **COMMON)
hf("Falcon", "FalconForCausalLM", hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, **COMMON)
hf("Llama", "LlamaForCausalLM", **GROUPED)
hf("Mistral", "MistralForCausalLM", sliding_window=8, **GROUPED)
hf("Mixtral", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, **GROUPED)
hf("Qwen2", "Qwen2ForCausalLM", **GROUPED)
hf("Qwen2-MoE", "Qwen2MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=WIDTH,
   shared_expert_intermediate_size=WIDTH, **GROUPED)  # fmt: skip
hf("Qwen3", "Qwen3ForCausalLM", head_dim=16, **GROUPED)
hf("Gemma", "GemmaForCausalLM", head_dim=16, **GROUPED)
hf("Gemma 2", "Gemma2ForCausalLM", head_dim=16, sliding_window=8, **GROUPED)
hf("Phi", "PhiForCausalLM", **DECODER)
hf("Phi-3", "Phi3ForCausalLM", **GROUPED)
hf("StableLM", "StableLmForCausalLM", **GROUPED)
hf("OLMo", "OlmoForCausalLM", **GROUPED)
hf("OLMoE", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2, **GROUPED)
hf("Cohere", "CohereForCausalLM", **GROUPED)
hf("SmolLM3", "SmolLM3ForCausalLM", **GROUPED)
hf("DeepSeek-V3", "DeepseekV3ForCausalLM", n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, q_lora_rank=16,
   kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, moe_intermediate_size=WIDTH, first_k_dense_replace=1,
   **DECODER)  # fmt: skip
hf("Mamba", "MambaForCausalLM", hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8, **COMMON)
hf("Mamba-2", "Mamba2ForCausalLM", hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8, num_heads=8, head_dim=16, n_groups=1,
   chunk_size=8, **COMMON)  # fmt: skip
hf("RWKV", "RwkvForCausalLM", hidden_size=WIDTH, num_hidden_layers=LAYERS, context_length=2 * LENGTH, **COMMON)
hf("RecurrentGemma", "RecurrentGemmaForCausalLM", lru_width=WIDTH, attention_window_size=8, **GROUPED)
hf("Llama, with its cache", "LlamaForCausalLM", **{**GROUPED, "use_cache": True})
hf("Llama that classifies", "LlamaForSequenceClassification", classified, num_labels=LABELS, **GROUPED)

hf("BERT", "BertForMaskedLM", padded, **DECODER)
hf("BERT that classifies", "BertForSequenceClassification", classified, num_labels=LABELS, **DECODER)
hf("RoBERTa", "RobertaForSequenceClassification", classified, num_labels=LABELS, **DECODER)
hf("XLM-RoBERTa", "XLMRobertaForMaskedLM", padded, **DECODER)
hf("DistilBERT", "DistilBertForSequenceClassification", classified, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=2 * WIDTH,
   num_labels=LABELS, vocab_size=VOCABULARY, max_position_embeddings=2 * LENGTH)  # fmt: skip
hf("ALBERT", "AlbertForSequenceClassification", classified, num_labels=LABELS, embedding_size=32, **DECODER)
hf("ELECTRA", "ElectraForSequenceClassification", classified, num_labels=LABELS, embedding_size=32, **DECODER)
hf("DeBERTa", "DebertaForSequenceClassification", classified, num_labels=LABELS, relative_attention=True, pos_att_type=["p2c", "c2p"],
   **DECODER)  # fmt: skip
hf("DeBERTa-v2", "DebertaV2ForSequenceClassification", classified, num_labels=LABELS, relative_attention=True, pos_att_type=["p2c", "c2p"],
   share_att_key=True, position_buckets=8, norm_rel_ebd="layer_norm", **DECODER)  # fmt: skip
hf("ModernBERT", "ModernBertForMaskedLM", padded, local_attention=8, cls_token_id=1, sep_token_id=2, **DECODER)
hf("MPNet", "MPNetForMaskedLM", padded, **DECODER)
hf("FNet", "FNetForMaskedLM", **DECODER)
hf("Funnel", "FunnelForMaskedLM", d_model=WIDTH, n_head=HEADS, d_head=16, d_inner=2 * WIDTH, block_sizes=[2, 2], vocab_size=VOCABULARY)
hf("XLNet", "XLNetLMHeadModel", d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=2 * WIDTH, vocab_size=VOCABULARY, use_mems_train=False)
hf("XLM", "XLMWithLMHeadModel", emb_dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, n_words=VOCABULARY, max_position_embeddings=2 * LENGTH,
   config="XLMConfig")  # fmt: skip
hf("Longformer", "LongformerForMaskedLM", padded, attention_window=8, sep_token_id=2, **{**DECODER, "max_position_embeddings": 3 * LENGTH})

hf("T5", "T5ForConditionalGeneration", translated, **T5)
hf("mT5", "MT5ForConditionalGeneration", translated, **T5)
hf("Switch Transformers", "SwitchTransformersForConditionalGeneration", translated, num_experts=4, num_decoder_layers=LAYERS,
   num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, **T5)  # fmt: skip
hf("BART", "BartForConditionalGeneration", translated, **SEQUENCES)
hf("mBART", "MBartForConditionalGeneration", translated, **SEQUENCES)
hf("Pegasus", "PegasusForConditionalGeneration", translated, **SEQUENCES)
hf("Marian", "MarianMTModel", translated, **SEQUENCES)
hf("LED", "LEDForConditionalGeneration", translated, attention_window=8, max_encoder_position_embeddings=2 * LENGTH,
   max_decoder_position_embeddings=2 * LENGTH, **{k: v for k, v in SEQUENCES.items() if k != "max_position_embeddings"})  # fmt: skip

hf("ViT", "ViTForImageClassification", lambda: image(32), **VISION)
hf("DeiT", "DeiTForImageClassification", lambda: image(32), **VISION)
hf("BEiT", "BeitForImageClassification", lambda: image(32), use_relative_position_bias=True, **VISION)
hf("DINOv2", "Dinov2ForImageClassification", lambda: image(32), mlp_ratio=2,
   **{k: v for k, v in VISION.items() if k != "intermediate_size"})  # fmt: skip
hf("ViT-MAE", "ViTMAEForPreTraining", lambda: {"pixel_values": pixels(32)}, decoder_hidden_size=32, decoder_num_hidden_layers=2,
   decoder_num_attention_heads=4, decoder_intermediate_size=64, **VISION)  # fmt: skip
hf("Swin", "SwinForImageClassification", image, image_size=SIDE, patch_size=4, embed_dim=16, depths=[1, 2, 1], num_heads=[2, 2, 4],
   window_size=4, num_labels=LABELS)  # fmt: skip
hf("Swin v2", "Swinv2ForImageClassification", image, image_size=SIDE, patch_size=4, embed_dim=16, depths=[1, 2, 1], num_heads=[2, 2, 4],
   window_size=4, num_labels=LABELS)  # fmt: skip
hf("ConvNeXt", "ConvNextForImageClassification", image, drop_path_rate=0.2, **STAGES)
hf("ConvNeXt v2", "ConvNextV2ForImageClassification", image, **STAGES)
hf("ResNet", "ResNetForImageClassification", image, embedding_size=16, layer_type="basic", **STAGES)
hf("RegNet", "RegNetForImageClassification", image, embedding_size=16, groups_width=8, **STAGES)
hf("MobileNet v2", "MobileNetV2ForImageClassification", image, depth_multiplier=0.35, num_labels=LABELS)
hf("SegFormer", "SegformerForSemanticSegmentation",
   lambda: {"pixel_values": pixels(), "labels": torch.randint(LABELS, (SIDE, SIDE))}, hidden_sizes=[16, 32, 48, 64],
   depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32, num_labels=LABELS)  # fmt: skip
hf("CLIP", "CLIPModel", captioned, contrastive, text_config={**DECODER, "num_hidden_layers": 2}, vision_config=VISION, projection_dim=32)
hf("SigLIP", "SiglipModel", captioned, contrastive, text_config={**DECODER, "num_hidden_layers": 2}, vision_config=VISION)
hf("Whisper", "WhisperForConditionalGeneration", lambda: {"input_features": torch.randn(16, 48), "labels": tokens()[:12]}, num_mel_bins=16,
   max_source_positions=24, max_target_positions=32, **{k: v for k, v in SEQUENCES.items() if k != "max_position_embeddings"})  # fmt: skip
hf("Wav2Vec2", "Wav2Vec2ForCTC", lambda: {"input_values": torch.randn(1600), "labels": torch.randint(1, 30, (3,))}, conv_dim=(32, 32, 32),
   conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_length=2,
   **{**DECODER, "vocab_size": 32})  # fmt: skip
hf("Decision Transformer", "DecisionTransformerModel", lambda: {
    "states": torch.randn(8, 6), "actions": torch.randn(8, 2), "rewards": torch.randn(8, 1), "returns_to_go": torch.randn(8, 1),
    "timesteps": torch.arange(8)}, lambda model, batch: functional.mse_loss(model(**batch).action_preds, batch["actions"]),
   state_dim=6, act_dim=2, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, max_ep_len=16, use_cache=False)  # fmt: skip
hf("PatchTST", "PatchTSTForPrediction", lambda: {"past_values": torch.randn(32, 3), "future_values": torch.randn(8, 3)},
   num_input_channels=3, context_length=32, prediction_length=8, patch_length=4, patch_stride=4, d_model=WIDTH, num_hidden_layers=LAYERS,
   num_attention_heads=HEADS, ffn_dim=2 * WIDTH)  # fmt: skip
hf("Perceiver", "PerceiverForMaskedLM", padded, num_latents=8, d_latents=WIDTH, d_model=32, num_self_attends_per_block=LAYERS,
   num_self_attention_heads=HEADS, num_cross_attention_heads=HEADS, qk_channels=WIDTH, v_channels=WIDTH, vocab_size=VOCABULARY,
   max_position_embeddings=LENGTH)  # fmt: skip


# ---- timm and torchvision ----


def timm(name: str, side: int = SIDE, **values: Any) -> None:
    def make() -> Task:
        import timm

        return task(timm.create_model(name, num_classes=LABELS, **values), lambda: picture(side), labelled)

    MODELS[f"timm {name}"] = "timm", make


SMALL = {"img_size": 32, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}

timm("resnet10t")
timm("resnet26d")
timm("resnext26ts")
timm("seresnet33ts")
timm("vit_tiny_patch16_224", 32, patch_size=8, drop_path_rate=0.1, drop_rate=0.1, **SMALL)
timm("deit3_small_patch16_224", 32, patch_size=8, **SMALL)
timm("beit_base_patch16_224", 32, patch_size=8, **SMALL)
timm("eva02_tiny_patch14_224", 32, patch_size=8, **SMALL)
timm("cait_xxs24_224", 32, patch_size=8, depth_token_only=1, **SMALL)
timm("xcit_nano_12_p16_224", 32, **SMALL)
timm("swin_tiny_patch4_window7_224", 32, img_size=32, window_size=4, embed_dim=24, depths=(1, 1, 2, 1), num_heads=(2, 2, 3, 3))
timm("mixer_s32_224", 64, img_size=64)
timm("resmlp_12_224", 32, img_size=32)
timm("gmlp_ti16_224", 32, img_size=32)
timm("convmixer_768_32")
timm("convnext_atto", 64)
timm("convnextv2_atto", 64)
timm("efficientnet_lite0", drop_path_rate=0.2)
timm("efficientnetv2_rw_t")
timm("mobilenetv3_small_050")
timm("mnasnet_small")
timm("densenet121", growth_rate=8, block_config=(2, 2, 4, 2))
timm("regnetx_002")
timm("regnety_002")
timm("dla46_c")
timm("hrnet_w18_small")
timm("res2net50_14w_8s")
timm("inception_v3", 96)
timm("ghostnet_050")
timm("levit_128s", 224)
timm("pvt_v2_b0")
timm("poolformer_s12")
timm("mobilevit_xxs")
timm("edgenext_xx_small")
timm("maxvit_rmlp_pico_rw_256", 64, img_size=64)
timm("nfnet_l0", 64)
timm("cspresnet50")


def vision(name: str, side: int = SIDE, of: str = "", **values: Any) -> None:
    def make() -> Task:
        import torchvision

        models = getattr(torchvision.models, of) if of else torchvision.models
        made = getattr(models, name)(weights=None, num_classes=LABELS, **values)
        return task(made, lambda: picture(side), labelled)

    MODELS[f"torchvision {name}"] = "torchvision", make


vision("resnet18")
vision("resnext50_32x4d", 32)
vision("squeezenet1_1")
vision("densenet121")
vision("googlenet", 96, init_weights=False)
vision("shufflenet_v2_x0_5")
vision("mobilenet_v3_small")
vision("efficientnet_b0")
vision("regnet_y_400mf")
vision("convnext_tiny")
vision("swin_t")
vision("fcn_resnet50", 32, "segmentation", weights_backbone=None)
vision("deeplabv3_mobilenet_v3_large", 64, "segmentation", weights_backbone=None)


# ---- nanoGPT ----


def nanogpt(path: Path) -> None:
    """The model of karpathy/nanoGPT, from its file ``model.py``."""

    def make() -> Task:
        spec = importlib.util.spec_from_file_location("nanogpt_model", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nanogpt_model"] = module  # its dataclass looks there
        spec.loader.exec_module(module)
        sizes = {"block_size": LENGTH, "vocab_size": VOCABULARY, "n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH}
        return task(
            module.GPT(module.GPTConfig(**sizes, dropout=0.1, bias=False)), tokens, lambda model, found: model(found, found.roll(-1, 1))[1]
        )

    MODELS["nanoGPT"] = "torch", make


def absent(models: Sequence[str]) -> dict[str, str]:
    """Packages of these that are not there, or cannot be imported, with a line for people."""
    found = {}
    for name in dict.fromkeys(MODELS[model][0] for model in models):
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # a torchvision of another torch ends with the latter
            found[name] = f"{name}: its models are left out ({str(error).splitlines()[0]}); pip install {name}"
    return found
