"""What docs/frozen.md shows runs."""

import copy
import re
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop import FedBuff, FrozenMod, wire
from tests.grids import HandlerGrid
from tests.simulation.apps import frozen_app

TEXT = (Path(__file__).parents[1] / "docs" / "frozen.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
pytestmark = pytest.mark.usefixtures("no_settling")


def run(code, **names):
    """Run the blocks on nodes with the app that the document builds."""
    contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in (1, 2, 3)}
    sent = []

    def handle(message):
        app, node = names["app"], message.metadata.dst_node_id
        sent.append(message)
        return app(copy.deepcopy(message), contexts[node])

    names |= {
        "ArrayRecord": ArrayRecord,
        "ClientApp": make_app,
        "FedBuff": FedBuff,
        "FrozenMod": FrozenMod,
        "Net": frozen_app.Net,
        "grid": HandlerGrid(handle, node_ids=(1, 2, 3)),
    }
    exec(compile(code, "frozen.md", "exec"), names)  # noqa: S102  # our own
    return names, sent


def make_app(mods):
    app = ClientApp(mods=mods)
    app.train()(frozen_app.train)
    app.evaluate()(frozen_app.evaluate)
    return app


def test_the_project():
    server, client = BLOCKS[0].split("# client_app.py\n")
    names, sent = run(client + server)
    whole = list(frozen_app.Net().state_dict())
    assert list(names["result"].arrays) == whole
    assert len(names["result"].evaluate_metrics_clientapp) == 3
    trained = [name for name in whole if "running" in name or "num_" in name]
    trained += ["head.weight", "head.bias"]
    assert all(list(message.content["arrays"]) == trained for message in sent)
    assert sum(wire.FROZEN_RECORD in message.content for message in sent) == 3


def test_the_function():
    strategy = run(BLOCKS[1], net=frozen_app.Net())[0]["strategy"]
    names = frozen_app.Net().state_dict()
    left = names.keys() - strategy.trainable.frozen(names)
    assert left == {"head.weight", "head.bias"}
