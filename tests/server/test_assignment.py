from itertools import product

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.masks import MaskPolicy, RandomMask, SmartPartition
from flwr_asyncdrop.server import assignment as module
from flwr_asyncdrop.server import compute_share as costs
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.compute_share import compute_share
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.strategy.units import first_costs
from flwr_asyncdrop.submodel import (
    extract,
    forward_flops,
    lora_plan,
    lora_state,
    plan_blocks,
    plan_submodels,
)
from tests.runs import mlp, residual_mlp
from tests.submodel.lora.models import Layers

INPUTS = torch.zeros(1, 4)
PLAN = plan_submodels(mlp(), INPUTS)
FULL = 4 * 6 + 6 * 5 + 5 * 3  # multiplications of `mlp`


def run_state(seed=0):
    return RunState.start_from(mlp().state_dict(), seed)


def submodels(policy):
    return Assignment(PLAN, policy, compute_share(PLAN, mlp(), INPUTS))


def masked_models(policy):
    return Assignment(PLAN, policy, masked=True)


def shapes_of(arrays):
    return {name: tuple(tensor.shape) for name, tensor in arrays.items()}


def test_full_models_are_the_whole_global_model():
    state = run_state()
    part = Assignment().part(state, 0, 8)
    assert part.indices == {}
    assert part.compute == 1.0
    assert part.shapes == shapes_of(state.arrays)
    assert all(torch.equal(part.arrays[n], t) for n, t in state.arrays.items())


def test_a_submodel_is_really_smaller_and_costs_less():
    # 0.5 of 6 is 3, of 5 it is 2 or 3 by chance: 3 and 3 are left here.
    state = run_state()
    part = submodels(RandomMask(0.5)).part(state, 0, 8)
    assert part.shapes == shapes_of(part.arrays)
    assert part.shapes["0.weight"] == (3, 4)
    assert part.shapes["2.weight"] == (3, 3)
    assert part.shapes["4.weight"] == (3, 3)
    assert part.compute == (4 * 3 + 3 * 3 + 3 * 3) / FULL
    rows = part.indices["0.weight"][0]
    assert torch.equal(part.arrays["0.bias"], state.arrays["0.bias"][rows])


@pytest.mark.parametrize("assignment", [submodels, masked_models])
def test_a_part_says_which_units_it_has(assignment):
    part = assignment(RandomMask(0.5)).part(run_state(), 0, 8)
    first, second = (part.kept[group] for group in PLAN.groups)
    assert torch.equal(part.indices["0.weight"][0], first)
    assert torch.equal(part.indices["4.weight"][1], second)
    assert Assignment().part(run_state(), 0, 8).kept == {}


SIX, FIVE = torch.arange(6), torch.arange(5)
WRONG = {
    "a generator": (lambda: (units for units in (SIX, FIVE)), "keep is a generator"),
    "None": (lambda: None, "keep is None"),
    "a dict": (lambda: {"0": SIX, "2": FIVE}, "keep is a dict"),
    "one tensor": (lambda: torch.arange(2), "keep is a Tensor"),
    "a group too few": (lambda: (SIX,), "1 entries but the plan has 2 groups"),
    "numbers": (lambda: (SIX, [0, 1]), "units of 2 are a list"),
    "an array": (lambda: (SIX.numpy(), FIVE), "units of 0 are a ndarray"),
    "none in a group": (lambda: (SIX, None), "units of 2 are None"),
    "flags": (lambda: (SIX > 2, FIVE), "units of 0 must be .* not torch.bool"),
    "floats": (lambda: (SIX, FIVE + 0.5), "units of 2 must be .* not torch.float32"),
    "no units": (lambda: (SIX, FIVE[:0]), "units of 2 must be a non-empty"),
    "too many units": (lambda: (torch.arange(7), FIVE), r"lie in 0\.\.6"),
    "a matrix": (lambda: (SIX[None], FIVE), r"of shape \(1, 6\)"),
    "a blank": (lambda: (SIX.to("meta"), FIVE), "units of 0 are on meta"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_policy_should_not_return_is_refused_by_its_name(name):
    answer, complaint = WRONG[name]

    class Mine(MaskPolicy):
        def choose(self, context):
            return answer()

    with pytest.raises(AsyncDropError, match=f"^Mine.choose: .*{complaint}") as caught:
        submodels(Mine()).part(run_state(), 0, 8)
    assert len(str(caught.value).splitlines()) == 1


def test_a_policy_may_return_a_list():
    class Mine(MaskPolicy):
        def choose(self, context):
            return [SIX[1:], FIVE[1:]]

    part = submodels(Mine()).part(run_state(), 0, 8)
    assert [units.tolist() for units in part.kept.values()] == [
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4],
    ]


def test_dropping_nothing_costs_what_the_full_model_costs():
    for policy in (RandomMask(0.0), SmartPartition(0.0)):
        part = submodels(policy).part(run_state(), 0, 8)
        assert (part.indices, part.compute) == ({}, 1.0)


def test_the_global_model_may_change_while_a_submodel_is_away():
    state = run_state()
    part = submodels(RandomMask(0.5)).part(state, 0, 8)
    before = {name: tensor.clone() for name, tensor in part.arrays.items()}
    for tensor in state.arrays.values():
        tensor.zero_()
    assert all(torch.equal(part.arrays[n], t) for n, t in before.items())


def kept(assignment, state, rank=0):
    indices = assignment.part(state, rank, 3).indices
    return [indices[name][0].tolist() for name in ("0.bias", "2.bias")]


def test_random_masks_follow_the_seed_and_the_number_of_the_order():
    assignment, state = submodels(RandomMask(0.5)), run_state()
    first = kept(assignment, state)
    assert kept(assignment, run_state()) == first
    masks, others = [], []
    for number in range(10):
        state.dispatched = number
        masks.append(kept(assignment, state))
        other = run_state(seed=1)
        other.dispatched = number
        others.append(kept(assignment, other))
    assert len({str(mask) for mask in masks}) > 5
    assert masks != others


def test_the_smart_partition_goes_by_what_has_moved():
    # Units 4 and 1 of the first layer have moved most: rank 0 of 3 drops them, rank 1
    # drops the next two by number, 0 and 2, and rank 2 the last two.
    state = run_state()
    state.arrays["0.bias"][4] += 9
    state.arrays["0.bias"][1] += 5
    assignment = submodels(SmartPartition(1 / 3))
    first = [kept(assignment, state, rank)[0] for rank in range(3)]
    assert first == [[0, 2, 3, 5], [1, 3, 4, 5], [0, 1, 2, 4]]


@pytest.mark.parametrize(("vectors", "dropped"), [(True, [0, 1]), (False, [2, 3])])
def test_biases_count_in_scores_unless_told_otherwise(vectors, dropped):
    """By the whole unit, 0 and 1 have moved most; by rows and columns, 2 and 3."""
    state = run_state()
    state.arrays = {name: t.clone() for name, t in state.initial.items()}
    state.arrays["0.weight"][2:4] += 1  # 4 a unit
    state.arrays["0.bias"][:2] += 5
    assignment = submodels(SmartPartition(1 / 3, score_vectors=vectors))
    rows = kept(assignment, state)[0]
    assert sorted({*range(6)} - {*rows}) == dropped


def counting(monkeypatch):
    """Return the list in which the weights of counted submodels will be."""
    counted = []

    def flops(model, inputs):
        counted.append(tuple(model[2].weight.shape))
        return forward_flops(model, inputs)

    monkeypatch.setattr(costs, "forward_flops", flops)
    return counted


def test_flops_are_counted_once_per_width(monkeypatch):
    counted = counting(monkeypatch)
    assignment, state = submodels(RandomMask(0.5)), run_state()
    for state.dispatched in range(20):
        assignment.part(state, 0, 8)
    # Chance rounds 2.5 of 5 units; the last is the full model.
    assert sorted(counted) == [(2, 3), (3, 3), (5, 6)]


def shares_of_all_sizes(share):
    sizes = product(range(1, 7), range(1, 6))
    keeps = [tuple(map(torch.arange, size)) for size in sizes]
    return [share(keep, PLAN.shapes_of(PLAN.indices(keep))) for keep in keeps]


def test_flops_of_many_widths_are_computed(monkeypatch):
    counted = counting(monkeypatch)
    shares = shares_of_all_sizes(compute_share(PLAN, mlp(), INPUTS))
    by_hand = [
        (4 * n + n * m + m * 3) / FULL for n, m in product(range(1, 7), range(1, 6))
    ]
    assert shares == by_hand
    assert len(counted) < len(shares)


@pytest.mark.parametrize("formula", [None, lambda keep: None])
def test_without_a_formula_all_are_counted(monkeypatch, formula):
    counted = counting(monkeypatch)
    expected = shares_of_all_sizes(compute_share(PLAN, mlp(), INPUTS))
    del counted[:]
    monkeypatch.setattr(costs.FlopFormula, "of", lambda *_: formula)
    monkeypatch.setattr(costs, "_REMEMBERED", 7)
    share = compute_share(PLAN, mlp(), INPUTS)
    assert shares_of_all_sizes(share) == expected
    assert len(counted) == 1 + len(expected)
    assert len(share._known) <= 7


def test_the_first_cost_is_that_of_the_first_task():
    for assignment in (submodels(RandomMask(0.5)), submodels(SmartPartition(0.3))):
        state = run_state()
        for state.dispatched in range(5):
            part = assignment.part(state, 1, 3)
            size = sum(tensor.nbytes for tensor in part.arrays.values())
            cost = assignment.first_cost(state, 1, 3)
            assert cost == TaskCost(part.compute, size, size)


def test_first_costs_stand_for_many_tasks():
    # 0.5 of 5 units: 2 or 3 are left of the second layer, as often.
    costs = first_costs(submodels(RandomMask(0.5)), run_state(3), 2)
    each = [(4 * 3 + 3 * n + n * 3) / FULL for n in (2, 3)]
    assert all(each[0] < cost.compute < each[1] for cost in costs)
    whole = first_costs(submodels(RandomMask(0.0)), run_state(3), 2)
    assert whole == [TaskCost(1.0, 4 * (FULL + 14), 4 * (FULL + 14))] * 2


def test_without_a_module_the_share_of_the_weights_stands_in():
    biases = 6 + 5 + 3
    share = compute_share(PLAN, None, None)
    assert share((), PLAN.shapes) == 1.0
    halved = submodels(RandomMask(0.5)).part(run_state(), 0, 8).shapes
    assert share((), halved) == (12 + 9 + 9 + 3 + 3 + 3) / (FULL + biases)


class Products(nn.Module):
    """Scores of words: no matrix product, no convolution."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.weights = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return (self.words(x) * self.weights).sum(-1)


def test_where_nothing_counts_as_a_flop_it_stands_in_too():
    words = torch.arange(4)
    plan = plan_submodels(Products(), words)
    share = compute_share(plan, Products(), words)
    assert share((), plan.shapes) == 1.0
    assert share((), {"words.weight": (10, 3), "weights": (3,)}) == 0.5


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 11), (0.2, 9), (0.4, 7)])
def test_by_the_papers_rule_a_submodel_costs_the_share_of_its_units(rate, kept):
    # int(0.2 * 6) + int(0.2 * 5) = 2 and int(0.4 * 6) + int(0.4 * 5) = 4 of 11 go.
    share = compute_share(PLAN, mlp(), INPUTS, "paper")
    assignment = Assignment(PLAN, RandomMask(rate), share)
    assert assignment.part(run_state(), 0, 8).compute == kept / 11


class TestLeastSaving:
    """A device gets the full model where its submodel would hardly be smaller."""

    # 3 of 6 and 3 of 5 units are left, of 11 in all.
    LEFT_OUT = 5 / 11

    def part(self, saving, least, policy=RandomMask):
        masks = policy(0.5)
        masks.least_saving = least
        share = (lambda keep, shapes: 1 - saving) if saving else (lambda *_: 1.0)
        return Assignment(PLAN, masks, share).part(run_state(), 0, 8)

    def test_what_saves_enough_compute_is_a_submodel(self):
        # Fewer bytes than 0.9 are saved, so compute decides.
        assert self.part(0.9, 0.9 / self.LEFT_OUT - 0.01).indices
        assert not self.part(0.9, 0.9 / self.LEFT_OUT + 0.01).indices

    def test_what_saves_enough_bytes_is_a_submodel(self):
        full, left = FULL + 14, 12 + 9 + 9 + 3 + 3 + 3
        saved = 1 - left / full
        assert self.part(0.0, saved / self.LEFT_OUT - 0.01).indices
        assert not self.part(0.0, saved / self.LEFT_OUT + 0.01).indices

    def test_the_full_model_is_whole_and_costs_so(self):
        assignment = submodels(RandomMask(0.5, least_saving=9.0))
        whole = submodels(RandomMask(0.0))
        state = run_state()
        part, expected = assignment.part(state, 0, 8), whole.part(state, 0, 8)
        assert (part.indices, part.compute) == ({}, 1.0)
        assert part.shapes == expected.shapes
        assert [len(units) for units in part.kept.values()] == [6, 5]
        assert assignment.first_cost(state, 0, 8) == whole.first_cost(state, 0, 8)

    def test_it_is_said_once(self, monkeypatch):
        said = []
        monkeypatch.setattr(module.logger, "warning", said.append)
        assignment = submodels(RandomMask(0.5, least_saving=9.0))
        state = run_state()
        assignment.first_cost(state, 0, 8)
        for _ in range(3):
            assignment.with_masks(assignment.masks).part(state, 0, 8)
        (line,) = said
        left, whole = 12 + 9 + 9, FULL
        assert f"{1 - left / whole:.1%} of compute" in line
        assert "without 45.5% of the units (least_saving=9)" in line

    def test_any_policy_may_ask_for_it(self):
        assert self.part(0.9, 9.0).indices == {}
        assert self.part(0.9, 9.0, SmartPartition).indices == {}

    def test_a_submodel_that_a_device_needs_to_fit_is_not_judged(self):
        assignment = submodels(RandomMask(0.5, least_saving=9.0))
        full = 4 * (FULL + 14)
        part = assignment.part(run_state(), 0, 8, most_bytes=full - 1)
        assert sum(tensor.nbytes for tensor in part.arrays.values()) < full

    def test_masked_models_never_save_and_are_not_judged(self):
        masks = RandomMask(0.5, least_saving=9.0)
        assert masked_models(masks).part(run_state(), 0, 8).indices


class Widths(nn.Module):
    """Two blocks, one of which is twice as wide inside as the other."""

    def __init__(self):
        super().__init__()
        self.thin = Inside(4)
        self.wide = Inside(8)

    def forward(self, x):
        return self.wide(self.thin(x))


class Inside(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x):
        return x + self.last(self.first(x).relu())


def test_blocks_of_other_sizes_have_other_costs():
    net = nn.Sequential(Widths(), nn.Linear(4, 1))
    plan = plan_blocks(net, INPUTS)
    assignment = Assignment(plan, RandomMask(0.5), compute_share(plan, net, INPUTS))
    state = RunState.start_from(net.state_dict(), 0)
    found = {}
    for number in range(10):
        state.dispatched = number
        part = assignment.part(state, 0, 8)
        (gone,) = {
            name.split(".")[1] for name, shape in part.shapes.items() if 0 in shape
        }
        found[gone] = part.compute
    # Of 2 * 16 + 2 * 32 + 4 multiplications.
    assert found == {"thin": 68 / 100, "wide": 36 / 100}


def test_without_a_module_empty_blocks_weigh_nothing():
    plan = plan_blocks(residual_mlp(), INPUTS)
    share = compute_share(plan, None, None)
    sent = plan.shapes_of(plan.indices((torch.tensor([1, 2]),)))
    weights = (4 + 1) * 6 + (6 + 1) * 3
    assert share((), sent) == (weights + 2 * 42) / (weights + 5 * 42)


@pytest.mark.parametrize("policy", [RandomMask(0.5), SmartPartition(0.5)])
def test_a_masked_model_is_the_submodel_at_full_size(policy):
    state = run_state()
    sliced = submodels(policy).part(state, 1, 3)
    masked = masked_models(policy).part(state, 1, 3)
    assert masked.masked
    assert masked.compute == 1.0
    assert masked.shapes == shapes_of(masked.arrays) == shapes_of(state.arrays)
    for name, dims in sliced.indices.items():
        for dim, positions in dims.items():
            assert torch.equal(masked.indices[name][dim], positions)
    # What is kept is the same, and what is dropped is silent: with equal inputs the
    # masked network computes what the narrow one does.
    inside = extract(masked.arrays, masked.indices)
    for name, tensor in sliced.arrays.items():
        assert torch.equal(inside[name], tensor), name
    full = mlp()
    full.load_state_dict(masked.arrays)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    hidden = x
    for layer in (0, 2, 4):
        w, b = (sliced.arrays[f"{layer}.{part}"] for part in ("weight", "bias"))
        hidden = torch.nn.functional.linear(hidden, w, b)
        hidden = hidden.relu() if layer < 4 else hidden
    assert torch.allclose(full(x), hidden, atol=1e-6)


class TestAdapters:
    """What a task of a model with adapters costs."""

    def share(self, *given, units="layers", kept=(0,)):
        plan = lora_plan(adapted(), vectors(), units=units)
        state = RunState.start_from(lora_state(adapted()), 0)
        keep = tuple(torch.tensor(kept) for _ in plan.groups)
        shapes = plan.shapes_of(plan.indices(keep))
        assert {n: tuple(t.shape) for n, t in state.arrays.items()} == plan.shapes
        return compute_share(plan, *given)(keep, shapes)

    def test_adapters_are_a_small_part_of_what_a_device_computes(self):
        assert 0.9 < self.share(adapted(), vectors(), units="ranks") < 1

    def test_layers_save_more_than_ranks(self):
        ranks = self.share(adapted(), vectors(), units="ranks")
        assert self.share(adapted(), vectors()) < ranks - 0.1

    def test_without_the_model_it_counts_in_full(self):
        assert self.share(None, None) == 1.0

    def test_without_matrix_products_it_counts_in_full(self):
        class Elementwise(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
                self.lora_A = nn.Parameter(torch.ones(2, 4))
                self.lora_B = nn.Parameter(torch.ones(4, 2))

            def forward(self, x):
                inner = (x[..., None, :] * self.lora_A).sum(-1)
                return self.scale * x + (inner[..., None, :] * self.lora_B).sum(-1)

        model, x = Elementwise(), torch.ones(1, 4)
        plan = lora_plan(model, x)
        share = compute_share(plan, model, x)
        assert share((torch.tensor([0]),), plan.shapes) == 1.0

    def test_the_rule_of_the_paper_goes_by_units(self):
        assert self.share(adapted(), vectors(), "paper") == 1 / 3


def adapted():
    """Return layers much wider than the rank of their adapters."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["up", "down"])
    return peft.get_peft_model(Layers(width=64), config)


def vectors():
    return torch.ones(1, 64)
