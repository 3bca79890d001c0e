"""Masks and widths of `examples/baselines`, by hand."""

import itertools

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from flwr_asyncdrop import AsyncStrategy, speed_levels
from flwr_asyncdrop.app.training import LocalTraining
from flwr_asyncdrop.masks import MaskContext
from flwr_asyncdrop.objectives import LocalTask
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.submodel import (
    UnitGroup,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
)
from tests.examples.outside import outside  # noqa: F401  # a fixture
from tests.grids import HandlerGrid
from tests.runs import mlp, plus_one

pytestmark = pytest.mark.usefixtures("outside")


def keeps(policy, size, rank, *, device=0, **known):
    """Return what the device of a rank among three keeps of one group."""
    group = UnitGroup("g", size, "internal")
    context = MaskContext([group], rank, 3, torch.Generator(), device, **known)
    return policy.choose(context)[0].tolist()


@pytest.mark.parametrize(
    ("rank", "kept"), [(0, [0, 1, 2, 3]), (1, [0, 1, 2]), (2, [0, 2])]
)
def test_the_largest_units_by_hand(rank, kept):
    from baselines.masked import LargestUnits

    # The ranks drop 0, 1/4 and 1/2; units 1 and 3 are as large, so the first stays.
    norms = [torch.tensor([3.0, 1.0, 2.0, 1.0])]
    found = keeps(LargestUnits(0.25), 4, rank, compute_norms=lambda: norms)
    assert found == kept


@pytest.mark.parametrize(
    ("device", "progress", "kept"),
    [
        (0, 0.0, [0, 1, 2, 3]),
        (0, 0.5, [0, 1, 2, 3, 4, 5]),
        (0, 1.0, list(range(8))),
        (1, 0.0, [4, 5, 6, 7]),  # int(0.618 * 8) = 4
        (1, 0.5, [0, 1, 4, 5, 6, 7]),
        (2, 0.0, [1, 2, 3, 4]),  # int(0.236 * 8) = 1
    ],
)
def test_windows_that_grow_by_hand(device, progress, kept):
    from baselines.masked import RestoredWindow

    # The slowest of three ranks drops a half at first.
    policy = RestoredWindow(0.25, 1.0)
    assert keeps(policy, 8, 2, device=device, known_progress=progress) == kept


def test_windows_are_whole_from_the_share_that_is_asked_for():
    from baselines.masked import RestoredWindow

    policy = RestoredWindow(0.25, 0.5)
    widths = [
        len(keeps(policy, 8, 2, known_progress=progress))
        for progress in (0.0, 0.25, 0.5, 0.75)
    ]
    assert widths == [4, 6, 8, 8]


def test_a_window_is_within_its_later_ones():
    from baselines.masked import RestoredWindow

    policy = RestoredWindow(0.4, 1.0)
    for device in range(9):
        windows = [
            set(keeps(policy, 37, 2, device=device, known_progress=step / 10))
            for step in range(11)
        ]
        assert all(one <= later for one, later in itertools.pairwise(windows))
        assert len(windows[0]) < len(windows[-1]) == 37


class Computes(Callback):
    """Notes what each task of the slowest device takes, of the full model's compute."""

    def __init__(self):
        self.seen = []

    def on_dispatch(self, state, order):
        if order.rank == order.num_ranks - 1:
            self.seen.append(order.part.compute)


@pytest.mark.usefixtures("no_settling")
def test_the_slowest_devices_get_more_as_the_run_goes_on():
    from baselines.masked import FedGmr

    model, computes = mlp(), Computes()
    AsyncStrategy(
        model,
        torch.zeros(1, 4),
        algorithm=FedGmr(drop_rate=0.25, restored_at=0.5, buffer_size=1),
        in_flight=4,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=[computes],
    ).start(
        HandlerGrid(plus_one, node_ids=range(4)),
        ArrayRecord(model.state_dict()),
        num_rounds=12,
    )
    # It leaves out half of 6 units and 2 of 5 at first: 3 and 3 are left.
    assert computes.seen[0] == (4 * 3 + 3 * 3 + 3 * 3) / (4 * 6 + 6 * 5 + 5 * 3)
    assert computes.seen == sorted(computes.seen)
    assert computes.seen[-1] == 1.0
    assert len(set(computes.seen)) > 2


def two_units():
    """A network whose two units are alike: 1 in, 1 out, no bias."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    for name, tensor in model.state_dict().items():
        tensor.fill_(1.0 if "weight" in name else 0.0)
    return model


def normalised(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 6), nn.Tanh()
    ).append(nn.Linear(6, 2))


def trained(model, batches, num_widths, widths=None):
    """Train with a new width for every step: these; return the widths."""
    from baselines.fjord import NarrowedObjective

    steps, size = len(batches), len(batches[0])
    for seed in itertools.count():
        torch.manual_seed(seed)
        drawn = torch.randint(1, num_widths + 1, (steps,)).tolist()
        if widths in (None, drawn):
            break
    torch.manual_seed(seed)
    task = LocalTask(model, lambda outputs, _: outputs.square().sum(), steps=steps)
    local = NarrowedObjective(num_widths=num_widths).begin(task)
    left = iter(batches)
    LocalTraining(steps, size, 0.1, momentum=0.0).train(
        model, local, lambda _: (next(left), None), size, torch.Generator()
    )
    local.finish()
    return drawn


def test_steps_of_half_the_units_and_of_all_by_hand():
    # Of one unit: h = 1, the output is 1, its gradient 2, and so is that of each of the
    # unit's numbers. All but those of the other unit become 0.8 or -0.2.
    model, batch = two_units(), torch.ones(1, 1)
    trained(model, [batch], 2, widths=[1])
    assert model[0].weight.flatten().tolist() == pytest.approx([0.8, 1.0])
    assert model[0].bias.tolist() == pytest.approx([-0.2, 0.0])
    assert model[2].weight.flatten().tolist() == pytest.approx([0.8, 1.0])
    assert model[2].bias.tolist() == pytest.approx([-0.2])
    # Of both: h = 0.6 and 1, and the output is 0.6 * 0.8 + 1 - 0.2 = 1.28.
    trained(model, [batch], 2, widths=[2])
    step = 0.1 * 2 * 1.28
    assert model[2].weight[0].tolist() == pytest.approx([0.8 - step * 0.6, 1 - step])
    assert model[0].bias.tolist() == pytest.approx([-0.2 - step * 0.8, -step])


def test_each_step_is_one_of_the_narrower_model():
    """Beside a naive reference, which cuts a narrower model out for every step."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 3, generator=generator) for _ in range(12)]
    model, naive = normalised(), normalised()
    widths = trained(model, batches, 4)
    assert {1, 2, 3, 4} == set(widths)
    plan = plan_submodels(naive, torch.zeros(1, 3))
    for width, batch in zip(widths, batches, strict=True):
        keep = tuple(torch.arange(max(g.size * width // 4, 1)) for g in plan.groups)
        indices = plan.indices(keep)
        small = load_submodel(naive, extract(naive.state_dict(), indices), scale=False)
        small.train()
        small(batch).square().sum().backward()
        torch.optim.SGD(small.parameters(), 0.1).step()
        merge_(naive.state_dict(), small.state_dict(), indices, 1.0)
    for name, tensor in naive.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, msg=name)


def test_what_a_step_is_without_keeps_every_bit():
    model = normalised()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    trained(model, [batch, batch], 4, widths=[1, 1])
    assert not model._forward_pre_hooks
    moved = {n: t != model.state_dict()[n] for n, t in before.items()}
    # A quarter of the 8 units is two.
    assert moved["0.weight"][:2].all()
    assert not moved["0.weight"][2:].any()
    assert moved["1.running_mean"].tolist() == [True] * 2 + [False] * 6
    assert not moved["3.weight"][:, 2:].any()


class Shared(nn.Module):
    """One layer under two names, so that two tensors of its state are the same."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.once = nn.Linear(3, 8), nn.Linear(8, 8)
        self.again = self.once
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.again(self.once(self.into(x).tanh()).tanh()).tanh())


def test_tensors_with_two_names_come_back_whole():
    model = Shared()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    trained(model, [batch], 4, widths=[1])
    moved = {n: t != model.state_dict()[n] for n, t in before.items()}
    assert moved["once.weight"][:2, :2].all()
    assert int(moved["once.weight"].sum()) == int(moved["again.weight"].sum()) == 4
