"""Steps and quantised messages of `examples/baselines`, by hand."""

import pytest
import torch

from flwr_asyncdrop.aggregation import Buffered, Update
from tests.examples.outside import outside, sends, walk  # noqa: F401  # a fixture

pytestmark = pytest.mark.usefixtures("outside")


def submodel(change, position):
    """An update of one of two weights."""
    return Update(
        {"w": torch.tensor([change])},
        {"w": {0: torch.tensor([position])}},
        0,
        1,
        {"w": torch.zeros(1)},
    )


def test_fedadam_by_hand():
    from baselines.steps import Adam

    # D = 3: m = 1.5, v = (1 + 9) / 2 = 5 from eps^2 = 1 on. D = 0: m = 0.75, v = 2.5.
    updates = [sends(2), sends(4), sends(0), sends(0)]
    first, second = 0.1 * 1.5 / (5**0.5 + 1), 0.1 * 0.75 / (2.5**0.5 + 1)
    assert walk(Adam(2, 0.1, (0.5, 0.5), 1.0), updates) == pytest.approx(
        [0, first, first, first + second], abs=1e-6
    )


def test_moments_of_half_precision_are_those_of_single_precision():
    from baselines.steps import AmsGrad

    # A square of 1e-3 is no half, and neither is eps: the step was 0 / 0, and D / 0.
    state, kind = {"w": torch.zeros(2, dtype=torch.float16)}, torch.float16
    base = {"w": torch.zeros(2, dtype=kind)}
    change = {"w": torch.tensor([0.0, 1e-3], dtype=kind)}
    AmsGrad(1, 0.1, (0.9, 0.99), 1e-8, 10).merge(state, Update(change, {}, 0, 1, base))
    # m / sqrt(v) = 0.1 D / (0.1 D)
    assert state["w"].tolist() == pytest.approx([0.0, 0.1], abs=1e-3)


def test_a_cohort_waits_for_fedadam_and_may_be_short_of_a_device():
    from baselines.steps import Adam, FedAdam

    assert FedAdam().aggregator(7).waits_for == 7
    aggregator, state = Adam(2, 0.1, (0.5, 0.5), 1.0), {"w": torch.zeros(1)}
    assert not aggregator.flush(state)
    assert not aggregator.merge(state, sends(3))
    assert aggregator.flush(state)
    assert float(state["w"]) == pytest.approx(0.1 * 1.5 / (5**0.5 + 1))


def test_weights_that_some_devices_lack_are_averaged_over_those_that_have_them():
    from baselines.collecting import Collecting

    class Plain(Collecting):
        def step(self, state, mean, staleness):
            state["w"].add_(mean["w"])

    aggregator, state = Plain(3), {"w": torch.zeros(2)}
    for update in (submodel(4.0, 0), submodel(2.0, 0)):
        assert not aggregator.merge(state, update)
    assert aggregator.merge(state, submodel(9.0, 1))
    assert state["w"].tolist() == [3.0, 9.0]


@pytest.mark.parametrize("name", ["Fadas", "FedAdam", "Qafel"])
def test_a_complex_weight_steps_as_its_real_and_its_imaginary_part(name):
    from baselines import quantised, steps

    build = {
        "Fadas": lambda: steps.AmsGrad(1, 0.1, (0.5, 0.9), 1e-8, 10),
        "FedAdam": lambda: steps.Adam(1, 0.1, (0.5, 0.9), 1e-3),
        "Qafel": lambda: quantised.HiddenState(1, "q4", "q4"),
    }[name]
    whole, parts = build(), build()
    state, same = (torch.zeros(2, dtype=torch.complex64) for _ in range(2))
    for change in (1 + 2j, -3 + 1j, 2 - 1j):
        sent = torch.tensor([change, 0.3 * change])
        base = torch.zeros_like(sent)
        whole.merge({"w": state}, Update({"w": sent}, {}, 0, 1, {"w": base}))
        sent, base = map(torch.view_as_real, (sent, base))
        view = {"w": torch.view_as_real(same)}
        parts.merge(view, Update({"w": sent}, {}, 0, 1, {"w": base}))
        assert torch.equal(state, same)


def test_momentum_approximation_by_hand():
    from baselines.momentum import MomentumApproximation

    # Both changes were made from version 0: of the second step's momentum it has
    # beta = 1/2, which both share equally. Naive momentum would step by 2 + 4 / 2.
    updates = [sends(4), sends(2, staleness=1)]
    aggregator = MomentumApproximation(1, momentum=0.5, ridge=1e-9)
    assert walk(aggregator, updates) == [4.0, 4.0 + (4 + 2) / 4]


def test_where_nothing_is_stale_it_is_momentum():
    from baselines.momentum import MomentumApproximation

    updates = [sends(change) for change in (4, 2, -1, 3, 5, 0)]
    approximated = MomentumApproximation(2, lr=0.5, momentum=0.8, ridge=1e-9)
    exact = Buffered(2, server_lr=0.5, momentum=0.8)
    assert walk(approximated, updates) == pytest.approx(walk(exact, updates), abs=1e-5)


def test_the_ridge_pulls_weights_towards_0():
    from baselines.momentum import matching

    # 1 / (1 + ridge) of the only change.
    assert matching([[3]], 3, 0.9, 0.25) == pytest.approx([0.8])


def test_weights_are_those_of_least_squares():
    from baselines.momentum import matching

    generator = torch.Generator().manual_seed(0)
    versions = [
        (now - torch.randint(0, min(now, 4) + 1, (3,), generator=generator)).tolist()
        for now in range(8)
    ]
    ridge, shares = 0.1, torch.zeros(8, 8, dtype=torch.float64)
    for row, step in enumerate(versions):
        for version in step:
            shares[row, version] += 1 / 3
    wanted = 0.9 ** torch.arange(7, -1, -1, dtype=torch.float64)
    pulled = torch.cat([shares.T, ridge**0.5 * torch.eye(8, dtype=torch.float64)])
    target = torch.cat([wanted, torch.zeros(8, dtype=torch.float64)])
    expected = torch.linalg.lstsq(pulled, target.unsqueeze(1)).solution.squeeze(1)
    found = torch.tensor(matching(versions, 7, 0.9, ridge), dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_its_history_is_bounded():
    from baselines.momentum import MomentumApproximation

    updates = [sends(change) for change in (4, 2, 8)]
    aggregator = MomentumApproximation(1, momentum=0.5, history=2, ridge=1e-9)
    assert walk(aggregator, updates) == [4, 4 + 4, 8 + 8 + 1]
    assert len(aggregator.state_dict()["steps"]["latest"]) == 2


def test_qafel_makes_good_what_a_message_has_lost():
    from baselines.quantised import HiddenState

    # Scales of 4 bits are a seventh of the largest number. The mean is (7, 0.5), and
    # 0.5 is rounded to 1: W = (7, 0.5), x = (7, 1). Then nothing is new: x gets -0.5,
    # in a block of its own scale, which has 8 bits.
    updates = [sends([7, 2]), sends([7, -1]), sends([0, 0]), sends([0, 0])]
    path = walk(HiddenState(2, "q4", "q4"), updates)
    assert path[:3] == [[0, 0], [7, 1], [7, 1]]
    assert path[3][0] == 7
    assert path[3][1] == pytest.approx(0.5, abs=0.5 * 0.005)
    assert path[3][1] != 1


def test_what_a_device_sends_is_rounded_without_bias():
    from baselines.quantised import HiddenState

    # 2.5 becomes 2 or 3, each as often: the server's model has the mean.
    updates = [sends([7, 2.5]) for _ in range(400)]
    aggregator = HiddenState(400, "q4", "q8")
    walk(aggregator, updates)
    model = aggregator.state_dict()["server"]["model"]["w"]
    assert model[0] == 7
    assert model[1] == pytest.approx(2.5, abs=4 * 0.5 / 400**0.5)
    assert model[1] != 2.5


def test_where_nothing_is_rounded_qafel_is_fedbuff():
    from baselines.quantised import HiddenState

    # All of these are multiples of a seventh of the largest, as is their sum.
    updates = [sends([7, 3, -1]), sends([14, 0, 2]), sends([-7, 7, 0])]
    assert walk(HiddenState(1, "q4", "q4"), updates) == walk(Buffered(1), updates)


def test_running_statistics_are_not_rounded():
    from baselines.quantised import HiddenState

    def update(value):
        arrays = {"w": torch.tensor([7.0]), "running_mean": torch.tensor([value])}
        return Update(arrays, {}, 0, 1, {"w": torch.zeros(1)})

    state = {"w": torch.zeros(1), "running_mean": torch.zeros(1)}
    HiddenState(1, "q4", "q4").merge(state, update(0.123))
    assert state["running_mean"].tolist() == torch.tensor([0.123]).tolist()
