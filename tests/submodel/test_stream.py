"""Streams that are normalised: a narrower model is one in its own right."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from flwr_asyncdrop import AsyncDrop
from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from flwr_asyncdrop.submodel.discovery import discover
from flwr_asyncdrop.submodel.probing.probe import make_probe
from flwr_asyncdrop.submodel.types import Example, owner_of
from flwr_asyncdrop.submodel.verification.verify import find_faults
from tests.submodel.networks import (
    Encoder,
    ResidualNet,
    images,
    seeded,
    tokens,
    vectors,
)
from tests.submodel.silencing import random_keep


class Block(nn.Module):
    """A feed-forward block on a residual stream, with a norm of one's choice."""

    def __init__(self, norm: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 6, width))
        self.norm = norm
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.norm(x).mean(1))


class RmsNorm(nn.Module):
    """As recent language models write it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class HandWrittenLayerNorm(nn.Module):
    """As ConvNeXt writes it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(spread + 1e-6)) + self.bias


class ConvNext(nn.Module):
    """Depthwise convolutions and layer norm over channels, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.rand(8, 1, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.down(F.gelu(self.up(inner))).permute(0, 3, 1, 2)
        return self.head((x + self.scale * inner).mean((2, 3)))


class OneGroup(nn.Module):
    """Group normalisation with a single group."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.norm = nn.GroupNorm(1, 8)
        self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).mean((2, 3))
        return self.head(torch.relu(self.hidden(x)))


class PostNorm(nn.Module):
    """Each sublayer's sum is normalised, as in the first Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 4, 12, 0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))


NETWORKS = {
    "pre-norm": (Encoder, tokens()),
    "post-norm": (PostNorm, tokens()),
    "layer norm": (lambda: Block(nn.LayerNorm(8)), tokens()),
    "native RMSNorm": (lambda: Block(nn.RMSNorm(8)), tokens()),
    "RMSNorm by hand": (lambda: Block(RmsNorm()), tokens()),
    "layer norm by hand": (lambda: Block(HandWrittenLayerNorm()), tokens()),
    "ConvNeXt": (ConvNext, images(3, 8)),
    "one group": (OneGroup, images(3, 8)),
}


@pytest.fixture(params=NETWORKS, scope="module")
def network(request):
    """Return a model, which tests only read, and its inputs."""
    build, inputs = NETWORKS[request.param]
    model = seeded(build).double().eval()
    for norm in model.modules():  # not the ones and zeros that they start with
        if isinstance(norm, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)):
            for tensor in norm.parameters():
                nn.init.uniform_(tensor, 0.5, 1.5)
    return model, inputs.double() if inputs.is_floating_point() else inputs


@pytest.fixture(scope="module")
def plan(network):
    model, inputs = network
    return plan_submodels(model, inputs, scope="stream")


def streams_of(plan):
    return [n for n, group in enumerate(plan.groups) if group.kind == "stream"]


def reads(model, name, dim):
    """Whether positions along `dim` of the tensor take the stream in, by hand."""
    maker = model.get_submodule(owner_of(name))
    return dim == 1 and isinstance(maker, (nn.Linear, nn.MultiheadAttention))


def with_copies(model, plan, group, keep):
    """Return a full state in which units that are dropped copy one that is kept.

    Half are kept, and the copies are not read: the statistics of all units are those
    of the kept ones, and nothing else tells the model that there are more.
    """
    size, offset = plan.groups[group].size, plan.offsets[group]
    dropped = sorted(set(range(size)) - set(keep.tolist()))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, dims in plan.axes.items():
        for dim, units in dims.items():
            for gone, kept in zip(dropped, keep.tolist(), strict=True):
                places = (units == offset + gone).nonzero().flatten()
                sources = (units == offset + kept).nonzero().flatten()
                rows = state[name].movedim(dim, 0)  # a view
                rows[places] = 0 if reads(model, name, dim) else rows[sources]
    return state


def test_every_stream_is_a_group(network, plan):
    assert len(streams_of(plan)) == 1
    narrower = plan_submodels(*network)
    assert streams_of(narrower) == []
    names = {group.name for group in narrower.groups}
    assert names <= {group.name for group in plan.groups}


def test_a_narrower_stream_is_the_full_model_with_copies_that_nobody_reads(
    network, plan
):
    model, inputs = network
    [group] = streams_of(plan)
    keep = list(plan.full_keep())
    keep[group] = torch.tensor([1, 2, 5, 6])
    submodel = extract(model.state_dict(), plan.indices(tuple(keep)))

    small = load_submodel(model, submodel, scale=False)

    copies = with_copies(model, plan, group, keep[group])
    with torch.no_grad():
        expected = torch.func.functional_call(model, copies, inputs)
        assert torch.allclose(small(inputs), expected, rtol=1e-9, atol=1e-12)
        zeroed = {name: t.clone() for name, t in model.state_dict().items()}
        for name, dims in plan.indices(tuple(keep)).items():
            for dim, places in dims.items():
                rows = zeroed[name].movedim(dim, 0)
                others = torch.ones(len(rows), dtype=torch.bool)
                others[places] = False
                rows[others] = 0
        silenced = torch.func.functional_call(model, zeroed, inputs)
        assert not torch.allclose(small(inputs), silenced, rtol=1e-3)


def test_submodels_train(network, plan):
    model, inputs = network
    for seed in range(3):
        indices = plan.indices(random_keep(plan, seed))
        small = load_submodel(model, extract(model.state_dict(), indices)).train()
        small(inputs).square().sum().backward()
        missing = [n for n, p in small.named_parameters() if p.grad is None]
        assert missing == []


def test_what_is_averaged_but_not_normalised_stays_whole():
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 6), nn.Linear(4, 2)
            self.hidden = nn.Linear(6, 4)

        def forward(self, x):
            x = self.first(x)
            return self.second(torch.relu(self.hidden(x))) + x.mean(-1)[:, None]

    plan = plan_submodels(Pools(), vectors(), scope="stream")
    assert [group.name for group in plan.groups] == ["hidden"]
    assert "reduced over by aten.mean" in plan.left_out["first"]


class WidthInAttribute(nn.Module):
    """Gives its query a shape that an attribute has, which no convention knows."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = (-1, 6, 8)
        self.embedding, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.query, self.hidden = nn.Linear(8, 8), nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens))
        x = x + self.query(x).view(self.shape)
        return self.head(torch.relu(self.hidden(x)).mean(1))


class WidthOfNorm(nn.Module):
    """A norm without weights, whose width no tensor tells."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(20, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens))
        return self.head(torch.relu(self.hidden(x)).mean(1))


@pytest.mark.parametrize("build", [WidthInAttribute, WidthOfNorm])
def test_a_width_that_goes_stale_is_refused(build):
    found, _ = discover(make_probe(build(), [Example((tokens(),))]), streams=True)
    assert len(streams_of(found)) == 1
    plan = plan_submodels(build(), tokens(), scope="stream")
    assert [group.name for group in plan.groups] == ["hidden"]
    assert "a narrower model does not run" in plan.left_out["embedding"]


def test_a_stream_whose_output_changes_shape_is_refused():
    class ShowsItsWidth(Encoder):
        def forward(self, tokens):
            shown = self.embedding(tokens)
            return super().forward(tokens), torch.zeros(shown.shape[-1])

    plan = plan_submodels(ShowsItsWidth(), tokens(), scope="stream")
    assert not streams_of(plan)
    assert "outputs of another shape" in plan.left_out["embedding"]


INF = float("inf")


class Small(nn.Module):
    """A stream of 8, and something beside its output that follows from its width."""

    def __init__(self, shown) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.head, self.shown = nn.Linear(8, 3), shown

    def forward(self, tokens: Tensor):
        x = self.embedding(tokens)
        return self.head(self.norm(x).mean(1)), self.shown(x.shape[-1])


@pytest.mark.parametrize(
    ("full", "narrower"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.tensor([0.0, INF])),
        (torch.tensor([INF, 0.0]), torch.tensor([0.0, INF])),
        (1, 1.0),
    ],
    ids=["type", "infinity", "another infinity", "no tensor"],
)
def test_a_stream_whose_output_is_of_another_form_is_refused(full, narrower):
    def shown(width):
        return full if width == 8 else narrower

    says = "embedding: a narrower model has outputs of another shape, or not finite"
    with pytest.raises(UnsupportedModelError, match=says):
        plan_submodels(Small(shown), tokens(), scope="stream")


def test_each_example_has_to_have_outputs_of_the_same_form():
    """In the first one nothing follows from the width."""

    class Late(Small):
        def forward(self, tokens: Tensor):
            out, shown = super().forward(tokens)
            return out, shown if len(tokens) == 3 else None

    model = Late(torch.zeros)
    examples = [Example((tokens(batch=count),)) for count in (2, 3)]
    with pytest.raises(UnsupportedModelError, match="outputs of another shape"):
        plan_submodels(model, examples, scope="stream")


def test_a_stream_whose_units_have_places_does_not_pass_the_check():
    """A narrower model would run, with the places of other units."""

    class Placed(Small):
        def forward(self, tokens: Tensor):
            x = self.embedding(tokens)
            x = x * torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)
            return self.head(self.norm(x).mean(1)), self.shown(x.shape[-1])

    def nothing(width):
        return None

    example = [Example((tokens(),))]
    found, _ = discover(make_probe(Small(nothing), example), streams=True)
    with torch.no_grad():
        assert find_faults(make_probe(Small(nothing), example), found) == {}
        (fault,) = find_faults(make_probe(Placed(nothing), example), found).values()
    assert "reordering changes the output" in fault


def test_an_output_that_is_never_finite_in_one_place_may_stay_so():
    model = Small(lambda width: torch.tensor([0.0, INF]))
    assert streams_of(plan_submodels(model, tokens(), scope="stream"))


def test_the_report_says_that_submodels_are_models_of_their_own():
    reports = [plan_submodels(Encoder(), tokens(), scope=s) for s in ("all", "stream")]
    alone = "a submodel is a narrower model in its own right, not the full one with"
    assert [alone in str(plan) for plan in reports] == [False, True]


def test_models_without_normalised_streams_are_as_before():
    model = seeded(lambda: ResidualNet([6, 8], 4))
    plans = [plan_submodels(model, images(1), scope=s) for s in ("all", "stream")]
    assert plans[0].groups == plans[1].groups


def test_zeros_do_not_stand_for_units_of_a_stream():
    with pytest.raises(ConfigError, match="mode='masked' zeroes units, and those of"):
        AsyncDrop(seeded(Encoder), tokens(), scope="stream", mode="masked")
    AsyncDrop(seeded(Encoder), tokens(), scope="stream")


def test_zeros_do_not_stand_for_weights_that_are_divided_by_their_length():
    def layers(normalise):
        return nn.Sequential(normalise(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))

    x = torch.randn(2, 5)
    with pytest.raises(ConfigError, match="no finite numbers with zeros"):
        AsyncDrop(layers(parametrizations.weight_norm), x, mode="masked")
    AsyncDrop(layers(nn.Identity()), x, mode="masked")
