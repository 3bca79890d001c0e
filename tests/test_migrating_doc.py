"""What docs/migrating.md shows runs, and its tables name what there is."""

import inspect
import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import flwr_asyncdrop
from flwr_asyncdrop import AsyncDrop, FedBuff, LocalGrid, load_submodel
from flwr_asyncdrop.objectives import LocalTask, StandardObjective
from flwr_asyncdrop.strategy.replaced import REPLACED
from flwr_asyncdrop.strategy.sampling import Sampling
from tests.grids import HandlerGrid
from tests.runs import plus_one
from tests.strategy.test_strategy import measuring

TEXT = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.usefixtures("no_settling")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))


def blocks(heading):
    section = TEXT.partition(f"# {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def run_block(heading, number=0, **names):
    """Run a Python block under a heading; return its names."""
    code = blocks(heading)[number]
    exec(compile(code, "migrating.md", "exec"), names)  # noqa: S102  # our own
    return names


def evaluating(message):
    """Answer an evaluation as upstream's clients do."""
    reply = measuring(plus_one)(message)
    if message.metadata.message_type == "evaluate":
        reply.content["metrics"]["eval_acc"] = 0.5
    return reply


@pytest.fixture
def names(tmp_path):
    """Return what the blocks take for granted."""
    return {
        **{name: getattr(flwr_asyncdrop, name) for name in flwr_asyncdrop.__all__},
        "torch": torch,
        "ConfigRecord": ConfigRecord,
        "MetricRecord": MetricRecord,
        "grid": HandlerGrid(evaluating, node_ids=range(1, 11)),
        "initial_arrays": ArrayRecord(Net().state_dict()),
        "strategy": FedBuff(in_flight=2),
        "folder": tmp_path,
    }


def rates(grid):
    sent = [m.content["config"] for m in grid.pushed]
    return {(c["server-round"], c["lr"]) for c in sent if "lr" in c}


def test_from_fedavg(names):
    sent = Message(RecordDict({"arrays": names["initial_arrays"]}), 1, "train")
    found = run_block(
        "From FedAvg",
        **names | {"config": ConfigRecord(), "model": Net(), "message": sent},
    )
    assert len(found["result"].train_metrics_clientapp) == 20
    assert Sampling.of(found["strategy"]).training(10) == 5


def test_schedules(names):
    run_block("Schedules", **names)
    assert rates(names["grid"]) == {(n, 0.1 * 0.5 ** (n // 5)) for n in range(1, 21)}


def test_hooks_of_a_subclass(names, tmp_path):
    decayed = run_block("Hooks of a subclass", **names)["Decayed"]
    config = ConfigRecord({"lr": 1.0})
    decayed(in_flight=2).start(
        names["grid"], names["initial_arrays"], num_rounds=6, train_config=config
    )
    found = {(n, rate) for n, rate in rates(names["grid"]) if n < 7}
    assert found == {(n, 1.0 if n < 5 else 0.5) for n in range(1, 7)}
    assert len(list(tmp_path.glob("round-*.pt"))) == 6


@pytest.mark.parametrize("clients", [False, True])
def test_saving_the_best_model(names, tmp_path, clients):
    if clients:
        kind = run_block("Saving the best model", 1, **names)["KeepsBest"]
        kind(in_flight=2).start(names["grid"], names["initial_arrays"], num_rounds=2)
    else:
        scores = iter([0.1, 0.9, *[0.5] * 30])
        run_block("Saving the best model", 0, **names, test=lambda _: next(scores))
    saved = torch.load(tmp_path / "best.pt")
    assert saved.keys() == Net().state_dict().keys()


def test_trackers(names):
    logged = []

    def log(values, step):
        logged.append((step, set(values)))

    strategy = run_block("Trackers", **names, log=log)["strategy"]
    strategy.start(names["grid"], names["initial_arrays"], num_rounds=2)
    assert [step for step, keys in logged if keys == {"staleness"}][-1] == 20
    assert any("eval_acc" in keys for _, keys in logged)


@pytest.mark.parametrize("asked", [{}, {"logit-adjustment": 1.0, "proximal-mu": 2.0}])
def test_the_clients_loss(asked):
    """It trains as the objective does that the ready app's clients have."""
    images = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    labels = (images[:, 0] > 1).long()
    config = ConfigRecord({"lr": 0.1, **asked})
    message = Message(RecordDict({"config": config}), 1, "train")
    torch.manual_seed(0)
    model = Net()
    other = deepcopy(model)
    given = {"model": model, "images": images, "labels": labels, "message": message}
    run_block("The client's loss", **given, torch=torch)

    task = LocalTask(other, F.cross_entropy, dict(config), labels=labels, num_classes=3)
    local = StandardObjective().begin(task)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for x, y in zip(images.split(8), labels.split(8), strict=True):
        optimizer.zero_grad()
        local.loss(other(x), y).backward()
        local.adjust_gradients()
        optimizer.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_personal_layers(names):
    def client_app():
        found = run_block(
            "Personal layers",
            **names | {"Net": Net, "app": ClientApp(), "ArrayRecord": ArrayRecord},
            Message=Message,
            RecordDict=RecordDict,
            train_model=add_one,
            test=lambda model: model.head.bias.mean().item(),
        )
        return found["app"]

    def add_one(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)

    strategy = AsyncDrop(Net(), torch.zeros(2, 4), in_flight=2, alpha=0.001)
    with LocalGrid(client_app, num_nodes=2, workers=0) as grid:
        result = strategy.start(grid, names["initial_arrays"], num_rounds=3)
    *_, last = result.evaluate_metrics_clientapp.values()
    # Each task of a device adds 1 to the bias that it keeps; the server's hardly moves.
    assert last["eval_acc"] > 1.5


def test_personal_normalisations(names):
    message = Message(RecordDict({"arrays": names["initial_arrays"]}), 1, "train")
    model = load_submodel(Net(), message.content["arrays"])
    context = type("Context", (), {"state": RecordDict()})()
    given = names | {"nn": nn, "model": model, "message": message, "context": context}
    found = run_block("Personal layers", 1, **given)
    assert found["norms"] == ["body.1"]


def test_the_tables_have_every_argument():
    arguments = {*inspect.signature(FedAvg).parameters, *REPLACED}
    inside = {"strategy", "noise_multiplier", "clipping_norm", "num_sampled_clients"}
    inside |= {"num_malicious_nodes", "num_nodes_to_select", "selection_rule"}
    inside |= {"q", "train_loss_key", "accept_failures", "inplace", "keys"}
    for name in sorted(arguments - inside):
        assert name in TEXT, name


def test_two_models_in_the_client(names):
    """As in vertical learning; what one trains comes back in its place."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.encoder(x))

    def train_model(encoder, head):
        head(encoder(torch.ones(2, 4))).square().sum().backward()
        with torch.no_grad():
            for parameter in (*encoder.parameters(), *head.parameters()):
                parameter -= 0.01 * parameter.grad

    def client(message):
        two = Both()
        about = {"nn": nn, "encoder": two.encoder, "head": two.head, **names}
        about |= {"ArrayRecord": ArrayRecord, "train_model": train_model}
        made = run_block("Two models", message=message, **about)
        narrow.append(two.encoder[0].out_features < 16)
        metrics = MetricRecord({"num-examples": 2})
        content = RecordDict({"arrays": made["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    narrow = []
    initial = ArrayRecord(Both().state_dict())
    strategy = AsyncDrop(Both(), torch.zeros(1, 4), in_flight=2, fraction_evaluate=0.0)
    result = strategy.start(HandlerGrid(client), initial, num_rounds=2)
    assert any(narrow)
    before, after = initial.to_torch_state_dict(), result.arrays.to_torch_state_dict()
    assert all(not torch.equal(after[name], before[name]) for name in before)
