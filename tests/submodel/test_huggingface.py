"""Default models of Hugging Face's transformers, small and untrained."""

import pytest
import torch
from torch import Tensor

from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from tests.nightly import nightly
from tests.submodel.silencing import random_keep, silenced

transformers = pytest.importorskip("transformers")


def options(**values):
    return values


TEXT = options(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
)
GROUPED = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0}
SHARED = {**TEXT, "num_key_value_heads": 1}
VISION = {k: v for k, v in TEXT.items() if k != "vocab_size"}
PATCHES = {**VISION, "image_size": 32, "patch_size": 8}
GPT = options(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
BLOOM = options(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
OPT = options(ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32)
NEO = options(
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    hidden_size=32,
)
T5 = options(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_heads=4)
COUNTS = {
    f"{part}_{what}": count
    for part in ("encoder", "decoder")
    for what, count in {"layers": 1, "attention_heads": 4, "ffn_dim": 48}.items()
}
BART = options(
    vocab_size=97,
    d_model=32,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
    **COUNTS,
)
WHISPER = {**BART, "num_mel_bins": 8, "max_source_positions": 16}
SPEECH = options(
    conv_dim=(16, 16),
    conv_kernel=(10, 3),
    conv_stride=(5, 2),
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    num_feat_extract_layers=2,
    **VISION,
)
SWIN = options(
    image_size=32,
    patch_size=4,
    window_size=4,
    embed_dim=16,
    depths=[1, 1],
    num_heads=[2, 4],
)
SEGFORMER = options(
    num_encoder_blocks=2,
    depths=[1, 1],
    sr_ratios=[2, 1],
    hidden_sizes=[16, 32],
    patch_sizes=[7, 3],
    strides=[4, 2],
    num_attention_heads=[2, 4],
    mlp_ratios=[2, 2],
    decoder_hidden_size=32,
)
RESNET = options(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
PERCEIVER = options(
    num_latents=6,
    d_latents=32,
    d_model=32,
    vocab_size=97,
    num_blocks=1,
    num_self_attends_per_block=1,
    num_labels=3,
    num_self_attention_heads=4,
    num_cross_attention_heads=4,
    max_position_embeddings=16,
)
PATCH_TST = options(
    num_input_channels=2,
    context_length=16,
    patch_length=4,
    patch_stride=4,
    d_model=32,
    num_attention_heads=4,
    ffn_dim=48,
    prediction_length=4,
    num_hidden_layers=1,
)
VIDEO = {**PATCHES, "num_frames": 4, "tubelet_size": 2}


def ids(length=7):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 96, (2, length), generator=generator)


def floats(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def build(model, arguments):
    torch.manual_seed(0)
    kind = getattr(transformers, model)
    arguments = arguments() if callable(arguments) else arguments
    built = kind(kind.config_class(**arguments)).eval()
    for parameter in built.parameters():
        if parameter.dim() > 1:  # large enough for every unit to be seen
            torch.nn.init.normal_(parameter, std=0.2)
    return built


def detr():
    backbone = transformers.ResNetConfig(**RESNET, out_features=["stage2"])
    own = {"use_timm_backbone": False, "backbone_config": backbone, "num_queries": 5}
    return {"d_model": 32, **COUNTS, **own, "num_labels": 4}


def deformable_detr():
    backbone = transformers.ResNetConfig(**RESNET, out_features=["stage1", "stage2"])
    own = {"backbone_config": backbone, "num_feature_levels": 2, "decoder_layers": 2}
    return {**detr(), **own}


TOKENS = ids()
IMAGE = floats(2, 3, 32, 32)
SEQUENCES = {"input_ids": TOKENS, "decoder_input_ids": ids(5)}
SPECTROGRAM = {"input_features": floats(2, 8, 32), "decoder_input_ids": ids(5)}
CLIP = {
    "text_config": {**TEXT, "eos_token_id": 96, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": PATCHES,
    "projection_dim": 16,
}
HEADS_OF_8 = {"head_dim": 8}
SEEN_AND_READ = {"input_ids": TOKENS, "pixel_values": IMAGE}

# Model -> its arguments, inputs, and layers that make units with how many they make
MODELS = {
    "LlamaForCausalLM": (GROUPED, TOKENS, "q_proj:2 gate_proj:48"),
    "MistralForCausalLM": (SHARED, TOKENS, "q_proj:4 gate_proj:48"),
    "Qwen3ForCausalLM": (GROUPED | HEADS_OF_8, TOKENS, "q_proj:2 gate_proj:48"),
    "Gemma2ForCausalLM": (GROUPED | HEADS_OF_8, TOKENS, "q_proj:2 gate_proj:48"),
    "PhiForCausalLM": (TEXT, TOKENS, "q_proj:4 fc1:48"),
    "Phi3ForCausalLM": (GROUPED, TOKENS, "qkv_proj:2 gate_up_proj:48"),
    "StableLmForCausalLM": (GROUPED, TOKENS, "q_proj:2 gate_proj:48"),
    "GPT2LMHeadModel": (GPT, TOKENS, "c_attn:4 c_fc:128"),
    "GPTNeoForCausalLM": (NEO, TOKENS, "k_proj:4 c_fc:128"),
    "GPTNeoXForCausalLM": (TEXT, TOKENS, "query_key_value:4 dense_h_to_4h:48"),
    "GPTJForCausalLM": (GPT | {"rotary_dim": 4}, TOKENS, "k_proj:4 fc_in:128"),
    "GPTBigCodeForCausalLM": (GPT, TOKENS, "c_attn:4 c_fc:128"),
    "FalconForCausalLM": (TEXT, TOKENS, "query_key_value:4 dense_h_to_4h:128"),
    "BloomForCausalLM": (BLOOM, TOKENS, "dense_h_to_4h:128"),
    "OPTForCausalLM": (TEXT | OPT, TOKENS, "k_proj:4 fc1:48"),
    "BertForSequenceClassification": (TEXT, TOKENS, "query:4 dense:48"),
    "MPNetForSequenceClassification": (TEXT, TOKENS, "q:4 dense:48"),
    "T5ForConditionalGeneration": (T5, SEQUENCES, "q:4 wi:48"),
    "BartForConditionalGeneration": (BART, SEQUENCES, "k_proj:4 fc1:48"),
    "WhisperForConditionalGeneration": (WHISPER, SPECTROGRAM, "k_proj:4 fc1:48"),
    "Wav2Vec2ForSequenceClassification": (
        *(SPEECH, floats(2, 400)),
        "k_proj:4 intermediate_dense:48 conv:16",
    ),
    "CLIPModel": (CLIP, SEEN_AND_READ, "k_proj:4 fc1:48"),
    "ViTForImageClassification": (PATCHES, IMAGE, "q_proj:4 fc1:48"),
    "Swinv2ForImageClassification": (SWIN, IMAGE, "self:4 dense:128"),
    "SegformerForSemanticSegmentation": (SEGFORMER, IMAGE, "q_proj:4 fc1:64"),
    "DetrForObjectDetection": (detr, IMAGE, "k_proj:4 fc1:48 convolution:2"),
    "DeformableDetrForObjectDetection": (deformable_detr, IMAGE, "k_proj:4 fc1:48"),
    "PerceiverForSequenceClassification": (
        *(PERCEIVER, {"inputs": ids(16)}),
        "query:4 dense1:32",
    ),
    "PatchTSTForPrediction": (PATCH_TST, floats(2, 16, 2), "k_proj:4 0:48"),
    "VideoMAEForVideoClassification": (
        *(VIDEO, floats(2, 4, 3, 32, 32)),
        "query:4 dense:48",
    ),
}


def call(model, inputs):
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return first_tensor(output)


def first_tensor(output):
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def call_silenced(model, plan, indices, inputs):
    """Run `model` with dropped units at zero; tied names are given one by one."""
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    state = silenced(model, plan, indices)
    state = {name: tensor.to(dtypes[name]) for name, tensor in state.items()}
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    call = torch.func.functional_call
    return first_tensor(call(model, state, args, kwargs, tie_weights=False))


SLOW = {
    "T5ForConditionalGeneration",
    "DeformableDetrForObjectDetection",
    "DetrForObjectDetection",
    "GPTNeoForCausalLM",
    "Swinv2ForImageClassification",
    "PerceiverForSequenceClassification",
}
LIKE_OTHERS = {
    "GPTJForCausalLM",
    "StableLmForCausalLM",
    "PhiForCausalLM",
    "MistralForCausalLM",
    "GPTBigCodeForCausalLM",
    "MPNetForSequenceClassification",
}
# The gate plans them in the zoo, where more is asked of them.
IN_THE_ZOO = {
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "BloomForCausalLM",
    "FalconForCausalLM",
    "BartForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "Wav2Vec2ForSequenceClassification",
    "CLIPModel",
    "SegformerForSemanticSegmentation",
}
BY_NIGHT = SLOW | LIKE_OTHERS | IN_THE_ZOO


@pytest.mark.parametrize(
    "model", [nightly(name, id=name) if name in BY_NIGHT else name for name in MODELS]
)
def test_heads_and_feed_forward_units(model):
    arguments, inputs, units = MODELS[model]
    full = build(model, arguments)

    plan = plan_submodels(full, inputs)

    found = {f"{group.name.split('.')[-1]}:{group.size}" for group in plan.groups}
    assert set(units.split()) <= found
    for seed, rate in enumerate((0.25, 0.5)):
        indices = plan.indices(random_keep(plan, seed, rate))
        small = load_submodel(full, extract(full.state_dict(), indices), scale=False)
        with torch.no_grad():
            output, expected = call(small, inputs), call(full, inputs)
            silent = call_silenced(full, plan, indices, inputs)
        torch.testing.assert_close(output, silent, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(silent, expected, rtol=1e-3, atol=1e-3)
    train_step(small, inputs)


def train_step(small, inputs):
    before = {name: value.clone() for name, value in small.state_dict().items()}
    call(small.train(), inputs).square().mean().backward()
    torch.optim.SGD(small.parameters(), lr=0.1).step()
    after = small.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(after[name], value) for name, value in before.items())
