"""The algorithms of `examples/baselines`, by hand and in runs."""

from dataclasses import replace

import pytest
import torch

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import copy_of
from tests.examples.outside import outside, sends, walk  # noqa: F401  # a fixture
from tests.nightly import nightly

# By how much the accuracy must rise from chance, 0.1.
NAMES = {
    **dict.fromkeys(("memories:Ace", "memories:Ca2fl", "memories:Ringleader"), 0.1),
    **dict.fromkeys(("steps:Fadas", "steps:DelayAdaptive"), 0.1),
    **dict.fromkeys(("steps:FedAdam", "momentum:ApproximatedMomentum"), 0.3),
    **dict.fromkeys(("masked:Fiarse", "masked:FedGmr", "fjord:Fjord"), 0.3),
    "quantised:Qafel": 0.3,
}
# Those that own most: a memory, a client of its own, a codec
GATE = {"quantised:Qafel"}
SHORT = {
    "num-rounds": 8,
    "in-flight": 4,
    "local-steps": 10,
    "model": "mlp",
    "levels": 4,
}


pytestmark = pytest.mark.usefixtures("outside")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("momentum:ApproximatedMomentum", "momentum_history"),
        ("fjord:Fjord", "num_widths"),
        ("steps:Fadas", "tau"),
        ("steps:DelayAdaptive", "tau"),
    ],
)
def test_what_is_counted_is_whole(name, setting):
    """From Python, 2.5 steps of history ended a run in a traceback."""
    kind = algorithm(f"baselines.{name}")
    assert type(getattr(kind(**{setting: 2.0}), setting)) is int
    with pytest.raises(ConfigError, match=f"{setting}=2.5 .*a whole number"):
        kind(**{setting: 2.5})


def test_ace_by_hand():
    from baselines.memories import AceMemory

    # Of four devices: 4, then 4 + 8, then 12 - 4 + 2 = 10, a quarter of each.
    updates = [sends(4, 0), sends(8, 1), sends(2, 0)]
    assert walk(AceMemory(1.0), updates) == [1.0, 4.0, 6.5]
    assert walk(AceMemory(0.5), updates) == [0.5, 2.0, 3.25]


def test_ca2fl_by_hand():
    from baselines.memories import CalibratedBuffer

    # K = 2. b = 4 + 8, the memory's mean is 0: W = 6. Then h = (4, 8, 0, 0), mean 3.
    # b = (2 - 4) + 6 = 4: W = 6 + 3 + 2 = 11. Then h = (2, 8, 6, 0), mean 4; b = 0 + 0
    # from devices that do the same again: W = 15.
    updates = [sends(4, 0), sends(8, 1), sends(2, 0), sends(6, 2)]
    updates += [sends(8, 1), sends(6, 2)]
    assert walk(CalibratedBuffer(2, 1.0), updates) == [0, 6, 6, 11, 11, 15]


def test_the_memory_of_ca2fl_is_averaged_over_the_fleet_of_today():
    from baselines.memories import CalibratedBuffer

    # One device does 4: W = 4, and the mean of h is 4. Then there are two, and it is 2:
    # W = 4 + 2 + 4 = 10. Both have done 4 now: W = 10 + 4 + 0.
    updates = [replace(sends(4, 0), num_devices=1)]
    updates += [replace(sends(4, device), num_devices=2) for device in (1, 0)]
    assert walk(CalibratedBuffer(1, 1.0), updates) == [4, 10, 14]


def test_ringleader_by_hand():
    from baselines.memories import RunningMeans

    # Rank 0 sends 2 and 4, rank 1 sends 9: (3 + 9) / 2 = 6; then all begins anew.
    updates = [sends(2), sends(4), sends(9, rank=1), sends(1, rank=1), sends(3)]
    assert walk(RunningMeans(1.0), updates) == [0, 0, 6, 6, 8]


def test_ringleader_steps_with_a_mean_when_the_fleet_gets_smaller():
    from baselines.memories import RunningMeans

    # Ranks 0, 1 and 3 of four have sent something when one of them leaves.
    updates = [replace(sends(6, rank=rank), num_ranks=4) for rank in (0, 1, 3)]
    updates.append(replace(sends(6, rank=2), num_ranks=3))
    assert walk(RunningMeans(1.0), updates) == [0, 0, 0, 6]


def test_ringleader_waits_for_no_rank_without_a_device():
    from baselines.memories import RunningMeans

    # Three nodes for eight tasks in flight have the ranks 0, 2 and 5.
    updates = [
        replace(sends(6, rank=rank), num_ranks=8, num_devices=3) for rank in (0, 2, 5)
    ]
    assert walk(RunningMeans(1.0), updates) == [0, 0, 6]


def test_fadas_by_hand():
    from baselines.steps import AmsGrad

    # K = 1. D = 2: m = 1, v = 2, u = 2, a step of 0.1 / sqrt(2). D = 0: m = 0.5, v = 1,
    # but u stays 2. Staler than 3: the rate is at most 1 / 20.
    updates = [sends(2), sends(0), sends(0, staleness=20)]
    root = 2**0.5
    first, second = 0.1 * 1 / root, 0.1 * 0.5 / root
    assert walk(AmsGrad(1, 0.1, (0.5, 0.5), 1e-12, 3), updates) == pytest.approx(
        [first, first + second, first + second + 0.25 / root / 20], abs=1e-5
    )


def test_delay_adaptive_by_hand():
    from baselines.steps import DelayAdaptiveStep

    updates = [sends(2), sends(2, staleness=4), sends(2, staleness=8)]
    assert walk(DelayAdaptiveStep(0.5, 4), updates) == [1.0, 2.0, 2.5]


def test_with_one_update_a_step_and_no_memory_of_it_ca2fl_is_fedbuff():
    from baselines.memories import CalibratedBuffer

    updates = [sends(4, 0), sends(8, 1)]
    assert walk(CalibratedBuffer(2, 1.0), updates) == walk(Buffered(2), updates)


@pytest.mark.parametrize(
    "build",
    [lambda m: m.AceMemory(0.1), lambda m: m.CalibratedBuffer(2, 0.1)],
    ids=["ace", "ca2fl"],
)
def test_sums_of_half_precision_lose_nothing_over_time(build):
    """2,000 updates move the sums up and down; then all devices send nothing."""
    from baselines import memories

    generator = torch.Generator().manual_seed(0)
    changes = [torch.randn(8, generator=generator) for _ in range(2000)]
    changes += [torch.zeros(8)] * 8
    aggregator, kind = build(memories), torch.float16
    base = torch.zeros(8, dtype=kind)
    for number, change in enumerate(changes):
        update = sends(0, number % 4)
        arrays = {"w": change.to(kind)}
        update = replace(update, arrays=arrays, base={"w": base})
        aggregator.merge({"w": base.clone()}, update)
    memory = aggregator.memory
    assert (memory.mean or memory.sums)["w"].abs().max() < 1e-3


def with_statistics(mean, counted, **sender):
    """An update of a weight, a running statistic and a counter."""
    update = sends(1.0, **sender)
    statistics = {
        "bn.running_mean": torch.tensor([mean]),
        "bn.num_batches_tracked": torch.tensor(counted),
    }
    return replace(update, arrays=update.arrays | statistics)


@pytest.mark.parametrize("name", ["CalibratedBuffer", "RunningMeans"])
def test_statistics_change_with_the_weights_alone(name):
    from baselines import memories

    built = {
        "CalibratedBuffer": lambda: memories.CalibratedBuffer(2, 1.0),
        "RunningMeans": lambda: memories.RunningMeans(1.0),
    }
    aggregator = built[name]()
    state = {
        "w": torch.zeros(1),
        "bn.running_mean": torch.zeros(1),
        "bn.num_batches_tracked": torch.tensor(0),
    }
    before = copy_of(state)
    assert not aggregator.merge(state, with_statistics(2.0, 5, rank=0))
    assert all(torch.equal(state[n], before[n]) for n in state)
    assert aggregator.merge(state, with_statistics(4.0, 7, rank=1))
    assert state["bn.running_mean"].tolist() == [4.0]
    assert state["bn.num_batches_tracked"].item() == 7


class StoppedError(Exception):
    pass


class Stop(Callback):
    def on_update(self, state, merged):
        if state.updates == 22:
            raise StoppedError


def run(out, callbacks=(), **settings):
    given = {**SHORT, **settings, "out-dir": str(out)}
    with LocalGrid(
        "flwr_asyncdrop.client_app:app", num_nodes=8, run_config=given
    ) as grid:
        run_experiment(grid, RunConfig.parse(given), callbacks)
    return [without_wall(line) for line in read_history(out / "history.jsonl")]


@pytest.mark.parametrize(
    "name", [name if name in GATE else nightly(name, id=name) for name in NAMES]
)
def test_each_learns_and_resumes(name, tmp_path):
    algo = f"baselines.{name}"
    settings = {"algo": algo, "checkpoint-every": 4, "keep-checkpoints": 9}
    whole = run(tmp_path / "whole", **settings)
    tests = [line for line in whole if line["event"] == "evaluation"]
    accuracy = [line["metrics"]["accuracy"] for line in tests]
    assert max(accuracy) > accuracy[0] + NAMES[name]
    half = tmp_path / "half"
    with pytest.raises(StoppedError):
        run(half, [Stop()], **settings)
    assert run(half, **settings, resume=str(half)) == whole
