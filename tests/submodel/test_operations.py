"""Models beyond plain stacks of layers: what is planned equals silencing."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    extract,
    load_in_place,
    load_submodel,
    plan_submodels,
    silenced,
)
from flwr_asyncdrop.submodel.discovery.rules import RULES, elementwise
from tests.submodel.agreement import (
    assert_same,
    build_in_double_precision,
    planned,
    share,
)
from tests.submodel.networks import images, tokens, vectors

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 1], [1, 2, 3, 4, 0, 2, 0, 1]])


class Net(nn.Module):
    """Modules and parameters by name, and a function of them and the inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def parameter(*shape, **options):
    return nn.Parameter(torch.randn(*shape, **options))


def steps(features=5, length=4, batch=2):
    generator = torch.Generator().manual_seed(2)
    shape = (batch, length, features)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def sizes(plan):
    return {group.name: group.size for group in plan.groups}


def refusal(build, *inputs):
    with pytest.raises(UnsupportedModelError) as raised:
        plan_submodels(build_in_double_precision(build), inputs)
    return str(raised.value)


NORMALISATIONS = {
    "weight norm": parametrizations.weight_norm,
    "weight norm by a hook": weight_norm,
    "weight norm of columns": partial(weight_norm, dim=1),
    "weight norm of the whole": partial(weight_norm, dim=None),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_normalised_weights_lose_rows_and_columns(name):
    normalise = NORMALISATIONS[name]

    def build():
        return nn.Sequential(
            normalise(nn.Linear(5, 8)),
            nn.Tanh(),
            normalise(nn.Linear(8, 6)),
            nn.Tanh(),
            nn.Linear(6, 3),
        )

    plan = planned(build, (vectors(),), seeds=1)

    assert sorted(sizes(plan).values()) == [6, 8]


@pytest.mark.parametrize("normalise", [parametrizations.spectral_norm, spectral_norm])
@pytest.mark.parametrize("kind", [nn.Linear, partial(nn.Conv1d, kernel_size=1)])
def test_what_is_divided_by_an_estimate_stays_whole(normalise, kind):
    """Parts of its singular vectors have another length than 1, merged or not."""

    def build():
        layers = (kind(5, 8), nn.Tanh(), normalise(kind(8, 6)), nn.Tanh(), kind(6, 7))
        return nn.Sequential(*layers, nn.Tanh(), kind(7, 3))

    inputs = torch.randn(2, 5) if kind is nn.Linear else torch.randn(2, 5, 4)
    plan = planned(build, (inputs.double(),), seeds=1)

    assert sizes(plan) == {"4": 7}
    reasons = [why for why in plan.left_out.values() if "spectral norm" in why]
    assert len(reasons) == 2


def test_activations_that_an_older_torch_does_not_tag_as_pointwise_have_a_rule():
    # In PyTorch 2.6 these lack the tag, among them what MobileNetV2 is made of.
    lacking = "leaky_relu leaky_relu_ elu_ celu_ selu_ hardtanh_ hardsigmoid_ ldexp"
    assert {RULES.get(name) for name in lacking.split()} == {elementwise}


def test_what_stays_whole_is_listed_in_the_order_of_the_model():
    """In every process: the names of a set have another order in each."""

    def build():
        normalised = (
            spectral_norm(nn.Linear(width, width + 1)) for width in range(4, 9)
        )
        return nn.Sequential(*normalised, nn.Linear(9, 8), nn.Linear(8, 2))

    plan = planned(build, (torch.randn(3, 4).double(),), seeds=1)

    estimated = [name for name, why in plan.left_out.items() if "spectral norm" in why]
    assert estimated == ["0", "1", "2", "3", "4"]


def test_normalised_kernels_lose_channels():
    normalise = parametrizations.weight_norm

    def build():
        return nn.Sequential(
            normalise(nn.Conv2d(3, 8, 3)),
            nn.ReLU(),
            normalise(nn.Conv2d(8, 6, 3)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 2),
        )

    assert sorted(sizes(planned(build, (images(),), seeds=1)).values()) == [6, 8]


def test_width_of_a_narrow_normalised_layer_is_known_to_the_scale():
    def build():
        first = nn.Linear(5, 8)
        second = parametrizations.weight_norm(nn.Linear(8, 3, bias=False))
        return nn.Sequential(first, second)

    model = build_in_double_precision(build)
    plan = plan_submodels(model, vectors())
    indices = plan.indices((torch.arange(4),))
    small = load_submodel(model, extract(model.state_dict(), indices))

    assert small[1].in_features == 4


def test_orthogonal_weights_only_lose_rows_of_what_they_are_relative_to():
    def build():
        square = parametrizations.orthogonal(nn.Linear(6, 6))
        return nn.Sequential(square, nn.Tanh(), nn.Linear(6, 3))

    plan = planned(build, (vectors(6),), seeds=1)

    assert "0.parametrizations.weight.original" not in plan.axes
    assert "not alike in aten.tril" in plan.left_out["0.parametrizations.weight"]


class Packed(nn.Module):
    def __init__(self, kind=nn.LSTM, *, enforce_sorted=False, **options):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = kind(6, 8, batch_first=True, **options)
        width = options.get("proj_size") or 8
        directions = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(width * directions, 3)
        self.enforce_sorted = enforce_sorted

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens),
            lengths,
            batch_first=True,
            enforce_sorted=self.enforce_sorted,
        )
        padded, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(padded.mean(1))


@pytest.mark.parametrize(
    ("build", "lengths", "groups"),
    [
        (Packed, [2, 4], {"embedding": 6, "rnn": 8}),
        (
            partial(Packed, nn.GRU, enforce_sorted=True),
            [4, 3],
            {"embedding": 6, "rnn": 8},
        ),
        (
            partial(Packed, proj_size=4, bidirectional=True),
            [2, 4],
            {"embedding": 6, "rnn": 8, "rnn#2": 4},
        ),
    ],
)
def test_packed_sequences(build, lengths, groups):
    plan = planned(build, (tokens(4), torch.tensor(lengths)), seeds=1)

    assert sizes(plan) == groups


def test_projection_as_wide_as_what_is_left_of_the_hidden_state():
    """Torch cannot tell such an LSTM from one without projections."""

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(5, 6, batch_first=True, proj_size=3)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            start = x.new_zeros(1, len(x), self.rnn.proj_size)
            cell = x.new_zeros(1, len(x), self.rnn.hidden_size)
            return self.head(self.rnn(x, (start, cell))[0][:, -1])

    model = build_in_double_precision(Projected)
    plan = plan_submodels(model, steps())
    keep = tuple(torch.arange(3) for _ in plan.groups)

    assert sizes(plan) == {"rnn": 6, "rnn#2": 3}
    assert_same(model, plan, plan.indices(keep), (steps(),))
    narrow = load_submodel(model, extract(model.state_dict(), plan.indices(keep)))
    assert narrow.rnn.hidden_size == narrow.rnn.proj_size == 3


@pytest.mark.parametrize("embed", [nn.Identity(), nn.Linear(5, 5)], ids=str)
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_cell_by_hand_that_starts_from_a_constant(embed, start):
    """Its state stands beside its input, and has no units before the first step."""

    def run(net, x):
        state = x.new_full((len(x), len(net.decay)), start)
        for step in net.embed(x).unbind(1):
            new = torch.tanh(net.cell(torch.cat([step, state], -1)))
            state = net.decay.sigmoid() * state + new
        return net.head(state)

    def build():
        cell, head = nn.Linear(5 + 8, 8), nn.Linear(8, 3)
        return Net(run, embed=embed, cell=cell, decay=parameter(8), head=head)

    plan = planned(build, (steps(),), seeds=1)

    assert sizes(plan)["cell"] == 8


@pytest.mark.parametrize(
    "options",
    [
        {"kdim": 7, "vdim": 9},
        {"add_bias_kv": True},
        {"kdim": 7, "vdim": 9, "add_bias_kv": True, "bias": False},
        {"add_zero_attn": True},
    ],
    ids=str,
)
def test_attention_loses_heads_and_features(options):
    key, value = options.get("kdim", 12), options.get("vdim", 12)

    def attend(net, x):
        queried = (net.q(x).tanh(), net.k(x).tanh(), net.v(x).tanh())
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = True
        mixed, weights = net.attention(*queried, key_padding_mask=padding)
        return net.head(mixed) + weights.sum()

    def build():
        return Net(
            attend,
            q=nn.Linear(5, 12),
            k=nn.Linear(5, key),
            v=nn.Linear(5, value),
            attention=nn.MultiheadAttention(12, 4, batch_first=True, **options),
            head=nn.Linear(12, 3),
        )

    plan = planned(build, (steps(),), seeds=1)

    assert sizes(plan).items() >= {"q": 12, "attention.out_proj": 12}.items()


class Attends(nn.Module):
    """Each position attends to those before it, in sequences of up to 8."""

    def __init__(self, *, causal):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 4, 16, 0.0, batch_first=True)
        self.head = nn.Linear(12, 3)
        self.mask = torch.ones(8, 8, dtype=torch.bool).triu(1)
        self.causal = causal

    def forward(self, x, padding=None):
        length = 8 if self.causal else x.shape[1]
        mask = self.mask[:length, :length]
        return self.head(self.layer(x, mask, padding, is_causal=self.causal))


def with_half_of_its_heads(causal):
    """Return the narrower model, and the full one with the other heads silenced."""
    model = build_in_double_precision(lambda: Attends(causal=causal))
    plan = plan_submodels(model, steps(12))
    assert sizes(plan) == {"layer.self_attn": 4, "layer.linear1": 16}
    places = plan.indices(tuple(torch.arange(g.size // 2) for g in plan.groups))
    states = [cut(model.state_dict(), places) for cut in (extract, silenced)]
    return [load_submodel(model, state, scale=False) for state in states]


def test_a_mask_that_is_said_to_be_causal_may_be_longer():
    small, full = with_half_of_its_heads(causal=True)
    x = steps(12, length=5)

    assert torch.allclose(small(x), full(x))


def test_a_query_that_may_attend_to_no_key():
    small, full = with_half_of_its_heads(causal=False)
    x, padding = steps(12), torch.zeros(2, 4, dtype=torch.bool)
    padding[0, :2] = True

    assert full(x, padding).isfinite().all()
    assert torch.allclose(small(x, padding), full(x, padding))


def test_the_mean_of_what_a_single_position_leaves_of_a_sequence():
    """With one position only it is the mean of nothing, in which no unit shows."""
    build = partial(
        Net,
        lambda net, x: net.head(net.body(x)[:, 1:].relu().mean(1)),
        body=nn.Linear(5, 6),
        head=nn.Linear(6, 3),
    )

    assert sizes(planned(build, (steps(),), seeds=1)) == {"body": 6}


class ReadsPadded(nn.Module):
    """Texts of several lengths, with a mask of what was put behind the shorter ones."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 4, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(12, 3)

    def forward(self, x, padding):
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layer", [0, 1])
def test_padded_texts_are_read_where_nothing_needs_gradients(layer):
    """The stock encoder then makes nested tensors of them, asking its first layer."""
    model = build_in_double_precision(ReadsPadded).eval()
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    inputs = (steps(12), padding)
    plan = plan_submodels(model, inputs)
    keep = list(plan.full_keep())
    (heads,) = (
        number
        for number, group in enumerate(plan.groups)
        if group.name == f"encoder.layers.{layer}.self_attn"
    )
    keep[heads] = torch.arange(2)
    places = plan.indices(tuple(keep))
    small = load_submodel(model, extract(model.state_dict(), places), scale=False)
    full = load_submodel(model, silenced(model.state_dict(), places))
    expected = full(*inputs)

    with torch.no_grad():
        assert torch.allclose(small(*inputs), expected)
        load_in_place(full, small.state_dict(), scale=False)
        assert torch.allclose(full(*inputs), expected)
    load_in_place(full, model.state_dict())
    assert full.encoder.use_nested_tensor


def test_cross_attention_of_a_decoder_loses_heads():
    def build():
        layer = nn.TransformerDecoderLayer(8, 4, 12, 0.0, batch_first=True)
        return Net(
            lambda net, x: net.decoder(net.start(x), net.start(x)),
            start=nn.Linear(5, 8),
            decoder=nn.TransformerDecoder(layer, 1),
        )

    plan = planned(build, (steps(),), seeds=1)

    assert sizes(plan) == {
        "decoder.layers.0.self_attn": 4,
        "decoder.layers.0.multihead_attn": 4,
        "decoder.layers.0.linear1": 12,
    }


def test_bilinear():
    def build():
        return Net(
            lambda net, x: net.head(net.both(net.a(x).tanh(), net.b(x).tanh()).tanh()),
            a=nn.Linear(5, 6),
            b=nn.Linear(5, 7),
            both=nn.Bilinear(6, 7, 8),
            head=nn.Linear(8, 3),
        )

    plan = planned(build, (vectors(),))

    assert sizes(plan) == {"a": 6, "b": 7, "both": 8}


def _normalised(x, edges):
    degree = torch.zeros(len(x), dtype=x.dtype)
    degree.index_add_(0, edges[1], torch.ones(edges.shape[1], dtype=x.dtype))
    return x[edges[0]] / degree[edges[1]].unsqueeze(1)


def _repeated(edges, x):
    return edges[1].unsqueeze(1).expand(-1, x.shape[1])


def _adjacency(x, edges):
    ones = torch.ones(edges.shape[1], dtype=x.dtype)
    # As fast code has it. Without checks, indices beyond the vectors, as they are on
    # fewer of them, end the process.
    return torch.sparse_coo_tensor(
        edges.flip(0), ones, (len(x), len(x)), check_invariants=False
    )


AGGREGATIONS = {
    "index_add_": lambda x, e: torch.zeros_like(x).index_add_(
        0, e[1], _normalised(x, e)
    ),
    "scatter_add": lambda x, e: x.new_zeros(x.shape).scatter_add(
        0, _repeated(e, x), x[e[0]]
    ),
    "scatter_reduce": lambda x, e: torch.zeros_like(x).scatter_reduce_(
        0, _repeated(e, x), x[e[0]], "amax"
    ),
    "index_put_": lambda x, e: torch.zeros_like(x).index_put_(
        (e[1],), x[e[0]], accumulate=True
    ),
    "sparse coo": lambda x, e: torch.sparse.mm(_adjacency(x, e), x),
    "sparse csr": lambda x, e: _adjacency(x, e).to_sparse_csr() @ x,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_graph_convolution(name):
    gather = AGGREGATIONS[name]

    def build():
        return Net(
            lambda net, x, edges: net.b(gather(net.a(gather(x, edges)).relu(), edges)),
            a=nn.Linear(5, 8),
            b=nn.Linear(8, 3),
        )

    assert sizes(planned(build, (vectors(5, 5), EDGES), seeds=1)) == {"a": 8}


def graph_attention(net, x, edges):
    source, target = edges
    values = net.make(x).unflatten(1, (-1, 3))
    score = (values * net.left).sum(-1)[source] + (values * net.right).sum(-1)[target]
    index = target.unsqueeze(1).expand_as(score)
    highest = score.new_full((len(x), score.shape[1]), -1e9)
    highest = highest.scatter_reduce(0, index, score, "amax")
    weight = (F.leaky_relu(score) - highest[target]).exp()
    total = weight.new_zeros(highest.shape).index_add_(0, target, weight)
    messages = (weight / total[target]).unsqueeze(-1) * values[source]
    mixed = torch.zeros_like(values).index_add_(0, target, messages)
    return net.head(F.elu(mixed.flatten(1)))


def test_graph_attention_loses_heads():
    def build():
        return Net(
            graph_attention,
            make=nn.Linear(5, 12, bias=False),
            left=parameter(1, 4, 3),
            right=parameter(1, 4, 3),
            head=nn.Linear(12, 3),
        )

    plan = planned(build, (vectors(5, 5), EDGES))

    assert sizes(plan) == {"left": 4}
    expected = [head for head in range(4) for _ in range(3)]
    assert plan.axes["make.weight"][0].tolist() == expected
    assert plan.axes["head.weight"][1].tolist() == expected


class Spectral(nn.Module):
    def __init__(self, width):
        super().__init__()
        shape = (width, width, 3, 3)
        self.low = parameter(*shape, dtype=torch.complex64)
        self.high = parameter(*shape, dtype=torch.complex64)

    def forward(self, x):
        waves = torch.fft.rfft2(x)
        width = self.low.shape[1]
        mixed = waves.new_zeros(len(x), width, *waves.shape[2:])
        for rows, weight in (
            (slice(3), self.low),
            (slice(-3, None), self.high),
        ):
            part = torch.einsum("bixy,ioxy->boxy", waves[:, :, rows, :3], weight)
            mixed[:, :, rows, :3] = part
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


def test_fourier_operator():
    def build():
        return Net(
            lambda net, x: net.end(
                F.gelu(net.spectral(net.start(x)) + net.local(net.start(x)))
            ),
            start=nn.Conv2d(3, 6, 1),
            spectral=Spectral(6),
            local=nn.Conv2d(6, 6, 1),
            end=nn.Conv2d(6, 2, 1),
        )

    plan = planned(build, (images(),))

    assert sorted(plan.axes["spectral.low"]) == [0, 1]
    assert plan.axes["spectral.low"][1].tolist() == plan.axes["end.weight"][1].tolist()


def attend_in_three_dims(net, x):
    q, k, v = (torch.einsum("bnd,hdk->bhnk", x, w) for w in (net.q, net.k, net.v))
    weights = torch.einsum("bhik,bhjk->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bhjk,hkd->bid", weights, v, net.out)


def test_attention_with_weights_of_three_dims():
    def build():
        parts = {name: parameter(4, 5, 3) for name in "qkv"}
        return Net(attend_in_three_dims, out=parameter(4, 3, 2), **parts)

    plan = planned(build, (steps(),))

    heads = plan.axes["q"][0].tolist()
    assert heads == plan.axes["out"][0].tolist()
    assert len(set(heads)) == 4
    assert plan.axes["q"][2].tolist() == plan.axes["k"][2].tolist()
    assert share(plan) == 1.0


def side_by_side(net, x):
    left = net.a(x)
    width = left.shape[1]
    both = x.new_zeros(len(x), 2 * width)
    both[:, :width] = left
    both[:, width:] = net.b(x)
    return net.head(both.tanh())


def test_two_sources_written_side_by_side_stay_together():
    def build():
        return Net(
            side_by_side,
            a=nn.Linear(5, 4),
            b=nn.Linear(5, 4),
            head=nn.Linear(8, 3),
        )

    plan = planned(build, (vectors(),))

    assert plan.axes["head.weight"][1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert plan.axes["a.weight"][0].tolist() == plan.axes["b.weight"][0].tolist()


def overwrite_rows(net, x):
    hidden = torch.empty_like(net.a(x))
    hidden[:] = net.a(x)
    hidden[:1] = net.b(x)[:1].flip(1)
    return net.head(hidden.tanh())


def through_a_view(net, x):
    hidden = net.a(x)
    view = hidden.detach().T
    view += net.b(x).flip(1).T
    return net.head(hidden.tanh())


def through_a_blank(net, x):
    blank = torch.zeros(len(x), 2, net.a.out_features, dtype=x.dtype)
    rows = blank[:, 1]
    rows += net.b(x).flip(1)
    blank[:, 0] = net.a(x)
    return net.head(blank.sum(1).tanh())


@pytest.mark.parametrize("use", [overwrite_rows, through_a_view, through_a_blank])
def test_units_that_meet_in_shared_memory_go_together(use):
    """The second layer's units come in the opposite order."""

    def build():
        return Net(use, a=nn.Linear(5, 4), b=nn.Linear(5, 4), head=nn.Linear(4, 3))

    model = build_in_double_precision(build)
    plan = plan_submodels(model, vectors())

    first = plan.axes["a.weight"][0].tolist()
    assert plan.axes["b.weight"][0].tolist() == first[::-1]
    assert plan.axes["head.weight"][1].tolist() == first


def overwrite_with_input(net, x):
    hidden = net.a(x).tanh()
    kept = hidden.clone()
    kept[:, :, 0] = x[:, :4, 0]
    return net.head(kept.mean(2))


def test_units_overwritten_with_what_has_none_stay_whole():
    def build():
        return Net(overwrite_with_input, a=nn.Conv1d(5, 4, 1), head=nn.Linear(4, 3))

    assert "combined with positions always kept in aten.copy_" in refusal(
        build, steps(length=6, features=5).transpose(1, 2)
    )


SILENT = {
    "dot product": lambda net, x: (net.a(x).relu() * net.b(x).tanh()).sum(1),
    "cosine": lambda net, x: F.cosine_similarity(net.a(x), net.b(x)),
    "unit length": lambda net, x: net.head(F.normalize(net.a(x) * net.b(x))),
    "distance": lambda net, x: torch.cdist(net.a(x), net.b(x)),
}


@pytest.mark.parametrize("name", SILENT)
def test_sums_over_units_that_are_zero_once_silenced(name):
    def build():
        return Net(
            SILENT[name], a=nn.Linear(5, 6), b=nn.Linear(5, 6), head=nn.Linear(6, 2)
        )

    plan = planned(build, (vectors(),))

    assert sizes(plan) == {"a": 6}
    assert plan.axes["b.bias"][0].tolist() == list(range(6))


LOUD = {
    "sigmoid": lambda h: (h.sigmoid() * h.sigmoid()).sum(1),
    "shifted": lambda h: ((h + 1) * (h + 1)).sum(1),
    "softplus": lambda h: F.softplus(h).norm(dim=1),
    "mean": lambda h: h.mean(1),
    "margin": lambda h: F.pad(h, (0, 0, 0, 1), value=1.0).sum(1),
    "filled": lambda h: h.masked_fill(h > 0, 2.0).sum(1),
}


@pytest.mark.parametrize("name", LOUD)
def test_sums_over_units_that_still_speak_once_silenced(name):
    def build():
        return Net(lambda net, x: LOUD[name](net.a(x)), a=nn.Linear(5, 6))

    assert "reduced over by aten." in refusal(build, vectors())


LAYERS = {
    "circular": (nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular"), 6),
    "pixel unshuffle": (nn.PixelUnshuffle(2), 24),
    "nearest exact": (nn.Upsample(scale_factor=2, mode="nearest-exact"), 6),
    "grouped transposed": (nn.ConvTranspose2d(6, 9, 2, 2, groups=3), 9),
    "unpool": (
        Net(lambda _, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
        6,
    ),
    "fold": (
        Net(lambda _, x: F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2)),
        6,
    ),
    "sorted": (Net(lambda _, x: x.flatten(2).sort(2).values[..., :4, None]), 6),
    "grid": (
        Net(
            lambda _, x: F.grid_sample(
                x, x.new_zeros(len(x), 4, 4, 2) + 0.1, align_corners=False
            )
        ),
        6,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_pass_channels_on(name):
    layer, width = LAYERS[name]

    def build():
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), layer, nn.Conv2d(width, 2, 1)
        )

    plan = planned(build, (images(),), seeds=1)

    assert plan.groups[0].name == "0"
    assert 0 in plan.axes["0.weight"]


def test_sparse_buffer_is_refused_with_the_reason():
    def build():
        return Net(
            lambda net, x: net.adjacency @ x,
            adjacency=nn.Buffer(_adjacency(vectors(5, 5), EDGES)),
        )

    assert "adjacency of Net is sparse" in refusal(build, vectors(5, 5))


def test_weight_of_a_hook_after_a_training_step():
    """The weight that the hook keeps has a gradient history, which cannot be copied."""

    def build():
        layers = spectral_norm(nn.Linear(5, 6)), nn.Linear(6, 7), nn.Linear(7, 2)
        return nn.Sequential(*layers)

    model = build_in_double_precision(build)
    model(vectors()).sum().backward()

    assert sizes(plan_submodels(model, vectors())) == {"1": 7}
