"""A server without data asks devices for batch normalisation's statistics."""

import torch
from flwr.app import ArrayRecord, Message, RecordDict

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.submodel import recalibrate_bn
from tests.simulation.apps.bn_statistics import inputs_of, network


def test_what_docs_batchnorm_shows():
    arrays = ArrayRecord(network().state_dict())
    with LocalGrid(
        "tests.simulation.apps.bn_statistics:app", num_nodes=3, workers=0
    ) as grid:
        ask = RecordDict({"arrays": arrays})
        asked = [Message(ask, node, "query") for node in list(grid.get_node_ids())[:8]]
        answers = list(grid.send_and_receive(asked, timeout=600))
        replies = [reply for reply in answers if not reply.has_error()]
    found = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
    state = arrays.to_torch_state_dict()
    for name in found[0]:
        state[name] = torch.stack([statistics[name] for statistics in found]).mean(0)

    together = network()
    recalibrate_bn(together, [inputs_of(device) for device in range(3)])
    expected = together.state_dict()
    assert len(found) == 3
    assert len(found[0]) == 2
    for name in found[0]:
        torch.testing.assert_close(state[name], expected[name])
