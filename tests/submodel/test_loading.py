"""A plan that is handed out loads and trains, whatever the module is like."""

import dataclasses
from collections import deque

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flwr_asyncdrop import HeteroAsyncDrop
from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    check_maskable,
    examples_of,
    extract,
    load_in_place,
    load_submodel,
    merge_,
    plan_submodels,
    savings,
    silenced,
    step_flops,
)
from tests.nightly import by_night, nightly
from tests.submodel.networks import seeded, vectors
from tests.submodel.silencing import random_keep


def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def train_a_submodel(model, inputs):
    """Plan, load as a client does, train a step, merge; return the plan."""
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed=0, rate=0.5))
    full = model.state_dict()
    small = load_submodel(model, extract(full, indices)).train()
    output = small(inputs)
    if dataclasses.is_dataclass(output):
        output = output.logits
    elif isinstance(output, tuple):
        output = output[0]
    output.abs().square().mean().backward()
    tensors = {n: v.clone() for n, v in full.items() if isinstance(v, Tensor)}
    trained = {n: v for n, v in small.state_dict().items() if isinstance(v, Tensor)}
    merge_(tensors, trained, indices, 0.5)
    assert savings(plan, model, inputs)[0].bytes_ratio < 1
    return plan


class ViewOfParameter(nn.Module):
    """Gives a submodule a view of a parameter, as learnt queries are."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 4, 6))
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 5)
        self.mix = nn.Linear(5, 5)

    def forward(self, x):
        h = F.relu(self.a(self.queries.expand(x.shape[0], -1, -1)))
        return self.b(h).sum(1) + self.mix(x)


@dataclasses.dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class ReturnsDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, x):
        return Output(self.layers(x))


@dataclasses.dataclass(slots=True, weakref_slot=True)
class Slots:
    logits: Tensor


class Called:
    def __init__(self, logits):
        self.logits = logits

    def __call__(self):
        return self.logits


class ReturnsTwo(nn.Module):
    """A tensor, and one more that lies in something else."""

    def __init__(self, wrap):
        super().__init__()
        self.a, self.b, self.side = mlp(), nn.Linear(3, 4), nn.Linear(3, 6)
        self.wrap = wrap

    def forward(self, x):
        x = x.logits if isinstance(x, Slots) else x
        h = self.a(x)
        return self.wrap(self.b(h), self.side(h))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out, side: (out, Slots(side)),
        lambda out, side: (out, Called(side)),
        lambda out, side: (out, deque([side])),
        lambda out, side: {"out": out, "side": side}.values(),
        lambda out, side: iter([out, side]),
        lambda out, side: (each for each in (out, side)),
    ],
    ids=["slots", "callable", "deque", "values", "iterator", "generator"],
)
def test_all_that_is_returned_stays_whole(wrap):
    plan = plan_submodels(seeded(lambda: ReturnsTwo(wrap)), vectors())

    assert plan.left_out["b"] == plan.left_out["side"] == "part of the model's output"
    assert [group.size for group in plan.groups] == [8, 3]


def test_inputs_with_slots():
    model = seeded(lambda: ReturnsTwo(lambda *outputs: outputs))

    plan = plan_submodels(model, (Slots(vectors()),))

    assert [group.size for group in plan.groups] == [8, 3]


class ExtraState(nn.Module):
    def __init__(self, step=0):
        super().__init__()
        self.layers = mlp()
        self.step = step

    def get_extra_state(self):
        return {"step": self.step}

    def set_extra_state(self, state):
        self.step = state["step"]

    def forward(self, x):
        return self.layers(x)


class ComplexWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 8, dtype=torch.complex64)
        self.b = nn.Linear(8, 3, dtype=torch.complex64)

    def forward(self, x):
        h = self.a(x.to(self.a.weight.dtype))
        return self.b(h * h.abs()).abs()


@pytest.mark.parametrize(
    "model", [ViewOfParameter, ReturnsDataclass, ExtraState, ComplexWeights]
)
def test_module(model):
    plan = train_a_submodel(seeded(model).float(), vectors().float())

    assert {group.size for group in plan.groups} <= {8, 12, 4, 5, 6}


def test_strategy_of_a_model_with_a_view_of_a_parameter():
    strategy = HeteroAsyncDrop(ViewOfParameter(), torch.randn(2, 5))

    assert strategy.plan.num_units > 0


def test_flops_by_hand():
    """Two multiplications and additions a weight and row."""
    assert step_flops(mlp(), torch.ones(2, 5)) == 2 * 2 * (5 * 8 + 8 * 3)


def test_extra_state_stays_the_clients_own():
    indices = {"layers.0.weight": {0: torch.tensor([1])}}
    indices["layers.0.bias"], indices["layers.2.weight"] = ({0: torch.tensor([1])},) * 2
    indices["layers.2.weight"] = {1: torch.tensor([1])}
    sub = extract(ExtraState(step=3).state_dict(), indices)

    assert all(isinstance(tensor, Tensor) for tensor in sub.values())
    assert load_submodel(ExtraState(step=7), sub).step == 7
    assert silenced(ExtraState().state_dict(), indices).keys() == sub.keys()


@by_night
# A DeprecationWarning in torch 2.13, a FutureWarning in 2.15
@pytest.mark.filterwarnings("ignore:.*torch.jit:Warning")
def test_compiled_modules_are_planned_as_what_they_compile():
    model = nn.Sequential(torch.compile(mlp()), nn.ReLU())
    plan = plan_submodels(model, vectors().float())

    assert [(g.name, g.size) for g in plan.groups] == [("0._orig_mod.0", 8)]
    indices = plan.indices((torch.arange(3),))
    small = load_submodel(model, extract(model.state_dict(), indices))
    assert small[0]._orig_mod[0].out_features == 3


# A DeprecationWarning in torch 2.13, a FutureWarning in 2.15
@pytest.mark.filterwarnings("ignore:.*torch.jit:Warning")
@pytest.mark.parametrize(
    ("wrapped", "named"),
    [(lambda part: part, "RecursiveScriptModule is"), (nn.Sequential, "Sequential.0")],
)
def test_torchscript_is_refused(wrapped, named):
    with pytest.raises(UnsupportedModelError, match=f"{named}.*it was made from"):
        plan_submodels(wrapped(torch.jit.script(mlp())), vectors())


def test_model_that_does_not_train():
    class EvalOnly(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            if self.training:
                raise RuntimeError("needs targets")
            return self.layers(x)

    with pytest.raises(UnsupportedModelError, match=r"training mode \(needs targets\)"):
        plan_submodels(EvalOnly(), vectors())


def test_group_that_can_be_dropped_in_the_forward_pass_only():
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 2 * x

        @staticmethod
        def backward(_, gradient):
            return 2 * gradient.view(-1, 8)

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = (
                nn.Linear(5, 8),
                nn.Linear(8, 6),
                nn.Linear(6, 3),
            )

        def forward(self, x):
            return self.head(F.relu(self.b(Doubles.apply(self.a(x)))))

    plan = plan_submodels(Fixed(), vectors().float())

    assert [group.name for group in plan.groups] == ["b"]
    assert "does not train (RuntimeError: shape '[-1, 8]'" in plan.left_out["a"]


def test_model_whose_dropout_and_noise_are_not_the_same_twice():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = (
                nn.Linear(5, 8),
                nn.Linear(8, 8),
                nn.Linear(8, 3),
            )

        def forward(self, x):
            h = F.dropout(self.a(x), 0.5, self.training)
            h = h + torch.randn_like(h) * 0.1
            return self.head(F.gumbel_softmax(h, dim=0) + self.b(h))

    plan = plan_submodels(Noisy(), vectors().float())

    assert {group.name for group in plan.groups} == {"a"}


@pytest.mark.parametrize(
    ("name", "side"),
    [("googlenet", 64), nightly("inception_v3", 299), nightly("mnasnet0_5", 32)],
)
def test_torchvision(vision_models, name, side):
    options = {} if name == "mnasnet0_5" else {"init_weights": False}
    model = getattr(vision_models, name)(num_classes=10, **options)

    train_a_submodel(model, torch.randn(2, 3, side, side))


def test_meta_modules():
    with torch.device("meta"):
        model = mlp()
    on_meta = plan_submodels(model, torch.zeros(2, 5))

    real = plan_submodels(mlp(), torch.zeros(2, 5))
    assert on_meta.groups == real.groups
    assert plan_submodels(model, torch.zeros(2, 5, device="meta")).groups == real.groups


class TakesKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, *, x, mask):
        return self.layers(x * mask)


def test_strategy_of_a_model_that_takes_keywords():
    model, x, mask = TakesKeywords(), vectors().float(), torch.ones(2, 1)

    by_name = HeteroAsyncDrop(model, {"x": x, "mask": mask})
    split = HeteroAsyncDrop(model, {"x": x}, example_kwargs={"mask": mask})

    assert by_name.plan.groups == split.plan.groups
    rows = savings(by_name.plan, model, {"x": x}, example_kwargs={"mask": mask})
    assert rows[0].flops_ratio == 0.75


class PositiveScale(nn.Module):
    """Takes the root of weights that are positive, and small."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.linspace(0.01, 0.02, 8))

    def forward(self, x):
        return self.out(torch.relu(self.layer(x)) * self.scale.sqrt())


def test_weights_that_noise_would_take_out_of_their_range():
    plan = plan_submodels(PositiveScale(), torch.ones(2, 5))
    assert [(group.name, group.size) for group in plan.groups] == [("layer", 8)]


class NeverFinite(TakesKeywords):
    def forward(self, x):
        return self.layers(x) / 0 * 0


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3))


def lazy_statistics():
    return nn.Sequential(nn.Linear(5, 8), nn.LazyBatchNorm1d(affine=False))


class Grows(nn.Module):
    """Makes its head when it knows how wide that has to be."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 8)

    def forward(self, x):
        x = F.relu(self.layer(x))
        if not hasattr(self, "head"):
            self.head = nn.Linear(x.shape[-1], 3).to(x)
        return self.head(x)


class Notes(TakesKeywords):
    """Has a statistic from its first batch on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.training:
            self.mean = x.mean(0)
        return self.layers(x)


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (NeverFinite, torch.ones(2, 5), "no finite number on the example inputs"),
        (mlp, torch.ones(0, 5), "no finite number on the example inputs"),
        (lazy, torch.ones(2, 5), "without a shape yet: run it once"),
        (lazy_statistics, torch.ones(2, 5), "without a shape yet: run it once"),
        (Grows, torch.ones(2, 5), "has head.bias, head.weight only once it has run"),
        (Notes, torch.ones(2, 5), "has mean only once it has run: run it before"),
        (nn.Identity, torch.ones(2, 5), r"can be dropped \(it has none\)"),
    ],
)
def test_nothing_to_verify_a_plan_by(build, inputs, message):
    with pytest.raises(UnsupportedModelError, match=message) as error:
        plan_submodels(build(), inputs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("load", [load_in_place, load_submodel])
@pytest.mark.parametrize("build", [lazy, lazy_statistics])
def test_a_lazy_model_has_to_run_before_it_is_loaded(load, build):
    ready = build()
    ready(torch.ones(2, 5))
    model, state = build(), ready.state_dict()
    with pytest.raises(UnsupportedModelError, match="run it once on example inputs"):
        load(model, state)
    model(torch.ones(2, 5))
    loaded = load(model, state).eval()
    inputs = torch.rand(2, 5)
    assert torch.equal(loaded(inputs), ready.eval()(inputs))


class HalfBackbone(nn.Module):
    """A frozen backbone in half precision, and numbers that go past it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6, dtype=torch.bfloat16).requires_grad_(False)
        self.numbers, self.head = nn.Linear(4, 6), nn.Linear(12, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, words, numbers):
        words = self.words(words).mean(1).to(self.head.weight.dtype)
        both = torch.cat([words, self.numbers(numbers)], 1)
        return self.out(torch.relu(self.head(both)))


class ExactTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.layers = mlp()

    def forward(self, x):
        return self.layers(x) / self.temperature


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8, dtype=torch.complex128)
        self.last = nn.Linear(8, 3, dtype=torch.complex128)

    def forward(self, x):
        return self.last(self.first(x)).abs()


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (HalfBackbone(), (torch.ones(2, 3, dtype=torch.long), torch.ones(2, 4))),
        (ExactTemperature(), torch.ones(2, 5)),
        (Complex(), torch.ones(2, 5, dtype=torch.complex128)),
    ],
)
def test_inputs_in_one_of_several_precisions(model, inputs):
    plan = plan_submodels(model, inputs)
    assert 8 in {group.size for group in plan.groups}
    check_maskable(plan, model, examples_of(inputs))
    assert step_flops(model, inputs) > 0
