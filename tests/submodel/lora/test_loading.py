"""Loading adapters of other ranks in place: it is the full model with zeros."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from flwr_asyncdrop.submodel import (
    extract,
    load_lora,
    lora_plan,
    lora_state,
    merge_,
    silenced,
)
from tests.submodel.lora.models import (
    OWN_PAIRS,
    TRANSPOSED_PAIRS,
    Layers,
    Own,
    Text,
    tokens,
    vectors,
    with_noise,
)

peft = pytest.importorskip("peft")


def text(**options):
    options = {
        "r": 4,
        "target_modules": ["emb", "fc", "conv"],
        "modules_to_save": ["head"],
        **options,
    }
    torch.manual_seed(0)
    return with_noise(peft.get_peft_model(Text(), peft.LoraConfig(**options)))


def layers(**options):
    options = {"r": 4, "target_modules": ["up", "down"], **options}
    torch.manual_seed(0)
    return with_noise(peft.get_peft_model(Layers(), peft.LoraConfig(**options)))


def keep_of(plan, data):
    """Draw which units of every group stay."""
    keep = []
    for group in plan.groups:
        units = st.sets(st.integers(0, group.size - 1), min_size=1)
        keep.append(torch.tensor(sorted(data.draw(units))))
    return tuple(keep)


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


class TestTheFullModelWithZeros:
    """Ranks, adapters and layers; linear layers, embeddings, convolutions; scalings."""

    @pytest.mark.parametrize("units", ["ranks", "adapters"])
    @pytest.mark.parametrize(
        "options", [{}, {"use_rslora": True}, {"alpha_pattern": {"fc": 32}}]
    )
    @settings(max_examples=5, deadline=None)
    @given(data=st.data())
    def test_peft(self, units, options, data):
        model, full = (text(**options).double().eval() for _ in range(2))
        plan = lora_plan(model, units=units)
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        indices = plan.indices(keep_of(plan, data))

        load_lora(model, extract(state, indices))
        load_lora(full, silenced(state, indices))

        torch.testing.assert_close(model(tokens()), full(tokens()))
        mine, whole = gradients(model, tokens()), gradients(full, tokens())
        for name, gradient in mine.items():
            short = name.replace(".default", "").replace(".modules_to_save", "")
            part = extract({short: whole[name]}, _only(indices, short))[short]
            torch.testing.assert_close(gradient, part)

    @pytest.mark.parametrize("bias", [False, True])
    def test_layers_left_out(self, bias):
        model, full = layers(lora_bias=bias), layers(lora_bias=bias)
        plan = lora_plan(model, vectors(), units="layers")
        indices = plan.indices((torch.tensor([1]),))
        load_lora(model, extract(lora_state(full), indices))
        load_lora(full, silenced(lora_state(full), indices))
        torch.testing.assert_close(model(vectors()), full(vectors()))

    @pytest.mark.parametrize("transposed", [False, True])
    def test_by_hand(self, transposed):
        pairs = TRANSPOSED_PAIRS if transposed else OWN_PAIRS
        model = Own(transposed=transposed)
        full = copy.deepcopy(model)
        plan = lora_plan(model, vectors(6), pairs=pairs)
        indices = plan.indices((torch.tensor([0, 2, 3]),))
        load_lora(model, extract(lora_state(full), indices), pairs=pairs)
        load_lora(full, silenced(lora_state(full), indices), pairs=pairs)
        torch.testing.assert_close(model(vectors(6)), full(vectors(6)))

    def test_golden_scaling(self):
        """W + alpha / r b a with alpha 6 and r 3, of which one component is left."""
        model = nn.Sequential(nn.Linear(2, 2, bias=False))
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0"])
        )
        with torch.no_grad():
            model.base_model.model[0].base_layer.weight.copy_(torch.eye(2))
        a, b = "base_model.model.0.lora_A.weight", "base_model.model.0.lora_B.weight"
        load_lora(
            model, {a: torch.tensor([[1.0, 10.0]]), b: torch.tensor([[3.0], [0.5]])}
        )
        # x = (1, 1): x + 6 / 3 * (3, 0.5) * (1 + 10)
        output = model(torch.ones(1, 2))
        assert output.tolist() == [[1 + 2 * 3 * 11, 1 + 2 * 0.5 * 11]]


def _only(indices, name):
    return {name: indices[name]} if name in indices else {}


class TestInPlace:
    def test_parameters_are_the_same_objects_and_an_optimizer_trains_them(self):
        model = text()
        optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=0.1
        )
        ids = {name: id(p) for name, p in model.named_parameters()}
        plan = lora_plan(model)
        indices = plan.indices(tuple(torch.tensor([1, 3]) for _ in plan.groups))
        sent = extract(lora_state(model), indices)
        load_lora(model, sent)
        assert ids == {name: id(p) for name, p in model.named_parameters()}
        model(tokens()).square().sum().backward()
        optimizer.step()
        reply = lora_state(model)
        assert all(not torch.equal(reply[name], sent[name]) for name in sent)

    @pytest.mark.parametrize("units", ["ranks", "adapters"])
    def test_what_comes_back_merges(self, units):
        model = text()
        plan = lora_plan(model, units=units)
        full = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        indices = plan.indices(
            tuple(torch.tensor([0, group.size - 1]) for group in plan.groups)
        )
        load_lora(model, extract(full, indices))
        reply = {name: tensor + 1 for name, tensor in lora_state(model).items()}
        merged = {name: tensor.clone() for name, tensor in full.items()}
        merge_(merged, reply, indices, 1.0)
        kept = silenced({n: torch.ones_like(t) for n, t in full.items()}, indices)
        for name in full:
            torch.testing.assert_close(merged[name], full[name] + kept[name])

    @pytest.mark.filterwarnings("ignore:Adapter 'default'")
    def test_what_peft_returns_fits_too(self):
        model = text()
        plan = lora_plan(model, units="adapters")
        indices = plan.indices((torch.tensor([0]),))
        sent = extract(lora_state(model), indices)
        load_lora(model, sent)
        theirs = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        assert {n: t.shape for n, t in theirs.items()} == {
            n: t.shape for n, t in sent.items()
        }

    def test_again_with_other_ranks_and_at_last_all(self):
        model, untouched = text().eval(), text().eval()
        plan = lora_plan(model)
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        for kept in ([0], [1, 2, 3]):
            indices = plan.indices(tuple(torch.tensor(kept) for _ in plan.groups))
            load_lora(model, extract(state, indices))
            layer = model.base_model.model.fc.lora_A["default"]
            assert layer.out_features == len(kept)
        load_lora(model, state)
        assert layer.out_features == 4
        assert torch.equal(model(tokens()), untouched(tokens()))

    def test_a_copy_of_a_narrowed_model_can_be_loaded(self):
        model = text()
        plan = lora_plan(model, units="adapters")
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        twin = copy.deepcopy(model)
        load_lora(twin, state)
        assert torch.equal(twin(tokens()), text()(tokens()))
        assert lora_state(model)["base_model.model.fc.lora_A.weight"].numel() == 0

    def test_without_gradients_a_hand_written_model_still_knows_what_travels(self):
        model = Own()
        names = list(lora_state(model))
        model.other = nn.Parameter(torch.zeros(3, 2))
        load_lora(model, {**lora_state(model)}, pairs=OWN_PAIRS)
        assert list(lora_state(model)) == [*names, "other"]

    def test_what_is_loaded_in_inference_mode_trains(self):
        model = layers()
        plan = lora_plan(model)
        keep = tuple(torch.tensor([1, 3]) for _ in plan.groups)
        sent = extract(lora_state(model), plan.indices(keep))
        with torch.inference_mode():
            load_lora(model, sent)
        assert gradients(model, vectors()).keys() == {
            n for n, p in model.named_parameters() if p.requires_grad
        }

    def test_a_model_that_was_made_in_inference_mode_can_be_loaded_in_it(self):
        with torch.inference_mode():
            model = layers()
            plan = lora_plan(model)
            keep = tuple(torch.tensor([1, 3]) for _ in plan.groups)
            load_lora(model, extract(lora_state(model), plan.indices(keep)))
            assert model(vectors()).shape == (4, 8)


class TestSkipping:
    def shapes_of_saved_activations(self, model, x):
        shapes = []

        def pack(tensor):
            shapes.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(x)
        return shapes

    def test_adapters_without_components_are_not_run(self):
        model = layers()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, units="layers")
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        run = []
        for name, module in model.named_modules():
            if name.endswith("default"):
                module.register_forward_hook(lambda *_, name=name: run.append(name))
        model(vectors())
        assert {name.split(".")[3] for name in run if "dropout" not in name} == {"2"}
        load_lora(model, state)
        run.clear()
        model(vectors())
        assert {name.split(".")[3] for name in run} == {"0", "1", "2"}

    def test_what_is_left_out_keeps_no_activations(self):
        counts = {}
        for units, kept in (("ranks", [0]), ("layers", [0])):
            model = layers()
            plan = lora_plan(model, units=units)
            keep = tuple(torch.tensor(kept) for _ in plan.groups)
            load_lora(model, extract(lora_state(layers()), plan.indices(keep)))
            counts[units] = len(self.shapes_of_saved_activations(model, vectors()))
        full = len(self.shapes_of_saved_activations(layers(), vectors()))
        assert counts["ranks"] == full
        assert counts["layers"] < full / 2

    def test_empty_parameters_have_no_gradients(self):
        """What requires them is as it was: an optimizer built now has all of them."""
        model = layers()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        plan = lora_plan(model, units="layers")
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        found = gradients(model, vectors())
        assert {name.split(".")[3] for name in found} == {"2"}
        assert trained == {n for n, p in model.named_parameters() if p.requires_grad}
        load_lora(model, state)
        assert gradients(model, vectors()).keys() == trained

    def test_those_of_ones_own_do_not_train_and_do_later_again(self):
        model = nn.Sequential(Own(), nn.Linear(5, 6).requires_grad_(False), Own())
        pairs = [(f"{own}.down", f"{own}.up") for own in (0, 2)]
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, vectors(6), units="adapters", pairs=pairs)
        load_lora(model, state, pairs=pairs)
        model[2].up.requires_grad_(False)
        part = extract(state, plan.indices((torch.tensor([0]),)))
        for sent, below in ((part, []), (state, ["0.down", "0.up"])):
            load_lora(model, sent, pairs=pairs)
            trained = [n for n, p in model.named_parameters() if p.requires_grad]
            assert trained == [*below, "2.down"]

    @pytest.mark.parametrize("units", ["ranks", "layers"])
    def test_what_the_client_has_frozen_since_stays_frozen(self, units):
        """The factors train in turns, as in RoLoRA, or only the ``B`` of FFA-LoRA."""
        model = layers()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, units=units)
        keep = tuple(torch.tensor([0]) for _ in plan.groups)
        some = extract(state, plan.indices(keep))
        load_lora(model, state)
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.requires_grad_(False)
        chosen = {n for n, p in model.named_parameters() if p.requires_grad}
        for sent in (state, some, state):
            load_lora(model, sent)
            trained = {n for n, p in model.named_parameters() if p.requires_grad}
            assert trained == chosen

    @pytest.mark.parametrize("frozen", ["lora_A", "nothing"])
    def test_what_was_left_out_trains_again_after_peft_has_frozen_it(self, frozen):
        """PEFT does on leaving `disable_adapter`, as the layer has none active."""
        model = layers()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        for name, parameter in model.named_parameters():
            if frozen in name:
                parameter.requires_grad_(False)
        plan = lora_plan(model, units="layers")
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        with model.disable_adapter():
            model(vectors())

        load_lora(model, state)

        layer = model.base_model.model.layers[0]["up"]
        assert layer.lora_B["default"].weight.requires_grad
        assert layer.lora_A["default"].weight.requires_grad == (frozen == "nothing")

    def test_what_is_left_out_while_adapters_are_disabled_trains_again(self):
        model = layers()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, units="layers")
        with model.disable_adapter():
            load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        load_lora(model, state)
        assert (
            gradients(model, vectors()).keys() == gradients(layers(), vectors()).keys()
        )

    def test_inside_another_module(self):
        model = nn.Sequential(text(modules_to_save=None))
        full = copy.deepcopy(model)
        plan = lora_plan(model, tokens(), units="adapters")
        indices = plan.indices((torch.tensor([1]),))  # not the convolution
        load_lora(model, extract(lora_state(full), indices))
        load_lora(full, silenced(lora_state(full), indices))
        torch.testing.assert_close(model(tokens()), full(tokens()))

    def test_another_adapter_is_run_as_before(self):
        model = layers()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
        with_noise(model)
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, units="layers")
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        layer = model.base_model.model.layers[0]["up"]
        assert layer.active_adapters == []
        model.base_model.set_adapter("other")
        assert layer.active_adapters == ["other"]

    @pytest.mark.parametrize("units", ["ranks", "layers"])
    def test_adapters_in_turns_inside_another_module(self, units):
        inner = layers()
        inner.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
        model = nn.Sequential(OrderedDict(encoder=with_noise(inner)))
        for name in ("default", "other") * 2:
            inner.set_adapter(name)
            full = {n: t.clone() for n, t in lora_state(model).items()}
            assert all(f".{name}." in tensor for tensor in full)
            plan = lora_plan(model, vectors(), units=units)
            keep = tuple(torch.tensor([0]) for _ in plan.groups)
            load_lora(model, extract(full, plan.indices(keep)))
            assert lora_state(model).keys() == full.keys()
            load_lora(model, full)

    @pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
    def test_several_adapters_of_transformers_with_the_first_layer_left_out(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=8,
            patch_size=8,
        )
        model = transformers.ViTModel(config, add_pooling_layer=False)
        for name in ("one", "other"):
            model.add_adapter(peft.LoraConfig(r=2, target_modules="all-linear"), name)
        model.set_adapter("one")
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model, units="layers")
        load_lora(model, extract(state, plan.indices((torch.tensor([0]),))))
        assert lora_state(model).keys() == state.keys()
        load_lora(model, state)
        assert lora_state(model).keys() == state.keys()

    def test_an_adapter_that_is_not_active_stays_so(self):
        """One was left out, deleted, and made anew under its name."""
        model = layers()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
        plan = lora_plan(model, units="layers")
        some = extract(lora_state(model), plan.indices((torch.tensor([0]),)))
        load_lora(model, some)
        model.set_adapter("other")
        model.delete_adapter("default")
        model.add_adapter("default", peft.LoraConfig(r=3, target_modules=["up"]))

        load_lora(model, lora_state(model))

        layer = model.base_model.model.layers[0]["up"]
        assert layer.active_adapters == ["other"]

    @pytest.mark.parametrize("modules", [["up"], ["up", "down"]])
    @pytest.mark.parametrize("first", ["default", "other"])
    def test_adapters_in_turns(self, modules, first):
        """Each has ranks of its own, and maybe other layers."""
        model = layers()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=modules))
        with_noise(model)
        full, plans = {}, {}
        for name in ("default", "other"):
            model.set_adapter(name)
            full[name] = {n: t.clone() for n, t in lora_state(model).items()}
            plans[name] = lora_plan(model)
        for name in sorted(full, reverse=first == "other") * 2:
            plan = plans[name]
            keep = tuple(torch.tensor([group.size - 1]) for group in plan.groups)
            model.set_adapter(name)
            load_lora(model, extract(full[name], plan.indices(keep)))
            expected = copy.deepcopy(model)
            load_lora(expected, silenced(full[name], plan.indices(keep)))
            torch.testing.assert_close(model(vectors()), expected(vectors()))
            load_lora(model, full[name])
            assert lora_plan(model).num_units == plan.num_units

    @pytest.mark.parametrize("narrowed", [False, True])
    @pytest.mark.parametrize("rank", [2, 3, 6])
    def test_a_deleted_adapter_and_another_one_of_its_name(self, rank, narrowed):
        model = layers(target_modules=["up"])
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        plan = lora_plan(model)
        keep = tuple(torch.arange(2 if narrowed else 4) for _ in plan.groups)
        load_lora(model, extract(state, plan.indices(keep)))
        for module in ("up", "down"):  # it may have another layer, too
            model.delete_adapter("default")
            config = peft.LoraConfig(r=rank, target_modules=[module])
            model.add_adapter("default", config)
            model.set_adapter("default")
            assert lora_plan(model).num_units == 3 * rank
            load_lora(model, lora_state(with_noise(model)))
        if rank < 4:
            with pytest.raises(ShapeError, match="build the same model"):
                load_lora(model, state)

    def test_adapters_of_its_own_that_are_replaced(self):
        model = Own()
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        load_lora(model, state, pairs=OWN_PAIRS)
        model.down, model.up = map(nn.Parameter, (torch.ones(7, 6), torch.ones(5, 7)))
        other = {"down": torch.zeros(7, 6), "up": torch.zeros(5, 7)}
        load_lora(model, other, pairs=OWN_PAIRS)
        load_lora(
            model, {"down": torch.zeros(3, 6), "up": torch.zeros(5, 3)}, pairs=OWN_PAIRS
        )
        model.down = nn.Parameter(torch.ones(9, 6))
        with pytest.raises(
            ShapeError, match="adapters of this Own were replaced after"
        ):
            load_lora(model, other, pairs=OWN_PAIRS)
        del model.up
        assert list(lora_state(model)) == ["down"]


class TestRefusals:
    def test_adapters_that_are_merged_inside_another_module(self):
        model = nn.Sequential(layers())
        state = {name: tensor.clone() for name, tensor in lora_state(model).items()}
        model[0].merge_adapter()
        with pytest.raises(UnsupportedModelError, match=r"up is merged.*unmerge_adap"):
            load_lora(model, state)
        with pytest.raises(UnsupportedModelError, match=r"up is merged.*unmerge_adap"):
            lora_plan(model, vectors())

    def test_none_of_several_adapters_is_active(self):
        model = layers()
        model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["up"]))
        model.base_model.set_adapter([])
        with pytest.raises(ConfigError, match="none of the adapters default, other"):
            lora_state(model)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: s.pop("fc.lora_A.weight"), "they lack .*fc.lora_A.weight"),
            (lambda s: s.update(x=torch.zeros(1)), "the model does not have x"),
        ],
    )
    def test_other_names(self, change, message):
        model = text()
        prefix = "base_model.model."
        state = {n.removeprefix(prefix): t for n, t in lora_state(model).items()}
        change(state)
        sent = {n if n == "x" else prefix + n: t for n, t in state.items()}
        with pytest.raises(ShapeError, match=message):
            load_lora(model, sent)

    @pytest.mark.parametrize("inner", ["_orig_mod", "module"])
    def test_a_model_that_is_wrapped(self, inner):
        """As torch.compile does it, and DataParallel."""
        model = layers()
        wrapped = nn.Sequential(OrderedDict({inner: model}))
        message = rf"load the model inside of it, \.{inner}, and send its lora_state"
        with pytest.raises(ShapeError, match=message):
            load_lora(wrapped, lora_state(model))

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("fc.lora_A.weight", (2, 6)),  # B has 4 components
            ("fc.lora_B.weight", (7, 3)),
            ("fc.lora_A.weight", (4, 5)),
            ("fc.lora_A.weight", (4,)),
            ("fc.lora_A.weight", ()),
            ("fc.lora_A.weight", (8, 6)),
            ("head.weight", (1, 8)),
            ("head.weight", (0, 8)),
        ],
    )
    def test_other_shapes_change_nothing(self, name, shape):
        model = text()
        state = {n: t.clone() for n, t in lora_state(model).items()}
        before = {n: t.clone() for n, t in state.items()}
        state[f"base_model.model.{name}"] = torch.zeros(shape)
        with pytest.raises(ShapeError, match=r"where .* belongs; build the same model"):
            load_lora(model, state)
        after = lora_state(model)
        assert all(torch.equal(after[n], before[n]) for n in before)
