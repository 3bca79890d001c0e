"""The ready ClientApp, called as Flower calls it, on the embedded digits."""

import pytest
import torch
from flwr.app import Context, MessageType, RecordDict
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model, load_data, partitions
from flwr_asyncdrop.client_app import app
from flwr_asyncdrop.exceptions import AsyncDropError, ConfigError, DataError
from flwr_asyncdrop.flower_internals.identity import assume_identity
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract, plan_submodels, silenced
from tests.masks.choosing import choose
from tests.runs import KEYS

assume_identity(run_id=1)

RUN_CONFIG = {"local-steps": 3, "model": "cnn", "levels": 4}
CONFIG = RunConfig.parse(RUN_CONFIG)
DEVICES = 6


def full_state():
    return initial_model(CONFIG).state_dict()


@pytest.fixture(scope="module")
def narrow_state():
    inputs = load_data(CONFIG).example_inputs()
    plan = plan_submodels(initial_model(CONFIG), inputs)
    generator = torch.Generator().manual_seed(0)
    keep = choose(RandomMask(0.5), plan.groups, None, 0, 1, generator)
    return extract(full_state(), plan.indices(keep))


def call(
    state,
    *,
    partition=2,
    devices=DEVICES,
    seed=11,
    train_config=None,
    node_config=None,
    run_config=RUN_CONFIG,
    kind=MessageType.TRAIN,
):
    count = None if partition is None else devices
    task = wire.TaskConfig(1, seed, partition, count)
    message = wire.make_task(
        wire.to_record(state),
        train_config or {},
        task,
        node_id=5,
        keys=KEYS,
        message_type=kind,
    )
    context = Context(
        run_id=1,
        node_id=5,
        node_config=node_config or {},
        state=RecordDict(),
        run_config=run_config,
    )
    return app(message, context)


def arrays(reply):
    return {
        name: t.tolist()
        for name, t in wire.from_record(reply.content["arrays"]).items()
    }


def samples_of(device, count=DEVICES):
    return len(partitions(CONFIG, count)[device])


@pytest.mark.parametrize("size", ["full", "narrow"])
def test_the_reply_has_the_shapes_that_were_sent(size, narrow_state):
    sent = full_state() if size == "full" else narrow_state
    reply = call(sent)
    shapes = {name: tuple(tensor.shape) for name, tensor in sent.items()}
    dtypes = {name: tensor.dtype for name, tensor in sent.items()}
    read = wire.read_reply(reply, wire.Expected(shapes, dtypes, KEYS))
    assert read.num_examples == samples_of(2)
    moved = [n for n, t in sent.items() if not torch.equal(read.arrays[n], t)]
    assert {"weight", "bias"} <= {name.rpartition(".")[2] for name in moved}
    assert all(read.arrays[n].dtype == t.dtype for n, t in sent.items())
    metrics = wire.flat_metrics(read.metrics)
    assert 0 < metrics["train-loss"] < 10
    assert metrics["wall-train-seconds"] > 0


def test_a_batch_may_be_of_one_sample():
    """A device with one sample has no other batches."""
    reply = call(full_state(), run_config={**RUN_CONFIG, "batch-size": 1})
    assert not reply.has_error()
    assert 0 < reply.content["metrics"]["train-loss"] < 10


def test_without_scale_a_submodel_is_a_narrow_model_and_nothing_else(monkeypatch):
    run_config = {**RUN_CONFIG, "model": "mlp"}
    generator = torch.Generator().manual_seed(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
    sent = {
        name: torch.randn(tensor.shape, generator=generator) / 8
        for name, tensor in plain.state_dict().items()
    }

    def trained(model, scale):
        monkeypatch.setattr("flwr_asyncdrop.app.client.initial_model", lambda _: model)
        return arrays(call(sent, run_config={**run_config, "scale": scale}))

    assert trained(wide, False) == trained(plain, False) == trained(plain, True)
    assert trained(wide, True) != trained(wide, False)


def test_zeroed_units_of_a_full_size_model_are_never_scaled(narrow_state):
    """What mode='masked' sends: no layer is narrower, so no input is scaled."""
    inputs = load_data(CONFIG).example_inputs()
    plan = plan_submodels(initial_model(CONFIG), inputs)
    generator = torch.Generator().manual_seed(0)
    keep = choose(RandomMask(0.5), plan.groups, None, 0, 1, generator)
    sent = silenced(full_state(), plan.indices(keep))
    replies = [call(sent, run_config={**RUN_CONFIG, "scale": s}) for s in (True, False)]
    assert arrays(replies[0]) == arrays(replies[1])


def test_training_depends_on_task_and_data_alone(narrow_state):
    first = call(narrow_state)
    torch.rand(3)
    again = call(narrow_state)
    assert arrays(again) == arrays(first)
    assert (
        again.content["metrics"]["train-loss"]
        == (first.content["metrics"]["train-loss"])
    )
    assert arrays(call(narrow_state, seed=12)) != arrays(first)
    assert arrays(call(narrow_state, partition=3)) != arrays(first)


def test_augmented_images_depend_on_the_task_alone(narrow_state):
    run_config = {**RUN_CONFIG, "augment": True}
    first = arrays(call(narrow_state, run_config=run_config))
    torch.rand(3)
    assert arrays(call(narrow_state, run_config=run_config)) == first
    assert first != arrays(call(narrow_state))


def test_tasks_leave_nothing_behind():
    """The cached initial model and the global generator stay as they are."""
    before, model = torch.get_rng_state(), full_state()
    kept = {name: tensor.clone() for name, tensor in model.items()}
    call(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(full_state()[n], tensor) for n, tensor in kept.items())


def test_dropout_draws_from_the_task_and_leaves_nothing_behind(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    monkeypatch.setattr("flwr_asyncdrop.app.client.initial_model", lambda _: model)
    state = {"2.weight": torch.zeros(10, 64), "2.bias": torch.zeros(10)}
    before = torch.get_rng_state()
    first = arrays(call(state))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert arrays(call(state)) == first
    torch.set_rng_state(before)


def test_the_servers_learning_rate_goes_before_the_run_configs():
    state = full_state()
    default = arrays(call(state))
    assert arrays(call(state, train_config={"lr": CONFIG.lr})) == default
    assert arrays(call(state, train_config={"lr": 0.001})) != default


def test_a_learning_rate_that_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="lr='fast' must be a number"):
        call(full_state(), train_config={"lr": "fast"})


def test_a_real_node_knows_its_own_data():
    node = {"partition-id": 2, "num-partitions": DEVICES}
    state = full_state()
    own = call(state, partition=None, node_config=node)
    assert arrays(own) == arrays(call(state, partition=2))
    # The server's word on a simulated fleet goes before the node's.
    other = {"partition-id": 4, "num-partitions": DEVICES}
    told = call(state, partition=2, node_config=other)
    assert arrays(told) == arrays(own)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({}, "does not know its data: start the SuperNode with --node-config"),
        ({"partition-id": 1}, "does not know its data"),
        ({"partition-id": "1", "num-partitions": 2}, "does not know its data"),
        (
            {"partition-id": 3, "num-partitions": 3},
            r"partition-id=3 must lie in \[0, 3\)",
        ),
        ({"partition-id": -1, "num-partitions": 3}, "partition-id=-1 must lie"),
    ],
)
def test_a_node_that_does_not_know_its_data_is_refused_in_one_line(node, says):
    with pytest.raises(DataError, match=says) as caught:
        call(full_state(), partition=None, node_config=node)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        (2024, "--node-config data-dir=2024 must be a string in quotes"),
        ("a\0b", "--node-config data-dir='a\\x00b' must be a path"),
        ("/absent", "no fashion-mnist in /absent"),
    ],
)
def test_a_folder_of_the_nodes_own_is_checked(folder, says):
    run_config = {**RUN_CONFIG, "dataset": "fashion-mnist", "data-dir": "/of/the/run"}
    with pytest.raises(AsyncDropError) as caught:
        call(full_state(), run_config=run_config, node_config={"data-dir": folder})
    assert says in str(caught.value)


def test_arrays_of_another_model_are_refused_in_one_line():
    other = {
        name: tensor for name, tensor in full_state().items() if "bias" not in name
    }
    with pytest.raises(AsyncDropError) as caught:
        call(other)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_is_refused_on_the_client_too():
    with pytest.raises(ConfigError, match="'local-step' is unknown: did you mean"):
        call(full_state(), run_config={"local-step": 3})


def test_evaluation_measures_the_model_on_the_devices_samples():
    reply = call(full_state(), kind=MessageType.EVALUATE)
    metrics = reply.content["metrics"]
    model, data = initial_model(CONFIG).eval(), load_data(CONFIG)
    inputs, labels = data.batch("train", partitions(CONFIG, DEVICES)[2])
    with torch.no_grad():
        logits = model(inputs)
    right = (logits.argmax(1) == labels).float().mean().item()
    assert metrics["num-examples"] == len(labels) == samples_of(2)
    assert metrics["accuracy"] == pytest.approx(right)
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert not reply.content.array_records
    again = call(full_state(), kind=MessageType.EVALUATE, seed=99)
    assert dict(again.content["metrics"]) == dict(metrics)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_text_is_trained_and_evaluated_as_images_are(reviews_root, precision):
    settings = {
        "dataset": "imdb",
        "model": "lstm",
        "data-dir": str(reviews_root),
        "partition": "iid",
        "local-steps": 30,
        "lr": 0.5,
        "precision": precision,
    }
    config = RunConfig.parse(settings)
    state = initial_model(config).state_dict()
    words = load_data(config).example_inputs()[:, -8:]  # a plan takes as long as they
    plan = plan_submodels(initial_model(config), words)
    generator = torch.Generator().manual_seed(0)
    keep = choose(RandomMask(0.5), plan.groups, None, 0, 1, generator)
    sent = extract(state, plan.indices(keep))
    reply = call(sent, run_config=settings, partition=0, devices=1)
    trained = wire.from_record(reply.content["arrays"])
    assert {n: t.shape for n, t in trained.items()} == {
        n: t.shape for n, t in sent.items()
    }
    assert {t.dtype for t in trained.values()} == {torch.float32}
    before, after = (
        call(
            arrays,
            run_config=settings,
            partition=0,
            devices=1,
            kind=MessageType.EVALUATE,
        ).content["metrics"]
        for arrays in (sent, trained)
    )
    assert after["num-examples"] == 3
    assert after["loss"] < before["loss"]


def test_precision_changes_the_numbers_and_not_the_types():
    full, low = (
        call(full_state(), run_config={**RUN_CONFIG, "precision": precision})
        for precision in ("float32", "bfloat16")
    )
    assert arrays(low) != arrays(full)
    for (_, one), (_, two) in zip(
        wire.from_record(low.content["arrays"]).items(),
        wire.from_record(full.content["arrays"]).items(),
        strict=True,
    ):
        assert one.dtype == two.dtype
        assert torch.allclose(one.float(), two.float(), atol=0.05)


def test_training_improves_what_evaluation_measures():
    settings = {**RUN_CONFIG, "local-steps": 40}
    trained = wire.from_record(
        call(full_state(), run_config=settings).content["arrays"]
    )
    before, after = (
        call(state, kind=MessageType.EVALUATE).content["metrics"]["loss"]
        for state in (full_state(), trained)
    )
    assert after < before
