import pytest
import torch
from torch import nn

from flwr_asyncdrop.app.models import MODEL_NAMES, TEXT_MODELS, build_model
from flwr_asyncdrop.app.models.width import scaled
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from tests.masks.choosing import choose
from tests.nightly import nightly

IMAGE_MODELS = tuple(name for name in MODEL_NAMES if name not in TEXT_MODELS)
DIGITS = (1, 8, 8)
FASHION = (1, 28, 28)
CIFAR = (3, 32, 32)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(name: str, seed: int = 0, width: float = 1.0) -> nn.Module:
    """Build any model, for digits or for texts of eight tokens of 50."""
    if name in TEXT_MODELS:
        return build_model(name, (8,), 10, seed, vocabulary=50, width=width)
    return build_model(name, DIGITS, 10, seed, width=width)


def inputs_for(name: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name in TEXT_MODELS:
        return torch.randint(0, 50, (count, 8), generator=generator)
    return torch.randn(count, *DIGITS, generator=generator)


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("input_shape", [DIGITS, FASHION, (3, 17, 20)])
def test_maps_images_to_logits(name, input_shape):
    model = build_model(name, input_shape, 7, seed=0)
    assert model.training
    logits = model(torch.zeros(2, *input_shape))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize("length", [1, 30])
def test_maps_token_ids_to_logits(name, length):
    model = build_model(name, (length,), 7, seed=0, vocabulary=20)
    assert model.training
    logits = model(torch.arange(2 * length).view(2, length) % 20)
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    "name",
    [nightly(n, id=n) if n in ("resnet18", "resnet34") else n for n in MODEL_NAMES],
)
class TestEveryModel:
    def test_seed_decides_the_weights(self, name):
        first, again, other = (build(name, seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(first[key], again[key]) for key in first)
        drawn = [key for key in first if first[key].dim() > 1]
        assert drawn
        assert not any(torch.equal(first[key], other[key]) for key in drawn)

    def test_global_random_state_is_untouched(self, name):
        before = torch.get_rng_state()
        first = build(name)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        second = build(name)
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(one, two)

    def test_every_parameter_gets_a_gradient(self, name):
        model = build(name)
        x = inputs_for(name, 4)
        nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
        gradients = {key: p.grad for key, p in model.named_parameters()}
        assert [key for key, grad in gradients.items() if not grad.any()] == []

    def test_width_is_a_factor_of_every_hidden_width(self, name):
        full, half = (
            [group.size for group in plan_submodels(model, inputs_for(name, 1)).groups]
            for model in (build(name), build(name, width=0.5))
        )
        assert half == [size // 2 for size in full]

    def test_one_unit_stays_of_each_width(self, name):
        model = build(name, width=1e-6).eval()
        assert model(inputs_for(name, 2)).shape == (2, 10)
        rows = {len(parameter) for parameter in model.parameters()}
        # A unit, classes, an LSTM's gates, tokens, a head or a text's positions.
        assert rows <= {1, 10, 4, 50, 8}

    def test_units_can_be_left_out(self, name):
        """And the rest, on its own, answers much as the full model does."""
        model, x = build(name).eval(), inputs_for(name, 64)
        plan = plan_submodels(model, x[:1])
        generator = torch.Generator().manual_seed(0)
        keep = choose(RandomMask(0.125), plan.groups, None, 0, 1, generator)
        small = load_submodel(model, extract(model.state_dict(), plan.indices(keep)))
        assert num_parameters(small) < num_parameters(model)
        with torch.no_grad():
            full, less = model(x).flatten(), small(x).flatten()
        assert torch.corrcoef(torch.stack([full, less]))[0, 1] > 0.8


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_small_models_learn_eight_samples_by_heart(name):
    model = build_model(name, DIGITS, 4, seed=0)
    x = torch.randn(8, *DIGITS, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.equal(model(x).argmax(1), y)


@pytest.mark.parametrize(
    ("name", "input_shape", "expected"),
    [
        # 784*512 + 512 + 512*256 + 256 + 256*10 + 10
        ("mlp", FASHION, 535_818),
        # 64*128 + 128 + 128*64 + 64 + 64*10 + 10
        ("mlp", DIGITS, 17_226),
        # 9*(32 + 32*64 + 64*128) + 2*(32 + 64 + 128) + 4*128*10 + 10
        ("cnn", DIGITS, 98_026),
        # Known for CIFAR-10 with a 3x3 stem and projection shortcuts.
        # Four blocks of two convolutions, three projections, stem, fc and norms:
        # 9*(3*64 + 64*64*2 + 64*128 + 128*128 + 128*256 + 256*256 + 256*512 + 512*512)
        # + 64*128 + 128*256 + 256*512 + 512*10 + 10
        # + 2*(64 + 2*64 + 3*128 + 3*256 + 3*512)
        ("resnet10", CIFAR, 4_903_242),
        ("resnet18", CIFAR, 11_173_962),
        ("resnet34", CIFAR, 21_282_122),
    ],
)
def test_number_of_parameters(name, input_shape, expected):
    assert num_parameters(build_model(name, input_shape, 10, seed=0)) == expected


def test_resnet_keeps_the_resolution_until_its_second_stage():
    model = build_model("resnet18", CIFAR, 10, seed=0)
    x = nn.Sequential(model.conv1, model.bn1)(torch.zeros(2, *CIFAR))
    shapes = {}
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        x = model.get_submodule(stage)(x)
        shapes[stage] = tuple(x.shape[1:])
    assert shapes == {
        "layer1": (64, 32, 32),
        "layer2": (128, 16, 16),
        "layer3": (256, 8, 8),
        "layer4": (512, 4, 4),
    }


def test_unknown_name():
    with pytest.raises(ConfigError, match="unknown model 'resnet50'") as caught:
        build_model("resnet50", CIFAR, 10, seed=0)
    assert all(name in str(caught.value) for name in MODEL_NAMES)


@pytest.mark.parametrize(
    ("input_shape", "num_classes"), [((28, 28), 10), ((1, 0, 28), 10), (CIFAR, 0)]
)
def test_impossible_sizes(input_shape, num_classes):
    with pytest.raises(ConfigError, match=r"not input_shape=.* and num_outputs="):
        build_model("cnn", input_shape, num_classes, seed=0)


@pytest.mark.parametrize(
    ("input_shape", "vocabulary"), [((), 10), ((0,), 10), ((8,), 0), (CIFAR, 10)]
)
def test_impossible_sizes_of_text(input_shape, vocabulary):
    with pytest.raises(ConfigError, match=r"not input_shape=.*vocabulary="):
        build_model("lstm", input_shape, 2, seed=0, vocabulary=vocabulary)


@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_widths(width):
    with pytest.raises(ConfigError, match=r"width=.* must be more than 0"):
        build_model("mlp", DIGITS, 10, seed=0, width=width)


@pytest.mark.parametrize("total", [10_000_000, None])
def test_a_model_fits_into_what_the_container_has(total, monkeypatch):
    """It was compared with the memory of the machine."""
    monkeypatch.setattr(Memory, "here", lambda: Memory(total=total))
    if total is None:  # nobody knows
        assert build_model("mlp", DIGITS, 10, seed=0, width=30.0)
        return
    with pytest.raises(ConfigError, match=r"this machine has 10\.0 MB: choose"):
        build_model("mlp", DIGITS, 10, seed=0, width=30.0)


def test_models_of_the_other_kind_of_data():
    with pytest.raises(ConfigError, match="'lstm' reads token ids"):
        build_model("lstm", CIFAR, 10, seed=0)
    with pytest.raises(ConfigError, match="'cnn' reads images"):
        build_model("cnn", (200,), 2, seed=0, vocabulary=100)


@pytest.mark.parametrize(
    ("units", "width", "expected"),
    [(64, 1.0, 64), (64, 0.25, 16), (7, 0.5, 4), (3, 0.1, 1)],
)
def test_scaled_by_hand(units, width, expected):
    assert scaled(units, width) == expected


def test_padding_is_embedded_as_zeros_and_stays_so():
    model = build_model("lstm", (8,), 2, seed=0, vocabulary=50)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = inputs_for("lstm", 4)
    x[:, :4] = 0
    nn.functional.cross_entropy(model(x), torch.arange(4) % 2).backward()
    optimizer.step()
    assert not model.embedding.weight[0].any()
    assert model.embedding.weight.grad[x[:, 4:]].any(dim=2).all()


def test_the_lstm_learns_which_of_two_words_a_text_holds():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(4, 50, (64, 8), generator=generator)
    y = torch.arange(64) % 2
    x[torch.arange(64), torch.arange(64) // 2 % 8] = 2 + y
    model = build_model("lstm", (8,), 2, seed=0, vocabulary=50)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.equal(model(x).argmax(1), y)
