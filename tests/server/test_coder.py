"""What leaves for the devices in a code."""

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop import AsyncStrategy, CodecMod, LocalGrid, speed_levels, wire
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import RunError

app = ClientApp(mods=[CodecMod()])


@app.train()
def unchanged(message, context):
    metrics = MetricRecord({"num-examples": 1})
    content = {"arrays": message.content["arrays"], "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@pytest.mark.parametrize("codec", ["q8", "down=q1,up=none"])
@pytest.mark.parametrize("wrong", [float("nan"), 1e39])
def test_a_model_that_no_code_can_have_ends_the_run_with_that_reason(wrong, codec):
    """Without a codec it reaches the devices, and their replies show it."""

    class Wrong(Mixing):
        def merge(self, state, update):
            state["w"][1] = wrong
            return True

    start = {"w": torch.zeros(300, dtype=torch.float64)}
    strategy = AsyncStrategy(
        aggregator=Wrong(), in_flight=1, codec=codec, fleet=speed_levels
    )
    says = "^the global model holds NaN, infinity or numbers beyond .* in 'w'"
    with (
        LocalGrid(lambda: app, num_nodes=2, workers=0) as grid,
        pytest.raises(RunError, match=says),
    ):
        strategy.start(grid, wire.to_record(start), num_rounds=3)
