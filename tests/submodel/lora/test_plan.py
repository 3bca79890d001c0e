"""Plans of adapters: their units, what is refused, and that they are tried."""

import math
import random
from collections import OrderedDict

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from flwr_asyncdrop.submodel import (
    LoraFlops,
    extract,
    load_lora,
    lora_plan,
    lora_state,
    step_flops,
)
from tests.submodel.lora.models import (
    OWN_PAIRS,
    TRANSPOSED_PAIRS,
    Layers,
    Merging,
    Own,
    Text,
    tokens,
    vectors,
    with_noise,
)

peft = pytest.importorskip("peft")


def text(**options):
    options = {"r": 4, "target_modules": ["emb", "fc", "conv"], **options}
    return peft.get_peft_model(Text(), peft.LoraConfig(**options))


def layers(**options):
    options = {"r": 4, "target_modules": ["up", "down"], **options}
    return peft.get_peft_model(Layers(), peft.LoraConfig(**options))


def tied_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def groups(plan):
    return [(group.name, group.size) for group in plan.groups]


def axes(plan):
    return {
        (name.removeprefix("base_model.model."), dim): units.tolist()
        for name, dims in plan.axes.items()
        for dim, units in dims.items()
    }


class TestUnits:
    def test_ranks_of_every_adapter(self):
        plan = lora_plan(text(modules_to_save=["head"]), tokens())
        assert groups(plan) == [("emb", 4), ("fc", 4), ("conv", 4)]
        assert axes(plan) == {
            ("emb.lora_embedding_A", 0): [0, 1, 2, 3],
            ("emb.lora_embedding_B", 1): [0, 1, 2, 3],
            ("fc.lora_A.weight", 0): [4, 5, 6, 7],
            ("fc.lora_B.weight", 1): [4, 5, 6, 7],
            ("conv.lora_A.weight", 0): [8, 9, 10, 11],
            ("conv.lora_B.weight", 1): [8, 9, 10, 11],
        }
        whole = {name.removeprefix("base_model.model.") for name in plan.left_out}
        assert whole == {"head.weight", "head.bias"}

    def test_only_adapters_and_what_is_saved_beside_them_travel(self):
        model = text(modules_to_save=["head"])
        plan = lora_plan(model)
        assert plan.shapes == {n: tuple(t.shape) for n, t in lora_state(model).items()}
        expected = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        assert plan.shapes.keys() == expected.keys()

    def test_unequal_ranks(self):
        plan = lora_plan(text(rank_pattern={"conv": 2}), tokens())
        assert groups(plan) == [("emb", 4), ("fc", 4), ("conv", 2)]

    def test_shared(self):
        plan = lora_plan(text(), tokens(), shared=True)
        assert groups(plan) == [("ranks", 4)]
        assert all(units == [0, 1, 2, 3] for units in axes(plan).values())

    def test_adapters_from_the_last_one(self):
        plan = lora_plan(text(), tokens(), units="adapters")
        assert groups(plan) == [("adapted adapters", 3)]
        assert axes(plan)["conv.lora_A.weight", 0] == [0, 0, 0, 0]
        assert axes(plan)["emb.lora_embedding_B", 1] == [2, 2, 2, 2]
        shapes = plan.shapes_of(plan.indices((torch.tensor([0, 1]),)))
        assert shapes["base_model.model.emb.lora_embedding_A"] == (0, 20)
        assert shapes["base_model.model.emb.lora_embedding_B"] == (6, 0)

    def test_layers(self):
        plan = lora_plan(layers(), vectors(), units="layers")
        assert groups(plan) == [("adapted layers", 3)]
        assert axes(plan)["layers.2.up.lora_A.weight", 0] == [0, 0, 0, 0]
        assert axes(plan)["layers.0.down.lora_B.weight", 1] == [2, 2, 2, 2]

    def test_bias_goes_with_the_adapter_only(self):
        model = layers(lora_bias=True)
        assert ("layers.0.up.lora_B.bias", 0) not in axes(lora_plan(model, vectors()))
        plan = lora_plan(model, vectors(), units="adapters")
        assert axes(plan)["layers.2.down.lora_B.bias", 0] == [0] * 8

    @pytest.mark.parametrize("units", ["ranks", "layers"])
    def test_of_a_state(self, units):
        model = layers()
        of_state = lora_plan(lora_state(model), units=units)
        of_model = lora_plan(model, vectors(), units=units)
        assert axes(of_state) == axes(of_model)

    def test_adapters_by_hand(self):
        plan = lora_plan(Own(), vectors(6), pairs=OWN_PAIRS)
        assert axes(plan) == {("down", 0): [0, 1, 2, 3], ("up", 1): [0, 1, 2, 3]}
        plan = lora_plan(Own(transposed=True), vectors(6), pairs=TRANSPOSED_PAIRS)
        assert axes(plan) == {("down", 1): [0, 1, 2, 3], ("up", 0): [0, 1, 2, 3]}

    @pytest.mark.parametrize("rank", [1, 4])
    @pytest.mark.parametrize("between", [torch.relu, torch.tanh, torch.abs])
    def test_adapters_with_an_activation_are_no_products(self, between, rank):
        class Bottleneck(Own):
            def __init__(self):
                super().__init__()
                self.down = nn.Parameter(torch.randn(rank, 6))
                self.up = nn.Parameter(torch.randn(5, rank))

            def forward(self, x):
                return self.base(x) + between(x @ self.down.T) @ self.up.T

        model = nn.Sequential(OrderedDict(plain=Own(), middle=nn.Linear(5, 6)))
        model.middle.requires_grad_(False)
        model.other = Bottleneck()
        pairs = [(f"{own}.down", f"{own}.up") for own in ("plain", "other")]
        plan = lora_plan(model, vectors(6), units="adapters", pairs=pairs)
        assert plan.nonlinear == ("other",)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_products_are_known_as_such(self, transposed, dtype):
        model = Own(transposed=transposed).to(dtype)
        pairs = TRANSPOSED_PAIRS if transposed else OWN_PAIRS
        assert lora_plan(model, vectors(6).to(dtype), pairs=pairs).nonlinear == ()
        assert lora_plan(text(), tokens()).nonlinear == ()

    def test_the_model_stays_as_it_is(self):
        model = with_noise(text(modules_to_save=["head"]))
        before = {n: t.clone() for n, t in model.state_dict().items()}
        ids = {name: id(p) for name, p in model.named_parameters()}
        output = model(tokens())
        lora_plan(model, tokens(), units="adapters")
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert ids == {name: id(p) for name, p in model.named_parameters()}
        assert torch.equal(model(tokens()), output)
        assert model.training is False or model.training is True

    def test_inputs_that_the_model_writes_on(self):
        class Writing(Layers):
            def forward(self, x):
                return super().forward(x.mul_(2))

        config = peft.LoraConfig(r=4, target_modules=["up", "down"])
        model, x = peft.get_peft_model(Writing(), config), vectors()
        plan = lora_plan(model, x)
        LoraFlops(plan, model, x).count(plan.shapes)
        assert torch.equal(x, vectors())

    def test_what_the_base_counts_is_put_back(self):
        class Counting(Own):
            def __init__(self):
                super().__init__()
                self.base.register_buffer("passes", torch.tensor(0))

            def forward(self, x):
                self.base.passes += 1
                return super().forward(x)

        model = Counting()

        plan = lora_plan(model, vectors(6), pairs=OWN_PAIRS)
        LoraFlops(plan, model, vectors(6)).count(plan.shapes)

        assert int(model.base.passes) == 0

    def test_adapters_that_eval_mode_merges_into_the_base(self):
        model = nn.Sequential(Merging())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        plan = lora_plan(model, vectors(6))
        full = LoraFlops(plan, model, vectors(6)).count(plan.shapes)

        assert groups(plan) == [("0", 4)]
        assert full > step_flops(Own(), vectors(6))
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert model.training
        assert not model[0].merged


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"units": "heads"}, "units='heads' must be"),
            ({"units": "layers", "shared": True}, "shared=True is for units='ranks'"),
            ({"shared": True}, "have ranks 2, 4"),
        ],
    )
    def test_options(self, options, message):
        model = text(rank_pattern={"conv": 2})
        with pytest.raises(ConfigError, match=message):
            lora_plan(model, tokens(), **options)

    def test_a_single_adapter_has_no_depth(self):
        model = text(target_modules=["fc"])
        with pytest.raises(ConfigError, match="at least two of them"):
            lora_plan(model, units="adapters")

    def test_dora(self):
        model = layers(use_dora=True)
        with pytest.raises(UnsupportedModelError, match=r"variant of LoRA \(DoRA\)"):
            lora_plan(model)
        state = peft.get_peft_model_state_dict(model)
        with pytest.raises(ConfigError, match="a magnitude of DoRA"):
            lora_plan(state)

    def test_other_adapters_of_peft(self):
        config = peft.LoHaConfig(r=2, target_modules=["up"])
        with pytest.raises(UnsupportedModelError, match="type LOHA"):
            lora_plan(peft.get_peft_model(Layers(), config))

    def test_stacked_weights(self):
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.stack = nn.Parameter(torch.randn(3, 6, 5))

            def forward(self, x):
                return torch.einsum("bi,eio->bo", x, self.stack)

        model = nn.Sequential()
        model.add_module("experts", Experts())
        config = peft.LoraConfig(r=2, target_modules=[], target_parameters=["0.stack"])
        config.target_parameters = ["experts.stack"]
        model = peft.get_peft_model(model, config)
        with pytest.raises(UnsupportedModelError, match="ParamWrapper"):
            lora_plan(model)

    def test_attention_of_torch(self):
        model = nn.Sequential(nn.MultiheadAttention(8, 2))
        config = peft.LoraConfig(r=2, target_modules=["0"])
        with pytest.raises(UnsupportedModelError, match="MultiheadAttention"):
            lora_plan(peft.get_peft_model(model, config))

    @pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd")
    def test_grouped_convolutions(self):
        model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))
        config = peft.LoraConfig(r=4, target_modules=["0"])
        with pytest.raises(ShapeError, match="grouped convolutions"):
            lora_plan(peft.get_peft_model(model, config))

    def test_tied_adapters(self):
        model = Own()
        model.again = nn.Linear(6, 5)
        model.again.weight.requires_grad_(False)
        model.other = model.down
        with pytest.raises(
            UnsupportedModelError, match="down and other are one tensor"
        ):
            lora_plan(model, vectors(6), pairs=OWN_PAIRS)

    @pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
    @pytest.mark.parametrize("arrays", [lora_state, lambda model: model])
    def test_adapters_that_peft_ties_by_views(self, arrays):
        config = peft.LoraConfig(
            r=4, target_modules=["embed_tokens", "lm_head"], ensure_weight_tying=True
        )
        model = peft.get_peft_model(tied_llama(), config)
        with pytest.raises(UnsupportedModelError, match=r"lora_.* share memory"):
            lora_plan(arrays(model))

    def test_two_adapters_at_once(self):
        model = layers()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
        assert lora_plan(model).groups[0].size == 4
        model.base_model.set_adapter(["default", "other"])
        with pytest.raises(ConfigError, match="default, other of this model are all"):
            lora_plan(model)

    def test_a_scaling_that_follows_the_shapes(self):
        with pytest.raises(UnsupportedModelError, match="keep the scaling"):
            lora_plan(Own(follows=True), vectors(6), pairs=OWN_PAIRS)

    @pytest.mark.parametrize("training", [True, False])
    def test_a_scaling_that_follows_the_shapes_in_one_mode(self, training):
        class OneMode(Own):
            def forward(self, x):
                self.follows = self.training is training
                return super().forward(nn.functional.dropout(x, 0.5, self.training))

        with pytest.raises(UnsupportedModelError, match="keep the scaling"):
            lora_plan(OneMode(), vectors(6), pairs=OWN_PAIRS)

    def test_noise_of_python_and_dropout_of_components(self):
        class Noisy(Own):
            def forward(self, x):
                inner = nn.functional.dropout(x @ self.down.T, 0.5, self.training)
                noise = random.random()  # noqa: S311
                return self.base(x) * noise + inner @ self.up.T

        plan = lora_plan(Noisy(), vectors(6), pairs=OWN_PAIRS)
        assert [group.size for group in plan.groups] == [4]

    def test_what_training_writes_on_the_base(self):
        class Writing(Own):
            def forward(self, x):
                if self.training:
                    self.base.weight.data.add_(1)
                return super().forward(x)

        model = Writing()
        before = model.base.weight.clone()
        lora_plan(model, vectors(6), pairs=OWN_PAIRS)
        assert torch.equal(model.base.weight, before)

    def test_adapters_by_hand_are_tried(self):
        with pytest.raises(ConfigError, match="pass example_inputs"):
            lora_plan(Own(), pairs=OWN_PAIRS)

    def test_a_bias_of_the_first_factor(self):
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 5))
        pairs = [("0.weight", "1.weight")]
        says = "0: the model does not run without some .* as a bias of A has"
        with pytest.raises(UnsupportedModelError, match=says):
            lora_plan(model, vectors(6), pairs=pairs)
        model[0].bias = None
        assert lora_plan(model, vectors(6), pairs=pairs).left_out.keys() == {"1.bias"}

    def test_a_product_of_something_else(self):
        class Gated(Own):
            def forward(self, x):
                return x @ self.down.T.softmax(1) @ self.up.T

        with pytest.raises(UnsupportedModelError, match="does not give"):
            lora_plan(Gated(), vectors(6), pairs=OWN_PAIRS)

    def test_inputs_that_do_not_use_the_adapters(self):
        class Unused(Own):
            def forward(self, x):
                return self.base(x) if len(x) < 9 else super().forward(x)

        with pytest.raises(UnsupportedModelError, match="inputs do not use them"):
            lora_plan(Unused(), vectors(6), pairs=OWN_PAIRS)

    def test_inputs_that_use_only_some_adapters(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.other = Own(), Own(follows=True)

            def forward(self, x):
                return self.one(x) if len(x) < 9 else self.other(x)

        pairs = [(f"{own}.down", f"{own}.up") for own in ("one", "other")]
        with pytest.raises(
            UnsupportedModelError, match=r"^other.down, other.up: .* not use"
        ):
            lora_plan(Two(), vectors(6), pairs=pairs)

    def test_zeros_as_inputs_hide_nothing(self):
        model = nn.Sequential(Own(follows=True), nn.Linear(5, 6), Own())
        model[1].requires_grad_(False)
        pairs = [(f"{own}.down", f"{own}.up") for own in (0, 2)]
        with pytest.raises(UnsupportedModelError, match=r"^0: .* keep the scaling"):
            lora_plan(model, torch.zeros(1, 6), pairs=pairs)
        model[0].follows = False
        assert len(lora_plan(model, torch.zeros(1, 6), pairs=pairs).groups) == 2

    def test_zeros_may_stand_for_what_is_never_negative(self):
        class Logarithms(Own):
            def forward(self, x):
                return super().forward(x.log1p() + x.sqrt())

        plan = lora_plan(Logarithms(), torch.zeros(1, 6), pairs=OWN_PAIRS)
        assert len(plan.groups) == 1

    def test_infinities_in_the_outputs_hide_nothing(self):
        class Masked(Own):
            def forward(self, x):
                return super().forward(x).masked_fill(torch.arange(5) > 3, -math.inf)

        assert len(lora_plan(Masked(), vectors(6), pairs=OWN_PAIRS).groups) == 1
        with pytest.raises(UnsupportedModelError, match="keep the scaling"):
            lora_plan(Masked(follows=True), vectors(6), pairs=OWN_PAIRS)

    def test_an_infinity_where_components_are_left_out(self):
        class Bounded(Own):
            def forward(self, x):
                y = super().forward(x)
                return y if len(self.down) == 4 else y.masked_fill(y > 0, math.inf)

        with pytest.raises(UnsupportedModelError, match="does not give"):
            lora_plan(Bounded(), vectors(6), pairs=OWN_PAIRS)

    def test_outputs_that_are_nan(self):
        class Broken(Own):
            def forward(self, x):
                return super().forward(x) * math.nan

        with pytest.raises(UnsupportedModelError, match="Broken gives NaN on the exam"):
            lora_plan(Broken(), vectors(6), pairs=OWN_PAIRS)

    def test_on_the_device_meta(self):
        with torch.device("meta"):
            model = layers()
        assert lora_plan(model).num_units == 24
        with pytest.raises(UnsupportedModelError, match="is on the device meta"):
            lora_plan(model, vectors())

    @pytest.mark.parametrize("model", [None, Own, [1]])
    def test_no_model(self, model):
        with pytest.raises(ConfigError, match="model"):
            lora_plan(model)

    def test_pairs_of_a_peft_model_are_tried(self):
        """Rank components of one layer with those of another, say."""
        model = layers()
        names = "base_model.model.layers.{}.up.lora_{}.weight"
        pairs = [
            (names.format(a, "A"), names.format(b, "B")) for a, b in ((0, 1), (1, 0))
        ]
        with pytest.raises(ConfigError, match="PeftModel has pairs: pass example_in"):
            lora_plan(model, pairs=pairs)
        with pytest.raises(UnsupportedModelError, match="without some of them"):
            lora_plan(model, vectors(), pairs=pairs)

    def test_inputs_that_do_not_fit(self):
        with pytest.raises(UnsupportedModelError, match="does not run on the example"):
            lora_plan(Own(), vectors(9), pairs=OWN_PAIRS)

    def test_a_narrowed_model(self):
        model = layers()
        plan = lora_plan(model)
        keep = tuple(torch.tensor([0]) for _ in plan.groups)
        load_lora(model, extract(lora_state(layers()), plan.indices(keep)))
        with pytest.raises(ConfigError, match="load_lora has narrowed this PeftModel"):
            lora_plan(model)

    def test_merged_adapters(self):
        model = layers()
        model.merge_adapter()
        with pytest.raises(UnsupportedModelError, match=r"call model\.unmerge_adapter"):
            lora_plan(model)

    def test_adapters_by_hand_that_are_merged(self):
        model = nn.Sequential(Merging()).eval()

        with pytest.raises(UnsupportedModelError, match=r"merged.*model.train\(\)"):
            lora_plan(model, vectors(6))
        with pytest.raises(UnsupportedModelError, match=r"merged.*model.train\(\)"):
            load_lora(model, lora_state(model))

    def test_parameters_that_train_and_would_not_travel(self):
        model = text()
        model.base_model.model.head.bias.requires_grad_(True)
        with pytest.raises(
            ConfigError, match=r"model\.head\.bias trains, and would not"
        ):
            lora_plan(model)

    def test_a_frozen_model(self):
        with pytest.raises(ConfigError, match="Linear trains nothing"):
            lora_plan(nn.Linear(2, 2).requires_grad_(False))


class TestFlops:
    """By hand: a product of (4, i) and (i, o) is 8 i o operations."""

    FORWARD = 3 * 2 * 8 * 8 * 12
    A_PRODUCT, B_PRODUCT = 8 * 8 * 4, 8 * 12 * 4  # of an adapter of ``up``, rank 4

    def count(self, *kept, units="layers"):
        model = layers()
        plan = lora_plan(model, vectors(), units=units)
        counter = LoraFlops(plan, model, vectors())
        return counter.count(plan.shapes_of(plan.indices((torch.tensor(kept),))))

    def adapters(self, layers):
        """Forward, and backward to the weights and to the inputs."""
        return layers * 2 * 3 * (self.A_PRODUCT + self.B_PRODUCT)

    def test_nothing_below_the_first_adapter_runs_backward(self):
        below_up = 8 * 8 * 12  # the input of the first kept layer needs no gradient
        layer = self.FORWARD // 3
        for layers_kept in (1, 2, 3):
            expected = self.FORWARD + layers_kept * layer + self.adapters(layers_kept)
            expected -= below_up + self.A_PRODUCT
            assert self.count(*range(layers_kept)) == expected

    def test_depth_saves_more_at_the_bottom(self):
        assert self.count(0) < self.count(1) < self.count(2)

    @pytest.mark.parametrize("inputs_alone", [False, True])
    def test_in_inference_mode(self, inputs_alone):
        model = layers()
        plan = lora_plan(model)
        outside = LoraFlops(plan, model, vectors()).count(plan.shapes)
        with torch.inference_mode():
            x = vectors()
            inside = LoraFlops(plan, model, x).count(plan.shapes)
        if inputs_alone:
            inside = LoraFlops(plan, model, x).count(plan.shapes)
        assert inside == outside

    def test_inputs_that_do_not_fit(self):
        model = layers()
        plan = lora_plan(model)
        counter = LoraFlops(plan, model, vectors(9))
        with pytest.raises(UnsupportedModelError, match="does not run on the example"):
            counter.count(plan.shapes)

    def test_the_model_has_no_gradients_after(self):
        model = layers()
        plan = lora_plan(model, vectors())
        LoraFlops(plan, model, vectors()).count(plan.shapes)
        assert all(parameter.grad is None for parameter in model.parameters())
