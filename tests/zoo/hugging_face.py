"""Hugging Face's models: small, else with their default configurations, unwrapped.

Names in the table are looked up in `transformers` when a model is built: its import
takes seconds.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entries import Draw, Drawer, Entry
from tests.zoo.passes import Arguments

__all__ = ["HUGGING_FACE"]

VOCABULARY = 99


def build(model: str, config: str, sizes: Mapping[str, Any]) -> nn.Module:
    """Return a model of `transformers`; `sizes` of its parts may be nested."""
    import transformers

    made: nn.Module = getattr(transformers, model)(
        getattr(transformers, config)(**sizes)
    )
    return made


def words(draw: Draw) -> Arguments:
    """Return token numbers, by keyword."""
    return Arguments(kwargs={"input_ids": draw.tokens(VOCABULARY, 9)})


def padded(draw: Draw) -> Arguments:
    """Return token numbers with an attention mask: the first example is padded."""
    tokens = draw.tokens(VOCABULARY, 9)
    mask = torch.ones_like(tokens)
    mask[0, -2:] = 0
    return Arguments(kwargs={"input_ids": tokens, "attention_mask": mask})


def labelled(draw: Draw) -> Arguments:
    """Return token numbers that are their own labels: the output has the loss."""
    tokens = draw.tokens(VOCABULARY, 9)
    return Arguments(kwargs={"input_ids": tokens, "labels": tokens.clone()})


def translation(draw: Draw) -> Arguments:
    """Return token numbers for an encoder and for a decoder."""
    return Arguments(
        kwargs={
            "input_ids": draw.tokens(VOCABULARY, 9),
            "decoder_input_ids": draw.tokens(VOCABULARY, 5),
        }
    )


def pixels(side: int) -> Drawer:
    """Return a drawer of images, by keyword."""
    return lambda draw: Arguments(kwargs={"pixel_values": draw.reals(3, side, side)})


def captions(draw: Draw) -> Arguments:
    """Return images and texts."""
    tokens = draw.tokens(VOCABULARY, 7)
    tokens[:, -1] = VOCABULARY - 1
    return Arguments(
        kwargs={
            "input_ids": tokens,
            "pixel_values": draw.reals(3, 32, 32),
        }
    )


def spectrogram(draw: Draw) -> Arguments:
    """Return what Whisper hears and has said."""
    return Arguments(
        kwargs={
            "input_features": draw.reals(16, 40),
            "decoder_input_ids": draw.tokens(VOCABULARY, 5),
        }
    )


def sound(draw: Draw) -> Tensor:
    """Return sound waves."""
    return draw.reals(800 + 80 * draw.longer)


HIDDEN, LAYERS, HEADS = 32, 2, 4
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
ENCODER = COMMON | {"intermediate_size": 48}
DECODER = ENCODER | {
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = DECODER | {"head_dim": 8}
GPT = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
} | ENDS
VISION = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
EXPERTS = DECODER | {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
SPEECH = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}


def _causal(name: str, sizes: Mapping[str, Any], draw: Drawer = words) -> Entry:
    return _of(f"{name}ForCausalLM", f"{name}Config", sizes, draw)


def _of(model: str, config: str, sizes: Mapping[str, Any], draw: Drawer) -> Entry:
    return Entry(partial(build, model, config, sizes), draw)


def _classifier(name: str, sizes: Mapping[str, Any], draw: Drawer = padded) -> Entry:
    return _of(f"{name}ForSequenceClassification", f"{name}Config", sizes, draw)


def _images(name: str, sizes: Mapping[str, Any], side: int = 32) -> Entry:
    return _of(f"{name}ForImageClassification", f"{name}Config", sizes, pixels(side))


_DECODERS = {
    "hf_llama": _causal("Llama", DECODER, labelled),
    "hf_mistral": _causal("Mistral", DECODER, padded),
    "hf_qwen2": _causal("Qwen2", DECODER),
    "hf_qwen3": _causal("Qwen3", GEMMA),
    "hf_gemma": _causal("Gemma", GEMMA),
    "hf_gemma2": _causal("Gemma2", GEMMA),
    "hf_gemma3": _of("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA, words),
    "hf_phi": _causal("Phi", DECODER),
    "hf_phi3": _causal("Phi3", DECODER),
    "hf_gpt2": _of("GPT2LMHeadModel", "GPT2Config", GPT | ENDS, labelled),
    "hf_gpt_neo": _causal(
        "GPTNeo",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "attention_types": [[["global", "local"], 1]],
        }
        | ENDS,
    ),
    "hf_gpt_neox": _causal("GPTNeoX", ENCODER | ENDS),
    "hf_gptj": _causal("GPTJ", GPT | {"rotary_dim": 4} | ENDS),
    "hf_gpt_bigcode": _causal("GPTBigCode", GPT | ENDS),
    "hf_opt": _causal(
        "OPT",
        COMMON | {"ffn_dim": 48, "word_embed_proj_dim": HIDDEN} | ENDS,
        padded,
    ),
    "hf_bloom": _causal("Bloom", GPT | {"hidden_size": HIDDEN} | ENDS, padded),
    "hf_falcon": _causal("Falcon", COMMON | ENDS),
    "hf_starcoder2": _causal("Starcoder2", DECODER),
    "hf_olmo2": _causal("Olmo2", DECODER),
    "hf_stablelm": _causal("StableLm", DECODER),
    "hf_cohere": _causal("Cohere", DECODER),
    "hf_granite": _causal("Granite", DECODER),
    "hf_mixtral": _causal("Mixtral", DECODER | {"num_local_experts": 4}),
    "hf_qwen2_moe": _causal(
        "Qwen2Moe",
        EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 32},
    ),
    "hf_olmoe": _causal(
        "Olmoe", DECODER | {"num_experts": 4, "num_experts_per_tok": 2}
    ),
    "hf_qwen3_moe": _causal("Qwen3Moe", EXPERTS | {"num_experts": 4, "head_dim": 8}),
    "hf_mamba": _causal(
        "Mamba",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "state_size": 4,
        }
        | ENDS,
    ),
}

_ENCODERS = {
    "hf_bert": _classifier("Bert", ENCODER),
    "hf_bert_masked": _of("BertForMaskedLM", "BertConfig", ENCODER, words),
    "hf_roberta": _classifier("Roberta", ENCODER),
    "hf_distilbert": _classifier(
        "DistilBert",
        {
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": 48,
        },
    ),
    "hf_albert": _classifier("Albert", ENCODER | {"embedding_size": 16}),
    "hf_electra": _classifier("Electra", ENCODER | {"embedding_size": 16}),
    "hf_deberta": _classifier(
        "Deberta",
        ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    ),
    "hf_deberta_v2": _classifier("DebertaV2", ENCODER),
    "hf_mpnet": _classifier("MPNet", ENCODER),
    "hf_modernbert": _classifier("ModernBert", ENCODER | ENDS),
}

_SEQ2SEQ = {
    "hf_t5": _of(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
        translation,
    ),
    "hf_bart": _of("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, translation),
    "hf_marian": _of("MarianMTModel", "MarianConfig", SEQ2SEQ, translation),
    "hf_whisper": _of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 20},
        spectrogram,
    ),
    "hf_wav2vec2": _of("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, sound),
    "hf_hubert": _of("HubertForCTC", "HubertConfig", SPEECH, sound),
}

_TOWERS = {
    "text_config": ENCODER | {"eos_token_id": VOCABULARY - 1},
    "vision_config": VISION,
}

_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}

_SEEING = {
    "hf_clip": _of(
        "CLIPModel", "CLIPConfig", _TOWERS | {"projection_dim": 16}, captions
    ),
    "hf_siglip": _of(
        "SiglipModel",
        "SiglipConfig",
        _TOWERS,
        lambda draw: captions(Draw(draw.batch, 0, draw.generator)),
    ),
    "hf_vit": _images("ViT", VISION),
    "hf_deit": _images("DeiT", VISION),
    "hf_beit": _images("Beit", VISION),
    "hf_swin": _images("Swin", _SWIN),
    "hf_swin_v2": _images("Swinv2", _SWIN),
    "hf_convnext_v2": _images(
        "ConvNextV2", {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1]}
    ),
    "hf_dinov2": _images("Dinov2", VISION | {"mlp_ratio": 2}),
    "hf_resnet": _images(
        "ResNet", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]}
    ),
    "hf_detr": _of(
        "DetrForObjectDetection",
        "DetrConfig",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "out_features": ["stage2"],
            },
            "d_model": HIDDEN,
            "encoder_layers": 1,
            "decoder_layers": LAYERS,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "num_queries": 6,
            "num_labels": 5,
        },
        pixels(64),
    ),
    "hf_segformer": _of(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "num_attention_heads": [2, 4],
            "strides": [4, 2],
            "patch_sizes": [7, 3],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 24,
        },
        pixels(32),
    ),
}

# Not much like any of the others; the rest has its turn in the nightly command.
_OWN_KINDS = "gpt2 gpt_neox bloom bert vit convnext_v2"

HUGGING_FACE: Mapping[str, Entry] = {
    name: replace(entry, large=name.removeprefix("hf_") not in _OWN_KINDS.split())
    for name, entry in (_DECODERS | _ENCODERS | _SEQ2SEQ | _SEEING).items()
}
