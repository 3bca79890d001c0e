"""What cannot be dropped stays whole, with a reason; so does what fails on trial."""

import copy
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from flwr_asyncdrop import submodel
from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.submodel import (
    declare_plan,
    extract,
    load_in_place,
    load_submodel,
    plan_submodels,
    verify_plan,
)
from flwr_asyncdrop.submodel.advice import _ADVICE
from flwr_asyncdrop.submodel.probing import probe, running_passes
from flwr_asyncdrop.submodel.probing.draws import FixedDraws
from flwr_asyncdrop.submodel.probing.probe import probing
from flwr_asyncdrop.submodel.types import Example
from flwr_asyncdrop.submodel.verification import gradients
from tests.submodel.networks import Encoder, images, seeded, tokens, vectors


class Chain(nn.Module):
    """Three linear layers; a subclass does something between the first two."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 3)

    def between(self, x):
        return x

    def forward(self, x):
        x = self.between(torch.relu(self.first(x)))
        return self.third(torch.relu(self.second(x)))


class UnknownOperation(Chain):
    def between(self, x):
        return torch.linalg.matrix_exp(torch.diag_embed(x)).diagonal(dim1=1, dim2=2)


class Softmax(Chain):
    def between(self, x):
        return x.softmax(-1)


class Mean(Chain):
    def between(self, x):
        return x - x.mean(-1, keepdim=True)


class LayerNorm(Chain):
    def between(self, x):
        return F.layer_norm(x, (8,))


class Picks(Chain):
    def between(self, x):
        return x[:, [0, 2, 4, 6, 1, 3, 5, 7]]


class UnequalCut(Chain):
    def between(self, x):
        return torch.cat([x[:, 3:], x[:, :3]], 1)


class HardCodedView(Chain):
    def between(self, x):
        return x.view(-1, 8)


class Rolls(Chain):
    """Runs when narrower, by a coincidence of shapes, and computes something else."""

    def between(self, x):
        return x.roll(3, 1) if x.shape[1] == 8 else x


class ConstantMatrix(Chain):
    def between(self, x):
        return x @ torch.linspace(0, 1, 64, dtype=x.dtype).view(8, 8)


class OwnConstant(Chain):
    """A full-width constant that is no part of the state."""

    def between(self, x):
        return x * torch.linspace(0, 1, 8, dtype=x.dtype)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (UnknownOperation, "for which there is no rule"),
        (Softmax, "depend on each other in aten._softmax"),
        (Mean, "reduced over by aten.mean"),
        (LayerNorm, "normalised together by aten.native_layer_norm"),
        (Picks, "positions that aten.index picks by number"),
        (UnequalCut, "cut into unequal parts by aten.slice"),
        (HardCodedView, "a narrower model does not run (RuntimeError: shape"),
        (Rolls, "differs from the full one with units silenced"),
        (ConstantMatrix, "meets positions that are always kept in aten.mm"),
        (OwnConstant, "combined with positions always kept in aten.mul"),
    ],
)
def test_units_that_stay_whole(model, reason):
    plan = plan_submodels(seeded(model), vectors())

    assert [group.name for group in plan.groups] == ["second"]
    assert reason in plan.left_out["first"]
    assert plan.left_out["third"] == "part of the model's output"


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits])
def test_units_that_a_loss_takes_need_no_rule(loss):
    class Learns(Chain):
        def forward(self, x, targets):
            return loss(super().forward(x), targets)

    plan = plan_submodels(seeded(Learns), (vectors(), vectors(3)))

    assert [group.name for group in plan.groups] == ["first", "second"]
    assert "rule" not in str(plan)


def test_a_reason_is_given_once():
    class Knows(Chain):
        def forward(self, x):
            if self.first.out_features + self.second.out_features < 16:
                raise ValueError("too narrow")
            return super().forward(x)

    with pytest.raises(UnsupportedModelError, match="first, second: a narrower model"):
        plan_submodels(seeded(Knows), vectors())


class Coder(nn.Module):
    """Its forward is not what it trains."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        return self.encoder(x)

    def loss(self, x):
        return F.mse_loss(self.decoder(self.encoder(x)), x)


def test_a_subclass_says_what_is_trained():
    class Trained(Coder):
        def forward(self, x):
            return self.loss(x)

    plan = plan_submodels(seeded(Trained), vectors())

    names = ["encoder.0", "encoder.2", "decoder.0"]
    assert [group.name for group in plan.groups] == names
    model = seeded(Coder)
    half = tuple(torch.arange(group.size // 2) for group in plan.groups)
    small = load_submodel(model, extract(model.state_dict(), plan.indices(half)))
    assert small.decoder[0].weight.shape == (4, 1)
    small.loss(vectors()).backward()


class Shrinks(Chain):
    """Knows the full width, and runs with any other."""

    def between(self, x):
        return x * (8 / x.shape[1])


def test_attribute_that_goes_stale_without_an_error():
    """Only the comparison with silenced units sees a width that is built in."""
    plan = plan_submodels(seeded(Shrinks), vectors())

    assert [group.name for group in plan.groups] == ["second"]
    assert "differs from the full one with units silenced" in plan.left_out["first"]


def test_what_a_module_hands_on_where_the_data_chose_the_path_stays_whole():
    """What a module makes and uses up itself is the same on every path."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.safe = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 5))
            self.chain = Chain()

        def forward(self, x):
            x = self.safe(x)
            return self.chain(x) if float(x.sum()) > 0 else self.chain(-x)

    plan = plan_submodels(Branches(), vectors())

    inside = ["safe.0", "chain.first", "chain.second"]
    assert [group.name for group in plan.groups] == inside
    assert "Python value was read" in plan.left_out["safe.2"]


def test_residual_stream_under_layer_norm_stays_whole():
    plan = plan_submodels(Encoder(), tokens())

    assert {group.name for group in plan.groups} == {
        f"layers.layers.{layer}.{part}"
        for layer in (0, 1)
        for part in ("self_attn", "linear1")
    }
    assert "normalised together" in plan.left_out["embedding"]


def test_layers_that_do_not_run_stay_whole():
    class Spare(Chain):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(8, 8)

    plan = plan_submodels(Spare(), vectors())

    assert [group.name for group in plan.groups] == ["first", "second"]
    assert plan.left_out["spare"] == "not used in any traced forward pass"


def test_layers_whose_output_nobody_uses_stay_whole():
    class Forgets(Chain):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(8, 7, bias=False)

        def between(self, x):
            self.spare(x)
            return x

    plan = plan_submodels(Forgets(), vectors())

    assert [group.name for group in plan.groups] == ["first", "second"]
    reason = "its units meet no other tensor: used last by aten.mm"
    assert plan.left_out["spare"] == reason


def test_a_table_of_positions_is_not_left_out():
    class Positions(Chain):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 4, 8))
            self.shown = nn.Parameter(torch.randn(1, 4, 1))

        def forward(self, x):
            x = self.first(x)[:, None] + self.table
            return self.third(torch.relu(self.second(x))) + self.shown

    plan = plan_submodels(Positions(), vectors())

    assert [group.name for group in plan.groups] == ["first", "second"]
    assert plan.axes["table"].keys() == {2}
    assert plan.left_out.keys() == {"third", "shown"}


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (UnknownOperation, "add one: docs/models.md#a-rule"),
        (LayerNorm, "scope='stream' drops them, for a narrower model"),
        (UnequalCut, "say with declare_plan what belongs together"),
        (HardCodedView, "its code has a width as a number: write e.g. x.flatten(1)"),
        (Shrinks, "an attribute that goes stale needs a patch"),
    ],
)
def test_the_report_says_what_to_do(model, advice):
    plan = plan_submodels(seeded(model), vectors())

    lines = plan.report().splitlines()

    reason = lines.index(f"whole ({plan.left_out['first']}): first")
    assert advice in lines[reason + 1]
    assert lines[reason + 1].startswith("  ")
    assert sum(line.startswith("  ") for line in lines) == 1


def test_each_advice_is_of_a_reason_that_there_is():
    """A reason that is written anew would lose its advice."""
    folder = Path(submodel.__file__).parent
    files = [file for file in folder.rglob("*.py") if file.name != "advice.py"]
    code = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [part for part in _ADVICE if part not in code] == []


def test_the_report_has_no_advice_where_there_is_none():
    lines = plan_submodels(seeded(Mean), vectors()).report().splitlines()
    assert [line for line in lines if line.startswith("  ")] == []


def test_faulty_groups_do_not_take_sound_ones_along():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(Chain(), nn.Linear(3, 5), HardCodedView())

        def forward(self, x):
            return self.layers(x)

    plan = plan_submodels(Mixed(), vectors())

    assert [group.name.removeprefix("layers.") for group in plan.groups] == [
        *("0.first", "0.second", "0.third", "1", "2.second")
    ]
    assert "does not run" in plan.left_out["layers.2.first"]
    assert plan.indices(plan.full_keep()) == {}


def test_no_group_at_all():
    with pytest.raises(UnsupportedModelError, match="no units of Linear can"):
        plan_submodels(nn.Linear(5, 3), vectors())


def test_inputs_that_the_model_does_not_take():
    with pytest.raises(UnsupportedModelError, match="Chain does not run on"):
        plan_submodels(Chain(), vectors(4))


def test_model_that_cannot_be_copied():
    model = Chain()
    model.lock = threading.Lock()

    with pytest.raises(UnsupportedModelError, match="Chain cannot be copied"):
        plan_submodels(model, vectors())


class CopiesState(Chain):
    """Its state_dict never returns the parameters themselves."""

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {name: tensor.detach() for name, tensor in state.items()}


def test_state_dict_of_copies():
    with pytest.raises(UnsupportedModelError, match=r"has a copy of first\.weight"):
        plan_submodels(CopiesState(), vectors())


class FlatState(Chain):
    """Its state_dict has a tensor more, as long as there are units."""

    def __init__(self):
        super().__init__()
        self._register_state_dict_hook(
            lambda _, state, prefix, __: state.update(
                {f"{prefix}flat": state[f"{prefix}first.weight"].flatten()}
            )
        )
        self.register_load_state_dict_pre_hook(
            lambda _, state, prefix, *__: state.pop(f"{prefix}flat")
        )


def test_tensor_that_the_state_dict_computes():
    plan = plan_submodels(FlatState(), vectors())

    assert [group.name for group in plan.groups] == ["second"]
    assert plan.left_out["first"].startswith("flat, which the model's state_dict")


def test_model_that_keeps_an_activation_can_be_copied():
    model = seeded(Chain)
    model.kept = model.first(vectors())

    plan = plan_submodels(model, vectors())

    small = load_submodel(model, extract(model.state_dict(), {}))
    assert len(plan.groups) == 2
    assert torch.equal(small(vectors()), model(vectors()))


def test_unknown_scope():
    with pytest.raises(ConfigError, match="scope='outer' must be 'all', 'internal' or"):
        plan_submodels(Chain(), vectors(), scope="outer")


def test_blank_example_inputs_show_as_much_as_real_ones():
    blank = plan_submodels(seeded(Rolls), torch.zeros(1, 5))

    assert [group.name for group in blank.groups] == ["second"]


class WithLoss(Chain):
    """Its forward computes the loss, of labels that come as real numbers."""

    def forward(self, x, labels):
        return F.cross_entropy(super().forward(x), labels.long())


@pytest.mark.parametrize("inputs", [vectors(batch=9), torch.zeros(9, 5)])
@pytest.mark.parametrize("label", [0.0, 2.0])
def test_blank_labels_stay_labels(inputs, label):
    plan = plan_submodels(seeded(WithLoss), (inputs, torch.full((9,), label)))

    assert [group.name for group in plan.groups] == ["first", "second"]


def test_blank_inputs_that_must_not_be_negative_become_positive_noise():
    class Probabilities(Chain):
        def forward(self, x):
            return super().forward(x), F.binary_cross_entropy(x, x)  # which checks x

    with probing(seeded(Probabilities), [Example((torch.zeros(9, 5),), {})]) as probe:
        (x,) = probe.passes[0].example.args

    assert 0.5 < x.max() < 1


def test_labels_of_which_no_others_will_do_are_tried_in_other_batches():
    class ByBatch(WithLoss):
        def between(self, x):  # knows its width, where there are not two rows
            return x if len(x) == 2 else x + torch.ones(8)

    labels = torch.tensor([0.0, 2.0])

    plan = plan_submodels(seeded(ByBatch), (vectors(), labels))

    assert [group.name for group in plan.groups] == ["second"]


def test_model_that_insists_on_single_precision():
    class Single(Chain):
        def between(self, x):
            return x + torch.zeros(1, 8, dtype=torch.float32) @ self.second.weight

    plan = plan_submodels(Single(), vectors().float())

    assert {group.name for group in plan.groups} <= {"first", "second"}


def test_several_inputs():
    class Two(Chain):
        def forward(self, x, y):
            return super().forward(x) + y

    plan = plan_submodels(Two(), (vectors(), images(3, 1, 2).flatten(1)))

    assert [group.name for group in plan.groups] == ["first", "second"]


class Empty(Chain):
    """A model whose truth value is False, as that of an empty list."""

    def __len__(self):
        return 0


class Lengthless(Chain):
    """A model that has no truth value, as what `torch.compile` makes of a module."""

    def __len__(self):
        raise TypeError("it has no length")


@pytest.mark.parametrize("model", [Empty, Lengthless])
def test_the_length_of_a_model_says_nothing(model):
    names = [group.name for group in plan_submodels(seeded(model), vectors()).groups]
    assert names == ["first", "second"]


class Sampled(Chain):
    """Draws what the second layer says from a distribution, which checks its values."""

    def between(self, x):
        for _ in range(10):
            x = torch.distributions.Normal(x, 1 + x.sigmoid()).rsample()
        return x


@pytest.mark.parametrize("checks", [True, False])
def test_the_checks_of_distributions_are_no_paths(checks, monkeypatch):
    # torch.compile turns them off for all that follows.
    cls = torch.distributions.Distribution
    monkeypatch.setattr(cls, "_validate_args", checks)
    names = [group.name for group in plan_submodels(seeded(Sampled), vectors()).groups]
    assert names == ["first", "second"]
    assert cls._validate_args == checks


class Rare(Chain):
    """A layer for rows that no example input has."""

    def __init__(self):
        super().__init__()
        self.rare = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8))

    def between(self, x):
        rows = x[:, 0] > 1e9
        x = x.clone()
        x[rows] = self.rare(x[rows])
        return x


def test_a_layer_that_no_row_of_the_examples_reaches():
    with pytest.raises(UnsupportedModelError, match=r"rare.0, rare.2: not used in any"):
        plan_submodels(seeded(Rare), vectors())


def test_a_compiled_model():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(seeded(Chain), backend=backend)
    names = [group.name for group in plan_submodels(compiled, vectors()).groups]
    assert names == ["_orig_mod.first", "_orig_mod.second"]
    assert not graphs  # compiling takes half a minute, and tells nothing more


def test_a_hook_of_a_gradient_that_knows_the_width():
    model = seeded(Chain)
    mask = torch.ones_like(model.first.weight)
    seen = []
    model.first.weight.register_hook(lambda gradient: gradient * mask)
    model.third.weight.register_hook(lambda gradient: seen.append(gradient.shape))

    plan = plan_submodels(model, vectors())

    assert [group.name for group in plan.groups] == ["second"]
    assert "a submodel does not train (RuntimeError" in plan.left_out["first"]
    assert (3, 3) in seen
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_hook_of_an_added_up_gradient_that_knows_the_width():
    model = seeded(Chain)
    mask = torch.ones_like(model.first.weight)

    def hook(parameter):
        parameter.grad.mul_(mask)

    model.first.weight.register_post_accumulate_grad_hook(hook)

    plan = plan_submodels(model, vectors())

    assert [group.name for group in plan.groups] == ["second"]
    assert "a submodel does not train (RuntimeError" in plan.left_out["first"]


def test_parameters_that_share_memory():
    model = seeded(Chain)
    model.third = nn.Linear(8, 8).double()
    model.third.weight.data = model.second.weight.data

    with pytest.raises(UnsupportedModelError, match="share memory"):
        plan_submodels(model, vectors())


def clamped(gradient):
    return gradient.clamp(-1e-3, 1e-3)


def clamp_gradient_of(parameter):
    parameter.grad.clamp_(-1e-3, 1e-3)


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        ("register_hook", clamped),
        ("register_post_accumulate_grad_hook", clamp_gradient_of),
    ],
)
@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_a_submodel_has_the_hooks_of_gradients(register, hook, load):
    model = seeded(Chain)
    getattr(model.first.weight, register)(hook)
    plan = plan_submodels(model, vectors())
    half = plan.indices(tuple(torch.arange(group.size // 2) for group in plan.groups))

    small = load(model, extract(model.state_dict(), half))
    small(vectors()).square().sum().backward()

    assert small.first.weight.grad.abs().max() <= 1e-3
    assert small.second.weight.grad.abs().max() > 1e-3


class Taught(Chain):
    """A teacher, which averages the student's weights in each pass."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self)
        self.teacher.requires_grad_(False)

    def average(self, old, new):
        old.mul_(0.9).add_(new, alpha=0.1)

    def forward(self, x):
        with torch.no_grad():
            if self.training:
                for name, old in self.teacher.named_parameters():
                    self.average(old, self.get_parameter(name))
            expected = Chain.forward(self.teacher, x)
        return super().forward(x) - expected


class Replaced(Taught):
    """The same, as many write it: with new tensors."""

    def average(self, old, new):
        old.data = 0.9 * old.data + 0.1 * new.data


@pytest.mark.parametrize("model", [Taught, Replaced])
def test_what_a_pass_writes_on_parameters_is_taken_back(model):
    plan = plan_submodels(seeded(model), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]

    # Of one group alone the others' tensors are whole, and shared.
    own = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
    hidden = own | {f"teacher.{name}": dim for name, dim in own.items()}
    shapes = {name: t.shape for name, t in seeded(model).state_dict().items()}
    declared = declare_plan(shapes, {"hidden": hidden})
    assert verify_plan(seeded(model), vectors(), declared).groups == declared.groups


class SetByTheFirstBatch(nn.Module):
    """Normalises by parameters that the first batch sets, as flows do."""

    def __init__(self, width):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.is_set.item():
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-(x.std(0, unbiased=False) + 1e-6).log())
                self.is_set.fill_(True)
        return (x + self.shift) * self.log_scale.exp()


def test_what_every_pass_sets_to_the_same_value_is_taken_back():
    """A single example less its mean is zero, and so is its spread."""
    chain = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5))
    model = nn.Sequential(SetByTheFirstBatch(5), chain, SetByTheFirstBatch(5)).double()

    plan = plan_submodels(model, vectors(batch=1))

    assert [group.name for group in plan.groups] == ["1.0"]


class Shared(torch.autograd.Function):
    """Passes on what it gets, and of its gradient a share for each unit."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.shape[-1]


class OwnGradient(Chain):
    def between(self, x):
        return Shared.apply(x)


class Centred(Chain):
    def between(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient - gradient.mean(-1, keepdim=True))
        return x


class StraightThrough(Chain):
    """A step size whose gradient is scaled by the number of units, as quantisers do."""

    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.ones(()))
        self.norm = nn.BatchNorm1d(8)  # buffers have no gradients

    def between(self, x):
        scaled = self.step / len(self.first.bias) ** 0.5
        return self.norm(x) * ((self.step - scaled).detach() + scaled)


class Sparse(Chain):
    """Keeps a part of the loss in an attribute: a mean over units."""

    def between(self, x):
        self.penalty = x.abs().mean()
        return x


class Penalties(Chain):
    """Keeps such parts in a list."""

    def __init__(self):
        super().__init__()
        self.penalties = []

    def between(self, x):
        self.penalties.append(x.abs().mean())
        return x


class SparsePerExample(Chain):
    """Keeps such a part for each example."""

    def between(self, x):
        self.penalty = x.abs().mean(1)
        return x


class SmallOutput(OwnGradient):
    def forward(self, x):
        return super().forward(x) * 1e-6


class ComplexOutput(OwnGradient):
    def forward(self, x):
        out = super().forward(x)
        return torch.complex(out, 1 - out)


class ComplexWeights(OwnGradient):
    def __init__(self):
        super().__init__()
        for parameter in self.parameters():
            parameter.data = parameter.data.to(torch.complex64)

    def forward(self, x):
        x = self.between(self.first(x.to(self.first.weight.dtype)).square())
        return self.third(self.second(x).square()).abs()


class EmptyParameter(OwnGradient):
    def __init__(self):
        super().__init__()
        self.prompts = nn.Parameter(torch.zeros(0, 5))

    def forward(self, x):
        return super().forward(torch.cat([self.prompts, x]))


@pytest.mark.parametrize(
    "model",
    [
        *(OwnGradient, Centred, StraightThrough, Sparse, Penalties, SparsePerExample),
        *(SmallOutput, ComplexOutput, ComplexWeights, EmptyParameter),
    ],
)
def test_other_gradients(model):
    plan = plan_submodels(seeded(model), vectors())
    assert [group.name for group in plan.groups] == ["second"]
    assert "has other gradients than the full one" in plan.left_out["first"]


class Normalised(OwnGradient):
    """Divides weights by their lengths: zeroed units make all gradients NaN."""

    def __init__(self):
        super().__init__()
        self.second = weight_norm(self.second)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("anomalies", [False, True])
def test_other_gradients_where_units_are_divided_by_their_own_length(
    monkeypatch, large, anomalies
):
    monkeypatch.setattr(probe, "_LARGE", 10 if large else probe._LARGE)  # bytes
    with torch.autograd.set_detect_anomaly(anomalies):
        plan = plan_submodels(seeded(Normalised), vectors())
    assert [group.name for group in plan.groups] == ["second.parametrizations.weight"]
    assert "has other gradients than the full one" in plan.left_out["first"]


class Decayed(Chain):
    def between(self, x):
        self.penalty = self.first.weight.square().sum()
        self.penalties = [x.square().sum(1), x.mean(0)]  # of examples, and of units
        self.seen = x.detach().mean()  # to be looked at
        self.alike = x @ x.T / x.shape[1]  # a map: no part of a loss
        return x


def test_a_part_of_the_loss_that_dropped_units_add_nothing_to():
    plan = plan_submodels(seeded(Decayed), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]


class Energy(nn.Module):
    """Divides by a mean over units, in eval mode by that of earlier batches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8, bias=False)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 3)
        self.register_buffer("energy", torch.ones(()))

    def mean(self, x):
        return x.square().sum(-1).mean() / x.shape[-1]

    def forward(self, x):
        x = torch.relu(self.first(x))
        if self.training:
            with torch.no_grad():
                self.energy.lerp_(self.mean(x), 0.1)
        else:
            x = x / self.energy.sqrt()
        return self.third(torch.relu(self.second(x)))


class CountsUnits(Energy):
    """Counts how many units were not zero."""

    def __init__(self):
        super().__init__()
        self.energy = torch.ones((), dtype=torch.int64)

    def forward(self, x):
        x = torch.relu(self.first(x))
        if self.training:
            self.energy += x.shape[-1]
        return self.third(torch.relu(self.second(x)))


class EnergyOfParameter(Energy):
    """Keeps the mean in a parameter that does not train."""

    def __init__(self):
        super().__init__()
        del self.energy
        self.energy = nn.Parameter(torch.ones(()), requires_grad=False)


class SmallEnergy(Energy):
    def __init__(self):
        super().__init__()
        self.energy *= 1e-4

    def mean(self, x):
        return super().mean(x) * 1e-4


@pytest.mark.parametrize("model", [Energy, CountsUnits, EnergyOfParameter, SmallEnergy])
def test_other_buffers_in_training(model):
    plan = plan_submodels(seeded(model), vectors())
    assert [group.name for group in plan.groups] == ["second"]
    assert "writes other values on its buffers" in plan.left_out["first"]
    assert "goes by the number of units" in str(plan)


class EnergyPerUnit(Energy):
    """A statistic of each unit, some of which are infinite where units are silent."""

    def __init__(self):
        super().__init__()
        self.energy = torch.ones(8)
        self.register_buffer("inverse", torch.ones(8))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.register_buffer("never_written", torch.zeros(()))

    def mean(self, x):
        self.inverse.copy_(1 / x.square().mean(0))
        return x.square().mean(0)


def test_the_same_buffers_in_training():
    plan = plan_submodels(seeded(EnergyPerUnit), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]


class SeededInside(Chain):
    """Draws a number a unit from a seed: always the same ones, whatever the width."""

    def between(self, x):
        generator = torch.Generator().manual_seed(0)
        torch.rand((), generator=generator)
        return x * torch.rand(x.shape[-1], generator=generator, dtype=x.dtype)


class SeededForAll(Chain):
    """Draws a number a unit from torch's own generator, which it seeds before."""

    def between(self, x):
        torch.manual_seed(3)
        return x * torch.rand(x.shape[-1], dtype=x.dtype)


class Drawing(Chain):
    """Draws a number a unit from a generator that it keeps: other ones each time."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def between(self, x):
        return x * torch.rand(x.shape[-1], generator=self.generator, dtype=x.dtype)


@pytest.mark.parametrize("model", [SeededInside, SeededForAll])
def test_numbers_from_a_seed_of_the_models_own(model):
    plan = plan_submodels(seeded(model), vectors())
    assert "combined with positions always kept" in plan.left_out["first"]


class DropoutAndBranch(Chain):
    def between(self, x):
        x = nn.functional.dropout(x, 0.5, self.training)
        return x * 2 if x.sum() > 0 else x


def test_a_branch_after_random_numbers():
    plan = plan_submodels(seeded(DropoutAndBranch), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]


class RandomSlopes(Chain):
    """The slope below zero is another one for each number, in training."""

    def between(self, x):
        x = F.rrelu(x - 0.5, training=self.training)
        return F.rrelu_(x - 0.5, 0.3, 0.3, training=self.training)


def test_random_slopes():
    plan = plan_submodels(seeded(RandomSlopes), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("training", "slope"), [(True, 0.2), (False, 0.3)])
def test_a_random_slope_lies_where_the_level_says(inplace, training, slope):
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    with FixedDraws(0.25) as draws:
        y = F.rrelu(x.clone(), 0.1, 0.5, training, inplace)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, torch.where(x > 0, x, slope * x))
    torch.testing.assert_close(gradient, torch.where(x > 0, 1.0, slope))
    assert draws.uses_level is training


def test_numbers_from_a_generator_of_the_models_own():
    plan = plan_submodels(seeded(Drawing), vectors())
    assert [group.name for group in plan.groups] == ["first", "second"]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({(running_passes, "_MANY")}, id="many"),
        pytest.param({(running_passes, "_MANY"), (probe, "_LARGE")}, id="single"),
        pytest.param({(probe, "_LARGE"), (gradients, "_MOST")}, id="never in double"),
    ],
)
@pytest.mark.parametrize("model", [OwnGradient, Centred, StraightThrough])
def test_other_gradients_in_a_large_model(monkeypatch, model, limits):
    for room, limit in limits:
        monkeypatch.setattr(room, limit, 10)  # weights, or bytes
    plan = plan_submodels(seeded(model), vectors())
    assert [group.name for group in plan.groups] == ["second"]
    assert "has other gradients than the full one" in plan.left_out["first"]


class SmallGradient(OwnGradient):
    """Its own gradient is a thousandth of a thousandth of what others are."""

    def between(self, x):
        return Faint.apply(super().between(x))


class Faint(torch.autograd.Function):
    """Passes on what it gets, and of its gradient a millionth."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1e-6


def test_small_gradients_of_a_large_model(monkeypatch):
    """Single precision cannot tell them from rounding, and double precision can."""
    monkeypatch.setattr(probe, "_LARGE", 10)  # bytes
    plan = plan_submodels(seeded(SmallGradient), vectors())
    assert [group.name for group in plan.groups] == ["second"]
    assert "has other gradients than the full one" in plan.left_out["first"]


class NeverInDouble(OwnGradient):
    def forward(self, x):
        if x.dtype is torch.float64:
            raise TypeError("no kernel for double precision")
        return super().forward(x)


class NotSilencedInDouble(OwnGradient):
    def forward(self, x):
        if x.dtype is torch.float64 and (self.first.bias == 0).any():
            raise ValueError("a zero")
        return super().forward(x)


class Slight(torch.autograd.Function):
    """Passes on what it gets, and a tenth more of its gradient at full width."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.shape[-1] ** 0.1


class SlightlyInSingle(NeverInDouble):
    def between(self, x):
        return Slight.apply(x)


@pytest.mark.parametrize(
    "model", [NeverInDouble, NotSilencedInDouble, SlightlyInSingle]
)
def test_gradients_in_single_precision_where_double_does_not_run(monkeypatch, model):
    monkeypatch.setattr(probe, "_LARGE", 10)  # bytes
    plan = plan_submodels(seeded(model).float(), vectors())
    assert [group.name for group in plan.groups] == ["second"]
    assert "has other gradients than the full one" in plan.left_out["first"]


class Recomputed(Chain):
    """Runs its second layer twice, each time with a backward pass of its own."""

    def forward(self, x):
        x = self.between(torch.relu(self.first(x)))
        x = checkpoint(self.again, x, use_reentrant=True)
        x = checkpoint(self.again, x, use_reentrant=True)
        return self.third(x)

    def again(self, x):
        return torch.relu(self.second(x))


class RecomputedOwnGradient(Recomputed):
    def again(self, x):
        return Shared.apply(super().again(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradients_that_come_in_parts():
    plan = plan_submodels(seeded(Recomputed), vectors())
    assert [group.size for group in plan.groups] == [8]
    with pytest.raises(UnsupportedModelError, match="has other gradients"):
        plan_submodels(seeded(RecomputedOwnGradient), vectors())


class HooksAlways(Chain):
    def between(self, x):
        if self.training:
            x.register_hook(lambda gradient: gradient / (gradient.norm() + 1))
        return x


class SlopeInside(Chain):
    def between(self, x):
        return torch.autograd.grad(x.square().sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("model", [HooksAlways, SlopeInside])
def test_a_model_that_runs_only_where_gradients_are_computed(model):
    with pytest.raises(UnsupportedModelError, match=r"torch\.is_grad_enabled\(\)"):
        plan_submodels(seeded(model), vectors())


class WithoutDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("there is none")


class NotBackward(Chain):
    def between(self, x):
        return WithoutDerivative.apply(x)


def test_a_model_that_does_not_run_backward():
    message = (
        r"NotBackward does not train on the example inputs \(NotImplementedError: "
        r"there is none\): pass inputs as training does"
    )
    with pytest.raises(UnsupportedModelError, match=f"^{message}$"):
        plan_submodels(seeded(NotBackward), vectors())


def test_a_declared_plan_with_other_gradients():
    hidden = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
    shapes = {name: t.shape for name, t in Chain().state_dict().items()}
    declared = declare_plan(shapes, {"hidden": hidden})
    assert verify_plan(seeded(Chain), vectors(), declared).groups == declared.groups
    with pytest.raises(UnsupportedModelError, match=r"hidden: .* other gradients"):
        verify_plan(seeded(OwnGradient), vectors(), declared)


class Signalled(Chain):
    """Is sent a signal, whose handler ends the process, in one of its calls."""

    call, calls = 0, 0

    def between(self, x):
        Signalled.calls += 1
        if Signalled.calls == self.call:
            signal.raise_signal(signal.SIGTERM)
        return x


@pytest.mark.parametrize("call", [1, 2, 5, 20])
def test_a_signal_that_comes_while_units_are_looked_for_ends_the_process(
    call, monkeypatch
):
    """A handler's SystemExit is none of the model's."""
    monkeypatch.setattr(Signalled, "call", call)
    monkeypatch.setattr(Signalled, "calls", 0)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            plan_submodels(seeded(Signalled), vectors())
    finally:
        signal.signal(signal.SIGTERM, before)


class Remembers(nn.Module):
    """Keeps something of its hidden units for the next call."""

    def __init__(self, kept):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.kept, self.last = kept, None

    def forward(self, x):
        hidden = self.first(x).relu()
        scale = 1.0 if self.last is None else 1 + self.last
        self.last = self.kept(hidden.detach())
        return self.second(hidden) * scale


def test_a_second_call_that_depends_on_the_width_of_the_first():
    with pytest.raises(UnsupportedModelError, match="first: a narrower model differs"):
        plan_submodels(Remembers(torch.mean), vectors(5))
    plan = plan_submodels(Remembers(torch.sum), vectors(5))
    assert [group.name for group in plan.groups] == ["first"]


class Averages(Remembers):
    """Adds a running mean of its outputs, which `keep` lets it have."""

    def __init__(self, keep):
        super().__init__(torch.sum)
        keep(self, "mean", torch.zeros(3))

    def forward(self, x):
        out = self.second(self.first(x).relu())
        self.mean = self.mean.lerp(out.detach().mean(0), 0.1)
        return out + self.mean


def test_what_a_model_remembers_has_to_be_in_a_buffer():
    """Another tensor is not put back after a call."""
    with pytest.raises(UnsupportedModelError, match=r"remembers .* calls in a buffer"):
        plan_submodels(Averages(setattr), vectors(5))
    plan = plan_submodels(Averages(nn.Module.register_buffer), vectors(5))
    assert [group.name for group in plan.groups] == ["first"]


def test_a_model_that_cannot_be_called_twice_in_a_row_is_tried_on_one_call():
    def once(hidden):
        raise RuntimeError("it has its state already")

    class Once(Remembers):
        def forward(self, x):
            out = self.second(self.first(x).relu())
            self.last = out.detach() if self.last is None else self.kept(out)
            return out

    plan = plan_submodels(Once(once), vectors(5))
    assert [group.name for group in plan.groups] == ["first"]
