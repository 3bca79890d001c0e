"""The zoo: plan, extract, train a step, merge; what cannot be dropped has a reason."""

import re
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    Indices,
    Plan,
    State,
    droppable_share,
    extract,
    load_submodel,
    merge_,
)
from tests.nightly import NIGHTLY
from tests.submodel.silencing import random_keep
from tests.zoo.catalogue import HUGGING_FACE, VISION, ZOO
from tests.zoo.entries import Entry
from tests.zoo.expected import EXPECTED, plan_of, reasons
from tests.zoo.oracle import NotTakenError, check, random_kept
from tests.zoo.passes import Arguments, leaves, loss_of

NAMES = [name for name, entry in ZOO.items() if NIGHTLY or not entry.large]
PLANNED = [name for name in NAMES if isinstance(EXPECTED.get(name, 0.0), float)]
REFUSED = [name for name in NAMES if name not in PLANNED]

# Examples and how much longer they are than those that the plan was made from.
SHAPES = [(2, 0), (1, 0), (3, 3)]

READABLE = re.compile(
    "part of the model's output"
    "|normalised together by aten"
    "|combined with positions always kept in aten"
    "|meets positions that are always kept in aten"
    "|depend on each other in aten"
    "|reduced over by aten"
    "|cut into unequal parts by aten"
    "|stand or fall together: none of them can go alone"
    "|meet no other tensor: used last by aten"
    "|not used in any traced forward pass"
    "|positions that aten.index picks by number"
    "|rows that aten.embedding looks up by number"
    "|where a Python value was read from the data"
    "|for which there is no rule"
    "|goes into a loss, by aten"
    "|a narrower model does not run .[A-Za-z]*Error: "
    "|a narrower model differs"
    "|would not follow from its shapes"
    "|positions of a kernel in aten"
    "|reordering changes the output"
)

pytestmark = [
    # Of old hooks, of models without their weights, of lists as nested tensors
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True)
class Trained:
    """A model, and what one task at 25 % made of it.

    Attributes
    ----------
    full, merged : dict of str to Tensor
        The model's state before and after.
    sub : dict of str to Tensor
        The submodel's, trained.
    idle : set of str
        The weights that a step of the full model does not reach.
    """

    model: nn.Module
    plan: Plan
    indices: Indices
    full: State
    sub: State
    merged: State
    idle: set[str]


def require_library(name: str) -> None:
    """Skip the test without the library that the entry is from."""
    library = {**dict.fromkeys(VISION, "torchvision")}
    library |= dict.fromkeys(HUGGING_FACE, "transformers")
    if name in library and find_spec(library[name]) is None:
        pytest.skip(f"{library[name]} is not installed")


def train(entry: Entry) -> Trained:
    """Plan, extract at 25 %, train one step, merge."""
    model = entry.model().eval()
    plan = plan_of(entry, model)
    given = entry.example(2)
    indices = plan.indices(random_keep(plan, seed=0, rate=0.25))
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = load_submodel(model, extract(full, indices)).train()
    optimiser = torch.optim.SGD(small.parameters(), lr=1.0)
    backward(small, given)
    optimiser.step()
    sub = small.state_dict()
    merged = {name: tensor.clone() for name, tensor in full.items()}
    merge_(merged, sub, indices, 1.0)
    backward(model.train(), given)
    idle = {
        name
        for name, tensor in model.state_dict(keep_vars=True).items()
        if tensor.grad is None or not tensor.grad.any()
    }
    restored = model.state_dict()  # with the versions of modules, which are no tensors
    restored.update(full)
    model.load_state_dict(restored)
    model.zero_grad()
    return Trained(model.eval(), plan, indices, full, sub, merged, idle)


def backward(model: nn.Module, given: Arguments) -> None:
    """Run `model` forward and backward, dropout the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss_of(list(leaves(model(*given.args, **given.kwargs)))).backward()


@pytest.fixture(scope="module", params=PLANNED)
def trained(request: pytest.FixtureRequest) -> tuple[str, Trained]:
    """Return each model in turn, trained once for all tests of it."""
    require_library(request.param)
    return request.param, train(ZOO[request.param])


def kept(shape: tuple[int, ...], dims: dict[int, Tensor]) -> Tensor:
    """Return a mask of `shape`, True where all dims are kept."""
    mask = torch.ones(shape, dtype=torch.bool)
    for dim, positions in dims.items():
        dropped = torch.ones(shape[dim], dtype=torch.bool)
        dropped[positions] = False
        mask.index_fill_(dim, dropped.nonzero().squeeze(1), False)
    return mask


def test_share_that_can_be_dropped(trained: tuple[str, Trained]) -> None:
    name, task = trained

    assert droppable_share(task.plan) >= EXPECTED[name]


def test_oracle_agrees(trained: tuple[str, Trained]) -> None:
    """Outputs, gradients and statistics, of other inputs than the plan was made from.

    Three random keeps, each with examples of its own, in both modes.
    """
    name, task = trained
    ran = 0

    for seed, (batch, longer) in enumerate(SHAPES):
        given = ZOO[name].example(batch, longer=longer, seed=7 + seed)
        for mode in (False, True):
            try:
                check(
                    task.model,
                    task.plan,
                    random_kept(task.plan, seed),
                    given,
                    train=mode,
                )
            except NotTakenError as error:
                assert "more than 1 value per channel" in str(error)  # noqa: PT017
                continue
            ran += 1

    assert ran >= 5


def test_merge_writes_what_was_trained_and_nothing_else(
    trained: tuple[str, Trained],
) -> None:
    _, task = trained

    counts = [sum(map(torch.numel, state.values())) for state in (task.sub, task.full)]
    assert counts[0] < counts[1]
    for key, merged in task.merged.items():
        mask = kept(tuple(merged.shape), task.indices.get(key, {}))
        assert torch.equal(merged[~mask], task.full[key][~mask]), key
        assert torch.equal(merged[mask], task.sub[key].reshape(-1)), key


def test_every_weight_learns(trained: tuple[str, Trained]) -> None:
    _, task = trained
    weights = [key for key in task.plan.parameters if task.full[key].dim() > 1]

    idle = {key for key in weights if torch.equal(task.merged[key], task.full[key])}

    assert idle <= task.idle


def test_report(trained: tuple[str, Trained]) -> None:
    _, task = trained
    modules = dict(task.model.named_modules())

    for place, reason in task.plan.left_out.items():
        assert place.partition("#")[0] in task.full.keys() | modules.keys()
        assert READABLE.search(reason), f"{place}: {reason}"
    report = task.plan.report()
    assert all(group.name in report for group in task.plan.groups)
    assert all(group.kind != "stream" for group in task.plan.groups)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_for_a_known_reason(name: str) -> None:
    require_library(name)
    entry = ZOO[name]

    with pytest.raises(UnsupportedModelError) as caught:
        plan_of(entry, entry.model().eval())

    assert reasons(caught.value) == EXPECTED[name]


def test_catalogue() -> None:
    assert len(ZOO) >= 90
    assert len(HUGGING_FACE) >= len(ZOO) / 3
    assert EXPECTED.keys() == ZOO.keys()
