"""Plans by hand: what they say, what they refuse, and that they are tried."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from flwr_asyncdrop.submodel import (
    declare_plan,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
    verify_plan,
)
from tests.submodel.networks import ConvFlatten, images, seeded, vectors
from tests.submodel.silencing import random_keep

PERCEPTRON = {"w1": (5, 4), "b1": (4,), "w2": (4, 2)}


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def axes(plan):
    return {
        (name, dim): units.tolist()
        for name, dims in plan.axes.items()
        for dim, units in dims.items()
    }


class TestDeclaring:
    def test_golden(self):
        plan = declare_plan(PERCEPTRON, {"hidden": {"w1": 1, "b1": 0, "w2": 0}})

        assert [(g.name, g.size, g.kind) for g in plan.groups] == [
            ("hidden", 4, "internal")
        ]
        units = [0, 1, 2, 3]
        assert axes(plan) == {("w1", 1): units, ("b1", 0): units, ("w2", 0): units}
        assert plan.shapes == PERCEPTRON
        kept = plan.indices((torch.tensor([1, 3]),))
        assert plan.shapes_of(kept) == {"w1": (5, 2), "b1": (2,), "w2": (2, 2)}

    def test_several_groups_count_through(self):
        plan = declare_plan(PERCEPTRON, {"hidden": {"w1": 1, "w2": 0}, "in": {"w1": 0}})

        assert plan.offsets == (0, 4)
        assert axes(plan)["w1", 0] == [4, 5, 6, 7, 8]

    def test_neighbouring_positions_of_one_unit(self):
        plan = declare_plan({"w": (3,), "v": (6,)}, {"units": {"w": 0, "v": 0}})

        assert axes(plan)["v", 0] == [0, 0, 1, 1, 2, 2]

    def test_position_by_position(self):
        gates = torch.tensor([0, 1, 0, 1, -1])
        plan = declare_plan(
            {"w": (2,), "v": (5,)}, {"units": {"w": 0, "v": (0, gates)}}
        )

        assert axes(plan)["v", 0] == [0, 1, 0, 1, -1]

    def test_two_groups_on_one_dim(self):
        first, second = torch.tensor([0, 1, -1, -1]), torch.tensor([-1, -1, 0, 1])
        plan = declare_plan(
            {"w": (4,)}, {"a": {"w": (0, first)}, "b": {"w": (0, second)}}
        )

        assert axes(plan)["w", 0] == [0, 1, 2, 3]

    @pytest.mark.parametrize("groups", [{}, {"hidden": {}}])
    def test_nothing_declared(self, groups):
        with pytest.raises(ConfigError, match="declare at least one group"):
            declare_plan(PERCEPTRON, groups)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"w3": 0}, "names dim 0 of 'w3', which the model does not have"),
            ({"b1": 1}, "names dim 1 of 'b1', which the model does not have"),
            ({"w1": 0, "b1": 0}, "has 4 units but dim 0 of 'w1' has 5 positions"),
            ({"b1": (0, torch.tensor([0, 1]))}, "must be 4 numbers in -1..1"),
            ({"b1": (0, torch.tensor([0, 1, -2, 1]))}, "must be 4 numbers in -1..1"),
            (
                {"b1": (0, torch.arange(4)), "w2": (0, torch.tensor([0, 1, 2, 0]))},
                "must be 4 numbers in -1..2",
            ),
        ],
    )
    def test_dims_that_do_not_fit(self, tensors, message):
        with pytest.raises(ShapeError, match=message):
            declare_plan(PERCEPTRON, {"hidden": tensors})

    @pytest.mark.parametrize("kind", [list, np.array, np.uint64, torch.tensor])
    def test_units_of_any_kind(self, kind):
        plan = declare_plan(
            {"w": (2,), "v": (4,)},
            {"units": {"w": np.int64(0), "v": (0, kind([0, 1, 0, 1]))}},
        )

        assert axes(plan) == {("w", 0): [0, 1], ("v", 0): [0, 1, 0, 1]}

    def test_arrays_have_shapes(self):
        arrays = {name: torch.zeros(shape) for name, shape in PERCEPTRON.items()}

        plan = declare_plan(arrays, {"hidden": {"w1": 1, "b1": 0, "w2": 0}})

        assert plan.shapes == PERCEPTRON

    @pytest.mark.parametrize(
        ("shapes", "groups", "message"),
        [
            (nn.Linear(4, 4), {"a": {"weight": 0}}, "shapes .* Linear, and must be a"),
            (PERCEPTRON, [{"b1": 0}], "groups of declare_plan is a list"),
            (PERCEPTRON, {"a": ["b1"]}, r"groups\['a'\] of declare_plan is a list"),
            (PERCEPTRON, {"a": {"b1": "0"}}, r"groups\['a'\]\['b1'\] has '0' where"),
            (PERCEPTRON, {"a": {"b1": (0, [0.0, 0.5, 1.0, 1.0])}}, "a whole number"),
            (PERCEPTRON, {"a": {"b1": (0, 1, 2, 3)}}, "where a dim should be"),
            (PERCEPTRON, {"a": {"b1": (0, [True, False] * 2)}}, "where a dim should"),
            (PERCEPTRON, {"a": {"b1": (0, np.zeros(4, complex))}}, "where a dim shou"),
            (PERCEPTRON, {"a": {"b1": []}}, "declare at least one group"),
            ({"w": None}, {"a": {"w": 0}}, r"shapes\['w'\]=None must be a shape"),
            ({"w": 4}, {"a": {"w": 0}}, r"shapes\['w'\]=4 must be a shape"),
            ({"w": (4.0,)}, {"a": {"w": 0}}, r"=\(4\.0,\) must be a shape"),
            ({"w": (-4,)}, {"a": {"w": 0}}, r"=\(-4,\) must be a shape"),
        ],
    )
    def test_what_says_nothing(self, shapes, groups, message):
        with pytest.raises(ConfigError, match=message):
            declare_plan(shapes, groups)

    @pytest.mark.parametrize(
        ("units", "absent"),
        [([0, 0, 2, 2], 1), ([1, 1, 2, 2], 0), ([0, 1, 2, 2**40], 3)],
    )
    def test_a_unit_without_a_position(self, units, absent):
        message = f"unit {absent} of group 'a' has no position in"
        with pytest.raises(ShapeError, match=message):
            declare_plan(PERCEPTRON, {"a": {"b1": (0, units)}})

    @pytest.mark.parametrize(
        ("shape", "axis"), [((0,), 0), ((4,), (0, torch.full((4,), -1)))]
    )
    def test_a_group_without_units(self, shape, axis):
        with pytest.raises(ShapeError, match="group 'a' has no units"):
            declare_plan({"w": shape}, {"a": {"w": axis}})

    def test_positions_of_two_groups(self):
        with pytest.raises(ShapeError, match="'b' claims positions of 'b1'"):
            declare_plan(PERCEPTRON, {"a": {"b1": 0}, "b": {"b1": 0}})


CONVOLUTION = {"conv.weight": 0, "conv.bias": 0, "head.weight": 1}


class TestVerifying:
    def test_right_plan(self):
        model = seeded(ConvFlatten)
        declared = declare_plan(shapes(model), {"conv": CONVOLUTION})

        plan = verify_plan(model, images(1, 4), declared)

        found = plan_submodels(model, images(1, 4))
        assert (plan.groups, plan.shapes) == (found.groups, found.shapes)
        assert axes(plan) == axes(found)
        assert plan.parameters == found.parameters

    def test_buffers_are_told_from_parameters(self):
        model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        names = ["0.bias", *(f"1.{n}" for n in ("weight", "bias"))]
        names += [f"1.running_{n}" for n in ("mean", "var")]
        hidden = {"0.weight": 0, "2.weight": 1} | dict.fromkeys(names, 0)

        plan = verify_plan(
            model, vectors().float(), declare_plan(shapes(model), {"hidden": hidden})
        )

        assert plan.parameters == {name for name, _ in model.named_parameters()}

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"head.weight": None}, "a narrower model does not run"),
            ({"conv.bias": None}, "a narrower model does not run"),
            ({"conv.weight": 2}, "has 2 units but dim 2 of 'conv.weight' has 3"),
            (
                {"head.weight": (1, torch.arange(8) % 2)},
                "units are not interchangeable",
            ),
        ],
    )
    def test_wrong_plan(self, wrong, reason):
        model = seeded(ConvFlatten)
        tensors = {k: v for k, v in (CONVOLUTION | wrong).items() if v is not None}

        with pytest.raises((ShapeError, UnsupportedModelError), match=reason):
            verify_plan(
                model, images(1, 4), declare_plan(shapes(model), {"conv": tensors})
            )

    def test_wrong_group_is_named(self):
        model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3))
        groups = {
            "first": {"0.weight": 0, "0.bias": 0, "1.weight": 1},
            "second": {"1.weight": 0, "1.bias": 0},
        }

        with pytest.raises(UnsupportedModelError, match=r"Sequential \(second: a narr"):
            verify_plan(model, vectors().float(), declare_plan(shapes(model), groups))

    def test_plan_of_another_model(self):
        plan = declare_plan(PERCEPTRON, {"hidden": {"w1": 1, "b1": 0, "w2": 0}})

        with pytest.raises(ShapeError, match=r"Linear: b1 is \(4,\) in the plan"):
            verify_plan(nn.Linear(5, 4), vectors(), plan)


class Packed(nn.Module):
    """Sentences of several lengths: `tolist` and packing hide what happens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.rnn(packed)[1][0][-1])


class Untraceable(nn.Sequential):
    """Insists on being alone with torch, as compiled code does."""

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("no modes here")
        return super().forward(x)


class TestUntraceable:
    def test_message_names_the_mend(self):
        model = Untraceable(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

        with pytest.raises(
            UnsupportedModelError,
            match=r"traced \(no modes here\): say with declare_plan .* verify",
        ) as error:
            plan_submodels(model, vectors().float())
        assert "\n" not in str(error.value)

        hidden = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
        declared = declare_plan(shapes(model), {"hidden": hidden})
        assert verify_plan(model, vectors().float(), declared).num_units == 4

    def test_packed_sequences_verify_and_train(self):
        model = Packed()
        inputs = (torch.randint(20, (3, 5)), torch.tensor([5, 2, 4]))
        gates = (0, torch.arange(8).repeat(4))
        hidden = {
            **dict.fromkeys(("rnn.weight_ih_l0", "rnn.bias_ih_l0"), gates),
            "rnn.weight_hh_l0": [gates, 1],
            "rnn.bias_hh_l0": gates,
            "head.weight": 1,
        }
        features = {"embedding.weight": 1, "rnn.weight_ih_l0": 1}
        groups = {"features": features, "hidden": hidden}

        plan = verify_plan(model, inputs, declare_plan(shapes(model), groups))

        full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        indices = plan.indices(random_keep(plan, seed=0, rate=0.5))
        small = load_submodel(model, extract(full, indices))
        optimiser = torch.optim.SGD(small.parameters(), lr=0.5)
        small(*inputs).square().sum().backward()
        optimiser.step()
        merge_(full, small.state_dict(), indices, 1.0)

        assert small.rnn.hidden_size == 4
        assert full["rnn.weight_hh_l0"].shape == (32, 8)
        before = model.state_dict()
        kept = indices["rnn.weight_hh_l0"]
        changed = (full["rnn.weight_hh_l0"] != before["rnn.weight_hh_l0"]).nonzero()
        assert set(changed[:, 0].tolist()) == set(kept[0].tolist())
        assert set(changed[:, 1].tolist()) == set(kept[1].tolist())

    def test_recurrent_plan_without_its_second_dim(self):
        model = Packed()
        inputs = (torch.randint(20, (3, 5)), torch.tensor([5, 2, 4]))
        tensors = [name for name in shapes(model) if name.startswith("rnn")]
        gates = dict.fromkeys(tensors, (0, torch.arange(8).repeat(4)))
        declared = declare_plan(shapes(model), {"hidden": gates | {"head.weight": 1}})

        with pytest.raises(UnsupportedModelError, match="hidden: a narrower model"):
            verify_plan(model, inputs, declared)
