"""Hugging Face's mixtures of experts against their formulas, token by token.

The oracle is the full model whose mixtures are replaced by loops over the tokens that
know the kept experts only, with all other dropped units zeroed.
"""

from functools import cache
from types import SimpleNamespace

import pytest
import torch

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    extract,
    load_submodel,
    plan_submodels,
    savings,
    step_flops,
)
from tests.nightly import by_night, nightly
from tests.submodel.mixtures import largest, normalised, softmax

transformers = pytest.importorskip("transformers")

TOKENS = torch.arange(10).reshape(2, 5)
WIDTHS = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LOCAL = {"intermediate_size": 24, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN = {"moe_intermediate_size": 20, "num_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "intermediate_size": 24,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "v_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
}


def top_of_all(logits, config):
    """Softmax over all, then the largest."""
    shares = largest(softmax(logits), config.num_experts_per_tok)
    return normalised(shares) if config.norm_topk_prob else shares


def mixtral(logits, config):
    return normalised(largest(softmax(logits), config.num_experts_per_tok))


def softmax_of_top(logits, config):
    return softmax(largest(logits, config.num_experts_per_tok))


def sparse_mixer(logits, config):
    """Twice the largest, each with its softmax among those within reach of it."""
    shares = {}
    for _ in range(2):
        rest = {e: value for e, value in logits.items() if e not in shares}
        ((best, top),) = largest(rest, 1).items()
        near = {
            e: value
            for e, value in rest.items()
            if (top - value) / max(value.abs(), top) <= 2 * config.router_jitter_noise
        }
        shares[best] = softmax(near)[best]
    return shares


def corrected(logits, config, bias):
    scores = {e: value.sigmoid() for e, value in logits.items()}
    best = largest({e: score + bias[e] for e, score in scores.items()}, 2)
    shares = normalised({e: scores[e] for e in best})
    return {e: share * config.routed_scaling_factor for e, share in shares.items()}


def gated(experts, e, token):
    gate, up = (experts.gate_up_proj[e] @ token).chunk(2)
    return experts.down_proj[e] @ (experts.act_fn(gate) * up)


def interleaved(experts, e, token):
    both = token @ experts.gate_up_proj[e] + experts.gate_up_proj_bias[e]
    gate = both[::2].clamp(max=experts.limit)
    up = both[1::2].clamp(-experts.limit, experts.limit)
    hidden = (up + 1) * gate * torch.sigmoid(gate * experts.alpha)
    return hidden @ experts.down_proj[e] + experts.down_proj_bias[e]


def model(name, shares, *, expert=gated, inner=24, **sizes):
    return SimpleNamespace(
        name=name, shares=shares, expert=expert, inner=inner, sizes=WIDTHS | sizes
    )


MODELS = {
    "mixtral": model("Mixtral", mixtral, num_hidden_layers=2, **LOCAL),
    "qwen2": model(
        "Qwen2Moe", top_of_all, inner=20, shared_expert_intermediate_size=12, **QWEN
    ),
    "qwen3": model("Qwen3Moe", top_of_all, inner=20, head_dim=8, **QWEN),
    "olmoe": model(
        *("Olmoe", top_of_all),
        intermediate_size=24,
        num_experts=8,
        num_experts_per_tok=3,
    ),
    "gpt_oss": model("GptOss", softmax_of_top, expert=interleaved, head_dim=8, **LOCAL),
    "phimoe": model("Phimoe", sparse_mixer, **LOCAL),
    "granite": model("GraniteMoe", softmax_of_top, **LOCAL),
    "deepseek_v3": model(
        *("DeepseekV3", corrected), inner=20, n_group=1, topk_group=1, **DEEPSEEK
    ),
}
# Shares in three ways, experts in two, and one that all tokens share
GATE = {"mixtral"}


def build(name, sizes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    built = getattr(transformers, f"{name}ForCausalLM")(config)
    for tensor in built.parameters():  # as trained, not tiny as initialised
        if tensor.dim() > 1:
            torch.nn.init.normal_(tensor, std=tensor.shape[-1] ** -0.5)
    return built.eval()


@cache
def planned(key):
    spec = MODELS[key]
    full = build(spec.name, spec.sizes)
    return full, plan_submodels(full, {"input_ids": TOKENS})


def drawn(group, seed):
    generator = torch.Generator().manual_seed(seed)
    count = torch.randint(group.least, group.size + 1, (), generator=generator)
    return torch.randperm(group.size, generator=generator)[: int(count)].sort().values


def with_formulas(full, spec, kept):
    """Replace the mixtures of a copy of `full`; `kept` has the experts in order."""
    config = full.config
    kept = iter(kept)
    for block in full.modules():
        if hasattr(block, "experts"):
            block.forward = formula(block, spec, config, next(kept))
    return full


def formula(block, spec, config, kept):
    router = getattr(block, "gate", None) or block.router
    bias = getattr(router, "bias", None)
    correction = getattr(router, "e_score_correction_bias", None)

    def mixed(token):
        logits = {
            e: router.weight[e] @ token + (0 if bias is None else bias[e])
            for e in kept.tolist()
        }
        extra = [] if correction is None else [correction]
        shares = spec.shares(logits, config, *extra)
        return sum(s * spec.expert(block.experts, e, token) for e, s in shares.items())

    def forward(hidden):
        rows = hidden.flatten(0, -2)
        output = torch.stack([mixed(token) for token in rows]).view_as(hidden)
        if hasattr(block, "shared_experts"):
            output = output + block.shared_experts(hidden)
        if hasattr(block, "shared_expert"):
            open_ = block.shared_expert_gate(hidden).sigmoid()
            output = output + open_ * block.shared_expert(hidden)
        return (output, None) if spec.name == "GptOss" else output

    return forward


def zeroed(full, plan, keep):
    """Return the full model's state, dropped units zero, experts untouched."""
    units = [
        torch.arange(group.size) if group.kind == "expert" else kept
        for group, kept in zip(plan.groups, keep, strict=True)
    ]
    state = {}
    for name, tensor in full.state_dict(keep_vars=True).items():
        mask = torch.ones(tensor.shape, dtype=tensor.dtype)
        for dim, kept in plan.indices(tuple(units)).get(name, {}).items():
            along = torch.zeros(tensor.shape[dim], dtype=tensor.dtype)
            along[kept] = 1
            mask *= along.view([-1 if k == dim else 1 for k in range(tensor.dim())])
        state[name] = tensor * mask
    return state


@pytest.mark.parametrize(
    "key", [key if key in GATE else nightly(key, id=key) for key in MODELS]
)
class TestFormula:
    def test_units(self, key):
        spec = MODELS[key]
        _, plan = planned(key)

        found = [(g.size, g.kind, g.least) for g in plan.groups]
        layers = spec.sizes["num_hidden_layers"]
        chosen = spec.sizes["num_experts_per_tok"]
        assert found.count((8, "expert", chosen)) == layers
        assert found.count((spec.inner, "internal", 1)) >= layers

    @pytest.mark.parametrize("seed", range(2))
    def test_outputs_and_gradients(self, key, seed):
        spec = MODELS[key]
        full, plan = planned(key)
        keep = tuple(drawn(group, seed) for group in plan.groups)
        experts = [
            units
            for group, units in zip(plan.groups, keep, strict=True)
            if group.kind == "expert"
        ]
        indices = plan.indices(keep)
        small = load_submodel(full, extract(full.state_dict(), indices), scale=False)
        oracle = with_formulas(build(spec.name, spec.sizes), spec, experts)
        state = zeroed(oracle, plan, keep)

        output = small(input_ids=TOKENS).logits
        expected = torch.func.functional_call(
            oracle, state, (), {"input_ids": TOKENS}, tie_weights=False
        ).logits

        torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
        output.square().mean().backward()
        expected.square().mean().backward()
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad
            for name, p in oracle.named_parameters()
        }
        kept = {name: dims for name, dims in indices.items() if name in gradients}
        for name, gradient in extract(gradients, kept).items():
            mine = small.get_parameter(name).grad
            mine = torch.zeros_like(gradient) if mine is None else mine
            torch.testing.assert_close(mine, gradient, rtol=1e-2, atol=1e-5)

    def test_it_trains(self, key):
        full, plan = planned(key)
        keep = tuple(drawn(group, 5) for group in plan.groups)
        sub = extract(full.state_dict(), plan.indices(keep))
        small = load_submodel(full, sub).train()

        loss = small(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()

        assert bool(loss.isfinite())
        assert all(
            bool(p.grad.isfinite().all())
            for p in small.parameters()
            if p.grad is not None
        )

    def test_more_than_a_fifth_is_saved(self, key):
        full, plan = planned(key)

        (cost,) = savings(plan, full, TOKENS, [0.25])

        assert cost.bytes_ratio < 0.8
        assert cost.flops_ratio < 0.9

    def test_the_model_stays_as_it_is(self, key):
        full, _ = planned(key)

        assert step_flops(full, TOKENS) > 0
        assert full.config._experts_implementation == "grouped_mm"


def test_inner_widths_that_grouped_products_refuse_are_run_in_turn():
    full, plan = planned("mixtral")
    keep = [torch.arange(group.size) for group in plan.groups]
    inner = [n for n, g in enumerate(plan.groups) if g.size == 24]
    keep[inner[0]], keep[inner[1]] = torch.arange(20), torch.arange(21)
    sub = extract(full.state_dict(), plan.indices(tuple(keep)))

    small = load_submodel(full, sub)

    first, second = (layer.mlp.experts for layer in small.model.layers)
    assert first.config._experts_implementation == "grouped_mm"
    assert second.config._experts_implementation == "eager"
    assert small(input_ids=TOKENS).logits.isfinite().all()


class TestLeftWhole:
    @by_night
    def test_shown_router_logits(self):
        spec = MODELS["mixtral"]
        full = build(spec.name, spec.sizes | {"output_router_logits": True})

        plan = plan_submodels(full, {"input_ids": TOKENS})

        assert all(group.kind != "expert" for group in plan.groups)
        assert "model.layers.0.mlp.gate" in plan.left_out

    def test_groups_of_experts(self):
        sizes = WIDTHS | DEEPSEEK | {"n_group": 4, "topk_group": 2}
        full = build("DeepseekV3", sizes)

        plan = plan_submodels(full, {"input_ids": TOKENS})

        assert all(group.kind != "expert" for group in plan.groups)
        assert 20 in [group.size for group in plan.groups]

    def test_experts_that_read_the_data(self):
        sizes = {
            "vocab_size": 32,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "intermediate_size": 24,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        with pytest.raises(UnsupportedModelError, match=r"router\.layer.*: used where"):
            plan_submodels(build("JetMoe", sizes), {"input_ids": TOKENS})
