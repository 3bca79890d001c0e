"""What else comes with a task: records, fingerprints, the guard, a figure."""

import logging

import pytest
import torch

from flwr_asyncdrop import CodecMod, FrozenMod, wire
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.app.models.resnet import RESNET18, ResNet
from flwr_asyncdrop.submodel import frozen_names, split
from tests.runs import answer, mlp, record
from tests.strategies import STRATEGIES
from tests.strategy.frozen_runs import INPUTS, Nodes, everything, go, half

pytestmark = pytest.mark.usefixtures("no_settling")


class WithRecord(Mixing):
    """Sends a record along that is cut like the model, as SCAFFOLD does."""

    def __init__(self):
        super().__init__(0.5)
        self.back = []

    def extra(self, state):
        return {"control": {name: tensor * 0.5 for name, tensor in state.items()}}

    def merge(self, state, update):
        for name, tensor in update.extra["control"].items():
            assert tensor.shape == update.arrays[name].shape
        assert set(update.extra["control"]) == {"4.weight", "4.bias"}
        return super().merge(state, update)


def returns_both(message, context, net):
    arrays = wire.from_record(message.content["arrays"])
    control = wire.from_record(message.content["control"])
    assert set(arrays) == set(mlp().state_dict())
    assert all(control[name].shape == arrays[name].shape for name in control)
    reply = answer(message, arrays)
    reply.content["control"] = wire.to_record(control)
    return reply


@pytest.mark.parametrize("fleet", [None, "levels"])
def test_records_beside_the_model_have_what_trains(fleet):
    nodes = Nodes(node_ids=range(1, 4), train=returns_both)
    changes = {} if fleet else {"fleet": None}
    _, recorder, _ = go("asyncdrop", nodes, aggregator=WithRecord(), **changes)
    assert not recorder.failures
    assert nodes.brought == {1: 1, 2: 1, 3: 1}


@pytest.fixture
def log(caplog, monkeypatch):
    """What is logged; Flower's logger does not hand its records on."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        yield caplog


def echo(message, context, net):
    return answer(message, wire.from_record(message.content["arrays"]))


def test_a_client_that_trains_nothing_is_noticed(log):
    go(nodes=Nodes(node_ids=range(1, 4), train=echo))
    assert "returned exactly the weights that it was sent" in log.text
    log.clear()
    go()
    assert "exactly the weights" not in log.text


def test_the_guard_judges_by_what_trains():
    """A change that is small beside all weights, and large beside those that train."""

    def lies(message, context, net):
        state = wire.from_record(message.content["arrays"])
        if message.metadata.dst_node_id == 1:
            state["4.weight"] += 1000.0
        return answer(message, state)

    def large():
        net = half()
        with torch.no_grad():
            net[0].weight.fill_(1e4)
        return net

    nodes = Nodes(node_ids=range(1, 6), train=lies)
    strategy = STRATEGIES["async-fedavg"](large(), INPUTS, fraction_evaluate=0.0)
    result = strategy.start(nodes.grid, record(large().state_dict()), num_rounds=2)
    assert wire.from_record(result.arrays)["4.weight"].abs().max() < 10


def test_a_client_that_trains_the_backbone_fails_by_name():
    def trains_all(message, context, net):
        state = wire.from_record(message.content["arrays"])
        return answer(message, {name: tensor + 1 for name, tensor in state.items()})

    nodes = Nodes(node_ids=range(1, 4), train=trains_all)
    with pytest.raises(Exception, match="which does not train and is not sent back"):
        go(nodes=nodes)


@pytest.mark.parametrize("algorithm", ["async-fedavg", "asyncdrop"])
@pytest.mark.parametrize("codec", ["q4", "topk-q4"])
def test_a_codec_outside_of_what_asks_for_the_frozen_part(algorithm, codec):
    """The first reply of a real device has no arrays: it asks for them."""

    def both():
        codec_mod, frozen_mod = CodecMod(), FrozenMod()
        return lambda message, context, app: codec_mod(
            message, context, lambda *passed: frozen_mod(*passed, app)
        )

    nodes = Nodes(node_ids=range(1, 6))
    nodes.new_mod = both
    _, recorder, _ = go(algorithm, nodes, fleet=None, codec=codec)
    assert not recorder.failures
    assert nodes.asked == 5


def test_the_figures_of_docs_frozen():
    """What the arrays of an update have on the wire, both ways, in bytes."""
    net = ResNet(RESNET18, (3, 32, 32), 10).requires_grad_(False)
    net.fc.requires_grad_(True)
    state = net.state_dict()

    def size(trainable):
        trained, _ = split(state, frozen_names(list(state), net, trainable))
        return 2 * wire.array_bytes(wire.to_record(trained))

    assert size(everything) == 89_500_048
    assert size(None) == 134_032
    assert size(lambda name: name.startswith("fc.")) == 41_552
