"""Experts as units: a dropped one cannot be chosen, which is not the same as zero."""

from functools import cache

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.submodel import (
    check_maskable,
    extract,
    load_submodel,
    merge_,
    plan_submodels,
)
from flwr_asyncdrop.submodel.narrowing.experts import without_experts
from tests.submodel.mixtures import (
    EXPERTS,
    INNER,
    LEAST,
    TOP,
    WIDTH,
    Mixture,
    Soft,
    Switch,
    Top,
    TopScattered,
)
from tests.submodel.networks import seeded, vectors

TOKENS = vectors(WIDTH, 6)


def keep_of(plan, kept):
    """Return a keep: by group name the kept units, all of the others."""
    whole = zip(plan.groups, plan.full_keep(), strict=True)
    return tuple(torch.tensor(kept.get(g.name, units.tolist())) for g, units in whole)


def narrowed(model, plan, keep):
    sub = extract(model.state_dict(), plan.indices(keep))
    return load_submodel(model, sub, scale=False)


def tokens_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, WIDTH, generator=generator, dtype=torch.float64)


def drawn(size, least, seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(least, size + 1, (), generator=generator))
    return torch.randperm(size, generator=generator)[:count].sort().values.tolist()


@cache
def planned(kind):
    return plan_submodels(seeded(kind), TOKENS)


@pytest.mark.parametrize("kind", LEAST)
class TestFormula:
    def test_experts_and_their_inner_units_are_found(self, kind):
        plan = planned(kind)

        sizes = [(g.size, g.kind, g.least) for g in plan.groups]
        assert sizes[0] == (EXPERTS, "expert", LEAST[kind])
        assert sizes[1] == (INNER, "internal", 1)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("training", [False, True])
    def test_outputs_and_gradients(self, kind, seed, training):
        model = seeded(kind, seed).train(training)
        plan = planned(kind)
        experts, inner = drawn(EXPERTS, LEAST[kind], seed), drawn(INNER, 1, seed + 9)
        keep = keep_of(plan, {plan.groups[0].name: experts, "w1#2": inner})
        small = narrowed(model, plan, keep)
        inputs = tokens_of(seed)

        output, expected = small(inputs), model.naive(inputs, experts, inner)

        torch.testing.assert_close(output, expected)
        output.square().sum().backward()
        expected.square().sum().backward()
        gradients = {n: p.grad for n, p in model.named_parameters()}
        wanted = {n: g for n, g in gradients.items() if g is not None}
        indices = {n: d for n, d in plan.indices(keep).items() if n in wanted}
        for name, gradient in extract(wanted, indices).items():
            mine = small.get_parameter(name).grad
            torch.testing.assert_close(
                torch.zeros_like(gradient) if mine is None else mine, gradient
            )

    def test_fewer_than_are_chosen_are_refused(self, kind):
        plan = planned(kind)
        fewer = list(range(LEAST[kind] - 1))
        keep = keep_of(plan, {plan.groups[0].name: fewer})

        with pytest.raises(ShapeError, match=r"keep at least as many|non-empty"):
            plan.indices(tuple(units.long() for units in keep))


def test_only_kept_experts_are_merged_back():
    model = seeded(Top)
    plan = planned(Top)
    indices = plan.indices(keep_of(plan, {plan.groups[0].name: [1, 4, 5]}))
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sub = {name: tensor + 1 for name, tensor in extract(full, indices).items()}

    merge_(full, sub, indices, 1.0)

    for name in ("gate.weight", "gate.bias", "w1", "b1", "w2"):
        moved = (full[name] - model.state_dict()[name]).flatten(
            1 - (full[name].dim() < 2)
        )
        rows = moved.reshape(EXPERTS, -1)
        torch.testing.assert_close(rows[[1, 4, 5]], torch.ones_like(rows[[1, 4, 5]]))
        assert not rows[[0, 2, 3]].any()


def test_zeros_do_not_stand_for_experts():
    with pytest.raises(ConfigError, match="could still be chosen"):
        check_maskable(planned(Top))


def test_attributes_follow():
    model, plan = seeded(TopScattered), planned(TopScattered)

    small = narrowed(model, plan, keep_of(plan, {plan.groups[0].name: [0, 3, 4]}))

    assert (small.num_experts, small.top_k) == (3, TOP)
    assert (model.num_experts, model.top_k) == (EXPERTS, TOP)


class TestLeftWhole:
    def reasons(self, kind):
        plan = plan_submodels(seeded(kind), TOKENS)
        assert all(group.kind != "expert" for group in plan.groups)
        return plan.left_out

    def test_numbers_that_are_more_than_names(self):
        class Fixed(Switch):
            def mix(self, x):
                return super().mix(x) + self.gate(x).argmax(-1, keepdim=True)

        assert self.reasons(Fixed)["gate"] == "told apart by number in aten.add"

    def test_numbers_that_are_shown(self):
        class Shown(Switch):
            def forward(self, x):
                return super().forward(x), self.gate(x).argmax(-1)

        assert self.reasons(Shown)["gate"] == "part of the model's output"

    def test_logits_that_are_shown(self):
        class Shown(Switch):
            def forward(self, x):
                return super().forward(x), self.gate(x)

        assert self.reasons(Shown)["gate"] == "part of the model's output"

    def test_balance_that_is_shown(self):
        class Balanced(Soft):
            def forward(self, x):
                shares = self.gate(x).softmax(-1).mean(0)
                return super().forward(x), shares.square().sum()

        assert "reduced over by aten.sum" in self.reasons(Balanced)["gate"]

    def test_smallest_are_chosen(self):
        class Bottom(Top):
            def mix(self, x):
                logits, chosen = self.gate(x).topk(self.top_k, -1, largest=False)
                shares = logits.softmax(-1).unsqueeze(-1)
                return (self.some(x, chosen) * shares).sum(1)

        assert "depend on each other in aten.topk" in self.reasons(Bottom)["gate"]

    def test_in_groups(self):
        class Grouped(Top):
            def mix(self, x):
                logits = self.gate(x)
                best = logits.view(-1, 3, 2).max(-1).values
                chosen = best.topk(2, -1).indices
                mask = torch.zeros_like(best).scatter(1, chosen, 1).unsqueeze(-1)
                mask = mask.expand(-1, 3, 2).reshape(-1, self.num_experts)
                logits = logits.masked_fill(mask == 0, float("-inf"))
                shares, chosen = logits.topk(self.top_k, -1)
                shares = shares.softmax(-1).unsqueeze(-1)
                return (self.some(x, chosen) * shares).sum(1)

        assert "chosen in groups" in self.reasons(Grouped)["gate"]

    def test_all_are_chosen(self):
        class All(Top):
            def __init__(self):
                super().__init__()
                self.top_k = EXPERTS

        assert self.reasons(All)["gate"] == "6 of 6 are chosen at a time"

    def test_a_number_of_experts_that_goes_stale_without_an_error(self):
        class Stale(Soft):
            def mix(self, x):
                return super().mix(x) * (EXPERTS / self.gate.out_features)

        plan = plan_submodels(seeded(Stale), TOKENS)

        assert all(group.kind != "expert" for group in plan.groups)
        assert "a narrower model differs" in plan.left_out[plan_name(Stale)]

    def test_logits_that_have_another_use(self):
        class Twice(Switch):
            def __init__(self):
                super().__init__()
                self.extra = nn.Parameter(torch.randn(EXPERTS, WIDTH))

            def mix(self, x):
                return super().mix(x) + torch.relu(self.gate(x)) @ self.extra

        assert any(
            "narrower model differs" in why for why in self.reasons(Twice).values()
        )

    def test_softmax_without_experts_is_no_mixture(self):
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, 4)
                self.third = nn.Linear(4, 3)

            def forward(self, x):
                return self.third(torch.relu(self.second(self.first(x).softmax(-1))))

        assert "depend on each other" in self.reasons(Hidden)["first"]


def plan_name(kind):
    return planned(kind.__base__).groups[0].name


class Listed(Mixture):
    """Experts are modules of their own."""

    def __init__(self):
        super().__init__()
        del self.w1, self.b1, self.w2
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH))
            for _ in range(EXPERTS)
        )


class ListedSoft(Listed):
    def mix(self, x):
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.gate(x).softmax(-1).unsqueeze(-1) * outputs).sum(1)


class ListedWhere(Listed):
    def mix(self, x):
        shares, chosen = self.gate(x).softmax(-1).topk(self.top_k, -1)
        total = torch.zeros_like(x)
        for number in range(self.num_experts):
            token, place = torch.where(chosen == number)
            output = self.experts[number](x[token]) * shares[token, place, None]
            total.index_add_(0, token, output)
        return total


def test_experts_that_no_token_chose_say_nothing_about_their_units():
    plan = planned(ListedWhere)

    assert "experts.0.0" in [group.name for group in plan.groups]
    assert not any("meets positions" in why for why in plan.left_out.values())


@pytest.mark.parametrize("kind", [ListedSoft, ListedWhere])
@pytest.mark.parametrize("seed", range(3))
def test_experts_in_a_list_stay_whole_and_what_is_dropped_is_right(kind, seed):
    model, plan = seeded(kind, seed), planned(kind)
    keep = tuple(torch.tensor(drawn(g.size, 1, seed)) for g in plan.groups)
    inputs = tokens_of(seed)

    output = narrowed(model, plan, keep)(inputs)

    assert {group.kind for group in plan.groups} <= {"internal", "residual"}
    assert "gate" in plan.left_out
    zeroed = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    indices = plan.indices(keep)
    for name, dims in indices.items():
        for dim, kept in dims.items():
            gone = torch.ones(zeroed[name].shape[dim], dtype=torch.bool)
            gone[kept] = False
            zeroed[name].index_fill_(dim, gone.nonzero().squeeze(1), 0)
    expected = torch.func.functional_call(model, zeroed, inputs)
    torch.testing.assert_close(output, expected)


class TestWithoutExperts:
    @pytest.mark.parametrize("kind", LEAST)
    def test_equals_the_formula(self, kind):
        model = seeded(kind)
        dropped = {"gate.weight": {0: torch.tensor([0, 2, 5])}}

        with torch.no_grad(), without_experts(model, dropped):
            output = model(TOKENS)

        expected = model.naive(TOKENS, [1, 3, 4], list(range(INNER)))
        torch.testing.assert_close(output, expected.detach())

    def test_zeroed_experts_still_compete(self):
        """What the mode is for: with zeros the output is another."""
        model = seeded(Switch)
        expected = model.naive(TOKENS, [1, 3, 4], list(range(INNER)))
        with torch.no_grad():
            for tensor in (*model.gate.parameters(), model.w1, model.b1, model.w2):
                tensor[[0, 2, 5]] = 0
            assert (model(TOKENS) - expected).abs().max() > 0.1

    def test_any_other_use_of_a_logit_shows(self):
        model = seeded(Top)
        dropped = {"gate.weight": {0: torch.tensor([2])}}

        with torch.no_grad(), without_experts(model, dropped):
            logits = model.gate(TOKENS)

        assert logits[:, 2].isnan().all()
        assert not logits[:, [0, 1, 3, 4, 5]].isnan().any()
