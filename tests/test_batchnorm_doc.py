"""What docs/batchnorm.md shows runs."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.submodel import recalibrate_bn

TEXT = (Path(__file__).parents[1] / "docs" / "batchnorm.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

assume_identity(run_id=1)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def test_devices_answer_for_a_server_without_data():
    batches = [torch.randn(16, 4) for _ in range(3)]
    app, net = ClientApp(), Net()

    def send_and_receive(messages, timeout):
        context = Context(1, 1, {}, RecordDict(), {})
        return [app(copy.deepcopy(message), context) for message in messages]

    names = {
        "ArrayRecord": ArrayRecord,
        "Message": Message,
        "Net": Net,
        "RecordDict": RecordDict,
        "app": app,
        "batches_of_own_inputs": batches,
        "grid": SimpleNamespace(
            get_node_ids=lambda: [1, 2, 3], send_and_receive=send_and_receive
        ),
        "result": SimpleNamespace(arrays=ArrayRecord(net.state_dict())),
        "torch": torch,
    }
    client, server = CODE.split("# server_app.py")
    for code in (client, server.partition("\n")[2]):
        exec(compile(code, "batchnorm.md", "exec"), names)  # noqa: S102  # our own
    recalibrate_bn(net, batches)
    for name, tensor in net.state_dict().items():
        if "running_" in name:
            torch.testing.assert_close(names["state"][name], tensor)
