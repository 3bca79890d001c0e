"""Clipping by hand, and that it changes nothing but lengths."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import (
    Aggregator,
    Buffered,
    Clipped,
    LatestPerGroup,
    Mixing,
    Update,
    clip_update,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError


def update(local, base, indices=None):
    local, base = (
        {name: torch.tensor(values) for name, values in state.items()}
        for state in (local, base)
    )
    return Update(local, indices or {}, 0, 1, base)


def length(update):
    deltas = [update.arrays[name] - update.base[name] for name in update.arrays]
    return float(torch.cat([delta.flatten() for delta in deltas]).norm())


class TestByHand:
    def test_one_norm_over_all_weights(self):
        """The change (3, 0), (4) is 5 long: a fifth of it is 1 long."""
        long = update({"a": [4.0, 2.0], "b": [-4.0]}, {"a": [1.0, 2.0], "b": [-8.0]})
        short = clip_update(long, 1.0)
        torch.testing.assert_close(short.arrays["a"], torch.tensor([1.6, 2.0]))
        torch.testing.assert_close(short.arrays["b"], torch.tensor([-7.2]))
        assert long.arrays["a"].tolist() == [4.0, 2.0]

    def test_statistics_and_counters_neither_count_nor_change(self):
        changed = update(
            {"w": [2.0], "bn.running_mean": [90.0], "bn.num_batches_tracked": 7},
            {"w": [0.0], "bn.running_mean": [0.0], "bn.num_batches_tracked": 1},
        )
        assert clip_update(changed, 2.0) is changed
        clipped = clip_update(changed, 1.0).arrays
        assert clipped["w"].tolist() == [1.0]
        assert clipped["bn.running_mean"].tolist() == [90.0]
        assert clipped["bn.num_batches_tracked"].item() == 7

    def test_a_complex_number_is_as_long_as_it_is(self):
        clipped = clip_update(update({"w": [3 + 4j]}, {"w": [0j]}), 1.0)
        torch.testing.assert_close(clipped.arrays["w"], torch.tensor([0.6 + 0.8j]))

    def test_squares_that_float32_cannot_hold(self):
        clipped = clip_update(update({"w": [1.8e19, -1.8e19]}, {"w": [0.0, 0.0]}), 2.0)
        root = 2**0.5
        torch.testing.assert_close(clipped.arrays["w"], torch.tensor([root, -root]))

    def test_a_change_that_half_precision_cannot_hold(self):
        """From -32 to the largest number it is 65,536, and infinite in that type."""
        far = Update(
            {"w": torch.tensor([65504.0, 1.0], dtype=torch.float16)},
            {},
            0,
            1,
            {"w": torch.tensor([-32.0, 1.0], dtype=torch.float16)},
        )
        clipped = clip_update(far, 2.0).arrays["w"]
        assert (clipped.dtype, clipped.tolist()) == (torch.float16, [-30.0, 1.0])

    def test_mixing_goes_to_what_was_sent_and_the_clipped_change(self):
        """10 half-way to 4 + 1."""
        state = {"w": torch.tensor([10.0])}
        assert Clipped(Mixing(0.5), 1.0).merge(
            state, update({"w": [8.0]}, {"w": [4.0]})
        )
        assert state["w"].item() == 7.5

    def test_a_buffer_takes_the_mean_of_clipped_changes(self):
        state = {"w": torch.tensor([0.0, 0.0, 0.0])}
        clipped = Clipped(Buffered(2), 1.0)
        kept = {"w": {0: torch.tensor([0, 2])}}
        first = update({"w": [3.0, 4.0]}, {"w": [0.0, 0.0]}, kept)
        assert not clipped.merge(state, first)
        assert clipped.merge(state, update({"w": [0.0, 0.5, 0.0]}, {"w": [0.0] * 3}))
        torch.testing.assert_close(state["w"], torch.tensor([0.3, 0.25, 0.4]))


values = st.floats(-1e6, 1e6, width=32)
vectors = st.lists(st.tuples(values, values), min_size=1, max_size=6)


@given(vectors, st.floats(1e-3, 1e9))
def test_no_change_is_longer_and_none_turns(pairs, norm):
    local, base = ([pair[side] for pair in pairs] for side in (0, 1))
    before = update({"w": local}, {"w": base})
    after = clip_update(before, norm)
    # Adding the base rounds to its size.
    rounding = 1e-6 * max(map(abs, base)) * len(base)
    assert length(after) <= norm * (1 + 1e-5) + rounding
    if length(before) <= norm * (1 - 1e-5):
        assert after is before
    else:
        share = min(1.0, norm / length(before))
        expected = before.base["w"].double() + share * (
            before.arrays["w"] - before.base["w"]
        )
        torch.testing.assert_close(
            after.arrays["w"].double(), expected, rtol=1e-5, atol=rounding + 1e-6
        )


class TestClipped:
    def test_waits_and_saves_as_the_other_does(self):
        other = Buffered(2, waits=True)
        clipped = Clipped(other, 1.0)
        assert clipped.needs_base
        assert clipped.waits_for == 2
        assert Clipped(Mixing(), 1.0).waits_for == 1
        other.merge({"w": torch.zeros(1)}, update({"w": [1.0]}, {"w": [0.0]}))
        assert clipped.state_dict() == other.state_dict()
        fresh = Clipped(Buffered(2), 1.0)
        fresh.load_state_dict(clipped.state_dict())
        assert len(fresh.state_dict()["changes"]) == 1

    def test_a_run_asks_it_what_it_would_ask_the_other(self):
        other = LatestPerGroup(3, num_groups=5, waits=True)
        other.wait_limit, other.steps_at = 8.0, 5.0
        clipped = Clipped(other, 1.0)
        for name in Aggregator.__annotations__.keys() - {"needs_base"}:
            assert getattr(other, name) != getattr(Aggregator, name), name
            assert getattr(clipped, name) == getattr(other, name), name

    def test_it_waits_for_as_many_as_the_other_does_by_now(self):
        class Growing(Mixing):
            def merge(self, state, update):
                self.waits_for += 1
                return super().merge(state, update)

        clipped = Clipped(Growing(), 100.0)
        clipped.merge({"w": torch.tensor([2.0])}, update({"w": [1.0]}, {"w": [0.0]}))
        assert clipped.waits_for == 2

    def test_an_update_of_another_shape_changes_nothing(self):
        state = {"w": torch.tensor([2.0])}
        with pytest.raises(ShapeError, match="w has"):
            Clipped(Mixing(), 1.0).merge(
                state, update({"w": [1.0, 2.0]}, {"w": [0.0, 0.0]})
            )
        assert state["w"].item() == 2.0

    @pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_norm_that_cannot_be(self, norm):
        with pytest.raises(ConfigError, match=f"clip_norm={norm}"):
            Clipped(Mixing(), norm)

    def test_an_update_without_its_base(self):
        lone = Update({"w": torch.tensor([2.0])}, {}, 0, 1)
        with pytest.raises(ConfigError, match="a change needs its base"):
            Clipped(Mixing(), 1.0).merge({"w": torch.tensor([2.0])}, lone)
