"""What holds of every aggregator of `examples/baselines`, whatever devices send."""

import pytest
import torch

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.server.state import copy_of
from tests.examples.outside import outside  # noqa: F401  # a fixture
from tests.states import saved_and_read

pytestmark = pytest.mark.usefixtures("outside")

DEVICES, RANKS = 5, 3
BUILT = {
    "Ace": lambda m: m["memories"].AceMemory(0.3),
    "Ca2fl": lambda m: m["memories"].CalibratedBuffer(3, 0.3),
    "Ringleader": lambda m: m["memories"].RunningMeans(0.3),
    "Fadas": lambda m: m["steps"].AmsGrad(3, 0.1, (0.9, 0.99), 1e-8, 1),
    "FedAdam": lambda m: m["steps"].Adam(3, 0.1, (0.9, 0.99), 1e-3),
    "DelayAdaptive": lambda m: m["steps"].DelayAdaptiveStep(0.5, 2),
    "ApproximatedMomentum": lambda m: m["momentum"].MomentumApproximation(3, history=2),
    "Qafel": lambda m: m["quantised"].HiddenState(3, "q4", "q2"),
}


def built(name):
    from baselines import memories, momentum, quantised, steps

    modules = (memories, momentum, quantised, steps)
    return BUILT[name]({m.__name__.rpartition(".")[2]: m for m in modules})


def model(generator):
    """A model of all that a state may have: complex, half, a number, and nothing."""

    def drawn(*shape, **kind):
        return torch.randn(*shape, generator=generator, **kind)

    return {
        "w": drawn(4, 3),
        "half": drawn(4).half(),
        "complex": drawn(3, dtype=torch.complex64),
        "scale": drawn(()),
        "empty": drawn(0, 3),
        "bn.running_var": drawn(4).abs(),
        "bn.num_batches_tracked": torch.randint(50, (), generator=generator),
        "flags": drawn(3) > 0,
    }


def update(number, generator):
    device = int(torch.randint(DEVICES, (), generator=generator))
    return Update(
        model(generator),
        {},
        staleness=number % 3 if number > 6 else 0,
        num_examples=number % 4,
        base=model(generator),
        rank=device * RANKS // DEVICES,
        num_ranks=RANKS,
        discount=0.5 if number % 5 == 0 else 1.0,
        device=device,
        num_devices=DEVICES if number > 9 else 2,
    )


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BUILT)
def test_it_can_be_saved_anywhere_and_writes_only_what_it_says(name, seed):
    generator = torch.Generator().manual_seed(seed)
    aggregator, resumed = built(name), built(name)
    state = model(generator)
    same = copy_of(state)
    steps = 0
    for number in range(24):
        sent = update(number, generator)
        arrays, before = copy_of(sent.arrays), copy_of(state)
        saved = saved_and_read(resumed.state_dict())
        resumed = built(name)
        resumed.load_state_dict(saved)
        changed = aggregator.merge(state, sent)
        assert resumed.merge(same, sent) == changed
        assert_same(sent.arrays, arrays)
        assert_same(state, same)
        if not changed:
            assert_same(state, before)
        steps += changed
    assert steps >= 4
