"""A model is converted in place for a while, and is as it was afterwards."""

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.probing.held import silencing
from flwr_asyncdrop.submodel.probing.precision import converted
from flwr_asyncdrop.submodel.types import tensors_of

_TABLES: dict[str, Tensor] = {}


class Mixed(nn.Module):
    """Tied weights, complex ones, whole numbers, and tables that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scale", torch.rand(3), persistent=False)
        self.table: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.table is None:
            self.table = _TABLES["ones"] = torch.ones_like(self.first.bias)
        hidden = self.second(self.first(inputs)) * self.get_buffer("scale")
        return hidden * self.table * _TABLES["ones"] * self.phase.abs()


def kinds(model: nn.Module) -> set[torch.dtype]:
    return {t.dtype for t in [*model.parameters(), *model.buffers()]}


def test_a_model_is_in_double_precision_for_a_while_and_then_as_it_was() -> None:
    model = Mixed()
    before = {name: t.detach().clone() for name, t in tensors_of(model).items()}
    inputs = torch.rand(2, 3)
    with converted(model, torch.float64):
        assert kinds(model) == {torch.float64, torch.complex128, torch.int64}
        assert model.first.weight is model.second.weight
        expected = model(inputs.double())
        expected.sum().backward()
        assert model.first.weight.grad is not None
        assert model.first.weight.grad.dtype is torch.float64
        model.zero_grad()
    assert kinds(model) == {torch.float32, torch.complex64, torch.int64}
    for name, tensor in tensors_of(model).items():
        torch.testing.assert_close(tensor.detach(), before[name], rtol=0.0, atol=0.0)
    found = model(inputs)  # with tables made anew
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected.float())
    found.sum().backward()
    assert model.first.weight.grad.dtype is torch.float32


def test_units_that_are_silenced_stay_so_while_it_is_converted() -> None:
    model = Mixed()
    before = model.first.weight.detach().clone()
    kept = {"first.weight": {0: torch.tensor([1])}}
    with silencing(model, kept, 0.0):
        with converted(model, torch.float64):
            assert model.first.weight.count_nonzero() == 3
        assert model.first.weight.count_nonzero() == 3
    assert torch.equal(model.first.weight, before)


def test_a_model_that_is_in_that_precision_keeps_its_memory() -> None:
    model = nn.Linear(3, 3, dtype=torch.float64)
    place = model.weight.data_ptr()
    with converted(model, torch.float64):
        assert model.weight.data_ptr() == place
