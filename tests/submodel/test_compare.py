"""Rounding is told from a difference, element by element."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels
from flwr_asyncdrop.submodel.probing.compare import agree, shift_
from tests.submodel.networks import seeded, vectors

INF, NAN = float("inf"), float("nan")


def same(found, expected, shifted=None, dtype=torch.float64):
    found, expected = (torch.tensor(v, dtype=dtype) for v in (found, expected))
    moved = found if shifted is None else torch.tensor(shifted, dtype=dtype)
    return agree([found], [expected], [moved], dtype)


def test_equal_but_for_rounding():
    assert same([1.0, -2.0], [1.0 + 1e-15, -2.0])
    assert not same([1.0, -2.0], [1.0 + 1e-9, -2.0])


def test_large_elements_hide_nothing():
    assert not same([1.0, -1e9, 3.4e38], [1.15, -1e9, 3.4e38])
    assert not same([1.0, -INF], [1.15, -INF])


def test_infinities_and_what_is_no_number():
    assert same([1.0, -INF, INF, NAN], [1.0, -INF, INF, NAN])
    assert not same([INF], [-INF])
    assert not same([1.0], [INF])
    assert not same([NAN], [1.0])


def test_tiny_elements():
    assert not same([1e-9, 2e-9], [1e-9, 2.2e-9])
    assert not same([1e-300], [0.0])


def test_an_element_may_differ_as_much_as_it_moves():
    """5 from 1e6 - 999,995 moves by 1e-6 when the terms move by 1e-12 of themselves."""
    assert same([5.0], [5.0 + 3e-6], shifted=[5.0 + 1e-6])
    assert not same([5.0], [5.0 + 3e-5], shifted=[5.0 + 1e-6])
    assert not same([5.0, 1.0], [5.0, 1.0 + 3e-6], shifted=[5.0 + 1e-6, 1 + 1e-9])


def test_leaves_that_are_no_real_numbers():
    dtype = torch.float64
    whole, other = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert agree([whole, "a"], [whole, "a"], [whole, "a"], dtype)
    assert not agree([whole], [other], [whole], dtype)
    assert not agree([1], [True], [1], dtype)
    assert not agree([whole], [whole.double()], [whole], dtype)
    assert not agree([whole], [], [], dtype)
    wave = torch.tensor([1 + 1j])
    assert agree([wave], [wave], [wave], dtype)
    assert not agree([wave], [wave.conj().resolve_conj()], [wave], dtype)


def test_shift_is_small_and_everywhere():
    weights = torch.full((1000,), 3.0, dtype=torch.float64)
    shift_([weights], torch.float64)
    moved = (weights - 3).abs()
    assert 0 < moved.median() < 1e-11
    assert moved.max() < 1e-10


class Stale(nn.Module):
    """The second layer is right for the full width only; a subclass hides it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def wrong(self, x):
        h = torch.relu(self.a(x))
        return self.head(h * (8 / h.shape[1]))

    def right(self, x):
        return self.head(torch.relu(self.b(x)))


class BesideLarge(Stale):
    def forward(self, x):
        blocked = torch.tensor([True, False, False])
        return self.wrong(x).masked_fill(blocked, self.fill)


class BesideLowest(BesideLarge):
    fill = torch.finfo(torch.float64).min


class BesideBillion(BesideLarge):
    fill = -1e9


class BesideInfinity(BesideLarge):
    fill = -INF


class TimesTiny(Stale):
    def forward(self, x):
        return self.wrong(x) * 1e-30


class BehindTiny(Stale):
    """The weights that show the fault are tiny."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.a.weight *= 1e-9
            self.a.bias *= 1e-9

    def forward(self, x):
        return self.wrong(x) + self.b(x).sum(-1, keepdim=True)


class BehindZero(Stale):
    """As in ReZero: the branch starts with a weight of 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight * self.wrong(x) + self.b(x).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "model",
    [BesideLowest, BesideBillion, BesideInfinity, TimesTiny],
)
def test_nothing_hides_a_stale_width(model):
    with pytest.raises(UnsupportedModelError, match="differs from the full one"):
        plan_submodels(seeded(model), vectors())


@pytest.mark.parametrize("model", [BehindTiny, BehindZero])
def test_nothing_hides_a_stale_width_beside_what_holds(model):
    plan = plan_submodels(seeded(model), vectors())

    assert [group.name for group in plan.groups] == ["b"]
    assert "differs from the full one" in plan.left_out["a"]


def test_infinities_do_not_refuse_what_is_right():
    class Masked(Stale):
        def forward(self, x):
            blocked = torch.tensor([True, False, False])
            return self.right(x).masked_fill(blocked, -INF)

    plan = plan_submodels(seeded(Masked), vectors())

    assert [group.name for group in plan.groups] == ["b"]


class ReadsAnothersWidth(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.head(x + self.c(self.b(x).view_as(x)))


def test_a_width_that_is_read_from_another_group():
    with pytest.raises(UnsupportedModelError, match="a narrower model does not run"):
        plan_submodels(seeded(ReadsAnothersWidth), vectors())
