"""Runs of strategies whose model trains only in part, for tests."""

import copy
from functools import partial

import torch
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict

from flwr_asyncdrop import FrozenMod, load_submodel, speed_levels, wire
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.seeding import torch_generator
from tests.grids import HandlerGrid
from tests.runs import Recorder, answer, failing, mlp, record, residual_mlp
from tests.strategies import STRATEGIES

INPUTS = torch.zeros(1, 4)
NETS = dict.fromkeys(STRATEGIES, mlp) | {"layerwise-asyncdrop": residual_mlp}


def half(net=mlp):
    """Return a model whose first two layers with weights do not train."""
    model = net()
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    for layer in layers[:2]:
        layer.requires_grad_(False)
    return model


def everything(name):
    return True


def train(message, context, net=mlp):
    """Take a step on what requires a gradient; all of the model has a say in it."""
    task = wire.read_task(message)
    model = load_submodel(half(net), message.content["arrays"])
    if message.metadata.message_type == MessageType.EVALUATE:
        total = sum(tensor.abs().sum() for tensor in model.state_dict().values())
        metrics = MetricRecord({"num-examples": 1, "size": float(total)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    x = torch.randn(8, 4, generator=torch_generator(task.seed, "train"))
    model(x).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:  # a block may be left out
                parameter -= 0.2 * parameter.grad
    return answer(message, model.state_dict(), loss=float(task.seed % 1000))


class Nodes:
    """Nodes with a ClientApp each, behind a `HandlerGrid`; all that they got."""

    def __init__(self, net=mlp, own=None, train=train, **grid):
        self.net, self.train = net, train
        self.new_mod = partial(FrozenMod, own)
        self.mods, self.contexts = {}, {}
        self.got, self.replied = [], []
        self.grid = HandlerGrid(self.handle, **grid)

    def handle(self, message):
        node = message.metadata.dst_node_id
        mod = self.mods.setdefault(node, self.new_mod())
        context = self.contexts.setdefault(node, Context(1, node, {}, RecordDict(), {}))
        self.got.append((node, RecordDict(dict(message.content))))
        # A device has its own copy of a message.
        app = partial(self.train, net=self.net)
        try:
            reply = mod(copy.deepcopy(message), context, app)
        except (AsyncDropError, RuntimeError) as error:
            return failing(message, one_line(error))
        self.replied.append((node, reply.content))
        return reply

    def restart(self, node, *, forgets=True):
        """Lose what the process of a node has; with `forgets` also its state."""
        self.mods.pop(node, None)
        if forgets:
            self.contexts.pop(node, None)

    @property
    def brought(self):
        """Per node how many messages had the frozen tensors."""
        nodes = [n for n, content in self.got if wire.FROZEN_RECORD in content]
        return {node: nodes.count(node) for node in sorted(set(nodes))}

    @property
    def asked(self):
        """How many replies did nothing but ask."""
        return sum(not content.metric_records for _, content in self.replied)


def go(
    algorithm="async-fedavg", nodes=None, *, rounds=4, callbacks=(), start=(), **changes
):
    """Run; return the nodes, the recorder and the result."""
    net = NETS[algorithm]
    nodes = nodes or Nodes(net, node_ids=range(1, 6))
    recorder = Recorder(tasks_each=1 + changes.get("queue_ahead", 0))
    settings = {
        "in_flight": 3,
        "fleet": speed_levels,
        "seed": 1,
        "fraction_evaluate": 0.0,
        "callbacks": [recorder, *callbacks],
        **changes,
    }
    strategy = STRATEGIES[algorithm](half(net), INPUTS, **settings)
    result = strategy.start(
        nodes.grid, record(net().state_dict()), num_rounds=rounds, **dict(start)
    )
    return nodes, recorder, result


def weights(arrays):
    return {name: t.tolist() for name, t in wire.from_record(arrays).items()}


class RoundGrid(HandlerGrid):
    """A grid that serves Flower's synchronous strategies too."""

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages if (reply := self.handler(message))]
