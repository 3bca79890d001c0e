import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.models import MODEL_NAMES, build_model

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


@pytest.mark.parametrize("name", MODEL_NAMES)
class TestEveryModel:
    @pytest.mark.parametrize("input_shape", [DIGITS, FASHION, (3, 17, 20)])
    def test_maps_images_to_logits(self, name, input_shape):
        model = build_model(name, input_shape, 7, seed=0)
        assert model.training
        logits = model(torch.zeros(2, *input_shape))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()

    def test_seed_decides_the_weights(self, name):
        first, again, other = (
            build_model(name, DIGITS, 10, seed).state_dict() for seed in (1, 1, 2)
        )
        assert all(torch.equal(first[key], again[key]) for key in first)
        drawn = [key for key in first if first[key].dim() > 1]
        assert drawn
        assert not any(torch.equal(first[key], other[key]) for key in drawn)

    def test_global_random_state_is_untouched(self, name):
        before = torch.get_rng_state()
        first = build_model(name, DIGITS, 10, seed=0)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        second = build_model(name, DIGITS, 10, seed=0)
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(one, two)

    def test_every_parameter_gets_a_gradient(self, name):
        model = build_model(name, DIGITS, 10, seed=0)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, *DIGITS, generator=generator)
        nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
        gradients = {key: p.grad for key, p in model.named_parameters()}
        assert [key for key, grad in gradients.items() if not grad.any()] == []


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
    with pytest.raises(ConfigError, match=r"not input_shape=.* and num_classes="):
        build_model("mlp", input_shape, num_classes, seed=0)
