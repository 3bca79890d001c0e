"""What the guard refuses, and what it must never refuse."""

from dataclasses import replace

import pytest
import torch

from flwr_asyncdrop.aggregation import OutlierGuard, Update
from flwr_asyncdrop.aggregation.outliers import (
    ALL,
    _size_of,
    _sizes_of_weights,
    change_sizes,
    group_of,
)
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.submodel import extract
from tests.states import saved_and_read

DEVICES = 10
MODEL = {
    "layer.weight": torch.full((4, 3), 0.1),
    "layer.bias": torch.zeros(4),
    "bn.weight": torch.ones(4),
    "bn.bias": torch.zeros(4),
    "bn.running_mean": torch.zeros(4),
    "bn.running_var": torch.ones(4),
    "bn.num_batches_tracked": torch.tensor(3),
}


def update(size=0.01, indices=None, extra=None, **sizes):
    """An update whose weights all change by `size`, but for the tensors in `sizes`."""
    arrays = {
        name: tensor + sizes.get(name.replace(".", "_"), size)
        if tensor.is_floating_point()
        else tensor + 5
        for name, tensor in MODEL.items()
    }
    return Update(
        extract(arrays, indices or {}), indices or {}, 0, 1, extra=extra or {}
    )


def verdict(guard, given, device=0, num_devices=DEVICES):
    sent, given = extract(MODEL, given.indices), replace(given, device=device)
    try:
        guard.check(MODEL, given, sent, num_devices=num_devices)
    except ReplyError as error:
        return f"{error.kind}: {error}"
    return ""


def settled(devices=8):
    """A guard to which some devices have shown what is usual."""
    guard = OutlierGuard()
    for device in range(devices):
        assert verdict(guard, update(), device) == ""
    return guard


class TestOnceItIsKnownWhatIsUsual:
    @pytest.mark.parametrize(("size", "passes"), [(0.038, True), (0.043, False)])
    def test_a_tenth_of_the_weights_is_never_too_large(self, size, passes):
        """Of all weights, as those of the layer itself are zero: 0.0414."""
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(1e-9), device) == ""
        given = update(1e-9, layer_bias=size)
        assert (verdict(guard, given, 9) == "") == passes

    @pytest.mark.parametrize("value", [1.0, 2.0])
    @pytest.mark.parametrize(("times", "passes"), [(29.0, True), (31.0, False)])
    def test_a_statistic_that_never_moved_may_reach_30_times_its_size(
        self, value, times, passes, monkeypatch
    ):
        monkeypatch.setitem(MODEL, "bn.running_var", torch.full((4,), value))
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(bn_running_var=0.0), device) == ""
        given = update(bn_running_var=times * value)
        assert (verdict(guard, given, 9) == "") == passes

    @pytest.mark.parametrize("size", [0.0, 1e-6, 0.01, 0.1, 0.25])
    def test_what_is_not_far_from_the_usual_passes(self, size):
        assert verdict(settled(), update(size), 9) == ""

    @pytest.mark.parametrize("size", [1.0, -1.0, 1e10, 1.8e19, -1.8e19])
    def test_what_is_far_from_it_does_not(self, size):
        said = verdict(settled(), update(size), 9)
        assert said.startswith("outlier: its change of")
        assert "the usual one is 0.01" in said
        assert "\n" not in said

    @pytest.mark.parametrize(
        ("name", "size"),
        [("layer_weight", 1.0), ("bn_bias", 30.0), ("bn_running_var", 100.0)],
    )
    def test_one_tensor_is_enough(self, name, size):
        assert "its change of" in verdict(settled(), update(**{name: size}), 9)

    def test_a_part_that_hardly_moves_may_move_as_the_whole_does(self):
        """As the experts of a mixture: most devices have no token for them."""
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(layer_weight=0.0), device) == ""
        assert verdict(guard, update(layer_weight=0.05), 9) == ""
        assert verdict(guard, update(layer_weight=1e3), 9) != ""

    def test_a_small_change_passes_though_others_are_smaller(self):
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(1e-9), device) == ""
        assert verdict(guard, update(0.009), 9) == ""

    def test_a_submodel_counts_as_the_full_model_does(self):
        half = {"layer.weight": {0: torch.tensor([0, 2])}, "bn.weight": {}}
        assert (
            change_sizes(update(), MODEL).keys()
            == change_sizes(update(indices=half), extract(MODEL, half)).keys()
        )
        guard = settled()
        assert verdict(guard, update(indices=half), 9) == ""
        assert verdict(guard, update(1.0, indices=half), 9) != ""

    def test_a_layer_that_a_submodel_leaves_out_is_no_small_change(self):
        """Most submodels lack the layer; those that have it are compared."""
        without = {"layer.weight": {0: torch.tensor([], dtype=torch.int64)}}
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(indices=without), device) == ""
        assert verdict(guard, update(), 9) == ""

    def test_records_beside_the_model_count_too(self):
        def controls(size):
            return {"control": {"layer.weight": torch.full((4, 3), size)}}

        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(extra=controls(0.01)), device) == ""
        assert verdict(guard, update(extra=controls(0.1)), 9) == ""
        assert "the record 'control'" in verdict(guard, update(extra=controls(1e6)), 9)

    @pytest.mark.parametrize("others", [0, 1, 2])
    @pytest.mark.parametrize(("size", "passes"), [(5.0, True), (1000.0, False)])
    def test_what_few_others_have_sent_is_measured_by_the_weights(
        self, size, passes, others
    ):
        """Its sender had said what is usual for it: it could be anything."""
        guard, extra = (
            settled(),
            {"control": {"layer.weight": torch.full((4, 3), size)}},
        )
        few = {"control": {"layer.weight": torch.full((4, 3), 0.5)}}
        for device in range(others):
            assert verdict(guard, update(extra=few), device) == ""
        said = verdict(guard, update(extra=extra), 9)
        assert (said == "") == passes
        assert said.startswith("outlier: its change of the record 'control'") != passes


class TestWhoSaysWhatIsUsual:
    def test_a_liar_counts_once_however_often_it_replies(self):
        guard = settled()
        for _ in range(100):
            assert verdict(guard, update(1e10), 9) != ""
        assert verdict(guard, update(), 3) == ""
        assert verdict(guard, update(1.0), 3) != ""

    @pytest.mark.parametrize("lie", [1e10, 1.0, 0.0])
    def test_three_liars_of_ten_neither_widen_nor_narrow_it(self, lie):
        guard = settled(7)
        for number in range(60):
            verdict(guard, update(lie), 7 + number % 3)
            assert verdict(guard, update(0.05), number % 7) == ""
        assert verdict(guard, update(5.0), 0) != ""

    def test_when_all_change_more_they_are_refused_until_they_are_the_majority(self):
        guard = settled(10)
        refused = [verdict(guard, update(1.0), device) != "" for device in range(10)]
        assert refused == [True] * 4 + [False] * 6

    def test_devices_that_are_gone_are_forgotten(self):
        """Three are left of ten, and all of them change more from now on."""
        guard = settled(10)
        for _ in range(60):
            for device in range(3):
                verdict(guard, update(1.0), device)
        assert verdict(guard, update(1.0), 0) == ""

    def test_a_fleet_of_three_is_enough_when_all_have_replied(self):
        guard = settled(3)
        assert verdict(guard, update(1.0), 0, num_devices=3) != ""

    def test_after_128_replies_nobody_waits_for_more_devices(self):
        """A large fleet of which four devices have come so far."""
        guard = OutlierGuard()
        for number in range(127):
            size = 1.0 if number == 100 else 0.01
            assert verdict(guard, update(size), number % 4, num_devices=100) == ""
        assert verdict(guard, update(1.0), 3, num_devices=100) != ""

    def test_the_latest_of_many_devices_count(self):
        guard = settled(1000)
        assert len(guard.state_dict()["latest"]) == 32


class TestBeforeItIsKnown:
    @pytest.mark.parametrize("size", [1e10, -1.8e19, 100.0])
    def test_the_first_reply_cannot_be_anything(self, size):
        assert "until more devices have shown" in verdict(OutlierGuard(), update(size))

    @pytest.mark.parametrize("size", [0.001, 0.1, 1.0])
    def test_the_first_reply_can_be_honest(self, size):
        assert verdict(OutlierGuard(), update(size)) == ""

    @pytest.mark.parametrize(("size", "passes"), [(6.1, True), (6.3, False)])
    def test_it_is_half_the_factor_times_the_weights(self, size, passes):
        """15 times their root mean square, sqrt((12 * 0.1^2 + 4) / 24) = 0.414."""
        given = update(0.0, layer_weight=size)
        assert (verdict(OutlierGuard(), given) == "") == passes

    @pytest.mark.parametrize(("size", "passes"), [(9.9e3, True), (1.1e4, False)])
    def test_a_statistic_is_at_most_ten_thousand_times_as_large(self, size, passes):
        given = update(0.0, bn_running_mean=size)
        assert (verdict(OutlierGuard(), given) == "") == passes

    def test_a_model_without_weights_is_no_outlier(self):
        counter = {"steps": torch.tensor(5)}
        guard = OutlierGuard()
        for device in range(8):
            given = Update({"steps": torch.tensor(6)}, {}, 0, 1, device=device)
            guard.check(counter, given, counter, num_devices=10)

    def test_statistics_follow_the_data(self):
        guard = OutlierGuard()
        given = update(bn_running_mean=500.0, bn_running_var=5000.0)
        assert verdict(guard, given) == ""
        assert verdict(guard, update(bn_running_var=1e10)) != ""

    def test_three_liars_that_come_first_do_not_say_what_is_usual(self):
        guard = OutlierGuard()
        for device in range(3):
            for _ in range(5):
                assert verdict(guard, update(1e10), device) != ""
        for device in range(3, 10):
            assert verdict(guard, update(), device) == ""
        for device in range(3):
            assert verdict(guard, update(1e10), device) != ""

    def test_a_model_of_zeros_may_become_one_of_large_numbers(self):
        """A regression on unscaled data: all honest devices ask for the same."""
        zeros = {"w": torch.zeros(2, 3)}
        guard, refused = OutlierGuard(), []
        for device in range(10):
            weights = {"w": torch.full((2, 3), 5e4 + device)}
            given = Update(weights, {}, 0, 1, device=device)
            try:
                guard.check(zeros, given, zeros, num_devices=10)
                refused.append(False)
            except ReplyError:
                refused.append(True)
        assert refused == [True] * 6 + [False] * 4

    def test_two_devices_say_nothing_of_each_other(self):
        guard = OutlierGuard()
        for _ in range(50):
            assert verdict(guard, update(1e-5), 0, num_devices=2) == ""
            assert verdict(guard, update(0.5), 1, num_devices=2) == ""
            assert verdict(guard, update(1e10), 1, num_devices=2) != ""

    def test_where_most_change_nothing_nothing_is_usual(self):
        guard = OutlierGuard()
        for device in range(8):
            assert verdict(guard, update(0.0), device) == ""
        assert verdict(guard, update(0.5), 9) == ""
        assert verdict(guard, update(1e10), 9) != ""


@pytest.mark.parametrize("zeros", [False, True], ids=["weights", "zeros"])
def test_sizes_of_weights_are_those_of_each_group_alone(zeros):
    """One pass over the model; here it is one pass for each group."""
    torch.manual_seed(0)
    state = {
        "a.weight": torch.randn(4, 3),
        "a.bias": torch.zeros(4),
        "bn.weight": torch.randn(4),
        "bn.bias": torch.randn(4),
        "bn.running_mean": torch.zeros(4),
        "bn.running_var": torch.rand(4),
        "bn.num_batches_tracked": torch.tensor(3),
    }
    if zeros:
        state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    floats = {name: t for name, t in state.items() if t.is_floating_point()}
    weights = [t for name, t in floats.items() if "running" not in name]

    def alone(tensors):
        numbers = torch.cat([tensor.flatten() for tensor in tensors])
        return float(numbers.square().mean().sqrt())

    sizes = _sizes_of_weights(state)
    assert _size_of(sizes, ALL) == pytest.approx(alone(weights) or 1.0)
    groups = {group_of(name, tensor) for name, tensor in floats.items()}
    assert len(groups) == 5
    for group in [*groups, "the record 'x'"]:
        own = [t for name, t in floats.items() if group_of(name, t) == group]
        size = (alone(own) if own else 0.0) or alone(weights) or 1.0
        assert _size_of(sizes, group) == pytest.approx(size)


def test_what_it_knows_is_saved():
    guard = settled()
    verdict(guard, update(1e10), 9)
    resumed = OutlierGuard()
    resumed.load_state_dict(saved_and_read(guard.state_dict()))
    assert resumed.state_dict() == guard.state_dict()
    assert "the usual one is 0.01" in verdict(resumed, update(1.0), 9)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 1e3), (torch.double, 1e60)]
)
def test_sums_of_squares_do_not_overflow(dtype, size):
    """The length of the one is 1e5, and of the other 1e62."""
    sent = {"w": torch.zeros(10_000, dtype=dtype)}
    given = Update({"w": sent["w"] + size}, {}, 0, 1)
    assert change_sizes(given, sent)[ALL] == pytest.approx(size, rel=1e-4)


def test_what_a_message_calls_a_tensor():
    vector, matrix = torch.zeros(2), torch.zeros(2, 2)
    assert group_of("scale", vector) == "'scale'"
    assert group_of("a.b.scale", vector) == "the vectors of 'a.b'"
    assert group_of("a.weight", matrix) == "'a.weight'"
    assert group_of("a.running_mean", vector) == "the statistic 'a.running_mean'"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
def test_other_kinds_of_numbers(dtype):
    model = {"w": torch.ones(2, 2, dtype=dtype), "n": torch.tensor([1, 2])}
    guard = OutlierGuard()
    for device, size in enumerate((0.01,) * 8):
        given = Update({**model, "w": model["w"] + size}, {}, 0, 1, device=device)
        guard.check(model, given, model, num_devices=10)
    given = Update({**model, "w": model["w"] + 6e4}, {}, 0, 1, device=9)
    with pytest.raises(ReplyError, match="its change of"):
        guard.check(model, given, model, num_devices=10)


@pytest.mark.parametrize("factor", [1.0, 0.5, 0, -1.0, float("nan"), float("inf"), "2"])
def test_a_factor_that_cannot_be(factor):
    with pytest.raises(ConfigError, match="outlier_factor="):
        OutlierGuard(factor)
