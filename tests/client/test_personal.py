"""Layers that a client keeps are the right units again, whatever the next task has."""

import numpy as np
import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop import (
    HeteroAsyncDrop,
    LocalGrid,
    load_personal,
    load_submodel,
    save_personal,
    speed_levels,
    wire,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.submodel import extract, plan_blocks, plan_submodels, silenced
from tests.grids import HandlerGrid
from tests.nightly import examples
from tests.runs import mlp, plus_one, residual_mlp

KEYS = wire.RecordKeys()


def context():
    return Context(1, 2, {}, RecordDict(), {})


def task(model, plan=None, keep=None, *, masked=False, device=None):
    """Return the message that carries a submodel of `model`, or all of it."""
    state = model.state_dict()
    indices = {} if keep is None else plan.indices(keep)
    cut = silenced if masked else extract
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return wire.make_task(
        wire.to_record(cut(state, indices)),
        wire.kept_entries(indices, shapes, KEYS.arrays),
        wire.TaskConfig(1, 0, device, None if device is None else 9),
        node_id=5,
        keys=KEYS,
    )


def loaded(net, message):
    return load_submodel(net(), message.content["arrays"])


def shift(model, by):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor += by


def two_layers():
    """Two inputs, three hidden units, and a head; every weight tells its place."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[11.0, 12], [21, 22], [31, 32]]))
        model[0].bias.copy_(torch.tensor([1.0, 2, 3]))
        model[2].weight.copy_(torch.tensor([[41.0, 42, 43], [51, 52, 53]]))
        model[2].bias.copy_(torch.tensor([4.0, 5]))
    return model


def plan_of(model):
    return plan_submodels(model, torch.zeros(1, 2))


def units(*numbers):
    return (torch.tensor(numbers),)


def test_a_head_on_other_units_next_time():
    server, mine = two_layers(), context()
    plan = plan_of(server)
    first = task(server, plan, units(0, 1))
    model = loaded(two_layers, first)
    shift(model, 100)
    save_personal(mine, model, first, "2")

    second = task(server, plan, units(1, 2))
    model = loaded(two_layers, second)
    load_personal(mine, model, second, "2")
    # Unit 1 is known, and now the first one; unit 2 has the server's weights.
    assert model[2].weight.tolist() == [[142.0, 43], [152, 53]]
    assert model[2].bias.tolist() == [104.0, 105]
    assert model[0].weight.tolist() == [[21.0, 22], [31, 32]]
    shift(model, 1000)
    save_personal(mine, model, second, "2")

    whole = task(server)
    model = loaded(two_layers, whole)
    load_personal(mine, model, whole, "2")
    assert model[2].weight.tolist() == [[141.0, 1142, 1043], [151, 1152, 1053]]
    assert model[2].bias.tolist() == [1104.0, 1105]


def test_the_units_themselves_may_be_personal():
    server, mine = two_layers(), context()
    plan = plan_of(server)
    first = task(server, plan, units(0, 2))
    model = loaded(two_layers, first)
    shift(model, 100)
    save_personal(mine, model, first, "0.weight")
    second = task(server, plan, units(2))
    model = loaded(two_layers, second)
    load_personal(mine, model, second, "0.weight")
    assert model[0].weight.tolist() == [[131.0, 132]]
    assert model[0].bias.tolist() == [3.0]


def test_masked_units_stay_zero():
    server, mine = two_layers(), context()
    plan = plan_of(server)
    first = task(server, plan, units(0, 1), masked=True)
    model = loaded(two_layers, first)
    shift(model, 100)  # of the dropped ones, too
    save_personal(mine, model, first, "2")
    second = task(server, plan, units(1, 2), masked=True)
    model = loaded(two_layers, second)
    load_personal(mine, model, second, "2")
    assert model[2].weight.tolist() == [[0.0, 142, 43], [0, 152, 53]]


def test_full_models_are_saved_and_loaded_as_they_are():
    mine, server, trained = context(), mlp(1), mlp(2)
    message = task(server)
    model = loaded(mlp, message)
    load_personal(mine, model, message, "4")  # nothing is kept yet
    assert torch.equal(model[4].weight, server[4].weight)
    model.load_state_dict(trained.state_dict())
    save_personal(mine, model, message, "4", "0.bias")
    model = loaded(mlp, message)
    load_personal(mine, model, message, "4", "0.bias")
    for name, tensor in model.state_dict().items():
        kept = name.startswith("4.") or name == "0.bias"
        assert torch.equal(tensor, (trained if kept else server).state_dict()[name])


def test_a_task_that_diverged_leaves_what_was_kept_before():
    """Else all later tasks would begin with NaN, and be refused."""
    server, mine = two_layers(), context()
    whole = task(server)
    model = loaded(two_layers, whole)
    shift(model, 100)
    save_personal(mine, model, whole, "0", "2")
    before = model[0].weight.tolist()
    for wrong in (torch.nan, torch.inf):
        load_personal(mine, model, whole, "0", "2")
        shift(model, 1)
        with torch.no_grad():
            model[2].weight[0, 1] = wrong
        save_personal(mine, model, whole, "0", "2")
        assert not model[2].weight.isfinite().all()  # so that the reply is refused
        model = loaded(two_layers, whole)
        load_personal(mine, model, whole, "0", "2")
        assert model[0].weight.tolist() == before
        assert model[2].weight.tolist() == [[141.0, 142, 143], [151, 152, 153]]


def test_a_mask_of_infinity_that_came_with_the_task_may_be_personal():
    server, mine = two_layers(), context()
    server.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    whole = task(server)
    save_personal(mine, server, whole, "mask", "2")
    shift(server, 1)
    load_personal(mine, server, whole, "2")
    assert server[2].bias.tolist() == [4.0, 5.0]


def test_each_device_that_a_node_plays_has_its_own():
    mine, server = context(), two_layers()
    for device in (0, 1, None):
        message = task(server, device=device)
        model = loaded(two_layers, message)
        shift(model, 100.0 * (device if device is not None else 7))
        save_personal(mine, model, message, "2.bias")
    for device, expected in ((0, 4.0), (1, 104.0), (None, 704.0)):
        message = task(server, device=device)
        model = loaded(two_layers, message)
        load_personal(mine, model, message, "2.bias")
        assert model[2].bias[0].item() == expected


def test_the_statistics_of_batch_normalisation():
    """FedBN: they are the client's own, counters too."""

    def net():
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    server, mine = net(), context()
    plan = plan_of(server)
    first = task(server, plan, units(0, 3))
    model = loaded(net, first).train()
    for _ in range(3):
        model(torch.randn(8, 2))
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm1d)]
    save_personal(mine, model, first, *norms)
    second = task(server, plan, units(1, 3))
    model = loaded(net, second)
    load_personal(mine, model, second, *norms)
    assert model[1].running_mean.tolist() == [0.0, trained["1.running_mean"][1].item()]
    assert model[1].num_batches_tracked == 3


def test_a_block_that_is_left_out_keeps_what_it_had():
    server, mine = residual_mlp(1), context()
    plan = plan_blocks(server, torch.zeros(1, 4))
    first = task(server, plan, units(0, 2))
    model = loaded(residual_mlp, first)
    shift(model, 100)
    names = [name for name, _ in server.named_children()]
    save_personal(mine, model, first, *names)
    second = task(server, plan, units(1, 2))
    model = loaded(residual_mlp, second)
    load_personal(mine, model, second, *names)
    save_personal(mine, model, second, *names)
    whole = task(server)
    model = loaded(residual_mlp, whole)
    load_personal(mine, model, whole, *names)
    blocks = {block: number + 1 for number, block in enumerate(range(5))}
    for block, place in blocks.items():
        shifted = block in (0, 2)
        expected = server[place].layer.bias + (100 if shifted else 0)
        assert torch.equal(model[place].layer.bias, expected)


@settings(max_examples=examples(40))
@given(st.data())
def test_any_sequence_of_tasks_is_a_table_of_coordinates(data):
    server = mlp(1)
    plan, mine = plan_submodels(server, torch.zeros(1, 4)), context()
    table = {}
    for step in range(1, 5):
        sets = [
            data.draw(st.sets(st.integers(0, g.size - 1), min_size=1))
            for g in plan.groups
        ]
        whole, masked = data.draw(st.booleans()), data.draw(st.booleans())
        keep = None if whole else tuple(torch.tensor(sorted(kept)) for kept in sets)
        message = task(server, plan, keep, masked=masked)
        model = loaded(mlp, message)
        load_personal(mine, model, message, "2")
        indices = {} if keep is None else plan.indices(keep)
        for name, tensor in server.state_dict().items():
            if not name.startswith("2."):
                continue
            found = model.state_dict()[name]
            full = np.argwhere(np.ones(tensor.shape, dtype=bool))
            dims = indices.get(name, {})
            at = {dim: positions.tolist() for dim, positions in dims.items()}
            for place in map(tuple, full.tolist()):
                if any(place[dim] not in kept for dim, kept in at.items()):
                    continue
                here = tuple(
                    at[dim].index(p) if dim in at and not masked else p
                    for dim, p in enumerate(place)
                )
                expected = table.get((name, place), tensor[place].item())
                assert found[here].item() == expected
                with torch.no_grad():
                    found[here] = expected + step
                table[name, place] = found[here].item()
        save_personal(mine, model, message, "2")


def test_it_is_one_config_record_and_small():
    """Flower's mods take exactly one; masks are bits, each set once."""
    server = mlp(1)
    plan = plan_submodels(server, torch.zeros(1, 4))
    message = task(server, plan, (torch.tensor([0, 2]), torch.tensor([1])))
    (config,) = message.content.config_records.values()
    assert config["asyncdrop-kept-masks"] == bytes([0b10100000, 0b01000000])
    assert config["asyncdrop-kept-sizes"] == [6, 5]
    kept = wire.read_kept(message)
    for name, dims in plan.indices((torch.tensor([0, 2]), torch.tensor([1]))).items():
        assert {d: p.tolist() for d, p in kept.indices[name].items()} == {
            dim: positions.tolist() for dim, positions in dims.items()
        }


def test_a_message_of_another_strategy_is_about_the_full_model():
    content = RecordDict({"arrays": wire.to_record(mlp().state_dict())})
    content["config"] = ConfigRecord({"lr": 0.1})
    message = Message(content, dst_node_id=1, message_type="train")
    assert wire.read_kept(message) == wire.Kept()


class Net(nn.Module):
    """A body that travels, and a head that does not."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.usefixtures("no_settling")
def test_a_head_that_never_travels_fits_whatever_body_comes():
    widths, heads = [], {}
    app = ClientApp()

    @app.train()
    def train(message, context):
        model = Net()
        load_submodel(model.body, message.content["arrays"])
        if "head" in context.state:
            head = context.state["head"].to_torch_state_dict()
            model.head.load_state_dict(head)
        widths.append(model.body[0].weight.shape[0])
        model(torch.ones(1, 2)).sum().backward()
        shift(model.head, 1.0)
        context.state["head"] = ArrayRecord(model.head.state_dict())
        heads[context.node_id] = model.head.bias.detach().sum().item()
        content = {
            "arrays": ArrayRecord(model.body.state_dict()),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    body = Net().body
    strategy = HeteroAsyncDrop(
        body,
        torch.zeros(1, 2),
        drop_rate=0.4,
        in_flight=2,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    with LocalGrid(lambda: app, num_nodes=2, workers=0) as grid:
        strategy.start(grid, ArrayRecord(body.state_dict()), num_rounds=3)
    assert len(widths) >= 6
    assert min(widths) < 9
    assert max(heads.values()) > 3


class TestMistakes:
    @pytest.mark.parametrize("call", [load_personal, save_personal])
    def test_a_head_that_never_travels(self, call):
        model = Net()
        message = task(nn.ModuleDict({"body": model.body}))
        with pytest.raises(ConfigError, match=r"'head.bias' is not .* never travels"):
            call(context(), model, message, "head")
        says = "if body alone travels, load that part of the model alone"
        for sent in (message, task(model.body)):
            with pytest.raises(ShapeError, match=says):
                loaded(Net, sent)

    def test_initial_arrays_without_a_head(self):
        start = {n: t for n, t in Net().state_dict().items() if n.startswith("body")}
        strategy = HeteroAsyncDrop(Net(), torch.zeros(1, 2))
        says = "or give the strategy the part of the model that travels"
        with pytest.raises(ConfigError, match=says):
            strategy.start(HandlerGrid(plus_one), ArrayRecord(start))

    def test_a_name_that_is_not_there(self):
        message = task(two_layers())
        with pytest.raises(
            ConfigError, match="Sequential has no layer or tensor 'head'"
        ):
            save_personal(context(), two_layers(), message, "head")

    def test_a_model_that_was_not_loaded(self):
        server = two_layers()
        message = task(server, plan_of(server), units(0))
        with pytest.raises(ShapeError, match="call load_submodel with the arrays"):
            save_personal(
                context(),
                nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
                message,
                "2",
            )

    def test_another_model_than_before(self):
        mine, message = context(), task(two_layers())
        save_personal(mine, two_layers(), message, "2")
        other = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        with pytest.raises(ShapeError, match=r"has kept 2.weight of shape \(2, 3\)"):
            load_personal(mine, other, task(other), "2")


def test_a_reply_has_what_the_task_has_learnt_and_not_the_clients_own_layer():
    server, mine = two_layers(), context()
    first = task(server)
    model = loaded(two_layers, first)
    shift(model, 100)
    save_personal(mine, model, first, "2")
    # At first the client's own are the server's.
    assert model[2].bias.tolist() == [104.0, 105]

    second = task(server, plan_of(server), units(0, 2))
    model = loaded(two_layers, second)
    load_personal(mine, model, second, "2")
    shift(model, 7)
    save_personal(mine, model, second, "2")
    assert model[2].weight.tolist() == [[48.0, 50], [58, 60]]  # 41 + 7, 43 + 7, ...
    assert model[2].bias.tolist() == [11.0, 12]
    assert model[0].bias.tolist() == [8.0, 10]

    third = task(server)
    model = loaded(two_layers, third)
    load_personal(mine, model, third, "2")
    assert model[2].weight.tolist() == [[148.0, 142, 150], [158, 152, 160]]


def test_a_reply_of_masked_units_keeps_its_zeros():
    server, mine = two_layers(), context()
    plan = plan_of(server)
    for _ in range(2):
        message = task(server, plan, units(0, 1), masked=True)
        model = loaded(two_layers, message)
        load_personal(mine, model, message, "2")
        with torch.no_grad():
            model[2].weight[:, :2] += 1
        save_personal(mine, model, message, "2")
        assert model[2].weight.tolist() == [[42.0, 43, 0], [52, 53, 0]]


class Tied(nn.Module):
    """An embedding whose weights are those of the output, too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(self.embedding(x))


@pytest.mark.parametrize("names", [["output"], ["embedding", "output"]])
def test_a_tied_weight_stays_the_clients_own_under_both_names(names):
    server, mine, began, replied = Tied(), context(), [], []
    with torch.no_grad():
        server.embedding.weight.zero_()
    for _ in range(3):
        message = task(server)
        model = loaded(Tied, message)
        load_personal(mine, model, message, *names)
        began.append(model.output.weight[0, 0].item())
        with torch.no_grad():
            model.output.weight += 1
        save_personal(mine, model, message, *names)
        replied.append(model.output.weight[0, 0].item())
        with torch.no_grad():
            server.embedding.weight += 100  # as others move it
    assert began == [0, 1, 2]
    assert replied == [1, 101, 201]
