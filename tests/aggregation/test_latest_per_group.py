"""LatestPerGroup aggregation by hand, and the average of versions."""

from functools import partial

import pytest
import torch

from flwr_asyncdrop.aggregation import (
    AdaptivePerGroup,
    Buffered,
    LatestPerGroup,
    Update,
    average_,
    mean_change,
    room_for_average,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError


def one(values):
    return {"w": torch.tensor(values)}


def update(
    change, rank=0, num_ranks=4, kept=None, lr_factor=1.0, discount=1.0, staleness=3
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
    )


def feed(aggregator, state, *updates):
    return [aggregator.merge(state, each) for each in updates]


def adaptive(size):
    mean = partial(mean_change, normaliser="counts")
    return AdaptivePerGroup(size, combine_fresh=mean)


class TestByHand:
    def test_a_step_takes_the_latest_change_of_every_group(self):
        state = one([0.0])
        memory = LatestPerGroup(2)
        changed = feed(
            memory,
            state,
            update([8.0], rank=0),
            update([4.0], rank=3),  # first step: (8 + 4) / 2
            update([2.0], rank=0),
            update([-2.0], rank=0),  # second step: (-2 + 4) / 2
        )
        assert changed == [False, True, False, True]
        assert state["w"].item() == 7.0

    def test_a_discount_lasts_as_long_as_the_change_is_remembered(self):
        state, memory = one([0.0]), LatestPerGroup(1)
        feed(memory, state, update([8.0], rank=0, discount=0.5))
        assert state["w"].item() == 4.0
        feed(memory, state, update([2.0], rank=3))  # (8 / 2 + 2) / 2
        assert state["w"].item() == 7.0

    def test_a_coordinate_is_averaged_over_those_that_trained_it(self):
        state = one([0.0, 0.0, 0.0])
        feed(
            LatestPerGroup(2),
            state,
            update([4.0, 2.0], rank=0, kept=[0, 1]),
            update([8.0], rank=1, kept=[0]),
        )
        assert state["w"].tolist() == [6.0, 2.0, 0.0]

    def test_ranks_share_groups_when_there_are_more_of_them(self):
        state = one([0.0])
        memory = LatestPerGroup(4, num_groups=2)
        feed(memory, state, *(update([float(2**rank)], rank=rank) for rank in range(4)))
        assert state["w"].item() == (2 + 8) / 2

    def test_changes_shrink_with_the_learning_rate(self):
        """(8 + 4) / 2; (1 + 0.1 * 4) / 2; a late one with the old rate shrinks too."""
        state = one([0.0])
        memory = LatestPerGroup(2)
        feed(memory, state, update([8.0], rank=0), update([4.0], rank=3))
        assert state["w"].item() == 6.0
        feed(memory, state, *[update([1.0], rank=0, lr_factor=0.1)] * 2)
        assert state["w"].item() == pytest.approx(6.7)
        late = update([30.0], rank=3, lr_factor=1.0, staleness=5)
        feed(memory, state, *[late] * 2)
        assert state["w"].item() == pytest.approx(6.7 + (1 + 3) / 2)

    def test_changes_do_not_shrink_when_the_rate_grows(self):
        """A warm-up: 8, (8 + 4) / 2, and once more all when it falls to a half."""
        state, memory = one([0.0]), LatestPerGroup(1)
        feed(memory, state, update([8.0], rank=0, lr_factor=0.1))
        assert state["w"].item() == 8.0
        feed(memory, state, update([4.0], rank=3, lr_factor=1.0))
        assert state["w"].item() == 8 + 6
        feed(memory, state, update([8.0], rank=0, lr_factor=0.5))
        assert state["w"].item() == 14 + (8 + 4 / 2) / 2

    @pytest.mark.parametrize("order", [1, -1])
    def test_of_tasks_with_one_version_the_smallest_rate_is_todays(self, order):
        """The rate decayed between two tasks: 8, and a tenth of 40."""
        state, memory = one([0.0]), LatestPerGroup(2)
        sent = [update([40.0], rank=3), update([8.0], rank=0, lr_factor=0.1)]
        feed(memory, state, *sent[::order])
        assert state["w"].item() == pytest.approx((8 + 4) / 2)

    @pytest.mark.parametrize("kind", [LatestPerGroup, adaptive])
    def test_a_rate_of_zero_is_no_error(self, kind):
        state, memory = one([0.0]), kind(1)
        for lr_factor in (0.0, 0.5, 0.5, 0.0):
            for rank in (0, 3):
                feed(memory, state, update([4.0], rank=rank, lr_factor=lr_factor))
        assert state["w"].isfinite().all()

    def test_a_checkpoint_that_knows_the_smallest_rate_alone(self):
        memory = LatestPerGroup(2)
        feed(memory, one([0.0]), update([8.0], lr_factor=0.1))
        state = memory.state_dict()
        del state["sent_at"], state["steps"]
        again, resumed = LatestPerGroup(2), one([0.0])
        again.load_state_dict(state)
        feed(again, resumed, update([40.0], rank=3, lr_factor=1.0))
        assert resumed["w"].item() == pytest.approx((8 + 4) / 2)

    def test_a_step_without_those_that_cannot_come(self):
        """(8 + 4) / 2; then 2 in place of 8, and nobody of the other group."""
        state, memory = one([0.0]), LatestPerGroup(2, waits=True)
        assert memory.waits_for == 2
        feed(memory, state, update([8.0], rank=0), update([4.0], rank=3))
        assert not memory.flush(state)
        assert feed(memory, state, update([2.0], rank=0)) == [False]
        assert memory.flush(state)
        assert state["w"].item() == 6.0 + (2 + 4) / 2
        assert not memory.flush(state)

    def test_the_servers_learning_rate_and_momentum(self):
        state = one([0.0])
        memory = LatestPerGroup(1, server_lr=0.5, momentum=0.5)
        feed(memory, state, *[update([4.0])] * 3)
        assert state["w"].item() == 0.5 * (4 + 6 + 7)


def test_one_group_and_one_update_is_a_buffer_of_one():
    states = [one([1.0, 2.0]) for _ in range(2)]
    for state, aggregator in zip(
        states, (LatestPerGroup(1, num_groups=1), Buffered(1)), strict=True
    ):
        feed(aggregator, state, *(update([n / 3, -n / 7]) for n in range(6)))
    assert torch.equal(states[0]["w"], states[1]["w"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "buffer_size=0"),
        ({"size": 1, "num_groups": 0}, "num_groups=0"),
        ({"size": 1, "server_lr": 0.0}, "server_lr=0.0"),
        ({"size": 1, "momentum": 1.0}, "server_momentum=1.0"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        LatestPerGroup(**arguments)


def test_an_update_of_another_shape_is_not_remembered():
    state, memory = one([2.0]), LatestPerGroup(1)
    with pytest.raises(ShapeError, match="w has"):
        memory.merge(state, update([1.0, 2.0]))
    feed(memory, state, update([1.0], rank=1))
    assert state["w"].item() == 3.0


class TestAverage:
    def test_by_hand(self):
        """Weights 1; 1/3, 2/3; 1/7, 2/7, 4/7 with a decay of one half."""
        average = {"w": torch.tensor([99.0]), "count": torch.tensor(0)}
        expected = [7.0, (7 + 2 * 1) / 3, (7 + 2 * 1 + 4 * 3) / 7]
        for count, (value, wanted) in enumerate(
            zip((7.0, 1.0, 3.0), expected, strict=True), start=1
        ):
            state = {"w": torch.tensor([value]), "count": torch.tensor(count)}
            average_(average, state, 0.5, count)
            assert average["w"].item() == pytest.approx(wanted)
            assert average["count"].item() == count

    def test_half_precision_has_room_to_add_up(self):
        """Small steps were rounded away: it stayed at 1."""
        state = {"w": torch.ones(1, dtype=torch.bfloat16), "count": torch.tensor(0)}
        average = room_for_average(state)
        assert average["count"].dtype == torch.int64
        for count in range(1, 601):
            state["w"].fill_(1.0 if count <= 100 else 1.125)
            average_(average, state, 0.99, count)
        assert average["w"].item() == pytest.approx(1.125, abs=1e-3)

    def test_no_decay_is_the_latest_version(self):
        average = one([5.0])
        for count, value in enumerate((1.0, 4.0), start=1):
            average_(average, one([value]), 0.0, count)
            assert average["w"].item() == value
