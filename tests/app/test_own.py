"""Data sets, models and objectives from outside of the package, by name."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from flwr_asyncdrop import LocalGrid, wire
from flwr_asyncdrop.app import Classification, Dataset, Regression, server
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.experiment import initial_model, load_data
from flwr_asyncdrop.app.server import build_strategy, run_experiment
from flwr_asyncdrop.client_app import app
from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.observers.history_reading import read_history
from tests.runs import KEYS

REGRESSION = {"dataset": "tests.app.own:plane", "model": "tests.app.own:perceptron"}
NEXT_TOKEN = {"dataset": "tests.app.own:counting", "model": "tests.app.own:reader"}
SCORES = {"dataset": "tests.app.own:two_sides", "model": "mlp"}
APP = "flwr_asyncdrop.client_app:app"


def run(settings, out):
    config = RunConfig.parse(
        {
            "partition": "iid",
            "num-rounds": 6,
            "in-flight": 2,
            "levels": 2,
            "local-steps": 20,
            "lr": 0.02,
            "out-dir": str(out),
            **settings,
        }
    )
    with LocalGrid(APP, num_nodes=4, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config)
    events = read_history(out / "history.jsonl")
    return [e["metrics"] for e in events if e["event"] == "evaluation"]


@pytest.mark.parametrize(
    ("settings", "metrics"),
    [
        (REGRESSION, {"loss", "mae"}),
        (NEXT_TOKEN, {"loss", "perplexity", "accuracy"}),
        ({**NEXT_TOKEN, "algo": "asyncdrop", "width": 2.0}, {"loss", "accuracy"}),
        ({**REGRESSION, "model": "mlp"}, {"loss"}),
        # Its adjusted loss is for labels: here it has none to adjust
        ({**REGRESSION, "algo": "asyncdrop-plus", "num-rounds": 12}, {"loss"}),
        ({**NEXT_TOKEN, "model": "transformer", "lr": 0.1}, {"loss", "perplexity"}),
    ],
)
def test_tasks_that_are_not_classification_are_learnt(settings, metrics, tmp_path):
    first, *_, last = run(settings, tmp_path)
    assert metrics <= last.keys()
    assert last["loss"] < 0.5 * first["loss"]


def test_weights_with_two_names_are_saved_under_both(tmp_path):
    settings = {**NEXT_TOKEN, "model": "tests.app.own:tied", "num-rounds": 1}
    run(settings, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(saved["embedding.weight"], saved["output.weight"])
    config = RunConfig.parse({"partition": "iid", **settings})
    initial_model(config).load_state_dict(saved)
    assert (tmp_path / "done.json").exists()


def test_weights_in_another_order_are_saved(tmp_path, monkeypatch):
    """As those of images are on a GPU in bfloat16: channels last."""

    def transposed(*arguments):
        model = trained(*arguments)
        weight = model[0].weight
        weight.data = weight.data.t().contiguous().t()
        assert not weight.is_contiguous()
        return model

    trained = server.trained_model
    monkeypatch.setattr(server, "trained_model", transposed)
    run({**REGRESSION, "num-rounds": 1}, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["0.weight"].shape == (16, 4)


def test_dataset_and_model_are_shared_and_follow_the_seed():
    config = RunConfig.parse({**REGRESSION, "partition": "iid", "seed": 3})
    assert load_data(config) is load_dataset(config.dataset)
    before = torch.get_rng_state()
    first = initial_model(config).state_dict()
    initial_model.cache_clear()
    again = initial_model(config).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_data_dir_reaches_the_function(tmp_path):
    with pytest.raises(DataError, match="returned a str: return a flwr_asyncdrop"):
        load_dataset("tests.app.own:no_data", tmp_path)
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_dataset("tests.app.own:absent")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({**REGRESSION, "partition": "speed-level"}, "has none: set partition='iid'"),
        ({**NEXT_TOKEN, "partition": "dirichlet"}, "has none: set partition='iid'"),
        ({**NEXT_TOKEN, "logit-adjustment": 0.5}, "has none: leave it out"),
        ({**SCORES, "logit-adjustment": 0.5}, "has a loss that is not of logits"),
        ({**NEXT_TOKEN, "model": "lstm"}, "asks for something else: name your own"),
        ({**REGRESSION, "model": "cnn"}, "needs the sizes of an image"),
        ({**REGRESSION, "model": "tests.app.own:no_model"}, "return an nn.Module"),
        ({**REGRESSION, "model": "tests.app.own:absent"}, "cannot be imported"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(settings, says):
    config = RunConfig.parse({"partition": "iid", **settings})
    with pytest.raises(ConfigError, match=says) as caught:
        initial_model(config)
    assert "\n" not in str(caught.value)


def test_a_logit_adjustment_needs_labels():
    settings = {**REGRESSION, "partition": "iid", "logit-adjustment": 1.0}
    with pytest.raises(ConfigError, match="corrects a skew of labels"):
        call(settings, context_of(settings), {})


def test_scores_that_are_no_logits_are_trained_with_their_own_loss():
    def trained(algo, **given):
        settings = {**SCORES, "algo": algo, **given}
        reply = call(settings, context_of(settings), {})
        return wire.from_record(reply.content["arrays"])

    plus, plain = trained("asyncdrop-plus"), trained("async-fedavg")
    assert all(torch.equal(plus[name], plain[name]) for name in plain)


def context_of(settings):
    return Context(1, 5, {}, RecordDict(), {"partition": "iid", **settings})


def call(settings, context, extra, device=1, **told):
    config = RunConfig.parse({"partition": "iid", "local-steps": 1, **settings})
    message = wire.make_task(
        wire.to_record(initial_model(config).state_dict()),
        {**config.algorithm.objective().config(), **told},
        wire.TaskConfig(1, 11, device, 3),
        node_id=5,
        keys=KEYS,
    )
    for name, state in extra.items():
        message.content[name] = wire.to_record(state)
    return app(message, context)


def test_a_devices_extra_record_and_its_state_survive_its_tasks():
    settings = {"algo": "tests.app.own:Kept", "model": "mlp"}
    context = context_of(settings)
    received = []
    for device, number in ((1, 1.0), (1, 2.0), (2, 5.0), (1, 4.0)):
        extra = {"sent": {"w": torch.full((2,), number)}}
        reply = call(settings, context, extra, device)
        assert set(reply.content.array_records) == {"arrays", "sent"}
        received.append(wire.from_record(reply.content["sent"])["w"].tolist())
    # Two devices on one node, each with its own sum.
    assert received == [[1.0, 1.0], [3.0, 3.0], [5.0, 5.0], [7.0, 7.0]]


def test_a_state_on_the_device_that_the_algorithm_does_not_name_is_refused():
    settings = {"algo": "tests.app.own:SilentlyKept", "model": "mlp"}
    context = context_of(settings)
    says = r"keeps 'sum' in task.state.*keeps_client_state = True in class SilentlyKept"
    with pytest.raises(ConfigError, match=says):
        call(settings, context, {"sent": {"w": torch.ones(2)}})
    assert not context.state


@pytest.mark.parametrize(("number", "lr"), [(math.nan, 0.1), (9.0, math.inf)])
def test_a_task_that_diverged_leaves_the_state_as_it_was(number, lr):
    """Else the server would refuse all later ones of the device."""
    settings = {"algo": "tests.app.own:Kept", "model": "mlp"}
    context, sums = context_of(settings), []
    for value, rate in ((1.0, 0.1), (number, lr), (2.0, 0.1)):
        extra = {"sent": {"w": torch.full((2,), value)}}
        reply = call(settings, context, extra, lr=rate)
        sums.append(wire.from_record(reply.content["sent"])["w"].tolist())
    assert sums[2] == [3.0, 3.0]


@pytest.mark.parametrize("sizes", [(3, 2, 1, 1), (0, 0, 1, 1), (2, 2, 2, 1)])
def test_a_dataset_that_does_not_fit_together_is_refused(sizes):
    with pytest.raises(DataError, match="as many of both"):
        Dataset(*(torch.zeros(size) for size in sizes), Regression())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task": Regression}, "Regression'> is no LearningTask: give an object"),
        ({"task": "regression"}, "task='regression' is no LearningTask: give an"),
        ({"groups": [0, 1, 1]}, "groups is a list: give a tensor"),
        ({"groups": np.array([0, 1, 1])}, "groups is a ndarray: give a tensor"),
    ],
)
def test_a_dataset_of_other_types_is_refused(given, says):
    ones = torch.ones(3, 1)
    with pytest.raises(DataError, match=says):
        Dataset(ones, ones, ones, ones, **{"task": Regression(), **given})


LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (LABELS.int(), r"type torch.int32 and shape \(3,\): give int64"),
        (LABELS.float(), "type torch.float32"),
        (LABELS[:, None], r"shape \(3, 1\): give int64 of shape \(3,\)"),
        (LABELS.numpy(), "train_y is a ndarray: give a tensor"),
    ],
)
def test_labels_are_a_number_a_sample(labels, says):
    with pytest.raises(DataError, match=says):
        Dataset(torch.ones(3, 1), labels, torch.ones(3, 1), LABELS, Classification(2))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dataset": "tests.app.own:doubles"}, "same dtype, but got Double and Float"),
        ({"dataset": "tests.app.own:pairs"}, "is invalid for input of size 2"),
        ({"dataset": "tests.app.own:wider"}, "shapes cannot be multiplied"),
        ({"dataset": "tests.app.own:three_sides"}, "Target 2 is out of bounds"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_devices_train(settings, says):
    config = RunConfig.parse({**REGRESSION, "partition": "iid", **settings})
    with pytest.raises(ConfigError, match=f"cannot be tested on.*{says}") as caught:
        build_strategy(config)
    assert "\n" not in str(caught.value)


def test_metrics_may_be_of_pytorch_or_numpy(tmp_path):
    settings = {**REGRESSION, "dataset": "tests.app.own:judged", "num-rounds": 1}
    assert all(type(each["mae"]) is float for each in run(settings, tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("judged_by_a_list", r"ListJudged returned \{'loss': \[\[.*dict of numbers"),
        ("judged_by_an_error", r"ErrorJudged failed \(KeyError: 'mse'\)"),
    ],
)
def test_metrics_that_are_no_numbers_are_refused_in_one_line(name, says, tmp_path):
    settings = {**REGRESSION, "dataset": f"tests.app.own:{name}", "num-rounds": 1}
    with pytest.raises(ConfigError, match=says) as caught:
        run(settings, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_algorithm_chooses_the_devices_itself(tmp_path):
    settings = {**REGRESSION, "algo": "tests.app.own:Curious", "num-rounds": 3}
    run(settings, tmp_path)
    events = read_history(tmp_path / "history.jsonl")
    updates = [e["device"] for e in events if e["event"] == "update"]
    assert updates[:2] == [0, 1]  # stratified would take one of each of two levels
    says = "chooses the devices itself, which contradicts selection='uniform'"
    with pytest.raises(ConfigError, match=says):
        RunConfig.parse({"partition": "iid", **settings, "selection": "uniform"})


def test_an_objective_reports_numbers_of_its_own(tmp_path):
    settings = {**REGRESSION, "algo": "tests.app.own:Reports", "num-rounds": 1}
    run(settings, tmp_path)
    events = read_history(tmp_path / "history.jsonl")
    updates = [e["metrics"] for e in events if e["event"] == "update"]
    assert [(e["largest"], e["steps"]) for e in updates] == [(4, 20)] * 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Overwrites", r"metrics\(\) of _Overwriting returned 'train-loss', wh"),
        ("Texts", r"metrics\(\) of _Texting returned .*return a MetricRecord"),
    ],
)
def test_what_an_objective_cannot_report_is_refused(name, says):
    settings = {"algo": f"tests.app.own:{name}", "model": "mlp"}
    with pytest.raises(ConfigError, match=says) as caught:
        call(settings, context_of(settings), {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["with_extra_state", "with_complex64"])
@pytest.mark.parametrize("algo", ["fedbuff", "hetero-asyncdrop"])
def test_a_model_with_extra_state_is_trained_and_saved(name, algo, tmp_path):
    model = f"tests.app.own:{name}"
    run({**REGRESSION, "model": model, "algo": algo, "num-rounds": 2}, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == {"shift", "0.weight", "0.bias", "2.weight", "2.bias"}
    assert saved["shift"].abs() > 0


def test_a_type_that_no_file_can_have_is_refused_before_the_run(tmp_path):
    settings = {**REGRESSION, "model": "tests.app.own:with_complex128"}
    with pytest.raises(ConfigError, match=r"'shift'.*is of torch.complex128") as caught:
        run(settings, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "history.jsonl").exists()
