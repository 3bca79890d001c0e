"""A frozen backbone on a `LocalGrid`: what the processes have makes no difference."""

import pytest
import torch
from flwr.app import ArrayRecord

from flwr_asyncdrop import HeteroAsyncDrop, LocalGrid, speed_levels, wire
from tests.nightly import once_in_the_gate
from tests.simulation.apps import frozen_app


def run(app, workers):
    net = frozen_app.build()
    strategy = HeteroAsyncDrop(
        net, torch.zeros(2, 4), fleet=speed_levels, in_flight=4, seed=2
    )
    with LocalGrid(app, num_nodes=6, workers=workers) as grid:
        result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=3)
    arrays = wire.from_record(result.arrays)
    evaluated = [dict(m) for m in result.evaluate_metrics_clientapp.values()]
    return {name: tensor.tolist() for name, tensor in arrays.items()}, evaluated


@once_in_the_gate
@pytest.mark.parametrize("workers", [0, 2])
def test_the_result_depends_on_the_seed_alone(workers, no_settling):
    expected = run(frozen_app.having, 0)
    assert run(frozen_app.asking, workers) == expected
    initial = frozen_app.build().state_dict()
    arrays, evaluated = expected
    assert arrays["backbone.0.weight"] == initial["backbone.0.weight"].tolist()
    assert arrays["backbone.1.running_mean"] != [0.0] * 32
    assert len(evaluated) == 3
