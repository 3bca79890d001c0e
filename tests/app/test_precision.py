import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop.app import precision
from flwr_asyncdrop.app.precision import cpu_has_bfloat16_lstm, in_precision


class Spy(nn.Module):
    """A linear layer that tells what it computed in."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.computed_in = None

    def forward(self, x):
        outputs = self.layer(x)
        self.computed_in = outputs.dtype
        return outputs


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Spy()


INPUTS = torch.linspace(-1, 1, 12).view(4, 3)


def test_float32_is_the_model_itself(model):
    assert in_precision(model, "float32") is model


def test_bfloat16_computes_in_16_bits_and_answers_in_32(model):
    logits = in_precision(model, "bfloat16")(INPUTS)
    assert model.computed_in == torch.bfloat16
    assert logits.dtype == torch.float32
    expected = model.layer(INPUTS)
    assert torch.allclose(logits, expected, atol=0.02)
    assert not torch.equal(logits, expected)


def test_an_lstm_computes_whatever_the_processor_has():
    model = nn.LSTM(3, 2)
    outputs, _ = model(INPUTS)
    computed = in_precision(model, "bfloat16")
    if cpu_has_bfloat16_lstm():
        assert computed is not model
    else:
        assert torch.equal(computed(INPUTS)[0], outputs)


def test_without_an_lstm_in_bfloat16_it_computes_in_float32_and_says_so_once(
    monkeypatch, caplog
):
    monkeypatch.setattr(precision, "cpu_has_bfloat16_lstm", lambda: False)
    precision._tell_that_it_is_float32.cache_clear()
    model = nn.ModuleList([nn.LSTM(3, 2)])
    assert in_precision(model, "bfloat16") is model
    assert in_precision(model, "bfloat16") is model
    assert caplog.messages == [
        "precision='bfloat16': this processor has no LSTM in bfloat16, so the model "
        "computes in float32"
    ]
    other = nn.GRU(3, 2)
    assert in_precision(other, "bfloat16") is not other


def test_asking_draws_no_random_numbers():
    cpu_has_bfloat16_lstm.cache_clear()
    before = torch.random.get_rng_state()
    cpu_has_bfloat16_lstm()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_autocast_ends_with_the_call(model):
    in_precision(model, "bfloat16")(INPUTS)
    model(INPUTS)
    assert model.computed_in == torch.float32


def test_training_moves_the_models_own_float32_parameters(model):
    network = in_precision(model, "bfloat16")
    before = model.layer.weight.clone()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    labels = torch.tensor([0, 1, 0, 1])
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = F.cross_entropy(network(INPUTS), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert model.layer.weight.dtype == torch.float32
    assert not torch.equal(model.layer.weight, before)
    assert losses[-1] < losses[0]


def test_modes_reach_the_model(model):
    assert not in_precision(model.eval(), "bfloat16").training
    in_precision(model, "bfloat16").train()
    assert model.training
    assert in_precision(model, "bfloat16").training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_images_are_channels_last_on_a_gpu():
    model = nn.Conv2d(3, 8, 3).cuda()
    outputs = in_precision(model, "bfloat16")(torch.zeros(2, 3, 8, 8, device="cuda"))
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
