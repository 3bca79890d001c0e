"""What a model's code keeps outside of the model is as it was after planning."""

import functools

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels

TABLES = {}
ROWS = []
TABLE, LENGTH = None, 0


def mask(x, length=None):
    length = length or x.shape[1]
    return x.new_ones(length, length).tril()


class Mixing(nn.Module):
    """A mean over earlier steps, by a mask of the precision that the model has."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.first(self.mask(x) @ x).relu().mean(1))


class OfAFile(Mixing):
    def mask(self, x):
        if x.shape[1] not in TABLES:
            TABLES[x.shape[1]] = mask(x)
        return TABLES[x.shape[1]]


class InAList(Mixing):
    def mask(self, x):
        while len(ROWS) < x.shape[1]:
            ROWS.append(x.new_ones(len(ROWS) + 1))
        return torch.nn.utils.rnn.pad_sequence(ROWS[: x.shape[1]], batch_first=True)


class OfAGlobalVariable(Mixing):
    """The length of the table, beside it, is to go back with it."""

    def mask(self, x):
        global TABLE, LENGTH
        if x.shape[1] > LENGTH:
            TABLE, LENGTH = mask(x), x.shape[1]
        return TABLE[: x.shape[1], : x.shape[1]]


class OfAClass(Mixing):
    table = None

    def mask(self, x):
        if OfAClass.table is None or len(self.table) < x.shape[1]:
            OfAClass.table = mask(x)
        return self.table[: x.shape[1], : x.shape[1]]


class NewInAClass(Mixing):
    def mask(self, x):
        if not hasattr(type(self), "table"):
            type(self).table = mask(x, 50)
        return self.table[: x.shape[1], : x.shape[1]]


class OfAFunction(Mixing):
    def mask(self, x):
        if not hasattr(mask, "table"):
            mask.table = mask(x, 50)
        return mask.table[: x.shape[1], : x.shape[1]]


class OfADefault(Mixing):
    def mask(self, x, tables={}):  # noqa: B006
        if x.shape[1] not in tables:
            tables[x.shape[1]] = mask(x)
        return tables[x.shape[1]]


class OfAMethod(Mixing):
    @functools.cache  # noqa: B019
    def table(self, length):
        return mask(self.first.weight, length)

    def mask(self, x):
        return self.table(x.shape[1])


class OfAnObject(Mixing):
    class Tables:
        def __init__(self):
            self.table, self.length = None, 0

        def get(self, x):
            if x.shape[1] > self.length:
                self.table, self.length = mask(x), x.shape[1]
            return self.table[: x.shape[1], : x.shape[1]]

    tables = Tables()

    def mask(self, x):
        return self.tables.get(x)


def remembering():
    table, length = None, 0

    def get(x):
        nonlocal table, length
        if x.shape[1] > length:
            table, length = mask(x), x.shape[1]
        return table[: x.shape[1], : x.shape[1]]

    return get


class OfAClosure(Mixing):
    def __init__(self):
        super().__init__()
        self.mask = remembering()


def sequences(length=5):
    return torch.randn(2, length, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", Mixing.__subclasses__())
@pytest.mark.parametrize("has_run", [False, True])
def test_the_model_runs_after_planning_as_before(kind, has_run):
    model = kind()
    if has_run:
        model(sequences())

    plan = plan_submodels(model, sequences())

    assert [group.name for group in plan.groups] == ["first"]
    for length in (5, 11):
        inputs = sequences(length)
        mixed = torch.ones(length, length).tril() @ inputs
        expected = model.head(model.first(mixed).relu().mean(1))
        torch.testing.assert_close(model(inputs), expected)


def test_what_was_there_stays():
    TABLES.clear()
    model = OfAFile()
    model(sequences(5))
    before = dict(TABLES)

    plan_submodels(model, sequences())

    assert list(TABLES) == [5]
    assert TABLES[5] is before[5]


def test_after_a_refusal():
    class Fails(OfAFile):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("not today")

    TABLES.clear()

    with pytest.raises(UnsupportedModelError, match="not today"):
        plan_submodels(Fails(), sequences())

    assert not TABLES


class Drawn(Mixing):
    """A random table, drawn at the first pass: planning fixes what it draws."""

    features = None

    def mask(self, x):
        if Drawn.features is None:
            Drawn.features = torch.rand(50, 50)
        return self.features[: x.shape[1], : x.shape[1]].to(x.dtype)


def test_what_is_drawn_once_is_drawn_for_the_model():
    model = Drawn()

    plan_submodels(model, sequences())
    model(sequences())

    assert len(Drawn.features.unique()) > 1
