"""AdaptivePerGroup: by hand, against a reference without shared code, its limits."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import (
    AdaptivePerGroup,
    LatestPerGroup,
    Update,
    mean_change,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from tests.nightly import examples

MEAN = partial(mean_change, normaliser="counts")


def adaptive(size, **options):
    return AdaptivePerGroup(size, combine_fresh=MEAN, **options)


def one(values):
    return {"w": torch.tensor(values, dtype=torch.float64)}


def update(
    change,
    rank=0,
    num_ranks=2,
    kept=None,
    lr_factor=1.0,
    discount=1.0,
    num_devices=None,
    staleness=0,
):
    base = [1.0] * len(change)
    local = [1.0 + each for each in change]
    indices = {} if kept is None else {"w": {0: torch.tensor(kept)}}
    return Update(
        one(local),
        indices,
        staleness=staleness,
        num_examples=1,
        base=one(base),
        rank=rank,
        num_ranks=num_ranks,
        lr_factor=lr_factor,
        discount=discount,
        num_devices=num_devices or num_ranks,
    )


def feed(aggregator, state, *updates):
    return [aggregator.merge(state, each) for each in updates]


class TestByHand:
    def test_the_first_step_is_a_quarter_memory(self):
        """Group 0 has 8.5 of 16 arrivals: 3/4 * 8/8.5 * 8 + 1/4 * 8."""
        state = one([0.0])
        assert feed(adaptive(1), state, update([8.0])) == [True]
        assert state["w"].item() == pytest.approx(0.75 * 64 / 8.5 + 2)

    def test_two_groups_that_pull_apart(self):
        """The 2nd: M = (4 - 4) / 2. The 3rd: 2 <4, 4 - 0> / 16 = 2, cut to 1.

        So the correlation is 1/4 + 1/4 * 3/4 = 7/16. Arrivals of group 0 are 8.5,
        7.97 and 8.47, and the balance is full.
        """
        state, memory = one([0.0]), adaptive(1)
        feed(memory, state, update([4.0], rank=0), update([-4.0], rank=1))
        assert memory.correlation == 0.25
        before = state["w"].item()
        feed(memory, state, update([4.0], rank=0))
        assert memory.correlation == pytest.approx(7 / 16)
        arrivals = (8.5 * 15 / 16) * 15 / 16 + 1
        assert state["w"].item() - before == pytest.approx(9 / 16 * 4 * 8 / arrivals)

    def test_the_larger_of_two_steps_of_the_learning_rate_says_as_much(self):
        """A tenth of the rate, a tenth of the change: the same correlation."""
        found = []
        for factor in (1.0, 0.1):
            memory, state = adaptive(1), one([0.0, 0.0])
            feed(memory, state, update([4.0, 1.0], rank=0))
            feed(memory, state, update([-4.0, 1.0], rank=1))
            small = update([2.0 * factor, -8.0 * factor], lr_factor=factor)
            feed(memory, state, small)
            found.append(memory.correlation)
        assert found[0] == pytest.approx(found[1])
        assert found[0] < 0.25

    def test_what_groups_have_in_common(self):
        """M = (4 + 4) / 2. <4, 4> / 16 = 1, beside one update that says 0.

        So there is no balance: the step is the change.
        """
        state, memory = one([0.0]), adaptive(1, staleness=True)
        feed(memory, state, update([4.0], rank=0), update([4.0], rank=1))
        assert memory.common_share == 0.0
        before = state["w"].item()
        feed(memory, state, update([4.0], rank=0))
        assert memory.common_share == 0.5
        assert state["w"].item() - before == pytest.approx(4.0)

    def test_between_the_bounds_a_part_of_the_balance_stays(self):
        """At 0.225 rho is halved, from 1/4: 7/8 * F + 1/8 * 8, with half a balance."""

        class Between(AdaptivePerGroup):
            common_share = 0.225

        state = one([0.0])
        feed(Between(1, combine_fresh=MEAN), state, update([8.0]))
        fresh = 8 * (1 + (8 / 8.5 - 1) / 2)
        assert state["w"].item() == pytest.approx(7 / 8 * fresh + 1 / 8 * 8)

    def test_stale_updates_count_less_where_all_pull_alike(self):
        """Staleness 0, 1 and 2: 1, 1/4 and 1/9 of what they are, times 3 * 36 / 49.

        A change of 1 in one of three makes a step of a third of that.
        """
        for new, expected in ((0, 1.0), (1, 1 / 4), (2, 1 / 9)):
            state, memory = one([0.0, 0.0]), adaptive(3, staleness=True)
            same = [update([1.0, 0.0], rank=n % 3, num_ranks=3) for n in range(6)]
            feed(memory, state, *same)
            assert memory.common_share == pytest.approx(0.75)
            before = state["w"][1].item()
            changes = [
                update([1.0, float(each == new)], each, 3, staleness=each)
                for each in range(3)
            ]
            feed(memory, state, *changes)
            moved = state["w"][1].item() - before
            assert moved == pytest.approx(expected * 36 / 49)

    @pytest.mark.parametrize("along", [-1.0, 0.0])
    def test_what_has_nothing_in_common_counts_no_more_for_being_new(self, along):
        """Staleness 0, 1 and 2: 1/9, 1/4 and 1/9 of 17/36 in all."""
        state, memory = one([0.0, 0.0]), adaptive(3, staleness=True)
        same = [update([1.0, 0.0], rank=n % 3, num_ranks=3) for n in range(9)]
        feed(memory, state, *same)
        before = state["w"][1].item()
        odd = update([along, 1.0], 0, 3)
        others = [update([1.0, 0.0], age, 3, staleness=age) for age in (1, 2)]
        feed(memory, state, odd, *others)
        assert memory.common_share > 0.25
        assert state["w"][1].item() - before == pytest.approx(4 / 17)

    def test_a_twentieth_in_common_is_half_as_new(self):
        """Staleness 0 and 1: (1 + 1/4) / 2 and 1/4 of what they are, of 7/8 in all."""

        class Alike(AdaptivePerGroup):
            common_share = 1.0

        state = one([0.0, 0.0])
        memory = Alike(2, combine_fresh=MEAN, staleness=True)
        feed(memory, state, update([1.0, 0.0], 0), update([1.0, 0.0], 1))
        # Of its squares, 1 and 19, the others have the first in common
        half = [1.0, 19**0.5]
        before = state["w"][1].item()
        feed(memory, state, update(half, 0), update([1.0, 0.0], 1, staleness=1))
        moved = state["w"][1].item() - before
        assert moved == pytest.approx(half[1] * (5 / 8) / (7 / 8))

    def test_a_fifth_in_common_changes_nothing(self):
        """From there on staleness counts, and below it does not."""

        class Fixed(AdaptivePerGroup):
            common_share = 0.2

        class Unlike(AdaptivePerGroup):
            common_share = 0.0

        class More(AdaptivePerGroup):
            common_share = 0.201

        states = []
        for kind in (Fixed, Unlike, More):
            memory, state = kind(2, combine_fresh=MEAN), one([0.0])
            for n in range(9):
                feed(memory, state, update([1.0 + n], rank=n % 2, staleness=n % 3))
            states.append(state["w"].item())
        assert states[0] == states[1] != states[2]

    def test_running_statistics_and_counters_are_those_of_the_fresh(self):
        state = {
            "bn.running_mean": torch.zeros(1),
            "bn.num_batches_tracked": torch.tensor(0),
        }

        def sent(mean, count, rank):
            arrays = {
                "bn.running_mean": torch.tensor([mean]),
                "bn.num_batches_tracked": torch.tensor(count),
            }
            return Update(
                arrays,
                {},
                staleness=0,
                num_examples=1,
                base=state,
                rank=rank,
                num_ranks=2,
            )

        memory = adaptive(1)
        feed(memory, state, sent(3.0, 5, 0), sent(5.0, 2, 1))
        assert state["bn.running_mean"].item() == 5.0
        assert state["bn.num_batches_tracked"].item() == 5


class Reference:
    """The equations again, in NumPy, on whole vectors with masks."""

    def __init__(self, size, num_groups, length, server_lr, staleness):
        self.staleness = staleness
        self.size, self.num_groups, self.lr = size, num_groups, server_lr
        self.w = np.zeros(length)
        self.rho, self.counts = 0.25, np.full(num_groups, 8.0)
        self.memory, self.fresh, self.mean = {}, [], None
        self.today, self.today_then = 1.0, 1.0
        self.newest, self.steps = None, 0
        self.kappa, self.number = 0.0, 0

    def merge(self, change, mask, group, lr_factor, discount, staleness):
        groups, own_kappa = self.num_groups, 0.0
        self.counts *= 1 - 1 / (8 * groups)
        self.counts[group] += 1
        if group in self.memory and len(self.memory) > 1 and self.mean is not None:
            last, there, factor, weight = self.memory[group]
            own = last * weight * self.today_then / factor
            scaled = change * mask / lr_factor * self.today_then
            inner = np.sum(scaled * there * (own - self.mean))
            number = len(self.memory)
            others = np.where(
                there > 0, (number * self.mean - own) / (number - 1), self.mean
            )
            if np.any(scaled):
                length = np.sum(scaled**2)
                found = number / (number - 1) * inner / length
                self.rho += (np.clip(found, -1, 1) - self.rho) / (2 * groups)
                found = np.clip(np.sum(scaled * others) / length, -1, 1)
                own_kappa = found
                self.number += 1
                share = max(1 / (2 * groups), 1 / (self.number + 1))
                self.kappa = (1 - share) * self.kappa + share * found
        self.memory[group] = change * mask, mask, lr_factor, discount
        kept = change * mask, mask, lr_factor, discount, group, (staleness, own_kappa)
        self.fresh.append(kept)
        sent = self.steps - staleness, -lr_factor
        if self.newest is None or sent > self.newest:
            self.newest, self.today = sent, lr_factor
        if len(self.fresh) == self.size:
            self.step()

    def step(self):
        alike = np.clip(20 * self.kappa - 4, 0, 1) * self.staleness
        rho = max(self.rho, 0) * (1 - alike)
        total, number = np.zeros_like(self.w), np.zeros_like(self.w)
        ages, own = np.array([each[-1] for each in self.fresh]).T
        young = (1 + ages) ** (-2 * alike)
        own = np.clip(10 * own, 0, 1)
        young = own * young + (1 - own) * young.min()
        young /= np.mean(young)
        for (change, mask, factor, weight, group, _), new in zip(
            self.fresh, young, strict=True
        ):
            rare = min(8 / self.counts[group], 4)
            balanced = 1 + min(1, 4 * rho) * (rare - 1)
            total += new * balanced * weight * self.shrink(factor) * change
            number += mask
        fresh = total / np.maximum(number, 1)
        total, number = np.zeros_like(self.w), np.zeros_like(self.w)
        for change, mask, factor, weight in self.memory.values():
            total += weight * self.shrink(factor) * change
            number += mask
        self.mean, self.today_then = total / np.maximum(number, 1), self.today
        self.w += self.lr * ((1 - rho) * fresh + rho * self.mean)
        self.fresh = []
        self.steps += 1

    def shrink(self, factor):
        return min(1, self.today / factor)


LENGTH = 5
UPDATES = st.lists(
    st.tuples(
        st.lists(
            st.integers(-16, 16).map(lambda n: n / 8),
            min_size=LENGTH,
            max_size=LENGTH,
        ),
        st.sets(st.integers(0, LENGTH - 1), min_size=1),
        st.integers(0, 5),
        st.sampled_from([1.0, 0.5]),
        st.integers(0, 3),
    ),
    max_size=24,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    updates=UPDATES,
    size=st.integers(1, 3),
    groups=st.sampled_from([1, 2, 3, 6]),
    staleness=st.booleans(),
)
def test_any_updates_give_what_the_equations_give(updates, size, groups, staleness):
    state = one([0.0] * LENGTH)
    reference = Reference(size, groups, LENGTH, 0.5, staleness)
    memory = adaptive(size, num_groups=groups, server_lr=0.5, staleness=staleness)
    for number, (change, kept, rank, discount, staleness) in enumerate(updates):
        lr_factor = 1.0 if number < 12 else 0.1
        mask = np.isin(np.arange(LENGTH), list(kept)).astype(float)
        part = [change[each] for each in sorted(kept)]
        sent = update(
            part, rank, 6, sorted(kept), lr_factor, discount, staleness=staleness
        )
        memory.merge(state, sent)
        group = rank * groups // 6
        reference.merge(np.array(change), mask, group, lr_factor, discount, staleness)
        assert memory.correlation == pytest.approx(max(reference.rho, 0), abs=1e-6)
        assert np.allclose(state["w"].numpy(), reference.w)


def run_of(between, within, *, groups=8, length=400, steps=100, seed=0):
    """Return the memory after updates of known components of variance."""
    torch.manual_seed(seed)
    common = torch.randn(length, dtype=torch.float64)
    centres = between**0.5 * torch.randn(groups, length, dtype=torch.float64)
    memory = adaptive(4, num_groups=groups, staleness=True)
    state = one([0.0] * length)
    for number in range(4 * steps):
        rank = number * 5 % groups
        noise = within**0.5 * torch.randn(length, dtype=torch.float64)
        change = common + centres[rank] + noise
        memory.merge(state, update(change.tolist(), rank, groups))
    return memory


@pytest.mark.parametrize(
    ("between", "within"), [(0.0, 4.0), (1.0, 3.0), (4.0, 4.0), (6.0, 1.0)]
)
def test_it_finds_the_share_of_variance_that_is_between_groups(between, within):
    """What all have in common is part of the whole, and not of what is between."""
    expected = between / (1.0 + between + within)
    assert run_of(between, within).correlation == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(
    ("between", "within"), [(0.0, 4.0), (1.0, 3.0), (4.0, 5.0), (0.0, 0.5), (0.0, 99.0)]
)
def test_it_finds_the_share_that_all_groups_have_in_common(between, within):
    expected = 1.0 / (1.0 + between + within)
    assert run_of(between, within).common_share == pytest.approx(expected, abs=0.05)


def test_groups_that_always_pull_apart_are_all_heard_alike():
    """Then the step is that of `LatestPerGroup`, however often each one sends."""
    memory, latest = adaptive(2), LatestPerGroup(2)
    states = [one([0.0]), one([0.0])]
    for number in range(400):
        rank = int(number % 4 == 3)
        for aggregator, state in zip((memory, latest), states, strict=True):
            aggregator.merge(state, update([1.0 - 2 * rank], rank))
    assert memory.correlation == pytest.approx(1.0)
    moved = [state["w"].item() for state in states]
    assert moved[0] == pytest.approx(moved[1], abs=0.5)


@pytest.mark.parametrize(("correlation", "drift"), [(0.0, 1 / 2), (0.25, 1 / 20)])
def test_a_group_that_is_heard_seldom_counts_about_as_much(correlation, drift):
    """Three of four updates ask for +1, and one of a rare group for -1."""

    class Fixed(AdaptivePerGroup):
        pass

    Fixed.correlation = correlation
    memory, state = Fixed(4, combine_fresh=MEAN), one([0.0])
    for number in range(400):
        rank = int(number % 4 == 3)
        memory.merge(state, update([1.0 - 2 * rank], rank))
        if number == 199:
            settled = state["w"].item()
    assert state["w"].item() - settled == pytest.approx(50 * drift, abs=0.8)


def test_the_rarest_group_counts_four_times_at_the_most():
    """It has 8 (15/16)^61 + 1 = 1.16 of 16 arrivals: F = 4, and M = (0 + 1) / 2."""

    class Fixed(AdaptivePerGroup):
        correlation = 0.25

    memory, state = Fixed(1, combine_fresh=MEAN), one([0.0])
    feed(memory, state, *[update([0.0], rank=0)] * 60, update([1.0], rank=1))
    assert state["w"].item() == pytest.approx(3 / 4 * 4 + 1 / 4 / 2)


def test_it_keeps_no_more_models_than_it_says():
    """The latest of 4 groups, those of them that wait for a step, and the mean."""
    memory, state = adaptive(3, num_groups=4), one([0.0])
    most = 0
    for number in range(40):
        rank = 0 if number % 6 > 2 else number % 4
        memory.merge(state, update([1.0], rank, 4))
        kept = [change for change, _ in memory._latest.changes.values()]
        kept += [each.change for each in memory._measured.fresh]
        most = max(most, len({id(change) for change in kept}) + 1)
    assert 4 < most <= memory.collects == 4 + 3 + 1


def test_groups_without_a_device_make_no_step_smaller():
    """Three nodes for eight tasks in flight have the ranks 0, 2 and 5."""

    class Fixed(AdaptivePerGroup):
        correlation = 0.25

    memory, state = Fixed(1, combine_fresh=MEAN), one([0.0])
    for number in range(300):
        rank = (0, 2, 5)[number % 3]
        before = state["w"].item()
        memory.merge(state, update([1.0], rank, 8, num_devices=3))
    assert state["w"].item() - before == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("staleness", [False, True])
@pytest.mark.parametrize("cut", range(1, 12))
def test_a_run_that_is_saved_anywhere_goes_on_alike(cut, staleness):
    torch.manual_seed(cut)
    updates = [
        update(
            (torch.randn(3) + 2 * staleness).tolist(),
            n * 3 % 4,
            4,
            lr_factor=1.0 if n < 6 else 0.1,
            staleness=n % 3 * staleness,
        )
        for n in range(14)
    ]
    made = partial(adaptive, 3, momentum=0.5, staleness=staleness)
    straight, state = made(), one([0.0] * 3)
    feed(straight, state, *updates)
    first, resumed = made(), one([0.0] * 3)
    feed(first, resumed, *updates[:cut])
    saved = first.state_dict()
    feed(first, one([0.0] * 3), *updates[cut:])  # what was saved does not change
    second = made()
    second.load_state_dict(saved)
    feed(second, resumed, *updates[cut:])
    assert torch.equal(state["w"], resumed["w"])


def test_changes_of_nothing_say_nothing():
    memory, state = adaptive(1), one([0.0])
    feed(memory, state, *(update([0.0], n % 2) for n in range(6)))
    assert memory.correlation == 0.25
    assert state["w"].item() == 0.0


def test_one_liar_moves_the_correlation_by_no_more_than_one_update_may():
    memory, state = adaptive(1), one([0.0])
    feed(memory, state, update([1.0], rank=0), update([1e9], rank=1))
    feed(memory, state, update([-1e-9], rank=1))
    assert memory.correlation == 0.0
    measured = memory.state_dict()["measured"]["correlation"]
    assert measured == pytest.approx(0.25 - 1.25 / 4)


@pytest.mark.parametrize("along", [-1.0, 0.0, 1.0])
def test_a_liar_that_is_never_stale_counts_no_more_than_another(along):
    """Of four in each step one is always new: what it says is a quarter at the most."""
    generator = np.random.default_rng(0)
    weights = []
    for staleness in (False, True):
        state, memory = one([0.0] * 50), adaptive(4, staleness=staleness)
        truth = np.zeros(50)
        truth[0] = 1.0
        for _ in range(30):
            before = state["w"][-1].item()
            lie = along * truth
            lie[-1] = 1.0 if along < 1 else 0.0
            feed(memory, state, update(lie.tolist(), 0, 4))
            for rank in (1, 2, 3):
                noise = generator.normal(size=50) / 20
                noise[-1] = 0.0
                sent = (truth + noise).tolist()
                feed(memory, state, update(sent, rank, 4, staleness=rank))
        weights.append(state["w"][-1].item() - before)
        assert state["w"][0].item() > 0
    assert weights[1] <= weights[0] + 1e-6


def test_complex_and_half_precision():
    for dtype in (torch.complex64, torch.float16, torch.bfloat16):
        memory, state = adaptive(1), {"w": torch.zeros(2, dtype=dtype)}
        for n in range(4):
            sent = {"w": torch.full((2,), 1.0 - n % 2, dtype=dtype)}
            base = {"w": torch.zeros(2, dtype=dtype)}
            memory.merge(
                state,
                Update(sent, {}, 0, 1, base, rank=n % 2, num_ranks=2, num_devices=2),
            )
        assert state["w"].isfinite().all()
        assert state["w"].abs().sum() > 0


def test_an_update_of_another_shape_changes_nothing():
    state, memory = one([2.0]), adaptive(1)
    with pytest.raises(ShapeError, match="w has"):
        memory.merge(state, update([1.0, 2.0]))
    assert memory.state_dict() == adaptive(1).state_dict()


def test_refusals():
    with pytest.raises(ConfigError, match="buffer_size=0"):
        adaptive(0)
